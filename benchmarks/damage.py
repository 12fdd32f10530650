"""What happens to files between two commands, and to numbers in a run: cut, turned, overflowed."""

import io
import random
import shutil
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from contextlib import redirect_stderr, redirect_stdout, suppress
from pathlib import Path

from benchmarks.outcome import Fault
from benchmarks.victims import Project
from creditaudit import paths
from creditaudit.engine import catalogue
from creditaudit.engine.spec import RunSpec
from creditaudit.runs import fetch, identity_rows, records, sweep, train
from creditaudit.runs.files import RecordError
from creditaudit.runs.records import Store
from creditaudit.study import retraining


def damaged(content: bytes, rng: random.Random) -> bytes:
    """Cut short, or one bit turned."""
    at = rng.randrange(len(content))
    if rng.random() < 0.5:
        return content[:at]
    return content[:at] + bytes([content[at] ^ 1 << rng.randrange(8)]) + content[at + 1 :]


def damage_records(times: int, project: Project, rng: random.Random) -> Fault:
    """A record is refused, or says what it said: never another number. Deleted, as told, its run is trained again."""
    fault = Fault("record cut or bit turned")
    for _ in range(times):
        path = rng.choice(sorted(project.store.folder.glob("*.json")))
        whole = path.read_bytes()
        true = records.load(path)
        path.write_bytes(damaged(whole, rng))
        refused_or_true(fault, lambda path=path: records.load(path), true)
        path.write_bytes(whole)
    return fault


def refused_or_true(fault: Fault, read: Callable[[], object], true: object) -> None:
    try:
        fault.note(0, read() == true, "")
    except RecordError as error:
        fault.note(0, True, str(error))
    except Exception as error:
        fault.note(0, False, f"Traceback: {error!r}")


def damage_side_files(times: int, folder: Path, rng: random.Random) -> Fault:
    """What lies beside the paper's records, with a checksum: refused, or what it was."""
    fault, outputs = Fault("identity.json, verified.json cut or bit turned"), paths.OUTPUTS
    readers = {
        identity_rows.FILE: lambda: identity_rows.read(folder / "paper"),
        retraining.FILE: lambda: retraining.rows("paper"),
    }
    shutil.copytree(outputs / "paper", folder / "paper", ignore=lambda *_: {"runs", "notebooks", "figures", "tables"})
    paths.OUTPUTS = folder
    for _ in range(times):
        name = rng.choice(sorted(readers))
        path = folder / "paper" / name
        whole, true = path.read_bytes(), readers[name]()
        path.write_bytes(damaged(whole, rng))
        refused_or_true(fault, readers[name], true)
        path.write_bytes(whole)
    paths.OUTPUTS = outputs
    return fault


def damage_data(times: int, folder: Path, rng: random.Random) -> Fault:
    """Any file of the pictures: `make data`, which every campaign begins with, brings the true one back."""
    fault, source, fetched = Fault("data cut or bit turned"), paths.DATA / "cifar10", fetch.from_binary
    shutil.copytree(source, folder)
    fetch.from_binary = lambda _, names: ((name, (source / name).read_bytes()) for name in names)  # not the network
    for _ in range(times):
        path = rng.choice(sorted(path for path in folder.iterdir() if path.is_file()))
        true = path.read_bytes()
        path.write_bytes(damaged(true, rng))
        with redirect_stdout(io.StringIO()) as said:
            fetch.cifar10(folder)
        fault.note(0, path.read_bytes() == true, said.getvalue())
    fetch.from_binary = fetched
    return fault


def damage_checkpoints(times: int, folder: Path, rng: random.Random) -> Fault:
    """A damaged checkpoint costs its run a new start, never another number."""
    fault = Fault("checkpoint cut or bit turned")
    spec = RunSpec(method="dfa", width=16, depth=2, epochs=3, data="tiny", batch=64)
    true = train.run(spec, Store(folder / "true"))
    cut, train.CHECKPOINT_SECONDS = train.CHECKPOINT_SECONDS, 0.0

    def plug(key: str, epoch: int) -> None:
        if epoch == 2:
            raise KeyboardInterrupt

    for one in range(times):
        store = Store(folder / f"cut{one}")
        with suppress(KeyboardInterrupt):
            train.run(spec, store, plug)
        (checkpoint,) = store.folder.parent.glob("checkpoints/*.pt")
        checkpoint.write_bytes(damaged(checkpoint.read_bytes(), rng))
        try:
            with redirect_stderr(io.StringIO()) as said:
                again = train.run(spec, store)
            fault.note(0, (again.epochs, again.final) == (true.epochs, true.final), said.getvalue())
        except Exception as error:
            fault.note(0, False, f"Traceback: {error!r}")
        shutil.rmtree(store.folder.parent)
    train.CHECKPOINT_SECONDS = cut
    return fault


def diverging(folder: Path) -> Fault:
    """A run that overflows is a result, and nothing to its neighbours. No learning rate does it here: weights are."""
    fault, shape = Fault("run that diverges"), {"width": 16, "depth": 2, "epochs": 3, "data": "tiny", "batch": 64}
    wild = [RunSpec(method=method, seed=99, **shape) for method in catalogue.entries()]
    tame = RunSpec(method="bp", **shape)
    true, store = train.run(tame, Store(folder / "alone")), Store(folder / "together")
    sound, outputs = train.Training._train_epoch, paths.OUTPUTS

    def exploding(self: train.Training) -> dict[str, list]:
        if self.spec.seed == 99 and self.epoch == 1:
            self.stack.buffers.flat.mul_(1e30)
        return sound(self)

    train.Training._train_epoch, paths.OUTPUTS = exploding, folder / "worker"
    said = ""
    try:
        with ThreadPoolExecutor(1) as pool:
            sweep.train_all([*wild, tame], store, executor=pool)
    except sweep.RunsFailed as error:
        said = f"Traceback: {error}"
    finally:
        train.Training._train_epoch, paths.OUTPUTS = sound, outputs
    found = [record for spec in wild if (record := store.get(spec)) is not None]
    overflowed = sum(record.epochs["test_loss"][-1] is None for record in found)
    mine = store.get(tame)
    identical = mine is not None and (mine.epochs, mine.final) == (true.epochs, true.final)
    fault.note(len(wild) - len(found), identical, said or f"{overflowed} of {len(wild)} rules overflowed, all recorded")
    return fault
