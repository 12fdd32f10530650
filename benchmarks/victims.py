"""What `make faults` disturbs: the real commands, on runs of a few seconds, in a project of their own."""

import json
import os
import shutil
import signal
import subprocess
import sys
from collections.abc import Iterable
from contextlib import suppress
from pathlib import Path
from typing import ClassVar

from creditaudit import paths
from creditaudit.runs import records
from creditaudit.runs.files import RecordError
from creditaudit.runs.records import Store

ENDED = 240.0  # seconds until a command counts as hanging
WHAT = ["--profile", "faulty", "--section", "depth_ladder", "--set", "d512_L2"]
PROFILE = {
    "faulty": {
        "data": "tiny", "seeds": [1], "epochs": 120, "width": 24, "depth": 2, "depth_ladder": {"methods": ["bp", "dfa"]}
    }
}  # fmt: skip


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
