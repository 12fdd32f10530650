"""From executed notebooks to numbered chapters: what the HTML and the PDF have in common.

A chapter is a notebook made ready to print. Its tags are obeyed (`hide`, `hide-input`, `hide-output`,
`provenance`), its first heading is its title, its figures and tables carry a number, and the prose of a
section that appears with a second parameter set is not printed twice.
"""

import re
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import nbformat
from nbformat import NotebookNode

from creditaudit import notebooks, paths

_TITLE = re.compile(r"^# +(.+)$", re.MULTILINE)
_HEADING = re.compile(r"^#{2,6} +")
_FENCED = re.compile(r"^```.*?^```", re.MULTILINE | re.DOTALL)
_IMAGES = ("image/svg+xml", "image/png", "image/jpeg")


class AppendixError(RuntimeError):
    """The appendix cannot be made; the message names the section or the cell, and what to do."""


@dataclass
class Chapter:
    number: int
    section: str
    set_name: str
    title: str
    notebook: NotebookNode
    provenance: str  # markdown
    repeats: int | None = None  # number of the chapter that has this section's prose
    anchor: str = field(init=False)

    def __post_init__(self) -> None:
        self.anchor = _slug(f"{self.section}-{self.set_name}")


@dataclass
class Counter:
    figures: int = 0
    tables: int = 0


def chapters(order: list[tuple[str, str]], profile: str) -> list[Chapter]:
    """The executed notebooks of (section, set) in the given order, ready to print."""
    counter, first, made = Counter(), {}, []
    for number, (section, set_name) in enumerate(order, 1):
        path = notebooks.executed_path(section, set_name, profile)
        if not path.exists():
            raise AppendixError(f"{paths.shown(path)} is missing: execute the notebooks first")
        chapter = _chapter(number, section, set_name, path, counter)
        if section in first:
            chapter.repeats = first[section]
            _drop_prose(chapter.notebook)
        first.setdefault(section, number)
        made.append(chapter)
    return made


def _chapter(number: int, section: str, set_name: str, path: Path, counter: Counter) -> Chapter:
    notebook = nbformat.read(path, as_version=4)
    provenance, cells = [], []
    for index, cell in enumerate(notebook.cells):
        tags = set(cell.metadata.get("tags", []))
        where = f"{paths.shown(path)}, cell {index + 1}"
        if cell.cell_type == "code":
            cell.outputs = [output for output in cell.outputs if not _is_caption(output)]
        if "provenance" in tags:
            provenance += [
                output.data["text/markdown"] for output in cell.outputs if "text/markdown" in output.get("data", {})
            ]
        elif "hide" not in tags:
            cells.append(_visible(cell, tags, where, counter, _slug(f"{section}-{set_name}")))
    notebook.cells = _joined(cells)
    if not provenance:
        raise AppendixError(f"{paths.shown(path)} has no cell tagged 'provenance' that shows markdown")
    title = _take_title(notebook, path)
    _check_headings(notebook, path)
    return Chapter(number, section, set_name, title, notebook, "\n\n".join(provenance))


def _visible(cell: NotebookNode, tags: set[str], where: str, counter: Counter, anchor: str) -> NotebookNode:
    if cell.cell_type != "code":
        return cell
    label = "parameters" if tags & {"parameters", "injected-parameters"} else "code"
    cell.metadata.fold = label if cell.source.strip() and "hide-input" not in tags else None
    cell.outputs = [] if "hide-output" in tags else cell.outputs
    for output in cell.outputs:
        _label(output, where, counter, anchor)
    return cell


def _joined(cells: list[NotebookNode]) -> list[NotebookNode]:
    """Code cells that follow each other with nothing shown between them fold into one."""
    joined: list[NotebookNode] = []
    for cell in cells:
        last = joined[-1] if joined else None
        fold = cell.metadata.get("fold")
        if last and fold and last.metadata.get("fold") == fold and not last.outputs:
            cell.source = f"{last.source}\n\n{cell.source}"
            joined.pop()
        joined.append(cell)
    return joined


def _label(output: NotebookNode, where: str, counter: Counter, anchor: str) -> None:
    """Give a figure or a table its number and anchor; refuse one that does not say what it is."""
    kind = next((kind for kind in _IMAGES if kind in output.get("data", {})), None)
    notes: dict[str, Any] = output.get("metadata", {}).get(kind or "text/markdown", {})
    if kind:
        for need in ("caption", "alt"):
            if not notes.get(need, "").strip():
                raise AppendixError(
                    f"{where}: a figure has no {need}; show it with display.show_figure(fig, caption=, alt=)"
                )
        counter.figures += 1
        output.metadata.label = {"kind": "figure", "number": counter.figures, **notes}
    elif "caption" in notes:
        counter.tables += 1
        output.metadata.label = {"kind": "table", "number": counter.tables, **notes}
    if "label" in output.get("metadata", {}):
        label = output.metadata.label
        label["anchor"] = f"{anchor}-{label['kind']}-{label['number']}"


def _take_title(notebook: NotebookNode, path: Path) -> str:
    for cell in notebook.cells:
        found = _TITLE.search(cell.source) if cell.cell_type == "markdown" else None
        if found:
            cell.source = (cell.source[: found.start()] + cell.source[found.end() :]).strip()
            return found.group(1).strip()
    raise AppendixError(f"{paths.shown(path)} has no title: begin with '# The finding'")


def _check_headings(notebook: NotebookNode, path: Path) -> None:
    """An outline without holes: PDF/UA refuses `###` right after the title."""
    level = 1
    for cell in notebook.cells:
        text = _FENCED.sub("", cell.source) if cell.cell_type == "markdown" else ""
        for line in filter(_HEADING.match, text.splitlines()):
            depth = len(line) - len(line.lstrip("#"))
            if depth > level + 1:
                raise AppendixError(f"{paths.shown(path)}: heading {line!r} skips a level")
            level = depth


def _drop_prose(notebook: NotebookNode) -> None:
    """Keep what was computed, and the headings that something computed follows."""
    kept: list[NotebookNode] = []
    for cell in notebook.cells:
        if cell.cell_type == "code":
            kept += [cell] if cell.outputs else []
            continue
        headings = [line for line in cell.source.splitlines() if _HEADING.match(line)]
        if headings:
            cell.source = headings[-1]
            kept[-1:] = [cell] if kept and kept[-1].cell_type == "markdown" else [*kept[-1:], cell]
    if kept and kept[-1].cell_type == "markdown":
        kept.pop()
    notebook.cells = kept


def _is_caption(output: NotebookNode) -> bool:
    return output.get("metadata", {}).get("text/markdown", {}).get("role") == "caption"


def _slug(text: str) -> str:
    return re.sub(r"[^a-z0-9]+", "-", text.lower()).strip("-")
