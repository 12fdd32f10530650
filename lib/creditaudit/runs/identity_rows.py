"""The identity check, measured once: one row per seed in outputs/<profile>/identity.json.

A row has the study's three quantities and how the stack gets there, block after block. Rows are filed under the shape
that was measured (`d256_L4`, the name of the parameter set; other data than CIFAR-10 are named too), so a smoke run
is never taken for the study's. Rows of another recipe than this code's are passed over, as records are.
"""

from collections.abc import Sequence
from pathlib import Path
from typing import Annotated, Any, Self

import pandas as pd
from pydantic import BaseModel, ConfigDict, Field, model_validator

from creditaudit import paths
from creditaudit.engine.settings import RECIPE
from creditaudit.runs.files import conforming, locked, read_checked, write_checked

FILE = "identity.json"
Rows = dict[int, dict[str, Any]]
_Finite = Annotated[float, Field(allow_inf_nan=False)]


class _Row(BaseModel):
    """One seed: the study's three quantities, and the way there."""

    model_config = ConfigDict(strict=True)

    block_ratio: list[_Finite]
    deviation: _Finite
    cosine: _Finite
    deviation_by_depth: list[_Finite]
    cosine_by_depth: list[_Finite]

    @model_validator(mode="after")
    def _of_one_depth(self) -> Self:
        if not len(self.block_ratio) + 1 == len(self.deviation_by_depth) == len(self.cosine_by_depth):
            raise ValueError("its lists are of networks of different depth")
        return self


_Shapes = dict[str, dict[Annotated[str, Field(pattern="^[0-9]+$")], _Row]]


def shape_key(width: int, depth: int, data: str = "cifar10") -> str:
    return f"d{width}_L{depth}" + ("" if data == "cifar10" else f"-{data}")


def stored(width: int, depth: int, profile: str, data: str = "cifar10") -> Rows:
    """The rows that exist; nothing is measured."""
    found = read(paths.profile_dir(profile)).get(shape_key(width, depth, data), {})
    return {int(seed): row for seed, row in found.items()}


def rows(width: int, depth: int, seeds: Sequence[int], profile: str, data: str = "cifar10") -> Rows:
    """One row per seed: read where it was measured before, else measured and kept."""
    path, key = paths.products_dir(profile) / FILE, shape_key(width, depth, data)
    known = read(paths.profile_dir(profile)).get(key, {}) | read(path.parent).get(key, {})
    if unknown := [seed for seed in seeds if str(seed) not in known]:
        from creditaudit.measure import identity  # late: torch
        from creditaudit.runs import fetch

        if data == "cifar10" and paths.at_play():
            fetch.cifar10()
        new = {str(seed): identity.measure(width, depth, seed, data) for seed in unknown}
        keep(path, key, new)
        known |= new
    return {seed: known[str(seed)] for seed in seeds}


def keep(path: Path, key: str, new: dict[str, Any]) -> None:
    """Add rows under a lock: two notebooks may write at the same time, and a reader never sees half a file."""
    with locked(path):
        shapes = read(path.parent)
        shapes[key] = shapes.get(key, {}) | new
        write_checked(path, {"recipe": RECIPE, "shapes": shapes})


def frame(measured: Rows) -> pd.DataFrame:
    """Tidy: one row per seed and layer l = 0..L; `ratio` is that of the block that leads from l to l + 1."""
    lines = [
        {"seed": seed, "layer": layer, "ratio": ratio, "deviation": deviation, "cosine": cosine}
        for seed, row in measured.items()
        for layer, (ratio, deviation, cosine) in enumerate(
            zip([*row["block_ratio"], None], row["deviation_by_depth"], row["cosine_by_depth"], strict=True)
        )
    ]
    return pd.DataFrame(lines)


def read(folder: Path) -> dict[str, dict[str, Any]]:
    """shape -> seed -> row, of this recipe."""
    path = folder / FILE
    content = read_checked(path) if path.exists() else {}
    if content.get("recipe") != RECIPE:
        return {}
    conforming(_Shapes, content.get("shapes"), path)
    return content["shapes"]
