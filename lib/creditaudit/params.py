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
from pathlib import Path
from types import NoneType
from typing import Annotated, Any, Literal

from pydantic import TypeAdapter, ValidationError

from creditaudit import paths, yamlfile
from creditaudit.spec import RunSpec
from creditaudit.yamlfile import nearest

IDENTITY = ("profile", "set_name")  # which execution this is: never set by a file
DEFAULT_SET = "default"  # the one set that needs no file
_STANDS_FOR = {  # a parameter, or each of its entries, that is a field of the spec under another name
    "methods": "method",
    "swept": "method",
    "seeds": "seed",
    "penalties": "penalty",
    "rescue": "penalty",
    "long_epochs": "epochs",
    "train_epochs": "epochs",
}
_TYPES = {kind.__name__: kind for kind in (int, float, str, bool, list, dict, tuple)} | {"Literal": Literal}


class ParameterError(ValueError):
    """A parameter was written wrongly; the message names the file, the name and what it may be."""


def source_path(section: str) -> Path:
    path = paths.NOTEBOOKS / f"{section}.ipynb"
    if not path.exists():
        raise ParameterError(f"no notebook for section {section!r}{nearest(section, sections())}")
    return path


def sections() -> list[str]:
    """Every notebook with parameters; any other (JupyterLab's Untitled.ipynb) is a person's own affair."""
    return sorted(path.stem for path in paths.NOTEBOOKS.glob("*.ipynb") if _parameter_cells(path))


def sets(section: str) -> list[str]:
    """The parameter sets of a section; one without files has the single set `default`."""
    return sorted(path.stem for path in (paths.PARAMS / section).glob("*.yaml")) or [DEFAULT_SET]


def declared(section: str) -> dict[str, tuple[Any, Any]]:
    """name -> (type, default), as the tagged cell declares them."""
    path = source_path(section)
    tagged = _parameter_cells(path)
    if len(tagged) != 1:
        raise ParameterError(f"{paths.shown(path)}: needs exactly one cell tagged 'parameters', has {len(tagged)}")
    try:
        assignments = ast.parse(tagged[0]).body
    except SyntaxError as error:
        place = f"line {error.lineno} of its parameters"
        raise ParameterError(f"{paths.shown(path)}: {place}: {error.msg}: {error.text or ''}".rstrip()) from None
    return dict(_assignment(node, path) for node in assignments)


def _parameter_cells(path: Path) -> list[str]:
    """The sources of the cells tagged `parameters`; what is not a notebook has none."""
    try:
        cells = json.loads(path.read_text())["cells"]
        return ["".join(cell["source"]) for cell in cells if "parameters" in cell["metadata"].get("tags", [])]
    except (ValueError, LookupError, TypeError):
        return []


def defaults(section: str) -> dict[str, Any]:
    return {name: value for name, (_, value) in declared(section).items()}


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
    for name, entry in profiles.items():
        _check_profile_entry(name, entry or {}, path)
    return profiles[profile] or {}


def _set_overrides(section: str, set_name: str) -> dict[str, Any]:
    path = paths.PARAMS / section / f"{set_name}.yaml"
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


def _check_profile_entry(profile: str, entry: Any, path: Path) -> None:
    places = {place for section in sections() for place in (section, *(f"{section}/{name}" for name in sets(section)))}
    names = places | {name for section in sections() for name in defaults(section)}
    if not isinstance(entry, dict):
        raise ParameterError(f"{paths.shown(path)}: {profile} must be a mapping of names to values")
    for name, value in _without_identity(entry, path).items():
        if name not in names:
            raise ParameterError(f"{paths.shown(path)}: no notebook declares {name!r}{nearest(name, names)}")
        if name in places and not isinstance(value or {}, dict):
            raise ParameterError(f"{paths.shown(path)}: {profile}, {name}: must be a mapping of names to values")
        if name in places:
            validate(name.partition("/")[0], _without_identity(value or {}, path), path)


def _assignment(node: ast.stmt, path: Path) -> tuple[str, tuple[Any, Any]]:
    target = node.targets[0] if isinstance(node, ast.Assign) else getattr(node, "target", None)
    if not isinstance(node, ast.Assign | ast.AnnAssign) or not isinstance(target, ast.Name) or node.value is None:
        raise ParameterError(
            f"{paths.shown(path)}: the parameters cell may only hold 'name: type = value', not {ast.unparse(node)!r}"
        )
    try:
        value = ast.literal_eval(node.value)
    except ValueError:
        raise ParameterError(f"{paths.shown(path)}: {target.id} = {ast.unparse(node.value)} is not a literal") from None
    if isinstance(node, ast.Assign):
        return target.id, (_inferred(value), value)
    try:
        declared_type = eval(ast.unparse(node.annotation), {"__builtins__": {}}, _TYPES)
    except (NameError, TypeError):
        wrong = ast.unparse(node.annotation)
        raise ParameterError(f"{paths.shown(path)}: {target.id} has the unknown type {wrong!r}") from None
    return target.id, (declared_type, _checked(target.id, declared_type, value, paths.shown(path)))


def _inferred(value: Any) -> Any:
    if isinstance(value, list) and value and len({type(item) for item in value}) == 1:
        return list[type(value[0])]
    return Any if isinstance(value, NoneType) else type(value)


def _checked(name: str, declared_type: Any, value: Any, file: str) -> Any:
    try:
        value = TypeAdapter(declared_type).validate_python(value, strict=True)
    except ValidationError as error:
        culprit = error.errors()[0]["input"]
        hint = ""
        if isinstance(culprit, str) and _is_number(culprit):
            hint = f": {culprit!r} is a string (YAML reads 1e-3 as text: write 1.0e-3, without quotes)"
        wanted = declared_type.__name__ if type(declared_type) is type else declared_type
        raise ParameterError(f"{file}: {name} = {value!r} is not {wanted}{hint}") from None
    _in_range(name, value, file)
    return value


def _in_range(name: str, value: Any, file: str) -> None:
    """A parameter that stands for a field of the spec must be a value that field can take."""
    if isinstance(value, list) and (not value or len({str(item) for item in value}) < len(value)):
        raise ParameterError(f"{file}: {name} = {value!r} must have at least one entry, and none twice")
    field = RunSpec.model_fields.get(_STANDS_FOR.get(name, name))
    if field is None or value is None:
        return
    adapter = TypeAdapter(Annotated[field.annotation, *field.metadata] if field.metadata else field.annotation)
    for item in value if isinstance(value, list) else [value]:
        try:
            adapter.validate_python(item, strict=True)
        except ValidationError as error:
            raise ParameterError(f"{file}: {name} = {item!r}: {error.errors()[0]['msg'].lower()}") from None


def _is_number(text: str) -> bool:
    try:
        float(text)
    except ValueError:
        return False
    return True


def _mapping(path: Path) -> dict[str, Any]:
    content = (yamlfile.load(path) if path.exists() else None) or {}
    if not isinstance(content, dict):
        raise ParameterError(f"{paths.shown(path)}: must be a mapping of names to values")
    return content
