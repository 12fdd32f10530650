"""The network, and the paths by which each rule sends credit to its blocks: one small panel per rule."""

from functools import partial

from matplotlib.axes import Axes
from matplotlib.figure import Figure

from creditaudit.show import style

BLOCKS = (1, 2, 3)  # three stand for all L; between input and readout
STATES = (0.5, 1.5, 2.5, 3.5)
INPUT, READOUT, LOSS = 0, 4, 5.15
TOP, NET = 0.3, 1.15  # where credit arrives at a block; the height of what is learned or relaxed
RANDOM, TAUGHT = (0, (3, 1.5)), (0, (1, 1.2))  # dashes
CAPTIONS = {
    "bp": "exact gradient, block by block",
    "fa": "back through random matrices",
    "dfa": "output error, straight to each block",
    "sb": "from a net that predicts $h_L$",
    "cb": "from a net that predicts the loss",
    "ep": "from states that the loss has nudged",
}


def draw() -> Figure:
    """Grey the forward pass, coloured the credit; dashed what is random, dotted what teaches a net."""
    fig, axes = style.figure(3, 0.82, rows=2, height_ratios=(0.8, 1))
    for ax, (method, caption) in zip(axes.flat, CAPTIONS.items(), strict=True):
        colour = style.look(method).colour
        _network(ax)
        PATHS[method](ax, colour)
        ax.set_title(style.name(method), color=colour, pad=1)
        ax.text(INPUT - 0.3, -0.78, caption, fontsize=7.5)
        ax.set(xlim=(-0.35, 5.75), ylim=(-0.9, 1.1 if ax in axes[0] else 1.6))
        ax.axis("off")
    return fig


def _network(ax: Axes) -> None:
    _arrow(ax, (INPUT, 0), (LOSS - 0.3, 0), style.FAINT)
    for place, name in zip((INPUT, *BLOCKS, READOUT), ("$x$", "$f_0$", "$f_1$", "$f_2$", "out"), strict=True):
        _box(ax, place, 0, name, style.MUTED)
    ax.text(LOSS, 0, "loss", ha="center", va="center", fontsize=7.5)


def _box(ax: Axes, x: float, y: float, name: str, colour: str) -> None:
    frame = {"boxstyle": "round,pad=0.3", "facecolor": "white", "edgecolor": colour, "linewidth": 0.9}
    ink = style.INK if colour == style.MUTED else colour
    ax.text(x, y, name, ha="center", va="center", fontsize=7.5, color=ink, bbox=frame, zorder=3)


Place, Line = tuple[float, float], str | tuple[float, tuple[float, float]]


def _arrow(
    ax: Axes, start: Place, end: Place, colour: str, line: Line = "-", bend: float = 0, both: bool = False
) -> None:
    path = {"arrowstyle": "<|-|>" if both else "-|>", "color": colour, "linewidth": 1.2, "linestyle": line}
    path |= {"shrinkA": 0, "shrinkB": 0, "mutation_scale": 7, "connectionstyle": f"arc3,rad={bend}"}
    ax.annotate("", end, start, arrowprops=path, zorder=2)


def _random_chain(ax: Axes, colour: str) -> None:
    _chain(ax, colour, RANDOM)
    for block in BLOCKS[:-1]:
        ax.text(block + 0.5, TOP + 0.42, f"$B_{block}$", ha="center", fontsize=7.5, color=colour)


def _chain(ax: Axes, colour: str, line: Line) -> None:
    _arrow(ax, (LOSS, TOP - 0.08), (BLOCKS[-1] + 0.08, TOP), colour, "-", 0.3)
    for block in BLOCKS[:-1]:
        _arrow(ax, (block + 0.92, TOP), (block + 0.08, TOP), colour, line, 0.5)


def _straight(ax: Axes, colour: str) -> None:
    for block in BLOCKS:
        _arrow(ax, (LOSS, TOP - 0.08), (block, TOP), colour, RANDOM, 0.36)
    ax.text(BLOCKS[0] - 0.12, TOP + 0.32, "$B_0, B_1, B_2$", ha="right", fontsize=7.5, color=colour)


def _net(ax: Axes, colour: str, name: str, taught_from: float) -> None:
    """It sees every state, sends credit to every block, and is taught by what it should predict."""
    _box(ax, 2, NET, f"{'':11}{name}{'':11}", colour)
    for state, block in zip(STATES, BLOCKS, strict=False):
        _arrow(ax, (state, 0.06), (state + 0.18, NET - 0.3), style.FAINT)
        _arrow(ax, (block, NET - 0.3), (block, TOP), colour)
    _arrow(ax, (taught_from, 0.1 if taught_from < READOUT else TOP - 0.08), (3.3, NET), colour, TAUGHT, 0.35)


def _relaxed(ax: Axes, colour: str) -> None:
    for state, block in zip(STATES, BLOCKS, strict=False):
        _arrow(ax, (state + 0.16, NET), (state + 0.84, NET), colour, both=True)
        _arrow(ax, (state + 0.93, NET - 0.12), (block + 0.08, TOP), colour)
    for state in STATES:
        ax.plot(state, NET, "o", markersize=6, markerfacecolor="white", markeredgecolor=colour)
        ax.plot(state, 0, "o", markersize=3.5, color=style.FAINT)
    _arrow(ax, (LOSS, TOP - 0.08), (STATES[-1] + 0.16, NET), colour, bend=0.3)


PATHS = {
    "bp": partial(_chain, line="-"),
    "fa": _random_chain,
    "dfa": _straight,
    "sb": partial(_net, name="$G$", taught_from=STATES[-1]),
    "cb": partial(_net, name="$V$", taught_from=LOSS),
    "ep": _relaxed,
}
