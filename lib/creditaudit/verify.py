"""Retrain a few committed runs from scratch and compare: the records are what this code makes."""

import random
import tempfile
from collections.abc import Sequence
from pathlib import Path

from creditaudit import paths
from creditaudit.engine.spec import RunSpec
from creditaudit.measure import identity
from creditaudit.mistakes import Mistake
from creditaudit.runs import compare, cost, identity_rows, sweep
from creditaudit.runs.compare import IDENTITY_TOLERANCE, Outcome
from creditaudit.runs.records import Record, Store
from creditaudit.study import params, retraining

NOTHING = "nothing was compared, and what was retrained is not kept"


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
    with tempfile.TemporaryDirectory() as scratch:
        store = Store(Path(scratch))
        try:
            sweep.train_all([record.spec for record in sample], store, jobs)
        except sweep.Interrupted:
            raise sweep.Interrupted(f"stopped; {NOTHING}") from None
        except sweep.WorkerKilled as error:
            raise Mistake(f"a worker process was killed (out of memory?); {NOTHING}") from error
        except sweep.RunsFailed as error:
            raise Mistake(f"{error}\n{NOTHING}") from error
        found = []
        for record in sample:
            again = store.get(record.spec)
            comparison = compare.compare(record, again)
            print(comparison.sentence())
            found.append(retraining.retrained(record, again, comparison))
    noted = retraining.add(profile, found)
    print(f"noted in {paths.shown(noted)}, of which the front page and the appendix tell when they are rendered next")
    return [row.outcome for row in found]


def _remeasure(set_name: str, profile: str) -> int:
    """The identity check has no training in it, so it is measured again whole; nothing kept is nothing verified."""
    asked = params.parameters("identity_check", set_name, profile)
    shape = asked["width"], asked["depth"]
    kept = identity_rows.stored(*shape, profile, asked["data"])
    again = {seed: identity.measure(*shape, seed, asked["data"]) for seed in kept}
    off = max((compare.identity_off(kept[seed], again[seed]) for seed in kept), default=0.0)
    print(
        f"identity check {set_name}, {len(kept)} seeds: largest difference {off:.1e}, allowed {IDENTITY_TOLERANCE:.0e}"
    )
    return 0 if kept and off <= IDENTITY_TOLERANCE else 1
