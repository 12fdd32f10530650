"""Tweak and see: choose a rule, a shape and a penalty, train it in a process of its own, and watch.

    play(method="dfa", penalty=0.003, epochs=5, beside="bp")      one line, until it is done or interrupted
    panel()                                                       the same with controls; nothing freezes

Both draw accuracy, state norms and gradient norms epoch by epoch over the committed curve of the nearest record, and
the lights of D1-D3. What is drawn is plain output, so the last picture stays in the saved notebook. Runs go to
outputs/interactive; one that was stopped goes on from its last epoch when it is asked for again.
"""

import math
import re
import threading
import time
from collections.abc import Mapping, Sequence
from functools import cache
from typing import Any

import pandas as pd
from IPython.display import DisplayHandle, display

from creditaudit import paths
from creditaudit.engine import catalogue
from creditaudit.engine.spec import VARIANTS, RunSpec
from creditaudit.mistakes import Mistake
from creditaudit.runs import fetch, live
from creditaudit.runs.records import Record, Store, load
from creditaudit.show import curves, training
from creditaudit.show.curves import Curve
from creditaudit.study import sections, setfile

Beside = str | Mapping[str, Any] | None
POLLED = 0.2  # seconds
SHOWN = 3  # settings at a time: more cannot be told apart
PENALTIES = (0.0, 1e-4, 3e-4, 1e-3, 3e-3, 1e-2, 3e-2, 1e-1)
WIDTHS = (64, 128, 256, 512)


def play(
    method: str = "dfa",
    epochs: int = 5,
    beside: Beside = None,
    frozen: bool = True,
    **fields: Any,
) -> "Session":
    """Train one setting, or two, and draw them while they train; an interrupt keeps what there is.

    Fields are a run's: width, depth, k, penalty, normalise, seed, ... `beside` is a rule's name (as it is: same shape
    and seed, no penalty) or the fields in which the second setting differs. `frozen=False` leaves D3 open.
    """
    spec = RunSpec(method=method, epochs=epochs, **fields)
    settings = [spec] if beside is None else [spec, _beside(spec, beside)]
    session = Session(frozen)
    session.start(settings)
    try:
        while session.poll():
            pass
    except KeyboardInterrupt:
        session.stop()
    if session.table is None:  # a plain script
        print(curves.lights(session.curves, [session.seen[spec].state for spec in session.settings]))
    return session


def _beside(spec: RunSpec, other: str | Mapping[str, Any]) -> RunSpec:
    if isinstance(other, str):
        return spec.but(method=other, penalty=0.0, normalise=None)
    return spec.but(**other)


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
        self.picture, self.table = (_handle() for _ in range(2))

    def start(self, specs: Sequence[RunSpec]) -> None:
        """Train these, in the order given, their frozen twins last; whatever else is under way is stopped."""
        self.stop()
        settings = list(dict.fromkeys(specs))[-SHOWN:]
        asked = list(dict.fromkeys(settings + [spec.frozen() for spec in settings if self.frozen and spec.k]))
        for spec in asked:
            if (record := _record(spec)) is not None:
                self.seen[spec] = live.Progress(spec, "done", record.epochs)
        missing = [spec for spec in asked if self.seen.get(spec, live.Progress(spec)).state != "done"]
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
    def curves(self) -> list[Curve]:
        names = _names(self.settings)
        return [
            Curve(spec, name, {k: list(v) for k, v in self.seen[spec].epochs.items()}, self._twin(spec))
            for spec, name in zip(self.settings, names, strict=True)
        ]

    def _twin(self, spec: RunSpec) -> list[float] | None:
        twin = self.seen.get(spec.frozen())
        return None if twin is None or not spec.k else list(twin.epochs.get("test_accuracy", []))

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
            self._draw()

    def _draw(self) -> None:
        states = [self.seen[spec].state for spec in self.settings]
        now = (tuple(states), tuple((spec, each.epoch) for spec, each in self.seen.items()))
        if now == self.drawn:
            return
        self.drawn, shown = now, self.curves
        alt = "; ".join(f"{c.name}: epoch {c.epoch}, accuracy {c.last('test_accuracy')}" for c in shown)
        image = {"image/png": curves.picture(shown, self.committed), "text/plain": f"Figure: {alt}"}
        self._show(self.picture, image, metadata={"image/png": {"alt": alt}})
        behind = "; ".join(curve.name for curve in self.committed)
        note = "\n\nThick: the last layer; thin: the layers before it."
        note += f" Broad and pale: the nearest committed records, {behind}." if behind else ""
        problems = "".join(f"\n\n**Failed**: {problem}" for problem in self.problems)
        text = curves.lights(shown, states) + note + problems
        self._show(self.table, {"text/markdown": text, "text/plain": text})

    def _show(self, handle: DisplayHandle | None, data: dict[str, Any], **more: Any) -> None:
        if handle is not None:
            handle.update(data, raw=True, **more)

    def __repr__(self) -> str:
        return f"{len(self.settings)} settings on show; `.frame` has their numbers, `.stop()` ends them"


@cache
def _fetch_pictures() -> None:
    """Once: verifying them takes a second, which a click need not wait for."""
    fetch.cifar10()


def _handle() -> DisplayHandle | None:
    return display({"text/plain": ""}, raw=True, display_id=True) if training.in_notebook() else None


def _record(spec: RunSpec) -> Record | None:
    found = (Store(paths.profile_dir(name)).get(spec) for name in (paths.INTERACTIVE, "paper"))
    return next(filter(None, found), None)


def nearest(spec: RunSpec) -> Curve | None:
    """The committed record most like a setting, of the same rule; named by what it is."""
    folder = paths.profile_dir("paper") / "runs"
    keys = [(path, _shape(path.stem)) for path in folder.glob(f"{spec.method}-d*.json")]
    close = sorted(keys, key=lambda key: _far(key[1], spec))
    alike = [path for path, shape in close if _far(shape, spec) == _far(close[0][1], spec)]
    records = [load(path, skip_other_recipes=True) for path in alike]
    records = [record for record in records if record is not None and record.spec.data == spec.data]
    if not records:
        return None
    best = min(records, key=lambda record: (_distance(record.spec, spec), record.spec.key))
    shape = f"d={best.spec.width}, L={best.spec.depth}, {best.spec.epochs} epochs"
    return Curve(best.spec, f"{_name(best.spec)} at {shape}", best.epochs)


def _shape(key: str) -> tuple[int, int, int]:
    return tuple(map(int, re.search(r"-d(\d+)-L(\d+)-k(\d+)-", key).groups()))


def _far(shape: tuple[int, int, int], spec: RunSpec) -> float:
    width, depth, k = shape
    return (
        4 * abs(math.log2(width / spec.width))
        + 4 * abs(math.log2(depth / spec.depth))
        + 4 * abs(k / depth - spec.k / spec.depth)
    )


def _distance(a: RunSpec, b: RunSpec) -> float:
    penalty = abs(math.log10(max(a.penalty, 1e-6) / max(b.penalty, 1e-6)))
    names = ("normalisation", *VARIANTS)
    other = 3 * sum(getattr(a, name) != getattr(b, name) for name in names)
    return penalty + other + abs(math.log2(a.epochs / b.epochs)) / 4 + 0.01 * (a.seed != b.seed)


def _name(spec: RunSpec, fields: Sequence[str] = ("penalty", "k")) -> str:
    parts = [catalogue.label(spec.method)]
    parts += [f"λ={spec.penalty:g}"] * ("penalty" in fields and spec.penalty > 0)
    parts += [f"k={spec.k}"] * ("k" in fields and spec.k != spec.depth)
    parts += [f"{short}={getattr(spec, name)}" for name, short in _SHORT.items() if name in fields]
    return " ".join(parts)


_SHORT = {"width": "d", "depth": "L", "normalisation": "norm", "epochs": "e", "seed": "seed", "hidden": "hidden"}


def _names(specs: Sequence[RunSpec]) -> list[str]:
    """By rule and penalty, and whatever else tells these apart."""
    names = [_name(spec) for spec in specs]
    if len(set(names)) < len(names):
        varied = [name for name in _SHORT if len({getattr(spec, name) for spec in specs}) > 1]
        names = [_name(spec, ["penalty", "k", *varied]) for spec in specs]
    return names


def _controls(w: Any) -> dict[str, Any]:
    """Field of a run -> its control; no sliders: a screen reader is not told what they are called."""
    wide = {"style": {"description_width": "110px"}, "layout": {"width": "400px"}}
    rules = [(f"{entry.label}: {entry.full_name}", name) for name, entry in catalogue.entries().items()]
    scaled = [("the rule's own way", ""), ("by sample", "sample"), ("by batch", "batch"), ("not at all", "none")]
    penalties = [(f"{value:g}", value) for value in PENALTIES]
    return {
        "method": w.Dropdown(options=rules, value="dfa", description="rule", **wide),
        "width": w.Dropdown(options=[(str(d), d) for d in WIDTHS], value=256, description="width d", **wide),
        "depth": w.BoundedIntText(4, 1, 12, description="blocks L", **wide),
        "k": w.BoundedIntText(4, 0, 4, description="trained blocks k", **wide),
        "penalty": w.Dropdown(options=penalties, description="penalty λ", **wide),
        "normalise": w.Dropdown(options=scaled, description="credit scaled", **wide),  # None would select nothing
        "epochs": w.BoundedIntText(5, 1, 1000, description="epochs", **wide),
        "seed": w.BoundedIntText(42, 0, 2**31 - 1, description="seed", **wide),
    }


def panel(data: str = "cifar10", **start: Any) -> "Panel":
    """The controls, and below them what they show; `start` are values to begin with."""
    return Panel(data, start)


class Panel:
    """Controls with labels, and a thread that redraws while processes train."""

    def __init__(self, data: str, start: Mapping[str, Any]) -> None:
        import ipywidgets as w  # late: only the controls need it

        self.data, self.thread = data, None
        self.fields = _controls(w)
        self.fields["depth"].observe(self._fit_k, "value")
        for name, value in start.items():
            self._set(name, value)
        self.twin = w.Checkbox(True, description="train the frozen twin too, for D3", indent=False)
        self.train = w.Button(description="Train", button_style="primary", tooltip="show this setting alone")
        self.overlay = w.Button(description="Train beside", tooltip="add this setting to those on show")
        self.halt = w.Button(description="Stop", disabled=True, tooltip="the curves stay; Train goes on from there")
        self.section = w.Dropdown(options=sections.training(), description="section")
        self.name = w.Text(placeholder="letters, digits, _", description="name")
        self.keep = w.Button(description="Save as set", tooltip="write params/<section>/<name>.yaml")
        self.status, self.saved = w.HTML("Choose, then press Train."), w.HTML()
        acts = {self.train: self._train, self.overlay: self._overlay, self.halt: self._stop, self.keep: self._save}
        for button, act in acts.items():
            button.on_click(act)
        left, right = list(self.fields.values())[:4], list(self.fields.values())[4:]
        buttons = w.HBox([self.train, self.overlay, self.halt, self.twin])
        display(w.VBox([w.HBox([w.VBox(left), w.VBox(right)]), buttons, self.status]))
        self.session = Session()
        display(w.VBox([w.HBox([self.section, self.name, self.keep]), self.saved]))
        live.warm(2)  # a setting and its twin: loading torch takes longer than choosing

    def _set(self, name: str, value: Any) -> None:
        if name not in self.fields:
            raise Mistake(f"panel: no control {name!r}; there are {', '.join(self.fields)}")
        control = self.fields[name]
        listed = getattr(control, "options", None)
        choices = [value for _, value in listed] if listed else range(control.min, control.max + 1)
        value = "" if value is None else value
        if value not in choices:
            takes = f"one of {choices}" if listed else f"{choices[0]} to {choices[-1]}"
            raise Mistake(f"panel: {name} = {value!r}: the control takes {takes}")
        control.value = value

    @property
    def spec(self) -> RunSpec:
        values = {name: control.value for name, control in self.fields.items()}
        return RunSpec(data=self.data, **values | {"normalise": values["normalise"] or None})

    def wait(self, seconds: float = 600.0) -> None:
        """Until the training on show has ended; for code, not for people."""
        if self.thread is not None:
            self.thread.join(seconds)

    def _fit_k(self, change: dict[str, Any]) -> None:
        k, whole = self.fields["k"], self.fields["k"].value == change["old"]
        k.max = change["new"]
        k.value = k.max if whole else min(k.value, k.max)

    def _train(self, _: Any) -> None:
        self._start([self.spec])

    def _overlay(self, _: Any) -> None:
        self._start([*self.session.settings, self.spec])

    def _start(self, specs: Sequence[RunSpec]) -> None:
        self._stop(None)
        self.session.frozen = self.twin.value
        self.halt.disabled = False
        self.status.value = "Starting a process …"
        self.thread = threading.Thread(target=self._follow, args=(specs,), daemon=True)
        self.thread.start()

    def _follow(self, specs: Sequence[RunSpec]) -> None:
        begun = time.monotonic()
        try:
            self.session.start(specs)
            while self.session.poll():
                self.status.value = f"Training, {time.monotonic() - begun:.0f} s …"
            self.status.value = "<br>".join(self.session.problems) or f"Done in {time.monotonic() - begun:.0f} s."
        except Exception as error:  # a thread's error would be seen by nobody
            self.status.value = str(error) if isinstance(error, Mistake) else f"{type(error).__name__}: {error}"
        finally:
            self.halt.disabled = True
            live.warm(2)  # for the next click

    def _stop(self, _: Any) -> None:
        if self.thread is not None and self.thread.is_alive():
            self.session.stop()
            self.thread.join()
            self.status.value = "Stopped; Train goes on from the last epoch."

    def _save(self, _: Any) -> None:
        try:
            path, left = setfile.write(self.section.value, self.name.value, self.session.settings or [self.spec])
        except Mistake as error:
            self.saved.value = str(error)
            return
        missing = f" It has no place for {', '.join(left)}." if left else ""
        command = f"make reproduce SECTION={self.section.value} SET={path.stem}"
        self.saved.value = f"Saved as {paths.shown(path)}.{missing} <code>{command}</code> runs it."
