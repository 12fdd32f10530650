"""What `make verify-paper` found: a row per retrained run in outputs/<profile>/verified.json, kept beside the records.

Equal bits say that a record is what this code makes. The core-seconds of both trainings are kept as well: the records
were made while the machine did other things too, which costs core-seconds without changing a bit.
"""

from collections.abc import Sequence
from dataclasses import asdict, dataclass
from pathlib import Path

from creditaudit import paths
from creditaudit.engine.settings import RECIPE
from creditaudit.runs.compare import Comparison, Outcome
from creditaudit.runs.files import conforming, locked, read_checked, write_checked
from creditaudit.runs.records import Record

FILE = "verified.json"


@dataclass(frozen=True)
class Retrained:
    """One run, trained again and compared with its record."""

    key: str
    outcome: Outcome
    recorded_core_seconds: float
    core_seconds: float
    cpu: str
    commit: str
    accuracy_off: float = 0.0
    decades_off: float | None = 0.0  # of norms (of ||h_L|| alone in the oldest rows); None: one of them overflowed
    loss_off: float | None = 0.0  # relative


def retrained(record: Record, again: Record, found: Comparison) -> Retrained:
    then, now = record.provenance, again.provenance
    seconds = then["cpu_seconds"], now["cpu_seconds"]
    off = found.accuracy_off, found.decades_off, found.loss_off
    return Retrained(found.key, found.outcome, *seconds, now["cpu"], now["commit"], *off)


def rows(profile: str) -> list[Retrained]:
    """Every row of this recipe, oldest first; a run may have several."""
    path = _path(profile)
    content = read_checked(path) if path.exists() else {}
    return conforming(list[Retrained], content.get("rows"), path) if content.get("recipe") == RECIPE else []


def add(profile: str, new: Sequence[Retrained]) -> Path:
    path = _path(profile)
    with locked(path):
        write_checked(path, {"recipe": RECIPE, "rows": [asdict(row) for row in [*rows(profile), *new]]})
    return path


def _path(profile: str) -> Path:
    return paths.profile_dir(profile) / FILE
