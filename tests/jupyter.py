"""JupyterLab as `make lab` starts it, on a copy of the project, for tests in a real browser.

with served(folder) as lab:
    page = lab.open(context, "playground.ipynb")
"""

import json
import os
import shutil
import socket
import subprocess
import sys
import time
import urllib.error
import urllib.request
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from pathlib import Path
from typing import Any

from creditaudit import paths
from creditaudit.lab import server as lab

TOKEN = "a-token-of-the-tests"
PATIENCE = 60_000  # milliseconds: other tests may be using the cores


class Server:
    """One that listens on the loopback device and asks for a token."""

    def __init__(self, root: Path, port: int):
        self.root, self.port, self.url = root, port, f"http://127.0.0.1:{port}"
        self.notebooks = root / "outputs" / "interactive" / "notebooks"

    def status(self, path: str, token: str = "") -> int:
        known = {"Authorization": f"token {token}"} if token else {}
        request = urllib.request.Request(f"{self.url}{path}", headers=known)
        try:
            return urllib.request.urlopen(request, timeout=5).status
        except urllib.error.HTTPError as error:
            return error.code
        except OSError:
            return 0

    def open(self, context: Any, notebook: str) -> "Notebook":
        page = context.new_page()
        page.set_default_timeout(PATIENCE)
        page.goto(f"{self.url}/lab/workspaces/{Path(notebook).stem}/tree/{notebook}?token={TOKEN}&reset")
        page.locator(".jp-NotebookPanel:not(.lm-mod-hidden) .jp-Cell").first.wait_for()
        page.get_by_text("(ipykernel) | Idle").wait_for()  # a key pressed earlier runs nothing
        return Notebook(page, self.notebooks / notebook)


class Notebook:
    """A page of JupyterLab with one notebook in front."""

    def __init__(self, page: Any, path: Path):
        self.page, self.path = page, path

    def cell(self, place: int) -> Any:
        return self.page.locator(f".jp-NotebookPanel:not(.lm-mod-hidden) [data-windowed-list-index='{place}']")

    def run(self, place: int, source: str | None = None) -> Any:
        """Shift+Enter in the cell at this place, as a person does; its outputs."""
        self.cell(place).locator(".cm-content").click()
        if source is not None:
            self.page.keyboard.press("Control+A")
            self.page.keyboard.insert_text(source)
        self.page.keyboard.press("Shift+Enter")
        return self.cell(place).locator(".jp-OutputArea-output")

    def menu(self, *names: str) -> None:
        for name in names:
            self.page.get_by_role("menuitem", name=name, exact=True).click()

    def save(self) -> dict[str, Any]:
        """What the server has written; it does so in place, so that for a moment there may be half of it."""
        before = self.path.stat().st_mtime_ns
        self.page.keyboard.press("Control+s")
        for _ in range(400):
            self.page.wait_for_timeout(50)
            with suppress(ValueError):
                if self.path.stat().st_mtime_ns != before:
                    return json.loads(self.path.read_text())
        raise AssertionError(f"{self.path.name} is not saved")


def _free_port() -> int:
    with socket.socket() as place:
        place.bind(("127.0.0.1", 0))
        return place.getsockname()[1]


@contextmanager
def served(root: Path, changes: dict[str, str]) -> Iterator[Server]:
    """A project with its own params, notebooks (texts changed to the size of a test) and outputs."""
    for name in ("params", "notebooks"):
        shutil.copytree(paths.ROOT / name, root / name)
    for path in (root / "notebooks").glob("*.ipynb"):
        text = path.read_text()
        for old, new in changes.items():
            text = text.replace(json.dumps(old)[1:-1], json.dumps(new)[1:-1])
        path.write_text(text)
    code = "import os, sys; from creditaudit.lab import server; "
    if hasattr(os, "sched_setaffinity"):  # more trainers would only load torch again
        code += "os.sched_setaffinity(0, {max(os.sched_getaffinity(0))}); "
    code += "os.execve((c := server.command(server.prepare()) + sys.argv[1:])[0], c, server.environment())"
    port = _free_port()
    more = ["--no-browser", f"--ServerApp.port={port}", "--ServerApp.port_retries=0"]
    search = os.pathsep.join([str(Path(lab.__file__).parents[2]), os.environ.get("PYTHONPATH", "")])
    environment = {name: value for name, value in os.environ.items() if name != paths.RUNNER}
    environment |= {"PYTHONPATH": search, "CREDITAUDIT_ROOT": str(root), "JUPYTER_TOKEN": TOKEN}
    environment |= {f"JUPYTERLAB_{kind}_DIR": str(root / kind) for kind in ("WORKSPACES", "SETTINGS")}
    with (root / "server.log").open("w") as log:
        process = subprocess.Popen([sys.executable, "-c", code, *more], env=environment, stdout=log, stderr=log)
    server = Server(root, port)
    try:
        end = time.monotonic() + 60
        while server.status("/api", TOKEN) != 200:
            assert process.poll() is None and time.monotonic() < end, (root / "server.log").read_text()[-2000:]
            time.sleep(0.1)
        yield server
    finally:
        process.terminate()
        process.wait(20)
