"""The records of a profile as evidence: one number per seed for every quantity a claim or an explanation names."""

from collections import defaultdict
from typing import Any

from creditaudit import identity_rows
from creditaudit.claimspec import Quantity, Setting, depth_of
from creditaudit.metrics import METRICS, read, scaled
from creditaudit.records import Record, Store
from creditaudit.verdicts import Cause, Reason

RUN_FIELDS = {"method", "width", "depth", "k", "penalty", "epochs", "seed"}


class Undecidable(Exception):
    """The records cannot speak to a claim."""

    def __init__(self, cause: Cause, text: str) -> None:
        super().__init__(text)
        self.reason = Reason(cause, text)


class Evidence:
    """The records of a profile, by what the study varies; runs that change anything else are no evidence."""

    def __init__(self, store: Store, profile: str) -> None:
        self.profile = profile
        self.runs: dict[tuple, dict[int, Record]] = defaultdict(dict)
        for record in store.all():
            spec = record.spec
            if set(spec.departures()) <= RUN_FIELDS:
                run = (spec.method, spec.width, spec.depth, spec.k, spec.penalty, spec.epochs)
                self.runs[run][spec.seed] = record
        self.identity = identity_rows.read(store.folder.parent)

    def seeds(self, quantity: Quantity, setting: Setting, epochs: int) -> dict[int, Record]:
        k = depth_of(quantity.k, setting)
        return self.runs.get((quantity.method, setting.width, setting.depth, k, quantity.penalty, epochs), {})

    def shared(self, asked: list[Quantity], setting: Setting, epochs: int | None = None) -> list[int]:
        """Seeds for which every quantity has its run, at the study's epochs or at the given number."""
        sets = [set(self.seeds(q, setting, epochs or q.epochs or setting.epochs)) for q in asked]
        return sorted(set.intersection(*sets))

    def budgets(self) -> list[int]:
        return sorted({epochs for *_, epochs in self.runs}, reverse=True)

    def value(self, quantity: Quantity, setting: Setting, seed: int, epochs: int | None = None) -> Any:
        """One quantity of one seed, on the scale on which it is compared."""
        record = self.seeds(quantity, setting, epochs or quantity.epochs or setting.epochs)[seed]
        layer = None if quantity.layer is None else depth_of(quantity.layer, setting)
        value = scaled(METRICS[quantity.metric], read(quantity.metric, record, layer))
        if value is None:
            raise Undecidable("undefined", f"{quantity.metric} is undefined in {record.spec.key}")
        return value


def natural(value: float, quantity: Quantity) -> float:
    return 10.0 ** float(value) if quantity.log else float(value)
