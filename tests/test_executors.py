"""More than one machine: any executor, a real Dask cluster, shards, records from elsewhere, two in one folder."""

import json
import os
import re
import shutil
import signal
import subprocess
import sys
import threading
import time
from concurrent.futures import ThreadPoolExecutor
from functools import partial
from pathlib import Path

import psutil
import pytest
from hypothesis import given
from hypothesis import strategies as st

from benchmarks.loopback import PATIENCE, Cluster, until
from creditaudit import paths
from creditaudit.engine.spec import RunSpec
from creditaudit.mistakes import Mistake
from creditaudit.runs import arrivals, board, schedule, seal, sweep, train
from creditaudit.runs.files import read_checked, write_checked
from creditaudit.runs.records import Store
from creditaudit.runs.turns import Turn

SHORT = {"width": 16, "depth": 2, "epochs": 2, "data": "tiny", "batch": 64}
LONG = SHORT | {"epochs": 60}  # about a second


def numbers(store: Store, spec: RunSpec) -> str:
    record = store.get(spec)
    return json.dumps([record.epochs, record.final], sort_keys=True)


@pytest.fixture
def apart(tmp_path, monkeypatch) -> Path:
    """Where workers that are elsewhere keep their own things."""
    monkeypatch.setattr(paths, "OUTPUTS", tmp_path / "elsewhere")
    return tmp_path / "elsewhere"


def test_any_executor_trains_and_needs_no_disk_of_the_campaign(tmp_path, apart):
    specs, store = [RunSpec(method=m, **SHORT) for m in ("bp", "dfa")], Store(tmp_path / "here")
    with ThreadPoolExecutor(1) as pool:
        assert sweep.train_all(specs, store, executor=pool) == 2
        assert sweep.train_all(specs, store, executor=pool) == 0
        pool.submit(int).result()  # it was lent, not given
    assert len(list(apart.glob("worker/*/runs/*.json"))) == 2
    train.run(specs[0], alone := Store(tmp_path / "alone"))
    assert numbers(store, specs[0]) == numbers(alone, specs[0])


def test_a_record_that_did_not_arrive_is_sent_again_not_trained_again(tmp_path, apart, monkeypatch):
    spec = RunSpec(method="dfa", **SHORT)
    first = sweep.train_one(spec.model_dump(), seal.seal(), None)
    monkeypatch.setattr(train, "run_stack", lambda *_: pytest.fail("trained again"))
    assert sweep.train_one(spec.model_dump(), seal.seal(), None) == first


def test_a_damaged_record_of_a_worker_is_made_again(apart):
    spec = RunSpec(method="dfa", **SHORT)
    first = json.loads(sweep.train_one(spec.model_dump(), seal.seal(), None))
    (kept,) = apart.glob("worker/*/runs/*.json")
    kept.write_bytes(kept.read_bytes()[:100])
    assert json.loads(sweep.train_one(spec.model_dump(), seal.seal(), None))["final"] == first["final"]


@pytest.mark.parametrize("part", sorted(seal.seal()))
def test_a_worker_that_differs_trains_nothing(part, apart):
    expected = seal.seal() | {part: "other"}
    with pytest.raises(Mistake, match=re.escape(part)):
        sweep.train_one(RunSpec(method="dfa", **SHORT).model_dump(), expected, None)
    assert not apart.exists()


def test_the_code_that_computes_is_sealed_and_pages_are_not(tmp_path, monkeypatch):
    copy = tmp_path / "creditaudit"
    shutil.copytree(seal.PACKAGE, copy, ignore=shutil.ignore_patterns("__pycache__"))
    monkeypatch.setattr(seal, "PACKAGE", copy)
    before = seal.seal.__wrapped__()["code"]
    (copy / "show" / "style.py").write_text("")
    assert seal.seal.__wrapped__()["code"] == before
    (copy / "engine" / "credit" / "new.py").write_text("")
    assert seal.seal.__wrapped__()["code"] != before


@pytest.mark.parametrize(
    "damage", [lambda t: t[:-50], lambda t: t.replace("0.", "1.", 1), lambda t: "[]", lambda t: "{}"]
)
def test_what_arrives_damaged_is_not_kept(tmp_path, apart, damage):
    spec, store = RunSpec(method="dfa", **SHORT), Store(tmp_path)
    text = sweep.train_one(spec.model_dump(), seal.seal(), None)
    with pytest.raises(Mistake, match="is not kept"):
        arrivals.accept(damage(text), spec, store)
    with pytest.raises(Mistake, match="is not kept"):
        arrivals.accept(text, spec.but(seed=7), store)
    assert store.all() == [] and arrivals.accept(text, spec, store) == store.get(spec)


runs = st.lists(st.builds(RunSpec, method=st.sampled_from(["bp", "dfa"]), seed=st.integers(0, 10**6)), max_size=40)


@given(runs, st.integers(1, 9))
def test_shards_are_a_partition_that_depends_on_the_key_alone(specs, parts):
    shards = [schedule.shard(specs, part, parts) for part in range(1, parts + 1)]
    assert sorted(s.key for one in shards for s in one) == sorted(s.key for s in specs)
    for part, one in enumerate(shards, 1):
        assert all(schedule.shard([spec], part, parts) == [spec] for spec in one)


costs = st.lists(st.floats(0.1, 1000), min_size=1, max_size=40)


@given(costs, st.integers(1, 12))
def test_an_order_holds_every_run_and_is_nearly_as_good_as_longest_first(seconds, crew):
    items = list(range(len(seconds)))
    order = schedule.order(items, seconds, crew)
    assert sorted(order) == items
    best = schedule.makespan(sorted(seconds, reverse=True), crew)
    took = schedule.makespan([seconds[i] for i in order], crew)
    bound = max(sum(seconds) / crew, max(seconds))
    assert bound * 0.999 <= took <= best * schedule.GOOD_ENOUGH * 1.001


def test_the_documented_order_stays_where_it_costs_nothing():
    assert schedule.order("abcd", [1, 5, 2, 9], 1) == list("abcd")
    assert schedule.order("abcd", [1, 1, 1, 9], 2) == list("adbc")
    assert schedule.order([], [], 3) == []


def test_two_campaigns_in_one_folder_share_the_runs(tmp_path, apart):
    """As two machines on one file system: each with an executor of its own, so neither waits for the other's cores."""
    specs, store = [RunSpec(method="dfa", seed=seed, **SHORT) for seed in range(8)], Store(tmp_path / "here")
    trained = []

    def campaign():
        with ThreadPoolExecutor(1) as pool:
            trained.append(sweep.train_all(specs, store, executor=pool))

    both = [threading.Thread(target=campaign) for _ in range(2)]
    for one in both:
        one.start()
    for one in both:
        one.join()
    assert sum(trained) == len(specs) == len(store.all())
    assert not list((store.folder.parent / ".turns").glob("*"))


def test_a_run_whose_trainer_dies_is_taken_over(tmp_path, apart):
    spec, store, trained = RunSpec(method="dfa", **SHORT), Store(tmp_path / "here"), []
    other = Turn(store, spec.key)
    assert other.take()
    with ThreadPoolExecutor(1) as pool:
        campaign = threading.Thread(target=lambda: trained.append(sweep.train_all([spec], store, executor=pool)))
        campaign.start()
        time.sleep(0.5)
        assert campaign.is_alive() and not store.all()
        other.give_back()
        campaign.join()
    assert trained == [1]


def test_no_worker_outlives_a_killed_campaign(tmp_path):
    """Not even one that is idle, or in the middle of a run."""
    code = f"""
import time
from pathlib import Path
from creditaudit.engine.spec import RunSpec
from creditaudit.runs.records import Store
from creditaudit.runs import sweep
from creditaudit.runs.workers import LocalCrew
if __name__ == "__main__":
    crew = LocalCrew(sweep.train_one, 2, Store(Path({str(tmp_path)!r})))
    short = crew.submit(RunSpec(method="dfa", **{SHORT}))
    crew.submit(RunSpec(method="bp", **{LONG | {"epochs": 1000}}))
    short.result()
    print(*(process.pid for process in crew.executor._processes.values()), flush=True)
    time.sleep(600)
"""
    (tmp_path / "campaign.py").write_text(code)
    search = {"PYTHONPATH": str(seal.PACKAGE.parent)}
    command = [sys.executable, str(tmp_path / "campaign.py")]
    campaign = subprocess.Popen(command, env=os.environ | search, stdout=subprocess.PIPE, text=True)
    left = [psutil.Process(int(pid)) for pid in campaign.stdout.readline().split()]
    campaign.kill()
    campaign.wait()
    assert left and not psutil.wait_procs(left, timeout=30)[1]


def test_records_that_vanish_are_not_reported_as_trained(tmp_path, apart):
    specs, store = [RunSpec(method=m, **SHORT) for m in ("bp", "dfa")], Store(tmp_path / "here")

    class Vandal(ThreadPoolExecutor):
        def submit(self, *arguments):
            shutil.rmtree(store.folder, ignore_errors=True)
            return super().submit(*arguments)

    with Vandal(1) as pool, pytest.raises(Mistake, match="1 records"):
        sweep.train_all(specs, store, executor=pool)


@pytest.fixture
def made_elsewhere(tmp_path) -> tuple[Path, list[RunSpec]]:
    specs = [RunSpec(method=m, **SHORT) for m in ("bp", "dfa", "fa")]
    for spec in specs:
        train.run(spec, Store(tmp_path / "other"))
    return tmp_path / "other", specs


def test_collect_takes_what_is_sound_and_tells_what_is_not(tmp_path, made_elsewhere):
    other, (bp, dfa, fa) = made_elsewhere
    store, folder = Store(tmp_path / "here"), other / "runs"
    path = Store(other).path(dfa)
    path.write_text(path.read_text().replace("0.", "1.", 1))
    body = read_checked(Store(other).path(fa))
    write_checked(Store(other).path(fa), body | {"recipe": 99})
    found = arrivals.collect(other, store, lambda spec: True)
    assert found.taken == [bp.key] and len(found.refused) == 2
    assert "checksum" in found.refused[0] and "recipe 99" in found.refused[1]
    again = arrivals.collect(folder, store, lambda spec: True)
    assert again.there_already == [bp.key] and not again.taken
    assert arrivals.collect(folder, Store(tmp_path / "third"), lambda spec: False).taken == []
    for own in (store.folder, store.folder.parent):
        with pytest.raises(Mistake, match="where records are collected"):
            arrivals.collect(own, store, lambda spec: True)


def test_collect_is_not_kept_waiting_and_writes_nothing_to_the_terminal_but_text(tmp_path, made_elsewhere):
    other, (bp, dfa, fa) = made_elsewhere
    folder, path = other / "runs", Store(other).path
    path(bp).unlink()
    os.mkfifo(path(bp))
    path(dfa).unlink()
    path(dfa).symlink_to("/dev/zero")
    body = read_checked(path(fa))
    body["provenance"]["cpu"] = "\x1b[2J99 records taken"
    write_checked(path(fa), body)
    (folder / "odd\x1b[2J\n.json").write_text("{}")
    (folder / "loop").symlink_to("..")
    (folder / "twice.json").write_text('{"recipe": 2, "recipe": 1}')
    found = arrivals.collect(other, Store(tmp_path / "here"), lambda spec: True)
    assert len(found.refused) == 5 and not found.taken
    assert all(reason.isprintable() for reason in found.refused)
    assert "twice in one object" in found.refused[-1]


def test_collect_never_replaces_a_record(tmp_path, made_elsewhere):
    other, (bp, *_) = made_elsewhere
    store = Store(tmp_path / "here")
    arrivals.collect(other, store, lambda spec: True)
    before = store.path(bp).read_bytes()
    body = read_checked(Store(other).path(bp))
    body["final"]["test_accuracy"] = 0.99
    write_checked(Store(other).path(bp), body)
    found = arrivals.collect(other, store, lambda spec: True)
    assert len(found.refused) == 1 and "differ" in found.refused[0]
    assert store.path(bp).read_bytes() == before


@pytest.mark.parametrize("wrong", ["--executor ray", "--executor dask://", "--shard 0/8", "--shard 9/8", "--shard x"])
def test_a_wrong_flag_is_refused(wrong):
    from creditaudit.__main__ import main

    with pytest.raises(SystemExit) as stop:
        main(["train", *wrong.split()])
    assert stop.value.code == 2


# A real scheduler and real workers, on loopback ------------------------------------------------------------


@pytest.fixture
def cluster(tmp_path, monkeypatch):
    pytest.importorskip("distributed")
    root = tmp_path / "campaign"
    root.mkdir()
    (root / "requirements.lock").write_text("the same")
    monkeypatch.setattr(paths, "ROOT", root)
    monkeypatch.setenv("CREDITAUDIT_ROOT", str(root))
    seal.seal.cache_clear()
    (tmp_path / "cluster").mkdir()
    made = Cluster(tmp_path / "cluster")
    yield made
    made.close()
    seal.seal.cache_clear()


def dask(address: str):
    from creditaudit.runs.cluster import DaskCrew

    return partial(DaskCrew, address=address)


class Campaign(threading.Thread):
    """A campaign in the background, and how it ended."""

    def __init__(self, specs, store, cluster):
        super().__init__(daemon=True)
        self.arguments, self.trained, self.error = (
            (specs, store, None, "cpu", dask(cluster.address)),
            None,
            None,
        )
        self.start()

    def run(self):
        try:
            self.trained = sweep.train_all(*self.arguments)
        except BaseException as error:
            self.error = error

    def result(self) -> int:
        self.join(PATIENCE)
        assert not self.is_alive(), "the campaign hangs"
        if self.error:
            raise self.error
        return self.trained


def test_a_killed_worker_loses_nothing_and_a_stranger_gets_no_work(tmp_path, cluster, capsys):
    specs, store = [RunSpec(method="dfa", seed=s, **LONG) for s in range(4)], Store(tmp_path / "here")
    killed, other, stranger = (cluster.folder / name for name in ("killed", "other", "stranger"))
    first = cluster.worker("killed")
    cluster.worker("stranger", lock="another one")
    campaign = Campaign(specs, store, cluster)
    until(lambda: list(killed.glob("outputs/worker/*/.turns/*")), "a run in progress")
    first.send_signal(signal.SIGSTOP)  # it must still be at it then
    cluster.worker("other")  # joins late, and is given work
    until(lambda: list(other.glob("outputs/worker/*/.turns/*")), "work for the late one")
    first.send_signal(signal.SIGKILL)
    assert campaign.result() == len(specs) == len(store.all())
    assert not list(stranger.glob("outputs/**/*.json"))
    assert "is refused, it differs in requirements.lock" in capsys.readouterr().err
    train.run(specs[0], alone := Store(tmp_path / "alone"))
    assert numbers(store, specs[0]) == numbers(alone, specs[0])
    assert sweep.train_all(specs, store, executor=dask(cluster.address)) == 0


def test_epochs_reach_the_one_bar(tmp_path, cluster, monkeypatch):
    heard = []
    monkeypatch.setattr(board.Board, "note", lambda self, *told: heard.append(told))
    cluster.worker("one")
    spec = RunSpec(method="bp", **SHORT)
    assert Campaign([spec], Store(tmp_path / "here"), cluster).result() == 1
    until(lambda: len(heard) == 2, "the epochs")
    assert heard == [(spec.key, 1), (spec.key, 2)]


def test_a_lost_scheduler_is_told_and_what_arrived_stays(tmp_path, cluster):
    specs, store = [RunSpec(method="dfa", seed=s, **LONG) for s in range(3)], Store(tmp_path / "here")
    cluster.worker("one")
    campaign = Campaign(specs, store, cluster)
    until(lambda: len(store.all()) == 1, "a first record")
    cluster.scheduler.send_signal(signal.SIGKILL)
    with pytest.raises(Mistake, match="the scheduler at"):
        campaign.result()
    left = store.missing(specs)
    assert len(left) == 2
    assert sweep.train_all(specs, store, jobs=1) == 2  # the same command, on this machine


def test_strangers_only_or_nobody_is_said_before_anything_waits(tmp_path, cluster, monkeypatch):
    from creditaudit.runs import cluster as module

    monkeypatch.setattr(module, "JOINING", 1.0)
    spec, store = RunSpec(method="dfa", **SHORT), Store(tmp_path / "here")
    with pytest.raises(Mistake, match="no worker joined"):
        Campaign([spec], store, cluster).result()
    monkeypatch.setattr(module, "JOINING", PATIENCE)
    cluster.worker("stranger", lock="absent")
    with pytest.raises(Mistake, match="all 1 workers differ"):
        Campaign([spec], store, cluster).result()
    monkeypatch.setattr(module, "CONNECTING", 0.5)
    with pytest.raises(Mistake, match="no Dask scheduler answers"):
        sweep.train_all([spec], store, executor=dask("127.0.0.1:9"))


def test_workers_stop_when_their_campaign_does(tmp_path, cluster):
    """A worker that trains for nobody would be missing to the next campaign."""
    from creditaudit.runs import cluster as module

    worker = cluster.worker("one")
    endless = RunSpec(method="dfa", **SHORT | {"epochs": 1000})
    crew = module.DaskCrew(sweep.train_one, cluster.address)
    crew.submit(endless)
    turns = cluster.folder / "one"
    until(lambda: list(turns.glob("outputs/worker/*/.turns/*")), "the run")
    crew.stop()
    spec, store = RunSpec(method="bp", **SHORT), Store(tmp_path / "here")
    assert Campaign([spec], store, cluster).result() == 1
    assert worker.poll() is None and not list(turns.glob(f"outputs/worker/*/runs/{endless.key}.json"))
