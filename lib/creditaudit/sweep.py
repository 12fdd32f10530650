"""Train a list of runs: one worker process per core, one thread each, one run at a time.

Finished runs are skipped, interrupted ones continue from their checkpoint, so the same command can be repeated
until nothing is left to do.
"""

import multiprocessing
import os
import signal
import sys
import threading
import time
from collections import defaultdict
from collections.abc import Iterator, Sequence
from concurrent.futures import BrokenExecutor, ProcessPoolExecutor, as_completed
from contextlib import contextmanager
from pathlib import Path

import torch
from tqdm import tqdm

from creditaudit import cost, paths, train
from creditaudit.records import Store, locked, provenance
from creditaudit.spec import RunSpec

MOST_SHOWN = 6  # failures told in full
STARTING = 20.0  # seconds in which processes start and kernels compile: no measure of what is to come
WORKER_ENVIRONMENT = {
    "OMP_NUM_THREADS": "1",
    "MKL_NUM_THREADS": "1",
    # glibc hands freed megabytes back to the kernel at once: 3000 page faults, 4 % of a State Bridge step at d = 512
    "MALLOC_MMAP_THRESHOLD_": str(32 << 20),
    "MALLOC_TRIM_THRESHOLD_": str(1 << 30),
}
STACKED = 32  # runs stacked on a GPU: one alone is launch-bound

_reports: "multiprocessing.Queue | None" = None  # set in each worker by its initializer


class Interrupted(RuntimeError):
    """The campaign was stopped; what had finished is saved and the rest can be resumed."""

    exit_code = 130  # as a shell reports Ctrl-C


class NoDevice(RuntimeError):
    """The device asked for is not there."""


class WorkerKilled(RuntimeError):
    """A worker process is gone, and with it the pool."""


class RunsFailed(RuntimeError):
    """Runs failed, the others were trained; the first failure is the cause of this one."""

    def __init__(self, failures: Sequence[BaseException], asked: int) -> None:
        shown = list(dict.fromkeys(str(failure) for failure in failures))[:MOST_SHOWN]
        lines = "\n".join(f"  {failure}" for failure in shown)
        count = f"{len(failures)} of {asked} runs failed, the others were trained"
        super().__init__(f"{count if len(failures) < asked else f'all {asked} runs failed'}:\n{lines}")
        self.__cause__ = failures[0]


def cores() -> int:
    """Those this process may use: fewer than the machine's in a container or under a scheduler."""
    return len(os.sched_getaffinity(0)) if hasattr(os, "sched_getaffinity") else os.cpu_count() or 1


def train_all(specs: Sequence[RunSpec], store: Store, jobs: int | None = None, device: str = "cpu") -> int:
    """Train what is missing, in the order given; returns how many runs were trained."""
    if device == "cuda" and not torch.cuda.is_available():
        raise NoDevice("DEVICE=cuda: torch finds no GPU here; leave DEVICE out to train on the CPU")
    if not store.missing(specs):
        return 0
    with locked(store.folder, busy=f"waiting: another process trains into {paths.shown(store.folder)} on these cores"):
        missing = store.missing(specs)  # again: whoever was waited for may have trained them
        train.sweep_scratch(store)
        if missing and device != "cpu":
            _train_stacked(missing, store, device)
        elif missing:
            _train_in_workers(missing, store, min(jobs or cores(), len(missing)))
    return len(missing)


def _train_in_workers(missing: Sequence[RunSpec], store: Store, jobs: int) -> None:
    """One process per core; a run that fails stops no other."""
    board = _Board(missing, store)
    context = multiprocessing.get_context("spawn")  # never fork: torch's threads do not survive it
    reports = context.Queue()
    os.environ |= WORKER_ENVIRONMENT
    pool = ProcessPoolExecutor(jobs, context, initializer=_start_worker, initargs=(reports,))
    listener = threading.Thread(target=board.listen, args=(reports,), daemon=True)
    listener.start()
    try:
        with _ctrl_c_ignored():
            running = {pool.submit(_train_one, spec, store.folder.parent): spec for spec in missing}
        failed = []
        for future in as_completed(running):
            if isinstance(error := future.exception(), BrokenExecutor):
                raise WorkerKilled(
                    "a worker process was killed (out of memory?); finished runs are saved, the same command goes on"
                    + (f", with JOBS=1 in a part of the memory that {jobs} workers take" if jobs > 1 else "")
                ) from error
            if error:
                failed.append(error)
            else:
                board.finish(running[future], future.result())
        pool.shutdown()
    except BaseException as error:
        _stop(pool)
        if isinstance(error, KeyboardInterrupt):
            left = len(store.missing(missing))
            raise Interrupted(
                f"stopped: {len(missing) - left} of {len(missing)} runs finished, {left} left; "
                "the same command goes on, each from its last checkpoint "
                f"(at most {train.CHECKPOINT_SECONDS:.0f} s, one epoch or the closing diagnostics of each are lost)"
            ) from None
        raise
    finally:
        reports.put(None)
        reports.cancel_join_thread()  # a worker killed while it wrote must not keep us from leaving
        listener.join(5)
        board.close()
    if failed:
        raise RunsFailed(failed, len(missing))


def _train_stacked(missing: Sequence[RunSpec], store: Store, device: str) -> None:
    """On a GPU: one process, runs that differ only in seed and lambda stacked. Not tested on a GPU."""
    board, stacks = _Board(missing, store), defaultdict(list)
    for spec in missing:
        stacks[spec.but(seed=0, penalty=0.0)].append(spec)
    for alike in stacks.values():
        for start in range(0, len(alike), STACKED):
            for record in train.run_stack(alike[start : start + STACKED], store, board.note, device):
                board.finish(record.spec, record.final["test_accuracy"])
    board.close()


@contextmanager
def _ctrl_c_ignored() -> Iterator[None]:
    """Workers started meanwhile inherit this: Ctrl-C reaches the whole terminal, but is the parent's to handle."""
    if threading.current_thread() is not threading.main_thread():
        yield
        return
    handler = signal.signal(signal.SIGINT, signal.SIG_IGN)
    try:
        yield
    finally:
        signal.signal(signal.SIGINT, handler)


def _stop(pool: ProcessPoolExecutor) -> None:
    workers = list((pool._processes or {}).values())
    pool.shutdown(wait=False, cancel_futures=True)
    for worker in workers:
        worker.terminate()


def _start_worker(reports: "multiprocessing.Queue") -> None:
    global _reports
    _reports = reports
    provenance()  # now, while the code on disk is the code in memory


def _train_one(spec: RunSpec, profile_dir: Path) -> float:
    """Returns the run's accuracy, once its record is saved."""

    def report(spec: RunSpec, epoch: int, accuracy: float) -> None:
        if not multiprocessing.parent_process().is_alive():
            os._exit(1)  # the campaign was killed: do not train on as an orphan
        _reports.put((spec, epoch, accuracy))

    try:
        return train.run(spec, Store(profile_dir), report).final["test_accuracy"]
    except Exception as error:
        raise RuntimeError(f"run {spec.key} failed: {error}") from error


class _Board:
    """One bar per campaign in a terminal; one line per finished run elsewhere."""

    def __init__(self, specs: Sequence[RunSpec], store: Store) -> None:
        measured = store.all()
        self.share = {spec: cost.cpu_seconds(spec, measured) / spec.epochs for spec in specs}
        self.total = sum(self.share[spec] * spec.epochs for spec in specs)
        self.runs, self.finished, self.done = len(specs), 0, 0.0
        self.reached: dict[RunSpec, int] = {}
        self.begun = time.monotonic()
        layout = "{desc} {bar} {percentage:3.0f}% [{elapsed}<{remaining}]{postfix}"
        self.bar = tqdm(total=self.total, desc="training", bar_format=layout, disable=not sys.stderr.isatty())

    def listen(self, reports: "multiprocessing.Queue") -> None:
        while (report := reports.get()) is not None:
            self.note(*report)

    def note(self, spec: RunSpec, epoch: int, accuracy: float) -> None:
        if spec not in self.reached:  # a resumed run: what its checkpoint held is not work of this campaign
            self.total -= self.share[spec] * (epoch - 1)
            self.bar.total = self.total
        work = self.share[spec] * (epoch - self.reached.get(spec, epoch - 1))
        self.reached[spec] = epoch
        self.done += work
        self.bar.update(min(work, self.bar.total - self.bar.n))
        self.bar.set_postfix_str(f"{self.finished}/{self.runs} runs, {spec.key[:-9]} {accuracy:.3f}")

    def finish(self, spec: RunSpec, accuracy: float) -> None:
        """Its record exists."""
        self.finished += 1
        if self.bar.disable:
            print(f"{self.finished}/{self.runs} {spec.key} accuracy {accuracy:.4f}, {self._left()}", flush=True)

    def _left(self) -> str:
        spent = time.monotonic() - self.begun
        if spent < STARTING or not self.done:  # a run that was only to be examined reports no epoch
            return "no estimate yet"
        seconds = spent * max(0.0, self.total - self.done) / self.done
        return f"about {seconds / 60:.0f} min left" if seconds > 90 else f"about {seconds:.0f} s left"

    def close(self) -> None:
        self.bar.close()
