"""A setting that somebody tried, as a parameter set of a section: params/<section>/<name>.yaml."""

from collections.abc import Sequence
from pathlib import Path
from typing import Any

import yaml

from creditaudit import paths
from creditaudit.engine.spec import RunSpec
from creditaudit.runs.files import write_atomically
from creditaudit.study import params, sections
from creditaudit.study.params import ParameterError

HOLDS = {  # parameter -> what it says of a run
    "methods": "method",
    "method": "method",
    "seeds": "seed",
    "width": "width",
    "depth": "depth",
    "epochs": "epochs",
    "data": "data",
    "normalisations": "normalisation",
    "rescue": "penalty",
}


def write(section: str, name: str, specs: Sequence[RunSpec]) -> tuple[Path, list[str]]:
    """Write the set; returns its path and what of the setting the section has no parameter for."""
    path, known = paths.PARAMS / section / f"{paths.file_name(name, 'set')}.yaml", params.declared(section)
    if section not in sections.training():
        raise ParameterError(f"{section} trains nothing: choose one of {', '.join(sections.training())}")
    if path.exists():
        raise ParameterError(f"{paths.shown(path)} is there already: choose another name, or delete it")
    values = {parameter: _value(parameter, field, specs, known[parameter]) for parameter, field in HOLDS.items()
              if parameter in known}  # fmt: skip
    if values.get("rescue") == 0.0:
        values.pop("rescue")
    values = params.validate(section, {n: v for n, v in values.items() if v != known[n][1]}, path)
    asked = sections.runs_of(section, params.defaults(section) | values)
    text = yaml.safe_dump(values, sort_keys=False, default_flow_style=None) if values else ""
    write_atomically(path, f"# A setting saved from the playground.\n{text}")
    return path, _left_out(specs, asked)


def _value(parameter: str, field: str, specs: Sequence[RunSpec], declared: tuple[Any, Any]) -> Any:
    values = list(dict.fromkeys(getattr(spec, field) for spec in specs))
    if isinstance(declared[1], list):
        return values
    if len(values) > 1:
        raise ParameterError(f"{parameter}: a set has one, these settings have {' and '.join(map(str, values))}")
    return values[0]


def _left_out(specs: Sequence[RunSpec], asked: Sequence[RunSpec]) -> list[str]:
    """The fields in which runs that the set does not ask for differ from the nearest that it does."""
    left: set[str] = set()
    for spec in set(specs) - set(asked):
        differences = [{name for name, value in other if value != getattr(spec, name)} for other in asked]
        left |= min(differences, key=len, default=set())
    return sorted(left)
