"""The gradient at a state without backward: by differences of the loss, taken by running the model forward.

Libraries for feedback alignment replace `backward`, and code may detach; autograd then returns something else than the
gradient, or nothing, and nobody is told. What the loss does when a state is moved depends on the forward pass alone.
Differences are taken in float64 where the model runs in it, with its weights converted for the while.
"""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass

import torch
from torch import Tensor, nn
from torch.nn.functional import cross_entropy

from creditaudit.measure.inputs import HALF, AuditError, Batch, run
from creditaudit.measure.passage import Passage, Path

CHECKED, CHECKS = 8, 2  # samples and directions of the check
SAMPLES, DIRECTIONS, LOWER_DIRECTIONS = 64, 32, 8  # of a measurement: at the last state, at those before it
WHOLE = 128  # up to this many numbers in a state, every one is moved: exact instead of sampled
AGREES, COARSE_AGREES = 0.05, 0.25  # relative mismatch up to which autograd is believed; for half precision
STEPS = {torch.float64: (1e-5, 1e-3, 1e-2, 1e-1)}  # relative to the state's norm
COARSE_STEPS = (1e-2, 1e-1)  # where the model runs in its own precision only
TOGETHER = 256  # samples that are run at a time
ROUGH = 0.4  # bend above which agreement says nothing


class Losses:
    """Cross-entropy of every sample as a function of where its states are moved."""

    def __init__(self, model: nn.Module, path: Path, batch: Batch) -> None:
        self.model, self.path, self.y = model, path, batch.y
        self.batch, self.weights = batch, None
        own, seen = Passage(path, keep=True), Passage(path, keep=True)
        with torch.no_grad():
            logits = own.run(model, batch)
        own.check()
        self.dtype = logits.dtype  # in which differences are taken
        self.types = own.types | {logits.dtype}  # of the model
        self.finite = bool(logits.isfinite().all())
        self._convert(logits)
        with torch.no_grad():
            self.base = self._loss(seen)
        if seen.types & HALF:  # a fine step would be rounded away
            self.dtype = torch.float32
        self.states, self.norms = seen.states, seen.norms
        self.lengths = [norm.where(norm > 0, 1.0) for norm in seen.norms]  # of moves

    def _convert(self, logits: Tensor) -> None:
        weights, converted = {}, {}
        for prefix, module in self.model.named_modules():  # a module that is there twice must be swapped once
            for name, tensor in (*module._parameters.items(), *module._buffers.items()):
                if tensor is not None and tensor.is_floating_point():
                    converted.setdefault(tensor, tensor.detach().double())
                    weights[f"{prefix}.{name}".lstrip(".")] = converted[tensor]
        wide = self.batch.double()
        try:
            with torch.no_grad():
                again = run(self.model, wide, weights)
        except AuditError:
            return
        near = 0.2 if self.types & HALF else 1e-2
        if again.dtype == torch.float64 and (again - logits).abs().max() <= near * logits.abs().max():
            self.batch, self.weights, self.dtype = wide, weights, torch.float64

    def _loss(self, passage: Passage, copies: int = 1) -> Tensor:
        batch = self.batch.repeated(copies)
        return cross_entropy(passage.run(self.model, batch, self.weights).double(), batch.y, reduction="none")

    @torch.no_grad()
    def moved(self, moves: Sequence[Mapping[int, Tensor]]) -> Tensor:
        """The losses [K, n] with states moved, several copies of the batch at a time."""
        copies, found = max(1, TOGETHER // len(self.y)), []
        for start in range(0, len(moves), copies):
            some = moves[start : start + copies]
            together = {index: torch.cat([move[index] for move in some]) for index in some[0]}
            found.append(self._loss(Passage(self.path, moves=together), len(some)).view(len(some), -1))
        return torch.cat(found)

    def gradients(self) -> list[Tensor]:
        """What autograd returns at every state, sample by sample [n, d]."""
        seen = Passage(self.path, probe=True)
        with torch.enable_grad():
            return seen.gradients(self._loss(seen).sum())

    def directions(self, index: int, generator: torch.Generator, count: int) -> list[Tensor]:
        """Moves [n, d] as long as the state, each sample's drawn on its own; or along every axis where they are few."""
        state, norm = self.states[index].flatten(1), self.lengths[index][:, None]
        if count >= DIRECTIONS and state.shape[1] <= WHOLE:
            return [norm * axis for axis in torch.eye(state.shape[1], dtype=torch.float64, device=state.device)]
        drawn = torch.randn(count, *state.shape, generator=generator, dtype=torch.float64).to(state.device)
        if count == CHECKS:  # exact zeros are the work of a relu: a max over several of them has no gradient
            drawn *= (state != 0) | (state == 0).all(1, keepdim=True)
        return [norm * move / torch.linalg.vector_norm(move, dim=-1, keepdim=True) for move in drawn]

    def central(self, moves: list[dict[int, Tensor]], step: float) -> tuple[Tensor, Tensor]:
        """Slopes of the losses along the moves [K, n], and half of what the slopes ahead and behind differ by."""
        signed = [{i: t * vector for i, vector in move.items()} for move in moves for t in (step, -step)]
        ahead, behind = self.moved(signed).unflatten(0, (-1, 2)).unbind(1)
        return (ahead - behind) / (2 * step), (ahead + behind - 2 * self.base) / (2 * step)

    def noise(self, step: float) -> float:
        """What rounding makes of a slope."""
        scale = self.base.abs().clamp(min=1).max().item()
        return 16 * torch.finfo(self.dtype).eps * scale / step

    def slopes(self, moves: list[dict[int, Tensor]]) -> "Slopes":
        """With the smallest step at which the loss is smooth and changes by more than rounding, or the best of all."""
        tried = []
        for step in STEPS.get(self.dtype, COARSE_STEPS):
            values, bends = self.central(moves, step)
            found = Slopes(values, step, self.noise(step), _rms(bends) / max(_rms(values), self.noise(step)))
            if found.resolved and found.bend <= AGREES:
                return found
            tried.append(found)
        return min((found for found in tried if found.resolved), key=lambda found: found.bend, default=tried[-1])


@dataclass(frozen=True)
class Slopes:
    values: Tensor  # [K, n]
    step: float
    noise: float
    bend: float  # relative: at a kink (a max over equal numbers) the loss has two slopes, and autograd returns one

    @property
    def resolved(self) -> bool:
        return _rms(self.values) > 10 * self.noise


@dataclass(frozen=True)
class Reference:
    """Whether what autograd returns is the gradient: at the last state, at those before it."""

    last: bool
    lower: bool
    checked: bool
    mismatch: float  # relative, at the last state
    reason: str = ""


def check(model: nn.Module, path: Path, batch: Batch) -> Reference:
    """Autograd's gradient of the model as it runs, against differences of the loss along random directions."""
    part = batch.part(0, CHECKED)
    losses = Losses(model, path, part)
    if not losses.finite or not losses.base.isfinite().all():
        return Reference(True, True, True, float("nan"))  # it diverged: the norms will say so
    seen = Passage(path, probe=True)
    with torch.enable_grad():
        gradients = seen.gradients(cross_entropy(seen.run(model, part), part.y, reduction="sum"))
    generator, last = torch.Generator().manual_seed(0), len(path.places) - 1
    moves = [{last: move} for move in losses.directions(last, generator, CHECKS)]
    agrees, mismatch = _compare(losses, gradients, moves)
    lower = _compare(losses, gradients, _equal_shares(losses, gradients, generator))[0] if last else True
    if agrees is None:
        return Reference(not seen.silence, not seen.silence, False, float("nan"), seen.silence)
    return Reference(agrees, lower is not False, True, mismatch, seen.silence)


def _compare(losses: Losses, gradients: list[Tensor], moves: list[dict[int, Tensor]]) -> tuple[bool | None, float]:
    """None where the loss is too rough to tell."""
    slopes = losses.slopes(moves)
    expected = torch.stack([sum(torch.linalg.vecdot(gradients[i], v) for i, v in move.items()) for move in moves])
    if not slopes.resolved:
        return _rms(expected) <= 20 * slopes.noise, float("nan")
    mismatch = _rms(expected - slopes.values) / _rms(slopes.values)
    agrees = mismatch <= (COARSE_AGREES if losses.types & HALF else AGREES) + 2 * slopes.bend
    return None if agrees and slopes.bend > ROUGH else agrees, mismatch


def _equal_shares(losses: Losses, gradients: list[Tensor], generator: torch.Generator) -> list[dict[int, Tensor]]:
    """Moves of all states before the last at once, such that by autograd each changes the loss about as much."""
    lower = range(len(gradients) - 1)
    reach = [torch.linalg.vector_norm(gradients[l], dim=-1) * losses.lengths[l] for l in lower]
    least = torch.stack([r.where(r > 0, torch.inf) for r in reach]).min(0).values
    shares = [torch.where(r > 0, least / r, 1.0)[:, None] for r in reach]
    drawn = [losses.directions(l, generator, CHECKS) for l in lower]
    return [{l: shares[l] * drawn[l][k] for l in lower} for k in range(CHECKS)]


def gradient_norms(losses: Losses, index: int, directions: int) -> Tensor:
    """||g|| of every sample [n]: of a random direction's slope squared, the mean is ||g||² ||h||² / d."""
    generator = torch.Generator().manual_seed(1 + index)
    few, moves = (
        [{index: move} for move in losses.directions(index, generator, count)] for count in (CHECKS, directions)
    )
    squares = losses.central(moves, losses.slopes(few).step)[0].square().sum(0) / losses.lengths[index].square()
    width = losses.states[index][0].numel()
    if directions >= DIRECTIONS and width <= WHOLE:
        return squares.sqrt()
    typical = (1 - 2 / (9 * len(moves))) ** 3  # the median of chi-square over its mean: medians are what is reported
    return (squares * width / len(moves) / typical).sqrt()


def _rms(values: Tensor) -> float:
    finite = values[values.isfinite()]
    return finite.square().mean().sqrt().item() if len(finite) else float("inf")
