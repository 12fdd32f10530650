"""The identity check as data: one row per seed in outputs/<profile>/identity.json.

A row has the study's three quantities and how the stack gets there, block after block. Rows are filed under the shape
that was measured (`d256_L4`, the name of the parameter set; other data than CIFAR-10 are named too), so a smoke run
is never taken for the study's. Rows of another recipe than this code's are passed over, as records are.
"""

from pathlib import Path
from typing import Annotated, Any, Self

import pandas as pd
from pydantic import BaseModel, ConfigDict, Field, model_validator

from creditaudit import paths
from creditaudit.engine.settings import RECIPE
from creditaudit.runs.files import conforming, read_checked

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
