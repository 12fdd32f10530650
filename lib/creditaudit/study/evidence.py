"""The records of a profile as evidence: one number per seed for every quantity a claim names."""

from collections import defaultdict
from collections.abc import Collection, Iterable
from copy import copy
from typing import Any

from creditaudit.engine.spec import VARIANTS, RunSpec
from creditaudit.runs import identity_rows
from creditaudit.runs.records import Record, Store
from creditaudit.study.claimspec import Quantity, Setting, depth_of
from creditaudit.study.metrics import METRICS, read, scaled
from creditaudit.study.verdicts import Cause, Reason

ASKED = {"normalise", "penalty", *VARIANTS}  # of a run, as a quantity names it
RUN_FIELDS = ASKED | {"method", "width", "depth", "k", "epochs", "seed"}


class Undecidable(Exception):
    """The records cannot speak to a claim."""

    def __init__(self, cause: Cause, text: str) -> None:
        super().__init__(text)
        self.reason = Reason(cause, text)


class Evidence:
    """The records of a profile, by what the study varies; runs that change anything else are no evidence."""

    def __init__(self, store: Store, profile: str, records: Iterable[Record] | None = None) -> None:
        """All records of the store, or only those given."""
        self.profile = profile
        self.runs: dict[RunSpec, dict[int, Record]] = defaultdict(dict)  # by spec, whatever its seed
        for record in store.all() if records is None else records:
            if set(record.spec.departures()) <= RUN_FIELDS:
                self.runs[record.spec.but(seed=0)][record.spec.seed] = record
        self.identity = identity_rows.read(store.folder.parent)
        self.read: dict[str, Record] = {}  # what `value` was asked of, by key

    def afresh(self) -> "Evidence":
        """The same, of which nothing has been read."""
        fresh = copy(self)
        fresh.read = {}
        return fresh

    def of_seeds(self, wanted: Collection[int]) -> "Evidence":
        """The same with the runs of these seeds alone."""
        fewer = copy(self)
        fewer.runs = {
            run: {seed: each for seed, each in seeds.items() if seed in wanted} for run, seeds in self.runs.items()
        }
        return fewer

    def seeds(self, quantity: Quantity, setting: Setting, epochs: int) -> dict[int, Record]:
        asked = quantity.model_dump(include=ASKED) | {"width": setting.width, "depth": quantity.depth or setting.depth}
        k = None if quantity.k == "L" else quantity.k
        return self.runs.get(RunSpec(method=quantity.method, k=k, epochs=epochs, seed=0, **asked), {})

    def shared(self, asked: list[Quantity], setting: Setting, epochs: int | None = None) -> list[int]:
        """Seeds for which every quantity has its run, at the study's epochs or at the given number."""
        sets = [set(self.seeds(q, setting, epochs or q.epochs or setting.epochs)) for q in asked]
        return sorted(set.intersection(*sets))

    def budgets(self) -> list[int]:
        return sorted({spec.epochs for spec in self.runs}, reverse=True)

    def value(self, quantity: Quantity, setting: Setting, seed: int, epochs: int | None = None) -> Any:
        """One quantity of one seed, on the scale on which it is compared."""
        record = self.seeds(quantity, setting, epochs or quantity.epochs or setting.epochs)[seed]
        self.read[record.spec.key] = record
        layer = None if quantity.layer is None else depth_of(quantity.layer, setting)
        value = scaled(METRICS[quantity.metric], read(quantity.metric, record, layer))
        if value is None:
            raise Undecidable("undefined", f"{quantity.metric} is undefined in {record.spec.key}")
        return value


def natural(value: float, quantity: Quantity) -> float:
    return 10.0 ** float(value) if quantity.log else float(value)
