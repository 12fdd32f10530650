"""Is a made file still what its inputs would make? A stamp beside it remembers a hash of all that went in."""

import hashlib
import json
import os
from collections.abc import Iterable
from contextlib import suppress
from pathlib import Path
from typing import Any

from creditaudit import paths
from creditaudit.runs.files import write_atomically


def stamp(files: Iterable[Path], *settings: Any) -> str:
    """A hash of these files, this package, its locked requirements and these settings."""
    package = [*sorted(Path(__file__).resolve().parents[1].rglob("*.py")), paths.ROOT / "requirements.lock"]
    contents = [[path.name, sha256(path)] for path in [*files, *package] if path.is_file()]
    return hashlib.sha256(json.dumps([contents, settings], sort_keys=True).encode()).hexdigest()


def is_current(target: Path, inputs: str) -> bool:
    """Whether the file and its by-products exist, came from these inputs and were not touched since.

    A stamp that is damaged in any way is no stamp: the file is made again.
    """
    try:
        noted = json.loads(sidecar(target).read_text("utf-8"))
        made = {target.parent / name: content for name, content in noted["made"].items()}
        return (
            target in made
            and noted["inputs"] == inputs
            and all(path.is_file() and content in (None, sha256(path)) for path, content in made.items())
        )
    except (OSError, ValueError, LookupError, TypeError, AttributeError, RecursionError):
        return False


def remember(target: Path, inputs: str, by_products: Iterable[Path] = (), shared: Iterable[Path] = ()) -> None:
    """`shared` by-products must exist, but others may add to them."""
    made = {os.path.relpath(path, target.parent): sha256(path) for path in (target, *by_products)}
    made |= {os.path.relpath(path, target.parent): None for path in shared}
    write_atomically(sidecar(target), json.dumps({"inputs": inputs, "made": made}, indent=1, sort_keys=True) + "\n")


def forget(target: Path) -> None:
    with suppress(OSError):  # what cannot be removed (a folder of that name) is no stamp either
        sidecar(target).unlink()


def sidecar(target: Path) -> Path:
    return target.parent / ".stamps" / f"{target.name}.json"


def sha256(path: Path) -> str:
    return hashlib.sha256(path.read_bytes()).hexdigest()
