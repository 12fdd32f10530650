"""Why a claim is contradicted: `params/explanations.yaml`, prose whose every number is read from the records.

An entry explains one or more claims. `{name}` in its text stands for a quantity under `numbers`, written as in
claims.yaml and taken from the set of the entry's first claim, or from the `set` it names. The runs behind the numbers
are the evidence. Words compare, too ("larger", "near chance"): what they say stands under `holds`, and an explanation
of which that is no longer true says so, and explains nothing.
"""

import math
from collections.abc import Iterable
from pathlib import Path
from string import Formatter
from typing import Self

import numpy as np
from pydantic import Field, ValidationError, model_validator

from creditaudit import paths, yamlfile
from creditaudit.claimspec import Claim, ClaimsError, Quantity, Setting, Strict, band, inside, reason
from creditaudit.evidence import Evidence, Undecidable, natural
from creditaudit.metrics import METRICS
from creditaudit.report import digits, scatter, written
from creditaudit.yamlfile import nearest


class Number(Quantity):
    """One number per run, averaged over seeds; of another set than the claim's where `set` says so (as section/set)."""

    set: str | None = None

    @model_validator(mode="after")
    def _one_per_run(self) -> Self:
        if METRICS[self.metric].source != "run" or self.metric == "g_norms":
            raise ValueError(f"metric {self.metric!r} is not one number per run")
        if self.seed is not None:
            raise ValueError("a number is a mean over all seeds: it takes no seed")
        return self


class Comparison(Strict):
    """What the words say of a number: its mean lies above, below, between, or within a claim's margin.

    A bound is a value, the name of another number, or the id of a claim: what the study published.
    """

    number: str
    above: float | str | None = None
    below: float | str | None = None
    within: str | None = None

    @model_validator(mode="after")
    def _bounded(self) -> Self:
        if (self.above is None and self.below is None) == (self.within is None):
            raise ValueError(f"what holds of {self.number!r}: above or below what, or within whose margin?")
        return self

    def fails(self, means: dict[str, float]) -> str | None:
        """Why it does not hold; a number that is not there compares with nothing."""
        value = means.get(self.number, math.nan)
        above, below = (
            means.get(bound, math.nan) if isinstance(bound, str) else bound for bound in (self.above, self.below)
        )
        if (above is None or value > above) and (below is None or value < below):
            return None
        asked = [
            f"{word} {bound} ({digits(means.get(bound, math.nan))})"
            if isinstance(bound, str)
            else f"{word} {bound:.3g}"
            for word, bound in (("above", self.above), ("below", self.below))
            if bound is not None
        ]
        return (
            f"{self.number} {'is not known' if math.isnan(value) else f'is {digits(value)}'}, not {' and '.join(asked)}"
        )


class Entry(Strict):
    """One paragraph of explanations.yaml."""

    claims: list[str] = Field(min_length=1)
    text: str = Field(min_length=1)
    numbers: dict[str, Number] = Field(min_length=1)
    holds: list[Comparison] = Field(default_factory=list)

    @model_validator(mode="after")
    def _whole(self) -> Self:
        fields = [field for field in Formatter().parse(self.text) if field[1] is not None]
        if any(spec or conversion for _, _, spec, conversion in fields):
            raise ValueError("write {name}, without a format: how a number is shown follows from what it is")
        named = {name for _, name, _, _ in fields}
        if odd := sorted(named ^ set(self.numbers)):
            raise ValueError(f"text and numbers must name the same things, but only one of them has {', '.join(odd)}")
        if unknown := sorted({line.number for line in self.holds} - set(self.numbers)):
            raise ValueError(f"holds speaks of {', '.join(unknown)}, which is not among the numbers")
        return self

    def bounds(self) -> set[str]:
        """What `holds` compares with, by name."""
        return {bound for line in self.holds for bound in (line.above, line.below) if isinstance(bound, str)}


class Explanation(Strict):
    """An entry, with the settings of the sets its numbers come from and the published values it compares with."""

    entry: Entry
    settings: dict[str, Setting]
    published: dict[str, float]

    def told(self, evidence: Evidence) -> str:
        """The paragraph, its numbers read from the records, and the runs they come from."""
        values = {name: self._values(name, evidence) for name in self.entry.numbers}
        counts = {len(sample or ()) for sample in values.values()}
        alike = counts.pop() if len(counts) == 1 else 0  # every number rests on as many seeds: said once
        numbers = {name: _number(self.entry.numbers[name], sample, alike) for name, sample in values.items()}
        off = self._untrue(evidence)
        doubt = f" **These runs do not bear this out: {'; '.join(off)}.**" if off else ""
        each = f" (n = {alike} seed{'s' * (alike > 1)} for each number)" if alike else ""
        return f"{self.entry.text.strip().format(**numbers)}{doubt} Evidence{each}: {_by_kind(self.records(evidence))}."

    def records(self, evidence: Evidence) -> list[str]:
        keys = [record.spec.key for name in self.entry.numbers for record in self._runs(name, evidence).values()]
        return list(dict.fromkeys(keys))

    def problems(self, evidence: Evidence) -> list[str]:
        """What is named as evidence and is not there, or does not say what the words say."""
        lost = [f"{name!r}, of which no run exists" for name in self.entry.numbers if not self._runs(name, evidence)]
        return lost or [f"words that are not true: {why}" for why in self._untrue(evidence)]

    def _untrue(self, evidence: Evidence) -> list[str]:
        """What `holds` says and the runs do not."""
        means = {
            name: natural(np.mean(values), self.entry.numbers[name])
            for name in self.entry.numbers
            if (values := self._values(name, evidence))
        }
        return [why for line in self.entry.holds if (why := line.fails(self.published | means))]

    def _runs(self, name: str, evidence: Evidence) -> dict:
        quantity, setting = self.entry.numbers[name], self.settings[name]
        return evidence.seeds(quantity, setting, quantity.epochs or setting.epochs)

    def _values(self, name: str, evidence: Evidence) -> list[float] | None:
        """One per seed, as compared; None where a run has none."""
        try:
            return [
                evidence.value(self.entry.numbers[name], self.settings[name], seed)
                for seed in sorted(self._runs(name, evidence))
            ]
        except Undecidable:
            return None


def _number(quantity: Number, values: list[float] | None, alike: int) -> str:
    """Mean and std over seeds (of norms a factor), and n where it is not that of all the others."""
    if not values:
        return "(not run)" if values is not None else "(undefined)"
    mean = written(natural(np.mean(values), quantity), quantity)
    spread = f" {scatter(np.std(values, ddof=1), quantity)}" if len(values) > 1 else ""
    return f"{mean}{spread}" if len(values) == alike else f"{mean}{spread} (n={len(values)})"


def _by_kind(keys: Iterable[str]) -> str:
    """`bp-d256-L4-k0-e100` (`s42-5dbf93e9`, `s123-fa450e77`): the files of the runs, what seeds share told once."""
    kinds: dict[str, list[str]] = {}
    for key in keys:
        kind, seed, digest = key.rsplit("-", 2)
        kinds.setdefault(kind, []).append(f"`{seed}-{digest}`")
    return ", ".join(f"`{kind}` ({', '.join(ends)})" for kind, ends in kinds.items()) or "no run of this profile"


def load_explanations(claims: list[Claim], path: Path | None = None) -> dict[str, Explanation]:
    """claim id -> explanation; an unknown or twice explained claim is an error."""
    path = path or paths.PARAMS / "explanations.yaml"
    entries = (yamlfile.load(path) if path.exists() else None) or []
    found: dict[str, Explanation] = {}
    for place, raw in enumerate(entries, 1):
        try:
            explanation = _settled(Entry.model_validate(raw), claims)
        except ValidationError as error:
            why = reason(error, Entry.model_fields, {"numbers": Number, "holds": Comparison})
            raise ClaimsError(f"{path.name}, entry {place}: {why}") from None
        except ValueError as error:
            raise ClaimsError(f"{path.name}, entry {place}: {error}") from None
        for name in explanation.entry.claims:
            if name in found:
                raise ClaimsError(f"{path.name}, entry {place}: {name} is explained twice")
            found[name] = explanation
    return found


def _settled(entry: Entry, claims: list[Claim]) -> Explanation:
    by_id, by_place = {c.id: c for c in claims}, {c.place: c.setting for c in claims}
    for name in entry.claims:
        if name not in by_id:
            raise ClaimsError(f"no claim {name!r}{nearest(name, by_id)}")
    homes, settings = list(dict.fromkeys(by_id[name].place for name in entry.claims)), {}
    for name, quantity in entry.numbers.items():
        if len(homes) > 1 and not quantity.set:
            raise ClaimsError(f"number {name!r}: of which set? The claims are of {' and '.join(homes)}; add `set:`")
        place = quantity.set or homes[0]
        if place not in by_place:
            raise ClaimsError(f"number {name!r}: no set {place!r}{nearest(place, by_place)}")
        settings[name] = by_place[place]
        inside(quantity, settings[name])
    single = {name: claim.expected for name, claim in by_id.items() if isinstance(claim.expected, float)}
    published = {}
    for bound in entry.bounds() - set(entry.numbers):
        if bound not in single:
            raise ClaimsError(f"holds: no number and no claim of one value {bound!r}{nearest(bound, single)}")
        published[bound] = single[bound]
    holds = [_spelled_out(line, {name: by_id[name] for name in single}) for line in entry.holds]
    return Explanation(entry=entry.model_copy(update={"holds": holds}), settings=settings, published=published)


def _spelled_out(line: Comparison, claims: dict[str, Claim]) -> Comparison:
    """`within` as the two bounds that it means."""
    if line.within is None:
        return line
    if line.within not in claims:
        raise ClaimsError(f"holds: no claim of one value {line.within!r}{nearest(line.within, claims)}")
    low, high = band(claims[line.within])
    return Comparison(number=line.number, above=low, below=high)


def unexplained(contradicted: Iterable[str], known: dict[str, Explanation], evidence: Evidence) -> list[str]:
    """One sentence per contradicted claim without an explanation that its runs bear out."""
    problems = []
    for claim in contradicted:
        if claim not in known:
            problems.append(f"{claim} is contradicted and has no entry in params/explanations.yaml")
        else:
            problems += [f"{claim} is explained by {lost}" for lost in known[claim].problems(evidence)]
    return problems
