"""Kernels that start at once: forks of one process that has imported what the notebooks import.

Half of the time that a notebook took was spent on starting Python and on importing pandas and seaborn. A nursery
does that once for all notebooks: it reads a line of JSON per kernel, forks, and answers with a number, the
child's. When whoever feeds it is gone, so are the nursery and, within a second, its kernels.
"""

import gc
import json
import os
import signal
import subprocess
import sys
import threading
from collections.abc import Mapping
from contextlib import suppress
from typing import Any

from jupyter_client.manager import AsyncKernelManager

from creditaudit import paths

LAUNCHER = "ipykernel_launcher"
READ = ("PYTHON", "CREDITAUDIT", "MPL", "HOME", "XDG", "LANG", "LC_")
FORKS = sys.platform == "linux"  # elsewhere a fork after these imports may not live


class Nursery:
    """The process that forks; it belongs to one environment, because what was imported has read it."""

    def __init__(self, environment: dict[str, str]) -> None:
        self.environment, self.lock = environment, threading.Lock()
        self.process = subprocess.Popen(
            [sys.executable, "-c", "from creditaudit.bind import kernels; kernels.serve()"],
            stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True, start_new_session=True,
            env=self.environment | {"OPENBLAS_NUM_THREADS": "1"},  # a process with threads is not to be forked
        )  # fmt: skip

    def fork(self, arguments: list[str], folder: str, environment: dict[str, str]) -> "Forked":
        line = json.dumps({"arguments": arguments, "folder": str(folder), "environment": environment})
        with self.lock:
            with suppress(BrokenPipeError):
                print(line, file=self.process.stdin, flush=True)
            if number := self.process.stdout.readline():
                return Forked(int(number))
        raise RuntimeError("the process that forks kernels is gone; the same command starts another one")


class Forked:
    """A kernel's process, as far as its manager deals with it: like `Popen`, but somebody else's child."""

    stdin = stdout = stderr = None

    def __init__(self, pid: int) -> None:
        self.pid, self.returncode = pid, None

    def poll(self) -> int | None:
        try:
            os.kill(self.pid, 0)
        except ProcessLookupError:
            self.returncode = 1  # what it returned, nobody can tell
        return self.returncode

    def wait(self, timeout: float | None = None) -> int | None:
        return self.poll()  # its manager asks again and again until it is gone

    def send_signal(self, number: int) -> None:
        os.kill(self.pid, number)

    def kill(self) -> None:
        self.send_signal(signal.SIGKILL)

    def terminate(self) -> None:
        self.send_signal(signal.SIGTERM)


class ForkedKernelManager(AsyncKernelManager):
    """Has its kernel forked; what is no ipykernel, or no Linux, is started as usual."""

    async def _async_launch_kernel(self, kernel_cmd: list[str], **options: Any) -> None:
        options["env"] = _inherited(options.get("env") or os.environ)
        if not FORKS or LAUNCHER not in kernel_cmd:
            await super()._async_launch_kernel(kernel_cmd, **options)
            return
        arguments = kernel_cmd[kernel_cmd.index(LAUNCHER) + 1 :]
        kernel = nursery().fork(arguments, options.get("cwd") or os.getcwd(), options["env"])
        self.provisioner.process, self.provisioner.pid, self.provisioner.pgid = kernel, kernel.pid, kernel.pid
        self._reconcile_connection_info(self.provisioner.connection_info)


_lock = threading.Lock()
_current: list[Nursery] = []  # at most one


def nursery() -> Nursery:
    """The one of today's environment; it starts when it is first asked for, and imports while others do."""
    with _lock:
        environment = _inherited(os.environ)
        known = _current[0] if _current else None
        if known and (known.process.poll() is not None or _read(known.environment) != _read(environment)):
            _current.remove(known)
            known.process.stdin.close()
        if not _current:
            _current.append(Nursery(environment))
        return _current[0]


def prepare() -> None:
    """Have it start; a kernel will soon be asked for."""
    if FORKS:
        nursery()


def _inherited(environment: Mapping[str, str]) -> dict[str, str]:
    """What kernels get: this very code, and the word that nobody is at play."""
    return paths.environment(environment) | {"PYTHONHASHSEED": "0", paths.RUNNER: "1"}


def _read(environment: dict[str, str]) -> dict[str, str]:
    """The variables that Python and what it imports have looked at; the others every kernel gets anew."""
    return {name: value for name, value in environment.items() if name.startswith(READ)}


def serve() -> None:
    """The nursery itself: fork for every line of the standard input."""
    import ipykernel.kernelapp
    import matplotlib.backends.backend_agg
    import matplotlib.backends.backend_svg  # noqa: F401

    import creditaudit.show  # noqa: F401

    gc.freeze()  # what all kernels share is not touched, hence not copied, by a collection
    signal.signal(signal.SIGCHLD, signal.SIG_IGN)  # the dead leave no zombies
    here = os.getpid()
    for line in sys.stdin:
        asked = json.loads(line)
        pid = os.fork()
        if not pid:
            _become(here, **asked)
            ipykernel.kernelapp.launch_new_instance(asked["arguments"], parent_handle=here)
            os._exit(0)
        with suppress(BrokenPipeError):  # nobody waits for it any more, and there is no other line
            print(pid, flush=True)


def _become(parent: int, arguments: list[str], folder: str, environment: dict[str, str]) -> None:
    """A process of its own: its group, folder and environment, none of the nursery's pipes."""
    os.setsid()
    signal.signal(signal.SIGCHLD, signal.SIG_DFL)
    os.dup2(os.open(os.devnull, os.O_RDONLY), 0)
    os.dup2(2, 1)
    os.chdir(folder)
    os.environ.clear()
    os.environ.update(environment | {"JPY_PARENT_PID": str(parent)})
    sys.argv = [LAUNCHER, *arguments]
