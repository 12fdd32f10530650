"""The statistics behind a verdict: intervals of means, and what they allow one to say.

Absence of evidence is a verdict of its own. A claim is `reproduced` when an interval lies where the claim
says, `contradicted` when an interval lies wholly elsewhere, and `inconclusive` otherwise, with the number
of seeds that would decide it. Both errors are held at alpha per claim: a one-sided bound at 1 - alpha each
way, which together make the 90 % interval for alpha = .05.

Several statements that must hold together (a rising ladder, a vector of layers) need no correction for
`reproduced`: each is proved at alpha, and the weakest link decides (intersection-union). For `contradicted`
one failure suffices, and m chances to fail by luck are paid for with alpha / m (Holm's first step, the only
one that matters for "at least one").
"""

import math
from collections.abc import Sequence
from dataclasses import dataclass, replace
from typing import Literal, get_args

import numpy as np
from scipy import special  # scipy.stats takes a second to import

Verdict = Literal["reproduced", "contradicted", "inconclusive"]
VERDICTS: tuple[Verdict, ...] = get_args(Verdict)

Cause = Literal["missing runs", "another profile", "undefined", "no spread", "too close", "crosses", "many chances"]

_CROSSES = "the interval crosses the line"
_DECIDE = "about {seeds} seeds would decide it, at this mean and spread"
_WORDS = {
    "too close": f"{_CROSSES}, and {{most}} seeds would not decide it: the mean lies too close to it, or the published "
    "one is too uncertain",
    "crosses": f"{_CROSSES}; {_DECIDE}",
    "many chances": "beyond the line at {level:.0%}, but not at the level that {chances} chances to fail ask for; "
    + _DECIDE,
}

POWER = 0.8  # chance of a decision that the seed count in a reason aims at
MOST_SEEDS = 1000
PRINTED_ZERO = 0.0005  # a std printed as .000 is anything that rounds to it


@dataclass(frozen=True)
class Reason:
    """Why a claim is inconclusive: its kind, in words, and how many seeds would decide it where that is known."""

    cause: Cause
    text: str
    seeds: int | None = None


@dataclass(frozen=True)
class Estimate:
    """A mean with its uncertainty, and what another n would do to it."""

    mean: float
    spread: float  # std of one seed's value
    n: int
    known: bool = False  # the spread is assumed, not estimated: z instead of t
    other_variance: float = 0.0  # squared standard error of a published mean that was subtracted
    other_n: int = 0

    def bounds(self, alpha: float) -> tuple[float, float]:
        half = half_width(self, alpha, self.n)
        return self.mean - half, self.mean + half

    def shifted(self, by: float, sign: int = 1) -> "Estimate":
        """sign * (x - by): positive where a one-sided statement about x holds."""
        return replace(self, mean=sign * (self.mean - by))


def every(*answers: bool | None) -> bool | None:
    """All of them, with None for an open one: one no refuses; else an open one leaves it open."""
    return False if False in answers else None if None in answers else True


def half_width(estimate: Estimate, alpha: float, n: int, power: float | None = None) -> float:
    """Half of the 1 - 2 alpha interval with n seeds; with `power`, how far off a line stays clear of it."""
    own = estimate.spread**2 / n
    total = own + estimate.other_variance
    if total == 0:
        return 0.0
    half = special.stdtrit(_welch_dof(estimate, own, n), 1 - alpha) * math.sqrt(total)
    # New seeds move our mean, not the published one.
    return float(half + (special.ndtri(power) * math.sqrt(own) if power else 0.0))


def _welch_dof(estimate: Estimate, own: float, n: int) -> float:
    if estimate.known:
        return math.inf
    if estimate.other_variance == 0:
        return n - 1
    other = estimate.other_variance
    return (own + other) ** 2 / (own**2 / (n - 1) + other**2 / (estimate.other_n - 1))


def of_sample(values: Sequence[float]) -> Estimate:
    """The mean of at least two seeds, t interval; for differences paired by seed, pass the differences."""
    return Estimate(float(np.mean(values)), float(np.std(values, ddof=1)), len(values))


def of_few(values: Sequence[float], noise: float) -> Estimate:
    """The mean of one or two seeds, with a seed spread known from elsewhere."""
    return Estimate(float(np.mean(values)), noise, len(values), known=True)


def against_published(values: Sequence[float], expected: float, std: float | None, n: int) -> Estimate:
    """Ours minus published, Welch; a published value without std, or of one seed, is a point."""
    ours = of_sample(values)
    variance = 0.0 if std is None or n < 2 else (std or PRINTED_ZERO) ** 2 / n
    return Estimate(ours.mean - expected, ours.spread, ours.n, other_variance=variance, other_n=n)


def equivalent(differences: Sequence[Estimate], margin: float, alpha: float) -> Verdict:
    """All differences from the published values inside the margin, or one of them wholly outside."""
    if all(-margin < low and high < margin for low, high in (d.bounds(alpha) for d in differences)):
        return "reproduced"
    strict = [d.bounds(alpha / len(differences)) for d in differences]
    return "contradicted" if any(low > margin or high < -margin for low, high in strict) else "inconclusive"


def all_positive(statements: Sequence[Estimate], alpha: float) -> Verdict:
    """Every mean above zero, or one of them below it."""
    if all(statement.bounds(alpha)[0] > 0 for statement in statements):
        return "reproduced"
    strict = [statement.bounds(alpha / len(statements)) for statement in statements]
    return "contradicted" if any(high < 0 for _, high in strict) else "inconclusive"


def seeds_to_decide(estimate: Estimate, distance: float, alpha: float) -> int | None:
    """Seeds that would decide this mean and spread at `distance` from the line; None: too many."""
    for n in (*range(2, 50), *range(50, MOST_SEEDS + 1, 10)):
        if half_width(estimate, alpha, n, POWER) < distance:
            return n
    return None


def undecided(estimates: Sequence[Estimate], distances: Sequence[float], alpha: float) -> Reason:
    """Why the runs do not decide a claim, and how many seeds would at these means and spreads.

    A distance is how far a mean lies on the claim's side of its line, negative on the other. One statement on the
    wrong side suffices to contradict, at alpha / m; to reproduce, all have to be proved, and the hardest counts.
    """
    pairs = list(zip(estimates, distances, strict=True))
    against = [seeds_to_decide(e, -distance, alpha / len(pairs)) for e, distance in pairs if distance < 0]
    known = [need for need in against if need]
    needs = [min(known)] if known else against or [seeds_to_decide(e, distance, alpha) for e, distance in pairs]
    seeds = None if None in needs else max(needs)
    beyond = any(half_width(e, alpha, e.n) < -distance for e, distance in pairs)
    cause: Cause = "too close" if seeds is None else "many chances" if beyond else "crosses"
    said = _WORDS[cause].format(seeds=seeds, most=MOST_SEEDS, level=1 - 2 * alpha, chances=len(pairs))
    return Reason(cause, said, seeds)
