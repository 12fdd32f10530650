"""What the figures of the audit and of the penalty are made of: curves, points, bars and limits for several methods.

Lines and bars are means over seeds, bands and error bars the ddof-1 standard deviation; with one seed there are
none. Norms are averaged and scattered in log10.
"""

from collections.abc import Callable, Sequence
from functools import wraps
from typing import Any

import numpy as np
import pandas as pd
from matplotlib.axes import Axes
from matplotlib.figure import Figure
from matplotlib.lines import Line2D
from matplotlib.ticker import MaxNLocator

from creditaudit import style
from creditaudit.spreads import decades
from creditaudit.tables import summarise

BAND = 0.16  # opacity of a std band


def blank_if_empty(draw: Callable[..., Figure]) -> Callable[..., Figure]:
    """A section none of whose runs has finished still renders, and its figures say so."""

    @wraps(draw)
    def drawn(frame: pd.DataFrame, *more: Any, **options: Any) -> Figure:
        style.use()
        if len(frame):
            return draw(frame, *more, **options)
        fig, ax = style.figure(1, 0.8)
        ax.set_axis_off()
        ax.text(0.5, 0.5, "no run has finished yet", ha="center", va="center", color=style.MUTED)
        return fig

    return drawn


def mean_curves(ax: Axes, frame: pd.DataFrame, column: str, log: bool = False) -> list[tuple[float, float, str, str]]:
    """One line per method with its std band; returns what `style.label_ends` needs."""
    values = decades(frame, column) if log else frame
    summary, ends = summarise(values, ["method", "epoch"], column), []
    for method in style.in_order(summary.method):
        look, curve = style.look(method), summary[summary.method == method]
        middle, low, high = (curve["mean"] + sign * curve["std"].fillna(0) for sign in (0, -1, 1))
        if log:
            middle, low, high = (10.0**side for side in (middle, low, high))
        few = {"marker": look.marker, "markersize": 4} if len(curve) <= 5 else {"marker": ""}
        ax.plot(curve.epoch, middle, **look.plot(zorder=3, **few))
        ax.fill_between(curve.epoch, low, high, color=look.colour, alpha=BAND, lw=0, zorder=2)
        ends.append((curve.epoch.iloc[-1], middle.iloc[-1], look.name, look.colour))
    whole_epochs(ax)
    return ends


def whole_epochs(ax: Axes) -> None:
    ax.xaxis.set_major_locator(MaxNLocator(5, integer=True))


def dodged_points(ax: Axes, frame: pd.DataFrame, column: str, **more: Any) -> None:
    """Mean and std per block, the methods side by side so that none hides another."""
    summary = summarise(frame, ["method", "layer"], column)
    methods = style.in_order(summary.method)
    step = 0.5 / max(len(methods), 4)
    for place, method in enumerate(methods):
        look, points = style.look(method), summary[summary.method == method]
        x = points.layer + step * (place - (len(methods) - 1) / 2)
        bars = None if points["std"].isna().all() else points["std"].fillna(0)
        small = {"zorder": 3, "markersize": 4, "linewidth": 1.1, "elinewidth": 0.9}
        ax.errorbar(x, points["mean"], yerr=bars, **look.plot(**(small | more)))


def value_bars(
    ax: Axes,
    frame: pd.DataFrame,
    column: str,
    methods: Sequence[str],
    write: Callable[[float], str] | None = None,
) -> None:
    """Horizontal bars, best read in the order of `methods`, each with its value behind the error bar."""
    summary = summarise(frame, ["method"], column).set_index("method")
    ends = []
    for place, method in enumerate(methods):
        if method not in summary.index:
            ends.append(0.0)
            ax.annotate("undefined", (0, place), (3, 0), textcoords="offset points", va="center", fontsize=7.5)
            continue
        mean, std = summary.loc[method, "mean"], summary.loc[method, "std"]
        bars = None if np.isnan(std) else std
        ax.barh(place, mean, 0.62, xerr=bars, color=style.look(method).colour, error_kw={"elinewidth": 0.9})
        ends.append(mean + np.sign(mean) * (0 if np.isnan(std) else std))
        side = 1 if mean >= 0 else -1
        text = (write or "{:.3f}".format)(mean).replace("-", "−")
        ax.annotate(
            text, (ends[-1], place), (3 * side, 0), textcoords="offset points", va="center",
            ha="left" if side > 0 else "right", fontsize=8,
        )  # fmt: skip
    ax.set_yticks(range(len(methods)), [style.name(method) for method in methods])
    if not ax.yaxis_inverted():  # panels may share the axis
        ax.invert_yaxis()
    ax.grid(visible=False)
    ax.axvline(0, color=style.MUTED, linewidth=0.8)
    low, high = min([0.0, *ends]), max([0.0, *ends])
    room = 0.42 * (high - low or 1)
    ax.set_xlim(low - room * (low < 0), high + room * (high > 0 or low == 0))
    ax.spines["left"].set_visible(False)
    ax.tick_params(axis="y", length=0)
    ax.locator_params(axis="x", nbins=3)


def limit_line(ax: Axes, y: float, text: str, above: bool) -> None:
    """A diagnostic's limit, with a shade over the side that fails."""
    low, high = ax.get_ylim()
    low, high = min(low, y / 3), max(high, y * 3)
    ax.axhline(y, color=style.INK, linewidth=0.9, linestyle=style.DASHED, zorder=4)
    ax.axhspan(y if above else low, high if above else y, color=style.FAINT, alpha=0.15, lw=0, zorder=0)
    ax.annotate(
        f"{text} {tidy_power(y)}", (1, y), (-2, 3 if above else -9), xycoords=ax.get_yaxis_transform(),
        textcoords="offset points", ha="right", fontsize=7.5, color=style.MUTED, zorder=5,
        bbox={"facecolor": "white", "edgecolor": "none", "alpha": 0.75, "pad": 0.6},
    )  # fmt: skip
    ax.set_ylim(low, high)


def tidy_power(value: float) -> str:
    """50, or a power of ten as mathematics."""
    exponent = np.log10(value)
    return f"$10^{{{exponent:.0f}}}$" if exponent == round(exponent) else f"{value:g}"


def method_legend(fig: Figure, methods: Sequence[str], lines: Sequence[str] = ()) -> None:
    """One row above all panels, the same for lines, points and bars; `lines` are drawn as such, without a marker."""
    looks = [(look, {"markersize": 4.5}) for look in map(style.look, style.in_order(methods))]
    looks += [(look, {"marker": ""}) for look in map(style.look, style.in_order(lines))]
    handles = [Line2D([], [], **look.plot(label=look.name, **marker)) for look, marker in looks]
    fig.legend(handles=handles, loc="outside upper left", ncols=len(handles), handlelength=2.6, columnspacing=1.4)


def plain_title(ax: Axes, text: str) -> None:
    """For titles with symbols, which have no bold."""
    ax.set_title(text, fontsize=9, fontweight="normal")
