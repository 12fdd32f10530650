"""Claims checked against records: every published claim gets `reproduced`, `contradicted` or `inconclusive`.

`check` asks the runs for one Sample per quantity, as a notebook does, and hands the numbers to `verdicts`. A claim
about a cell or an effect needs the study's epochs and number of seeds. A shape claim is decided as soon as
its runs can: with fewer seeds than the study, the published seed spread (`noise` in claims.yaml) takes the
place of ours, and one marked `any_epochs` may rest on shorter runs. In a result, `observed` is in the
natural units of `expected`; `ci` is the 90 % interval in the margin's units (decades for norms): of ours
minus published for an equivalence, of the effect for an effect, of each inequality's left side for a shape.
"""

import math
from collections.abc import Collection, Iterable, Sequence
from dataclasses import replace
from typing import Any

import numpy as np
import pandas as pd

from creditaudit import paths
from creditaudit.engine.spec import VARIANTS
from creditaudit.runs import identity_rows
from creditaudit.runs.records import Record
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
from creditaudit.study.verdicts import Cause, Reason, Verdict

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
    return [_on_all_seeds(_judged(claim, fewer), _judged(claim, runs)) for claim in claims]


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
    place, shapes = f"{section}/{set_name}", {(spec.width, spec.depth) for spec in runs.specs}
    claims = [claim for claim in load_claims() if claim.place == place and claim.kind == "equivalence"]
    rows = [
        {
            **claim.quantity.model_dump(include={"method", "penalty", "metric", "layer"}),
            "k": depth_of(claim.quantity.k, claim.setting),
            "epochs": claim.quantity.epochs or claim.setting.epochs,
            "mean": claim.expected,
            **claim.model_dump(include={"std", "n", "margin", "printed", "id"}),
        }
        for claim in claims
        if isinstance(claim.expected, float) and ".cross." not in claim.id
        and (claim.setting.width, claim.setting.depth) in shapes
    ]
    numbers = {"mean": float, "std": float, "n": int, "margin": float}  # so in a frame without rows too
    return pd.DataFrame(rows, columns=columns).astype(numbers)


def _on_all_seeds(result: Result, more: Result) -> Result:
    return replace(result, all_seeds=more) if more.n > result.n else result


def _judged(claim: Claim, runs: Runs) -> Result:
    judges = {"exact": _exact, "equivalence": _equivalence, "effect": _effect, "shape": _shape}
    try:
        return judges[claim.kind](claim, runs)
    except Undecidable as undecidable:
        return _result(claim, None, None, 0, undecidable.reason)


def _exact(claim: Claim, runs: Runs) -> Result:
    """Numbers without training: the mean over the study's seeds, or one seed's row, within the tolerance."""
    quantity = claim.quantity
    rows = identity_rows.read(paths.profile_dir(runs.profile)).get(claim.set, {})
    wanted = [quantity.seed] if quantity.seed is not None else list(STUDY_SEEDS[: claim.n])
    missing = [seed for seed in wanted if str(seed) not in rows]
    if missing:
        raise Undecidable("missing runs", f"no identity check of {claim.set} for seed {', '.join(map(str, missing))}")
    measured = [METRICS[quantity.metric].read(rows[str(seed)]) for seed in wanted]
    if any(np.shape(value) != np.shape(claim.expected) for value in measured):
        raise ClaimsError(f"{claim.source}: as many values are expected as {quantity.metric} of {claim.set} has")
    values = np.array(measured, dtype=float)
    observed = values.mean(axis=0)
    if not np.isfinite(observed).all():
        raise Undecidable("undefined", f"{quantity.metric} is undefined")
    worst = float(np.abs(observed - np.array(claim.expected)).max())
    verdict = "reproduced" if worst <= claim.margin else "contradicted"
    return _result(claim, observed.tolist(), None, len(wanted), verdict, notes=[f"largest difference {worst:.1e}"])


def _equivalence(claim: Claim, runs: Runs) -> Result:
    alpha, seeds = claim.setting.alpha, _study_seeds(claim, runs)
    several = isinstance(claim.expected, list)  # a number for every state h_0 .. h_L
    expected, layers = (claim.expected, range(claim.setting.depth + 1)) if several else ([claim.expected], [None])
    if len(expected) != len(layers):
        raise ClaimsError(f"{claim.source}: {len(expected)} expected values, but a run has {len(layers)}")
    ours = [_sample(claim.quantity, claim, runs, layer=layer).only(seeds) for layer in layers]
    differences = [
        verdicts.against_published(_compared(sample, claim.quantity), _line(value, claim.quantity), claim.std, claim.n)
        for sample, value in zip(ours, expected, strict=True)
    ]
    verdict = verdicts.equivalent(differences, claim.margin, alpha)
    if verdict == "inconclusive":
        verdict = verdicts.undecided(differences, [claim.margin - abs(d.mean) for d in differences], alpha)
    ci, observed = [list(difference.bounds(alpha)) for difference in differences], [sample.mean for sample in ours]
    behind = _behind(claim, runs, seeds)
    if several:
        return _result(claim, observed, ci, len(seeds), verdict, behind)
    return _result(claim, observed[0], ci[0], len(seeds), verdict, behind, spread=differences[0].spread)


def _effect(claim: Claim, runs: Runs) -> Result:
    alpha, seeds = claim.setting.alpha, _study_seeds(claim, runs)
    (statement,) = statements(claim)
    estimate = verdicts.of_sample(_left_side(statement, claim, runs, seeds))
    signed = _signed(estimate, statement)
    verdict = verdicts.all_positive([signed], alpha)
    if verdict == "inconclusive":
        verdict = verdicts.undecided([signed], [signed.mean], alpha)
    observed, ci = _natural(estimate.mean, claim.quantity), list(estimate.bounds(alpha))
    return _result(claim, observed, ci, len(seeds), verdict, _behind(claim, runs, seeds), spread=estimate.spread)


def _shape(claim: Claim, runs: Runs) -> Result:
    setting, lines = claim.setting, statements(claim)
    seeds, epochs = _shape_seeds(claim, runs)
    estimates, assumed = [], False
    for line in lines:
        values = _left_side(line, claim, runs, seeds, epochs)
        noise = _noise(line, setting) if len(seeds) < claim.n else None
        if noise is None and len(seeds) < 2:
            raise Undecidable("no spread", f"one seed has no spread, and none is published for {line.quantity.metric}")
        assumed |= noise is not None
        estimates.append(verdicts.of_few(values, noise) if noise is not None else verdicts.of_sample(values))
    signed = [_signed(estimate, line) for estimate, line in zip(estimates, lines, strict=True)]
    verdict = verdicts.all_positive(signed, setting.alpha)
    notes = [f"at {epochs} epochs"] if epochs else []
    notes += [f"n={len(seeds)}, published spread as noise"] if assumed else []
    if verdict == "inconclusive":
        verdict = verdicts.undecided(signed, [s.mean for s in signed], setting.alpha)
    if claim.form == "all":
        observed = [_natural(e.mean, line.quantity) for e, line in zip(estimates, lines, strict=True)]
    else:
        observed = [_sample(q, claim, runs, epochs).only(seeds).mean for q in rungs(claim)]
    ci = [list(estimate.bounds(setting.alpha)) for estimate in estimates]
    return _result(claim, observed, ci, len(seeds), verdict, _behind(claim, runs, seeds, epochs), notes)


def _asked(quantity: Quantity, claim: Claim, epochs: int | None) -> dict[str, Any]:
    """The runs that a quantity is about, as `Runs.of` is asked for them."""
    asked = quantity.model_dump(include=_SAID) | ({} if quantity.k == "L" else {"k": quantity.k})
    asked |= {"width": claim.setting.width, "depth": quantity.depth or claim.setting.depth}
    return asked | {"epochs": epochs or quantity.epochs or claim.setting.epochs}


def _sample(
    quantity: Quantity, claim: Claim, runs: Runs, epochs: int | None = None, layer: int | None = None
) -> Sample:
    """One number per seed, at the study's epochs or at the given number."""
    if quantity.layer is not None:
        layer = depth_of(quantity.layer, claim.setting)
    return runs.of(quantity.metric, layer, **_asked(quantity, claim, epochs))


def _compared(sample: Sample, quantity: Quantity) -> list[float]:
    """The numbers as a claim states them, of norms the log10; a difference of accuracies is no percentage there."""
    if not sample.defined:
        seed = next(seed for seed, value in sample.values.items() if value is None)
        raise Undecidable("undefined", f"{quantity.metric} of {quantity.method}, seed {seed}, is undefined")
    return [value / 100 for value in sample.compared] if sample.unit == "pp" else sample.compared


def _left_side(
    statement: Statement, claim: Claim, runs: Runs, seeds: Collection[int], epochs: int | None = None
) -> list[float]:
    """quantity (- minus), one number per seed."""
    left = _sample(statement.quantity, claim, runs, epochs)
    if statement.minus is not None:
        left -= _sample(statement.minus, claim, runs, epochs)
    return _compared(left.only(seeds), statement.quantity)


def _line(value: float, quantity: Quantity) -> float:
    return math.log10(value) if quantity.log and value > 0 else value


def _natural(value: float, quantity: Quantity) -> float:
    return 10.0 ** float(value) if quantity.log else float(value)


def _signed(estimate: verdicts.Estimate, statement: Statement) -> verdicts.Estimate:
    """Turned so that the statement holds where the mean is positive."""
    return estimate.shifted(_line(statement.threshold, statement.quantity), 1 if statement.direction == "above" else -1)


def _noise(statement: Statement, setting: Setting) -> float | None:
    """Assumed std of one seed's left side: independent errors, so pairing is given no credit."""
    sides = [side for side in (statement.quantity, statement.minus) if side]
    known = [setting.noise.get(side.method) for side in sides if side.metric == "test_accuracy"]
    return None if len(known) < len(sides) or None in known else math.hypot(*known)


def _shared(claim: Claim, runs: Runs, epochs: int | None = None) -> list[int]:
    """Seeds for which every quantity has its run."""
    there = [{record.spec.seed for record in runs.matching(**_asked(q, claim, epochs))} for q in quantities(claim)]
    return sorted(set.intersection(*there))


def _study_seeds(claim: Claim, runs: Runs) -> list[int]:
    """Seeds at the study's epochs, as many as the study had (two where it had one: ours need a spread)."""
    seeds, needed = _shared(claim, runs), max(claim.n, 2)
    if len(seeds) < needed:
        raise _missing(claim, runs, needed, len(seeds))
    return seeds


def _shape_seeds(claim: Claim, runs: Runs) -> tuple[list[int], int | None]:
    """Seeds for a shape, and the number of epochs where it is not the study's."""
    if seeds := _shared(claim, runs):
        return seeds, None
    for epochs in sorted({spec.epochs for spec in runs.specs}, reverse=True) if claim.any_epochs else ():
        if seeds := _shared(claim, runs, epochs):
            return seeds, epochs
    raise _missing(claim, runs, claim.n, 0)


def _missing(claim: Claim, runs: Runs, needed: int, have: int) -> Undecidable:
    epochs = "/".join(str(e) for e in sorted({q.epochs or claim.setting.epochs for q in quantities(claim)}))
    if runs.profile == "paper":
        return Undecidable("missing runs", f"runs missing: {have} of {needed} seeds are there, at {epochs} epochs")
    return Undecidable("another profile", f"needs profile paper ({needed} seeds at {epochs} epochs)")


def _behind(claim: Claim, runs: Runs, seeds: Collection[int], epochs: int | None = None) -> list[Record]:
    """The records that a verdict rests on, in the order in which the claim names them."""
    found: dict[str, Record] = {}
    for quantity in quantities(claim):
        there = {record.spec.seed: record for record in runs.matching(**_asked(quantity, claim, epochs))}
        found |= {there[seed].spec.key: there[seed] for seed in seeds}
    return list(found.values())


def _result(
    claim: Claim,
    observed: Any,
    ci: Any,
    n: int,
    found: Verdict | Reason,
    records: Sequence[Record] = (),
    notes: Sequence[str] = (),
    spread: float | None = None,
) -> Result:
    """`found` is the verdict, or why there is none; notes say how it was reached."""
    because = found if isinstance(found, Reason) else None
    verdict, told = ("inconclusive", [*notes, because.text]) if because else (found, notes)
    return Result(
        **{name: getattr(claim, name) for name in ("id", "statement", "kind", "expected", "margin")},
        observed=observed,
        ci=ci,
        n=n,
        verdict=verdict,
        reason=", ".join(told),
        command=claim.command,
        claim=claim,
        spread=spread,
        because=because,
        records=tuple(record.spec.key for record in records),
        commits=tuple(sorted({record.provenance["commit"] for record in records})),
    )
