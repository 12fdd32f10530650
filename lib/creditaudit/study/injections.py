"""What `make faults` found: a row per fault in outputs/<profile>/faults.json, kept beside the records."""

from dataclasses import asdict, dataclass
from pathlib import Path

from creditaudit import paths
from creditaudit.runs.files import conforming, locked, read_checked, write_checked

FILE = "faults.json"


@dataclass(frozen=True)
class Injected:
    """One fault: how often it was injected, how many finished runs were lost, and what the command said."""

    fault: str
    times: int
    lost: int
    identical: bool
    message: str
    commit: str


def rows(profile: str) -> list[Injected]:
    path = _path(profile)
    return conforming(list[Injected], read_checked(path).get("rows"), path) if path.exists() else []


def keep(profile: str, new: Injected) -> None:
    """In place of what was known of the same fault."""
    with locked(_path(profile)):
        others = [row for row in rows(profile) if row.fault != new.fault]
        write_checked(_path(profile), {"rows": [asdict(row) for row in [*others, new]]})


def _path(profile: str) -> Path:
    return paths.profile_dir(profile) / FILE
