"""Training what a notebook's first cell asks for, in sight: how many runs, how long, every epoch, and a way to stop.

Above `UNASKED` seconds nothing starts by itself: the first time the cell stops with a sentence, and running it again is
the confirmation. "Run all" leaves a reader at the end of the page, so the cell is brought back into view.
"""

import sys
import time
from collections.abc import Sequence
from typing import Any

from creditaudit import paths
from creditaudit.engine import catalogue
from creditaudit.engine.spec import RunSpec
from creditaudit.mistakes import Mistake
from creditaudit.runs import cost, fetch, live
from creditaudit.runs.records import Store
from creditaudit.show.display import in_notebook

UNASKED = 240.0  # seconds that may be spent without being asked
REDRAWN = 0.4  # seconds between two pictures of the same training
_announced: set[frozenset[RunSpec]] = set()


def train(specs: Sequence[RunSpec], confirmed: bool = False) -> None:
    """Train those without a record in outputs/interactive, into it."""
    store = Store(paths.profile_dir(paths.INTERACTIVE))
    missing = store.missing(specs)
    if not missing:
        return
    seconds = live.seconds(missing, Store(paths.profile_dir("paper")).all())
    count = f"{len(missing)} run{'s' * (len(missing) > 1)} without a record"
    told = f"{count}, about {duration(seconds)} on {cost.cores()} cores"
    if seconds > UNASKED and not confirmed and frozenset(missing) not in _announced:
        _announced.add(frozenset(missing))
        _bring_into_view()
        raise Mistake(
            f"{told}: run this cell again to train them (interrupt the kernel to stop, run it again to go on), "
            "or ask for less: fewer methods, seeds or epochs"
        )
    if any(spec.data == "cifar10" for spec in missing):
        fetch.cifar10()
    _bring_into_view()
    view, drawn = _View(f"Training {told}."), 0.0
    try:
        for crew in live.train(missing, store):
            if time.monotonic() - drawn > REDRAWN:
                view.draw(crew)
                drawn = time.monotonic()
    finally:
        view.draw(crew)


def duration(seconds: float) -> str:
    if seconds < 90:
        return f"{max(5, 5 * round(seconds / 5))} s"
    return f"{seconds / 60:.0f} minutes" if seconds < 5400 else f"{seconds / 3600:.1f} hours"


def name(spec: RunSpec) -> str:
    """What tells a run from the others of a section: DFA k=4 λ=0.003 seed 42."""
    parts = [catalogue.label(spec.method), f"d={spec.width} L={spec.depth} k={spec.k}"]
    parts += [f"hidden={spec.hidden}"] * (spec.hidden is not None) + [f"λ={spec.penalty:g}"] * bool(spec.penalty)
    parts += [f"normalised by {spec.normalise}"] * (spec.normalise is not None)
    return " ".join([*parts, f"seed {spec.seed}"])


class _View:
    """One line per run under way and a count of the others: a display that is redrawn, or lines in a terminal."""

    def __init__(self, heading: str) -> None:
        self.heading, self.handle, self.last = heading, None, ""
        if in_notebook():
            from IPython.display import display

            self.handle = display(_shown(heading), raw=True, display_id=True)
        else:
            print(heading, file=sys.stderr, flush=True)

    def draw(self, crew: live.Crew) -> None:
        text = "\n".join([self.heading, "", *_lines(crew)])
        if text == self.last:
            return
        if self.handle is not None:
            self.handle.update(_shown(text), raw=True)
        elif sys.stderr.isatty():
            print(f"\r\x1b[K{' · '.join(_lines(crew))}", end="", file=sys.stderr, flush=True)
        self.last = text


def _lines(crew: live.Crew) -> list[str]:
    runs = list(crew.progress.values())
    under_way = [each for each in runs if each.state in ("starting", "training", "measuring", "stopped", "failed")]
    lines = [f"{sum(each.state == 'done' for each in runs)} of {len(runs)} runs finished"]
    for each in under_way:
        done, of = each.epoch, each.spec.epochs
        bar = "█" * round(20 * done / of) + "░" * (20 - round(20 * done / of))
        accuracy = f"accuracy {each.epochs['test_accuracy'][-1]:.3f}" if done else ""
        lines.append(f"{bar} {done}/{of} epochs  {name(each.spec)}  {each.state} {accuracy}".rstrip())
    return lines


def _bring_into_view() -> None:
    """Scroll to this cell after JupyterLab has scrolled elsewhere; not again when the saved notebook is opened."""
    if not in_notebook():
        return
    from IPython.display import Javascript, display

    scroll = "setTimeout(() => element.scrollIntoView({block: 'center'}), 1500)"
    display(Javascript(f"if (Date.now() < {1000 * (time.time() + 30):.0f}) {scroll}"))


def _shown(text: str) -> dict[str, Any]:
    return {"text/plain": text}
