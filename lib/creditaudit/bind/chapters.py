"""From executed notebooks to numbered chapters: what the HTML and the PDF have in common.

A chapter is a notebook made ready to print. Its tags are obeyed (`hide`, `hide-input`, `hide-output`, `provenance`,
`headline`), its first heading is its title, its figures and tables carry a number, and the prose of a section that
appears with a second parameter set is not shown twice. The HTML has everything; the PDF leaves out cells tagged
`html-only`, with a second parameter set also those tagged `once`, and keeps the numbers.
"""

from __future__ import annotations

import re
from collections import Counter
from copy import deepcopy
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any

from creditaudit import paths
from creditaudit.bind import pages
from creditaudit.mistakes import Mistake

if TYPE_CHECKING:
    from nbformat import NotebookNode

_TITLE = re.compile(r"^# +(.+)$", re.MULTILINE)
_HEADING = re.compile(r"^#{2,6} +", re.MULTILINE)
_FENCED = re.compile(r"^```.*?^```", re.MULTILINE | re.DOTALL)
_PIPE = re.compile(r"(?<!\\)\|")
_CODE = re.compile(r"(`[^`]*`)")
_BROKEN = re.compile(r"(×/)(÷)|(?<=\de)(-)(?=\d)")
_EXPONENT = re.compile(r"(?<=\de)(?:\+0*|(-)0+)(?=\d)")  # 1e-07, 2e+08
_JOINED = re.compile(
    r" (?=×/)|(?<=÷) |(?<=\d) (?=± [\d<]|%)|(?<=±) (?=\d)|(?<=\d) (?=pp\b)|(?<=\(n) (?== \d)|(?<=n =) (?=\d)"
)
_SENTENCE = re.compile(r".+?(?:\.(?=\s+\W*[A-Z])|$)", re.DOTALL)
_IMAGES = ("image/svg+xml", "image/png", "image/jpeg")
# of an output the first of these is shown
SHOWN = {"NbConvertBase": {"display_data_priority": [*_IMAGES, "text/markdown", "text/plain"]}}
TEMPLATES = paths.PAPER / "templates" / "creditaudit"


Counters = tuple[Counter[str], Counter[str]]  # of figures and tables, in the book and in the chapter


class AppendixError(Mistake, RuntimeError):
    """The appendix cannot be made; the message names the section or the cell, and what to do."""


@dataclass
class Chapter:
    number: int
    section: str
    set_name: str
    title: str
    notebook: NotebookNode
    provenance: str  # markdown
    headline: str = ""  # markdown: what of it stands on the title page
    repeats: int | None = None  # number of the chapter that has this section's prose
    part: str | None = None  # of the book, where one begins with this chapter

    @property
    def anchor(self) -> str:
        return slug(f"{self.section}-{self.set_name}")

    def printed(self) -> NotebookNode:
        """What the PDF shows: no cell that is for the screen alone, no column that a table does not print."""
        notebook = deepcopy(self.notebook)
        screen = {"html-only", "once"} if self.repeats else {"html-only"}
        notebook.cells = _without_idle_headings(
            [cell for cell in notebook.cells if not screen & set(cell.metadata.get("tags", []))]
        )
        opening = True  # until the first heading: a figure that floated from here would stand above the chapter's title
        for cell in notebook.cells:
            opening &= cell.cell_type == "code" or not _HEADING.search(cell.source)
            for output in cell.get("outputs", []):
                if label := output.get("metadata", {}).get("label"):
                    self._print(output, label, opening)
        return notebook

    def _print(self, output: NotebookNode, label: NotebookNode, opening: bool) -> None:
        label["stays"] = opening
        if "printed" in label:
            output.data["text/markdown"] = only_columns(output.data["text/markdown"], label["printed"])
        if self.repeats:
            label["caption"] = _SENTENCE.match(label["caption"]).group()  # the rest stands in the first chapter


def chapters(order: list[tuple[str, str]], profile: str, parts: dict[str, str] | None = None) -> list[Chapter]:
    """The executed notebooks of (section, set) in the given order, ready to print; `parts` begin with a section."""
    counter, first, made, parts = Counter(), {}, [], dict(parts or {})
    for number, (section, set_name) in enumerate(order, 1):
        path = pages.executed_path(section, set_name, profile)
        if not path.exists():
            raise AppendixError(f"{paths.shown(path)} is missing: execute the notebooks first")
        chapter = _chapter(number, section, set_name, path, counter)
        chapter.part = parts.pop(section, None)
        if section in first:
            chapter.repeats = first[section]
            _drop_prose(chapter.notebook)
        first.setdefault(section, number)
        made.append(chapter)
    return made


def _chapter(number: int, section: str, set_name: str, path: Path, counter: Counter) -> Chapter:
    notebook = pages.read(path)
    provenance, headline, cells, anchor = [], [], [], slug(f"{section}-{set_name}")
    counters = counter, Counter()
    for index, cell in enumerate(notebook.cells):
        tags = set(cell.metadata.get("tags", []))
        where = f"{paths.shown(path)}, cell {index + 1}"
        if cell.cell_type == "code":
            cell.outputs = [output for output in cell.outputs if not _is_for_jupyter(output)]
        if "provenance" in tags:
            provenance += _markdown(cell)
        elif "headline" in tags:
            headline += [] if any(map(_waits, cell.outputs)) else _markdown(cell)  # undecided: not for a title page
        elif "hide" not in tags:
            cells.append(_visible(cell, tags, where, counters, anchor))
    notebook.cells = _joined(cells)
    _say_once(notebook)
    if not provenance:
        raise AppendixError(f"{paths.shown(path)} has no cell tagged 'provenance' that shows markdown")
    title = _take_title(notebook, path)
    _check_headings(notebook, path)
    return Chapter(number, section, set_name, title, notebook, "\n\n".join(provenance), "\n\n".join(headline))


def _markdown(cell: NotebookNode) -> list[str]:
    shown = [output.data["text/markdown"] for output in cell.outputs if "text/markdown" in output.get("data", {})]
    return [unbroken(text) for text in shown]


def _waits(output: NotebookNode) -> bool:
    """For runs that would decide what it says."""
    return output.get("metadata", {}).get("text/markdown", {}).get("finding", {}).get("state") == "open"


def _say_once(notebook: NotebookNode) -> None:
    """A chapter names the runs it waits for where it first misses them; further on it points back."""
    said: set[str] = set()
    for cell in notebook.cells:
        for output in filter(_waits, cell.get("outputs", [])):
            why = output.metadata["text/markdown"]["finding"]["why"]
            if why in said:
                text = output.data["text/markdown"]
                output.data["text/markdown"] = text.replace(why, "For the same reason as above.")
            said.add(why)


def _visible(cell: NotebookNode, tags: set[str], where: str, counters: Counters, anchor: str) -> NotebookNode:
    if cell.cell_type != "code":
        return cell
    label = "parameters" if tags & {"parameters", "injected-parameters"} else "code"
    cell.metadata.fold = label if cell.source.strip() and "hide-input" not in tags else None
    cell.outputs = [] if "hide-output" in tags else cell.outputs
    for output in cell.outputs:
        _label(output, where, counters, anchor)
        if "text/markdown" in output.get("data", {}):
            output.data["text/markdown"] = unbroken(output.data["text/markdown"])
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


def _label(output: NotebookNode, where: str, counters: Counters, anchor: str) -> None:
    """Give a figure or a table its number and anchor; refuse one that does not say what it is."""
    kind = next((kind for kind in _IMAGES if kind in output.get("data", {})), None)
    notes: dict[str, Any] = output.get("metadata", {}).get(kind or "text/markdown", {})
    if kind:
        for need in ("caption", "alt"):
            if not notes.get(need, "").strip():
                raise AppendixError(
                    f"{where}: a figure has no {need}; show it with display.show_figure(fig, caption=, alt=)"
                )
    elif "caption" not in notes:
        return
    what = "figure" if kind else "table"
    for counter in counters:
        counter[what] += 1
    book, chapter = counters
    anchor = f"{anchor}-{what}-{chapter[what]}"  # of its chapter alone: what others add does not change it
    output.metadata.label = {**notes, "kind": what, "number": book[what], "anchor": anchor}


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
    cells = [cell for cell in notebook.cells if cell.cell_type != "code" or cell.outputs]
    for cell in cells:
        if cell.cell_type == "markdown":
            cell.source = "\n\n".join([line for line in cell.source.splitlines() if _HEADING.match(line)][-1:])
    notebook.cells = _without_idle_headings(cells)


def _without_idle_headings(cells: list[NotebookNode]) -> list[NotebookNode]:
    """The cells without a heading after which another follows, or nothing, before anything is shown."""
    kept: list[NotebookNode] = []
    for cell in reversed(cells):
        alone = cell.cell_type == "markdown" and len(cell.source.split("\n")) == 1 and _HEADING.match(cell.source)
        follower = next((each for each in reversed(kept) if each.cell_type == "markdown" or each.outputs), None)
        ends = follower is None or (follower.cell_type == "markdown" and _HEADING.match(follower.source))
        if cell.source.strip() and not (alone and ends):
            kept.append(cell)
    return kept[::-1]


def only_columns(table: str, names: list[str]) -> str:
    """A pipe table with some of its columns."""
    rows = [[cell.strip() for cell in _PIPE.split(line.strip().strip("|"))] for line in table.splitlines()]
    heads = list(map(unbroken, rows[0]))
    absent = [name for name in names if unbroken(name) not in heads]
    if absent:
        raise AppendixError(f"a table is to print {absent[0]!r}, which is not among its columns: {', '.join(rows[0])}")
    places = [heads.index(unbroken(name)) for name in names]
    return "\n".join(f"| {' | '.join(row[place] for place in places)} |" for row in rows)


def unbroken(text: str) -> str:
    """No line ends inside a number: not before its ± or ×/÷, not within (n = 3) or 4.4e-7, which is never 4.4e-07."""
    parts = _CODE.split(text)
    for place in range(0, len(parts), 2):  # not in code
        part = _EXPONENT.sub(r"\1", parts[place])
        part = _BROKEN.sub(lambda found: f"{found[1] or found[3]}\u2060{found[2] or ''}", part)
        parts[place] = _JOINED.sub("\u00a0", part)
    return "".join(parts)


def _is_for_jupyter(output: NotebookNode) -> bool:
    """A caption, which the appendix sets itself, or a section's claims, which it prints in the register."""
    return output.get("metadata", {}).get("text/markdown", {}).get("role") in ("caption", "register")


def slug(text: str) -> str:
    return re.sub(r"[^a-z0-9]+", "-", text.lower()).strip("-")
