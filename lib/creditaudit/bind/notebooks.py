"""Execute a notebook over one parameter set, and believe the result only after checking it.

papermill reports a killed kernel and a timed-out cell as *completed*. So a notebook is executed to a scratch
path with one more cell at its end that only a living kernel can answer; every cell must have run, none may
have failed. What passes is made canonical (no times, machine paths or random ids: two executions over the
same records give the same bytes) and renamed into place. What fails is kept under `failed/` to be read.

A stamp beside the result holds the hash of all that went in; while it matches, nothing is executed again.
"""

from __future__ import annotations

import logging
import re
import sys
import time
from collections.abc import Iterable
from pathlib import Path
from typing import TYPE_CHECKING, Any

from creditaudit import paths
from creditaudit.bind import stamps
from creditaudit.bind.pages import NotebookError, executed_path, read
from creditaudit.runs.files import scratch_folder, write_atomically
from creditaudit.study import params

if TYPE_CHECKING:  # nbformat takes half a second, and where every page is up to date nothing needs it
    from nbformat import NotebookNode

ALIVE = "creditaudit: the kernel is alive"
_ANSI = re.compile(r"\x1b\[[0-9;]*[A-Za-z]")
_ADDRESS = re.compile(r"0x[0-9a-f]{6,}")


def execute(section: str, set_name: str, profile: str, inputs: Iterable[Path]) -> Path:
    """Run notebooks/<section>.ipynb, which reads these files, and return the path of the verified result."""
    values = params.parameters(section, set_name, profile)
    target = executed_path(section, set_name, profile)
    stamp = stamps.stamp([params.source_path(section), paths.PARAMS / "claims.yaml", *sorted(inputs)], values)
    if stamps.is_current(target, stamp):
        print(f"{target.stem}: up to date")
        return target
    import nbformat

    started = time.monotonic()
    notebook = _run(section, values, target)
    identity = {"section": section, "set": set_name, "profile": profile, "parameters": values}
    write_atomically(target, nbformat.writes(canonical(notebook, identity)) + "\n")
    shared = [paths.profile_dir(profile) / "identity.json"] if section == "identity_check" else []
    stamps.remember(target, stamp, _by_products(section, set_name, profile), shared)
    _failed_path(target).unlink(missing_ok=True)
    print(f"{target.stem}: executed in {time.monotonic() - started:.1f} s")
    return target


def _run(section: str, values: dict[str, Any], target: Path) -> NotebookNode:
    import nbformat

    source = nbformat.read(params.source_path(section), as_version=4)
    source.cells.append(nbformat.v4.new_code_cell(f"print({ALIVE!r})"))
    known = params.defaults(section)
    changed = {name: value for name, value in values.items() if value != known[name]}
    with scratch_folder(target) as scratch:
        path = scratch / target.name
        failure = _papermill(source, path, changed)
        try:
            notebook = read(path)
        except NotebookError as error:  # never written, or not whole: the disk is full
            notebook, failure = source, failure or str(error)
        problem = failure or _defect(notebook)
        if problem:
            raise NotebookError(_keep(notebook, target, problem))
    notebook.cells.pop()
    return notebook


def _papermill(source: NotebookNode, path: Path, changed: dict[str, Any]) -> str | None:
    """Execute; return what went wrong, as far as papermill noticed."""
    from creditaudit.bind import kernels

    kernels.prepare()
    import papermill  # late: a second, in which the nursery imports too

    logging.getLogger("papermill").setLevel(logging.CRITICAL)  # it warns of parameters that it cannot parse
    try:
        papermill.execute_notebook(
            source,
            path,
            changed,
            kernel_name="python3",
            language="python",
            cwd=paths.NOTEBOOKS,  # where Jupyter would start it
            progress_bar=False,
            record_timing=False,
            kernel_manager_class=kernels.ForkedKernelManager,
            extra_arguments=["--log-level=CRITICAL"],  # ipykernel 7 warns of TCP at every start
        )
    except papermill.PapermillExecutionError as error:
        return "\n".join(error.traceback)
    except Exception as error:  # a dead kernel; papermill has saved "completed" all the same
        return f"{type(error).__name__}: {error}"
    return None


def _defect(notebook: NotebookNode) -> str | None:
    """What papermill does not notice."""
    for cell in _code_cells(notebook):
        for output in cell.outputs:
            if output.output_type == "error":
                return "\n".join(output.traceback)
        if cell.execution_count is None:
            return "this cell was never executed"
    last = "".join(output.get("text", "") for output in notebook.cells[-1].outputs)
    return None if ALIVE in last else "the kernel did not survive to the end"


def _keep(notebook: NotebookNode, target: Path, problem: str) -> str:
    """Put the remains aside, have an older success executed again, and describe what happened."""
    import nbformat

    kept = _failed_path(target)
    write_atomically(kept, nbformat.writes(notebook))
    stamps.forget(target)
    own = [cell for cell in _code_cells(notebook) if "injected-parameters" not in cell.metadata.get("tags", [])]
    started = [cell for cell in own if cell.metadata.get("papermill", {}).get("start_time")]  # its status is no guide
    cell = (started or own)[-1 if started else 0]
    number = own.index(cell) + 1
    head = [f"  | {line}" for line in cell.source.splitlines()[:4]]
    tail = [f"  {line}" for line in _ANSI.sub("", problem).strip().splitlines()[-8:]]
    return "\n".join(
        [f"{target.stem}: code cell {number} failed", *head, *tail, f"  kept to read: {paths.shown(kept)}"]
    )


def canonical(notebook: NotebookNode, identity: dict[str, Any]) -> NotebookNode:
    """The same notebook without anything that differs between two honest executions."""
    from nbformat import NotebookNode

    kernel = {"name": "python3", "display_name": "Python 3", "language": "python"}
    notebook.metadata = NotebookNode(kernelspec=kernel, language_info={"name": "python"}, creditaudit=identity)
    for index, cell in enumerate(notebook.cells):
        cell.id = f"cell-{index:03d}"
        cell.metadata = NotebookNode({"tags": cell.metadata.tags} if cell.metadata.get("tags") else {})
        if cell.cell_type == "code":
            cell.outputs = [_canonical_output(output) for output in _merged_streams(cell.outputs)]
    return notebook


def _merged_streams(outputs: list[NotebookNode]) -> list[NotebookNode]:
    """stdout as one piece (how it is cut is a matter of timing); stderr, bars and warnings, not at all."""
    said = [output for output in outputs if output.output_type == "stream" and output.name == "stdout"]
    for more in said[1:]:
        said[0].text += more.text
    return [output for output in outputs if output.output_type != "stream" or (said and output is said[0])]


def _canonical_output(output: NotebookNode) -> NotebookNode:
    if output.output_type == "stream":
        output.text = _impersonal(output.text)
        return output
    for kind, content in output.data.items():
        if isinstance(content, str) and kind.startswith("text/"):
            output.data[kind] = _impersonal(content)
    return output


def _impersonal(text: str) -> str:
    """Without this machine's folders and memory addresses."""
    for place, name in ((paths.ROOT, "."), (Path(sys.prefix), "<python>"), (Path.home(), "~")):
        if place != place.parent:  # a home of "/" would take every slash away
            text = text.replace(str(place), name)
    return _ADDRESS.sub("0x...", text)


def _code_cells(notebook: NotebookNode) -> list[NotebookNode]:
    """Those that should have run; papermill's own error marker is markdown and blank cells are skipped."""
    return [cell for cell in notebook.cells if cell.cell_type == "code" and cell.source.strip()]


def _failed_path(target: Path) -> Path:
    return target.parent / "failed" / target.name


def _by_products(section: str, set_name: str, profile: str) -> list[Path]:
    """The tables and figures a notebook writes bear its name (and that of its set, where it has several)."""
    name = section if set_name == params.DEFAULT_SET else f"{section}--{set_name}"
    found = (paths.profile_dir(profile) / kind for kind in ("tables", "figures"))
    products = (path for folder in found for path in folder.glob(f"{name}*"))
    return sorted(
        path for path in products if path.name[len(name) :].startswith((".", "--"))
    )  # d512_L12 is not d512_L1
