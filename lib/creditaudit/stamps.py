"""Is a made file still what its inputs would make? A stamp beside it remembers a hash of all that went in."""

import hashlib
import json
from collections.abc import Iterable
from pathlib import Path
from typing import Any

from creditaudit.records import write_atomically


def stamp(files: Iterable[Path], *settings: Any) -> str:
    """A hash of these files, this package and these settings: everything that can change the result."""
    package = sorted(Path(__file__).resolve().parent.rglob("*.py"))
    contents = [[path.name, sha256(path)] for path in [*files, *package] if path.exists()]
    return hashlib.sha256(json.dumps([contents, settings], sort_keys=True).encode()).hexdigest()


def is_current(target: Path, inputs: str) -> bool:
    """Whether the file exists, came from these inputs and was not touched since."""
    beside = sidecar(target)
    if not (target.exists() and beside.exists()):
        return False
    return json.loads(beside.read_text()) == {"inputs": inputs, "output": sha256(target)}


def remember(target: Path, inputs: str) -> None:
    write_atomically(sidecar(target), json.dumps({"inputs": inputs, "output": sha256(target)}) + "\n")


def forget(target: Path) -> None:
    sidecar(target).unlink(missing_ok=True)


def sidecar(target: Path) -> Path:
    return target.parent / ".stamps" / f"{target.name}.json"


def sha256(path: Path) -> str:
    return hashlib.sha256(path.read_bytes()).hexdigest()
