"""Claims checked against records: every published claim gets `reproduced`, `contradicted` or `inconclusive`.

`check` asks the runs for one Sample per quantity, as a notebook does, and hands the numbers to `verdicts`. A claim
about a cell or an effect needs the study's epochs and number of seeds. A shape claim is decided as soon as
its runs can: with fewer seeds than the study, the published seed spread (`noise` in claims.yaml) takes the
place of ours, and one marked `any_epochs` may rest on shorter runs. In a result, `observed` is in the
natural units of `expected`; `ci` is the 90 % interval in the margin's units (decades for norms): of ours
minus published for an equivalence, of the effect for an effect, of each inequality's left side for a shape.
"""

import math
from collections.abc import Iterable, Sequence
from dataclasses import dataclass, replace
from functools import cached_property
from typing import Any

import numpy as np
import pandas as pd

from creditaudit import paths
from creditaudit.engine.spec import VARIANTS
from creditaudit.runs import identity_rows
from creditaudit.study import frames, verdicts
from creditaudit.study.claimspec import (
    Claim,
    ClaimsError,
    Quantity,
    Result,
    Setting,
    Statement,
    depth_of,
    load_claims,
    quantities,
    rungs,
    statements,
)
from creditaudit.study.frames import Runs
from creditaudit.study.metrics import METRICS
from creditaudit.study.sample import Sample
from creditaudit.study.verdicts import Cause, Estimate, Reason, Verdict

STUDY_SEEDS = (42, 123, 456)
PREDICTIONS = paths.PARAMS / "predictions.yaml"
_SAID = {"method", "penalty", "normalise", *VARIANTS}  # of a run, by a quantity


class Undecidable(Exception):
    """The records cannot speak to a claim."""

    def __init__(self, cause: Cause, text: str) -> None:
        super().__init__(text)
        self.reason = Reason(cause, text)


def check(claims: Iterable[Claim], runs: Runs) -> list[Result]:
    """A verdict for every published claim, on the study's seeds; where there are more, a second one on all."""
    fewer = runs.only(seed=list(STUDY_SEEDS))
    pairs = [(_judged(claim, fewer), _judged(claim, runs)) for claim in claims]
    return [replace(result, all_seeds=more) if more.n > result.n else result for result, more in pairs]


def judge(section: str, profile: str, set_name: str, runs: Runs | None = None) -> list[Result]:
    """The verdicts on the claims about one section, from the very runs that its notebook shows."""
    claims = [claim for claim in load_claims() if claim.place == f"{section}/{set_name}"]
    return check(claims, frames.comparable(profile, runs.records if runs else None))


def claim(results: Sequence[Result], name: str) -> Result:
    """The result of one claim; of a set about which the study says nothing, one without numbers."""
    nothing = Result(name, "The study says nothing about this set.", "none", math.nan, math.nan, None, None, 0,
                     "inconclusive", "no such claim", "", None)  # fmt: skip
    return next((result for result in results if result.id == name), nothing)


def judge_all(profile: str) -> list[Result]:
    """The verdicts on every published claim, from every record of a profile."""
    return check(load_claims(), frames.comparable(profile))


def predictions(profile: str, section: str | None = None, runs: Runs | None = None) -> list[Result]:
    """Our own predictions about what the study left open, judged like its claims."""
    runs = runs or frames.comparable(profile)
    return [_judged(claim, runs) for claim in load_claims(PREDICTIONS) if section in (None, claim.section)]


def published(section: str, set_name: str, runs: Runs) -> pd.DataFrame:
    """The study's single numbers about a section, one row each: what was measured, of which run, mean, std and n.

    None where the runs are of another shape than the set's, as after a change in the first cell.
    """
    columns = ["method", "k", "penalty", "epochs", "metric", "layer", "mean", "std", "n", "margin", "printed", "id"]
    shapes = {(spec.width, spec.depth) for spec in runs.specs}
    rows = [
        {
            **claim.quantity.model_dump(include={"method", "penalty", "metric", "layer"}),
            "k": depth_of(claim.quantity.k, claim.setting),
            "epochs": claim.quantity.epochs or claim.setting.epochs,
            "mean": claim.expected,
            **claim.model_dump(include={"std", "n", "margin", "printed", "id"}),
        }
        for claim in load_claims()
        if (claim.place, claim.kind) == (f"{section}/{set_name}", "equivalence")
        and isinstance(claim.expected, float)
        and ".cross." not in claim.id
        and (claim.setting.width, claim.setting.depth) in shapes
    ]
    numbers = {"mean": float, "std": float, "n": int, "margin": float}  # so in a frame without rows too
    return pd.DataFrame(rows, columns=columns).astype(numbers)


def _judged(claim: Claim, runs: Runs) -> Result:
    judges = {"exact": _exact, "equivalence": _equivalence, "effect": _effect, "shape": _shape}
    try:
        return judges[claim.kind](_Case(claim, runs))
    except Undecidable as undecidable:
        return _Case(claim, runs).result(None, None, undecidable.reason, seeds=())


@dataclass(frozen=True)
class _Case:
    """A claim and the runs that are to decide it, at the study's epochs or at the given number."""

    claim: Claim
    runs: Runs
    epochs: int | None = None

    def asked(self, quantity: Quantity) -> dict[str, Any]:
        """The runs that a quantity is about, as `Runs.of` is asked for them."""
        setting = self.claim.setting
        asked = quantity.model_dump(include=_SAID) | ({} if quantity.k == "L" else {"k": quantity.k})
        asked |= {"width": setting.width, "depth": quantity.depth or setting.depth}
        return asked | {"epochs": self.epochs or quantity.epochs or setting.epochs}

    @cached_property
    def seeds(self) -> list[int]:
        """Seeds for which every quantity has its run."""
        there = [{r.spec.seed for r in self.runs.matching(**self.asked(each))} for each in quantities(self.claim)]
        return sorted(set.intersection(*there))

    def with_seeds(self, needed: int) -> "_Case":
        """Itself, or what is missing."""
        if len(self.seeds) < needed:
            claim, have = self.claim, len(self.seeds)
            epochs = "/".join(map(str, sorted({each.epochs or claim.setting.epochs for each in quantities(claim)})))
            if self.runs.profile != "paper":
                raise Undecidable("another profile", f"needs profile paper ({needed} seeds at {epochs} epochs)")
            said = f"runs missing: {have} of {needed} seeds are there, at {epochs} epochs"
            raise Undecidable("missing runs", said)
        return self

    def sample(self, quantity: Quantity, layer: int | None = None) -> Sample:
        """One number per seed."""
        if quantity.layer is not None:
            layer = depth_of(quantity.layer, self.claim.setting)
        return self.runs.of(quantity.metric, layer, **self.asked(quantity)).only(self.seeds)

    def left_side(self, line: Statement) -> list[float]:
        """quantity (- minus), one number per seed."""
        left = self.sample(line.quantity)
        return _compared(left - self.sample(line.minus) if line.minus else left, line.quantity)

    def result(
        self,
        observed: Any,
        ci: Any,
        found: Verdict | Reason,
        notes: Sequence[str] = (),
        spread: float | None = None,
        seeds: Sequence[int] | None = None,
    ) -> Result:
        """`found` is the verdict, or why there is none; notes say how it was reached."""
        claim, seeds = self.claim, self.seeds if seeds is None else seeds
        because = found if isinstance(found, Reason) else None
        records = {}  # in the order in which the claim names them
        for quantity in quantities(claim) if claim.kind != "exact" else ():
            there = {record.spec.seed: record for record in self.runs.matching(**self.asked(quantity))}
            records |= {there[seed].spec.key: there[seed] for seed in seeds}
        return Result(
            **{name: getattr(claim, name) for name in ("id", "statement", "kind", "expected", "margin", "command")},
            observed=observed,
            ci=ci,
            n=len(seeds),
            verdict="inconclusive" if because else found,
            reason=", ".join([*notes, because.text] if because else notes),
            claim=claim,
            spread=spread,
            because=because,
            records=tuple(records),
            commits=tuple(sorted({record.provenance["commit"] for record in records.values()})),
        )


def _exact(case: _Case) -> Result:
    """Numbers without training: the mean over the study's seeds, or one seed's row, within the tolerance."""
    claim, quantity = case.claim, case.claim.quantity
    rows = identity_rows.read(paths.profile_dir(case.runs.profile)).get(claim.set, {})
    wanted = [quantity.seed] if quantity.seed is not None else STUDY_SEEDS[: claim.n]
    if missing := ", ".join(str(seed) for seed in wanted if str(seed) not in rows):
        raise Undecidable("missing runs", f"no identity check of {claim.set} for seed {missing}")
    measured = [METRICS[quantity.metric].read(rows[str(seed)]) for seed in wanted]
    if any(np.shape(value) != np.shape(claim.expected) for value in measured):
        raise ClaimsError(f"{claim.source}: as many values are expected as {quantity.metric} of {claim.set} has")
    observed = np.mean(measured, axis=0)
    worst = float(np.abs(observed - np.array(claim.expected)).max())
    verdict = "reproduced" if worst <= claim.margin else "contradicted"
    return case.result(observed.tolist(), None, verdict, [f"largest difference {worst:.1e}"], seeds=wanted)


def _equivalence(case: _Case) -> Result:
    claim, quantity, alpha = case.claim, case.claim.quantity, case.claim.setting.alpha
    case.with_seeds(max(claim.n, 2))  # two where the study had one: ours need a spread
    several = isinstance(claim.expected, list)  # a number for every state h_0 .. h_L
    expected, layers = (claim.expected, range(claim.setting.depth + 1)) if several else ([claim.expected], [None])
    if len(expected) != len(layers):
        raise ClaimsError(f"{claim.source}: {len(expected)} expected values, but a run has {len(layers)}")
    ours = [case.sample(quantity, layer) for layer in layers]
    differences = [
        verdicts.against_published(_compared(sample, quantity), quantity.compared(value), claim.std, claim.n)
        for sample, value in zip(ours, expected, strict=True)
    ]
    verdict = verdicts.equivalent(differences, claim.margin, alpha)
    found = _or_why(verdict, differences, [claim.margin - abs(each.mean) for each in differences], alpha)
    observed, ci = [sample.mean for sample in ours], [list(each.bounds(alpha)) for each in differences]
    if several:
        return case.result(observed, ci, found)
    return case.result(observed[0], ci[0], found, spread=differences[0].spread)


def _effect(case: _Case) -> Result:
    claim, alpha = case.claim, case.claim.setting.alpha
    case.with_seeds(max(claim.n, 2))
    (line,) = statements(claim)
    estimate = verdicts.of_sample(case.left_side(line))
    found = _all_hold([estimate], [line], alpha)
    ci = list(estimate.bounds(alpha))
    return case.result(claim.quantity.natural(estimate.mean), ci, found, spread=estimate.spread)


def _shape(case: _Case) -> Result:
    claim, lines, alpha = case.claim, statements(case.claim), case.claim.setting.alpha
    budgets = sorted({spec.epochs for spec in case.runs.specs}, reverse=True) if claim.any_epochs else []
    asked = [case, *(replace(case, epochs=epochs) for epochs in budgets)]
    case = next((each for each in asked if each.seeds), None) or case.with_seeds(claim.n)
    seeds = case.seeds
    estimates, assumed = [], False
    for line in lines:
        values = case.left_side(line)
        noise = _noise(line, claim.setting) if len(seeds) < claim.n else None
        if noise is None and len(seeds) < 2:
            raise Undecidable("no spread", f"one seed has no spread, and none is published for {line.quantity.metric}")
        assumed |= noise is not None
        estimates.append(verdicts.of_few(values, noise) if noise is not None else verdicts.of_sample(values))
    found = _all_hold(estimates, lines, alpha)
    notes = [f"at {case.epochs} epochs"] if case.epochs else []
    notes += [f"n={len(seeds)}, published spread as noise"] if assumed else []
    if claim.form == "all":
        observed = [line.quantity.natural(each.mean) for each, line in zip(estimates, lines, strict=True)]
    else:
        observed = [case.sample(quantity).mean for quantity in rungs(claim)]
    return case.result(observed, [list(each.bounds(alpha)) for each in estimates], found, notes)


def _compared(sample: Sample, quantity: Quantity) -> list[float]:
    """The numbers as a claim states them, of norms the log10; a difference of accuracies is no percentage there."""
    if not sample.defined:
        seed = next(seed for seed, value in sample.values.items() if value is None)
        raise Undecidable("undefined", f"{quantity.metric} of {quantity.method}, seed {seed}, is undefined")
    return [value / 100 for value in sample.compared] if sample.unit == "pp" else sample.compared


def _all_hold(estimates: Sequence[Estimate], lines: Sequence[Statement], alpha: float) -> Verdict | Reason:
    """Of left sides: turned so that each statement holds where its mean is positive."""
    signed = [
        estimate.shifted(line.quantity.compared(line.threshold), 1 if line.direction == "above" else -1)
        for estimate, line in zip(estimates, lines, strict=True)
    ]
    return _or_why(verdicts.all_positive(signed, alpha), signed, [each.mean for each in signed], alpha)


def _or_why(
    verdict: Verdict, estimates: Sequence[Estimate], distances: Sequence[float], alpha: float
) -> Verdict | Reason:
    return verdicts.undecided(estimates, distances, alpha) if verdict == "inconclusive" else verdict


def _noise(line: Statement, setting: Setting) -> float | None:
    """Assumed std of one seed's left side: independent errors, so pairing is given no credit."""
    sides = [side for side in (line.quantity, line.minus) if side]
    known = [setting.noise.get(side.method) for side in sides if side.metric == "test_accuracy"]
    return None if len(known) < len(sides) or None in known else math.hypot(*known)
