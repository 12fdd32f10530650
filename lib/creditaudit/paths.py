"""Where things live. Everything hangs off the project root."""

import os
from pathlib import Path

ROOT = Path(os.environ.get("CREDITAUDIT_ROOT") or Path(__file__).resolve().parents[2])
NOTEBOOKS = ROOT / "notebooks"
PARAMS = ROOT / "params"
OUTPUTS = ROOT / "outputs"
PAPER = ROOT / "paper"
DATA = ROOT / "data"


def profile_dir(profile: str) -> Path:
    """The folder that holds everything one profile produces."""
    return OUTPUTS / profile


def shown(path: Path) -> str:
    """A path as a person (or a committed file) should see it: relative to the project."""
    return str(path.relative_to(ROOT)) if path.is_relative_to(ROOT) else str(path)
