"""A notebook's parameters: read from its tagged cell, overridden by YAML, refused before any kernel starts.

The cell tagged `parameters` holds plain assignments, `name: type = value  # why`. It is the only place where
a parameter is declared. Three layers, later ones win:

    the cell's defaults  <  params/<section>/<set>.yaml  <  params/profiles.yaml, entry <profile>

A profile maps names to values. A key that is a section, or section/set, holds overrides for that one alone;
every other key goes to all notebooks that declare the name (and some notebook must declare it):

    quick:
      seeds: [42]
      audit/d512_L12: {methods: [bp, dfa]}

papermill itself only warns about an unknown name, and its reader loses `float | None`; hence `ast` here.
"""

import ast
import json
from collections.abc import Mapping
from copy import deepcopy
from difflib import get_close_matches
from functools import lru_cache
from pathlib import Path
from types import NoneType
from typing import Annotated, Any, Literal

from pydantic import TypeAdapter, ValidationError

from creditaudit import paths
from creditaudit.engine.spec import RunSpec
from creditaudit.mistakes import Mistake
from creditaudit.runs import yamlfile
from creditaudit.runs.yamlfile import nearest

IDENTITY = ("profile", "set_name")  # which execution this is: never set by a file
DEFAULT_SET = "default"  # the one set that needs no file
_STANDS_FOR = {  # a parameter, or each of its entries, that is a field of the spec under another name
    "methods": "method",
    "swept": "method",
    "seeds": "seed",
    "penalties": "penalty",
    "rescue": "penalty",
    "long_epochs": "epochs",
    "mechanism_epochs": "epochs",
    "normalisations": "normalise",
    "rungs": "k",
}
_TYPES = {kind.__name__: kind for kind in (int, float, str, bool, list, dict, tuple)}


class ParameterError(Mistake, ValueError):
    """A parameter was written wrongly; the message names the file, the name and what it may be."""


def source_path(section: str) -> Path:
    path = paths.NOTEBOOKS / f"{paths.file_name(section, 'section')}.ipynb"
    if not path.is_file():
        raise ParameterError(f"no notebook for section {section!r}{nearest(section, sections())}")
    return path


def sections() -> list[str]:
    """Every notebook with parameters; any other (JupyterLab's Untitled.ipynb) is a person's own affair."""
    return sorted(path.stem for path in paths.NOTEBOOKS.glob("*.ipynb") if _cells(path, "parameters"))


def sets(section: str) -> list[str]:
    """The parameter sets of a section; one without files has the single set `default`."""
    files = (paths.PARAMS / section).glob("*.yaml")
    return sorted(paths.file_name(path.stem, f"params/{section}, set") for path in files) or [DEFAULT_SET]


def declared(section: str) -> dict[str, tuple[Any, Any]]:
    """name -> (type, default), as the tagged cell declares them."""
    path = source_path(section)
    return dict(_declared(path, path.read_text("utf-8", "replace")))


@lru_cache(maxsize=64)
def _declared(path: Path, content: str) -> dict[str, tuple[Any, Any]]:
    tagged = _tagged(content, "parameters")
    if len(tagged) != 1:
        raise ParameterError(f"{paths.shown(path)}: needs exactly one cell tagged 'parameters', has {len(tagged)}")
    try:
        assignments = ast.parse(tagged[0]).body
    except SyntaxError as error:
        place = f"line {error.lineno} of its parameters"
        raise ParameterError(f"{paths.shown(path)}: {place}: {error.msg}: {error.text or ''}".rstrip()) from None
    except (ValueError, RecursionError, MemoryError) as error:  # a null byte, a thousand brackets
        raise ParameterError(f"{paths.shown(path)}: its parameters cannot be read: {error}") from None
    return dict(_assignment(node, path) for node in assignments)


def _cells(path: Path, tag: str) -> list[str]:
    """The sources of the cells with this tag; what is not a notebook has none."""
    try:
        return _tagged(path.read_text("utf-8", "replace"), tag)
    except OSError:
        return []


@lru_cache(maxsize=128)
def _tagged(content: str, tag: str) -> list[str]:
    try:
        cells = json.loads(content)["cells"]
        return ["".join(cell["source"]) for cell in cells if tag in cell["metadata"].get("tags", [])]
    except (ValueError, LookupError, TypeError, AttributeError, RecursionError, OSError):
        return []


def defaults(section: str) -> dict[str, Any]:
    return {name: deepcopy(value) for name, (_, value) in declared(section).items()}


def runs_cell(section: str) -> str | None:
    """The code that says which runs a section needs; None where it trains nothing."""
    return "\n".join(_cells(source_path(section), "runs")) or None


def check_cell(section: str, names: Mapping[str, Any], source: str | None = None) -> None:
    """The parameters as a person left them in the first cell, held to the rules that the files are held to.

    `source` is the cell's text: a name in it that is nearly a parameter's is a slip, any other one the person's own.
    """
    known = declared(section)
    for name in assigned(source or ""):
        if name not in known and (near := get_close_matches(name, known, n=1, cutoff=0.75)):
            raise ParameterError(f"the first cell: {section} has no parameter {name!r}: did you mean {near[0]!r}?")
    for name, (kind, _) in known.items():
        if name in names:
            _checked(name, kind, names[name], "the first cell")


def departures(section: str, names: Mapping[str, Any]) -> dict[str, tuple[Any, Any]]:
    """name -> (the first cell's value, the set's) where they differ: such a page is not that of its set and profile."""
    place = [names.get(name) for name in reversed(IDENTITY)]
    if place[0] not in sets(section) or place[1] not in _mapping(paths.PARAMS / "profiles.yaml"):
        return {}
    meant = parameters(section, *place)
    return {name: (names[name], value) for name, value in meant.items() if name in names and names[name] != value}


def assigned(source: str) -> list[str]:
    """The names to which a cell gives values."""
    try:
        nodes = ast.parse(source).body
    except SyntaxError:
        return []
    nested = [getattr(node, "targets", None) or [getattr(node, "target", None)] for node in nodes]
    return [target.id for targets in nested for target in targets if isinstance(target, ast.Name)]


def validate(section: str, overrides: dict[str, Any], where: Path | None = None) -> dict[str, Any]:
    """The overrides with checked names, types and ranges, or an error that names the first wrong one."""
    known = declared(section)
    file = paths.shown(where or source_path(section))
    for name in overrides:
        if name not in known:
            raise ParameterError(f"{file}: {section} has no parameter {name!r}{nearest(name, known)}")
    return {name: _checked(name, known[name][0], value, file) for name, value in overrides.items()}


def parameters(section: str, set_name: str, profile: str) -> dict[str, Any]:
    """Every parameter of one execution. `profile` and `set_name`, where declared, say which one it is."""
    known = defaults(section)
    identity = dict(zip(IDENTITY, (profile, set_name), strict=True))
    merged = known | {name: value for name, value in identity.items() if name in known}
    merged |= validate(section, _set_overrides(section, set_name), paths.PARAMS / section / f"{set_name}.yaml")
    return merged | validate(section, _profile_overrides(section, set_name, profile), paths.PARAMS / "profiles.yaml")


def overruled(section: str, set_name: str, profile: str) -> list[str]:
    """Names to which the set's file gives one value and the profile another, which wins."""
    said = _set_overrides(section, set_name)
    return [
        name for name, value in _profile_overrides(section, set_name, profile).items() if said.get(name, value) != value
    ]


def profile_entry(profile: str) -> dict[str, Any]:
    """What a profile changes; a misspelt name in any profile is refused, not only in the one asked for."""
    path = paths.PARAMS / "profiles.yaml"
    profiles = _mapping(path)
    if profile not in profiles:
        raise ParameterError(f"{paths.shown(path)}: no profile {profile!r}{nearest(profile, profiles)}")
    sets_of = {section: sets(section) for section in sections()}
    places = {
        place for section, names in sets_of.items() for place in (section, *(f"{section}/{name}" for name in names))
    }
    known = places | {name for section in sets_of for name in defaults(section)}
    for name, entry in profiles.items():
        _check_profile_entry(paths.file_name(name, f"{paths.shown(path)}: profile"), entry, path, places, known)
    return profiles[profile] or {}


def _set_overrides(section: str, set_name: str) -> dict[str, Any]:
    path = paths.PARAMS / section / f"{paths.file_name(set_name, 'set')}.yaml"
    if path.exists():
        return _without_identity(_mapping(path), path)
    if set_name != DEFAULT_SET:
        raise ParameterError(f"{section} has no set {set_name!r}{nearest(set_name, sets(section))}")
    return {}


def _without_identity(overrides: dict[str, Any], path: Path) -> dict[str, Any]:
    for name in IDENTITY:
        if name in overrides:
            raise ParameterError(f"{paths.shown(path)}: {name} is the command's to choose (PROFILE=, SET=)")
    return overrides


def _profile_overrides(section: str, set_name: str, profile: str) -> dict[str, Any]:
    entry, here = profile_entry(profile), defaults(section)
    common = {name: value for name, value in entry.items() if name in here}
    return common | (entry.get(section) or {}) | (entry.get(f"{section}/{set_name}") or {})


def _check_profile_entry(profile: str, entry: Any, path: Path, places: set[str], names: set[str]) -> None:
    entry = yamlfile.mapping(entry, f"{paths.shown(path)}: {profile}")
    for name, value in _without_identity(entry, path).items():
        if name not in names:
            raise ParameterError(f"{paths.shown(path)}: no notebook declares {name!r}{nearest(name, names)}")
        if name in places:
            overrides = yamlfile.mapping(value, f"{paths.shown(path)}: {profile}, {name}")
            validate(name.partition("/")[0], _without_identity(overrides, path), path)


def _assignment(node: ast.stmt, path: Path) -> tuple[str, tuple[Any, Any]]:
    target = node.targets[0] if isinstance(node, ast.Assign) else getattr(node, "target", None)
    if not isinstance(node, ast.Assign | ast.AnnAssign) or not isinstance(target, ast.Name) or node.value is None:
        raise ParameterError(
            f"{paths.shown(path)}: the parameters cell may only hold 'name: type = value', not {ast.unparse(node)!r}"
        )
    try:
        value = ast.literal_eval(node.value)
    except (ValueError, TypeError, SyntaxError, RecursionError):  # TypeError: a list as a key
        raise ParameterError(f"{paths.shown(path)}: {target.id} = {ast.unparse(node.value)} is not a literal") from None
    if isinstance(node, ast.Assign):
        return target.id, (_inferred(value), value)
    try:
        declared_type = _type(node.annotation)
    except (LookupError, TypeError, ValueError):
        wrong = ast.unparse(node.annotation)
        raise ParameterError(f"{paths.shown(path)}: {target.id} has the unknown type {wrong!r}") from None
    return target.id, (declared_type, _checked(target.id, declared_type, value, paths.shown(path)))


def _type(node: ast.expr) -> Any:
    """`list[int] | None` as a type: names, subscripts and unions, nothing that runs."""
    match node:
        case ast.Name(id=name):
            return _TYPES[name]
        case ast.Constant(value=None):
            return None
        case ast.BinOp(left=left, op=ast.BitOr(), right=right):
            return _type(left) | _type(right)
        case ast.Subscript(value=ast.Name(id="Literal"), slice=inner):
            return Literal[ast.literal_eval(inner)]
        case ast.Subscript(value=outer, slice=ast.Tuple(elts=inner)):
            return _type(outer)[tuple(_type(each) for each in inner)]
        case ast.Subscript(value=outer, slice=inner):
            return _type(outer)[_type(inner)]
    raise TypeError(ast.unparse(node))


def _inferred(value: Any) -> Any:
    if isinstance(value, list) and value and len({type(item) for item in value}) == 1:
        return list[type(value[0])]
    return Any if isinstance(value, NoneType) else type(value)


def _checked(name: str, declared_type: Any, value: Any, file: str) -> Any:
    try:
        value = _adapter(declared_type).validate_python(value, strict=True)
    except ValidationError as error:
        problem, hint = error.errors()[0], ""
        if isinstance(problem["input"], str) and problem["msg"].endswith(("valid number", "valid integer")):
            hint = f": {problem['input']!r} is a string (YAML reads 1e-3 as text: write 1.0e-3, without quotes)"
        wanted = declared_type.__name__ if type(declared_type) is type else declared_type
        raise ParameterError(f"{file}: {name} = {value!r} is not {wanted}{hint}") from None
    _in_range(name, value, file)
    return value


_adapter = lru_cache(TypeAdapter)


@lru_cache
def _field_adapter(name: str) -> TypeAdapter:
    field = RunSpec.model_fields[name]
    return TypeAdapter(Annotated[field.annotation, *field.metadata] if field.metadata else field.annotation)


def _in_range(name: str, value: Any, file: str) -> None:
    """A parameter that stands for a field of the spec must be a value that field can take."""
    if isinstance(value, list) and (not value or len({str(item) for item in value}) < len(value)):
        raise ParameterError(f"{file}: {name} = {value!r} must have at least one entry, and none twice")
    field = RunSpec.model_fields.get(_STANDS_FOR.get(name, name))
    if field is None or value is None:
        return
    adapter = _field_adapter(_STANDS_FOR.get(name, name))
    for item in value if isinstance(value, list) else [value]:
        try:
            adapter.validate_python(item, strict=True)
        except ValidationError as error:
            raise ParameterError(f"{file}: {name} = {item!r}: {error.errors()[0]['msg'].lower()}") from None


def _mapping(path: Path) -> dict[str, Any]:
    return yamlfile.mapping(yamlfile.load(path) if path.exists() else None, paths.shown(path))
