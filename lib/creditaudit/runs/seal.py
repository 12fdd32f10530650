"""What decides a run's numbers, in digests: a worker elsewhere trains only for a campaign whose seal is its own."""

import hashlib
import json
from collections.abc import Iterable
from functools import cache
from importlib.metadata import PackageNotFoundError, version
from pathlib import Path

from creditaudit import paths
from creditaudit.engine.settings import RECIPE

PACKAGE = Path(__file__).parents[1]
ROOMS = ("engine", "measure", "runs")
NUMBERS = ("engine/**/*.py", "measure/diagnostics.py", "measure/rules.py", "runs/train.py")  # what a run's depend on
COMPUTING = ("torch", "numpy", "numba")  # installed may be another one than the lock says

Seal = dict[str, str]


@cache
def seal() -> Seal:
    """Of this process: made once, while the code on disk is the code in memory."""
    lock = paths.ROOT / "requirements.lock"
    files = (path for room in ROOMS for path in (PACKAGE / room).rglob("*") if path.is_file())
    return {
        "recipe": str(RECIPE),
        "code": _digest_of(sorted(path for path in files if "__pycache__" not in path.parts)),
        "requirements.lock": hashlib.sha256(lock.read_bytes()).hexdigest() if lock.exists() else "absent",
        **{f"installed {name}": _installed(name) for name in COMPUTING},
    }


def digest(of: Seal) -> str:
    """A name for a seal."""
    return hashlib.sha256(json.dumps(of, sort_keys=True).encode()).hexdigest()[:12]


def differences(ours: Seal, theirs: Seal) -> list[str]:
    """What differs, in words."""
    return [
        f"{name} ({ours.get(name, 'absent')[:12]} here, {theirs.get(name, 'absent')[:12]} there)"
        for name in sorted(ours.keys() | theirs.keys())
        if ours.get(name) != theirs.get(name)
    ]


@cache
def code_digest() -> str:
    """Which code made a number: of the engine, the diagnostics and the training loop."""
    return _digest_of(path for pattern in NUMBERS for path in sorted(PACKAGE.glob(pattern)))[:16]


def _digest_of(files: Iterable[Path]) -> str:
    found = hashlib.sha256()
    for path in files:
        found.update(f"{path.relative_to(PACKAGE).as_posix()}\0".encode() + path.read_bytes())
    return found.hexdigest()


def _installed(name: str) -> str:
    try:
        return version(name)
    except PackageNotFoundError:
        return "absent"
