"""What `make verify-paper` found: a row per retrained run in outputs/<profile>/verified.json, kept beside the records.

Equal bits say that a record is what this code makes. The core-seconds of both trainings are kept as well: the records
were made while the machine did other things too, which costs core-seconds without changing a bit.
"""

from collections import Counter
from collections.abc import Collection, Iterable, Sequence
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Literal

from creditaudit import paths
from creditaudit.records import Record, locked, read_checked, write_checked
from creditaudit.report import digits
from creditaudit.spec import RECIPE, RunSpec

FILE = "verified.json"
Outcome = Literal["bit-equal", "within tolerance", "different"]
# On another kind of CPU the last bits differ, and training may amplify them. As far as was tried it hardly does, so
# this is generous: accuracy, and log10 of ||h_L||.
ACCURACY_TOLERANCE, DECADES = 0.02, 0.5
FASTER = 95.0  # % of the recorded core-time, below which a repeated training counts as faster


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
    decades_off: float | None = 0.0  # of ||h_L||; None: one of them overflowed


def compared(
    record: Record, again: Record, outcome: Outcome, accuracy_off: float = 0.0, decades_off: float | None = 0.0
) -> Retrained:
    then, now = record.provenance, again.provenance
    seconds = then["cpu_seconds"], now["cpu_seconds"]
    return Retrained(record.spec.key, outcome, *seconds, now["cpu"], now["commit"], accuracy_off, decades_off)


def rows(profile: str) -> list[Retrained]:
    """Every row of this recipe, oldest first; a run may have several."""
    path = _path(profile)
    content = read_checked(path) if path.exists() else {}
    return [Retrained(**row) for row in content["rows"]] if content.get("recipe") == RECIPE else []


def add(profile: str, new: Sequence[Retrained]) -> Path:
    path = _path(profile)
    with locked(path):
        write_checked(path, {"recipe": RECIPE, "rows": [asdict(row) for row in [*rows(profile), *new]]})
    return path


def _path(profile: str) -> Path:
    return paths.profile_dir(profile) / FILE


def told(profile: str, records: Iterable[Record], ladder: Collection[RunSpec], workers: int) -> str:
    """How retrained runs compared, and what the ladder takes at the pace of those that belong to it."""
    made = {record.spec.key: record.provenance for record in records}
    seconds = {key: origin["cpu_seconds"] for key, origin in made.items()}
    kept = [row for row in rows(profile) if row.recorded_core_seconds == seconds.get(row.key)]  # of today's records
    if not kept:
        return ""
    outcomes = Counter(row.outcome for row in kept)
    counts = ", ".join(f"{count} {outcome}" for outcome, count in outcomes.items() if outcome != "within tolerance")
    parts = [counts, _elsewhere([row for row in kept if row.outcome == "within tolerance"])]
    said = f" Trainings repeated from scratch (`make verify-paper`), against their records: {_joined(parts)}."
    asked = {spec.key for spec in ladder}
    own = [row for row in kept if row.key in asked and row.cpu == made[row.key]["cpu"]]
    if not own or not asked <= made.keys():
        return said
    shares = [100 * row.core_seconds / row.recorded_core_seconds for row in own]
    pace = sum(row.core_seconds for row in own) / sum(row.recorded_core_seconds for row in own)
    hours = pace * sum(seconds[key] for key in asked) / workers / 3600
    faster = max(shares) < FASTER
    why = ", which were made while other work shared the cores and their caches" if faster else ""
    return (
        f"{said} Those of the ladder on the same kind of CPU (n = {len(own)}) took {min(shares):.0f} to "
        f"{max(shares):.0f} % of the core-time in the records{why}; at that mean pace {workers}"
        f"{' undisturbed' * faster} cores would train all {len(asked)} in {hours:.3g} hours."
    )


def _elsewhere(rows: Sequence[Retrained]) -> str:
    """Another kind of CPU rounds otherwise: how far the runs came out from their records."""
    if not rows:
        return ""
    accuracy, decades = (max(getattr(row, name) for row in rows) for name in ("accuracy_off", "decades_off"))
    kinds = ", ".join(sorted({row.cpu for row in rows}))
    return (
        f"{len(rows)} within tolerance ({ACCURACY_TOLERANCE:g} in accuracy, a factor of {10**DECADES:.2g} in the last "
        f"norm) where bits cannot be equal (another kind of CPU or torch: {kinds}), off by at most {accuracy:.1g} in "
        f"accuracy and {digits(100 * (10**decades - 1))} % in that norm"
    )


def _joined(parts: Sequence[str]) -> str:
    return ", ".join(part for part in parts if part)
