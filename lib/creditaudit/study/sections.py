"""Which runs a section needs. Its notebook says so itself, in the cell tagged `runs`:

    from creditaudit.study import RunSpec

    specs = [RunSpec(method=m, k=k, seed=s, width=width) for s in seeds for k in range(depth + 1) for m in methods]

The cell sees the notebook's parameters and what it imports, nothing else, so `make train` runs it without a kernel.
Runs that two sections share are equal specs, hence computed once (k = L of the ladder *is* the audit's run).
"""

from collections.abc import Mapping
from typing import Any

from creditaudit.engine.spec import RunSpec, SpecError
from creditaudit.study import params


def runs_of(section: str, parameters: Mapping[str, Any]) -> list[RunSpec]:
    """The runs of one section, each once; none where it trains nothing."""
    cell = params.runs_cell(section)
    if cell is None:
        return []
    names, where = dict(parameters), f"notebooks/{section}.ipynb, the cell tagged 'runs'"
    try:
        exec(compile(cell, where, "exec"), names)
        specs = list(dict.fromkeys(names["specs"]))
    except SpecError as error:
        raise SpecError(f"{error} ({_origin(section, parameters)})") from None
    except Exception as error:
        told = f"{where}: {type(error).__name__}: {error}"
        raise params.ParameterError(f"{told} ({_origin(section, parameters)})") from None
    if not all(isinstance(spec, RunSpec) for spec in specs):
        raise params.ParameterError(f"{where}: specs must be a list of RunSpec")
    return specs


def _origin(section: str, parameters: Mapping[str, Any]) -> str:
    """Where a value that the runs cannot do with may stand."""
    set_file = f"params/{section}/{parameters.get('set_name', params.DEFAULT_SET)}.yaml"
    return f"its values come from the notebook's first cell, {set_file} and params/profiles.yaml"


def training() -> list[str]:
    """The sections that train."""
    return [section for section in params.sections() if params.runs_cell(section)]
