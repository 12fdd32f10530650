"""The figures of the identity check and of the depth ladder. Frames in, figures out; nothing here reads a record."""

import math

import numpy as np
import pandas as pd
from matplotlib.axes import Axes
from matplotlib.figure import Figure
from matplotlib.ticker import MultipleLocator

from creditaudit import style

DODGE = 0.07  # in units of k: ours stand as far left of their rung as published values stand right of it


def ladder(panels: dict[str, tuple[pd.DataFrame, pd.DataFrame]]) -> Figure:
    """Accuracy against trainable blocks; one panel per shape: title -> (our summary, the published one)."""
    style.use()
    rungs = [max([1, *ours.k, *published.k]) for ours, published in panels.values()]
    ratios = [rung + 1.4 for rung in rungs]
    fig, axes = style.figure(len(panels), 3.4, sharey=True, squeeze=False, width_ratios=ratios)
    top = _top([frame for pair in panels.values() for frame in pair])
    for ax, rung, (title, (ours, published)) in zip(axes[0], rungs, panels.items(), strict=True):
        ax.set_title(title)
        ax.set(xlim=(-0.25, rung + 0.3), ylim=(0, top), xticks=range(rung + 1), xlabel="trained blocks $k$")
        ax.yaxis.set_major_locator(MultipleLocator(0.1))
        style.chance_line(ax, label=ax is axes[0][0])
        _draw_ladder(ax, ours, published)
    axes[0][0].set_ylabel("test accuracy")
    return fig


def _draw_ladder(ax: Axes, ours: pd.DataFrame, published: pd.DataFrame) -> None:
    ends = []
    for method in style.in_order([*ours.method, *published.method]):
        curve, study = ours[ours.method == method], published[published.method == method]
        _draw_published(ax, study, style.look(method))
        _draw_curve(ax, curve.set_index("k"), style.look(method), most=ours.n.max() if len(ours) else 0)
        last = (curve if len(curve) else study).sort_values("k").iloc[-1]
        ends.append((last.k + 2 * DODGE, last["mean"], style.name(method), style.look(method).colour))
    style.label_ends(ax, ends)
    if len(published):
        ax.annotate(
            "filled: ours, hollow: published", (1, 0), (-3, 5), xycoords="axes fraction", textcoords="offset points",
            ha="right", color=style.MUTED, fontsize=8,
        )  # fmt: skip


def _draw_curve(ax: Axes, curve: pd.DataFrame, look: style.Look, most: int) -> None:
    if curve.empty:
        return
    whole = curve.reindex(range(int(curve.index.max()) + 1))  # a missing rung interrupts the line
    bars = None if whole["std"].isna().all() else whole["std"]
    ax.errorbar(whole.index - DODGE, whole["mean"], yerr=bars, **look.plot(zorder=3))
    for k, point in curve[curve.n < most].iterrows():
        ax.annotate(
            f"n={point.n:.0f}", (k - DODGE, point["mean"]), (0, -12), textcoords="offset points", ha="center",
            color=look.colour, fontsize=7,
        )  # fmt: skip


def _draw_published(ax: Axes, study: pd.DataFrame, look: style.Look) -> None:
    ax.errorbar(
        study.k + DODGE, study["mean"], yerr=study["std"] if len(study) else None, fmt=look.marker, color=look.colour,
        markersize=6, markerfacecolor="white", markeredgewidth=1, elinewidth=0.9, capsize=0, zorder=2,
    )  # fmt: skip


def _top(frames: list[pd.DataFrame]) -> float:
    highest = max((float(frame["mean"].max()) for frame in frames if len(frame)), default=0.6)
    return math.ceil((highest + 0.03) * 10) / 10


def ladder_alt(title: str, ours: pd.DataFrame) -> str:
    """What the figure shows, for a reader who cannot see it."""
    curves = []
    for method in style.in_order(ours.method):
        curve = ours[ours.method == method].sort_values("k")
        values = ", ".join(f"{mean:.3f}" for mean in curve["mean"])
        curves.append(f"{style.name(method)} at k = {', '.join(map(str, curve.k))}: {values}")
    return f"{title}, test accuracy against the number of trained blocks. {'; '.join(curves) or 'No run yet'}."


def identity(tidy: pd.DataFrame) -> Figure:
    """Over depth: what each block adds, how far the stream has moved and turned; grey, steps at right angles."""
    style.use()
    fig, axes = style.figure(3, 2.6)
    depth = int(tidy.layer.max())
    layers = np.arange(depth + 1)
    ratio = float(tidy.ratio.mean())
    norm = (1 + ratio**2) ** (layers / 2)  # each step at right angles to all before, this long relative to its state
    panels = {
        "ratio": (r"block adds $\Vert f_l\Vert / \Vert h_l\Vert$", "block $l$", np.full(depth, ratio)),
        "deviation": (r"moved $\Vert h_l-h_0\Vert / \Vert h_0\Vert$", "layer $l$", np.sqrt(norm**2 - 1)),
        "cosine": (r"turned $\cos(h_l, h_0)$", "layer $l$", 1 / norm),
    }
    for ax, (column, (title, label, theory)) in zip(axes, panels.items(), strict=True):
        values = tidy.dropna(subset=[column])
        ax.plot(layers[: len(theory)], theory, color=style.FAINT, linewidth=1.4, zorder=1)
        _seeds_and_mean(ax, values, column)
        ax.set_title(title, fontweight="normal", fontsize=9)
        ax.set(xlabel=label, xticks=range(int(values.layer.max()) + 1))
        ax.margins(x=0.12)
    axes[0].set_ylim(0, 1.35 * float(tidy.ratio.max()))
    axes[1].set_ylim(bottom=0)
    axes[2].set_ylim(top=1 + 0.15 * (1 - float(tidy.cosine.min())))
    places = {r"mean $r$": 0.95, r"$\sqrt{(1+r^2)^l-1}$": 0.95, r"$(1+r^2)^{-l/2}$": 0.42}
    for ax, (text, x) in zip(axes, places.items(), strict=True):
        ax.annotate(text, (x, 0.07), xycoords="axes fraction", ha="right", color=style.MUTED, fontsize=8.5)
    return fig


def _seeds_and_mean(ax: Axes, values: pd.DataFrame, column: str) -> None:
    for _, seed in values.groupby("seed"):
        ax.plot(seed.layer, seed[column], ".", color=style.FAINT, markersize=4, zorder=2)
    summary = values.groupby("layer")[column].agg(["mean", "std"])
    bars = None if summary["std"].isna().all() else summary["std"]
    look = style.look("bp")
    ax.errorbar(summary.index, summary["mean"], yerr=bars, color=look.colour, fmt=look.marker, zorder=3)
