"""Run records: one checksummed JSON file per finished run.

A record holds every number a section may ask of its run, and where that number came from. Weights are not
kept. A file is written under a temporary name and renamed, so a record either exists whole or not at all.
"""

import fcntl
import hashlib
import json
import math
import os
import platform
import subprocess
import sys
from collections.abc import Iterable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from functools import cache
from pathlib import Path
from typing import Any

import numpy as np
import torch

from creditaudit import paths
from creditaudit.spec import RECIPE, RunSpec


class RecordError(RuntimeError):
    """A record cannot be believed; the message says which file and what to do."""


@dataclass(frozen=True)
class Record:
    """What one run left behind. `epochs` are trajectories, `final` the full diagnostics."""

    spec: RunSpec
    epochs: dict[str, list]
    final: dict[str, Any]
    provenance: dict[str, Any]

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
        return load(path) if path.exists() else None

    def all(self) -> list[Record]:
        """Every record of this recipe; those of another one belong to other code and are passed over."""
        records = (load(path, skip_other_recipes=True) for path in sorted(self.folder.glob("*.json")))
        return [record for record in records if record is not None]

    def missing(self, specs: Iterable[RunSpec]) -> list[RunSpec]:
        """The runs that still have to be trained, each once, in the order given."""
        return [spec for spec in dict.fromkeys(specs) if not self.path(spec).exists()]

    def save(self, record: Record) -> Path:
        path = self.path(record.spec)
        write_checked(path, record.to_json())
        return path


def load(path: Path, skip_other_recipes: bool = False) -> Record | None:
    """Read one record, refusing one that was edited, cut short or renamed.

    One made by another recipe is refused too, or is None where that is allowed.
    """
    body, where = read_checked(path), paths.shown(path)
    remedy = f"delete {where} to have the run trained again"
    if body["recipe"] != RECIPE:
        if skip_other_recipes:
            return None
        raise RecordError(f"{where} was made by recipe {body['recipe']}, this is recipe {RECIPE}; {remedy}")
    spec = RunSpec(**body["spec"])
    if not spec.key == body["key"] == path.stem:
        raise RecordError(f"{where} holds the run {spec.key}: it was renamed or copied over another; {remedy}")
    return Record(spec, body["epochs"], body["final"], body["provenance"])


def read_checked(path: Path) -> dict[str, Any]:
    """A JSON object that carries its own checksum; the checksum itself is left out of what is returned."""
    where = paths.shown(path)
    remedy = f"delete {where} to have it made again"
    try:
        body = json.loads(path.read_text(), parse_constant=_no_number)
    except (ValueError, OSError) as error:  # bytes that are no text, text that is no JSON, a folder of that name
        raise RecordError(f"{where} is not valid JSON ({error}); {remedy}") from None
    if not isinstance(body, dict) or body.pop("sha256", None) != checksum(body):
        raise RecordError(f"{where} does not match its checksum: a number in it was changed by hand; {remedy}")
    return body


def _no_number(word: str) -> None:
    raise ValueError(f"{word} is no number")


def write_checked(path: Path, body: dict[str, Any]) -> None:
    text = json.dumps(body | {"sha256": checksum(body)}, indent=1, sort_keys=True, allow_nan=False)
    write_atomically(path, text + "\n")


def write_atomically(path: Path, text: str) -> None:
    path.parent.mkdir(parents=True, exist_ok=True)
    scratch = path.with_name(f".{path.name}.{os.getpid()}")
    with scratch.open("w") as file:
        file.write(text)
        file.flush()
        os.fsync(file.fileno())  # its checkpoint is removed next
    scratch.replace(path)


@contextmanager
def locked(path: Path, busy: str = "") -> Iterator[None]:
    """Whoever changes this file or folder holds its lock; the next one waits, and says `busy`."""
    path.parent.mkdir(parents=True, exist_ok=True)
    with path.with_name(f".{path.name}.lock").open("w") as held:  # never removed: a second lock file would be no lock
        try:
            fcntl.flock(held, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except BlockingIOError:
            if busy:
                print(busy, file=sys.stderr, flush=True)
            fcntl.flock(held, fcntl.LOCK_EX)
        yield


def plain(value: Any) -> Any:
    """Tensors and arrays as JSON numbers; what is not finite becomes null."""
    if isinstance(value, dict):
        return {str(name): plain(item) for name, item in value.items()}
    if isinstance(value, (torch.Tensor, np.ndarray)):
        value = value.tolist()
    if isinstance(value, (list, tuple)):
        return [plain(item) for item in value]
    if isinstance(value, (float, np.floating)):
        return float(value) if math.isfinite(value) else None
    return int(value) if isinstance(value, np.integer) else value


@cache
def provenance() -> dict[str, Any]:
    """What made this number: code, versions, machine."""
    return {
        "commit": _git("rev-parse", "HEAD") or "unknown",
        "dirty": bool(_git("status", "--porcelain", "--untracked-files=no", "--", "lib")),
        "python": platform.python_version(),
        "torch": str(torch.__version__),
        "numpy": np.__version__,
        "cpu": _cpu_name(),
        "device": "cpu",
    }


def _git(*arguments: str) -> str:
    try:
        done = subprocess.run(["git", "-C", str(paths.ROOT), *arguments], capture_output=True, text=True)
    except OSError:
        return ""
    return done.stdout.strip() if done.returncode == 0 else ""


def _cpu_name() -> str:
    info = Path("/proc/cpuinfo")
    lines = info.read_text().splitlines() if info.exists() else []
    names = [line.split(":", 1)[1].strip() for line in lines if line.startswith("model name")]
    capability = torch.backends.cpu.get_cpu_capability()
    return f"{names[0] if names else platform.processor()} ({capability})"
