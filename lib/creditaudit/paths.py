"""Where things live. Everything hangs off the project root."""

import os
import re
from collections.abc import Mapping
from pathlib import Path

from creditaudit.mistakes import Mistake, legible

ROOT = Path(os.environ.get("CREDITAUDIT_ROOT") or Path(__file__).parents[2]).resolve()
NOTEBOOKS = ROOT / "notebooks"
PARAMS = ROOT / "params"
OUTPUTS = ROOT / "outputs"
PAPER = ROOT / "paper"
DATA = ROOT / "data"
INTERACTIVE = "interactive"  # the profile of whatever a person tries out in Jupyter
RUNNER = "CREDITAUDIT_RUNNER"  # the environment variable by which a notebook knows that it is executed by papermill


def file_name(name: str, what: str) -> str:
    """The name, where it is one: it begins with a letter or digit and has no slashes, dots or blanks."""
    if not re.fullmatch(r"[A-Za-z0-9][A-Za-z0-9_-]{0,99}", name):
        raise Mistake(
            f"{what} {name!r}: a name here has only letters, digits, - and _, and begins with one of the first"
        )
    return name


def environment(inherited: Mapping[str, str]) -> dict[str, str]:
    """Of another process that is to run this very code in this project."""
    search = os.pathsep.join(filter(None, [str(Path(__file__).resolve().parents[1]), inherited.get("PYTHONPATH")]))
    return {**inherited, "PYTHONPATH": search, "CREDITAUDIT_ROOT": str(ROOT)}


def profile_dir(profile: str) -> Path:
    """The folder that holds everything one profile produces."""
    return OUTPUTS / file_name(profile, "profile")


def at_play() -> bool:
    """True in a notebook that a person runs; false under the notebook runner."""
    return not os.environ.get(RUNNER)


def products_dir(profile: str) -> Path:
    """Where a notebook saves what it makes: a person at play must not overwrite a profile's committed results."""
    return profile_dir(INTERACTIVE if at_play() else profile)


def shown(path: Path) -> str:
    """A path as a person (or a committed file) should see it: relative to the project."""
    return legible(str(path.relative_to(ROOT) if path.is_relative_to(ROOT) else path), also="")
