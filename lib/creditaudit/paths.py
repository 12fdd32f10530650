"""Where things live. Everything hangs off the project root."""

import os
from pathlib import Path

ROOT = Path(os.environ.get("CREDITAUDIT_ROOT") or Path(__file__).parents[2]).resolve()
NOTEBOOKS = ROOT / "notebooks"
PARAMS = ROOT / "params"
OUTPUTS = ROOT / "outputs"
PAPER = ROOT / "paper"
DATA = ROOT / "data"
INTERACTIVE = "interactive"  # the profile of whatever a person tries out in Jupyter
RUNNER = "CREDITAUDIT_RUNNER"  # the environment variable by which a notebook knows that it is executed by papermill


def profile_dir(profile: str) -> Path:
    """The folder that holds everything one profile produces."""
    return OUTPUTS / profile


def at_play() -> bool:
    """True in a notebook that a person runs; false under the notebook runner."""
    return not os.environ.get(RUNNER)


def products_dir(profile: str) -> Path:
    """Where a notebook saves what it makes: a person at play must not overwrite a profile's committed results."""
    return profile_dir(INTERACTIVE if at_play() else profile)


def shown(path: Path) -> str:
    """A path as a person (or a committed file) should see it: relative to the project."""
    return str(path.relative_to(ROOT)) if path.is_relative_to(ROOT) else str(path)
