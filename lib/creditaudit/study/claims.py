"""Claims checked against records: every published claim gets `reproduced`, `contradicted` or `inconclusive`.

`check` looks up the runs a claim asks for, pairs them by seed and hands the numbers to `verdicts`. A claim
about a cell or an effect needs the study's epochs and number of seeds. A shape claim is decided as soon as
its runs can: with fewer seeds than the study, the published seed spread (`noise` in claims.yaml) takes the
place of ours, and one marked `any_epochs` may rest on shorter runs. In a result, `observed` is in the
natural units of `expected`; `ci` is the 90 % interval in the margin's units (decades for norms): of ours
minus published for an equivalence, of the effect for an effect, of each inequality's left side for a shape.
"""

import json
import math
from collections.abc import Iterable, Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pandas as pd

from creditaudit import paths
from creditaudit.runs.records import Store, write_atomically
from creditaudit.study import verdicts
from creditaudit.study.claimspec import (
    Claim,
    ClaimsError,
    Setting,
    Statement,
    depth_of,
    load_claims,
    quantities,
    rungs,
    statements,
)
from creditaudit.study.evidence import Evidence, Undecidable, natural
from creditaudit.study.frames import Runs
from creditaudit.study.metrics import METRICS, scaled
from creditaudit.study.report import counted, print_table, summary
from creditaudit.study.result import Result
from creditaudit.study.verdicts import Reason, Verdict

__all__ = ["Claim", "ClaimsError", "Result", "check", "load_claims", "run", "summary"]

STUDY_SEEDS = (42, 123, 456)
PREDICTIONS = paths.PARAMS / "predictions.yaml"


def check(claims: Iterable[Claim], evidence: Evidence) -> list[Result]:
    """A verdict for every published claim, on the study's seeds; where there are more, a second one on all."""
    fewer = evidence.of_seeds(STUDY_SEEDS)
    return [_on_all_seeds(_judged(claim, fewer), _judged(claim, evidence)) for claim in claims]


def judge(section: str, profile: str, set_name: str, runs: Runs | None = None) -> list[Result]:
    """The verdicts on the claims about one section, from the very runs that its notebook shows."""
    evidence = Evidence(Store(paths.profile_dir(profile)), profile, runs.records if runs else None)
    return check([claim for claim in load_claims() if claim.place == f"{section}/{set_name}"], evidence)


def claim(results: Sequence[Result], name: str) -> Result:
    """The result of one claim; of a set about which the study says nothing, one without numbers."""
    nothing = Result(name, "The study says nothing about this set.", "none", math.nan, math.nan, None, None, 0,
                     "inconclusive", "no such claim", "", None)  # fmt: skip
    return next((result for result in results if result.id == name), nothing)


def judge_all(profile: str) -> list[Result]:
    """The verdicts on every published claim, from every record of a profile."""
    return check(load_claims(), Evidence(Store(paths.profile_dir(profile)), profile))


def _on_all_seeds(result: Result, more: Result) -> Result:
    return replace(result, all_seeds=more) if more.n > result.n else result


def _judged(claim: Claim, evidence: Evidence) -> Result:
    judges = {"exact": _exact, "equivalence": _equivalence, "effect": _effect, "shape": _shape}
    evidence = evidence.afresh()
    try:
        result = judges[claim.kind](claim, evidence)
    except Undecidable as undecidable:
        return _result(claim, None, None, 0, undecidable.reason)
    commits = sorted({record.provenance["commit"] for record in evidence.read.values()})
    return replace(result, records=tuple(evidence.read), commits=tuple(commits))


def _exact(claim: Claim, evidence: Evidence) -> Result:
    """Numbers without training: the mean over the study's seeds, or one seed's row, within the tolerance."""
    quantity = claim.quantity
    rows = evidence.identity.get(claim.set, {})
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
    return _result(claim, observed.tolist(), None, len(wanted), verdict, [f"largest difference {worst:.1e}"])


def _equivalence(claim: Claim, evidence: Evidence) -> Result:
    quantity, alpha = claim.quantity, claim.setting.alpha
    seeds = _study_seeds(claim, evidence)
    rows = np.array([np.atleast_1d(evidence.value(quantity, claim.setting, seed)) for seed in seeds])
    expected = np.atleast_1d(scaled(METRICS[quantity.metric], claim.expected))
    if len(expected) != rows.shape[1]:
        raise ClaimsError(f"{claim.source}: {len(expected)} expected values, but a run has {rows.shape[1]}")
    differences = [
        verdicts.against_published(column, value, claim.std, claim.n)
        for column, value in zip(rows.T, expected, strict=True)
    ]
    verdict = verdicts.equivalent(differences, claim.margin, alpha)
    if verdict == "inconclusive":
        verdict = verdicts.undecided(differences, [claim.margin - abs(d.mean) for d in differences], alpha)
    ci = [list(difference.bounds(alpha)) for difference in differences]
    observed = [natural(mean, quantity) for mean in rows.mean(axis=0)]
    if isinstance(claim.expected, list):
        return _result(claim, observed, ci, len(seeds), verdict)
    return _result(claim, observed[0], ci[0], len(seeds), verdict, spread=differences[0].spread)


def _effect(claim: Claim, evidence: Evidence) -> Result:
    alpha = claim.setting.alpha
    seeds = _study_seeds(claim, evidence)
    (statement,) = statements(claim)
    values = _left_side(statement, claim.setting, evidence, seeds)
    estimate = verdicts.of_sample(values)
    signed = _signed(estimate, statement)
    verdict = verdicts.all_positive([signed], alpha)
    if verdict == "inconclusive":
        verdict = verdicts.undecided([signed], [signed.mean], alpha)
    observed, ci = natural(estimate.mean, claim.quantity), list(estimate.bounds(alpha))
    return _result(claim, observed, ci, len(seeds), verdict, spread=estimate.spread)


def _shape(claim: Claim, evidence: Evidence) -> Result:
    setting, lines = claim.setting, statements(claim)
    seeds, epochs = _shape_seeds(claim, evidence)
    estimates, assumed = [], False
    for line in lines:
        values = _left_side(line, setting, evidence, seeds, epochs)
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
        observed = [natural(e.mean, line.quantity) for e, line in zip(estimates, lines, strict=True)]
    else:
        means = [np.mean([evidence.value(q, setting, seed, epochs) for seed in seeds]) for q in rungs(claim)]
        observed = [natural(mean, claim.quantity) for mean in means]
    ci = [list(estimate.bounds(setting.alpha)) for estimate in estimates]
    return _result(claim, observed, ci, len(seeds), verdict, notes)


def _study_seeds(claim: Claim, evidence: Evidence) -> list[int]:
    """Seeds at the study's epochs, as many as the study had (two where it had one: ours need a spread)."""
    seeds = evidence.shared(list(quantities(claim)), claim.setting)
    needed = max(claim.n, 2)
    if len(seeds) < needed:
        raise _missing(claim, evidence, needed, len(seeds))
    return seeds


def _shape_seeds(claim: Claim, evidence: Evidence) -> tuple[list[int], int | None]:
    """Seeds for a shape, and the number of epochs where it is not the study's."""
    asked = list(quantities(claim))
    seeds = evidence.shared(asked, claim.setting)
    if seeds:
        return seeds, None
    for epochs in evidence.budgets() if claim.any_epochs else ():
        seeds = evidence.shared(asked, claim.setting, epochs)
        if seeds:
            return seeds, epochs
    raise _missing(claim, evidence, claim.n, 0)


def _missing(claim: Claim, evidence: Evidence, needed: int, have: int) -> Undecidable:
    epochs = "/".join(str(e) for e in sorted({q.epochs or claim.setting.epochs for q in quantities(claim)}))
    if evidence.profile == "paper":
        return Undecidable("missing runs", f"runs missing: {have} of {needed} seeds are there, at {epochs} epochs")
    return Undecidable("another profile", f"needs profile paper ({needed} seeds at {epochs} epochs)")


def _left_side(
    statement: Statement, setting: Setting, evidence: Evidence, seeds: list[int], epochs: int | None = None
) -> list[float]:
    """quantity (- minus), one number per seed."""
    values = [evidence.value(statement.quantity, setting, seed, epochs) for seed in seeds]
    if statement.minus is None:
        return values
    others = [evidence.value(statement.minus, setting, seed, epochs) for seed in seeds]
    return [value - other for value, other in zip(values, others, strict=True)]


def _signed(estimate: verdicts.Estimate, statement: Statement) -> verdicts.Estimate:
    """Turned so that the statement holds where the mean is positive."""
    log = statement.quantity.log and statement.threshold > 0
    threshold = math.log10(statement.threshold) if log else statement.threshold
    return estimate.shifted(threshold, 1 if statement.direction == "above" else -1)


def _noise(statement: Statement, setting: Setting) -> float | None:
    """Assumed std of one seed's left side: independent errors, so pairing is given no credit."""
    sides = [side for side in (statement.quantity, statement.minus) if side]
    known = [setting.noise.get(side.method) for side in sides if side.metric == "test_accuracy"]
    return None if len(known) < len(sides) or None in known else math.hypot(*known)


def _result(
    claim: Claim,
    observed: Any,
    ci: Any,
    n: int,
    found: Verdict | Reason,
    notes: Sequence[str] = (),
    spread: float | None = None,
) -> Result:
    """`found` is the verdict, or why there is none; notes say how it was reached."""
    because = found if isinstance(found, Reason) else None
    verdict, told = ("inconclusive", [*notes, because.text]) if because else (found, notes)
    command = f"make reproduce PROFILE=paper SECTION={claim.section} SET={claim.set}"
    copied = [getattr(claim, name) for name in ("id", "statement", "kind", "expected", "margin")]
    return Result(*copied, observed, ci, n, verdict, ", ".join(told), command, claim, spread, because)


def predictions(profile: str, section: str | None = None) -> list[Result]:
    """Our own predictions about what the study left open, judged like its claims."""
    asked = [claim for claim in load_claims(PREDICTIONS) if section in (None, claim.section)]
    evidence = Evidence(Store(paths.profile_dir(profile)), profile)
    return [_judged(claim, evidence) for claim in asked]


def published(section: str, set_name: str) -> pd.DataFrame:
    """The study's single numbers about a section, one row each: what was measured, of which run, mean, std and n."""
    columns = ["method", "k", "penalty", "epochs", "metric", "layer", "mean", "std", "n", "margin", "printed", "id"]
    place = f"{section}/{set_name}"
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
    ]
    numbers = {"mean": float, "std": float, "n": int, "margin": float}  # so in a frame without rows too
    return pd.DataFrame(rows, columns=columns).astype(numbers)


def _write(results: Sequence[Result], path: Path) -> None:
    lines = json.dumps([result.to_json() for result in results], indent=1, sort_keys=True, allow_nan=False)
    write_atomically(path, lines + "\n")


def run(profile: str) -> list[Result]:
    """Check every claim, print the table, write claims.json."""
    folder = paths.profile_dir(profile)
    evidence = Evidence(Store(folder), profile)
    results = check(load_claims(), evidence)
    _write(results, folder / "claims.json")
    print_table(results)
    own = [_judged(claim, evidence) for claim in load_claims(PREDICTIONS)]
    _write(own, folder / "predictions.json")
    decided = any(result.verdict != "inconclusive" for result in own)
    print(f"\nOur own {len(own)} predictions: {counted(own) if decided else 'none can be decided by these runs'}.")
    return results
