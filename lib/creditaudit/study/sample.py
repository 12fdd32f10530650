"""One number per seed: how it is printed, how two are compared, what it decides.

Accuracies and ratios are compared as they are. Norms spread over twenty decades: they are compared in log10, and
stated as a geometric mean with a factor. Two samples are always compared seed by seed. What the numbers decide is
`verdicts`' business alone: True, False, or None where the seeds do not tell.
"""

import math
from collections.abc import Collection, Mapping
from dataclasses import dataclass, replace
from numbers import Real

import numpy as np

from creditaudit.study import verdicts
from creditaudit.study.numbers import UNBROKEN, digits, factor, fixed, power

ALPHA = 0.05  # of each one-sided bound
_ANSWERS: dict[verdicts.Verdict, bool | None] = {"reproduced": True, "contradicted": False, "inconclusive": None}


@dataclass(frozen=True)
class Sample:
    """One number per seed, in natural units. None is undefined: it overflowed, or was not measured."""

    values: Mapping[int, float | None]
    log: bool = False  # a norm: compared in log10, a difference of two is their ratio
    places: int = 3  # decimals, where it is not a norm
    unit: str = ""
    name: str = "a sample"  # what it is, for messages
    points: bool = False  # an accuracy: a difference of two is in percentage points
    signed: bool = False  # a difference: printed with its sign

    def __post_init__(self) -> None:
        def usable(value: float | None) -> bool:
            return value is not None and math.isfinite(value) and (value > 0 or not self.log)

        values = {seed: float(value) if usable(value) else None for seed, value in sorted(self.values.items())}
        object.__setattr__(self, "values", values)

    @property
    def n(self) -> int:
        return len(self.values)

    @property
    def defined(self) -> bool:
        """There are runs, and every one of them has the number."""
        return self.n > 0 and None not in self.values.values()

    @property
    def compared(self) -> list[float]:
        """The numbers as they are compared: of a norm the log10."""
        return [math.log10(value) if self.log else value for value in self.values.values()]

    @property
    def mean(self) -> float | None:
        """In natural units; of a norm the geometric mean."""
        if not self.defined:
            return None
        middle = float(np.mean(self.compared))
        return power(middle) if self.log else middle

    @property
    def std(self) -> float | None:
        """Over seeds; of a norm the std of its log10."""
        estimate = self._estimate
        return estimate and estimate.spread

    def only(self, seeds: Collection[int]) -> "Sample":
        """Of these seeds alone."""
        return replace(self, values={seed: value for seed, value in self.values.items() if seed in seeds})

    def __sub__(self, other: "Sample | float") -> "Sample":
        """Seed by seed, over the seeds that both have; of norms the ratio, of accuracies percentage points."""
        if isinstance(other, Real):
            self._line(other)
            other = replace(self, values=dict.fromkeys(self.values, other), name=f"{other:g}")
        if not isinstance(other, Sample):
            return NotImplemented
        if (self.log, self.points, self.unit) != (other.log, other.points, other.unit):
            raise ValueError(f"{self.name} and {other.name} are different quantities")
        values = {}
        for seed in self.values.keys() & other.values.keys():
            a, b = self.values[seed], other.values[seed]
            values[seed] = None if None in (a, b) else a / b if self.log else (100 if self.points else 1) * (a - b)
        changes = {"values": values, "name": f"{self.name} against {other.name}", "signed": not self.log}
        return replace(self, **changes | ({"unit": "pp", "places": 1, "points": False} if self.points else {}))

    def above(self, line: "float | Sample") -> bool | None:
        """Is the mean above the line? `a.above(b)` asks it of `a - b`, seed by seed, against nought (norms: 1)."""
        return self._beyond(line, 1)

    def below(self, line: "float | Sample") -> bool | None:
        """Is the mean below the line? See `above`."""
        return self._beyond(line, -1)

    def within(self, low: float, high: float) -> bool | None:
        """Does the mean lie between the two?"""
        if not low < high:
            raise ValueError(f"{low:g} is not below {high:g}")
        low, high, estimate = self._line(low), self._line(high), self._estimate
        off = estimate and estimate.shifted((low + high) / 2)
        return off and _ANSWERS[verdicts.equivalent([off], (high - low) / 2, ALPHA)]

    @property
    def short(self) -> str:
        """Mean and std, without the number of seeds."""
        if not self.n:
            return "(no run)"
        if not self.defined:
            return f"(undefined in {list(self.values.values()).count(None)} of {self.n})"
        parts = [digits(self.mean) if self.log else fixed(self.mean, self.places, self.signed)]
        if self.std is not None:
            parts.append(factor(self.std) if self.log else f"±{UNBROKEN}{fixed(self.std, self.places)}")
        return UNBROKEN.join([*parts, self.unit] if self.unit else parts)

    def __str__(self) -> str:
        return f"{self.short} (n{UNBROKEN}={UNBROKEN}{self.n})" if self.defined else self.short

    _repr_markdown_ = __str__  # what a cell shows that ends with a sample

    def _line(self, line: float) -> float:
        """A number to compare with, as it is compared."""
        if self.log and line <= 0:
            raise ValueError(f"{self.name} is compared in log10: {line:g} is no line for it")
        return math.log10(line) if self.log else line

    def _beyond(self, line: "float | Sample", sign: int) -> bool | None:
        if isinstance(line, Sample):
            return (self - line)._beyond(1 if self.log else 0, sign)
        line, estimate = self._line(line), self._estimate
        return estimate and _ANSWERS[verdicts.all_positive([estimate.shifted(line, sign)], ALPHA)]

    @property
    def _estimate(self) -> verdicts.Estimate | None:
        """One seed has no spread, hence no interval."""
        return verdicts.of_sample(self.compared) if self.defined and self.n > 1 else None
