"""`creditaudit.alignment(model, credits, x, y)`: how the vectors that drive the blocks stand to the gradient.

Conventions are the study's: a block's credit against the gradient where the block is entered (`_in`), and, as is more
just to a vector that trains the block's weights, where it is left (`_out`); cosines keep their sign, and samples for
which there is none are counted. The ceiling is what the exact gradient behind the block would reach at its input.
The null is that of directions drawn sample by sample; feedback that all samples share scatters more than that.
Where autograd does not return the gradient, all of this is measured by differences of the loss.
"""

import inspect
import math
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any

import torch
from torch import Tensor, nn

from creditaudit.measure import differences, inputs, rich
from creditaudit.measure.conditions import LOOK, as_it_was, find_path
from creditaudit.measure.differences import Losses
from creditaudit.measure.inputs import AuditError, Batch
from creditaudit.measure.passage import Path

if TYPE_CHECKING:
    import pandas as pd
    from matplotlib.figure import Figure

ETA = 0.01  # of nudging: the state moves by -eta a / rms(a)
STEP = 1e-5  # of rho, in norms of the state; larger where the model does not run in float64
RHO_DIRECTIONS = 32
Credits = Sequence[Tensor] | Callable[[Any, Tensor], Sequence[Tensor]] | None


@dataclass(frozen=True)
class BlockAlignment:
    """One call of a block. None: not defined for any sample, or the credit has not that state's shape."""

    block: str
    cosine_in: float | None
    cosine_out: float | None
    ceiling: float | None  # cosine of the gradient behind the block with the one before it
    null_std: float  # of the mean cosine of random directions at the block's input; its mean is 0
    rho_in: float | None  # correlation of <credit, move> with the change of the loss
    rho_out: float | None
    nudge_in: float | None  # mean change of the loss when the state moves against the credit: helps below 0
    nudge_out: float | None
    undefined: int  # samples without a cosine: no credit, or no gradient


@dataclass(frozen=True, repr=False)
class Alignment:
    blocks: list[BlockAlignment]
    n: int
    reference: str  # autograd, or differences
    notes: list[str] = field(default_factory=list)

    def to_dict(self, prefix: str = "") -> dict[str, float]:
        """Flat names and plain numbers; what is not defined is left out."""
        flat = {f"{prefix}{name}/{l}": value for l, row in enumerate(self.blocks) for name, value in vars(row).items()}
        return {name: value for name, value in flat.items() if not isinstance(value, str | None)}

    def to_frame(self) -> "pd.DataFrame":
        """One row per block."""
        import pandas as pd

        return pd.DataFrame([vars(row) for row in self.blocks])

    def __repr__(self) -> str:
        head = f"alignment over n = {self.n} samples, gradient by {self.reference}"
        return "\n".join([head, self.to_frame().to_string(index=False), *(f"  note: {note}" for note in self.notes)])

    def _repr_html_(self) -> str:
        head = f"alignment over n = {self.n} samples, gradient by {self.reference}"
        return rich.page(head, [self.to_frame()], self.notes)

    def plot(self) -> "Figure":
        """Cosines block by block, between the null band (± 1.96 std) and the ceiling."""
        from matplotlib.figure import Figure

        frame, figure = self.to_frame(), Figure(figsize=(4.5, 2.8), layout="constrained")
        ax, band = figure.subplots(), 1.96 * frame.null_std
        ax.fill_between(frame.index, -band, band, color="0.85", label="random directions")
        for name, style in (("ceiling", "k_"), ("cosine_in", "ko"), ("cosine_out", "k^")):
            ax.plot(frame.index, frame[name].astype(float), style, label=name, fillstyle="none")
        ax.set(xlabel="block", ylabel="cosine with the gradient", ylim=(-1.05, 1.05), xticks=frame.index)
        ax.legend(fontsize=7)
        return figure


def alignment(
    model: nn.Module,
    credits: Credits,
    x: Any,
    y: Tensor | None = None,
    blocks: Sequence[nn.Module | str] | None = None,
) -> Alignment:
    """Signed cosine, rho and nudging of every block's credit, with null band, ceiling and the count of undefined.

    `credits` holds one tensor per call of a block, [n, ...] in the shape of the state before or behind it; or is a
    function of (x, y) that returns them for a batch; or None for what `backward` sends to the blocks, the gradient
    or what a library puts in its place.
    """
    inputs.check_model(model)
    if not callable(credits) and credits is not None and inputs.is_shuffled(x):
        raise AuditError(
            "the loader shuffles, so that no row of the credits is known to belong to its picture: pass a function of "
            "(x, y) that returns them, or a loader with shuffle=False"
        )
    with as_it_was(model):
        look, given = inputs.opening(inputs.batches(model, x, y), LOOK)
        path = find_path(model, blocks, look)
        reference = differences.check(model, path, look)
        by_autograd = reference.last and reference.lower
        sheets, n = [], 0
        for batch in given:
            sheets.append(_Sheet(model, path, batch, _of_batch(credits, batch, n, path), by_autograd))
            n += len(batch)
        if not callable(credits) and (longer := max(map(len, credits or []), default=0)) > n:
            raise AuditError(f"the credits have {longer} rows for {n} pictures: pass one row for each, in their order")
        rows = [_row(sheets, path, call) for call in range(len(path.before))]
    replaced = "autograd does not return the gradient here: cosines are measured by differences, without a ceiling"
    notes = [] if by_autograd else [replaced]
    for what, counts in (("not finite", "wild"), ("zero", "silent")):
        counted = [sum(getattr(sheet, counts)[call] for sheet in sheets) for call in range(len(rows))]
        if where := ", ".join(f"{row.block} {count}" for row, count in zip(rows, counted, strict=True) if count):
            notes.append(f"the credit is {what} for some of the {n} samples, which have no cosine ({where})")
    return Alignment(rows, n, "autograd" if by_autograd else "differences", notes)


def _of_batch(credits: Credits, batch: Batch, start: int, path: Path) -> list[Tensor] | None:
    if credits is None:
        return None
    if callable(credits):
        found = _answer(credits, batch.arguments[0] if batch.arguments else batch.named, batch.y)
    elif isinstance(credits, Sequence):
        found = [each[start : start + len(batch)] if isinstance(each, Tensor) else each for each in credits]
    else:
        kind = type(credits).__name__
        raise AuditError(f"credits is a {kind}: pass one tensor per call of a block, a function or None")
    names = path.calls[: len(path.before)]
    if len(found) != len(names):
        raise AuditError(
            f"{len(found)} credits for {len(names)} calls of blocks: there must be one for each, in their order "
            f"({', '.join(names)})"
        )
    for credit, name in zip(found, names, strict=True):
        if not isinstance(credit, Tensor) or len(credit) != len(batch):
            seen = len(credit) if isinstance(credit, Tensor) else type(credit).__name__
            raise AuditError(
                f"the credit of {name} must be a tensor with a row per picture ({len(batch)}); it is {seen}"
            )
    return [credit.detach().double() for credit in found]


def _answer(credits: Callable, x: Any, y: Tensor) -> list[Any]:
    try:
        inspect.signature(credits).bind(x, y)
    except TypeError as error:
        raise AuditError(f"credits is called with (x, y) and does not take them ({error}): let it be f(x, y)") from None
    except ValueError:  # of a builtin nothing is known
        pass
    if not isinstance(found := credits(x, y), Iterable):
        raise AuditError(f"credits returned a {type(found).__name__}: let it return one tensor per call of a block")
    return list(found)


class _Sheet:
    """One batch: its losses as a function of moves, the gradients if autograd has them, the credits."""

    def __init__(
        self, model: nn.Module, path: Path, batch: Batch, credits: list[Tensor] | None, by_autograd: bool
    ) -> None:
        self.losses, self.by_autograd, self.steep = Losses(model, path, batch), by_autograd, {}
        self.sent = self.losses.gradients() if by_autograd or credits is None else []
        if credits is None:  # what arrives where a block is left drives it
            credits = [self.sent[l].view_as(self.losses.states[l]) for l in path.after]
        self.shapes = [each.shape[1:] for each in credits]
        self.credits = [each.reshape(len(each), -1) for each in credits]
        finite = [each.isfinite().all(-1, keepdim=True) for each in self.credits]
        self.credits = [each.where(known, 0.0) for each, known in zip(self.credits, finite, strict=True)]
        self.wild = [int((~known).sum()) for known in finite]
        silent = [int((each == 0).all(-1).sum()) for each in self.credits]
        self.silent = [zeros - wild for zeros, wild in zip(silent, self.wild, strict=True)]

    def cosines(self, vectors: Tensor, place: int) -> Tensor:
        """Row cosines with the gradient, without any clamp; nan where one vector is zero."""
        vectors = _near_one(vectors)
        length = torch.linalg.vector_norm(vectors, dim=-1)
        if self.by_autograd:
            along = torch.linalg.vecdot(vectors, self.sent[place])
        else:
            unit = vectors / length.where(length > 0, 1.0)[:, None] * self.losses.lengths[place][:, None]
            along = self.losses.slopes([{place: unit}]).values[0] / self.losses.lengths[place] * length
        both = length * self.steepness(place)
        return along / torch.where(both > 0, both, torch.nan)

    def steepness(self, place: int) -> Tensor:
        """||g|| of every sample."""
        if self.by_autograd:
            return torch.linalg.vector_norm(self.sent[place], dim=-1)
        if place not in self.steep:
            self.steep[place] = differences.gradient_norms(self.losses, place, differences.DIRECTIONS)
        return self.steep[place]

    def change(self, place: int, moves: Sequence[Tensor]) -> Tensor:
        return (self.losses.moved([{place: move} for move in moves]) - self.losses.base).flatten()

    def rho_pairs(self, call: int, place: int, scale: float) -> tuple[Tensor, Tensor]:
        generator = torch.Generator().manual_seed(1000 + place)
        step = STEP if self.losses.dtype == torch.float64 else differences.COARSE_STEPS[0]
        shape = (RHO_DIRECTIONS, *self.losses.states[place].flatten(1).shape)
        moves = torch.randn(shape, generator=generator, dtype=torch.float64).to(self.losses.y.device)
        moves *= step * self.losses.lengths[place][:, None] / torch.linalg.vector_norm(moves, dim=-1, keepdim=True)
        return torch.linalg.vecdot(self.credits[call] / scale, moves).flatten(), self.change(place, moves)

    def nudged(self, call: int, place: int) -> Tensor:
        a = _near_one(self.credits[call])
        return self.change(place, [-ETA * a / a.square().mean(-1, keepdim=True).sqrt()])


def _row(sheets: list[_Sheet], path: Path, call: int) -> BlockAlignment:
    first, before, after = sheets[0], path.before[call], path.after[call]
    own, entered, left = first.shapes[call], *(first.losses.states[place].shape[1:] for place in (before, after))
    if own not in (entered, left):
        raise AuditError(
            f"the credit of {path.calls[call]} is {list(own)} for a picture: neither what enters that block "
            f"({list(entered)}) nor what leaves it ({list(left)})"
        )
    scale = max(sheet.credits[call].abs().max().item() for sheet in sheets) or 1.0  # of rho: one for all samples
    found: dict[str, float | None] = {}
    for side, place, shape in (("out", after, left), ("in", before, entered)):
        if own != shape:
            found |= {f"cosine_{side}": None, f"rho_{side}": None, f"nudge_{side}": None}
            continue
        cosines = torch.cat([sheet.cosines(sheet.credits[call], place) for sheet in sheets])
        pairs = zip(*(sheet.rho_pairs(call, place, scale) for sheet in sheets[:4]), strict=True)
        found |= {
            f"cosine_{side}": _mean(cosines),
            f"rho_{side}": _finite(torch.corrcoef(torch.stack([torch.cat(each) for each in pairs]))[0, 1].item()),
            f"nudge_{side}": _mean(torch.cat([sheet.nudged(call, place) for sheet in sheets])),
        }
    ceiling = None
    if left == entered and first.by_autograd:
        ceiling = _mean(torch.cat([sheet.cosines(sheet.sent[after], before) for sheet in sheets]))
    undefined = int((~cosines.isfinite()).sum())
    defined = len(cosines) - undefined
    null = 1 / math.sqrt(entered.numel() * defined) if defined else math.nan
    return BlockAlignment(block=path.calls[call], ceiling=ceiling, null_std=null, undefined=undefined, **found)


def _near_one(vectors: Tensor) -> Tensor:
    """Rows times powers of two, which changes no digit: squares of 1e200 and of 1e-200 are no numbers any more."""
    exponents = torch.frexp(vectors.abs().amax(-1, keepdim=True)).exponent.clamp(-1000, 1000)
    return torch.ldexp(vectors, -exponents)


def _mean(values: Tensor) -> float | None:
    return _finite(values[values.isfinite()].mean().item())


def _finite(value: float) -> float | None:
    return value if math.isfinite(value) else None
