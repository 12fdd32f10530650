"""The figures of the audit. Frames in, figures out; nothing here reads a record."""

import numpy as np
import pandas as pd
from matplotlib.axes import Axes
from matplotlib.figure import Figure

from creditaudit import style
from creditaudit.diagnosis import D1_LIMIT, D2_FLOOR
from creditaudit.marks import (
    blank_if_empty,
    dodged_points,
    limit_line,
    mean_curves,
    method_legend,
    plain_title,
    value_bars,
    whole_epochs,
)
from creditaudit.report import digits

NUDGE_FLOOR = 1e-9  # smaller changes of the loss are drawn as none


@blank_if_empty
def accuracy_curves(epochs: pd.DataFrame) -> Figure:
    """Train and test accuracy over epochs."""
    fig, axes = style.figure(2, 3.0, sharey=True, width_ratios=(1, 1.12))
    top = np.ceil(10 * epochs[["train", "test"]].max().max() + 0.3) / 10
    for ax, column, title in zip(axes, ("train", "test"), ("training pictures", "test pictures"), strict=True):
        ax.set_title(title)
        ax.set(ylim=(0, top), xlabel="epoch")
        style.chance_line(ax, label=ax is axes[0])
        ends = mean_curves(ax, epochs, column)
    axes[0].set_ylabel("accuracy")
    style.label_ends(axes[1], ends)
    return fig


@blank_if_empty
def norms(epochs: pd.DataFrame, warm_up: int = 0) -> Figure:
    """||h_L||, the growth D1 watches, and ||g_L|| over epochs, each with its limit; where a warm-up ends."""
    fig, axes = style.figure(3, 2.9)
    titles = (r"last state $\Vert h_L\Vert$", "D1: growth over one block", r"D2: $\Vert g_L\Vert$, batch 1024")
    for ax, column, title in zip(axes, ("h_last", "growth", "g_last"), titles, strict=True):
        plain_title(ax, title)
        ax.set(yscale="log", xlabel="epoch")
        mean_curves(ax, epochs, column, log=True)
    limit_line(axes[1], D1_LIMIT, "fails above", above=True)
    limit_line(axes[2], D2_FLOOR, "fails below", above=False)
    if warm_up:
        for ax in axes:
            ax.axvline(warm_up, color=style.look("cb").colour, linestyle=style.DOTTED, linewidth=1, zorder=1)
    method_legend(fig, epochs.method)
    return fig


@blank_if_empty
def layers(blocks: pd.DataFrame, null: float) -> Figure:
    """Per block: cosine, rho, nudging with their zero lines, and how far the weights moved.

    `null` is the std of the cosine for credit that knows nothing, one random direction for all samples. A
    dash in the cosine panel is what the exact credit of the same network would score: the gradient at the block's
    output against the one at its input.
    """
    fig, grid = style.figure(2, 2.35, rows=2)
    panels = {
        "gamma": r"cosine with BP, $\Gamma_l$",
        "rho": r"predicts loss changes, $\rho_l$",
        "nudge": r"loss change under a nudge, $\eta=.01$",
        "drift": r"drift $\Vert W_1-W_1^{init}\Vert\,/\,\Vert W_1^{init}\Vert$",
    }
    for ax, (column, title) in zip(grid.flat, panels.items(), strict=True):
        plain_title(ax, title)
        ax.set_xticks(sorted(blocks.layer.unique()))
        ax.set_xlabel("block $l$" if ax in grid[1] else "")
        dodged_points(ax, blocks, column)
        if column != "drift":
            ax.axhline(0, color=style.MUTED, linewidth=0.9, zorder=1)
    _null_and_ceiling(grid.flat[0], blocks, null)
    _log_both_ways(grid.flat[2], blocks.nudge)
    if 0 < blocks.drift.min() < blocks.drift.max() / 30:
        grid.flat[3].set_yscale("log")
    else:
        grid.flat[3].set_ylim(bottom=0)
    method_legend(fig, blocks.method)
    return fig


def _null_and_ceiling(ax: Axes, blocks: pd.DataFrame, null: float) -> None:
    ax.axhspan(-2 * null, 2 * null, color=style.FAINT, alpha=0.3, lw=0, zorder=0)
    dodged_points(ax, blocks, "ceiling", marker="_", markersize=8, linestyle="", alpha=0.75, elinewidth=0)
    bottom = min(0.0, float(blocks.gamma.astype(float).min()))
    ax.set_ylim(bottom - 0.24, 1.32)
    ink = {"transform": ax.get_yaxis_transform(), "ha": "right", "color": style.MUTED, "fontsize": 7.5}
    ax.text(0.99, 1.16, "dashes: exact credit of the same network", **ink)
    ax.text(0.99, bottom - 0.2, "grey: credit that knows nothing, ±2 std", **ink)


def _log_both_ways(ax: Axes, changes: pd.Series) -> None:
    """Decades below zero and above it: in an exploded network a nudge has a sign but hardly a size."""
    lowest, highest = (float(value) for value in changes.agg(["min", "max"]))
    if not max(-lowest, highest) > NUDGE_FLOOR:
        return
    ax.set_yscale("symlog", linthresh=NUDGE_FLOOR, linscale=0.6)
    ax.set_ylim(min(8 * lowest, -NUDGE_FLOOR), max(8 * highest, NUDGE_FLOOR))
    decades = NUDGE_FLOOR * 10.0 ** np.arange(1, 9, 3)
    ax.set_yticks([-size for size in decades if size < -8 * lowest] + [0] + [d for d in decades if d < 8 * highest])
    ax.minorticks_off()


@blank_if_empty
def summary_bars(finals: pd.DataFrame) -> Figure:
    """Accuracy, cosine, rho and nudging at a glance, with their values."""
    methods = style.in_order(finals.method)
    fig, axes = style.figure(4, 0.75 + 0.32 * len(methods), sharey=True)
    titles = {"accuracy": "test accuracy", "gamma": r"cosine $\Gamma$", "rho": r"$\rho$", "nudge": "nudging"}
    for ax, (column, title) in zip(axes, titles.items(), strict=True):
        plain_title(ax, title)
        value_bars(ax, finals, column, methods, write=digits if column == "nudge" else None)
        ax.locator_params(axis="x", nbins=3)
    axes[0].axvline(style.CHANCE, color=style.FAINT, linestyle=style.LOOKS["chance"].line, zorder=3)
    return fig


@blank_if_empty
def state_error(epochs: pd.DataFrame, finals: pd.DataFrame) -> Figure:
    """State Bridge's prediction error, seed by seed, beside what every method makes of its credit."""
    methods = style.in_order(finals.method)
    fig, (left, right) = style.figure(2, max(2.6, 0.6 + 0.34 * len(methods)), width_ratios=(1.15, 1))
    look = style.look("sb")
    for shade, (seed, run) in enumerate(epochs.dropna(subset=["state_error"]).groupby("seed")):
        line = ("-", style.DASHED, style.DOTTED)[shade % 3]
        left.plot(run.epoch, run.state_error.astype(float), color=look.colour, linestyle=line, label=f"seed {seed}")
        _error_from_each_state(left, run, line, named=shade == 0)
    shown = [value for drawn in left.lines for value in drawn.get_ydata() if np.isfinite(value)]
    if shown and max(shown) > 10 * min(shown) > 0:
        left.set_yscale("log")
    else:
        left.set_ylim(bottom=0)
    left.set_xlabel("epoch")
    whole_epochs(left)
    plain_title(left, "State Bridge: error of the predicted $h_L$")
    named = sorted(zip(*left.get_legend_handles_labels(), strict=True), key=lambda each: "from" in each[1])
    if named:
        fig.legend(*zip(*named, strict=True), loc="outside upper left", ncols=len(named))  # seeds, then states
    plain_title(right, "test accuracy")
    value_bars(right, finals, "accuracy", methods)
    right.axvline(style.CHANCE, color=style.FAINT, linestyle=style.LOOKS["chance"].line, zorder=3)
    return fig


def _error_from_each_state(ax: Axes, run: pd.DataFrame, line: str | tuple, named: bool) -> None:
    """Thin lines: h_L predicted from h_0 alone, and from each later state."""
    by_state = run.dropna(subset=["state_error_layers"])
    if by_state.empty:
        return
    errors = np.array(by_state.state_error_layers.tolist(), dtype=float)
    thin = {"linestyle": line, "linewidth": 0.8, "zorder": 1}
    ax.plot(by_state.epoch, errors[:, 0], color=style.INK, label="from $h_0$" if named else None, **thin)
    later = ax.plot(by_state.epoch, errors[:, 1:], color=style.MUTED, **thin)
    if named and later:
        later[0].set_label("from a later state")
