"""The playground's controls: choose a rule, a shape and a penalty, press Train; nothing freezes meanwhile."""

import threading
import time
from collections.abc import Sequence
from typing import Any

import ipywidgets as w
from IPython.display import display

from creditaudit import paths
from creditaudit.engine import catalogue
from creditaudit.engine.spec import RunSpec
from creditaudit.lab.playground import Session
from creditaudit.mistakes import Mistake
from creditaudit.runs import live
from creditaudit.study import sections, setfile

PENALTIES = (0.0, 1e-4, 3e-4, 1e-3, 3e-3, 1e-2, 3e-2, 1e-1)
WIDTHS = (64, 128, 256, 512)
SETTLED = 0.2  # seconds: while the kernel is busy, a browser sends a click before the value that was typed before it


def _controls() -> dict[str, w.ValueWidget]:
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


class Panel:
    """The controls, and below them what they show; a thread redraws while processes train.

    `start` are values to begin with: Panel(method="fa", epochs=20).
    """

    def __init__(self, data: str = "cifar10", **start: Any) -> None:
        self.data, self.thread, self.halted = data, None, threading.Event()
        self.fields = _controls()
        self.fields["depth"].observe(self._fit_k, "value")
        for name, value in start.items():
            self._set(name, "" if value is None else value)
        self.twin = w.Checkbox(True, description="train the frozen twin too, for D3", indent=False)
        self.train = w.Button(description="Train", button_style="primary", tooltip="show this setting alone")
        self.overlay = w.Button(description="Train beside", tooltip="add this setting to those on show")
        self.halt = w.Button(description="Stop", disabled=True, tooltip="the curves stay; Train goes on from there")
        self.section = w.Dropdown(options=sections.training(), description="section")
        self.name = w.Text(placeholder="letters, digits, _", description="name")
        self.keep = w.Button(description="Save as set", tooltip="write params/<section>/<name>.yaml")
        self.status, self.saved = w.HTML("Choose, then press Train."), w.HTML()
        self.train.on_click(lambda _: self._start([]))
        self.overlay.on_click(lambda _: self._start(self.session.settings))
        self.halt.on_click(lambda _: self._stop())
        self.keep.on_click(lambda _: self._save())
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
        listed = [each for _, each in getattr(control, "options", ())]
        if value not in (listed or range(control.min, control.max + 1)):
            takes = f"one of {listed}" if listed else f"{control.min} to {control.max}"
            raise Mistake(f"panel: {name} = {value!r}: the control takes {takes}")
        control.value = value

    @property
    def spec(self) -> RunSpec:
        values = {name: control.value for name, control in self.fields.items()}
        return RunSpec(data=self.data, **values | {"normalise": values["normalise"] or None})

    def _fit_k(self, change: dict[str, Any]) -> None:
        k, whole = self.fields["k"], self.fields["k"].value == change["old"]
        k.max = change["new"]
        k.value = k.max if whole else min(k.value, k.max)

    def _start(self, beside: Sequence[RunSpec]) -> None:
        self._stop()
        self.session.frozen = self.twin.value
        self.halt.disabled = False
        self.halted.clear()
        self.status.value = "Starting a process …"
        self.thread = threading.Thread(target=self._follow, args=(beside,), daemon=True)
        self.thread.start()

    def _follow(self, beside: Sequence[RunSpec]) -> None:
        begun = time.monotonic()
        try:
            if self.halted.wait(SETTLED):
                return
            self.session.start([*beside, self.spec])
            while self.session.poll():
                if self.halted.is_set():  # while the processes started
                    self.session.stop()
                self.status.value = f"Training, {time.monotonic() - begun:.0f} s …"
            self.status.value = "<br>".join(self.session.problems) or f"Done in {time.monotonic() - begun:.0f} s."
        except Exception as error:  # a thread's error would be seen by nobody
            self.status.value = str(error) if isinstance(error, Mistake) else f"{type(error).__name__}: {error}"
        finally:
            self.halt.disabled = True
            live.warm(2)  # for the next click

    def _stop(self) -> None:
        if self.thread is not None and self.thread.is_alive():
            self.halted.set()
            self.session.stop()
            self.thread.join()
            self.status.value = "Stopped; Train goes on from the last epoch."

    def _save(self) -> None:
        try:
            path, left = setfile.write(self.section.value, self.name.value, self.session.settings or [self.spec])
        except Mistake as error:
            self.saved.value = str(error)
            return
        missing = f" It has no place for {', '.join(left)}." if left else ""
        command = f"make reproduce SECTION={self.section.value} SET={path.stem}"
        self.saved.value = f"Saved as {paths.shown(path)}.{missing} <code>{command}</code> runs it."
