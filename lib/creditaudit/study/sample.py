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

FEW = 2  # up to so many seeds, a published spread is better than their own
_ANSWERS: dict[verdicts.Verdict, bool | None] = {"reproduced": True, "contradicted": False, "inconclusive": None}


@dataclass(frozen=True)
class Sample:
    """One number per seed, in natural units. None is undefined: it overflowed, or was not measured."""

    values: Mapping[int, float | None]
    log: bool = False  # a norm: compared in log10, a difference of two is their ratio
    places: int = 3  # decimals, where it is not a norm
    unit: str = ""
    name: str = ""  # what it is, for messages
    alpha: float = 0.05
    points: bool = False  # an accuracy: a difference of two is in percentage points
    signed: bool = False  # a difference: printed with its sign

    def __post_init__(self) -> None:
        values = {seed: self._defined(self.values[seed]) for seed in sorted(self.values)}
        object.__setattr__(self, "values", values)

    def _defined(self, value: float | None) -> float | None:
        usable = value is not None and math.isfinite(value) and (value > 0 or not self.log)
        return float(value) if usable else None

    @property
    def seeds(self) -> tuple[int, ...]:
        return tuple(self.values)

    @property
    def n(self) -> int:
        return len(self.values)

    @property
    def defined(self) -> bool:
        """There are runs, and every one of them has the number."""
        return self.n > 0 and None not in self.values.values()

    @property
    def mean(self) -> float | None:
        """In natural units; of a norm the geometric mean."""
        return self._natural(float(np.mean(self.compared))) if self.defined else None

    @property
    def std(self) -> float | None:
        """Over seeds; of a norm the std of its log10."""
        return verdicts.of_sample(self.compared).spread if self.defined and self.n > 1 else None

    def only(self, seeds: Collection[int]) -> "Sample":
        """Of these seeds alone."""
        return replace(self, values={seed: value for seed, value in self.values.items() if seed in seeds})

    def interval(self) -> tuple[float, float] | None:
        """The 1 - 2 alpha interval of the mean, in natural units."""
        estimate = self._estimate(None)
        if estimate is None:
            return None
        low, high = estimate.bounds(self.alpha)
        return self._natural(low), self._natural(high)

    def __sub__(self, other: "Sample | float") -> "Sample":
        """Seed by seed, over the seeds that both have; of norms the ratio, of accuracies percentage points."""
        if isinstance(other, Sample):
            if (self.log, self.points, self.unit) != (other.log, other.points, other.unit):
                raise ValueError(f"{self._called} and {other._called} are different quantities")
            theirs, name = other.values, other._called
        elif isinstance(other, Real):
            self._line(other)
            theirs, name = dict.fromkeys(self.values, float(other)), f"{other:g}"
        else:
            return NotImplemented
        if self.log:
            return self._compare(theirs, lambda a, b: a / b, f"{self._called} / {name}", unit="")
        name = f"{self._called} − {name}"
        if self.points:
            return self._compare(
                theirs, lambda a, b: 100 * (a - b), name, unit="pp", places=1, points=False, signed=True
            )
        return self._compare(theirs, lambda a, b: a - b, name, signed=True)

    def above(self, line: "float | Sample", noise: float | None = None) -> bool | None:
        """Is the mean above the line? `a.above(b)` asks it of `a - b`, seed by seed, against nought (norms: 1).

        noise is the std of one seed, known from elsewhere, of what is compared and in its units (norms: log10). It
        stands in for the seeds' own spread as long as they are one or two. Without it one seed decides nothing.
        """
        return self._beyond(line, 1, noise)

    def below(self, line: "float | Sample", noise: float | None = None) -> bool | None:
        """Is the mean below the line? See `above`."""
        return self._beyond(line, -1, noise)

    def within(self, low: float, high: float) -> bool | None:
        """Does the mean lie between the two?"""
        if not low < high:
            raise ValueError(f"{low:g} is not below {high:g}")
        low, high = self._line(low), self._line(high)
        estimate = self._estimate(None)
        if estimate is None:
            return None
        return _ANSWERS[verdicts.equivalent([estimate.shifted((low + high) / 2)], (high - low) / 2, self.alpha)]

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

    def __format__(self, how: str) -> str:
        if how not in ("", "short"):
            raise ValueError(f"a sample is written in full or 'short', not {how!r}")
        return self.short if how else str(self)

    def _repr_markdown_(self) -> str:
        return str(self)

    @property
    def _called(self) -> str:
        return self.name or "a sample"

    @property
    def compared(self) -> list[float]:
        """The numbers as they are compared: of a norm the log10."""
        return [math.log10(value) if self.log else value for value in self.values.values()]

    def _natural(self, value: float) -> float:
        return power(value) if self.log else value

    def _line(self, line: float) -> float:
        """A number to compare with, as it is compared."""
        if self.log and line <= 0:
            raise ValueError(f"{self._called} is compared in log10: {line:g} is no line for it")
        return math.log10(line) if self.log else line

    def _compare(self, theirs, operation, name: str, **changes) -> "Sample":
        shared = {seed: (own, theirs[seed]) for seed, own in self.values.items() if seed in theirs}
        values = {seed: None if None in pair else operation(*pair) for seed, pair in shared.items()}
        return replace(self, values=values, name=name, **changes)

    def _beyond(self, line: "float | Sample", sign: int, noise: float | None) -> bool | None:
        if isinstance(line, Sample):
            return (self - line)._beyond(1 if self.log else 0, sign, noise)
        estimate, line = self._estimate(noise), self._line(line)
        if estimate is None:
            return None
        return _ANSWERS[verdicts.all_positive([estimate.shifted(line, sign)], self.alpha)]

    def _estimate(self, noise: float | None) -> verdicts.Estimate | None:
        if noise is not None and not noise > 0:
            raise ValueError(f"a noise of {noise:g} would make one seed exact")
        if not self.defined or (self.n < 2 and noise is None):
            return None
        few = noise is not None and self.n <= FEW
        return verdicts.of_few(self.compared, noise) if few else verdicts.of_sample(self.compared)
