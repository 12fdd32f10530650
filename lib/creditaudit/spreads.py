"""A mean and its scatter over seeds, as text. Norms are averaged in log10: a geometric mean, and a factor for a std."""

from collections.abc import Iterable
from typing import Any

import numpy as np
import pandas as pd

from creditaudit import style
from creditaudit.report import digits, factor
from creditaudit.tables import plus_minus


def spread(frame: pd.DataFrame, column: str, places: int = 3, signed: bool = False, log: bool = False) -> str | None:
    """Mean ± std over the rows; for norms the geometric mean and the factor of one std. None: nothing is defined.

    Where it is not defined in every row (an overflow, a frozen run that is missing) the text has its own n.
    """
    values = (decades(frame, column)[column] if log else frame[column]).astype(float).dropna()
    if values.empty:
        return None
    if log:
        text = digits(float(10.0 ** values.mean())) + (f" {factor(values.std(ddof=1))}" if len(values) > 1 else "")
    else:
        text = plus_minus(values.mean(), values.std(ddof=1), places, signed)
    return text if len(values) == len(frame) else f"{text} (n={len(values)})"


def decades(frame: pd.DataFrame, column: str) -> pd.DataFrame:
    """The column in log10; what is not positive or not finite is missing."""
    values = frame[column].astype(float)
    return frame.assign(**{column: np.log10(values.where(values > 0))})


def by_method(frame: pd.DataFrame) -> list[tuple[str, pd.DataFrame]]:
    return [(method, frame[frame.method == method]) for method in style.in_order(frame.method)]


def as_table(rows: Iterable[dict[str, Any]]) -> pd.DataFrame:
    """Rows as a frame to show; where there are none, one that says so."""
    rows = list(rows)
    return pd.DataFrame(rows) if rows else pd.DataFrame({"no run has finished yet": []})


def named_means(frame: pd.DataFrame, column: str, log: bool = False, places: int = 3) -> str:
    """BP 0.617, DFA 0.304: for captions and alt texts."""
    texts = []
    for method, own in by_method(frame):
        values = (decades(own, column)[column] if log else own[column]).astype(float).dropna()
        mean = values.mean() if len(values) else None
        text = "undefined" if mean is None else digits(10.0**mean) if log else plus_minus(mean, float("nan"), places)
        texts.append(f"{style.name(method)} {text}")
    return ", ".join(texts) or "no run yet"


def sample_note(frame: pd.DataFrame) -> str:
    """What an error bar is here, and over how many seeds; every method's own n where they differ."""
    cells = [name for name in ("method", "k", "penalty", "epochs") if name in frame]
    counts = frame.groupby(cells).seed.nunique()
    if counts.empty or counts.max() == 1:
        return "n = 1 seed" if len(counts) else "no run yet"
    spans = {method: _span(counts[counts.index.get_level_values("method") == method]) for method, _ in by_method(frame)}
    usual = max(spans.values(), key=list(spans.values()).count)
    others = ", ".join(f"{span} for {style.name(method)}" for method, span in spans.items() if span != usual)
    return f"std over seeds (ddof 1), n = {usual}" + (f" ({others})" if others else "")


def _span(counts: pd.Series) -> str:
    low, high = int(counts.min()), int(counts.max())
    return str(high) if low == high else f"{low} to {high}"


def scatter_note(frame: pd.DataFrame, what: str = "bars") -> str:
    """bars: std over seeds (ddof 1), n = 3; or why there are none."""
    note = sample_note(frame)
    return f"{what}: {note}" if note.startswith("std") else note.replace("1 seed", "1 seed, hence no error bars")


def on_shared_seeds(frame: pd.DataFrame) -> tuple[pd.DataFrame, str]:
    """The rows of the seeds that every method has, and a note where that leaves some out: ranks need the same seeds."""
    seeds = sorted(set.intersection(*(set(own.seed) for _, own in by_method(frame)))) if len(frame) else []
    if not seeds and len(frame):
        return frame, " (over different seeds)"
    kept = frame[frame.seed.isin(seeds)]
    numbers = ", ".join(map(str, seeds))
    return kept, "" if len(kept) == len(frame) else f" (seed{'s' * (len(seeds) > 1)} {numbers}, which all have)"
