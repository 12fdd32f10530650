"""Runs, records, resume: what is promised about a run from spec to file."""

import json
import threading
import time
from concurrent.futures import Future

import pytest
import torch

from creditaudit import identity, records, sweep, train
from creditaudit import spec as spec_module
from creditaudit.records import RecordError, Store
from creditaudit.spec import RunSpec, SpecError

TINY = {"width": 16, "depth": 2, "epochs": 4, "data": "tiny", "batch": 64}


def content(record: records.Record) -> str:
    """All numbers of a record; its provenance (times, commit) is not part of the result."""
    return json.dumps([record.epochs, record.final], sort_keys=True)


def test_an_interrupted_run_continues_to_the_same_bits(tmp_path, monkeypatch):
    spec = RunSpec(method="fa", **TINY)
    whole = train.run(spec, Store(tmp_path / "whole"))
    monkeypatch.setattr(train, "CHECKPOINT_SECONDS", 0.0)

    def pull_the_plug(spec, epoch, accuracy):
        if epoch == 2:
            raise KeyboardInterrupt

    with pytest.raises(KeyboardInterrupt):
        train.run(spec, Store(tmp_path / "cut"), pull_the_plug)
    seen = []
    resumed = train.run(spec, Store(tmp_path / "cut"), lambda spec, epoch, accuracy: seen.append(epoch))
    assert seen == [3, 4]
    assert content(resumed) == content(whole)
    assert not list((tmp_path / "cut" / "checkpoints").glob("*"))


def interrupted(specs, store, at=2):
    def pull_the_plug(spec, epoch, accuracy):
        if epoch == at:
            raise KeyboardInterrupt

    with pytest.raises(KeyboardInterrupt):
        train.run_stack(specs, store, pull_the_plug)


def test_who_trained_the_first_part_is_remembered(tmp_path, monkeypatch):
    spec, here = RunSpec(method="bp", **TINY), records.provenance()
    monkeypatch.setattr(train, "CHECKPOINT_SECONDS", 0.0)
    monkeypatch.setattr(train, "provenance", lambda: here | {"commit": "earlier"})
    interrupted([spec], Store(tmp_path), at=1)
    monkeypatch.setattr(train, "provenance", lambda: here)
    interrupted([spec], Store(tmp_path), at=3)
    found = train.run(spec, Store(tmp_path)).provenance
    assert [maker["commit"] for maker in found["resumed_from"]] == ["earlier"] and found["commit"] == here["commit"]
    assert "resumed_from" not in train.run(spec.but(seed=7), Store(tmp_path)).provenance


def test_a_checkpoint_serves_only_the_runs_it_is_of(tmp_path, monkeypatch):
    """Another stack that begins with the same run must not go on from these weights."""
    monkeypatch.setattr(train, "CHECKPOINT_SECONDS", 0.0)
    first, second, third = (RunSpec(method="dfa", seed=seed, **TINY) for seed in (1, 2, 3))
    interrupted([first, second], Store(tmp_path / "cut"))
    whole = train.run_stack([first, third], Store(tmp_path / "whole"))
    resumed = train.run_stack([first, third], Store(tmp_path / "cut"))
    assert [content(record) for record in resumed] == [content(record) for record in whole]


def test_a_damaged_checkpoint_costs_its_run_a_new_start_and_nothing_else(tmp_path, monkeypatch, capsys):
    monkeypatch.setattr(train, "CHECKPOINT_SECONDS", 0.0)
    spec, store = RunSpec(method="dfa", **TINY), Store(tmp_path)
    interrupted([spec], store)
    (checkpoint,) = (tmp_path / "checkpoints").glob("*.pt")
    checkpoint.write_bytes(checkpoint.read_bytes()[:500])
    assert content(train.run(spec, store)) == content(train.run(spec, Store(tmp_path / "whole")))
    assert "starts again" in capsys.readouterr().err


def test_half_a_checkpoint_is_swept_away_and_a_whole_one_kept(tmp_path, monkeypatch):
    monkeypatch.setattr(train, "CHECKPOINT_SECONDS", 0.0)
    spec, store = RunSpec(method="dfa", **TINY), Store(tmp_path)
    interrupted([spec], store)
    (whole,) = (tmp_path / "checkpoints").glob("*.pt")
    whole.with_suffix(".4242").write_bytes(b"half")
    train.sweep_scratch(store)
    assert list((tmp_path / "checkpoints").glob("*")) == [whole]
    train.sweep_scratch(Store(tmp_path / "nothing"))


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
    with records.locked(store.folder):
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
    with pytest.raises(sweep.RunsFailed, match=r"^all 1 runs failed:"):
        sweep.train_all([bad], store, jobs=1)


def test_a_killed_worker_is_told_in_a_sentence(tmp_path, monkeypatch):
    class Broken(sweep.ProcessPoolExecutor):
        def submit(self, *_, **__):
            lost = Future()
            lost.set_exception(sweep.BrokenExecutor("gone"))
            return lost

    monkeypatch.setattr(sweep, "ProcessPoolExecutor", Broken)
    runs = [RunSpec(method=method, width=16, depth=2, epochs=1, data="tiny") for method in ("bp", "fa")]
    with pytest.raises(sweep.WorkerKilled, match=r"the same command goes on$"):
        sweep.train_all(runs, Store(tmp_path), 1)
    with pytest.raises(sweep.WorkerKilled, match="goes on, with JOBS=1 in a part of the memory that 2 workers take"):
        sweep.train_all(runs, Store(tmp_path), 2)


def test_methods_with_one_seed_see_the_same_batches_and_weights(tmp_path):
    """Before the first update every method has the same network: its first-batch loss is the same."""
    from creditaudit import data
    from creditaudit.engine import Stack

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
    body["sha256"] = records.checksum(body)
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
    with pytest.raises(RecordError, match=r"delete .* to have it made again"):
        store.get(spec)


def test_a_gpu_that_is_not_there_is_said_to_be_missing(tmp_path, monkeypatch):
    monkeypatch.setattr("torch.cuda.is_available", lambda: False)
    with pytest.raises(sweep.NoDevice, match="no GPU"):
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
        ({"method": "backprop"}, "'bp', 'fa'"),
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
