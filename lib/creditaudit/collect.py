"""From specs to the numbers a section shows: which runs are there, as tidy frames, and where they came from.

    runs = collect(protocol.depth_ladder(methods, seeds, width=256), "paper", section="depth_ladder")
    runs.frame(accuracy="test_accuracy", h_last=("h_norm", "L"))        one row per run
    runs.by_epoch(accuracy="test_accuracy", h_last=("h_norm", "L"))     one row per run and epoch
    runs.by_layer(gamma="gamma_in", nudge=("nudge_in", "0.01"))         one row per run and layer

Under the notebook runner (`CREDITAUDIT_RUNNER` is set) what is missing is only named. In Jupyter, a section of
which no run exists at all is trained first, for `train_epochs` epochs a run, into outputs/interactive.
"""

import re
from collections import Counter
from collections.abc import Iterable, Sequence
from dataclasses import dataclass, replace
from typing import Any

import pandas as pd

from creditaudit import fetch, metrics, params, paths, style, sweep
from creditaudit.records import Record, Store
from creditaudit.spec import RunSpec
from creditaudit.yamlfile import nearest

COLUMNS = ("method", "width", "depth", "k", "penalty", "epochs", "seed")
NAMED = 6  # missing runs, or commits, that are listed one by one
Source = str | tuple[str, Any]


@dataclass(frozen=True)
class Runs:
    """The runs a section asked for: those that have a record, and those that do not."""

    specs: list[RunSpec]
    records: list[Record]
    profile: str
    section: str = ""
    set_name: str = ""

    @property
    def missing(self) -> list[RunSpec]:
        there = {record.spec for record in self.records}
        return [spec for spec in self.specs if spec not in there]

    @property
    def seeds(self) -> list[int]:
        return sorted({record.spec.seed for record in self.records})

    def only(self, **fields: Any) -> "Runs":
        """The runs whose spec has these values; a list means any of them."""
        wanted = {name: value if isinstance(value, list) else [value] for name, value in fields.items()}

        def matches(spec: RunSpec) -> bool:
            return all(getattr(spec, name) in values for name, values in wanted.items())

        specs = [spec for spec in self.specs if matches(spec)]
        return replace(self, specs=specs, records=[record for record in self.records if matches(record.spec)])

    def frozen_twin(self, record: Record) -> Record | None:
        """The k = 0 run of the same method, shape, epochs and seed: what D3 subtracts."""
        twin = record.spec.frozen()
        return next((other for other in self.records if other.spec == twin), None)

    def frame(self, **columns: Source) -> pd.DataFrame:
        """One row per run. A column is a metric's name, or (name, layer) where it needs one; "L" is the last."""
        columns = columns or {"accuracy": "test_accuracy"}
        rows = [
            _labels(record) | {name: _metric(record, source) for name, source in columns.items()}
            for record in self.records
        ]
        return _tidy(rows, COLUMNS, columns)

    def by_epoch(self, **columns: Source) -> pd.DataFrame:
        """One row per run and epoch (from 1). A column is a trajectory, or (trajectory, layer)."""
        rows = []
        for record in self.records:
            series = {name: _trajectory(record, source) for name, source in columns.items()}
            for epoch in range(record.spec.epochs):
                values = {name: numbers[epoch] for name, numbers in series.items() if numbers}
                rows.append(_labels(record) | {"epoch": epoch + 1} | values)
        return _tidy(rows, (*COLUMNS, "epoch"), columns)

    def by_layer(self, **columns: Source) -> pd.DataFrame:
        """One row per run and layer. A column is a list in `final`, or (name, key) of a dict of lists."""
        rows = []
        for record in self.records:
            lists = {name: _final_list(record, source) for name, source in columns.items()}
            for layer in range(max((len(numbers) for numbers in lists.values()), default=0)):
                values = {name: numbers[layer] for name, numbers in lists.items() if layer < len(numbers)}
                rows.append(_labels(record) | {"layer": layer} | values)
        return _tidy(rows, (*COLUMNS, "layer"), columns)

    def coverage(self) -> str:
        """One sentence: how many runs there are, which are missing, and how to get them."""
        if self.profile == paths.INTERACTIVE:
            budgets = " or ".join(str(epochs) for epochs in sorted({spec.epochs for spec in self.specs}))
            return (
                f"None of these runs has a record, so each of the {len(self.specs)} was trained here for "
                f"{budgets} epoch{'' if budgets == '1' else 's'}: this shows that things run, and no finding."
            )
        nothing = " They are tiny networks on a few hundred pictures: this checks the machinery and proves nothing."
        warning = nothing if any(spec.data == "tiny" for spec in self.specs) else ""
        if not self.missing:
            return f"All {len(self.specs)} runs, of {self._methods()}, are there.{warning}"
        one_by_one = ", ".join(_short(spec) for spec in self.missing)
        lost = one_by_one if len(self.missing) <= NAMED else kinds(self.missing)
        there = f"{len(self.records)} of {len(self.specs)} runs, of {self._methods()}, are there; missing: {lost}."
        if paths.at_play():  # the cell's parameters may be nobody's but this notebook's
            return f"{there}{warning}"
        return f"{there} `{resume_command(self.profile, self.section, self.set_name)}` trains what is left.{warning}"

    def _methods(self) -> str:
        return ", ".join(style.name(method) for method in style.in_order(spec.method for spec in self.specs))

    def provenance_note(self) -> str:
        """The footer of a section, as markdown."""
        place = f"Set `{self.set_name}`, profile `{self.profile}`" if self.set_name else f"Profile `{self.profile}`"
        if not self.records:
            return f"{place}: no records yet."
        seeds = f"seed{'s' * (len(self.seeds) > 1)} {', '.join(map(str, self.seeds))}"
        return (
            f"{place}: {len(self.records)} of {len(self.specs)} runs, {seeds}, trained at "
            f"{_commits(self.records)} on {_machines(self.records)}; {core_hours(self.records)}."
        )


def collect(
    specs: Sequence[RunSpec], profile: str, section: str = "", set_name: str = "", train_epochs: int = 1
) -> Runs:
    """The records of these runs; see the module's docstring for what happens when there are none."""
    wanted = list(dict.fromkeys(specs))
    _check_names(wanted, profile, section, set_name)
    store = Store(paths.profile_dir(profile))
    if wanted and len(store.missing(wanted)) == len(wanted) and paths.at_play():
        wanted = list(dict.fromkeys(spec.but(epochs=min(spec.epochs, train_epochs)) for spec in wanted))
        store, profile = Store(paths.profile_dir(paths.INTERACTIVE)), paths.INTERACTIVE
        if any(spec.data == "cifar10" for spec in store.missing(wanted)):
            fetch.cifar10()
        sweep.train_all(wanted, store)
    records = [record for spec in wanted if (record := store.get(spec)) is not None]
    return Runs(wanted, records, profile, section, set_name)


def _check_names(specs: Sequence[RunSpec], profile: str, section: str, set_name: str) -> None:
    """A person's first cell has not been checked by anybody yet."""
    if profile != paths.INTERACTIVE:
        params.profile_entry(profile)
    if section and set_name and set_name not in (known := params.sets(section)):
        raise params.ParameterError(f"set_name: {section} has no set {set_name!r}{nearest(set_name, known)}")
    if not specs:
        raise params.ParameterError("methods and seeds: at least one of each is needed")


def resume_command(profile: str, section: str = "", set_name: str = "") -> str:
    place = (f" SECTION={section}" if section else "") + (f" SET={set_name}" if set_name else "")
    return f"make train PROFILE={profile}{place}"


def _labels(record: Record) -> dict[str, Any]:
    return {name: getattr(record.spec, name) for name in COLUMNS}


def _tidy(rows: list[dict], first: Sequence[str], columns: dict[str, Source]) -> pd.DataFrame:
    return pd.DataFrame(rows, columns=[*first, *columns])


def _metric(record: Record, source: Source) -> Any:
    name, layer = (source, None) if isinstance(source, str) else source
    return metrics.read(name, record, record.spec.depth if layer == "L" else layer)


def _trajectory(record: Record, source: Source) -> list:
    name, layer = (source, None) if isinstance(source, str) else source
    values = record.epochs.get(name, [])
    return values if layer is None else [row[record.spec.depth if layer == "L" else layer] for row in values]


def _final_list(record: Record, source: Source) -> list:
    name, key = (source, None) if isinstance(source, str) else source
    value = record.final.get(name)
    return (value if key is None else (value or {}).get(key)) or []


def kinds(specs: Iterable[RunSpec]) -> str:
    """2 BP frozen, 1 State Bridge at d=512, L=12: runs that are too many to be listed one by one."""
    counts = Counter((style.name(spec.method), spec.k == 0, f"$d={spec.width}$, $L={spec.depth}$") for spec in specs)
    shapes: dict[str, list[str]] = {}
    for (name, still, shape), count in sorted(counts.items()):
        shapes.setdefault(shape, []).append(f"{count} {name}{' frozen' * still}")
    return "; ".join(f"{', '.join(found)} at {shape}" for shape, found in shapes.items())


def _short(spec: RunSpec) -> str:
    penalty = f" λ={spec.penalty:g}" if spec.penalty else ""
    return f"{style.name(spec.method)} k={spec.k}{penalty} seed {spec.seed}"


def _commits(records: list[Record]) -> str:
    """Every commit once, or how many; one dirty record marks its commit."""
    marks: dict[str, bool] = {}
    for maker in _makers(records):
        mark = maker["commit"][:10]
        marks[mark] = marks.get(mark, False) or maker.get("dirty", False)
    if len(marks) > NAMED:
        changed = sum(marks.values())
        return f"{len(marks)} commits (the records name them{f'; {changed} with local changes' if changed else ''})"
    return "commit " + ", ".join(
        f"`{mark}`{' (with local changes)' if dirty else ''}" for mark, dirty in sorted(marks.items())
    )


def _machines(records: list[Record]) -> str:
    def describe(origin: dict[str, Any]) -> str:
        threads = f"{origin.get('threads', 1)} thread{'s' if origin.get('threads', 1) != 1 else ''}"
        parts = [
            origin.get("device", "cpu"),
            cpu_name(origin.get("cpu", "")),
            threads,
            f"torch {origin.get('torch', '?')}",
        ]
        return ", ".join(filter(None, parts))

    return "; ".join(sorted({describe(maker) for maker in _makers(records)}))


def cpu_name(cpu: str) -> str:
    """The kind of CPU without its trade marks and clock."""
    return re.sub(r"\((R|TM)\)|@.*?(?=\(|$)", "", cpu).strip()


def core_hours(records: Sequence[Record]) -> str:
    """27 core-hours; of each kind of CPU apart, where there are several, since an hour is not worth the same on all."""
    seconds: Counter[str] = Counter()
    for record in records:
        seconds[cpu_name(record.provenance.get("cpu", ""))] += record.provenance.get("cpu_seconds", 0.0)
    if len(seconds) < 2:
        return f"{seconds.total() / 3600:.3g} core-hours"
    parts = [f"{spent / 3600:.3g} core-hours on {cpu}" for cpu, spent in seconds.most_common()]
    return f"{', '.join(parts[:-1])} and {parts[-1]}"


def _makers(records: list[Record]) -> list[dict[str, Any]]:
    """Where the runs were trained: to their end, and before an interruption."""
    return [maker for record in records for maker in (record.provenance, *record.provenance.get("resumed_from", []))]
