"""Your own credit rule: from a class in a notebook cell to its ladder, its audit and its row beside the six.

    bench = Workbench(DRTP, epochs=4)      the class is checked, and its code remembered
    bench.checks                           what every rule is asked
    bench.ladder(), bench.audit()          its runs, trained where they have no record of this code
    bench.beside()                         one row per rule, all at the same budget, from the same seeds
    bench.save()                           into the rules' folder: from now on it takes part in every section

Runs go to outputs/interactive. Another version of the class is another code, and its runs are trained again.
"""

import os
import re
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import pandas as pd

from creditaudit import paths
from creditaudit.engine import catalogue
from creditaudit.engine.catalogue import RuleError
from creditaudit.engine.credit import RULES, Rule
from creditaudit.engine.spec import RunSpec, SpecError
from creditaudit.lab import rulefile
from creditaudit.measure import rulecheck
from creditaudit.runs.files import write_atomically
from creditaudit.runs.records import Store
from creditaudit.show import training
from creditaudit.study import Runs, frames, metrics

STORES = (paths.INTERACTIVE, "quick", "paper")  # where runs of the same spec may lie
AUDIT = {  # column -> metric
    "accuracy": "test_accuracy",
    "growth": "growth",
    "cosine": "gamma",
    "null": "fresh_null",
    "ceiling": "ceiling_deep",
    "rho": "rho",
    "nudge": "nudge",
}


class Workbench:
    """One rule, one budget."""

    def __init__(
        self,
        rule: type[Rule] | str,
        width: int = 256,
        depth: int = 4,
        epochs: int = 4,
        seeds: Sequence[int] = (42,),
        **fields: Any,
    ) -> None:
        if not isinstance(seeds, Sequence) or isinstance(seeds, str) or not seeds:
            raise SpecError(f"seeds = {seeds!r}: pass a list of at least one, seeds=[42]")
        self.method = rule if isinstance(rule, str) else _adopt(rule)
        self.shape = {"width": width, "depth": depth, "epochs": epochs, **fields}
        self.seeds = list(seeds)
        self.spec = RunSpec(method=self.method, seed=self.seeds[0], **self.shape)  # refuses what is wrong, at once
        self.found = rulecheck.check(self.method)
        if (last := self.found[-1]).fatal and not last.passed:
            raise RuleError(f"{self.method}: the check {last.name!r} fails: {last.note}")

    @property
    def checks(self) -> pd.DataFrame:
        rows = [(check.name, "passes" if check.passed else "**fails**", check.note) for check in self.found]
        return pd.DataFrame(rows, columns=["check", "result", "what was seen"])

    def ladder(self, train: bool = False) -> Runs:
        """The rule at every rung k = 0 .. L; `train=True` starts without asking, however long it takes."""
        rungs = range(self.shape["depth"] + 1)
        return self._runs([self.spec.but(k=k, seed=seed) for seed in self.seeds for k in rungs], train)

    def audit(self, train: bool = False) -> pd.DataFrame:
        """One row per seed: D1-D3, cosine with its null and ceiling, rho, nudging."""
        return _audited(self._runs(self._pair(self.method), train))

    def layers(self, train: bool = False) -> pd.DataFrame:
        """The same by layer, tidy: cosine, ceiling, rho and nudge of every block."""
        trained = [spec for spec in self._pair(self.method) if spec.k]
        columns = {"cosine": "gamma_in", "ceiling": "gamma_ceiling", "rho": "rho_in", "nudge": ("nudge_in", "0.01")}
        return self._runs(trained, train).by_layer(**columns)

    def beside(self, methods: Sequence[str] = catalogue.STUDY, train: bool = False) -> pd.DataFrame:
        """One row per rule and seed, this one last, each with its own frozen twin."""
        asked = [spec for method in dict.fromkeys([*methods, self.method]) for spec in self._pair(method)]
        return _audited(self._runs(asked, train))

    def save(self) -> Path:
        """Put the rule's file into the rules' folder, for every section and every command."""
        here, there = catalogue.entries()[self.method].path, catalogue.FOLDER / f"{self.method}.py"
        if here != there:
            write_atomically(there, here.read_text())
            here.unlink()
            catalogue.refresh()
        return there

    def _pair(self, method: str) -> list[RunSpec]:
        """Trained and frozen, of every seed."""
        whole = [RunSpec(method=method, seed=seed, **self.shape) for seed in self.seeds]
        return [spec for trained in whole for spec in (trained, trained.frozen())]

    def _runs(self, specs: list[RunSpec], train: bool) -> Runs:
        stores = [Store(paths.profile_dir(name)) for name in STORES]
        missing = specs
        for store in stores:
            missing = store.missing(missing)
        training.train(missing, confirmed=train)
        return frames.gather(specs, stores, paths.INTERACTIVE, self.method)


def _adopt(rule: type[Rule]) -> str:
    """Put the class's code where worker processes find it, and have the catalogue know it."""
    name = vars(rule).get("name") if isinstance(rule, type) and issubclass(rule, Rule) else None
    if name is None:
        raise RuleError(f"{rule!r} is no credit rule: derive the class from Rule and give it a name")
    if not isinstance(name, str) or not re.fullmatch(r"[a-z][a-z0-9_]*", name) or name in catalogue.STUDY:
        raise RuleError(f"name = {name!r}: small letters, digits and _, and none of {', '.join(catalogue.STUDY)}")
    folder = paths.profile_dir(paths.INTERACTIVE) / "rules"
    known = os.environ.get(catalogue.VARIABLE, "").split(os.pathsep)
    write_atomically(folder / f"{name}.py", rulefile.text(rule))
    os.environ[catalogue.VARIABLE] = os.pathsep.join(dict.fromkeys(filter(None, [*known, str(folder)])))
    catalogue.refresh()
    try:
        RULES[name]
    except RuleError:
        (folder / f"{name}.py").unlink()
        catalogue.refresh()
        raise
    return name


def _audited(runs: Runs) -> pd.DataFrame:
    """One row per trained run, beside its frozen twin."""
    rows = []
    for record in (record for record in runs.records if record.spec.k):
        twin = runs.frozen_twin(record)
        gain = metrics.gain(record, twin)
        row = {"rule": catalogue.label(record.spec.method), "seed": record.spec.seed}
        row |= {column: metrics.read(metric, record) for column, metric in AUDIT.items()}
        row |= {"gain (pp)": None if gain is None else 100 * gain, r"$\lVert g_L \rVert$": record.final["g_norm"][-1]}
        rows.append(row | {"verdict": metrics.verdict(record, twin)})
    return pd.DataFrame(rows)
