"""The tables of the penalty rescue: one row per run on disk; over lambda, and with against without, on the page."""

from collections.abc import Iterator

import numpy as np
import pandas as pd

from creditaudit import style
from creditaudit.collect import Runs
from creditaudit.spreads import as_table, by_method, spread


def by_budget(runs: Runs) -> tuple[Runs, Runs]:
    """The runs of the section's own epochs, and the longer ones, which only ask whether the rescue holds."""
    budgets = sorted({spec.epochs for spec in runs.specs})
    return runs.only(epochs=budgets[:1]), runs.only(epochs=budgets[1:])


def per_run(runs: Runs) -> pd.DataFrame:
    """One row per run. Norms at the end: `g_last` over batches of 128, `*_1024` as the trajectories have it."""
    middle = middle_layer(runs)
    draws = [(record.final.get("fresh_null") or {}).get("std") for record in runs.records]
    frame = runs.frame(
        accuracy="test_accuracy",
        h_last=("h_norm", "L"),
        growth="growth",
        g_last=("g_norm", "L"),
        g_last_1024=("g_norm_1024", "L"),
        g_middle_1024=("g_norm_1024", middle),
        gamma_deep="gamma_deep",
        rho_deep="rho_deep",
        rho_scaled_deep="rho_scaled_deep",
        fresh_null="fresh_null",
    )
    deep = [_geometric_mean(record.final["h_norm"][1:-1]) for record in runs.records]
    return frame.assign(fresh_std=pd.Series(draws, dtype=float), h_deep=pd.Series(deep, dtype=float))


def _geometric_mean(norms: list[float | None]) -> float | None:
    """Of the states that deep rho moves; None where one overflowed, or there are none."""
    return None if not norms or None in norms else float(np.exp(np.mean(np.log(norms))))


def trajectories(runs: Runs, seed: int) -> pd.DataFrame:
    """One row per epoch of each run of one seed: what the three panels show."""
    middle = middle_layer(runs)
    return runs.only(seed=seed).by_epoch(
        accuracy="test_accuracy",
        h_last=("h_norm", "L"),
        g_last=("g_norm", "L"),
        g_middle=("g_norm", middle),
    )


def middle_layer(runs: Runs) -> int:
    """The layer whose gradient the study's figure shows: 2 of 4."""
    return max((spec.depth for spec in runs.specs), default=0) // 2


def at(rows: pd.DataFrame, **fields: object) -> pd.DataFrame:
    """The runs with these values, at full depth unless k is given."""
    chosen = rows if "k" in fields else rows[rows.k == rows.depth]
    for name, value in fields.items():
        chosen = chosen[chosen[name] == value]
    return chosen


def sweep(rows: pd.DataFrame, longer: pd.DataFrame, method: str) -> pd.DataFrame:
    """One row per lambda, then the longer runs, the frozen network and BP, all in the same columns."""
    return as_table(_sweep_row(label, own) for label, own in _sweep_groups(rows, longer, method) if len(own))


def _sweep_groups(rows: pd.DataFrame, longer: pd.DataFrame, method: str) -> Iterator[tuple[str, pd.DataFrame]]:
    name = style.name(method)
    for penalty in sorted(at(rows, method=method).penalty.unique()):
        yield f"{name}, $\\lambda$ = {penalty:g}", at(rows, method=method, penalty=penalty)
    for (epochs, penalty), own in at(longer, method=method).groupby(["epochs", "penalty"]):
        yield f"{name}, $\\lambda$ = {penalty:g}, {epochs} epochs", own
    yield f"{name}, frozen ($k=0$)", at(rows, method=method, k=0)
    if method != "bp":
        for penalty in sorted(at(rows, method="bp").penalty.unique()):
            yield f"BP, $\\lambda$ = {penalty:g}", at(rows, method="bp", penalty=penalty)


def _sweep_row(label: str, own: pd.DataFrame) -> dict[str, object]:
    driven = own[own.k > 0]  # the credit of a frozen block drives nothing
    return {
        "run": label,
        "n": len(own),
        "accuracy": spread(own, "accuracy"),
        r"$\lVert h_L \rVert$": spread(own, "h_last", log=True),
        r"$\lVert g_L \rVert$": spread(own, "g_last", log=True),
        r"deep $\Gamma$": spread(driven, "gamma_deep", signed=True),
        r"deep $\rho$": spread(driven, "rho_deep", signed=True),
        "fresh-$B$ null": spread(driven, "fresh_null", signed=True),
    }


def with_and_without(rows: pd.DataFrame, rescue: float) -> pd.DataFrame:
    """Per method: frozen, without and with the penalty."""
    groups = [
        (method, label, own, at(mine, k=0))
        for method, mine in by_method(rows)
        for label, own in (
            ("frozen", at(mine, k=0)),
            ("$\\lambda=0$", at(mine, penalty=0.0)),
            (f"$\\lambda={rescue:g}$", at(mine, penalty=rescue)),
        )
    ]
    return as_table(
        {
            "method": style.name(method),
            "blocks": label,
            "n": len(own),
            "accuracy": spread(own, "accuracy"),
            "over frozen, pp": spread(paired(own, frozen), "gain", places=1, signed=True)
            if label != "frozen"
            else None,
            r"deep $\Gamma$": spread(own, "gamma_deep", signed=True),
            r"deep $\rho$": spread(own, "rho_deep", signed=True),
            "scaled step": spread(own, "rho_scaled_deep", signed=True),
        }
        for method, label, own, frozen in groups
        if len(own)
    )


def paired(runs: pd.DataFrame, others: pd.DataFrame) -> pd.DataFrame:
    """Accuracy minus that of the other runs, seed by seed, in percentage points."""
    gain = 100 * (runs.set_index("seed").accuracy - others.set_index("seed").accuracy)
    return pd.DataFrame({"gain": gain})


def ranking(rows: pd.DataFrame, rescue: float, column: str) -> list[str]:
    """The methods but BP under the penalty, the highest mean first."""
    local = at(rows, penalty=rescue)
    means = local[local.method != "bp"].dropna(subset=[column]).groupby("method")[column].mean()
    return list(means.sort_values(ascending=False, kind="stable").index)
