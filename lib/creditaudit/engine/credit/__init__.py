"""Credit rules: a method only says *which vector drives each block, and the embed*.

To add one: put a file here with a class of the `Rule` interface that says its name; label, colour, marker and formula
are good to have. `catalogue` finds it; nothing else has to be told. Most rules need no more than this module exports.
"""

import importlib
import importlib.util
from collections.abc import Iterator
from functools import cache
from pathlib import Path
from types import ModuleType

from creditaudit.engine import catalogue
from creditaudit.engine.credit.readout import onehot
from creditaudit.engine.credit.rule import Rule
from creditaudit.engine.network import Credit, output_gradient
from creditaudit.engine.pictures import CLASSES

__all__ = ["CLASSES", "RULES", "Credit", "Rule", "onehot", "output_gradient"]


class _Rules:
    """name -> class, imported when it is asked for: a rule that cannot be imported stops no other."""

    def __getitem__(self, name: str) -> type[Rule]:
        entry = catalogue.entries()[name]
        return getattr(_imported(entry.path, catalogue.digest(name)), entry.cls)

    def __iter__(self) -> Iterator[str]:
        return iter(catalogue.entries())


@cache
def _imported(path: Path, code: str | None) -> ModuleType:
    """Once for every version of a rule's code; the study's are modules of this package."""
    try:
        if code is None:
            return importlib.import_module(f"{__name__}.{path.stem}")
        spec = importlib.util.spec_from_file_location(f"{__name__}.{path.stem}", path)
        module = importlib.util.module_from_spec(spec)
        spec.loader.exec_module(module)
    except Exception as error:
        raise catalogue.RuleError(f"{path.name} cannot be imported ({type(error).__name__}: {error})") from error
    return module


RULES = _Rules()
