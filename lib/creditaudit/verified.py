"""What `make verify-paper` found: a row per retrained run in outputs/<profile>/verified.json, kept beside the records.

Equal bits say that a record is what this code makes. The core-seconds of both trainings are kept as well: the records
were made while the machine did other things too, which costs core-seconds without changing a bit.
"""

from collections import Counter
from collections.abc import Iterable, Sequence
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Literal

from creditaudit import paths
from creditaudit.records import Record, read_checked, write_checked
from creditaudit.spec import RECIPE

FILE = "verified.json"
Outcome = Literal["bit-equal", "within tolerance", "different"]


@dataclass(frozen=True)
class Retrained:
    """One run, trained again and compared with its record."""

    key: str
    outcome: Outcome
    recorded_core_seconds: float
    core_seconds: float
    cpu: str
    commit: str


def compared(record: Record, again: Record, outcome: Outcome) -> Retrained:
    then, now = record.provenance, again.provenance
    return Retrained(record.spec.key, outcome, then["cpu_seconds"], now["cpu_seconds"], now["cpu"], now["commit"])


def rows(profile: str) -> list[Retrained]:
    """Every row of this recipe, oldest first; a run may have several."""
    path = _path(profile)
    content = read_checked(path) if path.exists() else {}
    return [Retrained(**row) for row in content["rows"]] if content.get("recipe") == RECIPE else []


def add(profile: str, new: Sequence[Retrained]) -> Path:
    path = _path(profile)
    write_checked(path, {"recipe": RECIPE, "rows": [asdict(row) for row in [*rows(profile), *new]]})
    return path


def _path(profile: str) -> Path:
    return paths.profile_dir(profile) / FILE


def told(profile: str, ladder: Iterable[Record], workers: int) -> str:
    """How the retrained runs compared, and what the ladder takes at the pace of those that belong to it."""
    kept, records = rows(profile), list(ladder)
    if not kept:
        return ""
    counts = Counter(row.outcome for row in kept)
    outcomes = ", ".join(f"{count} {outcome}" for outcome, count in counts.items())
    said = f" Runs trained again from scratch and compared (`make verify-paper`): {outcomes}."
    core, cpu = ({r.spec.key: r.provenance[name] for r in records} for name in ("cpu_seconds", "cpu"))
    own = [row for row in kept if row.cpu == cpu.get(row.key)]  # another kind of CPU has another pace
    if not own:
        return said
    pace = sum(row.core_seconds for row in own) / sum(row.recorded_core_seconds for row in own)
    return (
        f"{said} Those of the ladder (n = {len(own)}) took {pace:.0%} of the core-time in their records, a pace at "
        f"which all {len(core)} take {workers} workers {pace * sum(core.values()) / workers / 3600:.3g} hours."
    )
