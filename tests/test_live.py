"""Runs in processes of their own: told epoch by epoch, stopped and resumed, asked for twice where they take long."""

import os
import subprocess
import sys
import time
from pathlib import Path

import pytest

from creditaudit import paths
from creditaudit.engine import catalogue
from creditaudit.engine.spec import RunSpec
from creditaudit.mistakes import Mistake
from creditaudit.runs import live
from creditaudit.runs.records import Store
from creditaudit.show import training

TINY = {"width": 16, "depth": 2, "data": "tiny", "train_size": 260}


def specs(count: int = 2, **fields) -> list[RunSpec]:
    return [RunSpec(**TINY | {"method": "dfa", "epochs": 2, "seed": seed} | fields) for seed in range(count)]


def watch(crew: live.Crew, until, seconds: float = 60.0) -> None:
    end = time.monotonic() + seconds
    while not until(crew) and time.monotonic() < end:
        crew.poll(0.05)
    assert until(crew), [(each.state, each.problem) for each in crew.progress.values()]


def test_a_plain_script_without_a_guard_trains_and_ends(tmp_path):
    script = tmp_path / "script.py"
    script.write_text(
        "from creditaudit import show, study\n"
        "show.start('depth_ladder')\n"
        f"specs = [study.RunSpec(method='dfa', epochs=2, seed=s, **{TINY!r}) for s in (1, 2)]\n"
        "print(len(study.load('depth_ladder', 'smoke', 'd256_L4', specs).records))\n"
    )
    for name in ("params", "notebooks"):
        (tmp_path / name).symlink_to(paths.ROOT / name)
    search = os.pathsep.join([str(Path(paths.__file__).parents[1]), os.environ.get("PYTHONPATH", "")])
    environment = {name: value for name, value in os.environ.items() if name != paths.RUNNER}
    done = subprocess.run(
        [sys.executable, str(script)],
        env=environment | {"PYTHONPATH": search, "CREDITAUDIT_ROOT": str(tmp_path)},
        capture_output=True, text=True, timeout=120,
    )  # fmt: skip
    assert done.stdout == "2\n", done.stderr
    assert len(list((tmp_path / "outputs" / "interactive" / "runs").glob("*.json"))) == 2


def test_every_epoch_is_told_and_is_what_the_record_holds(tmp_path):
    store, (spec,) = Store(tmp_path), specs(1)
    for crew in live.train([spec], store):
        seen = crew.progress[spec]
    record = store.get(spec)
    assert seen.state == "done" and seen.epoch == 2
    assert seen.epochs == {name: record.epochs[name] for name in live.TOLD}
    assert not live.Crew([spec], store).poll(0)  # nothing is left to do


def test_a_run_that_was_stopped_goes_on_to_the_same_numbers(tmp_path):
    store, (spec,) = Store(tmp_path / "stopped"), specs(1, epochs=40)
    crew = live.Crew([spec], store)
    watch(crew, lambda crew: crew.progress[spec].epoch > 2)
    crew.stop()
    partial = crew.progress[spec]
    assert partial.state == "stopped" and 2 < partial.epoch < 40 and store.get(spec) is None
    again = live.Crew([spec], store)
    watch(again, lambda crew: crew.progress[spec].epoch > 0)
    assert again.progress[spec].epoch >= partial.epoch - 1  # what was written while it was killed may be lost
    assert again.progress[spec].epochs["h_norm"][: partial.epoch - 1] == partial.epochs["h_norm"][: partial.epoch - 1]
    watch(again, lambda crew: not crew.workers)
    whole = Store(tmp_path / "whole")
    list(live.train([spec], whole))
    assert store.get(spec).epochs == whole.get(spec).epochs


def test_an_interrupt_ends_in_a_sentence_and_leaves_no_process(tmp_path):
    training = live.train(specs(epochs=900), Store(tmp_path))
    crew = next(training)
    processes = [worker.process for worker in crew.workers]
    with pytest.raises(Mistake, match="0 of 2 runs finished"):
        training.throw(KeyboardInterrupt)
    assert all(process.poll() is not None for process in processes)


def test_a_worker_that_dies_fails_its_run_alone(tmp_path):
    asked = [*specs(1, epochs=900), *specs(2)[1:]]
    crew = live.Crew(asked, Store(tmp_path), jobs=1)
    watch(crew, lambda crew: crew.progress[asked[0]].epoch > 0)
    crew.workers[0].process.kill()
    watch(crew, lambda crew: not crew.workers)
    assert [crew.progress[spec].state for spec in asked] == ["failed", "done"]
    assert "ended" in crew.problems[0] and asked[0].key in crew.problems[0]


def test_a_worker_that_waits_is_taken_unless_it_knows_of_other_folders_or_is_dead(tmp_path, monkeypatch):
    monkeypatch.setattr(live, "_ready", [])
    monkeypatch.setattr(live.cost, "cores", lambda: 2)
    live.warm(2)
    live.warm(2)
    dead, waiting = live._ready
    dead.process.kill()
    dead.process.wait()
    crew = live.Crew(specs(), Store(tmp_path))
    assert waiting in crew.workers and dead not in crew.workers and live._ready == []
    watch(crew, lambda crew: not crew.workers)
    assert [each.state for each in crew.progress.values()] == ["done", "done"]
    live.warm(1)
    (stale,) = live._ready
    monkeypatch.setenv(catalogue.VARIABLE, str(tmp_path))
    crew = live.Crew(specs(1, seed=7), Store(tmp_path))
    assert stale not in crew.workers and stale.process.poll() is not None
    crew.stop()


@pytest.fixture
def play(tmp_path, monkeypatch):
    trained = []
    monkeypatch.setattr(paths, "OUTPUTS", tmp_path)
    monkeypatch.setattr(
        training.live, "train", lambda specs, store: trained.append(specs) or iter([live.Crew([], store)])
    )
    monkeypatch.setattr(training.fetch, "cifar10", lambda: None)
    monkeypatch.setattr(training, "_announced", set())
    return trained


def test_what_takes_long_is_told_first_and_trained_when_it_is_asked_for_again(play):
    long, other = [RunSpec(method="bp", epochs=100)], [RunSpec(method="bp", epochs=99)]
    with pytest.raises(Mistake, match=r"1 run without a record, about \d+ minutes"):
        training.train(long)
    with pytest.raises(Mistake, match="1 run without a record"):
        training.train(other)  # another request is another question
    assert play == []
    training.train(long)
    assert play == [long]


def test_what_takes_seconds_is_trained_unasked(play):
    training.train(specs())
    assert play == [specs()]


def test_runs_that_differ_in_the_penalty_have_different_names():
    base = RunSpec(method="dfa")
    names = [training.name(spec) for spec in (base, base.but(penalty=0.003), base.but(normalise="none"), base.but(k=0))]
    assert len(set(names)) == 4


@pytest.mark.parametrize(("seconds", "told"), [(1, "5 s"), (61, "60 s"), (300, "5 minutes"), (7200, "2.0 hours")])
def test_durations_are_round(seconds, told):
    assert training.duration(seconds) == told
