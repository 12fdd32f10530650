"""A run is a pure function of its `RunSpec`: one method, one shape, one k, one lambda, one seed.

The spec is the unit of caching, parallelism and resume. Its key ignores fields at their default, so a
field added later orphans no record that was made before it existed.
"""

import hashlib
import json
from dataclasses import replace
from difflib import get_close_matches
from typing import Annotated, Any, Literal, Self

from pydantic import (
    AfterValidator,
    BaseModel,
    ConfigDict,
    Field,
    ValidationError,
    ValidationInfo,
    field_validator,
    model_validator,
)

from creditaudit.engine import catalogue
from creditaudit.engine.pictures import HELD_OUT, TRAIN_PICTURES
from creditaudit.engine.settings import DEFAULTS, RECIPE, Changes, Normalise, departures
from creditaudit.mistakes import Mistake


def _known(method: str) -> str:
    if method not in (known := catalogue.entries()):
        raise ValueError(f"unknown rule {method!r}: known are {', '.join(known)}")
    return method


Method = Annotated[str, AfterValidator(_known)]

# What a run may change beside method, shape, k, penalty, normalisation, epochs and seed.
VARIANTS = ("network", "hidden", "rms_eps", "settings", "decay", "labels", "final_norm", "validation")


class SpecError(Mistake, ValueError):
    """A run was described wrongly; the message names the field and what it may be."""


class RunSpec(BaseModel):
    """Everything that determines a run's numbers."""

    model_config = ConfigDict(frozen=True, strict=True, extra="forbid")

    method: Method
    network: Literal["resmlp", "vit", "conv"] = "resmlp"
    width: int = Field(256, ge=4, le=4096)  # d
    depth: int = Field(4, ge=1, le=64)  # L
    hidden: int | None = Field(None, ge=4, le=16384)  # inner width of a block; None is the stream's
    k: int | None = Field(None, ge=0)  # trainable blocks, the last k of L; None means all
    epochs: int = Field(100, ge=1, le=1000)
    seed: int = Field(42, ge=0, lt=2**31)
    penalty: float = Field(0.0, ge=0, le=100)  # lambda
    normalise: Normalise | None = None  # of the credit; None is the rule's own choice
    rms_eps: float = Field(1e-6, gt=0, le=1)  # beside the rms; with 1e-8 FA explodes
    settings: Changes = ()  # of the rule itself, where they are not those of settings.py
    lr: float = Field(1e-3, gt=0, le=1)
    decay: Literal["epoch", "step"] = "epoch"  # how often the cosine is followed
    weight_decay: float = Field(0.01, ge=0, le=1)
    batch: int = Field(128, ge=2, le=8192)
    augment: bool = True
    labels: Literal["true", "random"] = "true"  # of the training pictures
    final_norm: bool = True  # LayerNorm before the head
    data: Literal["cifar10", "tiny"] = "cifar10"
    train_size: int | None = Field(None, ge=2)  # None is the whole set
    test_size: int | None = Field(None, ge=2)
    validation: bool = False  # hold training pictures out and judge by them instead of the test pictures

    def __init__(self, **fields: Any) -> None:
        try:
            super().__init__(**fields)
        except ValidationError as error:
            raise SpecError(_explain(error, fields)) from None

    @field_validator("settings", mode="before")
    @classmethod
    def _checked(cls, changes: Any, known: ValidationInfo) -> Changes:
        return departures(known.data["method"], changes) if "method" in known.data else ()

    @model_validator(mode="after")
    def _resolve(self) -> Self:
        if self.k is None:
            object.__setattr__(self, "k", self.depth)
        if self.k > self.depth:
            raise ValueError(f"k = {self.k} is impossible with depth = {self.depth}: allowed is 0..{self.depth}")
        if not self.final_norm and self.method in ("ep", "sb", "cb"):
            raise ValueError(f"final_norm = False is impossible with {self.method}, which reads credit through it")
        if self.network != "resmlp" and self.method not in ("bp", "fa", "dfa"):
            raise ValueError(f"network = {self.network} is impossible with {self.method}: only bp, fa and dfa train it")
        if self.network != "resmlp" and not self.final_norm:
            raise ValueError(f"final_norm = False is impossible with network = {self.network}")
        if self.network == "vit" and self.width % 4:
            raise ValueError(f"width = {self.width} is impossible with network = vit, which has four heads")
        if self.hidden == self.width:
            object.__setattr__(self, "hidden", None)
        if self.normalise == own_normalisation(self.method):
            object.__setattr__(self, "normalise", None)
        return self

    @property
    def normalisation(self) -> Normalise:
        return self.normalise or own_normalisation(self.method)

    @property
    def rule_settings(self) -> Any:
        """Those of its rule, all of them; None for a rule that has none."""
        return replace(DEFAULTS[self.method], **dict(self.settings)) if self.method in DEFAULTS else None

    @property
    def steps(self) -> int:
        """Training steps of the whole run."""
        whole = TRAIN_PICTURES[self.data] - HELD_OUT[self.data] * self.validation
        return self.epochs * -(-(self.train_size or whole) // self.batch)

    def departures(self) -> dict[str, Any]:
        """The fields that differ from their default, the only ones the key sees."""
        fields = type(self).model_fields
        values = {name: getattr(self, name) for name in fields if getattr(self, name) != fields[name].default}
        if self.k == self.depth:
            values.pop("k")
        return values

    @property
    def key(self) -> str:
        digest = hashlib.sha256(json.dumps([RECIPE, self.departures()], sort_keys=True).encode()).hexdigest()
        return f"{self.method}-d{self.width}-L{self.depth}-k{self.k}-e{self.epochs}-s{self.seed}-{digest[:8]}"

    def but(self, **changes: Any) -> "RunSpec":
        """The same run with some fields changed (and checked again)."""
        return RunSpec(**(self.model_dump() | changes))

    def frozen(self) -> "RunSpec":
        """The D3 reference: the same run with every block left at its random init."""
        return self.but(k=0, penalty=0.0)


def own_normalisation(method: str) -> Normalise:
    """BP uses its exact gradient; local methods rescale each sample's credit to rms 1."""
    return "none" if method == "bp" else "sample"


def _explain(error: ValidationError, fields: dict[str, Any]) -> str:
    lines = []
    for problem in error.errors():
        name, said = ".".join(map(str, problem["loc"])), problem["msg"].removeprefix("Value error, ")
        if problem["type"] == "extra_forbidden":
            near = get_close_matches(name, RunSpec.model_fields, n=1)
            hint = f"did you mean {near[0]!r}?" if near else f"fields are {', '.join(RunSpec.model_fields)}"
            lines.append(f"unknown field {name!r}: {hint}")
        elif isinstance(problem["input"], str) and problem["type"].startswith("float"):
            lines.append(f"{name}: {problem['input']!r} is a string, not a number (in YAML write 1.0e-3, not 1e-3)")
        elif problem["type"] == "value_error":
            lines.append(f"{name}: {said.removeprefix(f'{name}: ')}" if name else said)
        else:
            lines.append(f"{name} = {fields.get(name)!r}: {said.lower()}")
    return "; ".join(lines)
