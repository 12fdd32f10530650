"""`make lab`: JupyterLab on copies of the notebooks, so that playing cannot change what a profile means.

A section may be opened with the values of a parameter set and a profile in its first cell. The server listens on this
machine alone and asks for its token.
"""

import ast
import json
import os
import shutil
import subprocess
import sys
from pathlib import Path
from typing import Any

from creditaudit import paths
from creditaudit.runs.files import write_atomically
from creditaudit.study import params
from creditaudit.study.params import ParameterError

START = "start.ipynb"


def folder() -> Path:
    return paths.profile_dir(paths.INTERACTIVE) / "notebooks"


def prepare(section: str | None = None, set_name: str | None = None, profile: str = "paper") -> Path:
    """Copy what is not there yet; returns the notebook to open first. A copy that was played with is kept."""
    if section is None and set_name is not None:
        raise ParameterError(f"SET={set_name} of which section? Say SECTION= too")
    folder().mkdir(parents=True, exist_ok=True)
    for path in sorted(paths.NOTEBOOKS.glob("*.ipynb")):
        if not (folder() / path.name).exists():
            shutil.copy(path, folder())
    if section is None:
        return folder() / START
    source, known = params.source_path(section), params.sets(section)
    set_name = set_name or params.defaults(section).get("set_name", known[0])
    values = params.parameters(section, set_name, profile)  # refuses what is misspelt
    target = folder() / f"{section}--{set_name}--{profile}.ipynb"
    if not target.exists():
        write_atomically(target, json.dumps(_with_values(json.loads(source.read_text()), values), indent=1) + "\n")
    return target


def _with_values(notebook: dict[str, Any], values: dict[str, Any]) -> dict[str, Any]:
    for cell in notebook["cells"]:
        if "parameters" in cell["metadata"].get("tags", []):
            cell["source"] = assigned("".join(cell["source"]), values).splitlines(keepends=True)
    return notebook


def assigned(source: str, values: dict[str, Any]) -> str:
    """A parameters cell with other values; types and comments stay."""
    lines = source.encode().splitlines(keepends=True)  # ast counts columns in bytes
    for node in reversed(ast.parse(source).body):
        target, old = node.targets[0] if isinstance(node, ast.Assign) else node.target, node.value
        if target.id in values:
            head, tail = lines[old.lineno - 1][: old.col_offset], lines[old.end_lineno - 1][old.end_col_offset :]
            lines[old.lineno - 1 : old.end_lineno] = [head + repr(values[target.id]).encode() + tail]
    return b"".join(lines).decode()


def command(notebook: Path) -> list[str]:
    root = ["--allow-root"] if hasattr(os, "geteuid") and os.geteuid() == 0 else []
    return [sys.executable, "-m", "jupyter", "lab", "--ServerApp.ip=127.0.0.1", *root, str(notebook)]


def environment() -> dict[str, str]:
    """JupyterLab's question about its news would lie over the lights."""
    settings = folder().parent / "jupyter"
    text = json.dumps({"disabledExtensions": {"@jupyterlab/apputils-extension:announcements": True}})
    write_atomically(settings / "labconfig" / "page_config.json", text + "\n")
    known = os.environ.get("JUPYTER_CONFIG_PATH")
    return os.environ | {"JUPYTER_CONFIG_PATH": os.pathsep.join(filter(None, [str(settings), known]))}


def open_lab(section: str | None, set_name: str | None, profile: str) -> int:
    """Until the server is stopped."""
    notebook = prepare(section, set_name, profile)
    print(f"copies of the notebooks are in {paths.shown(folder())}: delete one and make lab again to start afresh")
    sys.stdout.flush()
    try:
        return subprocess.call(command(notebook), env=environment())
    except KeyboardInterrupt:
        return 0
