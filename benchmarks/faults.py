"""`make faults`: kill, cut and damage campaigns and renders in progress, repeat the command, and tell what was lost.

Both are the real commands, on runs of a few seconds. After each fault the same command must end well, every record
that was finished before must be there byte for byte, and all numbers and pages must be those of an undisturbed one.
"""

import argparse
import io
import json
import os
import random
import re
import shutil
import signal
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable, Iterable
from concurrent.futures import ThreadPoolExecutor
from contextlib import redirect_stderr, redirect_stdout, suppress
from dataclasses import dataclass, field
from pathlib import Path
from typing import ClassVar

import pandas as pd
import psutil

from benchmarks.loopback import Cluster, until
from creditaudit import paths
from creditaudit.engine import catalogue
from creditaudit.engine.settings import RECIPE
from creditaudit.engine.spec import RunSpec
from creditaudit.runs import fetch, files, identity_rows, records, sweep, train
from creditaudit.runs.files import RecordError
from creditaudit.runs.records import Store
from creditaudit.study import retraining

SIGNALLED, ENDED = 3, 240.0  # times each by default; seconds until a campaign counts as hanging
OFTEN = {"Ctrl-C at a random moment": 17}  # so many times as often
WHAT = ["--profile", "faulty", "--section", "depth_ladder", "--set", "d512_L2"]
PROFILE = {"faulty": {"data": "tiny", "seeds": [1], "epochs": 120, "width": 24, "depth": 2, "methods": ["bp", "dfa"]}}
CLOCK = """
import random, time
begun, back, real = time.monotonic(), random.uniform(0, 12), time.time
time.time = lambda: real() - (86400 if time.monotonic() - begun > back else 0)
"""


class Project:
    """A copy of parameters and notebooks with its own outputs, in which campaigns are run and disturbed."""

    command: ClassVar = ["train", *WHAT, "--jobs", "2"]

    def __init__(self, folder: Path) -> None:
        self.folder, self.outputs, self.store = folder, folder / "outputs", Store(folder / "outputs" / "faulty")
        for name in ("notebooks", "params", "lib"):
            shutil.copytree(paths.ROOT / name, folder / name, ignore=shutil.ignore_patterns("__pycache__"))
        shutil.copy(paths.ROOT / "requirements.lock", folder)
        with (folder / "params" / "profiles.yaml").open("a") as file:
            file.write("\n" + json.dumps(PROFILE)[1:-1] + "\n")

    def start(self, *more: str, path: Iterable[Path] = (), before: Iterable[str] = ()) -> subprocess.Popen:
        search = [*map(str, path), str(self.folder / "lib"), os.environ.get("PYTHONPATH", "")]
        environment = os.environ | {
            "CREDITAUDIT_ROOT": str(self.folder),
            "PYTHONPATH": os.pathsep.join(search),
            "CREDITAUDIT_CHECKPOINT_SECONDS": "0.2",
        }
        return subprocess.Popen(
            [*before, sys.executable, "-m", "creditaudit", *self.command, *more],
            env=environment, cwd=self.folder, stdout=subprocess.DEVNULL, stderr=subprocess.PIPE, text=True,
            start_new_session=True,
        )  # fmt: skip

    def finish(self, *more: str) -> tuple[int, str]:
        return ended(self.start(*more))

    def numbers(self) -> dict[str, str]:
        return {r.spec.key: json.dumps([r.epochs, r.final], sort_keys=True) for r in self.store.all()}

    def files(self) -> dict[str, bytes]:
        """Every record that is whole, byte for byte."""
        found = {}
        for path in self.store.folder.glob("*.json"):
            with suppress(RecordError, FileNotFoundError):
                records.load(path)
                found[path.name] = path.read_bytes()
        return found

    def clear(self) -> None:
        self.finished: dict[str, bytes] = {}  # just before the disturbance
        if self.outputs.is_mount():
            subprocess.run(["umount", self.outputs], check=True)
        shutil.rmtree(self.outputs, ignore_errors=True)

    def trained(self) -> int:
        return len(list(self.store.folder.glob("*.json")))


class Render(Project):
    """The same with its runs trained: a page is executed and disturbed."""

    command: ClassVar = ["notebooks", *WHAT]

    def __init__(self, folder: Path, campaign: Project) -> None:
        super().__init__(folder)
        self.trained_elsewhere = campaign.folder.parent / "trained"
        shutil.copytree(campaign.outputs, self.trained_elsewhere)

    def numbers(self) -> dict[str, str]:
        """Pages and tables, byte for byte."""
        made = [path for path in self.outputs.rglob("*") if path.suffix in {".ipynb", ".csv", ".svg"}]
        return {path.name: path.read_bytes().hex() for path in made if path.parent.name != "failed"}

    def clear(self) -> None:
        super().clear()
        shutil.copytree(self.trained_elsewhere, self.outputs)


def ended(process: subprocess.Popen) -> tuple[int, str]:
    try:
        _, said = process.communicate(timeout=ENDED)
    except subprocess.TimeoutExpired:
        os.killpg(process.pid, signal.SIGKILL)
        return -1, "HANGS"
    return process.returncode, said


@dataclass
class Fault:
    """What was done how often, and what came of it."""

    name: str
    times: int = 0
    lost: int = 0
    identical: bool = True
    messages: set[str] = field(default_factory=set)

    def note(self, lost: int, identical: bool, said: str) -> None:
        self.times += 1
        self.lost += lost
        self.identical &= identical
        if "Traceback" in said:
            print(said, file=sys.stderr, flush=True)
        lines = [line for line in said.strip().splitlines() if line and "resource_tracker" not in line]  # Python's own
        own = [place for place, line in enumerate(lines) if line[0] != " "]  # what is indented explains the line before
        last = " ".join(" ".join(lines[own[-1] :]).split()) if own else ""
        self.messages.add("TRACEBACK" if "Traceback" in said else re.sub(r"(?<!\S)/\S*/", "", last))

    def sound(self) -> bool:
        return self.lost == 0 and self.identical and not self.messages & {"TRACEBACK", "HANGS"}

    def row(self) -> dict[str, object]:
        one = sorted(self.messages, key=lambda text: (text not in {"TRACEBACK", "HANGS"}, not text, text))[0]
        return {
            "fault": self.name, "times": self.times, "runs lost": self.lost,
            "bit-identical": "yes" if self.identical else "NO", "message": one[:100],
        }  # fmt: skip


Injection = Callable[[Project, random.Random], str | None]  # what a disturbed campaign said; None: it had ended before
DISTURBANCES: dict[str, Injection] = {}
RENDERS = "a render: "  # the name of what is injected into one begins so


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
        orphans = children_of(process, "spawn_main|ipykernel")
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
disturbs(RENDERS + "SIGKILL of the kernel")(child_signalled(signal.SIGKILL, "ipykernel", 4))
disturbs(RENDERS + "SIGTERM of the kernel")(child_signalled(signal.SIGTERM, "ipykernel", 4))


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


def inject(name: str, times: int, project: Project, reference: dict[str, str], rng: random.Random) -> Fault:
    """Disturb, look what was finished by then, repeat the command, compare."""
    fault = Fault(name)
    while fault.times < times:
        project.clear()
        if (said := DISTURBANCES[name](project, rng)) is None:
            continue
        before = project.finished | project.files()
        status, last = project.finish()
        after = project.files()
        lost = sum(after.get(file) != content for file, content in before.items())
        fault.note(lost, status == 0 and project.numbers() == reference, said + (last if status else ""))
        print(f"{name}: {fault.times} of {times}, {fault.lost} runs lost", file=sys.stderr, flush=True)
    return fault


def damaged(content: bytes, rng: random.Random) -> bytes:
    """Cut short, or one bit turned."""
    at = rng.randrange(len(content))
    if rng.random() < 0.5:
        return content[:at]
    return content[:at] + bytes([content[at] ^ 1 << rng.randrange(8)]) + content[at + 1 :]


def damage_records(times: int, project: Project, rng: random.Random) -> Fault:
    """A record is refused, or says what it said: never another number. Deleted, as told, its run is trained again."""
    fault = Fault("record cut or bit turned")
    for _ in range(times):
        path = rng.choice(sorted(project.store.folder.glob("*.json")))
        whole = path.read_bytes()
        true = records.load(path)
        path.write_bytes(damaged(whole, rng))
        refused_or_true(fault, lambda path=path: records.load(path), true)
        path.write_bytes(whole)
    return fault


def refused_or_true(fault: Fault, read: Callable[[], object], true: object) -> None:
    try:
        fault.note(0, read() == true, "")
    except RecordError as error:
        fault.note(0, True, str(error))
    except Exception as error:
        fault.note(0, False, f"Traceback: {error!r}")


def damage_side_files(times: int, folder: Path, rng: random.Random) -> Fault:
    """What lies beside the paper's records, with a checksum: refused, or what it was."""
    fault, outputs = Fault("identity.json, verified.json cut or bit turned"), paths.OUTPUTS
    readers = {
        identity_rows.FILE: lambda: identity_rows.read(folder / "paper"),
        retraining.FILE: lambda: retraining.rows("paper"),
    }
    shutil.copytree(outputs / "paper", folder / "paper", ignore=lambda *_: {"runs", "notebooks", "figures", "tables"})
    paths.OUTPUTS = folder
    for _ in range(times):
        name = rng.choice(sorted(readers))
        path = folder / "paper" / name
        whole, true = path.read_bytes(), readers[name]()
        path.write_bytes(damaged(whole, rng))
        refused_or_true(fault, readers[name], true)
        path.write_bytes(whole)
    paths.OUTPUTS = outputs
    return fault


def damage_data(times: int, folder: Path, rng: random.Random) -> Fault:
    """Any file of the pictures: `make data`, which every campaign begins with, brings the true one back."""
    fault, source, fetched = Fault("data cut or bit turned"), paths.DATA / "cifar10", fetch.from_binary
    shutil.copytree(source, folder)
    fetch.from_binary = lambda _, names: ((name, (source / name).read_bytes()) for name in names)  # not the network
    for _ in range(times):
        path = rng.choice(sorted(path for path in folder.iterdir() if path.is_file()))
        true = path.read_bytes()
        path.write_bytes(damaged(true, rng))
        with redirect_stdout(io.StringIO()) as said:
            fetch.cifar10(folder)
        fault.note(0, path.read_bytes() == true, said.getvalue())
    fetch.from_binary = fetched
    return fault


def damage_checkpoints(times: int, folder: Path, rng: random.Random) -> Fault:
    """A damaged checkpoint costs its run a new start, never another number."""
    fault = Fault("checkpoint cut or bit turned")
    spec = RunSpec(method="dfa", width=16, depth=2, epochs=3, data="tiny", batch=64)
    true = train.run(spec, Store(folder / "true"))
    cut, train.CHECKPOINT_SECONDS = train.CHECKPOINT_SECONDS, 0.0

    def plug(spec: RunSpec, epoch: int, accuracy: float) -> None:
        if epoch == 2:
            raise KeyboardInterrupt

    for one in range(times):
        store = Store(folder / f"cut{one}")
        with suppress(KeyboardInterrupt):
            train.run(spec, store, plug)
        (checkpoint,) = store.folder.parent.glob("checkpoints/*.pt")
        checkpoint.write_bytes(damaged(checkpoint.read_bytes(), rng))
        try:
            with redirect_stderr(io.StringIO()) as said:
                again = train.run(spec, store)
            fault.note(0, (again.epochs, again.final) == (true.epochs, true.final), said.getvalue())
        except Exception as error:
            fault.note(0, False, f"Traceback: {error!r}")
        shutil.rmtree(store.folder.parent)
    train.CHECKPOINT_SECONDS = cut
    return fault


def diverging(folder: Path) -> Fault:
    """A run that overflows is a result, and nothing to its neighbours. No learning rate does it here: weights are."""
    fault, shape = Fault("run that diverges"), {"width": 16, "depth": 2, "epochs": 3, "data": "tiny", "batch": 64}
    wild = [RunSpec(method=method, seed=99, **shape) for method in catalogue.entries()]
    tame = RunSpec(method="bp", **shape)
    true, store = train.run(tame, Store(folder / "alone")), Store(folder / "together")
    sound, outputs = train.Training._train_epoch, paths.OUTPUTS

    def exploding(self: train.Training) -> dict[str, list]:
        if self.spec.seed == 99 and self.epoch == 1:
            self.stack.buffers.flat.mul_(1e30)
        return sound(self)

    train.Training._train_epoch, paths.OUTPUTS = exploding, folder / "worker"
    said = ""
    try:
        with ThreadPoolExecutor(1) as pool:
            sweep.train_all([*wild, tame], store, executor=pool)
    except sweep.RunsFailed as error:
        said = f"Traceback: {error}"
    finally:
        train.Training._train_epoch, paths.OUTPUTS = sound, outputs
    found = [record for spec in wild if (record := store.get(spec)) is not None]
    overflowed = sum(record.epochs["test_loss"][-1] is None for record in found)
    mine = store.get(tame)
    identical = mine is not None and (mine.epochs, mine.final) == (true.epochs, true.final)
    fault.note(len(wild) - len(found), identical, said or f"{overflowed} of {len(wild)} rules overflowed, all recorded")
    return fault


def main(arguments: list[str] | None = None) -> int:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--times", type=int, default=SIGNALLED, help="how often each disturbance")
    parser.add_argument("--damages", type=int, default=200, help="how many damaged records and checkpoints each")
    parser.add_argument("--seed", type=int, default=0)
    parser.add_argument("--only", default="", help="faults whose name holds this")
    options = parser.parse_args(arguments)
    rng, found = random.Random(options.seed), []
    with tempfile.TemporaryDirectory() as scratch:
        os.chmod(scratch, 0o755)
        project = Project(Path(scratch) / "project")
        status, said = project.finish()
        if status:
            print(f"the undisturbed campaign failed: {said}", file=sys.stderr)
            return 1
        render = Render(Path(scratch) / "render", project)
        render.clear()
        status, said = render.finish()
        if status:
            print(f"the undisturbed render failed: {said}", file=sys.stderr)
            return 1
        undisturbed = {project: project.numbers(), render: render.numbers()}
        assert all(undisturbed.values())

        def disturbed(name: str) -> Fault:
            victim = render if name.startswith(RENDERS) else project
            return inject(name, options.times * OFTEN.get(name, 1), victim, undisturbed[victim], rng)

        apart = {
            "record cut or bit turned": lambda: damage_records(options.damages, project, rng),
            "side file cut or bit turned": lambda: damage_side_files(options.damages, Path(scratch) / "side", rng),
            "data cut or bit turned": lambda: damage_data(options.damages // 5, Path(scratch) / "data", rng),
            "checkpoint cut or bit turned": lambda: damage_checkpoints(options.damages, Path(scratch) / "cp", rng),
            "run that diverges": lambda: diverging(Path(scratch) / "wild"),
        }
        plans = apart | {name: lambda name=name: disturbed(name) for name in DISTURBANCES}
        for name, plan in plans.items():
            if options.only in name:
                begun = time.monotonic()
                found.append(plan())
                row = ", ".join(f"{title} {value}" for title, value in found[-1].row().items())
                print(f"{row} ({time.monotonic() - begun:.0f} s)", file=sys.stderr, flush=True)
        project.clear()
        render.clear()
        shutil.rmtree(render.outputs)
    print(pd.DataFrame([one.row() for one in found]).to_string(index=False))
    print(f"{sum(one.times for one in found)} injections, {sum(one.lost for one in found)} runs lost")
    return 0 if all(one.sound() for one in found) else 1


if __name__ == "__main__":
    sys.exit(main())
