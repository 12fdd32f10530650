"""Published numbers beside ours, with a reading of every difference.

The numbers come from claims.yaml. A reading says how large the difference of the means is and whether it stays
within the margin that was fixed before the first run; the *verdict*, which weighs the scatter too, is the claim's.
"""

import math
from collections.abc import Sequence
from typing import Any

import pandas as pd

from creditaudit import metrics, style
from creditaudit.claimspec import Claim, depth_of
from creditaudit.collect import Runs
from creditaudit.spreads import decades, digits, spread


def beside_ours(claims: Sequence[Claim], runs: Runs, seed: int) -> pd.DataFrame:
    """Every published number of this set beside one seed and the mean of ours, with a reading of the difference."""
    rows = [_beside(claim, runs, seed) for claim in claims if _is_number(claim)]
    columns = ["method", "quantity", "published", f"seed {seed}", "ours", "n", "reading"]
    known = {spec.method for spec in runs.specs}
    return pd.DataFrame([row for row in rows if row.pop("key") in known], columns=columns)


def _is_number(claim: Claim) -> bool:
    return claim.kind == "equivalence" and not isinstance(claim.expected, list)


def _beside(claim: Claim, runs: Runs, seed: int) -> dict[str, Any]:
    quantity, setting = claim.quantity, claim.setting
    layer = None if quantity.layer is None else depth_of(quantity.layer, setting)
    here = runs.only(method=quantity.method, penalty=quantity.penalty, width=setting.width, depth=setting.depth)
    here = here.only(k=depth_of(quantity.k, setting), epochs=quantity.epochs or setting.epochs)
    values = {record.spec.seed: metrics.read(quantity.metric, record, layer) for record in here.records}
    frame = pd.DataFrame({"value": pd.Series(values, dtype=float)})
    std = f" ± {claim.std:.3f}" if claim.std is not None else ""
    return {
        "key": quantity.method,
        "method": style.name(quantity.method),
        "quantity": _SYMBOLS.get(quantity.metric, quantity.metric),
        "published": f"{_written(claim.expected, quantity.log)}{std}",
        f"seed {seed}": _written(values[seed], quantity.log) if values.get(seed) is not None else None,
        "ours": spread(frame, "value", log=quantity.log) if len(frame) else None,
        "n": len(frame),
        "reading": _reading(frame, claim) if len(frame) else "no run at the study's shape and epochs",
    }


_SYMBOLS = {
    "test_accuracy": "accuracy",
    "h_norm": r"$\lVert h_L \rVert$",
    "g_norm": r"$\lVert g_L \rVert$, batch 128",
    "growth": "growth",
    "gamma": r"$\Gamma$",
    "gamma_deep": r"$\Gamma$, blocks 1 to $L-1$",
    "gamma_at": r"$\Gamma$, one block",
    "rho": r"$\rho$",
    "nudge": r"nudging, $\eta=.01$",
    "first_d1": "epoch D1 first fails",
    "first_d2": "epoch D2 first fails",
}


def _reading(frame: pd.DataFrame, claim: Claim) -> str:
    """The size of the difference, against the margin that was fixed beforehand."""
    if claim.quantity.log:
        shift = decades(frame, "value").value.mean() - math.log10(claim.expected)
        size = f"{10 ** abs(shift):.2g} times {'larger' if shift > 0 else 'smaller'}"
    else:
        shift = frame.value.mean() - claim.expected
        size = f"{digits(abs(shift))} {'higher' if shift > 0 else 'lower'}"
    if math.isnan(shift):
        return "undefined in our runs"
    margin = f"{claim.margin:g} decades" if claim.quantity.log else f"{claim.margin:g}"
    return f"{size}, within the margin" if abs(shift) <= claim.margin else f"**{size}**, beyond the margin of {margin}"


def _written(value: float, log: bool) -> str:
    return digits(value) if log else f"{value:.3f}".replace("-", "−")
