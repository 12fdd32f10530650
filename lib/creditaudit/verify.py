"""Retrain a few committed runs from scratch and compare: the records are what this code makes."""

import math
import random
import tempfile
from collections.abc import Iterator, Sequence
from itertools import zip_longest
from pathlib import Path
from typing import Any

from creditaudit import cost, identity, identity_rows, params, paths, sweep, verified
from creditaudit.records import Record, Store
from creditaudit.spec import RunSpec
from creditaudit.verified import ACCURACY_TOLERANCE, DECADES, Outcome, Retrained

IDENTITY_TOLERANCE = 1e-5  # one forward pass in float32, on any CPU
NOTHING = "nothing was compared, and what was retrained is not kept"


class VerificationFailed(RuntimeError):
    """Runs could not be retrained, so there is nothing to compare."""


def verify(profile: str, specs: Sequence[RunSpec], n: int, jobs: int | None = None) -> int:
    """Exit code 0 if n of these runs agree: to the bit on the same kind of CPU, within tolerance elsewhere."""
    committed, asked = Store(paths.profile_dir(profile)).all(), set(specs)
    there = [record for record in committed if record.spec in asked]
    if asked and not there:
        print(f"profile {profile} has no such records to verify")
        return 1
    outcomes = _retrain(profile, random.sample(there, min(n, len(there))), committed, jobs) if there else []
    measured = [_remeasure(set_name, profile) for set_name in params.sets("identity_check")]
    return max([*measured, *(int(outcome == "different") for outcome in outcomes)])


def _retrain(profile: str, sample: Sequence[Record], known: Sequence[Record], jobs: int | None) -> list[Outcome]:
    """Train the runs again, compare, and note what came out."""
    seconds = sum(cost.cpu_seconds(record.spec, known) for record in sample)
    print(f"retraining {len(sample)} runs, about {seconds / 60:.0f} core-minutes", flush=True)
    found = [_compare(record, again) for record, again in _retrained(sample, jobs)]
    noted = verified.add(profile, found)
    print(f"noted in {paths.shown(noted)}, of which the front page and the appendix tell when they are rendered next")
    return [row.outcome for row in found]


def _retrained(sample: Sequence[Record], jobs: int | None) -> list[tuple[Record, Record]]:
    """Each record and what training its run again gave."""
    with tempfile.TemporaryDirectory() as scratch:
        store = Store(Path(scratch))
        try:
            sweep.train_all([record.spec for record in sample], store, jobs)
        except sweep.Interrupted:
            raise sweep.Interrupted(f"stopped; {NOTHING}") from None
        except sweep.WorkerKilled as error:
            raise VerificationFailed(f"a worker process was killed (out of memory?); {NOTHING}") from error
        except sweep.RunsFailed as error:
            raise VerificationFailed(f"{error}\n{NOTHING}") from error
        return [(record, store.get(record.spec)) for record in sample]


def _remeasure(set_name: str, profile: str) -> int:
    """The identity check has no training in it, so it is measured again whole; nothing kept is nothing verified."""
    asked = params.parameters("identity_check", set_name, profile)
    shape = asked["width"], asked["depth"]
    kept = identity_rows.stored(*shape, profile, asked["data"])
    again = {seed: identity.measure(*shape, seed, asked["data"]) for seed in kept}
    off = max(
        (abs(a - b) for seed in kept for a, b in zip(_flat(kept[seed]), _flat(again[seed]), strict=True)), default=0.0
    )
    print(
        f"identity check {set_name}, {len(kept)} seeds: largest difference {off:.1e}, allowed {IDENTITY_TOLERANCE:.0e}"
    )
    return 0 if kept and off <= IDENTITY_TOLERANCE else 1


def _flat(row: dict[str, Any]) -> list[float]:
    return [number for name in sorted(row) for number in (row[name] if isinstance(row[name], list) else [row[name]])]


def _compare(committed: Record, again: Record) -> Retrained:
    if (committed.epochs, committed.final) == (again.epochs, again.final):
        print(f"{committed.spec.key}: bit-equal")
        return verified.compared(committed, again, "bit-equal")
    off = abs(committed.final["test_accuracy"] - again.final["test_accuracy"])
    decades, alike = _decades(committed.final["h_norm"][-1], again.final["h_norm"][-1]), _made_alike(committed, again)
    close = off <= ACCURACY_TOLERANCE and decades <= DECADES and not alike
    where = (
        "the same kind of CPU, so this should be bit-equal" if alike else "another kind of CPU or torch, or partly so"
    )
    first = next(_differences("", _contents(committed), _contents(again)), "a number's type")
    print(
        f"{committed.spec.key}: differs (first at {first}), accuracy by {off:.4f}, log10 ||h_L|| by {decades:.1g} "
        f"(allowed elsewhere: {ACCURACY_TOLERANCE:g} and {DECADES:g}); {where}: "
        f"{'within tolerance' if close else 'FAILED'}"
    )
    outcome = "within tolerance" if close else "different"
    return verified.compared(committed, again, outcome, off, decades if math.isfinite(decades) else None)


def _made_alike(committed: Record, again: Record) -> bool:
    """On the same kind of CPU with the same libraries, from the first epoch on."""
    return _platform(committed.provenance) == _platform(again.provenance) and all(
        maker[name] == again.provenance[name]
        for maker in committed.provenance.get("resumed_from", [])
        for name in ("cpu", "torch", "numpy")
    )


def _decades(a: float | None, b: float | None) -> float:
    """How far apart two norms are; overflow (stored as nothing) agrees with itself only."""
    if a is None or b is None:
        return 0.0 if a is b else math.inf
    return abs(math.log10(a / b))


def _contents(record: Record) -> dict[str, Any]:
    return {"epochs": record.epochs, "final": record.final}


def _platform(source: dict[str, Any]) -> tuple[str, ...]:
    return tuple(str(source[name]) for name in ("cpu", "torch", "numpy", "threads", "device"))


def _differences(place: str, a: Any, b: Any) -> Iterator[str]:
    """Where two contents differ; a name or an entry that only one of them has is a difference."""
    if isinstance(a, dict) and isinstance(b, dict):
        for name in sorted(a.keys() | b.keys()):
            yield from _differences(f"{place}.{name}".lstrip("."), a.get(name), b.get(name))
    elif isinstance(a, list) and isinstance(b, list):
        for index, pair in enumerate(zip_longest(a, b)):
            yield from _differences(f"{place}[{index}]", *pair)
    elif a != b:
        yield place
