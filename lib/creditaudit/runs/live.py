"""Runs trained in processes of their own while somebody watches: every epoch is told, and a stop loses at most one.

    crew = Crew(specs, Store(paths.profile_dir("interactive")))
    while crew.poll(0.2): ...            look at crew.progress, draw, or crew.stop()

A worker is `python -m creditaudit.runs.live`, fed specs as lines of JSON: unlike multiprocessing's spawn it never runs
the caller's script again (one without a `__main__` guard would start workers that start workers), and a kernel that is
interrupted does not take it along. It saves a checkpoint at every epoch, so a run that is stopped goes on later.
"""

import json
import os
import queue
import subprocess
import sys
import tempfile
import threading
import time
import traceback
from collections.abc import Iterator, Sequence
from contextlib import suppress
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, Literal, TextIO

from creditaudit import paths
from creditaudit.engine.spec import RunSpec
from creditaudit.mistakes import Mistake
from creditaudit.runs import cost, schedule, workers
from creditaudit.runs.records import Record, Store

State = Literal["waiting", "starting", "training", "measuring", "done", "stopped", "failed"]
TOLD = ("train_loss", "test_accuracy", "h_norm", "g_norm")  # of every epoch
STARTING = 4.0  # seconds until a worker trains


@dataclass
class Progress:
    """What a run has told so far; `epochs` is shaped like a record's."""

    spec: RunSpec
    state: State = "waiting"
    epochs: dict[str, list] = field(default_factory=dict)
    problem: str = ""

    @property
    def epoch(self) -> int:
        return len(self.epochs.get("test_accuracy", ()))


class Worker:
    """A process that trains one run after another; its reports arrive in `reports` as (worker, report)."""

    def __init__(self) -> None:
        self.spec: RunSpec | None = None
        self.reports: queue.Queue[tuple[Worker, dict[str, Any]]] = queue.Queue()
        self.words = tempfile.TemporaryFile("w+")  # noqa: SIM115  its stderr, read if it dies
        self.environment = _environment()
        self.process = subprocess.Popen(
            [sys.executable, "-m", "creditaudit.runs.live"],
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            stderr=self.words,
            text=True,
            env=self.environment,
            start_new_session=True,  # Jupyter interrupts the kernel's whole group
        )
        threading.Thread(target=self._listen, daemon=True).start()

    @property
    def fits(self) -> bool:
        """Alive, and told of the same rules and folders as one that would start now."""
        return self.process.poll() is None and self.environment == _environment()

    def train(self, spec: RunSpec, store: Store) -> None:
        self.spec = spec
        with suppress(BrokenPipeError):  # its end is reported
            self.process.stdin.write(json.dumps([str(store.folder.parent), spec.model_dump()]) + "\n")
            self.process.stdin.flush()

    def stop(self) -> None:
        self.process.kill()
        self.process.wait()

    def last_words(self) -> str:
        self.words.seek(0)
        lines = [line for line in self.words.read().splitlines() if line.strip()]
        return lines[-1].strip() if lines else "it was killed (out of memory?)"

    def _listen(self) -> None:
        for line in self.process.stdout:
            self.reports.put((self, json.loads(line)))
        self.process.wait()
        self.reports.put((self, {"gone": True}))


def _environment() -> dict[str, str]:
    return paths.environment(os.environ) | workers.ENVIRONMENT | {"PYTHONUNBUFFERED": "1"}


_ready: list[Worker] = []  # no crew's yet


def warm(count: int) -> None:
    """Have so many workers load torch now (as many as there are cores, at most), for the next crew to take."""
    _ready.extend(Worker() for _ in range(min(count, cost.cores()) - len(_ready)))


def _worker(reports: queue.Queue) -> Worker:
    while True:
        worker = _ready.pop() if _ready else Worker()
        worker.reports = reports  # before it is looked at: from here on its end is told
        if worker.fits:
            return worker
        worker.stop()


class Crew:
    """Trains what has no record, at most `jobs` runs at a time, and knows how far each is."""

    def __init__(self, specs: Sequence[RunSpec], store: Store, jobs: int | None = None) -> None:
        self.store, self.reports = store, queue.Queue()
        self.progress = {spec: Progress(spec) for spec in store.missing(specs)}
        self.waiting = list(self.progress)
        self.workers = [_worker(self.reports) for _ in range(min(jobs or cost.cores(), len(self.waiting)))]
        for worker in self.workers:
            self._next(worker)

    def poll(self, seconds: float) -> bool:
        """Hear what the workers tell, for at most so long if they tell nothing; True while something is under way."""
        with suppress(queue.Empty):
            self._hear(*self.reports.get(timeout=seconds))
            while True:
                self._hear(*self.reports.get_nowait())
        return bool(self.workers)

    def stop(self) -> None:
        """At once; checkpoints stay."""
        workers, self.workers, self.waiting = self.workers, [], []
        for worker in workers:
            worker.stop()
        for each in self.progress.values():
            each.state = each.state if each.state in ("done", "failed") else "stopped"

    @property
    def problems(self) -> list[str]:
        return [each.problem for each in self.progress.values() if each.state == "failed"]

    def _next(self, worker: Worker) -> None:
        if self.waiting:
            spec = self.waiting.pop(0)
            self.progress[spec].state = "starting"
            worker.train(spec, self.store)
        else:
            worker.spec = None
            worker.process.stdin.close()  # it ends
            self.workers.remove(worker)

    def _hear(self, worker: Worker, report: dict[str, Any]) -> None:
        if worker not in self.workers or worker.spec is None:
            return
        here = self.progress[worker.spec]
        if "gone" in report:
            here.state = "failed"
            here.problem = f"{here.spec.key}: the process that trained it ended: {worker.last_words()}"
            self.workers.remove(worker)
            if self.waiting:
                self.workers.append(fresh := _worker(self.reports))
                self._next(fresh)
            return
        for name, values in report.get("epochs", {}).items():
            here.epochs.setdefault(name, []).extend(values)
        here.state = report.get("state", here.state)
        if here.state in ("done", "failed"):
            here.problem = report.get("problem", "")
            self._next(worker)


def train(specs: Sequence[RunSpec], store: Store) -> Iterator[Crew]:
    """Train to the end; yields the crew whenever there may be something new to see. An interrupt ends in a sentence."""
    crew = Crew(specs, store)
    try:
        while crew.poll(0.2):
            yield crew
        yield crew
    except KeyboardInterrupt:
        crew.stop()
        done = sum(each.state == "done" for each in crew.progress.values())
        raise Mistake(
            f"stopped: {done} of {len(crew.progress)} runs finished; run this again: each goes on from its last epoch"
        ) from None
    finally:
        crew.stop()
    if crew.problems:
        raise Mistake("\n".join(dict.fromkeys(crew.problems)))


def seconds(specs: Sequence[RunSpec], measured: Sequence[Record]) -> float:
    """About how long these take on this machine's cores, if they are like those of the records."""
    return STARTING + schedule.makespan([cost.cpu_seconds(spec, measured) for spec in specs], cost.cores())


def _work(requests: TextIO, answers: TextIO) -> None:
    """The life of a worker; the parent's end closes its pipes, and with them this."""
    from creditaudit.runs import train as trainer  # late: torch
    from creditaudit.runs.provenance import provenance

    provenance()  # now, while the code on disk is the code in memory
    trainer.CHECKPOINT_SECONDS = 0.0

    def tell(**report: Any) -> None:
        answers.write(json.dumps(report) + "\n")
        answers.flush()

    class Told(trainer.Training):
        """A training whose epochs are told, those of its checkpoint first."""

        def complete(self, progress: trainer.Progress) -> None:
            tell(state="training", epochs=trainer.plain({name: self.logs[0].get(name, []) for name in TOLD}))
            super().complete(lambda *_: tell(epochs=trainer.plain({name: self.logs[0][name][-1:] for name in TOLD})))
            tell(state="measuring")

    for line in requests:
        folder, fields = json.loads(line)
        spec = RunSpec(**fields)
        try:
            trainer.run_stack([spec], Store(Path(folder)), kind=Told)
            tell(state="done")
        except BrokenPipeError:
            return
        except Exception as error:
            at = traceback.extract_tb(error.__traceback__)[-1]
            bug = f"{type(error).__name__}: {error} ({Path(at.filename).name}, line {at.lineno}, {at.name})"
            tell(state="failed", problem=f"{spec.key}: {error if isinstance(error, Mistake) else bug}")


def _leave_with_parent(parent: int) -> None:
    """A worker in the middle of an epoch must not outlive its kernel by long."""
    while os.getppid() == parent:
        time.sleep(2)
    os._exit(1)


if __name__ == "__main__":
    answers = os.fdopen(os.dup(1), "w")
    os.dup2(2, 1)  # whatever else prints must not speak in the reports
    threading.Thread(target=_leave_with_parent, args=(os.getppid(),), daemon=True).start()
    _work(sys.stdin, answers)
