"""The identity check, measured once: a seed that has a row in outputs/<profile>/identity.json is read, not measured."""

from collections.abc import Sequence
from pathlib import Path
from typing import Any

from creditaudit import paths
from creditaudit.engine.settings import RECIPE
from creditaudit.measure import identity
from creditaudit.runs import fetch
from creditaudit.runs.files import locked, write_checked
from creditaudit.runs.identity_rows import FILE, Rows, read, shape_key


def rows(width: int, depth: int, seeds: Sequence[int], profile: str, data: str = "cifar10") -> Rows:
    """One row per seed: read where it was measured before, else measured and kept."""
    path, key = paths.products_dir(profile) / FILE, shape_key(width, depth, data)
    known = read(paths.profile_dir(profile)).get(key, {}) | read(path.parent).get(key, {})
    unknown = [seed for seed in seeds if str(seed) not in known]
    if unknown:
        if data == "cifar10" and paths.at_play():
            fetch.cifar10()
        new = {str(seed): identity.measure(width, depth, seed, data) for seed in unknown}
        _merge(path, key, new)
        known |= new
    return {seed: known[str(seed)] for seed in seeds}


def _merge(path: Path, key: str, new: dict[str, Any]) -> None:
    """Add rows under a lock: two notebooks may write at the same time, and a reader never sees half a file."""
    with locked(path):
        shapes = read(path.parent)
        shapes[key] = shapes.get(key, {}) | new
        write_checked(path, {"recipe": RECIPE, "shapes": shapes})
