"""Run records: one checksummed JSON file per finished run.

A record holds every number a section may ask of its run, and where that number came from. Weights are not
kept.
"""

import math
import sys
from collections.abc import Iterable
from dataclasses import dataclass
from functools import cache
from pathlib import Path
from typing import Any

from creditaudit import paths
from creditaudit.engine import catalogue
from creditaudit.engine.settings import RECIPE
from creditaudit.engine.spec import RunSpec, SpecError
from creditaudit.runs import schema
from creditaudit.runs.files import RecordError, checked, text_of, write_checked

TRAJECTORIES = ("train_loss", "test_loss", "h_norm", "g_norm")  # infinite, or no number, once a run has diverged


@dataclass(frozen=True)
class Record:
    """What one run left behind. `epochs` are trajectories, `final` the full diagnostics."""

    spec: RunSpec
    epochs: dict[str, list]
    final: dict[str, Any]
    provenance: dict[str, Any]

    @property
    def diverged(self) -> bool:
        """Whether the run left the finite numbers: a loss, or a norm of a state or gradient, that is none."""
        followed = [self.epochs[name] for name in TRAJECTORIES if name in self.epochs]
        return _has_gap([*followed, self.final["h_norm"], self.final["g_norm"]])

    def to_json(self) -> dict[str, Any]:
        return {
            "key": self.spec.key,
            "recipe": RECIPE,
            "spec": self.spec.model_dump(),
            "epochs": self.epochs,
            "final": self.final,
            "provenance": self.provenance,
        }


class Store:
    """The records of one profile: `outputs/<profile>/runs/*.json`."""

    def __init__(self, profile_dir: Path) -> None:
        self.folder = Path(profile_dir) / "runs"

    def path(self, spec: RunSpec) -> Path:
        return self.folder / f"{spec.key}.json"

    def get(self, spec: RunSpec) -> Record | None:
        """The record of a run, or None where it has not finished."""
        path = self.path(spec)
        record = load(path) if path.exists() else None
        return None if record is None or _is_outdated(record) else record

    def all(self) -> list[Record]:
        """Every record of this recipe; those of another one, or of rules that are gone or changed, are passed over."""
        records = (load(path, skip_other_recipes=True) for path in sorted(self.folder.glob("*.json")))
        return [record for record in records if record is not None and not _is_outdated(record)]

    def missing(self, specs: Iterable[RunSpec]) -> list[RunSpec]:
        """The runs that still have to be trained, each once, in the order given; a damaged record is an error."""
        return [spec for spec in dict.fromkeys(specs) if self.get(spec) is None]

    def save(self, record: Record) -> None:
        write_checked(self.path(record.spec), record.to_json())


def load(path: Path, skip_other_recipes: bool = False) -> Record | None:
    """Read one record, refusing one that was edited, cut short, renamed, or holds what no run leaves behind.

    One made by another recipe is refused too, or is None where that is allowed.
    """
    return parse(text_of(path), path, skip_other_recipes)


def parse(text: str, path: Path, skip_other_recipes: bool = False) -> Record | None:
    """The same of what stands in that file, or is to."""
    body = checked(text, path)
    if (recipe := body.get("recipe")) != RECIPE:
        if skip_other_recipes and isinstance(recipe, int):
            return None
        raise RecordError(path, f" was made by recipe {recipe!r}, this is recipe {RECIPE}")
    method = body["spec"].get("method") if isinstance(body.get("spec"), dict) else None
    if isinstance(method, str) and method not in catalogue.entries():
        gone = f"no file in {paths.shown(catalogue.FOLDER)} holds the rule {method!r}"
        if skip_other_recipes:
            _say_once(f"records of {method!r} in {paths.shown(path.parent)} are set aside: {gone}")
            return None
        raise RecordError(path, f" is of another code: {gone}", "bring it back, or delete {} to have it made again")
    try:
        spec = RunSpec(**body["spec"])
    except (SpecError, KeyError, TypeError) as error:
        newer = "if newer code made it, update this clone; otherwise delete {} to have it made again"
        raise RecordError(path, f" is of no run that this code knows ({error})", newer) from None
    if not spec.key == body.get("key") == path.stem:
        raise RecordError(path, f" holds the run {spec.key}: it was renamed or copied over another")
    if fault := schema.fault(body, spec.depth, spec.epochs):
        raise RecordError(path, f" is not the record of its run ({fault})")
    return Record(spec, body["epochs"], body["final"], body["provenance"])


def _is_outdated(record: Record) -> bool:
    """Made by other code of its rule than there is now: such numbers are nobody's."""
    method = record.spec.method
    if record.provenance.get("rule") == catalogue.digest(method):
        return False
    _say_once(f"records of {method!r} made by an earlier version of its code are set aside: they will be trained again")
    return True


@cache
def _say_once(sentence: str) -> None:
    print(sentence, file=sys.stderr, flush=True)


def _has_gap(numbers: list) -> bool:
    """Whether a number is missing anywhere in nested lists."""
    return any(_has_gap(each) if isinstance(each, list) else each is None for each in numbers)


def plain(value: Any) -> Any:
    """Tensors and arrays as JSON numbers; what is not finite becomes null."""
    if isinstance(value, dict):
        return {str(name): plain(item) for name, item in value.items()}
    value = value.tolist() if hasattr(value, "tolist") else value
    if isinstance(value, list | tuple):
        return [plain(item) for item in value]
    return None if isinstance(value, float) and not math.isfinite(value) else value
