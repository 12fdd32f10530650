"""A credit rule of a notebook cell as a file that stands alone, as worker processes and the rules' folder need it.

The class is copied with the imports, constants, functions and classes of the notebook that it uses; what cannot be
copied (a tensor, an open file) is named. A rule that it inherits from comes without its name: one file, one rule.
"""

import ast
import builtins
import inspect
import linecache
import symtable
import sys
import textwrap
from types import FunctionType, ModuleType
from typing import Any

from creditaudit.engine.catalogue import RuleError
from creditaudit.engine.credit import Rule

HEAD = "# Written from a notebook by creditaudit.lab.workbench.\n"


def text(rule: type) -> str:
    """The source of a file that defines this class."""
    bundle = _Bundle()
    bundle.add(rule)
    return HEAD + "\n\n".join(["\n".join(sorted(bundle.imports)), *bundle.parts.values()]).strip() + "\n"


class _Bundle:
    """Imports, and definitions by name, each after those it uses."""

    def __init__(self) -> None:
        self.imports: set[str] = set()
        self.parts: dict[str, str] = {}
        self.under_way: set[str] = set()  # a class may use itself

    def add(self, thing: type | FunctionType) -> None:
        source, names = _source(thing), _globals(thing)
        self.under_way.add(thing.__name__)
        for name in _free_names(source):
            if name in names and name not in self.under_way:
                self._add_name(name, names[name], thing)
        self.parts[thing.__name__] = source

    def _add_name(self, name: str, value: Any, user: type | FunctionType) -> None:
        home = getattr(value, "__module__", None)
        if isinstance(value, ModuleType):
            self.imports.add(f"import {value.__name__}" + (f" as {name}" if value.__name__ != name else ""))
        elif isinstance(value, type | FunctionType) and home in ("__main__", user.__module__):
            self.add(value)
            if isinstance(value, type) and issubclass(value, Rule):
                self.parts[value.__name__] = _without_name(self.parts[value.__name__])
        elif (whence := _importable(name, value)) is not None:
            self.imports.add(whence)
        elif _is_literal(value):
            self.parts[name] = f"{name} = {value!r}"
        else:
            kind = type(value).__name__
            raise RuleError(
                f"{user.__name__} uses {name!r}, a {kind} of the notebook that cannot be put into a file: "
                "make it inside the class"
            )


def _importable(name: str, value: Any) -> str | None:
    home, own = getattr(value, "__module__", None), getattr(value, "__qualname__", name)
    if home in sys.modules and home != "__main__" and getattr(sys.modules[home], own, None) is value:
        return f"from {home} import {own}" + (f" as {name}" if own != name else "")
    return None


def _is_literal(value: Any) -> bool:
    try:
        return bool(ast.literal_eval(repr(value)) == value)
    except (ValueError, SyntaxError):
        return False


def _function(thing: type | FunctionType) -> FunctionType:
    """A function itself, a class's first method: they know their cell and its names, a class in a notebook does not."""
    methods = [thing] if isinstance(thing, FunctionType) else filter(inspect.isfunction, vars(thing).values())
    if (method := next(iter(methods), None)) is None:
        raise RuleError(f"{thing.__name__} defines no method, so its source cannot be found: give it a `block`")
    return method


def _source(thing: type | FunctionType) -> str:
    lines = linecache.getlines(_function(thing).__code__.co_filename)
    kinds = ast.FunctionDef | ast.ClassDef
    nodes = [node for node in ast.walk(_parsed(lines)) if isinstance(node, kinds) and node.name == thing.__name__]
    if not nodes:
        raise RuleError(f"the source of {thing.__name__} cannot be found: write it in a notebook cell or in a file")
    node = nodes[-1]
    first = min([node.lineno, *(decorator.lineno for decorator in node.decorator_list)])
    return textwrap.dedent("".join(lines[first - 1 : node.end_lineno])).rstrip()


def _without_name(source: str) -> str:
    lines = source.splitlines()
    for node in ast.parse(source).body[0].body:
        if isinstance(node, ast.Assign) and ast.unparse(node.targets[0]) == "name":
            said, line = ast.get_source_segment(source, node), node.lineno - 1
            lines[line] = lines[line].replace(said, "name: str")
    return "\n".join(lines)


def _parsed(lines: list[str]) -> ast.Module:
    try:
        return ast.parse("".join(lines))
    except SyntaxError:  # the cell has magics beside the class
        return ast.parse("".join(line if line.lstrip()[:1] not in "%!" else "\n" for line in lines))


def _globals(thing: type | FunctionType) -> dict[str, Any]:
    function = _function(thing)
    closed = inspect.getclosurevars(function).nonlocals
    return function.__globals__ | {name: value for name, value in closed.items() if name != "__class__"}


def _free_names(source: str) -> list[str]:
    """Names that are looked up outside of it, in alphabetical order."""
    found: set[str] = set()

    def visit(table: symtable.SymbolTable) -> None:
        top = table.get_type() == "module"
        found.update(s.get_name() for s in table.get_symbols() if s.is_referenced() and (top or s.is_global()))
        for child in table.get_children():
            visit(child)

    visit(symtable.symtable(source, "rule", "exec"))
    return sorted(name for name in found if not hasattr(builtins, name))
