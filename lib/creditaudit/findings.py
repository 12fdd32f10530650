"""What the records say, in sentences: the words that all sections share. Every number and every verb comes from a
record; what cannot be said yet is said to be undecided."""

import math
from collections.abc import Sequence
from statistics import mean, stdev

from creditaudit import params, paths, protocol
from creditaudit.claims import Result, check, load_claims
from creditaudit.collect import Runs, resume_command
from creditaudit.diagnosis import D3_GAIN, depth_is_used
from creditaudit.records import Store
from creditaudit.tables import plus_minus
from creditaudit.verdicts import of_sample

HELPS = 100 * D3_GAIN  # percentage points: D3's own threshold
VERBS = ("helps", "does not help", "may or may not help")
ALPHA = 0.05  # of a sentence: one-sided, each way, as of a claim


def section_runs(section: str, set_name: str, profile: str) -> Runs:
    """The runs of another section, as its own notebook would ask for them; nothing is trained."""
    values = params.parameters(section, set_name, profile)
    specs = protocol.runs_of(section, values)
    store = Store(paths.profile_dir(profile))
    records = [record for spec in dict.fromkeys(specs) if (record := store.get(spec)) is not None]
    return Runs(list(dict.fromkeys(specs)), records, profile, section, set_name)


def verdicts(profile: str, section: str | None = None, set_name: str | None = None) -> list[Result]:
    """Every claim (of one section and set) against the records of a profile."""
    claims = [claim for claim in load_claims() if section in (None, claim.section) and set_name in (None, claim.set)]
    return check(claims, Store(paths.profile_dir(profile)), profile)


def shape(runs: Runs) -> str:
    spec = runs.specs[0]
    return f"$d={spec.width}$, $L={spec.depth}$"


def places(parts: Sequence[Runs]) -> list[str]:
    """Their shapes; where two are alike, with the set's name, which never is."""
    shapes = [shape(runs) for runs in parts]
    return [
        f"{name} (`{runs.set_name}`)" if shapes.count(name) > 1 else name
        for name, runs in zip(shapes, parts, strict=True)
    ]


def undecided(runs: Runs) -> str:
    lacking = f"{len(runs.missing)} of {len(runs.specs)} runs {'is' if len(runs.missing) == 1 else 'are'} missing"
    return f"not yet decided: {lacking} (`{resume_command(runs.profile, runs.section, runs.set_name)}`)"


def counted(number: int, one: str, many: str) -> str:
    """1 run is; 2 runs are."""
    return f"{number} {one if number == 1 else many}"


def listed(items: Sequence[str]) -> str:
    return items[0] if len(items) == 1 else f"{', '.join(items[:-1])} and {items[-1]}" if items else ""


def _interval(sample: Sequence[float]) -> tuple[float, float]:
    """Of the mean, 90 %; one seed has no interval, its value stands alone."""
    return of_sample(sample).bounds(ALPHA) if len(sample) > 1 else (sample[0], sample[0])


def helps(sample: Sequence[float]) -> str:
    """Does this gain, in pp and one entry per seed, reach D3's threshold?"""
    low, high = (depth_is_used(bound / 100) for bound in _interval(sample))
    return VERBS[0] if low else VERBS[2] if high else VERBS[1]


def amount(sample: Sequence[float]) -> str:
    """The mean gain ± std; with the mean's interval where that decides nothing."""
    text = f"{of_seeds(sample, 1, signed=True)} pp"
    if helps(sample) == VERBS[2]:
        text += " (90 % interval {:+.1f} to {:+.1f})".format(*_interval(sample))
    return text.replace("-", "−")


def of_seeds(sample: Sequence[float], places: int = 3, signed: bool = False) -> str:
    """Mean ± std (ddof 1); of one seed the number alone."""
    return plus_minus(mean(sample), stdev(sample) if len(sample) > 1 else math.nan, places, signed)


def bracketed(sample: Sequence[float]) -> str:
    """The same to stand in brackets: +1.9 ± 0.7 pp, 90 % interval +0.7 to +3.1."""
    return amount(sample).replace(" (", ", ").removesuffix(")")
