"""The figures of the penalty rescue. Frames in, figures out; reference lines are runs of ours, never constants."""

import numpy as np
import pandas as pd
from matplotlib.axes import Axes
from matplotlib.figure import Figure

from creditaudit import style
from creditaudit.diagnosis import D1_LIMIT, D2_FLOOR
from creditaudit.marks import blank_if_empty, limit_line, method_legend, plain_title, whole_epochs
from creditaudit.spreads import decades
from creditaudit.tables import summarise
from creditaudit.tables_penalty import at


@blank_if_empty
def rescue_panels(epochs: pd.DataFrame, method: str, rescue: float) -> Figure:
    """||h_L||, ||g|| and accuracy over epochs, one seed: without the penalty, with it, and the references."""
    fig, (scale, reference, accuracy) = style.figure(3, 3.1)
    depth = int(epochs.depth.iloc[0])
    for penalty, line in ((0.0, style.DASHED), (rescue, "-")):
        run = at(epochs, method=method, penalty=penalty)
        draw = {"color": style.look(method).colour, "linestyle": line, "linewidth": 1.7}
        scale.plot(run.epoch, run.h_last.astype(float), **draw, label=_named(method, penalty))
        reference.plot(run.epoch, run.g_last.astype(float), **draw)
        thin = draw | {"linewidth": 0.9, "marker": ".", "markersize": 3}
        reference.plot(run.epoch, run.g_middle.astype(float), **thin)
        accuracy.plot(run.epoch, run.accuracy.astype(float), **draw)
    _references(scale, reference, accuracy, epochs, method)
    plain_title(scale, r"last state $\Vert h_L\Vert$")
    plain_title(reference, rf"gradient $\Vert g_{{{depth}}}\Vert$ (thick), $\Vert g_{{{depth // 2}}}\Vert$ (thin)")
    plain_title(accuracy, "test accuracy")
    for ax in (scale, reference):
        ax.set_yscale("log")
    for ax in (scale, reference, accuracy):
        ax.set_xlabel("epoch")
        whole_epochs(ax)
    limit_line(reference, D2_FLOOR, "floor", above=False)
    accuracy.set_ylim(bottom=0)
    style.chance_line(accuracy)
    fig.legend(loc="outside upper left", ncols=4, handlelength=2.6)
    return fig


def _references(scale: Axes, reference: Axes, accuracy: Axes, epochs: pd.DataFrame, method: str) -> None:
    """BP over the same epochs, and the method with frozen blocks."""
    bp, frozen = at(epochs, method="bp", penalty=0.0), at(epochs, method=method, k=0)
    for ax, column in ((scale, "h_last"), (reference, "g_last"), (accuracy, "accuracy")):
        label = "BP" if ax is scale and len(bp) else None
        ax.plot(bp.epoch, bp[column].astype(float), color=style.look("bp").colour, linewidth=1.1, label=label)
    label = f"{style.name(method)}, frozen (k = 0)" if len(frozen) else None
    look = style.look("frozen")
    for ax, column in ((scale, "h_last"), (accuracy, "accuracy")):
        named = label if ax is scale else None
        ax.plot(frozen.epoch, frozen[column].astype(float), color=look.colour, linestyle=look.line, label=named)


def _named(method: str, penalty: float) -> str:
    return f"{style.name(method)}, $\\lambda$ = {penalty:g}"


SWEPT = {
    "accuracy": ("test accuracy", False),
    "h_last": (r"last state $\Vert h_L\Vert$", True),
    "g_last": (r"$\Vert g_L\Vert$, batch 128", True),
    "growth": ("growth over one block", True),
    "gamma_deep": (r"deep cosine $\Gamma$", False),
    "rho_deep": (r"deep $\rho$", False),
}


@blank_if_empty
def sweep(rows: pd.DataFrame, methods: list[str]) -> Figure:
    """Everything against lambda: function, scale, reference, direction; BP and the frozen run as lines."""
    fig, grid = style.figure(3, 2.15, rows=2)
    swept = [method for method in style.in_order(methods) if len(at(rows, method=method))]
    penalties = sorted({value for method in swept for value in at(rows, method=method).penalty})
    for ax, (column, (title, log)) in zip(grid.flat, SWEPT.items(), strict=True):
        plain_title(ax, title)
        ax.set_xticks(range(len(penalties)), [_short(value) for value in penalties])
        ax.set_xlim(-0.4, len(penalties) - 0.6)
        if log:
            ax.set_yscale("log")
        for method in swept:
            _swept_points(ax, at(rows, method=method), column, penalties, log)
        _swept_references(ax, rows, swept, column, log)
    limit_line(grid.flat[2], D2_FLOOR, "D2 fails below", above=False)
    limit_line(grid.flat[3], D1_LIMIT, "D1 fails above", above=True)
    for ax in grid[1]:
        ax.set_xlabel(r"penalty $\lambda$")
    for ax in grid.flat[4:]:
        ax.axhline(0, color=style.MUTED, linewidth=0.9, zorder=1)
    _fresh_band(grid.flat[4], rows, swept)
    compared = ["bp"] if "bp" not in swept and len(at(rows, method="bp", penalty=0.0)) else []
    method_legend(fig, swept, lines=[*compared, *(["frozen"] if len(rows[rows.k == 0]) else [])])
    return fig


def _swept_points(ax: Axes, own: pd.DataFrame, column: str, penalties: list[float], log: bool) -> None:
    summary = summarise(decades(own, column) if log else own, ["method", "penalty"], column)
    if summary.empty:
        return
    look, x = style.look(summary.method.iloc[0]), [penalties.index(value) for value in summary.penalty]
    spreads = summary["std"].fillna(0)
    middle, low, high = (summary["mean"] + sign * spreads for sign in (0, -1, 1))
    if log:
        middle, low, high = (10.0**side for side in (middle, low, high))
    bars = None if summary["std"].isna().all() else [middle - low, high - middle]
    ax.errorbar(x, middle, yerr=bars, **look.plot(zorder=3, markersize=4.5, linewidth=1.2))


def _swept_references(ax: Axes, rows: pd.DataFrame, swept: list[str], column: str, log: bool) -> None:
    """Mean of BP without the penalty; and of every swept method's own frozen run, in its colour.

    BP's accuracy is a note: its line would leave no room in which to tell one lambda from another.
    """
    bp = at(rows, method="bp", penalty=0.0)
    if column == "accuracy" and len(bp) and "bp" not in swept:
        note = f"BP: {bp.accuracy.mean():.3f}"
        ax.annotate(note, (0.98, 0.04), xycoords="axes fraction", ha="right", color=style.look("bp").colour)
    lines = [("bp", "bp", bp)] if "bp" not in swept and column != "accuracy" else []
    if column in ("accuracy", "h_last"):
        lines += [("frozen", method, at(rows, method=method, k=0)) for method in swept]
    for kind, method, own in lines:
        values = (decades(own, column) if log else own)[column].astype(float).dropna()
        if len(values):
            level = 10.0 ** values.mean() if log else values.mean()
            style.reference_line(ax, level, kind, style.look(method).colour)


def _fresh_band(ax: Axes, rows: pd.DataFrame, swept: list[str]) -> None:
    """Where the cosine would be with feedback matrices the network was never trained against."""
    null = at(rows)[at(rows).method.isin(swept)][["fresh_null", "fresh_std"]].astype(float).dropna()
    if len(null):
        low, high = (null.fresh_null.mean() + sign * 2 * null.fresh_std.mean() for sign in (-1, 1))
        ax.axhspan(low, high, color=style.FAINT, alpha=0.35, lw=0, zorder=0, label="fresh $B$, ±2 std")
        ax.legend(loc="best", fontsize=7.5, labelcolor=style.MUTED, handlelength=1.2)


@blank_if_empty
def cosine_against_function(rows: pd.DataFrame, rescue: float, baseline: str) -> Figure:
    """Accuracy over deep cosine and over rho: each method from no penalty (hollow) to the penalty (full).

    `baseline` is the method whose frozen network is the line to compare with.
    """
    fig, axes = style.figure(2, 3.2, sharey=True)
    for ax, column, label in zip(
        axes, ("gamma_deep", "rho_deep"), (r"deep cosine $\Gamma$", r"deep $\rho$"), strict=True
    ):
        ax.axvline(0, color=style.MUTED, linewidth=0.9, zorder=1)
        ax.set_xlabel(label)
        for method in style.in_order(rows.method):
            _moved(ax, at(rows, method=method), column, rescue)
        low, high = ax.get_xlim()
        ax.set_xlim(max(low, -1.03), min(high, 1.03))  # a bar of ± std may pass 1, a correlation cannot
        frozen = rows[(rows.k == 0) & (rows.method == baseline)].accuracy.astype(float)
        if len(frozen):
            style.reference_line(ax, frozen.mean(), "frozen")
        ax.set_ylim(0, 0.05 + float(rows.accuracy.max()))
        style.chance_line(ax, label=False)
        _named_right(ax, style.CHANCE, "chance")
    axes[0].set_ylabel("test accuracy")
    method_legend(fig, rows.method, lines=["frozen"] if len(frozen) else [])
    return fig


def _moved(ax: Axes, own: pd.DataFrame, column: str, rescue: float) -> None:
    places = {}
    for penalty in (0.0, rescue):
        x, y = (at(own, penalty=penalty)[name].astype(float) for name in (column, "accuracy"))
        if x.notna().any():
            look = style.look(own.method.iloc[0])
            bars = {"xerr": x.std(), "yerr": y.std()} if len(x) > 1 else {}
            face = look.colour if penalty else "white"
            ax.errorbar(
                x.mean(), y.mean(), **bars, fmt=look.marker, color=look.colour, markerfacecolor=face, zorder=3,
                elinewidth=0.9, markersize=6,
            )  # fmt: skip
            places[penalty] = (float(x.mean()), float(y.mean()))
    if len(places) == 2:
        arrow = {"arrowstyle": "->", "color": look.colour, "lw": 1.0, "shrinkA": 5, "shrinkB": 5}
        ax.annotate("", places[rescue], places[0.0], arrowprops=arrow, zorder=2)


def _named_right(ax: Axes, y: float, text: str) -> None:
    ax.annotate(
        text, (0.99, y), (0, -4), xycoords=ax.get_yaxis_transform(), textcoords="offset points", ha="right", va="top",
        fontsize=8, color=style.MUTED,
    )  # fmt: skip


def _short(penalty: float) -> str:
    exponent = np.log10(penalty) if penalty else 0.5
    return f"$10^{{{exponent:.0f}}}$" if exponent == round(exponent) else f"{penalty:g}"
