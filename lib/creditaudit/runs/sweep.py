"""Train a list of runs: by default one worker process per core, one thread each, one run at a time.

Finished runs are skipped, interrupted ones continue from their checkpoint, so the same command can be repeated
until nothing is left to do. Several machines may do so in one folder: a run is trained by whoever holds its lock.
"""

import hashlib
import os
import platform
import signal
import threading
import time
from collections import defaultdict
from collections.abc import Callable, Sequence
from concurrent.futures import FIRST_COMPLETED, CancelledError, Executor, Future, wait
from contextlib import ExitStack
from functools import cache
from pathlib import Path
from typing import Any

from creditaudit import paths
from creditaudit.engine.spec import RunSpec
from creditaudit.mistakes import Mistake
from creditaudit.runs import arrivals, cost, fetch, schedule, workers
from creditaudit.runs.board import Board
from creditaudit.runs.files import RecordError, Unwritable, checked_text, locked, sweep_scratch
from creditaudit.runs.records import Record, Store
from creditaudit.runs.seal import Seal, differences, digest, seal
from creditaudit.runs.turns import Turn
from creditaudit.runs.workers import Crew, LocalCrew, Task, WorkerKilled

__all__ = ["Interrupted", "RunsFailed", "WorkerKilled", "train_all"]

MOST_SHOWN = 6  # failures told in full
TICK = 0.25  # seconds until a signal, or a worker that joined, is noticed
ELSEWHERE = 1.0  # seconds between two looks at runs that others train
Part = tuple[int, int]  # 3, 8: the third of eight
STACKED = 32  # runs stacked on a GPU: one alone is launch-bound


class Interrupted(Mistake, RuntimeError):
    """The campaign was stopped; what had finished is saved and the rest can be resumed."""

    exit_code = 130  # as a shell reports Ctrl-C


class RunsFailed(Mistake, RuntimeError):
    """Runs failed, the others were trained; the first failure is the cause of this one."""

    def __init__(self, failures: Sequence[BaseException], asked: int) -> None:
        shown = list(dict.fromkeys(str(failure) for failure in failures))[:MOST_SHOWN]
        lines = "\n".join(f"  {failure}" for failure in shown)
        super().__init__(f"{len(failures)} of {asked} runs failed:\n{lines}")
        self.__cause__ = failures[0]


def train_all(
    specs: Sequence[RunSpec],
    store: Store,
    jobs: int | None = None,
    device: str = "cpu",
    executor: Executor | Callable[[Task], Crew] | None = None,
    part: Part | None = None,
    measured: Sequence[Record] = (),
) -> int:
    """Train what is missing; returns how many runs were trained here.

    The executor is any of concurrent.futures, or makes a crew for the task; by default a process per core.
    Of several parts of one campaign each may have these cores to itself. By `measured` records, and those of the
    store, the time that is left is estimated.
    """
    if device == "cuda" and not _has_gpu():
        raise Mistake("DEVICE=cuda: torch finds no GPU here; leave DEVICE out to train on the CPU")
    missing = store.missing(specs)
    if not missing:
        return 0
    if device != "cpu":
        return _train_stacked(missing, store, device, measured)
    if executor is not None:
        crew = Crew(executor, train_one) if isinstance(executor, Executor) else executor(train_one)
        return _train_with(crew, missing, store, measured)
    busy = f"waiting: another process trains into {paths.shown(store.folder)} on these cores"
    with locked(cores_in(store, part), busy):
        missing = store.missing(specs)  # again: whoever was waited for may have trained them
        crew = LocalCrew(train_one, min(jobs or cost.cores(), len(missing)) or 1, store)
        return _train_with(crew, missing, store, measured)


def cores_in(store: Store, part: Part | None = None) -> Path:
    """What a campaign locks: these cores of this machine in this folder. Other machines and parts train beside it."""
    cores = sorted(os.sched_getaffinity(0)) if hasattr(os, "sched_getaffinity") else []
    name = hashlib.sha256(f"{platform.node()} {cores} {part}".encode()).hexdigest()[:12]
    return store.folder.with_name(f"cores-{name}")


def _has_gpu() -> bool:
    import torch  # late, like `train` below: only those who train wait for it

    return torch.cuda.is_available()


def _train_with(crew: Crew, missing: Sequence[RunSpec], store: Store, measured: Sequence[Record]) -> int:
    campaign, stopped = _Campaign(crew, missing, store, measured), threading.Event()
    # Ctrl-C, and SIGTERM where the command turns it into one, are only noted: nothing is torn in the middle
    ours = [number for number in (signal.SIGINT, signal.SIGTERM) if callable(signal.getsignal(number))]
    try:
        with workers.signals(lambda *_: stopped.set(), *ours):
            try:
                campaign.complete(stopped)
            finally:
                campaign.close()
    except KeyboardInterrupt:
        left = len(store.missing(missing))
        raise Interrupted(
            f"stopped: {len(missing) - left} of {len(missing)} runs finished, {left} left; "
            "the same command goes on, each from its last checkpoint "
            "(at most half a minute, one epoch or the closing diagnostics of each are lost)"
        ) from None
    if campaign.failed:
        raise RunsFailed(campaign.failed, len(missing))
    if gone := store.missing(missing):
        raise Mistake(
            f"{len(gone)} records were removed from {paths.shown(store.folder)} while others were trained; "
            "the same command trains them again"
        )
    return campaign.trained


class _Campaign:
    """Runs that wait, are trained by the crew, or by others; a run that fails stops no other.

    A run is handed out only when somebody is free: who joins late gets work, and others on the same disk too.
    """

    def __init__(self, crew: Crew, missing: Sequence[RunSpec], store: Store, measured: Sequence[Record]) -> None:
        self.crew, self.store = crew, store
        self.board = Board(missing, [*store.all(), *measured], max(1, crew.room()))
        self.waiting, self.elsewhere = list(missing), []
        self.running: dict[Future[str], tuple[RunSpec, Turn]] = {}
        self.failed: list[BaseException] = []
        self.trained, self.room, self.looked = 0, 0, time.monotonic()
        sweep_scratch(store.folder.parent)
        crew.listen(self.board.note)

    def complete(self, stopped: threading.Event) -> None:
        while self.waiting or self.running or self.elsewhere:
            if stopped.is_set():
                raise KeyboardInterrupt
            self._hand_out()
            self.board.tick(f", {len(self.elsewhere)} with another campaign" if self.elsewhere else "")
            if not self.running:
                stopped.wait(TICK)
                continue
            for future in wait(self.running, TICK, FIRST_COMPLETED).done:
                spec, turn = self.running.pop(future)
                try:
                    self._receive(future, spec)
                finally:
                    turn.give_back()

    def _hand_out(self) -> None:
        self._look_elsewhere()
        if self.room != (room := self.crew.room()):
            self.room = room
            if room:
                seconds = [self.board.estimates[spec].total for spec in self.waiting]
                self.waiting = schedule.order(self.waiting, seconds, room)
        while self.waiting and len(self.running) < room:
            spec = self.waiting.pop(0)
            turn = Turn(self.store, spec.key)
            if not turn.take():
                self.elsewhere.append(spec)
            elif self.store.path(spec).exists():
                turn.give_back()
            else:
                self.running[self.crew.submit(spec)] = spec, turn
                self.board.begin(spec)

    def _look_elsewhere(self) -> None:
        """When nothing else is left: did those who had the other runs finish them, or die?"""
        if self.elsewhere and not self.waiting and time.monotonic() - self.looked > ELSEWHERE:
            self.waiting, self.elsewhere, self.looked = self.elsewhere, [], time.monotonic()

    def _receive(self, future: Future[str], spec: RunSpec) -> None:
        try:
            record = arrivals.accept(future.result(), spec, self.store)
        except Unwritable:  # nor can any other record be
            raise
        except (Exception, CancelledError) as error:
            self.crew.end_if_lost(error)
            why = str(error) or type(error).__name__
            self.failed.append(error if spec.key in why else RuntimeError(f"run {spec.key} failed: {why}"))
        else:
            self.trained += 1
            self.board.finish(spec, record.final["test_accuracy"])

    def close(self) -> None:
        for future in self.running:
            future.cancel()
        self.crew.stop()
        for _, turn in self.running.values():
            turn.give_back()
        self.board.close()


def _train_stacked(missing: Sequence[RunSpec], store: Store, device: str, measured: Sequence[Record]) -> int:
    """On a GPU: one process, runs that differ only in seed and lambda stacked. Not tested on a GPU."""
    from creditaudit.runs import train

    with ExitStack() as turns:
        for spec in sorted(missing, key=lambda spec: spec.key):  # in one order, or two would wait for each other
            turn = Turn(store, spec.key)
            turn.take(wait=True)
            turns.callback(turn.give_back)
        missing = store.missing(missing)
        board, stacks = Board(missing, [*store.all(), *measured], 1), defaultdict(list)
        for spec in missing:
            stacks[spec.but(seed=0, penalty=0.0)].append(spec)
        for alike in stacks.values():
            for start in range(0, len(alike), STACKED):
                for record in train.run_stack(alike[start : start + STACKED], store, board.note, device):
                    board.finish(record.spec, record.final["test_accuracy"])
        board.close()
    return len(missing)


def train_one(fields: dict[str, Any], expected: Seal, profile_dir: str | None) -> str:
    """The task of a worker: the record of one run, as text."""
    from creditaudit.runs import train

    if off := differences(expected, seal()):
        raise Mistake(f"this worker differs from its campaign in {', '.join(off)}: it trains nothing")
    spec, here = RunSpec(**fields), profile_dir is not None
    try:
        record = train.run(spec, Store(Path(profile_dir)), workers.report) if here else _train_apart(spec)
        return checked_text(record.to_json())
    except Exception as error:
        if isinstance(error, Unwritable) and here:  # nor can any other record be saved
            raise
        raise RuntimeError(f"run {spec.key} failed: {error}") from None


def _train_apart(spec: RunSpec) -> Record:
    """In a folder of the worker's own: what is finished there but did not arrive is sent again, not trained again."""
    store = Store(paths.OUTPUTS / "worker" / digest(seal()))
    turn = Turn(store, spec.key)
    turn.take(wait=True)
    try:
        try:
            store.get(spec)
        except RecordError:
            store.path(spec).unlink()
        if spec.data == "cifar10":
            _pictures()
        from creditaudit.runs import train

        return train.run(spec, store, workers.report)
    finally:
        turn.give_back()


@cache
def _pictures() -> None:
    """Fetched by one of the workers of a machine, verified by each."""
    with locked(paths.DATA / "cifar10"):
        fetch.cifar10()
