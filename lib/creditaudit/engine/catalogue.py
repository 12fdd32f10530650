"""The credit rules by name, without importing any of them: the folder `credit/` is the registry.

A file there with a class that says `name = "dfa"` *is* the rule dfa. How it is called, drawn and written as a formula
stands in the class too, as literals; they are read from the source, so that a page which only shows records need not
wait for torch. Rules that are being tried out lie in folders that the environment variable CREDITAUDIT_RULES names.
"""

import ast
import hashlib
import os
from collections.abc import Iterable
from dataclasses import dataclass
from functools import cache
from pathlib import Path

from creditaudit.mistakes import Mistake

FOLDER = Path(__file__).parent / "credit"
VARIABLE = "CREDITAUDIT_RULES"
STUDY = ("bp", "fa", "dfa", "ep", "sb", "cb")  # their code is the recipe's; any other rule's records carry its digest


class RuleError(Mistake, ValueError):
    """A credit rule's file or class is not as it must be; the message says which and what to do."""


@dataclass(frozen=True)
class Entry:
    """What a rule's class says about itself."""

    name: str  # as in a spec: dfa
    path: Path
    cls: str
    label: str  # as on a page: DFA
    full_name: str
    formula: str = ""
    colour: str = "#8a2be2"
    marker: str = "P"
    dashes: tuple[float, ...] = ()  # of its line; none: solid
    place: int = 100  # in tables and figures

    @property
    def line(self) -> str | tuple[int, tuple[float, ...]]:
        """As matplotlib has it."""
        return (0, self.dashes) if self.dashes else "-"


@cache
def entries() -> dict[str, Entry]:
    """name -> entry, in the order in which tables and figures list them."""
    found: dict[str, Entry] = {}
    for folder in [FOLDER, *filter(None, os.environ.get(VARIABLE, "").split(os.pathsep))]:
        for path in sorted(Path(folder).glob("*.py")):
            for entry in _entries(path):
                earlier = found.get(entry.name)
                if earlier and (entry.name in STUDY or earlier.path.parent == path.parent):
                    raise RuleError(f"{path.name}: there is a rule {entry.name!r} already, in {earlier.path.name}")
                found[entry.name] = entry
    return {entry.name: entry for entry in sorted(found.values(), key=lambda entry: (entry.place, entry.name))}


def refresh() -> None:
    """Look at the folders again: a file was added, changed or removed."""
    entries.cache_clear()
    digest.cache_clear()


@cache
def digest(name: str) -> str | None:
    """Of the code of a rule that is not the study's; comments and empty lines do not count."""
    if name in STUDY or name not in entries():
        return None
    lines = (line.rstrip() for line in entries()[name].path.read_text().splitlines())
    code = "\n".join(line for line in lines if line and not line.lstrip().startswith("#"))
    return hashlib.sha256(code.encode()).hexdigest()[:16]


def label(name: str) -> str:
    return entries()[name].label


def in_order(names: Iterable[str]) -> list[str]:
    """Each name once, in the order in which every table and figure lists them."""
    present = set(names)
    if strangers := present - entries().keys():
        raise KeyError(f"{min(strangers)!r} has no look: is there a rule of that name in engine/credit?")
    return [name for name in entries() if name in present]


def _entries(path: Path) -> Iterable[Entry]:
    try:
        nodes = ast.parse(path.read_text()).body
    except (SyntaxError, ValueError) as error:
        raise RuleError(f"{path} is no Python ({error}): mend it, or take it away") from None
    for node in nodes:
        if isinstance(node, ast.ClassDef):
            said = dict(_literals(node))
            if "name" in said:
                fields = {key: value for key, value in said.items() if key in Entry.__dataclass_fields__}
                names = {"label": said["name"], "full_name": said.get("label", said["name"])}
                yield Entry(path=path, cls=node.name, **names | fields)


def _literals(node: ast.ClassDef) -> Iterable[tuple[str, object]]:
    for line in node.body:
        if isinstance(line, ast.Assign) and len(line.targets) == 1 and isinstance(line.targets[0], ast.Name):
            try:
                yield line.targets[0].id, ast.literal_eval(line.value)
            except ValueError:
                continue
