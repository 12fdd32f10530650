"""Published numbers beside ours, with a reading of every difference.

The numbers come from claims.yaml. A reading says how large the difference of the means is and whether it stays
within the margin that was fixed before the first run; the *verdict* beside it weighs the scatter too.
"""

import math
from collections.abc import Sequence
from typing import Any

import pandas as pd

from creditaudit import metrics, style
from creditaudit.claims import Result
from creditaudit.claimspec import Claim, depth_of
from creditaudit.collect import Runs
from creditaudit.report import digits
from creditaudit.spreads import decades, spread

SYMBOLS = {
    "test_accuracy": "accuracy",
    "h_norm": r"$\lVert h_{l} \rVert$",
    "g_norm": r"$\lVert g_{l} \rVert$, batch 128",
    "g_norm_1024": r"$\lVert g_{l} \rVert$, batch 1024",
    "growth": "growth",
    "gamma": r"$\Gamma$",
    "gamma_deep": r"deep $\Gamma$",
    "gamma_at": r"$\Gamma_{l}$",
    "rho": r"$\rho$",
    "rho_deep": r"deep $\rho$",
    "nudge": r"nudging",
    "fresh_null": "fresh-$B$ null",
    "first_d1": "D1 first fails at",
    "first_d2": "D2 first fails at",
}


def split(results: Sequence[Result], runs: Runs) -> tuple[list[Result], list[Result]]:
    """Single published numbers of methods that have runs here, and all other claims."""
    methods = {spec.method for spec in runs.specs}

    def is_number(claim: Claim) -> bool:
        return claim.kind == "equivalence" and isinstance(claim.expected, float) and claim.quantity.method in methods

    numbers = [result for result in results if is_number(result.claim)]
    return numbers, [result for result in results if result not in numbers]


def beside_ours(numbers: Sequence[Result], runs: Runs, seed: int) -> pd.DataFrame:
    """Every published number beside one seed and the mean of ours, the difference and the verdict."""
    columns = ["run", "quantity", "published", f"seed {seed}", "ours", "n", "reading", "verdict"]
    return pd.DataFrame([_beside(result, runs, seed) for result in numbers], columns=columns)


def _beside(result: Result, runs: Runs, seed: int) -> dict[str, Any]:
    claim, quantity = result.claim, result.claim.quantity
    values = _values(claim, runs)
    frame = pd.DataFrame({"value": pd.Series(values, dtype=float)})
    places = metrics.METRICS[quantity.metric].places
    std = f" ± {claim.std:.{places}f}" if claim.std is not None else ""
    return {
        "run": _run(claim),
        "quantity": SYMBOLS.get(quantity.metric, quantity.metric).replace("{l}", f"{{{quantity.layer}}}"),
        "published": claim.printed or f"{_written(claim.expected, quantity.log, places)}{std}",
        f"seed {seed}": _written(values[seed], quantity.log, places) if values.get(seed) is not None else None,
        "ours": spread(frame, "value", places, log=quantity.log) if len(frame) else None,
        "n": len(frame),
        "reading": _reading(frame, claim) if len(frame) else "no such run",
        "verdict": result.verdict,
    }


def _values(claim: Claim, runs: Runs) -> dict[int, float | None]:
    """seed -> the claim's number, from runs of the study's own shape and epochs."""
    quantity, setting = claim.quantity, claim.setting
    layer = None if quantity.layer is None else depth_of(quantity.layer, setting)
    here = runs.only(method=quantity.method, penalty=quantity.penalty, width=setting.width, depth=setting.depth)
    here = here.only(k=depth_of(quantity.k, setting), epochs=quantity.epochs or setting.epochs)
    return {record.spec.seed: metrics.read(quantity.metric, record, layer) for record in here.records}


def _run(claim: Claim) -> str:
    quantity = claim.quantity
    parts = [style.name(quantity.method)]
    parts += [f"$\\lambda={quantity.penalty:g}$"] if quantity.penalty else []
    parts += [f"{quantity.epochs} epochs"] if quantity.epochs else []
    return ", ".join(parts)


def _reading(frame: pd.DataFrame, claim: Claim) -> str:
    """The size of the difference, against the margin."""
    if claim.quantity.log:
        shift, margin = (
            decades(frame, "value").value.mean() - math.log10(claim.expected),
            f"{digits(10**claim.margin)} ×",
        )
    else:
        shift, margin = frame.value.mean() - claim.expected, f"±{claim.margin:g}"
    if undefined := int(frame.value.isna().sum()):
        return f"undefined in {undefined} of {len(frame)} runs"
    size = _factor(shift) if claim.quantity.log else _distance(shift)
    return f"{size}, within {margin}" if abs(shift) <= claim.margin else f"**{size}**, beyond {margin}"


def _factor(shift: float) -> str:
    factor = 10 ** abs(shift)
    return "equal" if factor < 1.05 else f"{digits(factor)} × {'larger' if shift > 0 else 'smaller'}"


def _distance(shift: float) -> str:
    size = digits(abs(shift)) if abs(shift) >= 1 else f"{abs(shift):.3f}"
    return "equal" if size == "0.000" else f"{size} {'higher' if shift > 0 else 'lower'}"


def _written(value: float, log: bool, places: int) -> str:
    return digits(value) if log else f"{value:.{places}f}".replace("-", "−")
