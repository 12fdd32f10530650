"""Runs, records, resume: what is promised about a run from spec to file."""

import errno
import json
import os
import random
import threading
import time
from concurrent.futures import Future

import pytest
import torch

from creditaudit.engine import spec as spec_module
from creditaudit.engine.spec import RunSpec, SpecError
from creditaudit.measure import identity
from creditaudit.mistakes import Mistake
from creditaudit.runs import board, checkpoints, files, records, sweep, train, workers
from creditaudit.runs.files import RecordError
from creditaudit.runs.records import Store
from creditaudit.study.frames import Runs
from tests.factories import as_record

TINY = {"width": 16, "depth": 2, "epochs": 4, "data": "tiny", "batch": 64}


def content(record: records.Record) -> str:
    """All numbers of a record; its provenance (times, commit) is not part of the result."""
    return json.dumps([record.epochs, record.final], sort_keys=True)


def test_an_interrupted_run_continues_to_the_same_bits(tmp_path, monkeypatch):
    spec = RunSpec(method="fa", **TINY)
    whole = train.run(spec, Store(tmp_path / "whole"))
    monkeypatch.setattr(train, "CHECKPOINT_SECONDS", 0.0)

    def pull_the_plug(key, epoch):
        if epoch == 2:
            raise KeyboardInterrupt

    with pytest.raises(KeyboardInterrupt):
        train.run(spec, Store(tmp_path / "cut"), pull_the_plug)
    seen = []
    resumed = train.run(spec, Store(tmp_path / "cut"), lambda key, epoch: seen.append(epoch))
    assert seen == [3, 4]
    assert content(resumed) == content(whole)
    assert not list((tmp_path / "cut" / "checkpoints").glob("*"))


def interrupted(specs, store, at=2):
    def pull_the_plug(key, epoch):
        if epoch == at:
            raise KeyboardInterrupt

    with pytest.raises(KeyboardInterrupt):
        train.run_stack(specs, store, pull_the_plug)


def test_who_trained_the_first_part_is_remembered(tmp_path, monkeypatch):
    spec, here = RunSpec(method="bp", **TINY), train.provenance()
    monkeypatch.setattr(train, "CHECKPOINT_SECONDS", 0.0)
    monkeypatch.setattr(train, "provenance", lambda: here | {"commit": "earlier"})
    interrupted([spec], Store(tmp_path), at=1)
    monkeypatch.setattr(train, "provenance", lambda: here)
    interrupted([spec], Store(tmp_path), at=3)
    found = train.run(spec, Store(tmp_path)).provenance
    makers = [(maker["commit"], maker["epoch"]) for maker in found["resumed_from"]]
    assert makers == [("earlier", 1), (here["commit"], 3)]
    assert found["commit"] == here["commit"]
    assert "resumed_from" not in train.run(spec.but(seed=7), Store(tmp_path)).provenance


def test_a_checkpoint_serves_only_the_runs_it_is_of(tmp_path, monkeypatch):
    """Another stack that begins with the same run must not go on from these weights."""
    monkeypatch.setattr(train, "CHECKPOINT_SECONDS", 0.0)
    first, second, third = (RunSpec(method="dfa", seed=seed, **TINY) for seed in (1, 2, 3))
    interrupted([first, second], Store(tmp_path / "cut"))
    whole = train.run_stack([first, third], Store(tmp_path / "whole"))
    resumed = train.run_stack([first, third], Store(tmp_path / "cut"))
    assert [content(record) for record in resumed] == [content(record) for record in whole]


def resumed_or_restarted(spec, store, whole, capsys) -> str:
    """Train on; the numbers are those of an undisturbed run, and a run that could not go on says so."""
    seen = []
    record = train.run(spec, store, lambda key, epoch: seen.append(epoch))
    said = capsys.readouterr().err
    assert content(record) == content(whole)
    started_again = seen[0] == 1
    assert started_again == ("starts again" in said) == ("resumed_from" not in record.provenance)
    return said


@pytest.fixture
def cut(tmp_path, monkeypatch):
    """A run that was stopped after its second epoch, its checkpoint, and what it is when nobody stops it."""
    monkeypatch.setattr(train, "CHECKPOINT_SECONDS", 0.0)
    spec, store = RunSpec(method="dfa", **TINY), Store(tmp_path / "cut")
    whole = train.run(spec, Store(tmp_path / "whole"))
    interrupted([spec], store)
    (checkpoint,) = (tmp_path / "cut" / "checkpoints").glob("*.pt")
    return spec, store, checkpoint, whole


def again(spec, store, checkpoint, stored: bytes) -> None:
    store.path(spec).unlink(missing_ok=True)
    checkpoint.write_bytes(stored)


def test_no_bit_of_a_checkpoint_can_flip_unnoticed(cut, capsys):
    spec, store, checkpoint, whole = cut
    stored = checkpoint.read_bytes()
    resumed_or_restarted(spec, store, whole, capsys)
    draw = random.Random(1)
    places = [*range(100), *(draw.randrange(len(stored)) for _ in range(400)), len(stored) - 1]
    for count, place in enumerate(places):
        flipped = bytearray(stored)
        flipped[place] ^= 1 << draw.randrange(8)
        again(spec, store, checkpoint, bytes(flipped))
        with pytest.raises(checkpoints.DamagedCheckpoint):
            checkpoints.read(checkpoint)
        if count % 100 == 0:
            assert "starts again" in resumed_or_restarted(spec, store, whole, capsys), place


@pytest.mark.parametrize("length", [0, 10, 94, 95, 500, -1])
def test_a_cut_checkpoint_starts_its_run_again(cut, capsys, length):
    spec, store, checkpoint, whole = cut
    again(spec, store, checkpoint, checkpoint.read_bytes()[:length])
    assert "starts again" in resumed_or_restarted(spec, store, whole, capsys)


def test_a_checkpoint_that_other_code_wrote_starts_its_run_again(cut, capsys):
    """Also one from before this was noted: what it holds is not looked at."""
    spec, store, checkpoint, whole = cut
    state = checkpoints.read(checkpoint)
    for code in ("older", None):
        store.path(spec).unlink(missing_ok=True)
        checkpoints.write(checkpoint, state | {"code": code, "logs": [{}], "makers": []})
        assert "other code wrote it" in resumed_or_restarted(spec, store, whole, capsys)


def test_what_killed_processes_had_begun_to_write_is_swept_away(tmp_path):
    whole = tmp_path / "checkpoints" / "run.pt"
    files.write_atomically(whole, "whole")
    mine = files.scratch_path(whole)
    gone = mine.with_name(mine.name.replace(str(os.getpid()), "4194305"))  # more than any process id
    folder = gone.with_name(f".page{gone.name}")
    elsewhere = mine.with_name(mine.name.replace("@", "@another"))
    for path in (mine, gone, elsewhere):
        path.write_bytes(b"half")
    folder.mkdir()
    (folder / "page.ipynb").write_text("half")
    files.sweep_scratch(tmp_path)
    assert set(whole.parent.glob("*")) == {whole, mine, elsewhere}
    os.utime(elsewhere, (0, 0))
    files.sweep_scratch(tmp_path)
    assert set(whole.parent.glob("*")) == {whole, mine}
    files.sweep_scratch(tmp_path / "nothing")


def test_what_another_machine_writes_is_not_swept_by_a_clock_that_is_a_day_off(tmp_path, monkeypatch):
    page = files.scratch_path(tmp_path / "page.ipynb")
    page = page.with_name(page.name.replace("@", "@another"))
    page.mkdir()
    (page / "page.ipynb").write_text("half")
    os.utime(page, (0, 0))  # begun long ago, but written to just now
    real = time.time
    monkeypatch.setattr(time, "time", lambda: real() + 86400)
    files.sweep_scratch(tmp_path)
    assert list(tmp_path.iterdir()) == [page]


def full_disk(*_: object) -> None:
    raise OSError(errno.ENOSPC, "No space left on device")


def test_a_full_disk_is_one_sentence_and_leaves_the_old_file(tmp_path, monkeypatch):
    path = tmp_path / "page.html"
    files.write_atomically(path, "old")
    monkeypatch.setattr("os.fsync", full_disk)
    with pytest.raises(files.Unwritable, match=r"page.html cannot be written \(No space left on device\)"):
        files.write_atomically(path, "new")
    assert path.read_text() == "old" and list(tmp_path.iterdir()) == [path]
    (tmp_path / "folder.json").mkdir()
    with pytest.raises(files.Unwritable, match=r"folder\.json"):
        files.write_atomically(tmp_path / "folder.json", "new")


def test_training_stops_at_the_first_record_that_cannot_be_saved(tmp_path, monkeypatch):
    begun, note = set(), board.Board.note
    monkeypatch.setattr(board.Board, "note", lambda self, spec, *rest: begun.add(spec) or note(self, spec, *rest))
    store, runs = Store(tmp_path), [RunSpec(method="dfa", seed=seed, **TINY) for seed in range(100)]
    store.folder.write_text("a file where the folder of records should be: root, too, cannot write there")
    with pytest.raises(files.Unwritable, match="cannot be written"):
        sweep.train_all(runs, store, jobs=1)
    assert len(begun) < 20


def test_records_removed_during_training_are_no_success(tmp_path, monkeypatch):
    store, spec = Store(tmp_path), RunSpec(method="dfa", **TINY)
    monkeypatch.setattr(sweep._Campaign, "complete", lambda *_: None)
    with pytest.raises(Mistake, match="were removed"):
        sweep.train_all([spec], store)


def test_records_of_another_recipe_are_passed_over(tmp_path, monkeypatch):
    store = Store(tmp_path)
    train.run(RunSpec(method="dfa", **TINY), store)
    for module in (records, spec_module):
        monkeypatch.setattr(module, "RECIPE", 2)
    assert store.all() == []
    with pytest.raises(RecordError, match="made by recipe 1, this is recipe 2"):
        records.load(next(store.folder.glob("*.json")))


def test_a_stack_of_runs_gives_the_records_of_single_ones(tmp_path):
    """Within float tolerance: GEMMs of another shape round differently."""
    specs = [RunSpec(method="dfa", seed=s, penalty=p, **TINY) for s, p in [(1, 0.0), (1, 0.02), (2, 0.0)]]
    stacked = train.run_stack(specs, Store(tmp_path / "stacked"))
    for spec, together in zip(specs, stacked, strict=True):
        alone = train.run(spec, Store(tmp_path / "single"))
        assert together.spec == alone.spec
        assert together.final["test_accuracy"] == pytest.approx(alone.final["test_accuracy"], abs=0.02)
        assert together.final["h_norm"] == pytest.approx(alone.final["h_norm"], rel=1e-2)
        assert together.epochs["train_loss"] == pytest.approx(alone.epochs["train_loss"], rel=1e-2)


def test_runs_do_not_depend_on_their_neighbours(tmp_path):
    specs = [RunSpec(method=m, **TINY) for m in ("bp", "dfa", "fa")]
    together = Store(tmp_path / "together")
    assert sweep.train_all(specs, together, jobs=2) == 3
    assert sweep.train_all(specs, together, jobs=2) == 0, "finished runs are never recomputed"
    alone = train.run(specs[1], Store(tmp_path / "alone"))
    assert content(alone) == content(together.get(specs[1]))


def test_a_second_campaign_waits_and_trains_nothing_twice(tmp_path, capsys):
    spec, store, trained, said = RunSpec(method="dfa", **TINY), Store(tmp_path), [], ""
    second = threading.Thread(target=lambda: trained.append(sweep.train_all([spec], store)))
    with files.locked(sweep.cores_in(store)):
        second.start()
        while second.is_alive() and not said:
            time.sleep(0.01)
            said = capsys.readouterr().err
        train.run(spec, store)
        assert not trained
    second.join()
    assert "waiting: another process trains into" in said and trained == [0]


def test_training_leaves_the_process_as_it_was(tmp_path):
    """Flushed denormals would stay behind in a person's notebook, and so would the single thread."""
    threads = torch.get_num_threads()
    torch.set_num_threads(2)
    train.run(RunSpec(method="dfa", **TINY), Store(tmp_path))
    assert torch.get_num_threads() == 2
    assert (torch.tensor([2.0**-140]) / 2).item() > 0
    torch.set_num_threads(threads)


def test_a_failing_run_is_named_and_the_others_are_kept(tmp_path):
    good, bad = RunSpec(method="dfa", **TINY), RunSpec(method="dfa", **TINY | {"train_size": 10**6})
    store = Store(tmp_path)
    with pytest.raises(sweep.RunsFailed, match=rf"1 of 2 runs failed(.|\n)*{bad.key}"):
        sweep.train_all([bad, good], store, jobs=1)
    assert store.get(good) is not None
    with pytest.raises(sweep.RunsFailed, match=r"^1 of 1 runs failed:"):
        sweep.train_all([bad], store, jobs=1)


def test_a_killed_worker_is_told_in_a_sentence(tmp_path, monkeypatch):
    class Broken(workers.ProcessPoolExecutor):
        def submit(self, *_, **__):
            lost = Future()
            lost.set_exception(workers.BrokenExecutor("gone"))
            return lost

    monkeypatch.setattr(workers, "ProcessPoolExecutor", Broken)
    runs = [RunSpec(method=method, width=16, depth=2, epochs=1, data="tiny") for method in ("bp", "fa")]
    with pytest.raises(sweep.WorkerKilled, match=r"the same command goes on$"):
        sweep.train_all(runs, Store(tmp_path), 1)
    with pytest.raises(sweep.WorkerKilled, match="goes on, with JOBS=1 in a part of the memory that 2 workers take"):
        sweep.train_all(runs, Store(tmp_path), 2)


def test_methods_with_one_seed_see_the_same_batches_and_weights(tmp_path):
    """Before the first update every method has the same network: its first-batch loss is the same."""
    from creditaudit.engine import data
    from creditaudit.engine.step import Stack

    losses = []
    for method in ("bp", "fa", "dfa"):
        x, y = next(data.batches(data.load("tiny"), 5, 0, 64, True))
        losses.append(Stack([RunSpec(method=method, seed=5, **TINY)]).step(x[None], y[None])[0].item())
    assert losses[0] == losses[1] == losses[2]


def test_a_changed_number_is_refused(tmp_path):
    store, spec = Store(tmp_path), RunSpec(method="dfa", **TINY)
    train.run(spec, store)
    body = json.loads(store.path(spec).read_text())
    body["final"]["test_accuracy"] += 0.1
    store.path(spec).write_text(json.dumps(body))
    with pytest.raises(RecordError, match="checksum"):
        store.get(spec)
    body["sha256"] = files.checksum(body)
    store.path(spec).write_text(json.dumps(body))
    assert store.get(spec).final["test_accuracy"] == body["final"]["test_accuracy"]


def test_a_record_under_another_name_is_refused(tmp_path):
    store, spec, other = Store(tmp_path), RunSpec(method="dfa", **TINY), RunSpec(method="fa", **TINY)
    train.run(spec, store)
    store.path(other).write_text(store.path(spec).read_text())
    with pytest.raises(RecordError, match="renamed or copied"):
        store.get(other)


def test_a_cut_record_is_refused(tmp_path):
    store, spec = Store(tmp_path), RunSpec(method="dfa", **TINY)
    train.run(spec, store)
    store.path(spec).write_text(store.path(spec).read_text()[:500])
    with pytest.raises(RecordError, match="not valid JSON"):
        store.get(spec)


@pytest.mark.parametrize("content", [b"\xff\xfe\x00", b"[1]", b'{"final": NaN}', None])
def test_a_damaged_record_is_refused_in_a_sentence(tmp_path, content):
    store, spec = Store(tmp_path), RunSpec(method="bp")
    path = store.path(spec)
    path.parent.mkdir(parents=True)
    if content is None:
        path.mkdir()
    else:
        path.write_bytes(content)
    for ask in (store.get, lambda spec: store.missing([spec]), lambda spec: sweep.train_all([spec], store)):
        with pytest.raises(RecordError, match=r"delete .* to have it made again"):
            ask(spec)


def test_a_gpu_that_is_not_there_is_said_to_be_missing(tmp_path, monkeypatch):
    monkeypatch.setattr("torch.cuda.is_available", lambda: False)
    with pytest.raises(Mistake, match="no GPU"):
        sweep.train_all([RunSpec(method="bp")], Store(tmp_path), device="cuda")


def test_the_key_ignores_fields_at_their_default():
    plain = RunSpec(method="dfa")
    assert plain.key == RunSpec(method="dfa", k=4, normalise="sample", penalty=0.0, width=256).key
    others = [RunSpec(method="dfa", **change) for change in ({"k": 3}, {"penalty": 0.01}, {"seed": 1}, {"lr": 0.01})]
    assert len({spec.key for spec in [plain, *others]}) == 5


@pytest.mark.parametrize(
    ("fields", "message"),
    [
        ({"method": "dfa", "widht": 8}, "did you mean 'width'"),
        ({"method": "dfa", "lr": "1e-3"}, "1.0e-3"),
        ({"method": "dfa", "k": 5}, "0..4"),
        ({"method": "backprop"}, "bp, fa"),
        ({"method": "dfa", "epochs": 0}, "greater than or equal to 1"),
        ({"method": "dfa", "epochs": 2.5}, "epochs"),
    ],
)
def test_a_wrong_spec_says_what_is_wrong(fields, message):
    with pytest.raises(SpecError, match=message):
        RunSpec(**fields)


def test_identity_check_needs_no_training():
    measured = identity.measure(256, 4, 42, "tiny")
    assert min(measured["block_ratio"]) > 0.08 and max(measured["block_ratio"]) < 0.12
    assert 0.97 < measured["cosine"] < 0.99


def test_a_null_that_no_feedback_matrix_touches_is_not_invented(tmp_path):
    """FA at L = 2: the only deep block gets the exact gradient, so fresh matrices change nothing there."""
    assert train.run(RunSpec(method="fa", **TINY), Store(tmp_path)).final["fresh_null"] is None
    assert train.run(RunSpec(method="dfa", **TINY), Store(tmp_path)).final["fresh_null"]["std"] > 0


def test_a_run_that_left_the_finite_numbers_says_so():
    assert not as_record(method="dfa").diverged
    assert as_record(method="dfa", final={"h_norm": [1.0, 1.0, 1.0, 1.0, None]}).diverged
    gone = as_record(method="dfa", epochs=2, epochs_data={"train_loss": [2.0, None]})
    assert gone.diverged and "Diverged" in Runs([gone.spec], [gone], "paper").provenance_note()


def test_a_run_that_overflows_is_a_result(tmp_path):
    """Recorded and readable like any other, and flagged."""
    store, spec = Store(tmp_path), RunSpec(method="dfa", **TINY | {"lr": 1.0, "epochs": 2})
    initial = train.Training.complete

    def explode(training, progress):
        training.stack.buffers.flat.mul_(1e30)
        return initial(training, progress)

    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(train.Training, "complete", explode)
        train.run(spec, store)
    assert store.get(spec).diverged and store.missing([spec]) == []
