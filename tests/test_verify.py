"""`make verify-paper`: equal bits pass, a difference passes only elsewhere and only within the tolerance."""

from dataclasses import replace

import pytest

from creditaudit import identity_rows, params, paths, sweep, verified, verify
from creditaudit.records import Record, Store
from tests.factories import as_record

HERE = {"cpu": "this one", "torch": "1", "numpy": "1", "threads": 1, "device": "cpu"}


def run(accuracy: float = 0.3, h_last: float | None = 200.0, cpu: str = "this one") -> Record:
    record = as_record(accuracy=accuracy, epochs=3)
    final = record.final | {"h_norm": [*record.final["h_norm"][:-1], h_last]}
    return replace(record, final=final, provenance=HERE | {"cpu": cpu, "cpu_seconds": 1.0, "commit": "0"})


def timed(record: Record, seconds: float) -> Record:
    return replace(record, provenance=HERE | record.provenance | {"cpu_seconds": seconds, "commit": "0"})


@pytest.mark.parametrize(
    ("again", "outcome", "said"),
    [
        (run(), "bit-equal", "bit-equal"),
        (run(cpu="another"), "bit-equal", "bit-equal"),
        (run(accuracy=0.301), "different", "should be bit-equal: FAILED"),
        (run(accuracy=0.301, cpu="another"), "within tolerance", "within tolerance"),
        (run(accuracy=0.33, cpu="another"), "different", "FAILED"),
        (run(h_last=2000.0, cpu="another"), "different", "first at final.h_norm[4]"),
        (run(h_last=None, cpu="another"), "different", "FAILED"),
    ],
)
def test_the_verdict_on_a_retrained_run(again, outcome, said, capsys):
    assert verify._compare(run(), again).outcome == outcome
    assert said in capsys.readouterr().out


def test_a_run_that_began_on_another_machine_need_not_be_bit_equal(capsys):
    mixed = run()
    mixed = replace(mixed, provenance=mixed.provenance | {"resumed_from": [HERE | {"cpu": "another"}]})
    assert verify._compare(mixed, run(accuracy=0.301)).outcome == "within tolerance"
    assert "within tolerance" in capsys.readouterr().out


def test_a_difference_in_the_course_of_training_is_found(capsys):
    other = run()
    other = replace(other, epochs=other.epochs | {"test_accuracy": [0.1, 0.2, 0.3]})
    assert verify._compare(run(), other).outcome == "different"
    assert "first at epochs.test_accuracy[0]" in capsys.readouterr().out


@pytest.mark.parametrize("extra", [{"new": 1.0}, {"block_growth": [1.0]}, {"fresh_null": {"mean": 0.0}}])
def test_what_only_one_of_them_has_is_a_difference(extra, capsys):
    other = run()
    assert verify._compare(run(), replace(other, final=other.final | extra)).outcome == "different"
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
        noted = verified.rows("paper")
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


def test_the_pace_of_the_ladder_is_that_of_its_own_retrained_runs_on_the_same_cpu(tmp_path, monkeypatch):
    monkeypatch.setattr(paths, "OUTPUTS", tmp_path)
    ladder = [timed(replace(run(), spec=run().spec.but(seed=seed)), 7200.0) for seed in (1, 2)]
    beside, specs = timed(as_record(method="bp", epochs=3), 10.0), [record.spec for record in ladder]
    everything = [*ladder, beside]
    assert verified.told("paper", everything, specs, 2) == ""
    verified.add("paper", [verified.compared(beside, timed(run(), 10.0), "bit-equal")])
    assert verified.told("paper", everything, specs, 2).endswith(": 1 bit-equal.")
    elsewhere = timed(run(cpu="another"), 1.0)
    verified.add("paper", [verified.compared(ladder[0], timed(run(), 2700.0), "bit-equal")])
    verified.add("paper", [verified.compared(ladder[1], elsewhere, "bit-equal")])
    said = verified.told("paper", everything, specs, 2)
    assert "records: 3 bit-equal." in said
    assert "(n = 1) took 38 to 38 % of the core-time" in said and said.endswith("train all 2 in 0.75 hours.")
    replaced = [timed(ladder[0], 9.0), *everything[1:]]
    assert "records: 2 bit-equal." in verified.told("paper", replaced, specs, 2), "that record is gone"
    assert "pace" not in verified.told("paper", everything[1:], specs, 2), "the ladder is not complete"


def test_how_far_a_run_came_out_elsewhere_is_told(tmp_path, monkeypatch):
    monkeypatch.setattr(paths, "OUTPUTS", tmp_path)
    kept = timed(run(), 10.0)
    near, far = (timed(run(cpu="another", **off), 20.0) for off in ({"accuracy": 0.301}, {"h_last": 400.0}))
    verified.add("paper", [verify._compare(kept, again) for again in (near, far, kept)])
    said = verified.told("paper", [kept], [], 2)
    assert (
        "1 bit-equal, 2 within tolerance (0.02 in accuracy, a factor of 3.2 in the last norm)" in said
        and "another kind of CPU or torch: another)" in said
    )
    assert said.endswith("off by at most 0.001 in accuracy and 100 % in that norm.")


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
