"""What happens to a campaign or a render while it runs: signals, lost machines, a full disk, a clock, other hands."""

import os
import random
import re
import shutil
import signal
import subprocess
import tempfile
import time
from collections.abc import Callable
from contextlib import suppress
from pathlib import Path

import psutil

from benchmarks.damage import damaged
from benchmarks.loopback import Cluster, until
from benchmarks.victims import Project, Render, ended
from creditaudit.engine.settings import RECIPE
from creditaudit.runs import files

RENDERS = "a render: "  # the name of what is injected into one begins so
KERNELS = r"ipykernel|kernels\.serve"  # those that are forked, and the process that forks them, have one command line
CLOCK = """
import random, time
begun, back, real = time.monotonic(), random.uniform(0, 12), time.time
time.time = lambda: real() - (86400 if time.monotonic() - begun > back else 0)
"""

Injection = Callable[[Project, random.Random], str | None]  # what a disturbed campaign said; None: it had ended before
DISTURBANCES: dict[str, Injection] = {}


def disturbs(*names: str) -> Callable[[Injection], Injection]:
    def keep(injection: Injection) -> Injection:
        DISTURBANCES.update(dict.fromkeys(names, injection))
        return injection

    return keep


def moment(project: Project, process: subprocess.Popen, rng: random.Random) -> bool:
    """Wait for any time while modules load, processes start, runs train or records are written; False: it had ended."""
    if rng.random() < 0.5:
        wanted = rng.randrange(0, 5)
        until(lambda: project.trained() >= wanted or process.poll() is not None, "records")
    until(
        lambda: handles_sigterm(process) or process.poll() is not None, "the command"
    )  # until then it is Python's start
    time.sleep(rng.uniform(0, 6.0))
    project.finished = project.files()
    return process.poll() is None


def handles_sigterm(process: subprocess.Popen) -> bool:
    """Python itself does not: so our first line has run."""
    with suppress(OSError):
        caught = re.search(r"SigCgt:\s*(\w+)", Path(f"/proc/{process.pid}/status").read_text())[1]
        return bool(int(caught, 16) >> (signal.SIGTERM - 1) & 1)
    return False


def children_of(process: subprocess.Popen, kind: str) -> list[psutil.Process]:
    with suppress(psutil.Error):
        everyone = psutil.Process(process.pid).children(recursive=True)
        return [one for one in everyone if re.search(kind, " ".join(one.cmdline()))]
    return []


def signalled(number: int, times: int = 1) -> Injection:
    def inject(project: Project, rng: random.Random) -> str:
        process = project.start()
        in_time = moment(project, process, rng)
        orphans = children_of(process, f"spawn_main|{KERNELS}")
        for _ in range(times):
            with suppress(ProcessLookupError):
                os.killpg(process.pid, number) if number == signal.SIGINT else process.send_signal(number)
            time.sleep(rng.uniform(0, 0.3))
        _, said = ended(process)
        left = psutil.wait_procs(orphans, timeout=30)[1]
        return None if not in_time else "HANGS" if left else said

    return inject


disturbs("SIGKILL of the campaign", RENDERS + "SIGKILL")(signalled(signal.SIGKILL))
disturbs("SIGTERM of the campaign", RENDERS + "SIGTERM")(signalled(signal.SIGTERM))
disturbs("Ctrl-C at a random moment", RENDERS + "Ctrl-C")(signalled(signal.SIGINT))
disturbs("Ctrl-C three times in a row")(signalled(signal.SIGINT, 3))


def child_signalled(number: int, kind: str, lifetime: float) -> Injection:
    def inject(project: Project, rng: random.Random) -> str:
        process = project.start()
        until(lambda: children_of(process, kind) or process.poll() is not None, kind)
        time.sleep(rng.uniform(0, lifetime))
        project.finished, alive = project.files(), children_of(process, kind)
        with suppress(psutil.Error, IndexError):
            rng.choice(alive).send_signal(number)
        return ended(process)[1] if alive else None

    return inject


disturbs("SIGKILL of a worker")(child_signalled(signal.SIGKILL, "spawn_main", 8))
disturbs("SIGTERM of a worker")(child_signalled(signal.SIGTERM, "spawn_main", 8))
disturbs(RENDERS + "SIGKILL of the kernel")(child_signalled(signal.SIGKILL, KERNELS, 4))
disturbs(RENDERS + "SIGTERM of the kernel")(child_signalled(signal.SIGTERM, KERNELS, 4))


def on_dask(number: int, victim: str) -> Injection:
    def inject(project: Project, rng: random.Random) -> str:
        with tempfile.TemporaryDirectory() as scratch:
            cluster, lock = Cluster(Path(scratch)), (project.folder / "requirements.lock").read_text()
            try:
                members = {name: cluster.worker(name, lock) for name in ("first", "second")}
                process = project.start("--executor", f"dask://{cluster.address}")
                first = Path(scratch) / "first"
                until(lambda: list(first.glob("outputs/worker/*/.turns/*")) or process.poll() is not None, "a run")
                time.sleep(rng.uniform(0, 2))
                project.finished = project.files()
                (cluster.scheduler if victim == "scheduler" else members["first"]).send_signal(number)
                return ended(process)[1]
            finally:
                cluster.close()

    return inject


disturbs("SIGKILL of a Dask worker")(on_dask(signal.SIGKILL, "worker"))
disturbs("SIGTERM of a Dask worker")(on_dask(signal.SIGTERM, "worker"))
disturbs("SIGKILL of the Dask scheduler")(on_dask(signal.SIGKILL, "scheduler"))
disturbs("SIGTERM of the Dask scheduler")(on_dask(signal.SIGTERM, "scheduler"))


@disturbs("two campaigns at once")
def two_at_once(project: Project, rng: random.Random) -> str:
    both = [project.start(), project.start()]
    return "".join(ended(one)[1] for one in both)


@disturbs("the clock jumps back a day")
def clock_back(project: Project, rng: random.Random) -> str:
    with tempfile.TemporaryDirectory() as scratch:
        (Path(scratch) / "sitecustomize.py").write_text(CLOCK)
        return ended(project.start(path=[Path(scratch)]))[1]


@disturbs("code edited while it runs")
def code_edited(project: Project, rng: random.Random) -> str:
    process = project.start()
    in_time = moment(project, process, rng)
    with (project.folder / "lib/creditaudit/engine/step.py").open("a") as file:
        file.write("# edited\n")
    said = ended(process)[1]
    return said if in_time else None


@disturbs("package updated while it runs")
def package_updated(project: Project, rng: random.Random) -> str:
    with tempfile.TemporaryDirectory() as scratch:
        process = project.start(path=[Path(scratch)])
        in_time = moment(project, process, rng)
        (Path(scratch) / "torch-99.dist-info").mkdir()
        (Path(scratch) / "torch-99.dist-info" / "METADATA").write_text("Name: torch\nVersion: 99\n")
        said = ended(process)[1]
        return said if in_time else None


@disturbs("read-only outputs", RENDERS + "read-only outputs")
def read_only(project: Project, rng: random.Random) -> str:
    """Root may write anywhere, so a campaign of root's is started without that power."""
    project.outputs.mkdir(exist_ok=True)
    folders = [project.outputs, *(path for path in project.outputs.rglob("*") if path.is_dir())]
    for folder in folders:
        folder.chmod(0o555)
    try:
        powerless = ["setpriv", "--bounding-set", "-dac_override"] if os.geteuid() == 0 else []
        return ended(project.start(before=powerless))[1]
    finally:
        for folder in folders:
            folder.chmod(0o755)


@disturbs("outputs removed while it runs", RENDERS + "outputs removed")
def outputs_removed(project: Project, rng: random.Random) -> str:
    process = project.start()
    in_time = moment(project, process, rng)
    shutil.rmtree(project.outputs, ignore_errors=True)
    said = ended(process)[1]
    project.finished = {}  # gone with the rest
    if isinstance(project, Render):
        project.clear()
    return said if in_time else None


@disturbs("disk full", RENDERS + "disk full")
def disk_full(project: Project, rng: random.Random) -> str | None:
    """A small disk in place of the outputs, made larger afterwards. Only root can put it there."""
    project.outputs.mkdir(exist_ok=True)
    blocks = [-(-path.stat().st_size // 4096) for path in project.outputs.rglob("*")]
    size = (sum(blocks) + rng.randrange(1, 16 if blocks else 100)) * 4096  # a page takes less than six runs
    subprocess.run(["mount", "-t", "tmpfs", "-o", f"size={size}", "none", project.outputs], check=True)
    if isinstance(project, Render):
        shutil.copytree(project.trained_elsewhere, project.outputs, dirs_exist_ok=True)
    said = ended(project.start())[1]
    subprocess.run(["mount", "-o", "remount,size=100m", project.outputs], check=True)
    return said if "cannot be written" in said or "No space" in said else None


@disturbs("record of an older recipe")
def older_recipe(project: Project, rng: random.Random) -> str:
    """Under the name it had then it is passed over; under that of one of today's runs it is refused until deleted."""
    project.finish()
    path = rng.choice(sorted(project.store.folder.glob("*.json")))
    body = files.read_checked(path) | {"recipe": RECIPE - 1}
    path.unlink()
    old = path if rng.random() < 0.5 else path.with_stem(f"{path.stem[:-8]}{rng.randrange(16**8):08x}")
    files.write_checked(old, body | {"key": old.stem})
    said = ended(project.start())[1]
    old.unlink()
    return said


@disturbs(RENDERS + "a run that diverged")
def diverged(project: Project, rng: random.Random) -> str:
    """Its page is made, and says so."""
    path = rng.choice(sorted(project.store.folder.glob("*.json")))
    whole, body = path.read_bytes(), files.read_checked(path)
    epoch = rng.randrange(len(body["epochs"]["train_loss"]))
    for name in ("train_loss", "test_loss"):
        body["epochs"][name][epoch:] = [None] * len(body["epochs"][name][epoch:])
    body["final"] |= {name: [None] * len(body["final"][name]) for name in ("h_norm", "g_norm", "rho_in", "gamma_in")}
    files.write_checked(path, body | {"final": body["final"] | {"growth": None, "stability": None}})
    status, said = project.finish()
    path.write_bytes(whole)
    return said if status == 0 else f"Traceback: {said}"


@disturbs(RENDERS + "page, table, figure or stamp damaged")
def products_damaged(project: Project, rng: random.Random) -> str:
    project.finish()
    made = [path for path in project.store.folder.parent.rglob("*") if path.is_file() and path.stat().st_size]
    path = rng.choice(sorted(path for path in made if path.parent != project.store.folder))
    path.write_bytes(damaged(path.read_bytes(), rng))
    return ended(project.start())[1]
