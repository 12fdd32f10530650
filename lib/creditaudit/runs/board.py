"""What a campaign shows while it trains: which runs are done, and when the last one will be."""

import shutil
import sys
import time
from collections.abc import Sequence

from creditaudit.engine.spec import RunSpec
from creditaudit.runs import cost, schedule
from creditaudit.runs.progress import QUIET
from creditaudit.runs.records import Record

PRIOR = 5.0  # core-seconds: until that much is done, the pace of earlier records counts in the estimate


class Board:
    """What is done and what is left: in a terminal a line that is rewritten; never silent for long."""

    def __init__(self, specs: Sequence[RunSpec], measured: Sequence[Record], jobs: int) -> None:
        self.estimates = {spec: cost.estimate(spec, measured) for spec in specs}
        self.left_of = {spec: estimate.total for spec, estimate in self.estimates.items()}
        self.total = sum(self.left_of.values())
        self.runs, self.finished, self.done, self.jobs = len(specs), 0, 0.0, jobs
        self.by_key = {spec.key: spec for spec in specs}
        self.reached: dict[RunSpec, int] = {}
        self.under_way: dict[RunSpec, float] = {}  # since when its present piece: an epoch, or what closes the run
        self.begun = self.said = time.monotonic()
        self.terminal = sys.stdout.isatty()

    def begin(self, spec: RunSpec) -> None:
        """Somebody has been given it."""
        self.under_way[spec] = time.monotonic()

    def note(self, key: str, epoch: int) -> None:
        """An epoch is done, says a worker; another campaign's runs may be heard on the same channel."""
        if key not in self.by_key:
            return
        spec = self.by_key[key]
        share = self.estimates[spec].epoch
        if spec not in self.reached:  # a resumed run: what its checkpoint held is not work of this campaign
            self.total -= share * (epoch - 1)
            self.left_of[spec] -= share * (epoch - 1)
        self._add(spec, share * (epoch - self.reached.get(spec, epoch - 1)))
        self.reached[spec] = epoch
        if spec in self.under_way:
            self.begin(spec)
        self.tick()

    def finish(self, spec: RunSpec, accuracy: float) -> None:
        """Its record exists."""
        self.finished += 1
        self.under_way.pop(spec, None)
        self._add(spec, self.left_of[spec])
        self._say(f"{self.finished}/{self.runs} {spec.key} accuracy {accuracy:.4f}, {self.left()}")

    def tick(self, more: str = "") -> None:
        """A sign of life, where nothing was said for a while; in a terminal always."""
        if self.terminal or time.monotonic() - self.said > QUIET:
            percent = 100 * self.done / self.total
            self._say(f"training: {self.finished} of {self.runs} runs, {percent:.0f} %, {self.left()}{more}", "")

    def seconds_left(self) -> float:
        """By the pace so far; the expected pace counts as much as `PRIOR` core-seconds of it.

        A piece under way is as far as its time at the pace of what is done; one that takes longer slows the pace.
        """
        now = time.monotonic()
        spent, open_since = (now - self.begun) * self.jobs, sum(now - since for since in self.under_way.values())
        pace = (max(0.0, spent - open_since) + PRIOR) / (self.done + PRIOR)
        ahead = {spec: min((now - since) / pace, self._piece(spec)) for spec, since in self.under_way.items()}
        pace = (spent + PRIOR) / (self.done + sum(ahead.values()) + PRIOR)
        left = [max(0.0, seconds - ahead.get(spec, 0.0)) for spec, seconds in self.left_of.items()]
        return pace * schedule.makespan(left, self.jobs)  # a dear run may come last and keep one alone

    def _piece(self, spec: RunSpec) -> float:
        """What it is at, in seconds."""
        estimate = self.estimates[spec]
        return estimate.epoch if self.reached.get(spec, 0) < spec.epochs else estimate.closing

    def left(self) -> str:
        return f"about {self.seconds_left() / 60:.1f} min left"

    def _add(self, spec: RunSpec, work: float) -> None:
        self.done += work
        self.left_of[spec] = max(0.0, self.left_of[spec] - work)

    def _say(self, line: str, end: str = "\n") -> None:
        self.said = time.monotonic()
        if self.terminal:
            print(f"\r\x1b[K{line[: shutil.get_terminal_size().columns - 1]}", end=end, flush=True)
        else:
            print(line, flush=True)

    def close(self) -> None:
        print(end="\r\x1b[K" * self.terminal, flush=True)
