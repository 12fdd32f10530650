"""The audit's tables, sentences and figures on made-up records: n = 1, n = 3, holes, and methods that mislead."""

import matplotlib

matplotlib.use("agg")

import matplotlib.pyplot as plt
import numpy as np
import pandas as pd
import pytest

from creditaudit import decisions, display, figures_audit, findings_audit, findings_state, report, spreads, tables_audit
from creditaudit.claims import check, load_claims
from creditaudit.collect import Runs
from creditaudit.published import beside_ours, split
from creditaudit.records import Record, Store
from tests.factories import as_record

SEEDS = (42, 123, 456)
# accuracy, frozen accuracy, growth, |g_L|, Gamma
LOOKS = {
    "bp": (0.61, 0.39, 4.0, 4e-4, 0.95),
    "fa": (0.40, 0.35, 15.0, 1e-6, 0.25),
    "dfa": (0.30, 0.35, 2000.0, 4e-9, 0.10),
    "sb": (0.22, 0.35, 900.0, 1e-9, 0.05),
    "cb": (0.29, 0.35, 900.0, 1e-9, 0.05),
    "ep": (0.32, 0.35, 8.0, 1e-4, 0.05),
}


def records(methods=("bp", "fa", "dfa"), seeds=SEEDS, epochs=6, **changes) -> list[Record]:
    made = []
    for place, seed in enumerate(seeds):
        for method in methods:
            accuracy, frozen, growth, g_last, gamma = changes.get(method, LOOKS[method])
            fields = {"method": method, "seed": seed, "epochs": epochs}
            trained = {"accuracy": accuracy + 0.001 * place, "growth": growth, "g_last": g_last, "gamma": gamma}
            made += [as_record(**fields, **trained), as_record(**fields, accuracy=frozen, k=0)]
    return made


def runs_of(made: list[Record], asked: list[Record] | None = None) -> Runs:
    return Runs([record.spec for record in asked or made], made, "paper", "audit", "d256_L4")


@pytest.fixture(autouse=True)
def _close_figures():
    yield
    plt.close("all")


def test_accuracy_and_cosine_are_fooled_where_the_diagnostics_are_not():
    runs = runs_of(records())
    found = tables_audit.pairs(runs)
    assert decisions.conclusions(found, "accuracy + cosine") == {"bp": True, "fa": True, "dfa": True}
    assert decisions.conclusions(found, "D1–D3") == {"bp": True, "fa": True, "dfa": False}
    assert decisions.misled(found) == ["dfa"]
    table = decisions.table(found).set_index("method")
    assert table.loc["DFA", "so the usual reading"] == "**is misled**"
    assert table.loc["DFA", "D3"] == "**no** 3/3"
    assert table.loc["BP", "D1–D3"] == "yes 3/3"
    headline = findings_audit.headline(runs)
    assert "accept BP, FA and DFA; D1–D3 accept BP and FA." in headline and "**DFA** is misjudged" in headline


@pytest.mark.parametrize(
    ("said", "most"),
    [
        ([True, True, False], True),
        ([False, False, None], False),
        ([True, None, None], None),
        ([True, False], None),
        ([True, True, None, None], None),
    ],
)
def test_a_majority_is_one_of_all_seeds_those_that_cannot_say_counted_in(said, most):
    assert decisions.majority(said) is most


def test_seeds_that_differ_are_told_as_such_everywhere():
    grown = dict(zip(SEEDS, (6.0, 10.0, 60.0), strict=True))
    made = [record for record in records(["bp"]) if record.spec.k == 0]
    made += [as_record(method="bp", seed=seed, epochs=6, accuracy=0.6, growth=growth) for seed, growth in grown.items()]
    assert "D1–D3 accept BP." in findings_audit.headline(runs_of(made))
    assert "**BP (2 of 3 seeds) passes.**" in findings_audit.verdict_caption(tables_audit.per_run(runs_of(made)))
    even = runs_of([record for record in made if record.spec.seed != 42])
    assert "D1–D3 accept none, and are split between seeds on BP." in findings_audit.headline(even)
    assert "**BP is split between seeds.**" in findings_audit.verdict_caption(tables_audit.per_run(even))
    assert findings_audit.decision_reading(even) == "Seeds are split on every method."


def test_whom_the_studys_own_accuracies_would_judge_otherwise():
    """Published: EP .316, below DFA's frozen .349; FA above it, DFA below."""
    rows = tables_audit.per_run(runs_of(records(["fa", "dfa", "ep"], ep=(0.42, 0.35, 8.0, 1e-4, 0.05))))
    assert "no frozen accuracy of this shape after as many epochs" in findings_audit.by_the_studys_accuracies(rows)
    told = findings_audit.by_the_studys_accuracies(rows.assign(epochs=100))
    assert told.endswith("D3 is decided otherwise than here for EP (−3.3 pp there, +7.1 pp here).")
    alike = tables_audit.per_run(runs_of(records(["fa", "dfa"]))).assign(epochs=100)
    assert "is decided as here for FA and DFA." in findings_audit.by_the_studys_accuracies(alike)
    assert "no frozen accuracy" in findings_audit.by_the_studys_accuracies(alike.assign(width=512, depth=12))


def test_a_seed_that_overflowed_is_counted_out_of_the_mean_and_told():
    frame = pd.DataFrame({"growth": [None, 40.0, 45.0], "gain": [1.0, 2.0, 3.0]})
    assert spreads.spread(frame, "growth", log=True) == "42 ×/÷\u00a01.09 (n=2)"
    assert spreads.spread(frame, "gain", places=1) == "2.0 ± 1.0"


@pytest.mark.parametrize(
    ("looks", "verdict"),
    [
        ((0.60, 0.39, 4.0, 4e-4, 0.9), "PASS"),
        ((0.60, 0.39, 60.0, 4e-4, 0.9), "FAIL(D1)"),
        ((0.60, 0.39, 4.0, 9e-8, 0.9), "FAIL(D2)"),
        ((0.36, 0.35, 4.0, 4e-4, 0.9), "FAIL(D3)"),
        ((0.30, 0.35, 2000.0, 4e-9, 0.1), "FAIL(D1+D2+D3)"),
    ],
)
def test_verdict_strings(looks, verdict):
    rows = tables_audit.per_run(runs_of(records(["dfa"], [42], dfa=looks)))
    assert list(rows.verdict) == [verdict]
    assert tables_audit.verdict_table(rows).verdict.item() == verdict


def test_the_study_subtracts_another_frozen_network_and_the_table_says_when_that_matters():
    rows = tables_audit.per_run(runs_of(records(["fa", "dfa"], fa=(0.365, 0.355, 4.0, 1e-4, 0.3), dfa=LOOKS["dfa"])))
    assert rows.set_index(["method", "seed"]).loc[("fa", 42), "gain"] == pytest.approx(1.0)
    assert rows.set_index(["method", "seed"]).loc[("fa", 42), "gain_dfa"] == pytest.approx(1.5)
    better = (0.371, 0.355, 4.0, 1e-4, 0.3)  # 1.6 over its own, 2.1 over DFA's
    rows = tables_audit.per_run(runs_of(records(["fa", "dfa"], fa=better, dfa=LOOKS["dfa"])))
    verdict = tables_audit.verdict_table(rows).set_index("method").verdict["FA"]
    assert verdict == "FAIL(D3); with DFA's frozen run PASS"


def test_a_missing_frozen_run_leaves_d3_open_and_nothing_else():
    made = [record for record in records() if not (record.spec.method == "fa" and record.spec.k == 0)]
    runs = runs_of(made, records())
    found = tables_audit.pairs(runs)
    assert decisions.conclusions(found, "D3")["fa"] is None and decisions.conclusions(found, "D1")["fa"] is True
    table = tables_audit.verdict_table(tables_audit.per_run(runs)).set_index("method")
    assert table.verdict["FA"].startswith("PASS(D1+D2), D3 open")
    assert "FA waits for frozen runs" in findings_audit.verdict_caption(tables_audit.per_run(runs))
    assert "accept BP, and wait for frozen runs of FA." in findings_audit.headline(runs)
    one_seed = [record for record in records() if record.spec.k or (record.spec.method, record.spec.seed) == ("bp", 42)]
    said = findings_audit.headline(runs_of(one_seed, records()))
    assert "wait for frozen runs of BP (so far accepted in 1 of the 1 seeds that can be judged)" in said
    unfrozen = runs_of([record for record in records() if record.spec.k], records())
    assert "**DFA** is misjudged" in findings_audit.headline(unfrozen)
    assert "(D3)" not in findings_audit.headline(unfrozen) and "None" not in findings_audit.headline(unfrozen)
    lost_dfa = runs_of([record for record in records() if not (record.spec.method == "dfa" and record.spec.k == 0)])
    assert decisions.conclusions(tables_audit.pairs(lost_dfa), "D1–D3")["dfa"] is False  # D1 and D2 need no twin
    assert set(tables_audit.per_run(lost_dfa).query("method == 'dfa'").verdict) == {"FAIL(D1+D2), D3 open"}


def test_seeds_that_disagree_are_counted():
    made = records(["bp"], [42, 123]) + records(["bp"], [456], bp=(0.60, 0.39, 60.0, 4e-4, 0.9))
    assert decisions.table(tables_audit.pairs(runs_of(made)))["D1"].item() == "yes 2/3"
    verdict = tables_audit.verdict_table(tables_audit.per_run(runs_of(made))).verdict.item()
    assert verdict == "PASS 2 of 3 / FAIL(D1) 1 of 3"


@pytest.mark.parametrize(
    ("said", "cell"),
    [
        ([True, True, None], "yes 2/3"),
        ([False, None, None], "? (0 yes, 1 no)"),
        ([None, None], "?"),
        ([True, False], "split 1/2"),
    ],
)
def test_a_cell_of_the_decision_table_says_no_more_than_the_majority(said, cell):
    assert decisions._votes(said) == cell


def test_methods_are_ranked_over_the_seeds_that_all_have():
    lucky, worse = records(["dfa"], [42], dfa=(0.28, 0.35, 3e3, 1e-9, 0.1)), records(["dfa"], [123, 456])
    rows = tables_audit.per_run(runs_of(records(["bp"]) + lucky + worse + records(["cb"], [42])))
    cb, dfa = (float(rows[(rows.method == name) & (rows.seed == 42)].accuracy.iloc[0]) for name in ("cb", "dfa"))
    assert dfa < cb < rows[rows.method == "dfa"].accuracy.mean(), "else this tests nothing"
    assert findings_audit.bars_caption(rows).startswith(
        "**From the best (seed 42, which all have), by accuracy: BP, Credit Bridge, DFA; by cosine: BP,"
    )
    assert f"the best other method, Credit Bridge, {cb:.3f} (seed 42, which all have)" in (
        findings_audit.accuracy_caption(rows)
    )
    apart = rows[(rows.method == "bp") & (rows.seed == 123) | (rows.method == "cb")]
    assert "(over different seeds)" in findings_audit.bars_caption(apart)


def test_d3_is_told_with_what_it_takes_for_granted():
    rows = tables_audit.per_run(runs_of(records(["bp", "dfa"])))
    assert "training the blocks helps it (+22.1 ± 0.1 pp, n = 3)" in findings_audit.precondition(rows)
    flat = rows.assign(gain=rows.gain * 0)
    assert "does not help it" in findings_audit.precondition(flat)
    assert "so that is open" in findings_audit.precondition(rows[rows.method == "dfa"])


def test_half_of_the_seeds_is_told_as_half():
    made = records(["bp"], [42]) + records(["bp"], [123], bp=(0.6, 0.39, 60.0, 4e-4, 0.9))
    rows = tables_audit.per_run(runs_of(made))
    assert findings_audit._failing(rows, "growth", findings_audit.scale_is_stable) == ["BP (half of its seeds)"]


def test_a_misjudged_method_is_told_with_its_unit_and_its_worst_seed():
    own = tables_audit.per_run(runs_of(records(["dfa"]))).assign(gain=[5.0, 4.0, None])
    assert "(D3" not in findings_audit._case("dfa", own)
    assert "in pp, by +2.5 ± 2.1 (n=2) (D3, +1.0 in the worst seed)" in findings_audit._case(
        "dfa", own.assign(gain=[4.0, 1.0, None])
    )
    assert "by −3.0 (n=1) (D3);" in findings_audit._case("dfa", own.assign(gain=[-3.0, None, None]))
    assert findings_audit._case("dfa", own.iloc[:1]).endswith("n = 1 seed.")


def test_first_failures_are_per_seed_and_counted_from_one():
    states = [[1.0] * 4 + [growth] for growth in (2.0, 20.0, 200.0, 2000.0)]
    late = as_record(method="dfa", epochs=4, epochs_data={"h_norm": states, "g_norm": [[1e-5] * 5] * 4})
    never = as_record(method="dfa", epochs=4, seed=123, growth=2.0)
    table = tables_audit.first_failures(tables_audit.per_run(runs_of([late, never])))
    assert table["D1 first fails at epoch"].item() == "3 / never"
    assert table["D2 first fails at epoch"].item() == "never"


def test_alignment_is_measured_against_credit_that_knows_nothing():
    """Fresh feedback where a method has it; else one random direction for all samples, 1 / sqrt(d L) = .031 here."""
    fresh = {"fresh_null": {"mean": 0.0, "std": 0.02, "draws": 8}}
    aligned, chance = (as_record(method="dfa", gamma=gamma, final=fresh) for gamma in (0.061, 0.059))
    assert decisions.learns_and_aligns(aligned) and not decisions.learns_and_aligns(chance)
    aligned, chance = (as_record(method="sb", gamma=gamma) for gamma in (0.095, 0.093))
    assert decisions.learns_and_aligns(aligned) and not decisions.learns_and_aligns(chance)


def test_undefined_numbers_are_named_not_averaged():
    broken = as_record(method="dfa", final={"growth": None, "gamma_in": [None] * 4, "gamma_undefined": [1280] * 4})
    runs = runs_of([broken, as_record(method="dfa", k=0)])
    assert decisions.conclusions(tables_audit.pairs(runs), "accuracy + cosine") == {"dfa": False}
    table = tables_audit.conventions(runs)
    assert table["undefined"].item() == "5120 of 5120" and table[r"$\Gamma$ (input)"].item() is None
    one_block = as_record(method="dfa", final={"gamma_in": [None, 0.1, 0.1, 0.1]})
    assert tables_audit.conventions(runs_of([one_block]))[r"$\Gamma$ (input)"].item() is None


@pytest.mark.parametrize(("methods", "seeds"), [(("bp", "dfa"), (42,)), (tuple(LOOKS), SEEDS)])
def test_figures_are_drawn(methods, seeds):
    runs = runs_of(records(methods, seeds))
    rows, epochs, blocks = tables_audit.per_run(runs), tables_audit.trajectories(runs), tables_audit.blocks(runs)
    figures = [
        figures_audit.accuracy_curves(epochs),
        figures_audit.norms(epochs),
        figures_audit.layers(blocks, tables_audit.null_band(runs)),
        figures_audit.summary_bars(rows),
    ]
    captions = [
        findings_audit.accuracy_caption(rows),
        findings_audit.norms_caption(rows, epochs),
        findings_audit.layers_caption(rows, runs),
        findings_audit.bars_caption(rows),
    ]
    if "sb" in methods:
        figures.append(figures_audit.state_error(epochs, rows))
        captions.append(findings_state.caption(rows, epochs))
    for fig, caption in zip(figures, captions, strict=True):
        fig.draw_without_rendering()
        assert caption.startswith("**")
        assert ("n = 3" if len(seeds) == 3 else "n = 1 seed, hence no error bars") in caption


def test_a_section_without_any_run_still_renders():
    runs = runs_of([], records())
    rows, epochs, blocks = tables_audit.per_run(runs), tables_audit.trajectories(runs), tables_audit.blocks(runs)
    for fig in (figures_audit.accuracy_curves(epochs), figures_audit.layers(blocks, tables_audit.null_band(runs))):
        assert "no run has finished yet" in fig.axes[0].texts[0].get_text()
    assert findings_audit.accuracy_caption(rows) == findings_audit.NOTHING
    assert "not yet decided" in findings_audit.headline(runs)
    assert tables_audit.verdict_table(rows).empty and decisions.table(tables_audit.pairs(runs)).empty


def test_state_error_is_only_a_moral_when_it_fell():
    runs = runs_of(records(("bp", "dfa", "sb")))
    rows, epochs = tables_audit.per_run(runs), tables_audit.trajectories(runs)
    assert "predicting the state is not assigning credit" in findings_state.caption(rows, epochs)
    flat = epochs.assign(state_error=epochs.state_error.where(epochs.state_error.isna(), 1.0))
    assert "stays open.**" in findings_state.caption(rows, flat)


def test_a_state_error_that_fell_everywhere_but_at_the_first_state_is_told_and_drawn():
    runs = runs_of(records(("bp", "dfa", "sb")))
    rows, epochs = tables_audit.per_run(runs), tables_audit.trajectories(runs)
    by_state = [[1.0, 10.0**-epoch, 10.0 ** -(2 * epoch)] for epoch in epochs.epoch]
    flat = epochs.assign(
        state_error=epochs.state_error.where(epochs.state_error.isna(), 1.0),
        state_error_layers=pd.Series(by_state).where(epochs.state_error.notna(), None),
    )
    fall = 10.0 ** (epochs.epoch.max() - 1)
    assert f"at least {report.digits(fall)}-fold)" in findings_state.caption(rows, flat)
    drawn = figures_audit.state_error(flat, rows)
    assert [text.get_text() for text in drawn.legends[0].get_texts()][-2:] == ["from $h_0$", "from a later state"]
    assert drawn.axes[0].get_yscale() == "log"


def test_a_state_error_that_overflowed_is_drawn_as_nothing():
    runs = runs_of(records(("bp", "sb"), [42]))
    rows, epochs = tables_audit.per_run(runs), tables_audit.trajectories(runs)
    lost = epochs.assign(state_error=np.nan, state_error_layers=None)
    figures_audit.state_error(lost, rows).draw_without_rendering()
    assert "is not finite throughout" in findings_state.caption(rows, lost)


def test_published_numbers_stand_beside_ours_with_a_reading(tmp_path):
    made = [record for record in records(["bp", "dfa"], epochs=100, bp=(0.55, 0.39, 4.0, 4e-4, 0.95))]
    for record in made:
        Store(tmp_path).save(record)
    claims = [claim for claim in load_claims() if claim.place == "audit/d256_L4"]
    results = check(claims, Store(tmp_path), "paper")
    numbers, others = split(results, runs_of(made))
    table = beside_ours(numbers, runs_of(made), 42)
    assert set(table.run) == {"BP", "DFA"} and len(numbers) + len(others) == len(results)
    accuracy = table[table.quantity == "accuracy"].set_index("run")
    assert accuracy.reading["BP"] == "**0.064 lower**, beyond ±0.02" and accuracy.verdict["BP"] == "contradicted"
    assert accuracy["seed 42"]["DFA"] == "0.300" and "within" in accuracy.reading["DFA"]
    short = runs_of(records(["bp", "dfa"], epochs=4))
    assert set(beside_ours(numbers, short, 42).reading) == {"no such run"}


@pytest.mark.parametrize(
    ("cosines", "side"),
    [
        ([0.3, 0.2, 0.5], "beyond 0.072 for DFA"),
        ([-0.3, -0.2, -0.5], "below −0.072 for DFA"),
        ([0.01, -0.02, 0.03], "within ±0.072, as of credit that knows nothing, for DFA"),
        ([0.3, 0.2, 0.01], "not the same in every seed for DFA"),
        ([0.3, None, 0.5], "undefined for DFA"),
    ],
)
def test_whose_credit_points_along_the_gradient_is_judged_seed_by_seed(cosines, side):
    runs = runs_of(records(["dfa"]))
    rows = tables_audit.per_run(runs).assign(gamma_deep=pd.Series(cosines, dtype=float))
    assert findings_audit.layers_caption(rows, runs).startswith(f"**Behind the first block the cosine is {side}.**")


def test_one_block_has_none_behind_it():
    runs = runs_of([as_record(method="dfa", depth=1, k=k) for k in (0, 1)])
    rows = tables_audit.per_run(runs)
    assert findings_audit.layers_caption(rows, runs).startswith("**There is one block, and none behind it.** Credit")


def test_a_verdict_that_hangs_on_the_null_says_so_and_only_then():
    def made(*cosines):
        null = {"fresh_null": {"mean": 0.0, "std": 0.01, "draws": 10}}
        return [
            (as_record(method="dfa", seed=seed, accuracy=0.3, final=null | {"gamma_in": [cosine] * 4}), None)
            for seed, cosine in enumerate(cosines)
        ]

    told = findings_audit._other_bar(made(0.05, 0.06, 0.07), "dfa")
    assert "hangs on the null" in told and "3/\\sqrt{dL} = 0.094$" in told and "accepted in 0 of 3 seeds." in told
    assert findings_audit._other_bar(made(0.3, 0.3, 0.0), "dfa") == ""  # both bars accept the same two
    assert findings_audit._other_bar(made(0.3, 0.3, 0.3), "dfa") == ""


def test_a_method_without_a_cosine_is_named_where_cosines_rank():
    rows = tables_audit.per_run(runs_of(records(["bp", "dfa"])))
    lost = rows.assign(gamma=rows.gamma.where(rows.method == "bp"))
    assert "by cosine: BP (undefined: DFA).**" in findings_audit.bars_caption(lost)


def test_a_factor_is_written_with_the_digits_it_needs():
    steps = (0.0, 0.002, 0.0374, 0.5, 1.0, 4.0)
    assert [report.factor(step).split("\u00a0")[1] for step in steps] == [
        "<1.01",
        "<1.01",
        "1.09",
        "3.2",
        "10",
        "1.0e4",
    ]
    frame = pd.DataFrame({"norm": [f"42 {report.factor(0.5)}", "7"], "seeds": ["42 / 123", "7"]})
    assert display.as_markdown(frame).splitlines()[1] == "| ---: | :--- |"


def test_spreads_speak_of_n_and_of_factors():
    rows = tables_audit.per_run(runs_of(records(["bp", "dfa"]) + records(["fa"], [42])))
    assert spreads.sample_note(rows) == "std over seeds (ddof 1), n = 3 (1 for FA)"
    frame = rows[rows.method == "bp"].assign(growth=[10.0, 100.0, 1000.0])
    assert spreads.spread(frame, "growth", log=True) == "100 ×/÷\u00a010"
    assert spreads.spread(frame.assign(growth=np.nan), "growth", log=True) is None
    assert [report.digits(value) for value in (0.0444, 15.0, 204.0, 4.24e8)] == ["0.044", "15", "200", "4.2e8"]


def test_nudges_of_every_size_and_sign_can_be_told_apart():
    changes = pd.Series([-1e-2, -1e-5, -1e-8, 0.0, 1e-8, 1e-6])
    ax = plt.figure().subplots()
    figures_audit._log_both_ways(ax, changes)
    heights = [ax.transAxes.inverted().transform(ax.transData.transform((0, change)))[1] for change in changes]
    assert min(np.diff(heights)) > 0.03 and heights[0] > 0 and heights[-1] < 1
