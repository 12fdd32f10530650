"""Two records of one run: the same numbers? To the bit on the same kind of CPU, within the tolerances elsewhere.

The one comparison behind the certificate of `make reproduce` and behind `make verify-paper`.
"""

import math
from collections.abc import Callable, Iterable, Iterator
from dataclasses import dataclass
from itertools import zip_longest
from typing import Any, Literal

from creditaudit.runs.records import Record

Outcome = Literal["bit-equal", "within tolerance", "different"]


@dataclass(frozen=True)
class Tolerance:
    """What may come out differently on another kind of CPU, which sums in another order."""

    accuracy: float
    loss: float  # relative
    decades: float  # log10 of a norm

    def __str__(self) -> str:
        return f"{self.accuracy:g} in accuracy, {100 * self.loss:g} % in loss, {self.decades:g} in log10 of norms"


# AVX2 kernels against AVX-512 ones, 47 runs of profile quick, one epoch: the rules below came out 0.015, 1.9 % and
# 0.14 apart, all others 0, 0.00006 % and 0.00002. Another seed moves those others by 0.008, 0.6 % and 0.012 or more.
TOLERANCE = Tolerance(0.002, 0.002, 0.002)
AMPLIFYING = ("sb", "ep")  # credit made of small differences between large states: training amplifies the last bits
AMPLIFIED = Tolerance(0.02, 0.05, 0.5)
IDENTITY_TOLERANCE = 1e-5  # of the identity check: one forward pass in float32, on any CPU

_PLATFORM = ("cpu", "torch", "numpy")


@dataclass(frozen=True)
class Comparison:
    """How far apart two records of one run are, over all epochs, layers and end-of-run norms."""

    key: str
    outcome: Outcome
    alike: bool  # made on the same kind of CPU with the same libraries, so that the bits must be equal
    accuracy_off: float = 0.0
    loss_off: float | None = 0.0  # relative; None: one of them overflowed
    decades_off: float | None = 0.0  # of the norms of states and gradients
    first: str | None = None  # the first place where they differ

    def sentence(self) -> str:
        if self.outcome == "bit-equal":
            return f"{self.key}: bit-equal"
        loss, norms = ("infinitely much" if off is None else f"{off:.2g}" for off in (self.loss_off, self.decades_off))
        return (
            f"{self.key}: {self.outcome} (first at {self.first}), accuracy by {self.accuracy_off:.4f}, loss by {loss} "
            f"of it, log10 of norms by {norms}. Same kind of CPU and libraries: {'yes' if self.alike else 'no'}. "
            f"Allowed where they are not: {tolerance(self.key.partition('-')[0])}"
        )


def tolerance(method: str) -> Tolerance:
    return AMPLIFIED if method in AMPLIFYING else TOLERANCE


def compare(committed: Record, again: Record) -> Comparison:
    """Everything that `committed` holds, each epoch of it; what only later code logs per epoch is left out."""
    alike, leaves = made_alike(committed, again), list(_leaves(*_contents(committed, again)))
    first = next((place for place, then, now in leaves if then != now), None)
    if first is None:
        return Comparison(committed.spec.key, "bit-equal", alike)
    numbers = [(place.partition("[")[0], then, now) for place, then, now in leaves]
    accuracy, loss, decades = (
        max((_apart(then, now, distance) for name, then, now in numbers if name in names), default=0.0)
        for names, distance in _MEASURES
    )
    allowed = tolerance(committed.spec.method)
    near = accuracy <= allowed.accuracy and loss <= allowed.loss and decades <= allowed.decades
    outcome = "within tolerance" if near and not alike else "different"
    finite = [value if math.isfinite(value) else None for value in (loss, decades)]
    return Comparison(committed.spec.key, outcome, alike, min(accuracy, 1.0), *finite, first)


def made_alike(committed: Record, again: Record) -> bool:
    """On the same kind of CPU with the same libraries, from the first epoch on."""
    then, now = committed.provenance, again.provenance
    return all(then.get(name) == now.get(name) for name in (*_PLATFORM, "threads", "device")) and all(
        maker.get(name) == now.get(name) for maker in then.get("resumed_from", []) for name in _PLATFORM
    )


def differences(committed: Record, again: Record) -> Iterator[tuple[str, Any, Any]]:
    """(place, committed, again) wherever they differ."""
    return ((place, then, now) for place, then, now in _leaves(*_contents(committed, again)) if then != now)


def identity_off(kept: dict[str, Any], again: dict[str, Any]) -> float:
    """The largest difference between two rows of the identity check."""
    return max((_apart(then, now, _gap) for _, then, now in _leaves(kept, again)), default=0.0)


def _contents(committed: Record, again: Record) -> list[dict[str, Any]]:
    """What of them is compared."""
    logged = {name: again.epochs.get(name) for name in committed.epochs}
    return [{"epochs": committed.epochs, "final": committed.final}, {"epochs": logged, "final": again.final}]


def _leaves(a: Any, b: Any, place: str = "") -> Iterator[tuple[str, Any, Any]]:
    """What two nested contents hold, side by side with its place; None where one of them has nothing."""
    nested = {type(each) for each in (a, b) if each is not None} if a or b else set()
    if nested == {dict}:
        a, b = a or {}, b or {}
        for name in sorted(a.keys() | b.keys()):
            yield from _leaves(a.get(name), b.get(name), f"{place}.{name}".lstrip("."))
    elif nested == {list}:
        for index, pair in enumerate(zip_longest(a or [], b or [])):
            yield from _leaves(*pair, f"{place}[{index}]")
    else:
        yield place, a, b


def _apart(a: float | None, b: float | None, distance: Callable[[float, float], float]) -> float:
    """What overflowed (stored as nothing) agrees with itself only."""
    if a is None or b is None:
        return 0.0 if a is b else math.inf
    return 0.0 if a == b else distance(a, b)


def _gap(a: float, b: float) -> float:
    return abs(a - b)


_MEASURES: tuple[tuple[Iterable[str], Callable[[float, float], float]], ...] = (
    (("epochs.train_accuracy", "epochs.test_accuracy", "final.test_accuracy"), _gap),
    (("epochs.train_loss", "epochs.test_loss"), lambda a, b: abs(a - b) / abs(a) if a else math.inf),
    (
        ("epochs.h_norm", "epochs.g_norm", "final.h_norm", "final.g_norm"),
        lambda a, b: abs(math.log10(a / b)) if a > 0 and b > 0 else math.inf,
    ),
)
