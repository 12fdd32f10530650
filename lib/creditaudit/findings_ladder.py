"""What a ladder's records say, in sentences: which steps up the ladder are real, and where its best rung is.

A step or a tie is judged between the same seeds: by the 90 % interval of their paired differences, as the claims are.
One seed has no interval, so of it nothing but the means is told.
"""

from collections.abc import Sequence

import pandas as pd

from creditaudit import style, tables, verdicts
from creditaudit.collect import Runs
from creditaudit.diagnosis import D3_GAIN
from creditaudit.findings import ALPHA, listed, places

Best = dict[str, tuple[int, list[int]]]  # method -> its best rung, and those that cannot be told from it


def rungs(runs: Runs) -> str:
    """A few sentences per method: from the frozen to the full network, the steps between, the best rung."""
    frame = runs.frame()
    methods = style.in_order(spec.method for spec in runs.specs)
    lines = [f"- {_line(frame[frame.method == method], method)}" for method in methods]
    rule = "A step counts where the 90 % interval of its paired differences, taken for itself, leaves out zero."
    return "\n".join([*lines, *(["", rule] if "Rung by rung" in "".join(lines) else [])])


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
        f"{change} pp (n = {len(ladder)}). {_steps(ladder)} Its best rung is {_best_told(ladder)}{rest}."
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
    return f"{told}."


def _sign(differences: pd.Series) -> str:
    """up or down where the interval of the mean excludes zero."""
    low, high = verdicts.of_sample(list(differences)).bounds(ALPHA)
    return "up" if low > 0 else "down" if high < 0 else ""


def _best(ladder: pd.DataFrame) -> tuple[int, list[int]]:
    """The rung with the best mean, and those that cannot be told from it."""
    best = int(ladder.mean().idxmax())
    others = [int(k) for k in ladder.columns if k != best]
    return best, [k for k in others if len(ladder) > 1 and not _sign(ladder[best] - ladder[k])]


def _best_told(ladder: pd.DataFrame) -> str:
    best, tied = _best(ladder)
    name = "the frozen one" if best == 0 else f"$k={best}$"
    return f"{name}, not told apart from {_ks(tied)}" if tied else name


def _ks(rungs: Sequence[int]) -> str:
    """$k=2$ and 3."""
    return listed([f"$k={k}$" if not place else str(k) for place, k in enumerate(rungs)])


def _scatter(ladder: pd.DataFrame) -> str:
    """The seeds of the rung that scatters most, where that is more than D3 asks for."""
    widest = int(ladder.std().fillna(0).idxmax())
    if len(ladder) < 2 or ladder[widest].std() < D3_GAIN:
        return ""
    return f" At $k={widest}$ its seeds scatter widely: {', '.join(f'{value:.3f}' for value in ladder[widest])}."


def caption(*ladders: Runs) -> str:
    """The finding in a line, then what is drawn, then what cannot be told apart."""
    found = [_best_rungs(runs) for runs in ladders]
    methods = style.in_order(method for best in found for method in best)
    told = [f"under {style.name(method)} with {_where_best(method, found, ladders)}" for method in methods]
    head = f"**Accuracy is highest {'; '.join(told)}.**" if told else "**No method has all its rungs yet.**"
    drawn = f"Test accuracy against the number of trained blocks; {_bars(ladders)}. Dotted: chance."
    return f"{head} {drawn}{_ties(found, ladders)}"


def _ties(found: Sequence[Best], ladders: Sequence[Runs]) -> str:
    """Rungs within scatter of the best one."""
    told = []
    for best, place in zip(found, places(ladders), strict=True):
        tied = [f"{style.name(m)} {_ks(best[m][1])}" for m in style.in_order(best) if best[m][1]]
        told += [f"{', '.join(tied)}{f' at {place}' if len(ladders) > 1 else ''}"] if tied else []
    return f" Not told apart from the best: {'; '.join(told)}." if told else ""


def _bars(ladders: Sequence[Runs]) -> str:
    """What the error bars are, and over how many seeds: of each shape, where they differ."""
    counts = [runs.frame().groupby(["method", "k"]).seed.nunique() for runs in ladders]
    most = [int(count.max()) if len(count) else 0 for count in counts]
    if max(most) < 2:
        return "n = 1 seed, no error bars" if max(most) else "published values only"
    each = [f"{n} at {place}" for n, place in zip(most, places(ladders), strict=True)]
    seeds = str(most[0]) if len(set(most)) == 1 else " and ".join(each)
    partial = ", fewer where marked" if any(count.min() < n for count, n in zip(counts, most, strict=True) if n) else ""
    return f"error bars: std over n = {seeds} seeds (ddof 1){partial}"


def _best_rungs(runs: Runs) -> Best:
    """method -> its best rung and those that tie with it, where some seed has every rung."""
    curves = {method: tables.comparable(own) for method, own in runs.frame().groupby("method")}
    whole = {m: _by_seed(own) for m, own in curves.items() if own.k.nunique() == runs.specs[0].depth + 1}
    return {method: _best(ladder) for method, ladder in whole.items()}


def _where_best(method: str, found: Sequence[Best], ladders: Sequence[Runs]) -> str:
    """One word if all ladders agree; else, or where a ladder is unfinished, each with its shape."""
    words = {
        place: _in_words(best[method][0], runs.specs[0].depth)
        for place, best, runs in zip(places(ladders), found, ladders, strict=True)
        if method in best
    }
    if len(set(words.values())) == 1 and len(words) == len(ladders):
        return next(iter(words.values()))
    return " and ".join(f"{word} at {place}" for place, word in words.items())


def _in_words(k: int, depth: int) -> str:
    return {0: "all blocks frozen", depth: "all blocks trained"}.get(k, f"$k={k}$")
