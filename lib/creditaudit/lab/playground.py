"""Tweak and see: one setting or a few, trained in processes of their own and drawn while they train.

    play(method="dfa", penalty=0.003, epochs=5, beside="bp")      one line, until it is done or interrupted

Accuracy, state norms and gradient norms are drawn epoch by epoch over the committed curve of the nearest record, with
the lights of D1-D3. What is drawn is plain output, so the last picture stays in the saved notebook. Runs go to
outputs/interactive; one that was stopped goes on from its last epoch when it is asked for again.
"""

import math
import threading
from collections.abc import Mapping, Sequence
from functools import cache
from typing import Any

import pandas as pd
from IPython.display import display

from creditaudit import paths
from creditaudit.engine import catalogue
from creditaudit.engine.spec import VARIANTS, RunSpec
from creditaudit.runs import fetch, live
from creditaudit.runs.records import Record, Store, load
from creditaudit.show import curves
from creditaudit.show.curves import Curve
from creditaudit.show.display import in_notebook

POLLED = 0.2  # seconds
SHOWN = 3  # settings at a time: more cannot be told apart
_fetch_pictures = cache(fetch.cifar10)  # once: verifying them takes a second, which a click need not wait for


def play(
    method: str = "dfa",
    epochs: int = 5,
    beside: str | Mapping[str, Any] | None = None,
    frozen: bool = True,
    **fields: Any,
) -> "Session":
    """Train one setting, or two, and draw them while they train; an interrupt keeps what there is.

    Fields are a run's: width, depth, k, penalty, normalise, seed, ... `beside` is a rule's name (as it is: same shape
    and seed, no penalty) or the fields in which the second setting differs. `frozen=False` leaves D3 open.
    """
    spec = RunSpec(method=method, epochs=epochs, **fields)
    session = Session(frozen)
    session.start([spec] if beside is None else [spec, _beside(spec, beside)])
    try:
        while session.poll():
            pass
    except KeyboardInterrupt:
        session.stop()
    if not session.displays:  # a plain script
        print(curves.lights(session.curves, session.states))
    return session


def _beside(spec: RunSpec, other: str | Mapping[str, Any]) -> RunSpec:
    return spec.but(**({"method": other, "penalty": 0.0, "normalise": None} if isinstance(other, str) else other))


class Session:
    """Settings on show: those under way, those that are done, and the records behind them."""

    def __init__(self, frozen: bool = True) -> None:
        self.frozen, self.store = frozen, Store(paths.profile_dir(paths.INTERACTIVE))
        self.settings: list[RunSpec] = []
        self.seen: dict[RunSpec, live.Progress] = {}
        self.crew: live.Crew | None = None
        self.committed: list[Curve] = []
        self.drawn: tuple = ()
        self.lock = threading.Lock()  # a panel's thread draws, and so does whoever stops it
        count = 2 if in_notebook() else 0  # the picture, the table of lights
        self.displays = [display({"text/plain": ""}, raw=True, display_id=True) for _ in range(count)]

    def start(self, specs: Sequence[RunSpec]) -> None:
        """Train these, in the order given, their frozen twins last; whatever else is under way is stopped."""
        self.stop()
        settings = list(dict.fromkeys(specs))[-SHOWN:]
        asked = list(dict.fromkeys(settings + [spec.frozen() for spec in settings if self.frozen and spec.k]))
        there = {spec: record for spec in asked if (record := _record(spec)) is not None}
        self.seen |= {spec: live.Progress(spec, "done", record.epochs) for spec, record in there.items()}
        missing = [spec for spec in asked if spec not in there]
        live.warm(len(missing))
        if any(spec.data == "cifar10" for spec in missing):
            _fetch_pictures()
        self.crew = live.Crew(missing, self.store)
        self.seen |= self.crew.progress
        self.settings = settings
        self.committed = [curve for spec in self.settings if (curve := nearest(spec)) is not None]
        self.draw()

    def poll(self) -> bool:
        """Hear and draw what is new; True while something is under way."""
        busy = self.crew is not None and self.crew.poll(POLLED)
        self.draw()
        return busy

    def stop(self) -> None:
        """At once; the curves stay as far as they came."""
        if self.crew is not None and self.crew.workers:
            self.crew.stop()
            self.draw()

    @property
    def states(self) -> list[live.State]:
        return [self.seen[spec].state for spec in self.settings]

    @property
    def curves(self) -> list[Curve]:
        shown = []
        for spec, name in zip(self.settings, _names(self.settings), strict=True):
            twin = self.seen.get(spec.frozen()) if spec.k else None
            accuracies = None if twin is None else list(twin.epochs.get("test_accuracy", []))
            epochs = {name: list(values) for name, values in self.seen[spec].epochs.items()}
            shown.append(Curve(spec, name, epochs, accuracies))
        return shown

    @property
    def problems(self) -> list[str]:
        return self.crew.problems if self.crew else []

    @property
    def frame(self) -> pd.DataFrame:
        """One row per setting and epoch."""
        rows = [
            {"setting": curve.name, "epoch": epoch + 1, "accuracy": curve.epochs["test_accuracy"][epoch],
             "h_last": curve.epochs["h_norm"][epoch][-1], "g_last": curve.trajectory("g_norm")[epoch][-1]}
            for curve in self.curves
            for epoch in range(curve.epoch)
        ]  # fmt: skip
        return pd.DataFrame(rows, columns=["setting", "epoch", "accuracy", "h_last", "g_last"])

    def draw(self) -> None:
        """Again, where something changed."""
        with self.lock:
            now = (*self.states, *((spec, each.epoch) for spec, each in self.seen.items()))
            if self.displays and now != self.drawn:
                self.drawn = now
                self._draw(self.curves)

    def _draw(self, shown: list[Curve]) -> None:
        picture, table = self.displays
        alt = "; ".join(f"{c.name}: epoch {c.epoch}, accuracy {c.last('test_accuracy')}" for c in shown)
        image = {"image/png": curves.picture(shown, self.committed), "text/plain": f"Figure: {alt}"}
        picture.update(image, raw=True, metadata={"image/png": {"alt": alt}})
        note = "Thick: the last layer; thin: the layers before it."
        if self.committed:
            behind = "; ".join(curve.name for curve in self.committed)
            note += f" Broad and pale: the nearest committed records, {behind}."
        problems = [f"**Failed**: {problem}" for problem in self.problems]
        text = "\n\n".join([curves.lights(shown, self.states), note, *problems])
        table.update({"text/markdown": text, "text/plain": text}, raw=True)

    def __repr__(self) -> str:
        names = ", ".join(curve.name for curve in self.curves)
        return f"Session({names}): .frame, .stop()"


def _record(spec: RunSpec) -> Record | None:
    found = (Store(paths.profile_dir(name)).get(spec) for name in (paths.INTERACTIVE, "paper"))
    return next(filter(None, found), None)


def nearest(spec: RunSpec) -> Curve | None:
    """The committed record most like a setting, of the same rule; named by what it is."""
    files = (paths.profile_dir("paper") / "runs").glob(f"{spec.method}-d*.json")
    records = [load(path, skip_other_recipes=True) for path in files]
    records = [record for record in records if record is not None and record.spec.data == spec.data]
    if not records:
        return None
    best = min(records, key=lambda record: (*_distance(record.spec, spec), record.spec.key))
    shape = f"d={best.spec.width}, L={best.spec.depth}, {best.spec.epochs} epochs"
    return Curve(best.spec, f"{_name(best.spec)} at {shape}", best.epochs)


def _distance(a: RunSpec, b: RunSpec) -> tuple[float, float, bool]:
    """In shape and share of trained blocks, which come first; in how it is trained; in the seed."""
    shape = abs(math.log2(a.width / b.width)) + abs(math.log2(a.depth / b.depth)) + abs(a.k / a.depth - b.k / b.depth)
    penalty = abs(math.log10(max(a.penalty, 1e-6) / max(b.penalty, 1e-6)))
    other = 3 * sum(getattr(a, name) != getattr(b, name) for name in ("normalisation", *VARIANTS))
    return shape, penalty + other + abs(math.log2(a.epochs / b.epochs)) / 4, a.seed != b.seed


_SHORT = {"width": "d", "depth": "L", "normalisation": "norm", "epochs": "e", "seed": "seed", "hidden": "hidden"}


def _name(spec: RunSpec, varied: Sequence[str] = ()) -> str:
    parts = [catalogue.label(spec.method)]
    parts += [f"λ={spec.penalty:g}"] * (spec.penalty > 0) + [f"k={spec.k}"] * (spec.k != spec.depth)
    return " ".join(parts + [f"{_SHORT[name]}={getattr(spec, name)}" for name in varied])


def _names(specs: Sequence[RunSpec]) -> list[str]:
    """By rule and penalty, and whatever else tells these apart."""
    names = [_name(spec) for spec in specs]
    if len(set(names)) < len(names):
        varied = [name for name in _SHORT if len({getattr(spec, name) for spec in specs}) > 1]
        names = [_name(spec, varied) for spec in specs]
    return names
