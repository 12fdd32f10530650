"""Those who train: processes on this machine, or any `concurrent.futures.Executor`, which may end on other machines.

A worker is handed a task: a spec goes in, a record comes back as text. It tells its epochs where it has a channel.
"""

import multiprocessing
import os
import signal
import threading
from collections.abc import Callable, Iterator
from concurrent.futures import BrokenExecutor, Executor, Future, ProcessPoolExecutor
from contextlib import AbstractContextManager, contextmanager
from typing import Any

from creditaudit.engine.spec import RunSpec
from creditaudit.mistakes import Mistake
from creditaudit.runs import cost
from creditaudit.runs.provenance import provenance
from creditaudit.runs.records import Store
from creditaudit.runs.seal import Seal, seal

ENVIRONMENT = {
    "OMP_NUM_THREADS": "1",
    "MKL_NUM_THREADS": "1",
    # glibc hands freed megabytes back to the kernel at once: 3000 page faults, 4 % of a State Bridge step at d = 512
    "MALLOC_MMAP_THRESHOLD_": str(32 << 20),
    "MALLOC_TRIM_THRESHOLD_": str(1 << 30),
}
LAST_WORDS = 5.0  # seconds a worker gets between SIGTERM and SIGKILL

Task = Callable[[dict[str, Any], Seal, str | None], str]  # a spec's fields, the campaign's seal, its folder -> record
Report = Callable[[str, int], None]  # a run's key, epochs done

report: Report = lambda *_: None  # noqa: E731  set in each worker that has a channel to its campaign


class WorkerKilled(Mistake, RuntimeError):
    """A worker process is gone, and with it the pool."""


class Crew:
    """Any executor: how many runs it takes at a time, and how to give it one."""

    def __init__(self, executor: Executor, task: Task, room: int | None = None) -> None:
        self.executor, self.task, self._room = executor, task, room or getattr(executor, "_max_workers", cost.cores())

    def room(self) -> int:
        """Runs it can train at a time; asked again and again, because workers come and go."""
        return self._room

    def submit(self, spec: RunSpec) -> Future[str]:
        return self.executor.submit(self.task, spec.model_dump(), seal(), None)

    def end_if_lost(self, error: BaseException) -> None:
        """End the campaign, if this is not the failure of one run."""
        if isinstance(error, BrokenExecutor):
            less = f", with JOBS=1 in a part of the memory that {self._room} workers take" if self._room > 1 else ""
            raise WorkerKilled(
                f"a worker process was killed (out of memory?); finished runs are saved, the same command goes on{less}"
            ) from error

    def listen(self, report: Report) -> None:
        """Have epochs told, where there is a channel."""

    def stop(self) -> None:
        """At once; what runs is given up. An executor that somebody lent is not shut down."""


class LocalCrew(Crew):
    """One process per core, writing into the campaign's own folder."""

    def __init__(self, task: Task, jobs: int, store: Store) -> None:
        context = multiprocessing.get_context("spawn")  # never fork: torch's threads do not survive it
        os.environ |= ENVIRONMENT
        self.reports, self.folder = context.Queue(), str(store.folder.parent)
        pool = ProcessPoolExecutor(jobs, context, initializer=_start_local, initargs=(self.reports,))
        super().__init__(pool, task, jobs)

    def submit(self, spec: RunSpec) -> Future[str]:
        with ctrl_c_ignored():
            return self.executor.submit(self.task, spec.model_dump(), seal(), self.folder)

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
    global report
    threading.Thread(target=_leave_with_the_campaign, daemon=True).start()
    report = lambda *told: reports.put(told)  # noqa: E731
    seal(), provenance()  # now, while the code on disk is the code in memory


def _leave_with_the_campaign() -> None:
    """A campaign that was killed tells nobody, and its queue stays open: workers hold both ends of it."""
    multiprocessing.parent_process().join()
    os._exit(1)


@contextmanager
def signals(handler: Any, *numbers: int) -> Iterator[None]:
    """Handled so meanwhile; only the main thread can have that."""
    if threading.current_thread() is not threading.main_thread():
        numbers = ()
    before = {number: signal.signal(number, handler) for number in numbers}
    try:
        yield
    finally:
        for number, earlier in before.items():
            signal.signal(number, earlier)


def ctrl_c_ignored() -> AbstractContextManager[None]:
    """Workers started meanwhile inherit this: Ctrl-C reaches the whole terminal, but is the campaign's to handle."""
    return signals(signal.SIG_IGN, signal.SIGINT)
