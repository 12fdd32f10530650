"""A Dask scheduler and workers on loopback, started as a person starts them, each worker with a root of its own."""

import os
import re
import subprocess
import sys
import time
from collections.abc import Callable
from pathlib import Path

from creditaudit.runs.seal import PACKAGE

PATIENCE = 120.0


def until(true: Callable[[], object], what: str) -> None:
    end = time.monotonic() + PATIENCE
    while not true():
        if time.monotonic() > end:
            raise TimeoutError(f"waited in vain for {what}")
        time.sleep(0.02)


class Cluster:
    """`dask scheduler` and `dask worker` as a person starts them."""

    def __init__(self, folder: Path) -> None:
        self.folder, self.processes = folder, []
        self.scheduler = self._start("scheduler", "--host", "127.0.0.1", "--port", "0", "--no-dashboard")
        said = folder / "scheduler.log"
        until(lambda: "Scheduler at:" in said.read_text(), "the scheduler")
        self.address = re.search(r"Scheduler at:\s+tcp://(\S+)", said.read_text())[1]

    def worker(self, name: str, lock: str = "the same") -> subprocess.Popen:
        """With a root, and so an outputs folder, of its own: no disk is shared."""
        root = self.folder / name
        root.mkdir()
        if lock != "absent":
            (root / "requirements.lock").write_text(lock)
        flags = ["--nthreads", "1", "--no-nanny", "--no-dashboard", "--host", "127.0.0.1", "--name", name]
        return self._start(name, *flags, verb="worker", root=root)

    def _start(self, name: str, *flags: str, verb: str = "", root: Path | None = None) -> subprocess.Popen:
        search = os.pathsep.join([str(PACKAGE.parent), os.environ.get("PYTHONPATH", "")])
        environment = os.environ | {"PYTHONPATH": search, "OMP_NUM_THREADS": "1"}
        if root:
            environment["CREDITAUDIT_ROOT"] = str(root)
        where = [self.address] if verb else []
        command = [sys.executable, "-m", "distributed.cli." + f"dask_{verb or name}", *where, *flags]
        process = subprocess.Popen(
            command, env=environment, cwd=root or self.folder,
            stdout=(self.folder / f"{name}.log").open("w"), stderr=subprocess.STDOUT,
        )  # fmt: skip
        self.processes.append(process)
        return process

    def close(self) -> None:
        for process in reversed(self.processes):
            process.kill()
            process.wait()
