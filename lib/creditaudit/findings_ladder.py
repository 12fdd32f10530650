"""What a ladder's records say, in sentences: which steps up the ladder are real, and where its best rung is.

A step or a tie is judged between the same seeds: by the 90 % interval of their paired differences, as the claims are.
One seed has no interval, so of it nothing but the means is told.
"""

from collections.abc import Sequence

import pandas as pd

from creditaudit import style, tables, verdicts
from creditaudit.collect import Runs
from creditaudit.diagnosis import D3_GAIN
from creditaudit.findings import ALPHA, listed, shape


def rungs(runs: Runs) -> str:
    """A few sentences per method: from the frozen to the full network, the steps between, the best rung."""
    frame = runs.frame()
    methods = style.in_order(spec.method for spec in runs.specs)
    return "\n".join(f"- {_line(frame[frame.method == method], method)}" for method in methods)


def _line(frame: pd.DataFrame, method: str) -> str:
    name, frame = f"**{style.name(method)}**", tables.comparable(frame)
    if frame.empty:
        return f"{name}: not yet decided, no seed has both the frozen and the full network."
    depth, ladder = int(frame.depth.max()), _by_seed(frame)
    gain = tables.summarise(tables.gains(frame), ["k"], "gain").set_index("k")
    change = tables.plus_minus(gain["mean"][depth], gain["std"][depth], 1, signed=True)
    rest = "" if len(ladder.columns) == depth + 1 else f" (of the {len(ladder.columns)} rungs that are there)"
    return (
        f"{name} goes from {ladder[0].mean():.3f} frozen to {ladder[depth].mean():.3f} with all blocks trained, "
        f"{change} pp (n = {len(ladder)}). {_steps(ladder)} Its best rung{_hint(ladder)} is {_best(ladder)}{rest}."
        f"{_scatter(ladder)}"
    )


def _by_seed(frame: pd.DataFrame) -> pd.DataFrame:
    """Accuracy: one row per seed, one column per rung."""
    return frame.pivot(index="seed", columns="k", values="accuracy").astype(float)


def _steps(ladder: pd.DataFrame) -> str:
    if len(ladder) < 2:
        return "One seed cannot tell which steps between the rungs are real."
    found: dict[str, list[str]] = {"up": [], "down": [], "": []}
    for below, k in zip(ladder.columns, ladder.columns[1:], strict=False):
        found[_sign(ladder[k] - ladder[below])].append(f"$k={k}$")
    moves = [f"{verb} at {listed(found[way])}" for way, verb in (("up", "rises"), ("down", "drops")) if found[way]]
    told = f"Rung by rung it {listed(moves)}" if moves else "Rung by rung nothing is resolved"
    if found[""]:
        told += f"; the step{'s' * (len(found['']) > 1)} to {listed(found[''])} cannot be told from scatter"
    return f"{told} (90 % intervals of paired steps, each step for itself)."


def _sign(differences: pd.Series) -> str:
    """up or down where the interval of the mean excludes zero."""
    low, high = verdicts.of_sample(list(differences)).bounds(ALPHA)
    return "up" if low > 0 else "down" if high < 0 else ""


def _best(ladder: pd.DataFrame) -> str:
    """The best mean, and the rungs that cannot be told from it."""
    best = int(ladder.mean().idxmax())
    others = [k for k in ladder.columns if k != best]
    tied = [k for k in others if len(ladder) > 1 and not _sign(ladder[best] - ladder[k])]
    name = "the frozen one" if best == 0 else f"$k={best}$"
    return f"{name} ({', '.join(map(str, tied))})" if tied else name


def _hint(ladder: pd.DataFrame) -> str:
    return " (in brackets: those that cannot be told from it)" if "(" in _best(ladder) else ""


def _scatter(ladder: pd.DataFrame) -> str:
    """The seeds of the rung that scatters most, where that is more than D3 asks for."""
    widest = int(ladder.std().fillna(0).idxmax())
    if len(ladder) < 2 or ladder[widest].std() < D3_GAIN:
        return ""
    return f" At $k={widest}$ its seeds scatter widely: {', '.join(f'{value:.3f}' for value in ladder[widest])}."


def caption(*ladders: Runs) -> str:
    """The finding in a line, then what is drawn."""
    best = [_best_rungs(runs) for runs in ladders]
    methods = style.in_order(method for found in best for method in found)
    bests = [f"{style.name(method)} {_where_best(method, best, ladders)}" for method in methods]
    hint = " (in brackets: rungs that cannot be told from it)" if "(" in "".join(bests) else ""
    head = f"**Best rung{hint}: {'; '.join(bests)}.** " if bests else "**No method has all its rungs yet.** "
    return f"{head}Test accuracy against the number of trained blocks; {_bars(ladders)}. Dotted: chance."


def _bars(ladders: Sequence[Runs]) -> str:
    """What the error bars are, and over how many seeds: of each shape, where they differ."""
    counts = [runs.frame().groupby(["method", "k"]).seed.nunique() for runs in ladders]
    most = [int(count.max()) if len(count) else 0 for count in counts]
    if max(most) < 2:
        return "n = 1 seed, no error bars" if max(most) else "published values only"
    each = [f"{n} at {shape(runs)}" for n, runs in zip(most, ladders, strict=True)]
    seeds = str(most[0]) if len(set(most)) == 1 else " and ".join(each)
    partial = ", fewer where marked" if any(count.min() < n for count, n in zip(counts, most, strict=True) if n) else ""
    return f"error bars: std over n = {seeds} seeds (ddof 1){partial}"


def _best_rungs(runs: Runs) -> dict[str, str]:
    """method -> its best rung in words, where some seed has every rung."""
    curves = {method: tables.comparable(own) for method, own in runs.frame().groupby("method")}
    whole = {m: _by_seed(own) for m, own in curves.items() if own.k.nunique() == runs.specs[0].depth + 1}
    return {method: _best(ladder).replace("the frozen one", "frozen") for method, ladder in whole.items()}


def _where_best(method: str, best: Sequence[dict[str, str]], ladders: Sequence[Runs]) -> str:
    """One word if all ladders agree; else, or where a ladder is unfinished, each with its shape."""
    found = [(names[method], runs) for names, runs in zip(best, ladders, strict=True) if method in names]
    if len({name for name, _ in found}) == 1 and len(found) == len(ladders):
        return found[0][0]
    return " and ".join(f"{name} at {shape(runs)}" for name, runs in found)
