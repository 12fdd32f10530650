"""Which code made a number: a digest of the files that a run's numbers can depend on."""

import hashlib
from functools import cache
from pathlib import Path

_PACKAGE = Path(__file__).resolve().parents[1]
_MEASURE = ("diagnostics.py", "rules.py")


@cache
def code_digest() -> str:
    """Of the engine, the diagnostics and the training loop."""
    files = [*sorted((_PACKAGE / "engine").rglob("*.py")), *(_PACKAGE / "measure" / name for name in _MEASURE)]
    digest = hashlib.sha256()
    for path in [*files, _PACKAGE / "runs/train.py"]:
        digest.update(f"{path.relative_to(_PACKAGE)}\0".encode() + path.read_bytes())
    return digest.hexdigest()[:16]
