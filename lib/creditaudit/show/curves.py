"""Accuracy, state norms and gradient norms over epochs, drawn again and again while a run trains."""

import io
from collections.abc import Sequence
from dataclasses import dataclass

import matplotlib as mpl
import numpy as np
from matplotlib.axes import Axes
from matplotlib.backends.backend_agg import FigureCanvasAgg
from matplotlib.figure import Figure

from creditaudit.engine.pictures import TEST_PICTURES
from creditaudit.engine.spec import RunSpec
from creditaudit.measure import rules
from creditaudit.show import style
from creditaudit.study import metrics

TRAJECTORY_BATCH = 1024  # over which a trajectory's gradient is averaged; D2 speaks of rules.BATCH
LIGHTS = {True: "✓ passes", False: "✗ fails", None: "○ open"}
DPI = 120


@dataclass(frozen=True)
class Curve:
    """What one run has told so far, and how it is called."""

    spec: RunSpec
    name: str
    epochs: dict[str, list]  # as in a record
    twin: list[float] | None = None  # accuracies of the frozen twin, epoch by epoch

    @property
    def epoch(self) -> int:
        return len(self.epochs.get("test_accuracy", ()))

    def trajectory(self, name: str) -> list:
        """One row per epoch; |g_l| as D2 means it: of a mean over fewer samples, and larger by their ratio."""
        rows = self.epochs.get(name, [])
        if name != "g_norm":
            return rows
        batch = min(TRAJECTORY_BATCH, self.spec.test_size or TEST_PICTURES[self.spec.data])
        larger = batch / rules.BATCH
        return [[None if value is None else value * larger for value in row] for row in rows]

    def last(self, name: str) -> float | None:
        """The newest value, at the last layer where there are several."""
        values = self.trajectory(name) or [None]
        return values[-1][-1] if isinstance(values[-1], list) else values[-1]

    @property
    def growth(self) -> float | None:
        return metrics.growth((self.epochs.get("h_norm") or [[None]])[-1])

    @property
    def gain(self) -> float | None:
        """Over the frozen twin after as many epochs."""
        if not self.epoch or not self.twin or len(self.twin) < self.epoch:
            return None
        return self.last("test_accuracy") - self.twin[self.epoch - 1]

    @property
    def diagnoses(self) -> dict[str, bool | None]:
        """D1, D2 and D3 of this one run, as far as it has come."""
        if not self.epoch:
            return {"D1": None, "D2": None, "D3": None}
        return rules.judged(self.growth, self.last("g_norm"), self.gain)


def picture(curves: Sequence[Curve], committed: Sequence[Curve] = ()) -> bytes:
    """A PNG: three panels, the last layer thick, the others thin, committed records pale and behind.

    Made without pyplot, because a thread may draw it while the notebook draws something else.
    """
    with mpl.rc_context(style.RC):
        fig = Figure(figsize=(style.WIDTH * 1.35, 3.0), layout="constrained", facecolor="white")
        FigureCanvasAgg(fig)
        panels = fig.subplots(1, 3)
        epochs = max([curve.spec.epochs for curve in curves], default=1)
        titles = (
            ("test_accuracy", "test accuracy"),
            ("h_norm", r"$\Vert h_l \Vert$"),
            ("g_norm", r"$\Vert g_l \Vert$"),
        )
        for ax, (name, title) in zip(panels, titles, strict=True):
            ax.set_title(title)
            ax.set_xlabel("epoch")
            ax.set_xlim(0.5, epochs + 0.5)
            ax.xaxis.get_major_locator().set_params(integer=True, min_n_ticks=1)
            for curve in committed:
                _draw(ax, curve, name, epochs, pale=True)
            ends = [end for place, curve in enumerate(curves) if (end := _draw(ax, curve, name, epochs, place))]
            _finish(ax, name, curves, ends)
        content = io.BytesIO()
        fig.savefig(content, format="png", dpi=DPI, metadata={"Software": None})
    return content.getvalue()


def _draw(ax: Axes, curve: Curve, name: str, epochs: int, place: int = 0, pale: bool = False) -> tuple | None:
    """Where the last layer's line ends, to be named there."""
    rows = np.array(curve.trajectory(name)[:epochs], dtype=float)  # None becomes nan
    if not len(rows):
        return None
    rows = rows.reshape(len(rows), -1)
    look, x = style.look(curve.spec.method), np.arange(1, len(rows) + 1)
    line = {"color": look.colour, "linestyle": look.line if place == 0 else (0, (1 + place, 1.2))}
    if pale:
        ax.plot(x, rows[:, -1], color=look.colour, alpha=0.25, linewidth=4, solid_capstyle="round", zorder=1)
        return None
    for layer in range(rows.shape[1] - 1):
        ax.plot(x, rows[:, layer], linewidth=0.7, alpha=0.6, zorder=2, **line)
    ax.plot(x, rows[:, -1], marker=look.marker, markersize=4.5, zorder=3, **line)
    return (x[-1], rows[-1, -1], curve.name, look.colour) if np.isfinite(rows[-1, -1]) else None


def _finish(ax: Axes, name: str, curves: Sequence[Curve], ends: list[tuple]) -> None:
    if name == "test_accuracy":
        style.chance_line(ax)
        ax.set_ylim(bottom=0)
    elif ax.lines:  # the committed curve alone is enough, or the axis would jump at the first point
        ax.set_yscale("log")
        low, high = ax.get_ylim()
        if high / low < 10:  # a decade at least, or noise looks like a trend
            ax.set_ylim((low * high) ** 0.5 / 10**0.5, (low * high) ** 0.5 * 10**0.5)
    floor = rules.D2_FLOOR
    if name == "g_norm" and curves and ax.get_ylim()[0] < 10 * floor:
        style.reference_line(ax, floor)
        ax.annotate("D2", (0, floor), xycoords=ax.get_yaxis_transform(), fontsize=8, color=style.MUTED, va="bottom")
    style.label_ends(ax, ends, laid_out=False)


def lights(curves: Sequence[Curve], states: Sequence[str]) -> str:
    """A markdown table: how far each setting is, and D1-D3 as lights with words."""
    head = ["setting", "epoch", "accuracy", "$\\lVert h_L \\rVert$", "$\\lVert g_L \\rVert$", "D1", "D2", "D3", "state"]
    rows = [head, [":---", *["---:"] * 4, *[":---"] * 4]]
    for curve, state in zip(curves, states, strict=True):
        numbers = [curve.last(name) for name in ("test_accuracy", "h_norm", "g_norm")]
        shown = [
            f"{value:{how}}" if value is not None else "–"
            for value, how in zip(numbers, (".3f", ".3g", ".1e"), strict=True)
        ]
        gain = f" ({100 * curve.gain:+.1f} pp)" if curve.gain is not None else ""
        growth = f" (×{curve.growth:.3g})" if curve.growth is not None else ""
        d1, d2, d3 = (LIGHTS[passed] for passed in curve.diagnoses.values())
        rows.append([curve.name, f"{curve.epoch}/{curve.spec.epochs}", *shown, d1 + growth, d2, d3 + gain, state])
    return "\n".join(f"| {' | '.join(row)} |" for row in rows)
