"""A crew on a Dask cluster (extra `cluster`): `dask` starts one on this machine, `dask://HOST:PORT` joins one.

Runs go only to workers that a plugin has compared with the campaign: the right ones offer a resource with the
campaign's digest in its name, one unit each, so that a worker trains one run at a time whatever its threads.
Dask gives the run of a lost worker to another one; a run is a pure function of its spec, so that is harmless.
"""

import asyncio
import logging
import sys
import time
from concurrent.futures import CancelledError
from typing import Any

from dask import config
from distributed import Client, LocalCluster, WorkerPlugin
from distributed.worker import thread_state

from creditaudit.mistakes import Mistake
from creditaudit.runs import cost, workers
from creditaudit.runs.provenance import provenance
from creditaudit.runs.seal import Seal, differences, digest, seal

CONNECTING = 10.0  # seconds until a scheduler counts as absent
JOINING = 60.0  # seconds in which a first worker must have joined
LOOKING = 1.0  # seconds between two looks at who is there


class Admission(WorkerPlugin):
    """Set up in every worker, those that join later too: who differs from the campaign offers nothing."""

    def __init__(self, expected: Seal) -> None:
        self.expected, self.name = expected, f"creditaudit-{digest(expected)}"

    async def setup(self, worker: Any) -> None:
        if differences(self.expected, await asyncio.to_thread(seal)):
            return
        await asyncio.to_thread(provenance)  # now, while the code on disk is the code in memory

        def report(key: str, epoch: int) -> None:
            task = worker.state.tasks.get(thread_state.key)
            if task is None or task.state == "cancelled":
                raise RuntimeError("its campaign was stopped")
            worker.log_event(self.name, [key, epoch])

        workers.report = report
        await worker.set_resources(**{self.name: 1})


class DaskCrew(workers.Crew):
    """The workers of a Dask cluster that have this code, this lock and this recipe."""

    def __init__(self, task: workers.Task, address: str = "", jobs: int | None = None) -> None:
        for name in [name for name in logging.root.manager.loggerDict if name.startswith("distributed")]:
            logging.getLogger(name).setLevel(logging.CRITICAL)  # a lost connection is told by us, in a sentence
        self.name, admission = f"dask://{address}" if address else "dask", Admission(seal())
        self.offer = admission.name
        self.cluster = None if address else _local_cluster(jobs or cost.cores())
        try:
            where = f"tcp://{address}" if address else self.cluster
            self.client = Client(where, timeout=CONNECTING, set_as_default=False)
        except (OSError, ValueError) as error:
            raise Mistake(
                f"EXECUTOR={self.name}: no Dask scheduler answers there ({error or type(error).__name__}); "
                "`.venv/bin/dask scheduler` starts one"
            ) from None
        self.client.register_plugin(admission)
        super().__init__(self.client.get_executor(pure=False, retries=0, resources={self.offer: 1}), task, 1)
        self.told: set[str] = set()
        self.idle_told, self.looked = False, 0.0
        try:
            self._wait_for_workers()
        except BaseException:
            self.stop()
            raise

    def room(self) -> int:
        if time.monotonic() - self.looked > LOOKING:
            self._room, self.looked = self._count(), time.monotonic()
            if not self._room and not self.idle_told:
                print(f"waiting: no worker at {self.name} has this code; they may join at any time", file=sys.stderr)
            self.idle_told = not self._room
        return self._room

    def end_if_lost(self, error: BaseException) -> None:
        if isinstance(error, CancelledError | OSError) or self.client.status != "running":
            raise Mistake(
                f"the scheduler at {self.name} is gone; records that arrived are saved, the same command goes on"
            ) from error

    def listen(self, report: workers.Report) -> None:
        self.client.subscribe_topic(self.offer, lambda event: report(*event[1]))

    def stop(self) -> None:
        try:
            self.client.close(timeout=workers.LAST_WORDS)  # the scheduler forgets its runs; workers see that and stop
            if self.cluster is not None:
                self.cluster.close(timeout=workers.LAST_WORDS)
        except (OSError, TimeoutError, RuntimeError):  # there is nobody left to take leave of
            pass

    def _count(self) -> int:
        """Workers that were admitted; the others are named, once each."""
        try:
            there = self.client.scheduler_info()["workers"]
        except (OSError, RuntimeError, TypeError, ValueError):
            self.end_if_lost(OSError())
        admitted = [worker for worker, state in there.items() if state["resources"].get(self.offer)]
        unknown = sorted(set(there) - set(admitted) - self.told)
        asked = self.client.run(seal, workers=unknown, on_error="return") if unknown else {}
        for worker, theirs in asked.items():
            off = differences(seal(), theirs) if isinstance(theirs, dict) else ["code (it has no such module)"]
            if off:  # else it is only not ready yet
                self.told.add(worker)
                print(f"{worker} is refused, it differs in {', '.join(off)}", file=sys.stderr, flush=True)
        return len(admitted)

    def _wait_for_workers(self) -> None:
        until = time.monotonic() + JOINING
        while not (self.client.status == "running" and self._count()):
            there = self.client.scheduler_info()["workers"]
            if there and set(there) <= self.told:
                raise Mistake(f"EXECUTOR={self.name}: all {len(there)} workers differ from this campaign; see above")
            if time.monotonic() > until:
                raise Mistake(
                    f"EXECUTOR={self.name}: no worker joined within {JOINING:.0f} s; "
                    "`.venv/bin/dask worker HOST:PORT --nthreads 1` in a clone of this project starts one"
                )
            time.sleep(0.2)


def _local_cluster(jobs: int) -> LocalCluster:
    # Dask's own settings for glibc's malloc are the opposite of ours
    with config.set({"distributed.nanny.pre-spawn-environ": workers.ENVIRONMENT}), workers.ctrl_c_ignored():
        return LocalCluster(
            n_workers=jobs,
            threads_per_worker=1,
            processes=True,
            memory_limit=0,
            dashboard_address=None,
            silence_logs=logging.CRITICAL,
        )
