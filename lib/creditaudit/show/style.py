"""One look for all figures: a colour, a marker and a line per method, the same everywhere.

The colours stay apart for colour-blind readers and differ in lightness; markers and dashes carry the difference
where there is no colour at all. Figures have no background: in the dark appendix they lie on a light card.
"""

from collections.abc import Iterable
from typing import Any

import matplotlib.pyplot as plt
import numpy as np
from matplotlib.axes import Axes
from matplotlib.figure import Figure

from creditaudit.engine import catalogue
from creditaudit.engine.catalogue import in_order  # noqa: F401  for the notebooks
from creditaudit.engine.catalogue import label as name  # noqa: F401
from creditaudit.measure.rules import CHANCE

WIDTH = 7.0  # inches, the text column of the appendix
INK, MUTED, FAINT = "#1d1f24", "#5d626d", "#a3a8b1"

RC = {
    "figure.figsize": (WIDTH, 3.2),
    "figure.facecolor": "none",
    "axes.facecolor": "none",
    "savefig.facecolor": "none",
    "font.family": "sans-serif",
    "font.sans-serif": ["DejaVu Sans"],  # comes with matplotlib, so the bytes are the same everywhere
    "font.size": 9,
    "axes.titlesize": 9.5,
    "axes.titleweight": "bold",
    "axes.titlelocation": "left",
    "axes.labelsize": 9,
    "xtick.labelsize": 8.5,
    "ytick.labelsize": 8.5,
    "text.color": INK,
    "axes.labelcolor": INK,
    "axes.edgecolor": MUTED,
    "xtick.color": MUTED,
    "ytick.color": MUTED,
    "xtick.labelcolor": INK,
    "ytick.labelcolor": INK,
    "axes.spines.top": False,
    "axes.spines.right": False,
    "axes.linewidth": 0.8,
    "axes.grid": True,
    "axes.grid.axis": "y",
    "axes.axisbelow": True,
    "grid.color": "#d9dbe0",
    "grid.linewidth": 0.6,
    "lines.linewidth": 1.7,
    "lines.markersize": 5.5,
    "errorbar.capsize": 2.5,
    "legend.frameon": False,
    "legend.fontsize": 8.5,
    "figure.constrained_layout.use": True,
}


def look(method: str) -> catalogue.Entry:
    """Its colour, marker and line."""
    return catalogue.entries()[method]


def figure(columns: int = 1, height: float = 3.2, rows: int = 1, **options: Any) -> tuple[Figure, Any]:
    """A figure as wide as the text column."""
    with plt.rc_context(RC):
        return plt.subplots(rows, columns, figsize=(WIDTH, height * rows), layout="constrained", **options)


def chance_line(ax: Axes, label: bool = True) -> None:
    """Named below the line, along which a method runs that learns nothing; above it where the axis is too near."""
    reference_line(ax, CHANCE, faint=True)
    if label:
        room = 72 / ax.figure.dpi * (ax.transData.transform((0, CHANCE))[1] - ax.bbox.y0)
        below = not 0 < room < 16  # points
        place = {"xy": (0, CHANCE), "xycoords": ax.get_yaxis_transform(), "xytext": (3, -4 if below else 2)}
        va = "top" if below else "bottom"
        ax.annotate("chance", **place, textcoords="offset points", va=va, color=MUTED, fontsize=8)


def reference_line(ax: Axes, y: float, faint: bool = False) -> None:
    """A horizontal line behind the data."""
    colour, dashes = (FAINT, (1, 2)) if faint else (MUTED, (1.2, 1.6))
    ax.axhline(y, color=colour, linestyle=(0, dashes), linewidth=1.1, zorder=1)


def label_ends(
    ax: Axes, ends: Iterable[tuple[float, float, str, str]], gap: float = 10.5, laid_out: bool = True
) -> None:
    """Name curves at their right end: (x, y, text, colour), moved apart where they would collide.

    Call it after limits and scales are set: the distances are measured in points on the page. Laying the page out
    first takes longer than drawing it; a picture that is drawn again and again does without.
    """
    placed = sorted(ends, key=lambda end: end[1])
    if not placed:
        return
    if laid_out:
        ax.figure.draw_without_rendering()
    to_points = 72 / ax.figure.dpi
    places = np.array([ax.transData.transform((x, y)) * to_points for x, y, *_ in placed])
    drawn = _points(ax) * to_points
    for (x, y, text, colour), (across, here), there in zip(placed, places, _spread(places[:, 1], gap), strict=True):
        near = drawn[(abs(drawn[:, 1] - there) < gap / 2) & (abs(drawn[:, 0] - across - 20) <= 20)]
        right = max(near[:, 0], default=across) - across  # a curve may stand beside its place, with caps on its bars
        ax.annotate(
            text, (x, y), (max(11, right + 7), there - here), textcoords="offset points", color=colour, va="center",
            fontsize=8.5, annotation_clip=False,
        )  # fmt: skip


def _points(ax: Axes) -> np.ndarray:
    """Where the axes' curves and error bars have their points, in pixels."""
    curves = [line for line in ax.lines if line.get_transform() == ax.transData]
    return np.vstack([np.empty((0, 2)), *(ax.transData.transform(line.get_xydata()) for line in curves)])


def _spread(heights: np.ndarray, gap: float) -> np.ndarray:
    """Sorted positions moved as little as needed to be `gap` apart: pools of neighbours keep their centre."""
    pools: list[list[float]] = []
    for height in heights:
        pools.append([height])
        while len(pools) > 1 and np.mean(pools[-1]) - np.mean(pools[-2]) < gap * (len(pools[-1]) + len(pools[-2])) / 2:
            last = pools.pop()
            pools[-1] += last
    return np.concatenate([np.mean(pool) + gap * (np.arange(len(pool)) - (len(pool) - 1) / 2) for pool in pools])
