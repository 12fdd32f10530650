"""Credit rules: a method only says *which vector drives each block, and the embed*.

To add one: put a file here with a class of the `Rule` interface that says its name; label, colour, marker and formula
are good to have. `catalogue` finds it; nothing else has to be told. Most rules need no more than this module exports.
"""

import importlib
import importlib.util
from collections.abc import Iterator, Mapping
from types import ModuleType

from creditaudit.engine import catalogue
from creditaudit.engine.credit.readout import onehot
from creditaudit.engine.credit.rule import Rule
from creditaudit.engine.network import Credit, output_gradient
from creditaudit.engine.pictures import CLASSES

__all__ = ["CLASSES", "RULES", "Credit", "Rule", "onehot", "output_gradient"]


class _Rules(Mapping[str, type[Rule]]):
    """name -> class, imported when it is asked for: a rule that cannot be imported stops no other."""

    def __init__(self) -> None:
        self.modules: dict[tuple[str, str | None], ModuleType] = {}

    def __getitem__(self, name: str) -> type[Rule]:
        entry, code = catalogue.entries()[name], catalogue.digest(name)
        place = str(entry.path), code
        if place not in self.modules:
            self.modules[place] = _imported(entry, code)
        return getattr(self.modules[place], entry.cls)

    def __iter__(self) -> Iterator[str]:
        return iter(catalogue.entries())

    def __len__(self) -> int:
        return len(catalogue.entries())


def _imported(entry: catalogue.Entry, code: str | None) -> ModuleType:
    try:
        if code is None:
            return importlib.import_module(f"{__name__}.{entry.module}")
        spec = importlib.util.spec_from_file_location(f"{__name__}.{entry.module}", entry.path)
        module = importlib.util.module_from_spec(spec)
        spec.loader.exec_module(module)
    except Exception as error:
        raise catalogue.RuleError(f"{entry.path.name} cannot be imported ({type(error).__name__}: {error})") from error
    return module


RULES = _Rules()
