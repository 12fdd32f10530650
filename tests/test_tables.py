"""Tidy tables: the same bytes for the same records, and what was measured once is not measured again."""

import math

import pandas as pd
import pytest

from creditaudit import paths, show
from creditaudit.measure import identity
from creditaudit.runs import identity_rows
from creditaudit.study.frames import Runs
from tests.factories import as_record


@pytest.fixture
def outputs(tmp_path, monkeypatch):
    monkeypatch.setattr(paths, "OUTPUTS", tmp_path)
    monkeypatch.setenv(paths.RUNNER, "1")
    return tmp_path


def test_csv_is_tidy_and_does_not_depend_on_the_order_of_records(outputs):
    made = [as_record(method=m, depth=2, k=k, seed=s) for s in (42, 123, 456) for k in (0, 1, 2) for m in ("bp", "dfa")]
    runs = Runs([record.spec for record in made], made, "paper", "depth_ladder", "d256_L4")
    first = show.csv(runs.frame, runs).read_bytes()
    assert show.csv(runs.frame.sample(frac=1, random_state=0), runs).read_bytes() == first
    back = pd.read_csv(outputs / "paper/tables/depth_ladder--d256_L4.csv")
    assert len(back) == 18 and not back.duplicated(["method", "k", "seed"]).any()
    assert b"\r" not in first


def test_identity_rows_are_measured_once_and_filed_by_shape(outputs, monkeypatch):
    rows = identity_rows.rows(8, 2, [1, 2], "smoke", data="tiny")
    monkeypatch.setattr(identity, "measure", lambda *_: pytest.fail("measured twice"))
    assert identity_rows.rows(8, 2, [1, 2], "smoke", data="tiny") == rows
    assert identity_rows.stored(8, 2, "smoke", "tiny") == rows and identity_rows.stored(8, 2, "smoke") == {}
    with monkeypatch.context() as other_code:
        other_code.setattr(identity_rows, "RECIPE", -1)
        assert identity_rows.stored(8, 2, "smoke", "tiny") == {}
    tidy = identity_rows.frame(rows)
    last = tidy[(tidy.seed == 1) & (tidy.layer == 2)].iloc[0]
    assert last.deviation == rows[1]["deviation"] and last.cosine == rows[1]["cosine"] and math.isnan(last.ratio)
