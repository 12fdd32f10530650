"""Tidy tables: the same bytes for the same records, and n beside every mean."""

import math

import pandas as pd
import pytest

from creditaudit import claims, identity_rows, paths, protocol, tables
from creditaudit.collect import Runs
from creditaudit.spec import RunSpec
from tests.factories import as_record


def ladder(seeds=(42, 123, 456), skip=()) -> Runs:
    """BP gains 10 points a block, DFA loses 5; seeds differ by a point."""
    specs = protocol.depth_ladder(["bp", "dfa"], seeds, depth=2)
    step = {"bp": 0.1, "dfa": -0.05}
    records = [
        as_record(method=s.method, k=s.k, depth=2, seed=s.seed, accuracy=0.3 + step[s.method] * s.k + 0.01 * place)
        for place, seed in enumerate(seeds)
        for s in specs
        if s.seed == seed and (s.method, s.k, s.seed) not in skip
    ]
    return Runs(specs, records, "paper", "depth_ladder", "d256_L4")


@pytest.fixture
def outputs(tmp_path, monkeypatch):
    monkeypatch.setattr(paths, "OUTPUTS", tmp_path)
    monkeypatch.setenv(paths.RUNNER, "1")
    return tmp_path


def test_csv_is_tidy_and_does_not_depend_on_the_order_of_records(outputs):
    frame = ladder().frame()
    first = tables.save(frame, "depth_ladder", "d256_L4", "paper").read_bytes()
    again = tables.save(frame.sample(frac=1, random_state=0), "depth_ladder", "d256_L4", "paper").read_bytes()
    assert first == again
    back = pd.read_csv(outputs / "paper/tables/depth_ladder--d256_L4.csv")
    assert len(back) == 18 and not back.duplicated(["method", "k", "seed"]).any()
    assert b"\r" not in first


def test_summary_has_ddof_1_and_n():
    summary = tables.summarise(ladder(skip={("dfa", 2, 456)}).frame(), ["method", "k"], "accuracy")
    full = summary.set_index(["method", "k"]).loc[("bp", 2)]
    assert full["n"] == 3 and full["mean"] == pytest.approx(0.51) and full["std"] == pytest.approx(0.01)
    table = tables.by_rung(summary).set_index("method")
    assert table.loc["BP", "k = 2"] == "0.510 ± 0.010" and table.loc["DFA", "n"] == 3
    assert table.loc["DFA", "k = 2"] == "0.205 ± 0.007 (n=2)"


def test_one_seed_has_no_spread():
    summary = tables.summarise(ladder(seeds=(42,)).frame(), ["method", "k"], "accuracy")
    assert summary["std"].isna().all() and set(summary.n) == {1}
    assert tables.by_rung(summary).iloc[0]["k = 1"] == "0.400"


def test_gains_are_paired_by_seed():
    gains = tables.summarise(tables.gains(ladder(skip={("bp", 0, 42)}).frame()), ["method", "k"], "gain")
    bp = gains[(gains.method == "bp") & (gains.k == 2)].iloc[0]
    assert bp.n == 2 and bp["mean"] == pytest.approx(20) and bp["std"] == pytest.approx(0, abs=1e-9)
    assert tables.gains(ladder(seeds=()).frame()).empty


def test_published_values_stand_only_beside_runs_of_their_kind():
    loaded = claims.load_claims()
    study = tables.published_ladder(loaded, "d256_L4", protocol.depth_ladder(["bp", "dfa"], [42]))
    assert len(study) == 10 and study[(study.method == "bp") & (study.k == 4)]["mean"].item() == 0.617
    assert tables.published_ladder(loaded, "d256_L4", [RunSpec(method="bp", epochs=4)]).empty
    summary = tables.summarise(ladder().frame(), ["method", "k"], "accuracy")
    both = tables.ladder(summary, study)
    assert both.source.tolist() == ["ours", "published"] * 2
    late = tables.ladder(summary[(summary.k == 2) & (summary.method == "dfa")], study)
    assert late.columns[3:].tolist() == [f"k = {k}" for k in range(5)]
    assert late.method.tolist() == ["BP", "DFA", "DFA"]
    assert tables.ladder(summary.iloc[:0], study.iloc[:0]).empty


def test_identity_rows_are_measured_once_and_filed_by_shape(outputs, monkeypatch):
    rows = identity_rows.rows(8, 2, [1, 2], "smoke", data="tiny")
    monkeypatch.setattr(identity_rows.identity, "measure", lambda *_: pytest.fail("measured twice"))
    assert identity_rows.rows(8, 2, [1, 2], "smoke", data="tiny") == rows
    assert identity_rows.stored(8, 2, "smoke", "tiny") == rows and identity_rows.stored(8, 2, "smoke") == {}
    with monkeypatch.context() as other_code:
        other_code.setattr(identity_rows, "RECIPE", -1)
        assert identity_rows.stored(8, 2, "smoke", "tiny") == {}
    tidy = identity_rows.frame(rows)
    last = tidy[(tidy.seed == 1) & (tidy.layer == 2)].iloc[0]
    assert last.deviation == rows[1]["deviation"] and last.cosine == rows[1]["cosine"] and math.isnan(last.ratio)
    table = tables.identity(tidy)
    assert table["run"].tolist() == ["seed 1", "seed 2", "mean", "std (ddof 1)"]
