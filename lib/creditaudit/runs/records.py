"""Run records: one checksummed JSON file per finished run.

A record holds every number a section may ask of its run, and where that number came from. Weights are not
kept. A file is written under a temporary name and renamed, so a record either exists whole or not at all.
"""

import hashlib
import json
import math
import os
import platform
import shutil
import sys
import time
from collections.abc import Iterable, Iterator
from contextlib import contextmanager, suppress
from dataclasses import dataclass
from functools import cache
from pathlib import Path
from typing import Any

import numpy as np
from filelock import FileLock, Timeout
from pydantic import TypeAdapter, ValidationError

from creditaudit import paths
from creditaudit.engine import catalogue
from creditaudit.engine.spec import RECIPE, RunSpec, SpecError
from creditaudit.mistakes import Mistake
from creditaudit.runs import schema

TRAJECTORIES = ("train_loss", "test_loss", "h_norm", "g_norm")  # infinite, or no number, once a run has diverged
SCRATCH = ".scratch"
SILENT = 3600.0  # seconds after which nobody can still be writing


class Unwritable(Mistake, OSError):
    """A file cannot be written: disk full, read-only, a folder in its place; the message says which and why."""


class RecordError(Mistake, RuntimeError):
    """A record cannot be believed; the message says which file and what to do."""


@dataclass(frozen=True)
class Record:
    """What one run left behind. `epochs` are trajectories, `final` the full diagnostics."""

    spec: RunSpec
    epochs: dict[str, list]
    final: dict[str, Any]
    provenance: dict[str, Any]

    @property
    def diverged(self) -> bool:
        """Whether the run left the finite numbers: a loss, or a norm of a state or gradient, that is none."""
        followed = [self.epochs[name] for name in TRAJECTORIES if name in self.epochs]
        return _has_gap([*followed, self.final["h_norm"], self.final["g_norm"]])

    def to_json(self) -> dict[str, Any]:
        return {
            "key": self.spec.key,
            "recipe": RECIPE,
            "spec": self.spec.model_dump(),
            "epochs": self.epochs,
            "final": self.final,
            "provenance": self.provenance,
        }


def checksum(body: dict[str, Any]) -> str:
    """Over everything but the checksum itself, so an edited number is noticed."""
    content = {name: value for name, value in body.items() if name != "sha256"}
    return hashlib.sha256(json.dumps(content, sort_keys=True, allow_nan=False).encode()).hexdigest()


class Store:
    """The records of one profile: `outputs/<profile>/runs/*.json`."""

    def __init__(self, profile_dir: Path) -> None:
        self.folder = Path(profile_dir) / "runs"

    def path(self, spec: RunSpec) -> Path:
        return self.folder / f"{spec.key}.json"

    def get(self, spec: RunSpec) -> Record | None:
        """The record of a run, or None where it has not finished."""
        path = self.path(spec)
        record = load(path) if path.exists() else None
        return None if record is None or _is_outdated(record) else record

    def all(self) -> list[Record]:
        """Every record of this recipe; those of another one, or of rules that are gone or changed, are passed over."""
        records = (load(path, skip_other_recipes=True) for path in sorted(self.folder.glob("*.json")))
        return [record for record in records if record is not None and not _is_outdated(record)]

    def missing(self, specs: Iterable[RunSpec]) -> list[RunSpec]:
        """The runs that still have to be trained, each once, in the order given; a damaged record is an error."""
        return [spec for spec in dict.fromkeys(specs) if self.get(spec) is None]

    def save(self, record: Record) -> Path:
        path = self.path(record.spec)
        write_checked(path, record.to_json())
        return path


def load(path: Path, skip_other_recipes: bool = False) -> Record | None:
    """Read one record, refusing one that was edited, cut short, renamed, or holds what no run leaves behind.

    One made by another recipe is refused too, or is None where that is allowed.
    """
    body, where = read_checked(path), paths.shown(path)
    remedy = f"delete {where} to have the run trained again"
    if (recipe := body.get("recipe")) != RECIPE:
        if skip_other_recipes and isinstance(recipe, int):
            return None
        raise RecordError(f"{where} was made by recipe {recipe!r}, this is recipe {RECIPE}; {remedy}")
    method = body["spec"].get("method") if isinstance(body.get("spec"), dict) else None
    if isinstance(method, str) and method not in catalogue.entries():
        gone = f"no file in {paths.shown(catalogue.FOLDER)} holds the rule {method!r}"
        if skip_other_recipes:
            _say_once(f"records of {method!r} in {paths.shown(path.parent)} are set aside: {gone}")
            return None
        raise RecordError(f"{where} is of another code: {gone}; bring it back, or {remedy}")
    try:
        spec = RunSpec(**body["spec"])
    except (SpecError, KeyError, TypeError) as error:
        raise RecordError(f"{where} is of no run that this code knows ({error}); {remedy}") from None
    if not spec.key == body.get("key") == path.stem:
        raise RecordError(f"{where} holds the run {spec.key}: it was renamed or copied over another; {remedy}")
    if fault := schema.fault(spec, body):
        raise RecordError(f"{where} is not the record of its run ({fault}); {remedy}")
    return Record(spec, body["epochs"], body["final"], body["provenance"])


def _is_outdated(record: Record) -> bool:
    """Made by other code of its rule than there is now: such numbers are nobody's."""
    method = record.spec.method
    if record.provenance.get("rule") == catalogue.digest(method):
        return False
    _say_once(f"records of {method!r} made by an earlier version of its code are set aside: they will be trained again")
    return True


@cache
def _say_once(sentence: str) -> None:
    print(sentence, file=sys.stderr, flush=True)


def read_checked(path: Path) -> dict[str, Any]:
    """A JSON object that carries its own checksum; the checksum itself is left out of what is returned."""
    where = paths.shown(path)
    remedy = f"delete {where} to have it made again"
    try:
        body = json.loads(path.read_text("utf-8"), parse_constant=_no_number)
        claimed = body.pop("sha256", None) if isinstance(body, dict) else None
        actual = checksum(body) if claimed else ""
    except (ValueError, OSError, RecursionError) as error:  # no text, no JSON, no file, 1e999, a thousand brackets
        raise RecordError(f"{where} is not valid JSON ({error}); {remedy}") from None
    if not claimed or claimed != actual:
        raise RecordError(f"{where} does not match its checksum: a number in it was changed by hand; {remedy}")
    return body


def conforming(kind: Any, content: Any, path: Path) -> Any:
    """What was read from a file as a value of this type, or an error that names the place in the file."""
    try:
        return TypeAdapter(kind).validate_python(content)
    except ValidationError as error:
        problem, where = error.errors()[0], paths.shown(path)
        place = ", ".join([where, *map(str, problem["loc"])])
        raise RecordError(f"{place}: {problem['msg'].lower()}; delete {where} to have it made again") from None


def _no_number(word: str) -> None:
    raise ValueError(f"{word} is no number")


def checked_text(body: dict[str, Any]) -> str:
    return json.dumps(body | {"sha256": checksum(body)}, indent=1, sort_keys=True, allow_nan=False) + "\n"


def write_checked(path: Path, body: dict[str, Any]) -> None:
    write_atomically(path, checked_text(body))


def write_atomically(path: Path, *content: str | bytes | memoryview) -> None:
    """The file is there whole, or as it was before; what cannot be written leaves nothing behind but a sentence."""
    scratch = scratch_path(path)
    try:
        path.parent.mkdir(parents=True, exist_ok=True)
        try:
            with scratch.open("wb") as file:
                for part in content:
                    file.write(part.encode() if isinstance(part, str) else part)
                file.flush()
                os.fsync(file.fileno())  # its checkpoint is removed next
            scratch.replace(path)
        finally:
            scratch.unlink(missing_ok=True)
    except OSError as error:
        raise _unwritable(path, error) from None


def _unwritable(path: Path, error: OSError) -> Unwritable:
    return Unwritable(
        f"{paths.shown(path)} cannot be written ({error.strerror or error}): mend that, and the same command goes on; "
        "what was finished before is kept"
    )


def scratch_path(path: Path) -> Path:
    """Where this process prepares a file or a folder of that name."""
    return path.with_name(f".{path.name}.{os.getpid()}@{platform.node()}{SCRATCH}")


@contextmanager
def scratch_folder(target: Path) -> Iterator[Path]:
    """A folder beside the target for what is prepared in several files; gone afterwards."""
    folder = scratch_path(target)
    try:
        folder.mkdir(parents=True, exist_ok=True)
    except OSError as error:
        raise _unwritable(folder, error) from None
    try:
        yield folder
    finally:
        shutil.rmtree(folder, ignore_errors=True)


def sweep_scratch(folder: Path) -> None:
    """Remove what killed processes had begun to write, anywhere in the folder."""
    for path in list(folder.rglob(f".*{SCRATCH}")):
        if _is_abandoned(path):
            shutil.rmtree(path, ignore_errors=True) if path.is_dir() else path.unlink(missing_ok=True)


def _is_abandoned(scratch: Path) -> bool:
    """Its process is gone; of another machine's (on a shared disk) only that it has been silent for long is known."""
    pid, _, machine = scratch.name.removesuffix(SCRATCH).rpartition(".")[2].partition("@")
    with suppress(OSError):
        if time.time() - scratch.stat().st_mtime > SILENT:
            return True
    if machine != platform.node() or not pid.isdigit():
        return False
    try:
        os.kill(int(pid), 0)
    except ProcessLookupError:
        return True
    except OSError:
        return False
    return False


@contextmanager
def locked(path: Path, busy: str = "") -> Iterator[None]:
    """Whoever changes this file or folder holds its lock; the next one waits, and says `busy`."""
    lock = FileLock(path.with_name(f".{path.name}.lock"))
    try:
        path.parent.mkdir(parents=True, exist_ok=True)
        lock.acquire(blocking=False)
    except Timeout:
        if busy:
            print(busy, file=sys.stderr, flush=True)
        lock.acquire()
    except OSError as error:
        raise _unwritable(path, error) from None
    try:
        yield
    finally:
        lock.release()


def _has_gap(numbers: list) -> bool:
    """Whether a number is missing anywhere in nested lists."""
    return any(_has_gap(each) if isinstance(each, list) else each is None for each in numbers)


def plain(value: Any) -> Any:
    """Tensors and arrays as JSON numbers; what is not finite becomes null."""
    if isinstance(value, dict):
        return {str(name): plain(item) for name, item in value.items()}
    if hasattr(value, "tolist") and not np.isscalar(value):
        value = value.tolist()
    if isinstance(value, (list, tuple)):
        return [plain(item) for item in value]
    if isinstance(value, (float, np.floating)):
        return float(value) if math.isfinite(value) else None
    return int(value) if isinstance(value, np.integer) else value
