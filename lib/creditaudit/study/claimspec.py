"""The language of `params/claims.yaml`: what a claim may say, and clear refusal of what it may not.

A *quantity* is a metric (`metrics.METRICS`) of a run: `{metric: h_norm, method: dfa, layer: L, penalty:
0.01}`. The claim's set gives width, depth and epochs; k is full depth and the penalty 0 unless said. A
*statement* puts a quantity, or the difference of two paired by seed, above or below a threshold. Effects
and shapes are nothing but lists of statements; `statements(claim)` spells them out. A `Result` is what our runs say.
"""

import math
from collections import Counter
from collections.abc import Iterator
from dataclasses import dataclass, field
from itertools import pairwise
from pathlib import Path
from typing import Annotated, Any, Literal, Self

from pydantic import BaseModel, ConfigDict, Field, ValidationError, model_validator

from creditaudit import paths
from creditaudit.engine.settings import Normalise, departures
from creditaudit.engine.spec import Method
from creditaudit.mistakes import Mistake
from creditaudit.runs import yamlfile
from creditaudit.runs.yamlfile import nearest
from creditaudit.study.metrics import METRICS
from creditaudit.study.numbers import power
from creditaudit.study.verdicts import Reason, Verdict

Kind = Literal["exact", "equivalence", "effect", "shape"]
Direction = Literal["above", "below"]
Depth = int | Literal["L"]
WRITE_FLOATS = " (YAML reads 1e-3 as text: write 1.0e-3, without quotes)"


class ClaimsError(Mistake, ValueError):
    """claims.yaml is written wrongly; the message names the claim and the remedy."""


class Strict(BaseModel):
    model_config = ConfigDict(strict=True, extra="forbid", frozen=True)


class Quantity(Strict):
    """One number per seed."""

    metric: str
    method: Method | None = None  # not for the identity check, which trains nothing
    k: Depth = "L"
    layer: Depth | None = None
    penalty: float = Field(0.0, ge=0)
    normalise: Normalise | None = None  # None: the rule's own
    depth: int | None = Field(None, ge=1)  # these two only where they differ from the set's
    hidden: int | None = Field(None, ge=1)  # inner width of a block
    network: Literal["resmlp", "vit", "conv"] = "resmlp"
    labels: Literal["true", "random"] = "true"
    final_norm: bool = True
    rms_eps: float = 1e-6
    decay: Literal["epoch", "step"] = "epoch"
    settings: dict[str, Any] = {}  # of the rule
    validation: bool = False
    epochs: int | None = Field(None, ge=1)  # only where it differs from the set's
    seed: int | None = None  # only for exact claims about one seed

    @model_validator(mode="after")
    def _fits(self) -> Self:
        if self.metric not in METRICS:
            raise ValueError(f"unknown metric {self.metric!r}{nearest(self.metric, METRICS)}")
        metric = METRICS[self.metric]
        for name, needed in (("layer", metric.layer is not None), ("method", metric.source == "run")):
            if needed != (getattr(self, name) is not None):
                raise ValueError(f"metric {self.metric!r} {'needs a' if needed else 'takes no'} {name}")
        if self.method is not None:
            departures(self.method, self.settings)  # refuses what its rule does not have
        return self

    @property
    def log(self) -> bool:
        return METRICS[self.metric].log

    def compared(self, value: float) -> float:
        """A number as it is compared: of a norm the log10."""
        return math.log10(value) if self.log and value > 0 else value

    def natural(self, value: float) -> float:
        """The same back in natural units."""
        return power(value) if self.log else value


class Statement(Strict):
    """quantity (- minus) above or below threshold. Norms: in natural units, so a ratio for a difference."""

    quantity: Quantity
    minus: Quantity | None = None
    direction: Direction
    threshold: float


class Setting(Strict):
    """What a set of runs has in common, and the head of claims.yaml."""

    width: int = Field(ge=1)
    depth: int = Field(ge=1)
    epochs: int = Field(ge=0)  # 0: the identity check trains nothing
    alpha: float = Field(gt=0, lt=0.5)
    noise: dict[Method, Annotated[float, Field(gt=0)]]


class Claim(Strict):
    """One published claim with the margin it is judged by."""

    id: str
    statement: str
    where: str = ""  # place in the study; of a prediction there is none
    why: str | None = None  # a prediction's reason, written before its runs
    seen: bool = False  # a prediction that rests on planning runs
    section: str
    set: str
    kind: Kind
    quantity: Quantity | None = None
    minus: Quantity | None = None
    direction: Direction | None = None
    form: Literal["rising", "falling", "argmax", "all"] | None = None
    over: dict[Literal["k"], list[Depth]] | None = Field(None, min_length=1)
    all: list[Statement] | None = None
    expected: float | list[float] | str
    printed: str | None = None  # what the study prints, where `expected` is our reading of it
    std: float | None = Field(None, ge=0)
    margin: float | None = Field(None, gt=0)
    n: int = Field(3, ge=1)
    any_epochs: bool = False
    setting: Setting

    @model_validator(mode="after")
    def _complete(self) -> Self:
        needed = {
            "exact": {"quantity", "margin"},
            "equivalence": {"quantity", "margin"},
            "effect": {"quantity", "direction", "margin"},
            "shape": {"form", "all"} if self.form == "all" else {"form", "over", "quantity"},
        }[self.kind]
        allowed = needed | {"effect": {"minus"}, "equivalence": {"std"}}.get(self.kind, set())
        for name in ("quantity", "minus", "direction", "form", "over", "all", "std", "margin"):
            given = getattr(self, name) is not None
            if given and name not in allowed:
                raise ValueError(f"a claim of kind {self.kind!r} takes no {name!r}")
            if not given and name in needed:
                raise ValueError(f"a claim of kind {self.kind!r} needs {name!r}")
        if self.kind != "shape" and isinstance(self.expected, str):
            raise ValueError(f"expected: {self.expected!r} is a string, not a number{WRITE_FLOATS}")
        if self.kind == "effect" and isinstance(self.expected, list):
            raise ValueError("expected: an effect is one number")
        if self.form == "argmax" and self.expected not in [depth_of(k, self.setting) for k in self.over["k"]]:
            raise ValueError(f"expected: {self.expected!r} is not among the k that are compared")
        if self.any_epochs and self.kind != "shape":
            raise ValueError("only a shape may hold at any number of epochs")
        trained = any(METRICS[quantity.metric].source == "run" for quantity in quantities(self))
        if trained == (self.kind == "exact"):
            raise ValueError("kind 'exact' is for quantities without training, and only for those")
        for quantity in quantities(self):
            inside(quantity, self.setting)
            if quantity.seed is not None and self.kind != "exact":
                raise ValueError("only an exact claim is about one seed")
        return self

    @property
    def place(self) -> str:
        return f"{self.section}/{self.set}"

    @property
    def command(self) -> str:
        """Which trains its runs."""
        return f"make reproduce PROFILE=paper SECTION={self.section} SET={self.set}"

    @property
    def source(self) -> str:
        """Where a person finds it."""
        return f"params/{'claims' if self.why is None else 'predictions'}.yaml, claim {self.id}"


def depth_of(value: Depth, setting: Setting) -> int:
    return setting.depth if value == "L" else value


def inside(quantity: Quantity, setting: Setting) -> None:
    """Refuse a layer or a k that a network of this depth does not have."""
    deepest = setting.depth - (METRICS[quantity.metric].layer == "block")
    if isinstance(quantity.layer, int) and not 0 <= quantity.layer <= deepest:
        raise ValueError(f"layer {quantity.layer} is outside 0..{deepest}")
    if not 0 <= depth_of(quantity.k, setting) <= setting.depth:
        raise ValueError(f"k = {quantity.k} is outside 0..{setting.depth}")


def band(claim: Claim) -> tuple[float, float]:
    """The published value less and plus its margin, in natural units."""
    if claim.quantity.log:
        return claim.expected / 10**claim.margin, claim.expected * 10**claim.margin
    return claim.expected - claim.margin, claim.expected + claim.margin


def rungs(claim: Claim) -> list[Quantity]:
    """The quantities a shape compares, in order."""
    return [claim.quantity.model_copy(update={"k": k}) for k in claim.over["k"]]


def statements(claim: Claim) -> list[Statement]:
    """What an effect or a shape asserts, one line per inequality."""
    if claim.kind == "effect":
        slack = claim.margin if claim.direction == "below" else -claim.margin
        threshold = claim.expected * 10**slack if claim.quantity.log else claim.expected + slack
        sides = {"quantity": claim.quantity, "minus": claim.minus}
        return [Statement(**sides, direction=claim.direction, threshold=threshold)]
    if claim.form == "all":
        return claim.all
    steps = rungs(claim)
    if claim.form == "argmax":
        best = claim.quantity.model_copy(update={"k": int(claim.expected)})
        pairs = [(best, other) for other in steps if other.k != best.k]
    else:
        pairs = [(b, a) if claim.form == "rising" else (a, b) for a, b in pairwise(steps)]
    equal = 1.0 if claim.quantity.log else 0.0
    return [Statement(quantity=more, minus=less, direction="above", threshold=equal) for more, less in pairs]


def quantities(claim: Claim) -> Iterator[Quantity]:
    """Every quantity whose runs a claim needs."""
    if claim.kind in ("exact", "equivalence"):
        yield claim.quantity
        return
    for statement in statements(claim):
        yield statement.quantity
        if statement.minus:
            yield statement.minus


@dataclass(frozen=True)
class Result:
    """One line of claims.json, plus what only the tables need."""

    id: str
    statement: str
    kind: str
    expected: Any
    margin: float | None
    observed: Any
    ci: Any
    n: int
    verdict: Verdict
    reason: str
    command: str
    claim: Claim = field(repr=False, compare=False)
    spread: float | None = None  # std over our seeds, in the margin's units
    because: Reason | None = None  # of an inconclusive one, what `reason` says in words
    records: tuple[str, ...] = ()  # keys of the runs that were read; an exact claim rests on identity.json
    commits: tuple[str, ...] = ()  # at which they were trained
    all_seeds: "Result | None" = None  # the same claim on every seed there is, where there are more than the study's

    @property
    def elsewhere(self) -> bool:
        """Does it ask for epochs or seeds that only another profile has?"""
        return self.because is not None and self.because.cause == "another profile"

    def to_json(self) -> dict[str, Any]:
        kept = ("claim", "spread", "because", "all_seeds")
        body = {name: _rounded(value) for name, value in vars(self).items() if name not in kept}
        if self.all_seeds:
            more = self.all_seeds.to_json()
            body["all_seeds"] = {name: more[name] for name in ("observed", "ci", "n", "verdict", "reason", "records")}
        return body | {"cause": self.because and self.because.cause}


def _rounded(value: Any) -> Any:
    """Six significant digits: the same bytes for the same records, on any machine."""
    if isinstance(value, float):
        return float(f"{value:.6g}")
    return [_rounded(item) for item in value] if isinstance(value, list | tuple) else value


class _File(Strict):
    """claims.yaml as a whole; each claim is read where its set is known."""

    alpha: float
    noise: dict[str, Any]
    sets: dict[Annotated[str, Field(pattern="^[^/]+/[^/]+$")], dict[str, Any]]  # section/set
    claims: dict[str, list[dict[str, Any]]]


def load_claims(path: Path | None = None) -> list[Claim]:
    """Every claim of claims.yaml, in its order, or an error that names the first wrong one."""
    path = path or paths.PARAMS / "claims.yaml"
    where = paths.shown(path)
    content = yamlfile.mapping(yamlfile.load(path), where)
    try:
        file = _File(**content)
    except ValidationError as error:
        raise ClaimsError(f"{where}: {_reason(error, _File)}") from None
    claims = [
        _claim(f"{where}: claim {entry.get('id', f'without id in {place}')}", file, place, entry)
        for place, entries in file.claims.items()
        for entry in entries
    ]
    for name, times in Counter(claim.id for claim in claims).items():
        if times > 1:
            raise ClaimsError(f"{where}: claim {name}: this id is used twice")
    return claims


def _claim(where: str, file: _File, place: str, entry: dict[str, Any]) -> Claim:
    if place not in file.sets:
        raise ClaimsError(f"{where}: {place!r} is not among the sets{nearest(place, file.sets)}")
    section, _, set_name = place.partition("/")
    setting = {"alpha": file.alpha, "noise": file.noise, **file.sets[place]}
    implied = {"section": section, "set": set_name, "setting": setting}
    for name in implied.keys() & entry.keys():
        raise ClaimsError(f"{where}: {name} follows from the place where it stands, {place}")
    try:
        return Claim(**entry, **implied)
    except ValidationError as error:
        raise ClaimsError(f"{where}: {_reason(error, Claim)}") from None
    except ArithmeticError as error:  # a margin of 1.0e+5 decades, say
        raise ClaimsError(f"{where}: expected and margin make no band: {error}") from None


_PARTS = {"quantity": Quantity, "minus": Quantity, "all": Statement, "setting": Setting}


def _reason(error: ValidationError, whole: type[Strict]) -> str:
    """The first problem in a sentence."""
    problem = error.errors()[0]
    location = problem["loc"]
    where = ".".join(map(str, location))
    if problem["type"] == "extra_forbidden":
        known = next((_PARTS[part] for part in reversed(location[:-1]) if part in _PARTS), whole).model_fields
        return f"unknown field {where!r}{nearest(str(location[-1]), known)}"
    text = problem["msg"].removeprefix("Value error, ")
    hint = WRITE_FLOATS if isinstance(problem["input"], str) and "number" in text else ""
    return f"{where}: {text}{hint}" if where else f"{text}{hint}"
