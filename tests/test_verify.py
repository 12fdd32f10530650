"""`make verify-paper`: equal bits pass, a difference passes only elsewhere and only within the tolerance."""

from dataclasses import replace

import pytest

from creditaudit import identity_rows, params, paths, sweep, verify
from creditaudit.records import Record, Store
from tests.factories import as_record

HERE = {"cpu": "this one", "torch": "1", "numpy": "1", "threads": 1, "device": "cpu"}


def run(accuracy: float = 0.3, h_last: float | None = 200.0, cpu: str = "this one") -> Record:
    record = as_record(accuracy=accuracy, epochs=3)
    final = record.final | {"h_norm": [*record.final["h_norm"][:-1], h_last]}
    return replace(record, final=final, provenance=HERE | {"cpu": cpu})


@pytest.mark.parametrize(
    ("again", "code", "said"),
    [
        (run(), 0, "bit-equal"),
        (run(cpu="another"), 0, "bit-equal"),
        (run(accuracy=0.301), 1, "should be bit-equal: FAILED"),
        (run(accuracy=0.301, cpu="another"), 0, "within tolerance"),
        (run(accuracy=0.33, cpu="another"), 1, "FAILED"),
        (run(h_last=2000.0, cpu="another"), 1, "first at final.h_norm[4]"),
        (run(h_last=None, cpu="another"), 1, "FAILED"),
    ],
)
def test_the_verdict_on_a_retrained_run(again, code, said, capsys):
    assert verify._compare(run(), again) == code
    assert said in capsys.readouterr().out


def test_a_run_that_began_on_another_machine_need_not_be_bit_equal(capsys):
    mixed = run()
    mixed = replace(mixed, provenance=mixed.provenance | {"resumed_from": [HERE | {"cpu": "another"}]})
    assert verify._compare(mixed, run(accuracy=0.301)) == 0
    assert "within tolerance" in capsys.readouterr().out


def test_a_difference_in_the_course_of_training_is_found(capsys):
    other = run()
    other = replace(other, epochs=other.epochs | {"test_accuracy": [0.1, 0.2, 0.3]})
    assert verify._compare(run(), other) == 1
    assert "first at epochs.test_accuracy[0]" in capsys.readouterr().out


@pytest.mark.parametrize("extra", [{"new": 1.0}, {"block_growth": [1.0]}, {"fresh_null": {"mean": 0.0}}])
def test_what_only_one_of_them_has_is_a_difference(extra, capsys):
    other = run()
    assert verify._compare(run(), replace(other, final=other.final | extra)) == 1
    assert f"first at final.{next(iter(extra))}" in capsys.readouterr().out


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
    with pytest.raises((sweep.Interrupted, verify.VerificationFailed), match=said) as told:
        verify.verify("paper", 1)
    assert "saved" not in str(told.value)


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
