"""What a record must hold: which numbers, how many of them, in which range.

A checksum tells that a file is as it was written; whether what was written can be a run is told here, once, so that
whoever reads a record may rely on it.
"""

from typing import Annotated, Any

from pydantic import AfterValidator, BaseModel, ConfigDict, Field, ValidationError

from creditaudit.mistakes import legible

Number = Annotated[float, Field(allow_inf_nan=False)] | None  # None: not finite, or not measured
Norm = Annotated[float, Field(ge=0, allow_inf_nan=False)] | None
Share = Annotated[float, Field(ge=0, le=1)]


def _line(text: str) -> str:
    if not text.isprintable():
        raise ValueError("must be one printable line")
    return text


Line = Annotated[str, Field(max_length=500), AfterValidator(_line)]  # it is told on terminals and pages


class Part(BaseModel):
    """Further names are allowed: later logs, other rules'."""

    model_config = ConfigDict(strict=True, extra="allow", frozen=True)


class Null(Part):
    mean: Number
    std: Number
    draws: int


class Final(Part):
    """The closing diagnostics; per state l = 0..L or per block."""

    test_accuracy: Share
    growth: Norm
    stability: Number
    h_norm: list[Norm]
    g_norm: list[Norm]
    g_norm_per_sample: list[Norm]
    block_growth: list[Norm]
    drift: list[Norm]
    gamma_in: list[Number]
    gamma_out: list[Number]
    gamma_in_clamped: list[Number]
    gamma_ceiling: list[Number]
    gamma_undefined: list[int]
    gamma_samples: int
    gamma_null: Null | None
    fresh_null: Null | None
    rho_in: list[Number]
    rho_out: list[Number]
    rho_scaled_in: list[Number]
    nudge_in: dict[str, list[Number]]
    nudge_out: dict[str, list[Number]]


class Epochs(Part):
    """Trajectories: one entry per epoch each."""

    __pydantic_extra__: dict[str, list[Number | list[Number]]]
    train_loss: list[Number]
    train_accuracy: list[Share]
    test_accuracy: list[Share]
    h_norm: list[list[Norm]]
    g_norm: list[list[Norm]]


class Maker(Part):
    commit: Line
    dirty: bool = False
    python: Line = ""
    torch: Line = ""
    numpy: Line = ""
    cpu: Line = ""
    device: Line = "cpu"


class Provenance(Maker):
    cpu_seconds: float = Field(gt=0, allow_inf_nan=False)
    wall_seconds: float = Field(0.0, ge=0, allow_inf_nan=False)
    threads: int = 1
    resumed_from: list[Maker] = []


class Contents(Part):
    epochs: Epochs
    final: Final
    provenance: Provenance


STATES = ("h_norm", "g_norm", "g_norm_per_sample")
BLOCKS = (
    "block_growth", "drift", "gamma_in", "gamma_out", "gamma_in_clamped", "gamma_ceiling", "gamma_undefined",
    "rho_in", "rho_out", "rho_scaled_in",
)  # fmt: skip
NUDGES = ("0.01", "0.003")


def fault(body: dict[str, Any], depth: int, epochs: int) -> str | None:
    """Why this cannot be what a run of so many blocks and epochs left behind; None where it can."""
    try:
        contents = Contents.model_validate({name: body.get(name) for name in Contents.model_fields})
    except ValidationError as error:
        problem = error.errors()[0]
        place = legible(".".join(map(str, problem["loc"])))
        return f"{place}: {problem['msg'].removeprefix('Value error, ').lower()}"
    final, log = contents.final, contents.epochs
    lengths = {f"epochs.{name}": (series, epochs) for name, series in log}
    norms = (("h_norm", log.h_norm), ("g_norm", log.g_norm))
    lengths |= {f"epochs.{name}[{i}]": (row, depth + 1) for name, rows in norms for i, row in enumerate(rows)}
    lengths |= {f"final.{name}": (getattr(final, name), depth + 1) for name in STATES}
    lengths |= {f"final.{name}": (getattr(final, name), depth) for name in BLOCKS}
    lengths |= {
        f"final.{name}.{size}": (getattr(final, name).get(size, []), depth)
        for name in ("nudge_in", "nudge_out")
        for size in NUDGES
    }
    wrong = ((name, len(entries), wanted) for name, (entries, wanted) in lengths.items() if len(entries) != wanted)
    return next((f"{legible(name)} has {found} entries, not {wanted}" for name, found, wanted in wrong), None)
