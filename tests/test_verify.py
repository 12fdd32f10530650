"""`make verify-paper`: equal bits pass, a difference passes only elsewhere and only within the tolerance."""

from dataclasses import replace

import pytest

from creditaudit import paths, verify
from creditaudit.mistakes import Mistake
from creditaudit.runs import identity_rows, sweep
from creditaudit.runs.compare import compare
from creditaudit.runs.records import Record, Store
from creditaudit.study import params, retraining
from tests.factories import as_record

HERE = {"cpu": "this one", "torch": "1", "numpy": "1", "threads": 1, "device": "cpu"}


def run(accuracy: float = 0.3, h_last: float | None = 200.0, cpu: str = "this one") -> Record:
    record = as_record(accuracy=accuracy, epochs=3)
    final = record.final | {"h_norm": [*record.final["h_norm"][:-1], h_last]}
    return replace(record, final=final, provenance=HERE | {"cpu": cpu, "cpu_seconds": 1.0, "commit": "0"})


def timed(record: Record, seconds: float) -> Record:
    return replace(record, provenance=HERE | record.provenance | {"cpu_seconds": seconds, "commit": "0"})


@pytest.mark.parametrize(
    ("failure", "said"),
    [
        (sweep.Interrupted("stopped"), "stopped; nothing was compared"),
        (
            sweep.WorkerKilled("finished runs are saved"),
            "killed.*nothing was compared, and what was retrained is not kept",
        ),
        (sweep.RunsFailed([ValueError("no data")], 1), "no data\nnothing was compared"),
    ],
)
def test_a_verification_that_fails_does_not_say_that_anything_was_saved(tmp_path, monkeypatch, failure, said):
    def fail(*_):
        raise failure

    monkeypatch.setattr(paths, "OUTPUTS", tmp_path)
    monkeypatch.setattr(sweep, "train_all", fail)
    Store(tmp_path / "paper").save(as_record())
    with pytest.raises((sweep.Interrupted, Mistake), match=said) as told:
        verify.verify("paper", [as_record().spec], 1)
    assert "saved" not in str(told.value)


@pytest.mark.parametrize(("accuracy", "outcome", "code"), [(0.3, "bit-equal", 0), (0.31, "different", 1)])
def test_a_verification_is_noted_with_what_it_took(tmp_path, monkeypatch, accuracy, outcome, code):
    monkeypatch.setattr(paths, "OUTPUTS", tmp_path)
    monkeypatch.setattr(verify, "_remeasure", lambda *_: 0)
    record, other = timed(run(), 100.0), as_record(method="bp")
    for kept in (record, other):
        Store(tmp_path / "paper").save(kept)
    again = timed(run(accuracy=accuracy), 80.0)
    monkeypatch.setattr(sweep, "train_all", lambda specs, store, jobs: [store.save(again) for _ in specs])
    for times in (1, 2):
        assert verify.verify("paper", [record.spec], n=3) == code
        noted = retraining.rows("paper")
        assert [(row.key, row.outcome) for row in noted] == [(record.spec.key, outcome)] * times
    assert (noted[0].recorded_core_seconds, noted[0].core_seconds) == (100.0, 80.0)


def test_the_identity_check_alone_needs_no_record(tmp_path, monkeypatch):
    monkeypatch.setattr(paths, "OUTPUTS", tmp_path)
    monkeypatch.setattr(verify, "_remeasure", lambda *_: 0)
    assert verify.verify("paper", [], 1) == 0 and not (tmp_path / "paper").exists()


def test_only_records_of_the_runs_asked_for_are_verified(tmp_path, monkeypatch, capsys):
    monkeypatch.setattr(paths, "OUTPUTS", tmp_path)
    Store(tmp_path / "paper").save(as_record(method="dfa"))
    assert verify.verify("paper", [as_record(method="bp").spec], 1) == 1
    assert "no such records" in capsys.readouterr().out


def test_how_far_a_run_came_out_elsewhere_is_noted(tmp_path, monkeypatch):
    monkeypatch.setattr(paths, "OUTPUTS", tmp_path)
    kept = timed(run(), 10.0)
    near, far = (timed(run(cpu="another", **off), 20.0) for off in ({"accuracy": 0.301}, {"h_last": 200.1}))
    retraining.add("paper", [retraining.retrained(kept, again, compare(kept, again)) for again in (near, far, kept)])
    noted = retraining.rows("paper")
    assert [row.outcome for row in noted] == ["within tolerance", "within tolerance", "bit-equal"]
    assert noted[0].accuracy_off == pytest.approx(0.001) and 10 ** noted[1].decades_off == pytest.approx(1.0005)


def test_the_identity_check_is_measured_again(tmp_path, monkeypatch, capsys):
    monkeypatch.setattr(paths, "OUTPUTS", tmp_path)
    monkeypatch.setenv(paths.RUNNER, "1")
    monkeypatch.setattr(params, "parameters", lambda *_: {"width": 8, "depth": 2, "data": "tiny"})
    assert verify._remeasure("any", "paper") == 1 and "0 seeds" in capsys.readouterr().out
    kept = identity_rows.rows(8, 2, [1, 2], "paper", data="tiny")
    assert verify._remeasure("any", "paper") == 0 and "2 seeds: largest difference 0.0e+00" in capsys.readouterr().out
    kept[2]["block_ratio"][1] += 1e-3
    monkeypatch.setattr(identity_rows, "stored", lambda *_: kept)
    assert verify._remeasure("any", "paper") == 1
