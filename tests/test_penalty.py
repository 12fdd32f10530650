"""The penalty's tables, sentences and figures on made-up records."""

import matplotlib

matplotlib.use("agg")

import matplotlib.pyplot as plt
import pandas as pd
import pytest

from creditaudit import figures_penalty, findings_penalty, tables_penalty
from creditaudit.collect import Runs
from creditaudit.records import Record
from tests.factories import as_record

SEEDS = (42, 123, 456)
RESCUE = 1e-2
# (method, lambda) -> accuracy, deep Gamma, ||h_L||
RUNS = {
    ("bp", 0.0): (0.585, 0.95, 200.0),
    ("bp", RESCUE): (0.532, 0.95, 30.0),
    ("dfa", 0.0): (0.301, 0.0, 4e8),
    ("dfa", 1e-4): (0.360, -0.02, 2e4),
    ("dfa", RESCUE): (0.360, 0.15, 4e4),
    ("sb", 0.0): (0.213, 0.0, 1e8),
    ("sb", RESCUE): (0.453, 0.32, 2e3),
    ("cb", 0.0): (0.290, 0.0, 1e8),
    ("cb", RESCUE): (0.360, 0.68, 2e3),
}


def records(methods=("bp", "dfa", "sb", "cb"), seeds=SEEDS, epochs=5, **changes) -> list[Record]:
    made = []
    for place, seed in enumerate(seeds):
        for (method, penalty), (accuracy, gamma, h_last) in (RUNS | changes.get("runs", {})).items():
            if method in methods:
                fields = {"method": method, "penalty": penalty, "seed": seed, "epochs": epochs}
                made.append(
                    as_record(**fields, accuracy=accuracy + 0.001 * place, gamma=gamma, rho=gamma, h_last=h_last)
                )
        made += [as_record(method=method, seed=seed, epochs=epochs, k=0, accuracy=0.35) for method in methods]
    return made


def runs_of(made: list[Record], asked: list[Record] | None = None) -> Runs:
    return Runs([record.spec for record in asked or made], made, "paper", "penalty_rescue", "d256_L4")


@pytest.fixture(autouse=True)
def _close_figures():
    yield
    plt.close("all")


def test_cosine_and_function_rank_differently_only_if_the_runs_say_so():
    rows = tables_penalty.per_run(runs_of(records()))
    assert tables_penalty.ranking(rows, RESCUE, "gamma_deep") == ["cb", "sb", "dfa"]
    assert tables_penalty.ranking(rows, RESCUE, "accuracy")[0] == "sb"
    sentence = findings_penalty.ranks(rows, RESCUE)
    assert sentence.startswith("**Cosine and function disagree**") and "in 3 of 3 seeds" in sentence
    agreeing = tables_penalty.per_run(runs_of(records(runs={("cb", RESCUE): (0.5, 0.68, 2e3)})))
    assert findings_penalty.ranks(agreeing, RESCUE).startswith("Cosine and function agree on the first place")
    alone = tables_penalty.per_run(runs_of(records(["bp", "dfa"])))
    assert "nothing to rank" in findings_penalty.ranks(alone, RESCUE)
    blind = rows.assign(gamma_deep=rows.gamma_deep.where(rows.method != "cb"))
    assert "The deep cosine of Credit Bridge is undefined" in findings_penalty.ranks(blind, RESCUE)


def test_sweep_lists_every_lambda_the_longer_run_and_both_controls():
    longer = [as_record(method="dfa", penalty=RESCUE, seed=seed, epochs=9) for seed in SEEDS[:2]]
    short, long = tables_penalty.by_budget(runs_of(records() + longer))
    table = tables_penalty.sweep(tables_penalty.per_run(short), tables_penalty.per_run(long), "dfa").set_index("run")
    assert list(table.n) == [3, 3, 3, 2, 3, 3, 3]
    assert table.accuracy["DFA, $\\lambda$ = 0.01"] == "0.361 ± 0.001"
    assert table[r"$\lVert h_L \rVert$"]["DFA, $\\lambda$ = 0"] == "4.0e8 ×/÷\u00a0<1.01"
    assert pd.isna(table[r"deep $\Gamma$"]["DFA, frozen ($k=0$)"])  # the credit of a frozen block drives nothing
    assert "DFA, $\\lambda$ = 0.01, 9 epochs" in table.index


def test_longer_runs_alone_do_not_become_the_section():
    asked = [*records(), as_record(method="dfa", penalty=RESCUE, epochs=9)]
    short, long = tables_penalty.by_budget(runs_of(asked[-1:], asked))
    assert not short.records and len(long.records) == 1
    assert findings_penalty.sweep_caption(tables_penalty.per_run(short), "dfa") == findings_penalty.NOTHING


def test_gains_are_paired_with_the_methods_own_frozen_run():
    rows = tables_penalty.per_run(runs_of(records()))
    table = tables_penalty.with_and_without(rows, RESCUE).set_index(["method", "blocks"])
    assert table["over frozen, pp"]["DFA", "$\\lambda=0.01$"] == "+1.1 ± 0.1"
    assert table["over frozen, pp"]["DFA", "$\\lambda=0$"] == "−4.8 ± 0.1"
    sentence = findings_penalty.rescued(rows, RESCUE)
    assert "helps State Bridge (+10.4 ± 0.1 pp) and does not help DFA (+1.1 ± 0.1 pp)" in sentence
    assert "−5.3 ± 0.0 pp" in findings_penalty.control(rows, RESCUE)
    assert sentence.endswith("Of the other penalties, training the blocks helps nobody.")
    swept = tables_penalty.per_run(runs_of(records(runs={("dfa", 1e-4): (0.390, 0.0, 2e4)})))
    assert "helps DFA at $\\lambda=0.0001$ (+4.1 ± 0.1 pp)" in findings_penalty.rescued(swept, RESCUE)


@pytest.mark.parametrize(
    ("norms", "why"),
    [
        ([80.0, 80.0, 80.0, 80.0, 4e8], "the steps are about the same, so what changes is"),  # h_L is not moved
        ([80.0, 4e8, 4e8, 4e8, 4e8], "the steps differ by more than tenfold"),
    ],
)
def test_a_run_whose_rho_is_fragile_is_named_with_the_reason_its_norms_allow(norms, why):
    made = records(["bp"], [42])
    assert findings_penalty.fragile_rho(tables_penalty.per_run(runs_of(made))).startswith("No run's deep")
    off = {"rho": 0.3, "final": {"rho_scaled_in": [0.8] * 4, "h_norm": norms}}
    made[1] = as_record(method="bp", penalty=RESCUE, epochs=5, **off)
    told = findings_penalty.fragile_rho(tables_penalty.per_run(runs_of(made)))
    assert f"norm: in BP, $\\lambda=0.01$, seed 42 (0.30 against 0.80) {why}" in told


def test_how_much_direction_comes_back_is_set_beside_what_it_is_worth():
    rows = tables_penalty.per_run(runs_of(records()))
    told = findings_penalty.direction(rows, "dfa", RESCUE)
    assert (
        told.startswith("Direction: DFA's deep cosine is ") and "std over seeds (ddof 1), n = 3); with feedback" in told
    )
    assert told.endswith("training such blocks does not help DFA (+1.1 ± 0.1 pp, n = 3).")
    lost = rows.assign(gamma_deep=rows.gamma_deep.where(rows.penalty > 0))
    assert "deep cosine is undefined without the penalty" in findings_penalty.direction(lost, "dfa", RESCUE)
    one = rows[(rows.k > 0) | (rows.seed == 42)]
    assert "(+1.0 pp, n = 1)." in findings_penalty.direction(one, "dfa", RESCUE)
    nobody = tables_penalty.per_run(runs_of(records(["bp"])))
    assert findings_penalty.direction(nobody, "dfa", RESCUE).endswith("runs of DFA are missing.")


def test_the_sweeps_legend_names_what_is_drawn():
    def legend(methods, swept):
        fig = figures_penalty.sweep(tables_penalty.per_run(runs_of(records(methods, [42]))), swept)
        return [text.get_text() for text in fig.legends[0].get_texts()]

    assert legend(["bp", "dfa"], ["dfa"]) == ["DFA", "BP", "frozen"]
    assert legend(["bp", "dfa"], ["bp", "dfa"]) == ["BP", "DFA", "frozen"]
    assert legend(["dfa"], ["dfa"]) == ["DFA", "frozen"]


@pytest.mark.parametrize(("methods", "seeds"), [(("dfa",), (42,)), (("bp", "dfa", "sb", "cb"), SEEDS)])
def test_figures_are_drawn(methods, seeds):
    runs = runs_of(records(methods, seeds))
    rows, epochs = tables_penalty.per_run(runs), tables_penalty.trajectories(runs, 42)
    for fig in (
        figures_penalty.rescue_panels(epochs, "dfa", RESCUE),
        figures_penalty.sweep(rows, ["dfa"]),
        figures_penalty.cosine_against_function(rows, RESCUE, "dfa"),
    ):
        fig.draw_without_rendering()
    note = "n = 3" if len(seeds) == 3 else "n = 1 seed, hence no error bars"
    assert note in findings_penalty.sweep_caption(rows, "dfa") and note in findings_penalty.scatter_caption(
        rows, RESCUE, "dfa"
    )
    caption = findings_penalty.panels_caption(epochs, "dfa", RESCUE, 42)
    assert "Seed 42 alone" in caption and ("no run yet" in caption) == ("bp" not in methods)


def test_reference_lines_come_from_records():
    rows = tables_penalty.per_run(runs_of(records(["bp", "dfa"], [42])))
    accuracy, scale = figures_penalty.sweep(rows, ["dfa"]).axes[:2]
    levels = {line.get_ydata()[0] for ax in (accuracy, scale) for line in ax.lines if len(set(line.get_ydata())) == 1}
    bp = rows[(rows.method == "bp") & (rows.k > 0) & (rows.penalty == 0)]
    assert 0.35 in levels and any(level == pytest.approx(bp.h_last.item()) for level in levels)
    assert [text.get_text() for text in accuracy.texts] == ["BP: 0.585"]


def test_a_section_without_any_run_still_renders():
    runs = runs_of([], records())
    rows, epochs = tables_penalty.per_run(runs), tables_penalty.trajectories(runs, 42)
    fig = figures_penalty.rescue_panels(epochs, "dfa", RESCUE)
    assert "no run has finished yet" in fig.axes[0].texts[0].get_text()
    assert findings_penalty.panels_caption(epochs, "dfa", RESCUE, 42) == findings_penalty.NOTHING
    assert tables_penalty.sweep(rows, rows, "dfa").empty and tables_penalty.with_and_without(rows, RESCUE).empty
    assert findings_penalty.control(rows, RESCUE) == "The matched BP control is missing."
