"""Does this machine compute what the committed records hold? `make reproduce` answers with a certificate.

A profile's reference is a set of committed records (outputs/<profile>/reference) that no run ever writes. The runs
trained here are compared with it one by one; what comes out is kept in outputs/<profile>/certificate.json.
"""

import math
from collections import Counter
from collections.abc import Iterable
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any, Literal

import pandas as pd

from creditaudit import paths
from creditaudit.mistakes import Mistake
from creditaudit.runs import compare, identity_rows
from creditaudit.runs.compare import Comparison
from creditaudit.runs.files import RecordError, conforming, read_checked, write_checked
from creditaudit.runs.records import Record, Store, load
from creditaudit.runs.seal import code_digest

FILE, REFERENCE = "certificate.json", "reference"
MOST_SHOWN = 6  # runs named in the terminal
Verdict = Literal["certified", "differs", "incomplete"]


@dataclass(frozen=True)
class Certificate:
    """What was compared, where it was made, and how far apart it is."""

    profile: str
    verdict: Verdict
    machine: list[dict[str, Any]]  # CPU, versions and code of the runs made here; one entry unless they are a mixture
    reference: list[dict[str, Any]]  # the same of the committed records
    runs: list[Comparison]
    missing: list[str]  # runs of the reference that were not trained here
    outdated: list[str]  # trained here, by other code than today's
    identity_off: float | None  # largest difference in the identity check; None: a row was not measured here
    tolerance: dict[str, Any]
    core_seconds: float
    reference_core_seconds: float

    @property
    def outcomes(self) -> dict[str, int]:
        """How many runs came out how."""
        return dict(Counter(run.outcome for run in self.runs))

    @property
    def different(self) -> list[Comparison]:
        return [run for run in self.runs if run.outcome == "different"]

    def largest(self, name: str) -> float:
        """Of `accuracy_off`, `loss_off` or `decades_off`; infinite where only one of two records overflowed."""
        found = [getattr(run, name) for run in self.runs]
        return math.inf if None in found else max(found, default=0.0)

    @property
    def frame(self) -> pd.DataFrame:
        """The certificate as a small table."""
        here, there = ("; ".join(_made(maker) for maker in makers) for makers in (self.machine, self.reference))
        counts = ", ".join(f"{count} {outcome}" for outcome, count in self.outcomes.items())
        rows = {
            "verdict": self.verdict,
            "runs compared": f"{len(self.runs)} of {len(self.runs) + len(self.missing)}: {counts or 'none'}",
            "largest difference in accuracy": f"{self.largest('accuracy_off'):.2g}",
            "largest difference in loss": f"{100 * self.largest('loss_off'):.2g} %",
            "largest difference in log10 of a norm": f"{self.largest('decades_off'):.2g}",
            "identity check": "not measured" if self.identity_off is None else f"{self.identity_off:.2g}",
            "allowed on another kind of CPU": _allowed(),
            "trained here": here or "nothing",
            "the committed records": there,
        }
        return pd.DataFrame({"certificate": rows.keys(), f"profile {self.profile}": rows.values()})

    def lines(self) -> list[str]:
        """The last words of `make reproduce`."""
        total = len(self.runs) + len(self.missing)
        counts = ", ".join(f"{count} {outcome}" for outcome, count in self.outcomes.items())
        said = [f"certificate: {len(self.runs)} of {total} committed runs were trained here: {counts or 'none'}"]
        said += [f"  trained on {_made(maker)}" for maker in self.machine]
        said += [f"  committed: {_made(maker)}" for maker in self.reference]
        if set(self.outcomes) - {"bit-equal"}:
            said.append(
                f"  largest differences: {self.largest('accuracy_off'):.2g} in accuracy, "
                f"{100 * self.largest('loss_off'):.2g} % in loss, {self.largest('decades_off'):.2g} in log10 of norms"
                f" (allowed on another kind of CPU: {_allowed()})"
            )
        said += [f"  {run.sentence()}" for run in self.different[:MOST_SHOWN]]
        if len(self.different) > MOST_SHOWN:
            said.append(f"  and {len(self.different) - MOST_SHOWN} more that differ")
        if self.different:
            look = f"python -m creditaudit certificate --profile {self.profile} --run {self.different[0].key}"
            said.append(f"  to look closer: .venv/bin/{look}")
        if self.identity_off is None:
            said.append("  the identity check was not measured here")
        elif self.identity_off > compare.IDENTITY_TOLERANCE:
            said.append(
                f"  the identity check differs by {self.identity_off:.1e}, allowed {compare.IDENTITY_TOLERANCE:.0e}"
            )
        if self.outdated:
            said.append(
                f"  {len(self.outdated)} runs were trained by other code than today's, so they say nothing about it: "
                "`make clean` and the same command again"
            )
        if self.missing:
            few = ", ".join(self.missing[:3]) + (f" and {len(self.missing) - 3} more" if len(self.missing) > 3 else "")
            said.append(f"  not trained here: {few}; `make reproduce PROFILE={self.profile}` does")
        path = paths.shown(paths.profile_dir(self.profile) / FILE)
        return [*said, f"{self.verdict.upper()}: {_MEANING[self.verdict]} ({path})"]


_MEANING = {
    "certified": "this machine computes what the committed records hold",
    "differs": "this machine does not compute what the committed records hold",
    "incomplete": "what was compared agrees, but that was not everything",
}


def issue(profile: str) -> Certificate | None:
    """Compare and write it down; None where the profile has no reference."""
    committed = committed_records(profile)
    if not committed:
        return None
    store = Store(paths.profile_dir(profile))
    pairs = [(record, store.get(record.spec)) for record in committed]
    made = [again for _, again in pairs if again]
    compared = [compare.compare(record, again) for record, again in pairs if again]
    outdated = [again.spec.key for again in made if again.provenance.get("code") != code_digest()]
    missing = [record.spec.key for record, again in pairs if not again]
    off = _identity_off(profile)
    certificate = Certificate(
        profile,
        _verdict(compared, off, [*missing, *outdated]),
        _makers(made),
        _makers(committed),
        compared,
        missing,
        outdated,
        off,
        {
            "runs": asdict(compare.TOLERANCE),
            f"runs of {' and '.join(compare.AMPLIFYING)}": asdict(compare.AMPLIFIED),
            "identity check": compare.IDENTITY_TOLERANCE,
        },
        _core_seconds(made),
        _core_seconds(record for record, again in pairs if again),
    )
    write_checked(paths.profile_dir(profile) / FILE, asdict(certificate))
    return certificate


def certificate(profile: str) -> Certificate | None:
    """The one that was issued last; None before, and where the profile has no reference."""
    path = paths.profile_dir(profile) / FILE
    if not path.exists():
        return None
    return conforming(Certificate, read_checked(path), path)


def reference(profile: str) -> Store:
    """The committed records that a run of this profile is compared with."""
    return Store(reference_folder(profile))


def committed_records(profile: str) -> list[Record]:
    """Those of the reference; one that somebody changed is not to be made again here but brought back."""
    try:
        return reference(profile).all()
    except RecordError as error:
        where = paths.shown(reference_folder(profile))
        mend = f"it is a committed one: `git checkout {where}` brings it back"
        raise RecordError(error.path, error.why, mend) from None


def reference_folder(profile: str) -> Path:
    return paths.profile_dir(profile) / REFERENCE


def differences(profile: str, key: str) -> list[tuple[str, Any, Any]]:
    """(place, committed, here) wherever the record of a run differs from its reference."""
    stores = reference(profile), Store(paths.profile_dir(profile))
    absent = [paths.shown(store.folder) for store in stores if not (store.folder / f"{key}.json").exists()]
    if absent:
        raise Mistake(f"{' and '.join(absent)} has no record {key}: `make reproduce PROFILE={profile}` makes it")
    return list(compare.differences(*(load(store.folder / f"{key}.json") for store in stores)))


def _verdict(compared: Iterable[Comparison], identity_off: float | None, absent: Iterable[str]) -> Verdict:
    if any(run.outcome == "different" for run in compared) or (identity_off or 0.0) > compare.IDENTITY_TOLERANCE:
        return "differs"
    return "incomplete" if identity_off is None or list(absent) else "certified"


def _identity_off(profile: str) -> float | None:
    """Over every row of the reference; None where one was not measured here."""
    kept, here = (identity_rows.read(folder) for folder in (reference_folder(profile), paths.profile_dir(profile)))
    places = [(shape, seed) for shape, rows in kept.items() for seed in rows]
    if any(seed not in here.get(shape, {}) for shape, seed in places):
        return None
    return max((compare.identity_off(kept[shape][seed], here[shape][seed]) for shape, seed in places), default=0.0)


_MADE_BY = ("cpu", "python", "torch", "numpy", "threads", "device", "commit", "dirty", "code")


def _makers(records: Iterable[Record]) -> list[dict[str, Any]]:
    """The different machines, versions and commits that made these records."""
    found: list[dict[str, Any]] = []
    for record in records:
        maker = {name: record.provenance.get(name) for name in _MADE_BY}
        if maker not in found:
            found.append(maker)
    return found


def _made(maker: dict[str, Any]) -> str:
    state = " with changes" if maker.get("dirty") else ""
    versions = f"torch {maker.get('torch')}, numpy {maker.get('numpy')}"
    return f"{maker.get('cpu')}, {versions}, commit {str(maker.get('commit'))[:9]}{state}"


def _core_seconds(records: Iterable[Record]) -> float:
    return round(sum(record.provenance["cpu_seconds"] for record in records), 1)


def _allowed() -> str:
    return f"{compare.TOLERANCE}; of {' and '.join(compare.AMPLIFYING)}, which amplify rounding, {compare.AMPLIFIED}"
