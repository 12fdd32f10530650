"""Between records and figures: tidy tables on disk, small summaries on the page.

A table on disk has one row per run (or run and layer) and is the same bytes for the same records. A summary is a
mean with its ddof-1 standard deviation and, always beside it, the number of seeds n.
"""

import math
from collections.abc import Sequence
from pathlib import Path

import pandas as pd

from creditaudit import paths, style
from creditaudit.claimspec import Claim, depth_of
from creditaudit.collect import COLUMNS
from creditaudit.records import write_atomically
from creditaudit.spec import RunSpec

KEYS = [*COLUMNS, "layer", "epoch"]
DIGITS = 10  # significant: more than any reader needs, fewer than where machines differ


def save(frame: pd.DataFrame, section: str, set_name: str, profile: str) -> Path:
    """Write tables/<section>--<set>.csv among the profile's products, rows sorted by what was varied."""
    path = paths.products_dir(profile) / "tables" / f"{section}--{set_name}.csv"
    keys = [name for name in KEYS if name in frame]
    ordered = frame.sort_values(keys, kind="stable") if keys else frame
    write_atomically(path, ordered.to_csv(index=False, float_format=f"%.{DIGITS}g", lineterminator="\n"))
    return path


def summarise(frame: pd.DataFrame, by: Sequence[str], value: str) -> pd.DataFrame:
    """One row per group: n, mean, std (ddof 1; not a number for n = 1). Undefined values do not count."""
    groups = frame.dropna(subset=[value]).groupby(list(by), sort=True)[value]
    table = groups.agg(n="count", mean="mean", std="std").reset_index()
    return table.astype({"mean": float, "std": float})


def gains(frame: pd.DataFrame, value: str = "accuracy") -> pd.DataFrame:
    """Each trained run minus the frozen run (k = 0) of the same method and seed, in percentage points."""
    pairing = ["method", "width", "depth", "epochs", "seed"]
    frozen = frame[frame.k == 0][[*pairing, value]].rename(columns={value: "frozen"})
    joined = frame[frame.k > 0].merge(frozen, on=pairing)
    return joined.assign(gain=100 * (joined[value] - joined.frozen)).drop(columns="frozen")


def comparable(frame: pd.DataFrame) -> pd.DataFrame:
    """Of one method's ladder, the seeds that have every rung: rungs are compared between the same seeds only.

    Where no seed has them all, the seeds with the frozen and the full network, at the rungs that all of these have.
    """
    rungs, depth = frame.groupby("seed").k.agg(set), int(frame.depth.max()) if len(frame) else 0
    whole, ends = (rungs[rungs.map(needed.issubset)] for needed in (set(range(depth + 1)), {0, depth}))
    kept = whole if len(whole) else ends
    shared = set.intersection(*kept) if len(kept) else set()
    return frame[frame.seed.isin(kept.index) & frame.k.isin(shared)]


def plus_minus(mean: float, std: float, digits: int = 3, signed: bool = False) -> str:
    """0.389 ± 0.001; without a spread, the number alone."""
    text = f"{mean:{'+' if signed else ''}.{digits}f}".replace("-", "−")
    return text if math.isnan(std) else f"{text} ± {std:.{digits}f}"


def by_rung(summary: pd.DataFrame, digits: int = 3, signed: bool = False) -> pd.DataFrame:
    """One row per method, one column per k. Where a cell has fewer seeds than n says, it says so itself."""
    rows = []
    rungs = sorted(summary.k.unique())
    for method in style.in_order(summary.method):
        cells = summary[summary.method == method].set_index("k")
        most = int(cells.n.max())
        row = {"method": style.name(method), "n": most}
        for k in rungs:
            row[f"k = {k}"] = _cell(cells.loc[k], most, digits, signed) if k in cells.index else None
        rows.append(row)
    return pd.DataFrame(rows, columns=["method", "n", *(f"k = {k}" for k in rungs)])


def _cell(cell: pd.Series, most: int, digits: int, signed: bool) -> str:
    text = plus_minus(cell["mean"], cell["std"], digits, signed)
    return text if cell["n"] == most else f"{text} (n={cell['n']:.0f})"


def published_ladder(claims: Sequence[Claim], set_name: str, specs: Sequence[RunSpec]) -> pd.DataFrame:
    """The study's cells for these runs, from claims.yaml, in the form `summarise` gives ours."""
    ours = {(spec.method, spec.width, spec.depth, spec.epochs) for spec in specs}
    cells = [
        {
            "method": claim.quantity.method,
            "k": depth_of(claim.quantity.k, claim.setting),
            "n": claim.n,
            "mean": claim.expected,
            "std": claim.std,
        }
        for claim in claims
        if claim.place == f"depth_ladder/{set_name}"
        and claim.kind == "equivalence"
        and ".cross." not in claim.id
        and (claim.quantity.method, claim.setting.width, claim.setting.depth, claim.setting.epochs) in ours
    ]
    return pd.DataFrame(cells, columns=["method", "k", "n", "mean", "std"])


def ladder(summary: pd.DataFrame, published: pd.DataFrame) -> pd.DataFrame:
    """Ours above the study's, method by method."""
    halves = []
    for source, half in (("ours", summary), ("published", published)):
        table = by_rung(half)
        table.insert(1, "source", source)
        halves += [table] if len(table) else []
    if not halves:
        return pd.DataFrame({"method": [], "source": [], "n": []})
    both = pd.concat(halves, ignore_index=True)
    order = [style.name(method) for method in style.in_order([*summary.method, *published.method])]
    both = both.sort_values("method", key=lambda names: names.map(order.index), kind="stable")  # ours stays above
    rungs = sorted((name for name in both if name.startswith("k = ")), key=lambda name: int(name[4:]))
    return both[["method", "source", "n", *rungs]].reset_index(drop=True)


def identity(tidy: pd.DataFrame) -> pd.DataFrame:
    """One row per seed, then mean and std: each block's ratio, the stack's deviation and cosine."""
    depth = int(tidy.layer.max())
    per_block = tidy[tidy.layer < depth].pivot(index="seed", columns="layer", values="ratio")
    per_block.columns = [f"block {layer}" for layer in per_block.columns]
    last = tidy[tidy.layer == depth].set_index("seed")[["deviation", "cosine"]]
    table = per_block.assign(blocks=per_block.mean(axis=1)).join(last)
    table = table.rename(columns={"blocks": "all blocks"})
    measures = {"mean": table.mean(), "std (ddof 1)": table.std(ddof=1)}
    table.index = [f"seed {seed}" for seed in table.index]
    if len(table) > 1:
        table = pd.concat([table, pd.DataFrame(measures).T])
    return table.map("{:.5f}".format).rename_axis("run").reset_index()
