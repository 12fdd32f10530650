"""From specs to the numbers a section shows: which runs are there, as tidy frames, and where they came from.

    runs = load("depth_ladder", "paper", "d256_L4", specs)
    runs.frame                                                          one row per run
    runs.by_epoch(accuracy="test_accuracy", h_last=("h_norm", "L"))     one row per run and epoch
    runs.by_layer(gamma="gamma_in", nudge=("nudge_in", "0.01"))         one row per run and layer

Under the notebook runner (`CREDITAUDIT_RUNNER` is set) what is missing is only named. Elsewhere `show.start` has left a
`trainer` here, and the runs that have no record are trained by it, into outputs/interactive.
"""

from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass, replace
from functools import cached_property
from typing import Any

import pandas as pd
from jinja2 import Template

from creditaudit import paths
from creditaudit.engine.settings import departures
from creditaudit.engine.spec import VARIANTS, RunSpec, own_normalisation
from creditaudit.measure import rules
from creditaudit.runs.records import Record, Store
from creditaudit.runs.yamlfile import nearest
from creditaudit.study import metrics, origin, params, sections
from creditaudit.study.sample import Sample

COLUMNS = ("method", "width", "depth", "k", "penalty", "epochs", "seed")
VARIED = {*COLUMNS, "normalise", *VARIANTS}  # in the study, its controls and our own sections
Source = str | tuple[str, Any]
COVERAGE = Template(
    "{{ runs.records | length }} of {{ runs.specs | length }} runs are there"
    "{% if runs.own %}, {{ runs.own | length }} of them trained here, in outputs/interactive{% endif %}"
    "{% if lost %}; missing: {{ lost }}{% endif %}."
    "{% if lost and not at_play %} `{{ runs.command }}` trains what is left.{% endif %}"
    "{% if tiny %} They are tiny networks on a few hundred pictures: this checks the machinery and proves nothing."
    "{% endif %}"
)
PROVENANCE = Template(
    "{% if runs.set_name %}Set `{{ runs.set_name }}`, profile{% else %}Profile{% endif %} `{{ runs.profile }}`: "
    "{{ runs.records | length }} of {{ runs.specs | length }} runs"
    "{% if runs.records %}; seeds: {{ runs.seeds | join(', ') }}; {{ hours }}; {{ torch }}; "
    "commits: {{ commits }}, named in the records{% if changed %}, {{ changed }} of them with local changes{% endif %}"
    "{% endif %}."
    "{% if gone %} Diverged (a loss or a norm overflowed): {{ gone }}.{% endif %}"
)
trainer: Callable[[Sequence[RunSpec]], None] | None = None  # trains runs; this room itself starts no training
SHORT = {"accuracy": ("test_accuracy", None), "h_last": ("h_norm", "L"), "g_last": ("g_norm", "L")}
SCALARS = [
    name
    for name, metric in metrics.METRICS.items()
    if metric.layer is None and metric.source == "run" and name not in ("test_accuracy", "g_norms")
]


@dataclass(frozen=True)
class Runs:
    """The runs a section asked for: those that have a record, and those that do not."""

    specs: list[RunSpec]
    records: list[Record]
    profile: str
    section: str = ""
    set_name: str = ""
    own: frozenset[RunSpec] = frozenset()  # those that a person trained, in outputs/interactive

    @property
    def missing(self) -> list[RunSpec]:
        there = {record.spec for record in self.records}
        return [spec for spec in self.specs if spec not in there]

    def of(self, metric: str, layer: int | str | None = None, **fields: Any) -> Sample:
        """One number per seed: `runs.of("accuracy", method="dfa", k=4)`.

        Unless said, k is the full depth, the penalty 0, the normalisation the rule's own, a block as wide as the
        stream. What is still ambiguous (two epoch budgets, say) is an error that names the field.
        """
        metric, layer = SHORT.get(metric, (metric, layer))
        how = metrics.METRICS[metric]
        values: dict[int, float | None] = {}
        found = self.matching(**fields)
        for record in found:
            if record.spec.seed in values:
                varied = {name for name in COLUMNS if len({getattr(r.spec, name) for r in found}) > 1}
                raise ValueError(f"{metric}: several runs a seed; say which {' or '.join(sorted(varied - {'seed'}))}")
            where = record.spec.depth if layer == "L" else layer
            value = metrics.read(metric, record, where)
            values[record.spec.seed] = value[where] if isinstance(value, list) else value
        return Sample(values, how.log, how.places, name=how.short, points=metric == "test_accuracy")

    def gain(self, method: str, k: int | None = None, **fields: Any) -> Sample:
        """D3's statistic in percentage points: training the last k blocks (all) against leaving them frozen."""
        trained = fields if k is None else fields | {"k": k}
        frozen = fields | {"k": 0, "penalty": 0.0}  # no trained block, nothing to penalise: one twin for every penalty
        return self.of("accuracy", method=method, **trained) - self.of("accuracy", method=method, **frozen)

    def change(self, metric: str, method: str, settings: dict[str, Any], **fields: Any) -> Sample:
        """What other settings of a rule change against its own, seed by seed; of a norm the factor."""
        other = self.of(metric, method=method, settings=settings, **fields)
        return other - self.of(metric, method=method, **fields)

    def diagnose(self, method: str, **fields: Any) -> dict[str, bool | None]:
        """D1, D2 and D3 over seeds, by the one statistical rule: passes, fails, or None where the seeds do not tell."""
        return {
            "D1": _finite(self.of("growth", method=method, **fields), Sample.below, rules.D1_LIMIT),
            "D2": _finite(self.of("g_last", method=method, **fields), Sample.above, rules.D2_FLOOR),
            "D3": self.gain(method, **fields).above(100 * rules.D3_GAIN),
        }

    def matching(self, **fields: Any) -> list[Record]:
        """The records behind `of`: what is not said is as there."""

        usual = {name: RunSpec.model_fields[name].default for name in VARIANTS}
        plain = {"penalty": 0.0} | usual | fields
        normalise, k, hidden, settings = (plain.pop(name, None) for name in ("normalise", "k", "hidden", "settings"))

        def matches(spec: RunSpec) -> bool:
            if any(getattr(spec, name) != value for name, value in plain.items()):
                return False
            inner, how = None if hidden == spec.width else hidden, normalise or own_normalisation(spec.method)
            named = spec.k == (spec.depth if k is None else k) and spec.hidden == inner and spec.normalisation == how
            return named and spec.settings == departures(spec.method, settings)

        methods = [fields["method"]] if "method" in fields else list(self._by_run)
        there = [pair for method in methods for pair in self._by_run.get(method, {}).items()]
        return [record for spec, records in there if matches(spec) for record in records]

    @cached_property
    def _by_run(self) -> dict[str, dict[RunSpec, list[Record]]]:
        """The records by method and by what is the same for all seeds."""
        found: dict[str, dict[RunSpec, list[Record]]] = {}
        for record in self.records:
            found.setdefault(record.spec.method, {}).setdefault(record.spec.but(seed=0), []).append(record)
        return found

    @cached_property
    def frame(self) -> pd.DataFrame:
        """One row per run: what was varied, and every metric that is one number."""
        rows = [
            _labels(record)
            | {"normalise": record.spec.normalisation, "hidden": record.spec.hidden or record.spec.width}
            | {name: metrics.read(source, record, record.spec.depth if layer else None)
               for name, (source, layer) in SHORT.items()}
            | {name: metrics.read(name, record) for name in SCALARS}
            for record in self.records
        ]  # fmt: skip
        numbers = [*SHORT, *SCALARS]
        columns = [*COLUMNS, "normalise", "hidden", *numbers]
        return pd.DataFrame(rows, columns=columns).astype(dict.fromkeys(numbers, float))

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

    def by_epoch(self, **columns: Source) -> pd.DataFrame:
        """One row per run and epoch (from 1). A column is a trajectory, or (trajectory, layer)."""
        rows = []
        for record in self.records:
            series = {name: _trajectory(record, source) for name, source in columns.items()}
            for epoch in range(record.spec.epochs):
                values = {name: numbers[epoch] for name, numbers in series.items() if numbers}
                rows.append(_labels(record) | {"epoch": epoch + 1} | values)
        return pd.DataFrame(rows, columns=[*COLUMNS, "epoch", *columns])

    def by_layer(self, **columns: Source) -> pd.DataFrame:
        """One row per run and layer. A column is a list in `final`, or (name, key) of a dict of lists."""
        rows = []
        for record in self.records:
            lists = {name: _final_list(record, source) for name, source in columns.items()}
            for layer in range(max((len(numbers) for numbers in lists.values()), default=0)):
                values = {name: numbers[layer] for name, numbers in lists.items() if layer < len(numbers)}
                rows.append(_labels(record) | {"layer": layer} | values)
        return pd.DataFrame(rows, columns=[*COLUMNS, "layer", *columns])

    @property
    def command(self) -> str:
        """Which trains what is missing."""
        named = {"PROFILE": self.profile, "SECTION": self.section, "SET": self.set_name}
        return " ".join(["make train", *(f"{name}={value}" for name, value in named.items() if value)])

    def coverage(self) -> str:
        """How many runs there are, which are missing, and how to get them."""
        lost, tiny = origin.kinds(self.missing), any(spec.data == "tiny" for spec in self.specs)
        return COVERAGE.render(runs=self, lost=lost, tiny=tiny, at_play=paths.at_play())

    def provenance_note(self) -> str:
        """The footer of a section, as markdown; runs that left the finite numbers are results, and named as such."""
        gone = origin.kinds(record.spec for record in self.records if record.diverged)
        return PROVENANCE.render(runs=self, gone=gone, **origin.makers(self.records))


def load(section: str, profile: str, set_name: str, specs: Sequence[RunSpec]) -> Runs:
    """The records of exactly these runs; see the module's docstring for what happens to those that have none."""
    wanted = list(dict.fromkeys(specs))
    _check_names(wanted, profile, section, set_name)
    stores = [Store(paths.profile_dir(profile))]
    if paths.at_play():  # a spec is all of a run: where it is the same, so are the numbers
        stores += [Store(paths.profile_dir(name)) for name in (paths.INTERACTIVE, "paper")]
    missing = wanted
    for store in stores:
        missing = store.missing(missing)
    if missing and trainer and paths.at_play():
        trainer(missing)
    return gather(wanted, stores, profile, section, set_name)


def gather(
    specs: Sequence[RunSpec], stores: Sequence[Store], profile: str, section: str = "", set_name: str = ""
) -> Runs:
    """The records of these runs, each from the first store that has it."""
    played, records, own = paths.profile_dir(paths.INTERACTIVE) / "runs", [], set()
    for spec in specs:
        for store in stores:
            if (record := store.get(spec)) is not None:
                records.append(record)
                own |= {spec} if store.folder == played else set()
                break
    return Runs(list(specs), records, profile, section, set_name, frozenset(own))


def _finite(sample: Sample, passes: Callable[[Sample, float], bool | None], line: float) -> bool | None:
    """A norm that overflowed has failed; where only some seeds did, the others must not be shown to pass."""
    finite = {seed: value for seed, value in sample.values.items() if value is not None}
    if len(finite) == sample.n:
        return passes(sample, line)
    return None if finite and passes(replace(sample, values=finite), line) else False


def _check_names(specs: Sequence[RunSpec], profile: str, section: str, set_name: str) -> None:
    """A person's first cell has not been checked by anybody yet."""
    if profile != paths.INTERACTIVE:
        params.profile_entry(profile)
    if section and set_name and set_name not in (known := params.sets(section)):
        raise params.ParameterError(f"set_name: {section} has no set {set_name!r}{nearest(set_name, known)}")
    if not specs:
        raise params.ParameterError("methods and seeds: at least one of each is needed")


def _labels(record: Record) -> dict[str, Any]:
    return {name: getattr(record.spec, name) for name in COLUMNS}


def _trajectory(record: Record, source: Source) -> list:
    name, layer = (source, None) if isinstance(source, str) else source
    values = record.epochs.get(name, [])
    return values if layer is None else [row[record.spec.depth if layer == "L" else layer] for row in values]


def _final_list(record: Record, source: Source) -> list:
    name, key = (source, None) if isinstance(source, str) else source
    value = record.final.get(name)
    return (value if key is None else (value or {}).get(key)) or []


def runs_of(section: str, set_name: str, profile: str) -> Runs:
    """The runs of another section, as its own notebook would ask for them; nothing is trained."""
    specs = sections.runs_of(section, params.parameters(section, set_name, profile))
    return gather(specs, [Store(paths.profile_dir(profile))], profile, section, set_name)


def everything(profile: str) -> Runs:
    """The runs of all sections, each once."""
    parts = [runs_of(section, name, profile) for section in sections.training() for name in params.sets(section)]
    specs = list(dict.fromkeys(spec for runs in parts for spec in runs.specs))
    records = list({record.spec: record for runs in parts for record in runs.records}.values())
    return Runs(specs, records, profile)


def comparable(profile: str, records: Iterable[Record] | None = None) -> Runs:
    """Every record of a profile, or those given, that differs from the defaults only in what the study varies."""
    found = Store(paths.profile_dir(profile)).all() if records is None else records
    usable = [record for record in found if set(record.spec.departures()) <= VARIED]
    return Runs([record.spec for record in usable], usable, profile)
