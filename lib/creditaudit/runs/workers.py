"""Those who train: processes on this machine, or any `concurrent.futures.Executor`, which may end on other machines.

A worker is told a spec and answers with a record as text. It needs no disk of the campaign's: elsewhere it keeps
checkpoints and records in a folder of its own and fetches its own pictures. It reports epochs where it has a channel.
"""

import multiprocessing
import os
import signal
import threading
from collections.abc import Callable, Iterator
from concurrent.futures import BrokenExecutor, Executor, Future, ProcessPoolExecutor
from contextlib import contextmanager
from functools import cache
from pathlib import Path
from typing import Any

from creditaudit import paths
from creditaudit.engine.spec import RunSpec
from creditaudit.mistakes import Mistake
from creditaudit.runs import arrivals, cost, fetch, train
from creditaudit.runs.files import RecordError, Unwritable, locked
from creditaudit.runs.provenance import provenance
from creditaudit.runs.records import Record, Store
from creditaudit.runs.seal import Seal, differences, digest, seal
from creditaudit.runs.turns import Turn

ENVIRONMENT = {
    "OMP_NUM_THREADS": "1",
    "MKL_NUM_THREADS": "1",
    # glibc hands freed megabytes back to the kernel at once: 3000 page faults, 4 % of a State Bridge step at d = 512
    "MALLOC_MMAP_THRESHOLD_": str(32 << 20),
    "MALLOC_TRIM_THRESHOLD_": str(1 << 30),
}
LAST_WORDS = 5.0  # seconds a worker gets between SIGTERM and SIGKILL

Report = Callable[[str, int, float], None]  # a run's key, epochs done, test accuracy

_report: Report = lambda *_: None  # noqa: E731  set in each worker that has a channel to its campaign


class WorkerKilled(Mistake, RuntimeError):
    """A worker process is gone, and with it the pool."""


class WorkerDiffers(Mistake, RuntimeError):
    """A worker would compute other numbers than its campaign expects."""


def train_one(fields: dict[str, Any], expected: Seal, profile_dir: str | None) -> str:
    """The task of a worker: the record of one run, as text."""
    if off := differences(expected, seal()):
        raise WorkerDiffers(f"this worker differs from its campaign in {', '.join(off)}: it trains nothing")
    spec = RunSpec(**fields)

    def report(spec: RunSpec, epoch: int, accuracy: float) -> None:
        _report(spec.key, epoch, accuracy)

    try:
        if profile_dir is not None:
            return arrivals.packed(train.run(spec, Store(Path(profile_dir)), report))
        return arrivals.packed(_train_apart(spec, report))
    except Exception as error:
        if isinstance(error, Unwritable) and profile_dir is not None:  # nor can any other record be saved
            raise
        raise RuntimeError(f"run {spec.key} failed: {error}") from None


def report_through(channel: Report) -> None:
    """From now on this process tells its epochs there."""
    global _report
    _report = channel


def _train_apart(spec: RunSpec, report: train.Progress) -> Record:
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
        return train.run(spec, store, report)
    finally:
        turn.give_back()


@cache
def _pictures() -> None:
    """Fetched by one of the workers of a machine, verified by each."""
    with locked(paths.DATA / "cifar10"):
        fetch.cifar10()


class Crew:
    """Any executor: how many runs it takes at a time, and how to give it one."""

    def __init__(self, executor: Executor, room: int | None = None) -> None:
        self.executor, self._room = executor, room or getattr(executor, "_max_workers", cost.cores())

    def room(self) -> int:
        """Runs it can train at a time; asked again and again, because workers come and go."""
        return self._room

    def submit(self, spec: RunSpec) -> Future[str]:
        return self.executor.submit(train_one, spec.model_dump(), seal(), None)

    def trouble(self, error: BaseException) -> BaseException | None:
        """What ends the campaign, if this is not the failure of one run."""
        return WorkerKilled(_gone(self._room)) if isinstance(error, BrokenExecutor) else None

    def explain(self, spec: RunSpec, error: BaseException) -> BaseException:
        """Why one run failed."""
        return error

    def listen(self, report: Report) -> None:
        """Have epochs told, where there is a channel."""

    def stop(self) -> None:
        """At once; what runs is given up. An executor that somebody lent is not shut down."""


class LocalCrew(Crew):
    """One process per core, writing into the campaign's own folder."""

    def __init__(self, jobs: int, store: Store) -> None:
        context = multiprocessing.get_context("spawn")  # never fork: torch's threads do not survive it
        os.environ |= ENVIRONMENT
        self.reports, self.folder = context.Queue(), str(store.folder.parent)
        pool = ProcessPoolExecutor(jobs, context, initializer=_start_local, initargs=(self.reports,))
        super().__init__(pool, jobs)

    def submit(self, spec: RunSpec) -> Future[str]:
        with ctrl_c_ignored():
            return self.executor.submit(train_one, spec.model_dump(), seal(), self.folder)

    def listen(self, report: Report) -> None:
        def pass_on() -> None:
            while (told := self.reports.get()) is not None:
                report(*told)

        self.listener = threading.Thread(target=pass_on, daemon=True)
        self.listener.start()

    def stop(self) -> None:
        workers = list((self.executor._processes or {}).values())
        self.executor.shutdown(wait=False, cancel_futures=True)
        for worker in workers:
            worker.terminate()
        for worker in workers:
            worker.join(LAST_WORDS)
            if worker.is_alive():
                worker.kill()
        self.reports.put(None)
        self.reports.cancel_join_thread()  # a worker killed while it wrote must not keep us from leaving
        self.listener.join(LAST_WORDS)


def _start_local(reports: "multiprocessing.Queue") -> None:
    threading.Thread(target=_leave_with_the_campaign, daemon=True).start()
    report_through(lambda *told: reports.put(told))
    seal(), provenance()  # now, while the code on disk is the code in memory


def _leave_with_the_campaign() -> None:
    """A campaign that was killed tells nobody, and its queue stays open: workers hold both ends of it."""
    multiprocessing.parent_process().join()
    os._exit(1)


def _gone(jobs: int) -> str:
    return "a worker process was killed (out of memory?); finished runs are saved, the same command goes on" + (
        f", with JOBS=1 in a part of the memory that {jobs} workers take" if jobs > 1 else ""
    )


@contextmanager
def ctrl_c_ignored() -> Iterator[None]:
    """Workers started meanwhile inherit this: Ctrl-C reaches the whole terminal, but is the campaign's to handle."""
    if threading.current_thread() is not threading.main_thread():
        yield
        return
    handler = signal.signal(signal.SIGINT, signal.SIG_IGN)
    try:
        yield
    finally:
        signal.signal(signal.SIGINT, handler)
