"""The audit on made-up records: n = 1, n = 3, holes, methods that mislead; and the notebook's own cells on them."""

from types import SimpleNamespace

import nbformat
import numpy as np
import pandas as pd
import pytest

from creditaudit import paths, show, study
from creditaudit.measure import rules
from creditaudit.runs.records import Record
from creditaudit.show import display, register, style
from creditaudit.study import metrics, numbers, report
from creditaudit.study.frames import Runs
from tests.factories import as_record

SEEDS = (42, 123, 456)
# accuracy, frozen accuracy, growth, |g_L|, Gamma
LOOKS = {
    "bp": (0.61, 0.39, 4.0, 4e-4, 0.95),
    "fa": (0.40, 0.35, 15.0, 1e-6, 0.25),
    "dfa": (0.30, 0.35, 2000.0, 4e-9, 0.10),
    "sb": (0.22, 0.35, 900.0, 1e-9, 0.05),
}
PASS, FAIL = dict.fromkeys(("D1", "D2", "D3"), True), dict.fromkeys(("D1", "D2", "D3"), False)


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


def cell(runs: Runs, contains: str, **names) -> SimpleNamespace:
    """Run one cell of the notebook on these runs; `tables` are what it showed."""
    notebook, tables = nbformat.read(paths.NOTEBOOKS / "audit.ipynb", as_version=4), []
    (source,) = [c.source for c in notebook.cells if c.cell_type == "code" and contains in c.source]
    order = style.in_order(spec.method for spec in runs.specs)
    space = vars(numbers) | {"pd": pd, "np": np, "study": study, "rules": rules, "style": style} | names
    space |= {"runs": runs, "trained": runs.only(k=4), "order": order, "width": 256, "depth": 4, "epochs": 6, "n": "n"}
    space |= {"set_name": "d256_L4", "cosine": {m: runs.of("gamma", method=m) for m in order}}
    space["diagnosed"] = {m: runs.diagnose(m) for m in order}
    space["show"] = SimpleNamespace(table=lambda frame, caption: tables.append(frame), by_seed=show.by_seed)
    exec(source, space)
    return SimpleNamespace(tables=tables, **{name: space.get(name) for name in ("says", "first")})


def decided(runs: Runs) -> pd.DataFrame:
    return cell(runs, "says[m] |= diagnosed[m]").tables[0].set_index("method")


# ---- D1 to D3 over seeds -----------------------------------------------------------------------------------


def test_the_diagnostics_are_decided_over_seeds():
    runs = runs_of(records())
    assert [runs.diagnose(method) for method in ("bp", "fa", "dfa")] == [PASS, PASS, FAIL]


def test_one_seed_decides_nothing():
    assert set(runs_of(records(seeds=[42])).diagnose("dfa").values()) == {None}


def test_seeds_that_disagree_leave_it_open():
    made = [record for record in records(["bp"]) if record.spec.k == 0]
    for seed, growth in zip(SEEDS, (6.0, 10.0, 300.0), strict=True):
        made.append(as_record(method="bp", seed=seed, epochs=6, accuracy=0.6, growth=growth))
    assert runs_of(made).diagnose("bp")["D1"] is None


def test_a_missing_frozen_run_leaves_d3_open_and_nothing_else():
    made = [record for record in records() if not (record.spec.method == "dfa" and record.spec.k == 0)]
    assert runs_of(made, records()).diagnose("dfa") == {"D1": False, "D2": False, "D3": None}


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
def test_the_verdict_of_one_run(looks, verdict):
    assert metrics.verdict(*records(["dfa"], [42], dfa=looks)) == verdict


def test_the_study_subtracts_another_frozen_network():
    runs = runs_of(records(["fa", "dfa"], fa=(0.370, 0.355, 4.0, 1e-4, 0.3)))
    assert runs.gain("fa").values[42] == pytest.approx(1.5)
    over_dfa = runs.of("accuracy", method="fa") - runs.of("accuracy", method="dfa", k=0)
    assert over_dfa.values[42] == pytest.approx(2.0)


# ---- what one would have concluded -------------------------------------------------------------------------


def test_accuracy_and_cosine_are_fooled_where_the_diagnostics_are_not():
    table = decided(runs_of(records()))
    assert list(table["accuracy + cosine"]) == ["yes", "yes", "yes"]
    assert list(table["D1–D3"]) == ["yes", "yes", "**no**"]
    assert list(table["the usual reading"]) == ["agrees", "agrees", "**is misled**"]


def test_one_no_refuses_and_an_open_one_leaves_it_open():
    lost = {"fa", "dfa"}
    made = [record for record in records() if not (record.spec.method in lost and record.spec.k == 0)]
    table = decided(runs_of(made, records()))
    assert list(table["D3"]) == ["yes", "open", "open"]
    assert list(table["D1–D3"]) == ["yes", "open", "**no**"]  # D1 and D2 need no twin
    assert list(table["the usual reading"]) == ["agrees", "open", "**is misled**"]


def test_alignment_is_measured_against_credit_that_knows_nothing():
    """Three std of fresh feedback (.02) where a method has it; else of one random direction, 1 / sqrt(d L) = .031."""
    for method, bar in (("dfa", 0.06), ("sb", 0.09375)):
        for shift, answer in ((0.001, True), (-0.001, False)):
            looks = (*LOOKS[method][:4], bar + shift)
            said = cell(runs_of(records([method], **{method: looks})), "says[m] |= diagnosed[m]").says[method]
            assert (said["accuracy"], said["accuracy + cosine"]) == (True, answer)


def test_an_undefined_cosine_decides_nothing():
    broken = [as_record(method="dfa", seed=seed, final={"gamma_in": [None, 0.1, 0.1, 0.1]}) for seed in SEEDS]
    assert not runs_of(broken).of("gamma", method="dfa").defined
    assert decided(runs_of(broken))["accuracy + cosine"].item() == "open"


def test_without_any_run_everything_is_open():
    assert set(decided(runs_of([], records())).to_numpy().flat) == {"open"}


# ---- epochs, published numbers, notation -------------------------------------------------------------------


def test_first_failures_are_per_seed_and_counted_from_one():
    states = [[1.0] * 4 + [growth] for growth in (2.0, 20.0, 200.0, 2000.0, 2e4, 2e5)]
    late = as_record(method="dfa", epochs=6, epochs_data={"h_norm": states, "g_norm": [[1e-5] * 5] * 6})
    never = as_record(method="dfa", epochs=6, seed=123, growth=2.0)
    table = cell(runs_of([late, never]), '"first_d1"').tables[0]
    assert table["D1 first fails"].item() == "3 / never"
    assert table["D2 first fails"].item() == "never"


def test_published_numbers_stand_beside_ours():
    made = records(["bp", "dfa"], epochs=100, bp=(0.55, 0.39, 4.0, 4e-4, 0.95))
    table = cell(runs_of(made), "study.judge(", register=register).tables[0].set_index("claim")
    (name,) = (name for name in table.index if "accuracy.bp" in name)
    accuracy = table.loc[name]
    assert (accuracy.published, accuracy.n, accuracy.verdict) == ("0.615 ± 0.004", 3, "contradicted")
    assert accuracy.distance == "−320 %"  # .064 of a margin of .02


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
    assert [numbers.digits(value) for value in (0.0444, 15.0, 204.0, 4.24e8)] == ["0.044", "15", "200", "4.2e8"]
