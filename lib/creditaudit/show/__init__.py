"""From frames to what a person sees: figures, tables, findings.

A notebook says `show.start("its name")` once, draws with seaborn, and hands the result over:

    ax = sns.pointplot(runs.frame, x="k", y="accuracy", errorbar="sd", **show.points(runs))
    show.name_ends(ax, runs.frame, "k", "accuracy")
    show.figure(ax, caption="...", alt="...", runs=runs)
"""

from collections.abc import Iterable
from pathlib import Path
from typing import Any

import matplotlib.pyplot as plt
import pandas as pd
import seaborn as sns

from creditaudit import paths
from creditaudit.mistakes import Mistake
from creditaudit.runs.files import write_atomically
from creditaudit.show import display, finding, style, training
from creditaudit.show.display import show_table as table
from creditaudit.show.display import text
from creditaudit.show.register import predictions
from creditaudit.show.register import show as claims
from creditaudit.study import Runs, Sample, frames, params

__all__ = [
    "by_seed",
    "claims",
    "csv",
    "figure",
    "hollow",
    "looks",
    "name_ends",
    "name_panels",
    "points",
    "predictions",
    "start",
    "table",
    "text",
    "values",
]

KEYS = [*frames.COLUMNS, "normalise", "layer", "epoch"]  # what rows are sorted by
DIGITS = 10  # significant: more than any reader needs, fewer than where machines differ


def start(section: str = "") -> None:
    """Check the first cell's parameters; one theme for everything drawn from here on; the `%%finding` magic."""
    shell = finding.register()
    if shell and section:
        params.check_cell(section, shell.user_ns, _first_cell(shell))
    if paths.at_play():
        frames.trainer = training.train
        if shell and section:
            _tell_departures(section, shell.user_ns)
            _watch_first_cell(shell, section)
    else:
        plt.switch_backend("agg")  # inline would print what a cell draws a second time, without its caption
    sns.set_theme(rc=style.RC, style=None, context=None)


def _first_cell(shell: Any) -> str:
    """The text of the cell that was executed last of those that say which set this is."""
    return next((cell for cell in reversed(shell.user_ns.get("In", [])) if "set_name" in params.assigned(cell)), "")


def _tell_departures(section: str, names: dict[str, Any]) -> None:
    """Published values and claims are the set's: where the first cell asks for something else, the page says so."""
    changed = params.departures(section, names)
    if changed:
        listed = ", ".join(f"`{name} = {value!r}` (there `{meant!r}`)" for name, (value, meant) in changed.items())
        apart = " Its published numbers are of another shape and left out." if {"width", "depth"} & {*changed} else ""
        text(f"The first cell departs from set `{names['set_name']}` of profile `{names['profile']}`: {listed}.{apart}")


def _watch_first_cell(shell: Any, section: str) -> None:
    """Somebody who changes the first cell and goes on from there, past `start`, is told the same."""

    def tell(_: Any) -> None:
        cell = shell.user_ns["In"][-1]
        if "set_name" not in params.assigned(cell):
            return
        try:
            params.check_cell(section, shell.user_ns, cell)
            _tell_departures(section, shell.user_ns)
        except Mistake as mistake:
            text(f"**{mistake}**")

    for known in [each for each in shell.events.callbacks["post_run_cell"] if each.__qualname__ == tell.__qualname__]:
        shell.events.unregister("post_run_cell", known)
    shell.events.register("post_run_cell", tell)


def looks(of: Runs | Iterable[str]) -> dict[str, Any]:
    """The methods' colours and order, for any seaborn call with a hue."""
    present = [spec.method for spec in of.specs] if isinstance(of, Runs) else of
    order = style.in_order(present)
    return {"hue": "method", "hue_order": order, "palette": {name: style.look(name).colour for name in order}}


def points(of: Runs | Iterable[str]) -> dict[str, Any]:
    """The same with markers and dashes, for `sns.pointplot`; no legend, the curves are named at their ends."""
    chosen = looks(of)
    shapes = [style.look(name) for name in chosen["hue_order"]]
    lines = {"markers": [look.marker for look in shapes], "linestyles": [look.line for look in shapes]}
    side = {"dodge": 0.12} if len(shapes) > 1 else {}  # seaborn divides by the number of methods less one
    return chosen | lines | side | {"legend": False, "linewidth": 1.7, "markersize": 5.5, "capsize": 0.06}


def hollow(of: Runs | Iterable[str]) -> dict[str, Any]:
    """The same for published values, which have no line and no error bar."""
    unfilled = {"linestyles": "none", "markerfacecolor": "white", "markeredgewidth": 1.1, "errorbar": None}
    return points(of) | unfilled


def by_seed(sample: Sample, last: int) -> str:
    """3 / 8 / never: an epoch that need not come, seed by seed; one after the last has not."""
    shown = ["–" if at is None else "never" if at > last else f"{at:.0f}" for at in sample.values.values()]
    return "never" if set(shown) == {"never"} else " / ".join(shown)


def name_ends(ax: Any, frame: pd.DataFrame, x: str, y: str) -> None:
    """Each method's name at the right end of its curve, in its colour; call it when the limits are set."""
    means = frame.dropna(subset=[y]).groupby(["method", x])[y].mean().reset_index()
    last = means.sort_values(x).groupby("method").tail(1)
    style.label_ends(
        ax, [(row[x], row[y], style.name(row.method), style.look(row.method).colour) for _, row in last.iterrows()]
    )


def name_panels(grid: sns.FacetGrid) -> dict[Any, Any]:
    """Write the methods' names above a grid's columns; returns the axes as the grid's `axes_dict` has them."""
    for place, ax in grid.axes_dict.items():
        method, row = (place[1], place[0]) if isinstance(place, tuple) else (place, None)
        if row is None or row == grid.row_names[0]:
            ax.set_title(style.name(method), fontsize=None if row is None else 8)
        elif row is not None:
            ax.set_title("")
    return grid.axes_dict


def values(runs: Runs, metric: str) -> str:
    """BP 0.615 ± 0.005, FA ...: the methods' values, for a figure's alt text."""
    methods = style.in_order(spec.method for spec in runs.specs)
    return ", ".join(f"{style.name(method)} {runs.of(metric, method=method).short}" for method in methods)


def figure(drawn: Any, caption: str, alt: str, runs: Runs, name: str = "") -> None:
    """Show what was drawn (axes, grid or figure), numbered and captioned, and save it beside the runs."""
    place = "--".join(part for part in (runs.section, runs.set_name, name) if part)
    fig = getattr(drawn, "figure", drawn)
    display.show_figure(fig, caption, alt, place, runs.profile)


def csv(frame: pd.DataFrame, runs: Runs, name: str = "") -> Path:
    """Save a tidy frame as tables/<section>--<set>.csv beside the figures; the same rows give the same bytes."""
    place = "--".join(part for part in (runs.section, runs.set_name, name) if part)
    path = paths.products_dir(runs.profile) / "tables" / f"{place}.csv"
    keys = [key for key in KEYS if key in frame]
    ordered = frame.sort_values(keys, kind="stable") if keys else frame
    write_atomically(path, ordered.to_csv(index=False, float_format=f"%.{DIGITS}g", lineterminator="\n"))
    return path
