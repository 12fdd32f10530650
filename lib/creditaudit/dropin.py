"""`creditaudit.audit(model, x, y)`: D1, D2 and D3 for anybody's torch classifier.

The model is run as it is, and left as it was. What enters a block, call by call, are the states h_0 .. h_{L-1}; a block
that is called twice (shared weights) counts twice. The last state h_L is what leaves the last block where the blocks
hand on the stream themselves, and what enters the next module where the skip is added outside; one backward pass gives
the gradient there. Nothing about how the model was trained is needed, except for D3: the accuracy of the same model
trained with its blocks frozen.
"""

from collections.abc import Iterable, Sequence
from dataclasses import dataclass

import torch
from torch import Tensor, nn
from torch.nn.functional import cross_entropy

from creditaudit import diagnosis
from creditaudit.diagnosis import D1_LIMIT, D2_FLOOR, D3_GAIN
from creditaudit.stream import Stream

BATCH = 128  # the study's: ||g_L|| of a mean loss shrinks with the batch


@dataclass(frozen=True)
class Audit:
    """What the diagnostics say. `gain` and `d3` are None where no frozen accuracy was given."""

    blocks: list[str]  # names of the audited modules
    accuracy: float
    h_norm: list[float]  # median ||h_l||, l = 0..L
    growth: float  # D1: max_l of h_norm[l+1] / h_norm[l]
    g_norm: float  # D2: median ||dCE/dh_L|| as a mean CE over 128 pictures has it
    g_norm_per_sample: float  # the same, free of the batch size
    gain: float | None  # D3: accuracy minus the frozen model's

    @property
    def d1(self) -> bool:
        return diagnosis.scale_is_stable(self.growth)

    @property
    def d2(self) -> bool:
        return diagnosis.reference_is_valid(self.g_norm)

    @property
    def d3(self) -> bool | None:
        return diagnosis.depth_is_used(self.gain)

    @property
    def verdict(self) -> str:
        return diagnosis.verdict(self.growth, self.g_norm, self.gain)

    def __str__(self) -> str:
        gain = "not measured: pass frozen_accuracy" if self.gain is None else f"{self.gain:+.3f}"
        return (
            f"{self.verdict}\n"
            f"  D1 scale stability     growth {self.growth:.3g} (fails above {D1_LIMIT:g})\n"
            f"  D2 reference validity  ||g_L|| {self.g_norm:.3g} (fails below {D2_FLOOR:g}), "
            f"{self.g_norm_per_sample:.3g} per sample\n"
            f"  D3 depth utility       {gain} (must be at least {D3_GAIN:+.2f})\n"
            f"  accuracy {self.accuracy:.4f}; blocks: {', '.join(self.blocks)}"
        )


def audit(
    model: nn.Module,
    x: Tensor,
    y: Tensor,
    blocks: Sequence[nn.Module] | None = None,
    frozen_accuracy: float | None = None,
) -> Audit:
    """D1-D3 of a classifier that returns logits [n, classes] for test pictures x with labels y.

    `blocks` are the modules whose inputs are the states of the stream; by default the longest `nn.ModuleList` or
    `nn.Sequential` in the model that is not inside another one.
    """
    if not isinstance(model, nn.Module):
        raise TypeError(f"model is a {type(model).__name__}: audit watches the modules of an nn.Module")
    x, y = _checked(x, y, frozen_accuracy)
    if any(parameter.is_inference() for parameter in model.parameters()):
        raise ValueError(
            "the model was built under torch.inference_mode, so no gradient can be taken: build it outside"
        )
    chosen = _checked_blocks(model, blocks) if blocks is not None else _outer_list(model)
    modes = {module: module.training for module in model.modules()}
    model.eval()
    try:
        with torch.inference_mode(False), torch.enable_grad():
            parts = [_examine(model, chosen, *batch) for batch in zip(x.split(BATCH), y.split(BATCH), strict=True)]
    finally:
        model.train(modes[model])  # for modules that do more than set a flag
        for module, mode in modes.items():
            module.training = mode
    h, g, hits = (torch.cat(part, -1) for part in zip(*parts, strict=True))
    h_norm, per_sample = h.median(1).values, g.median().item()
    accuracy = hits.double().mean().item()
    return Audit(
        blocks=_names(model, chosen),
        accuracy=accuracy,
        h_norm=h_norm.tolist(),
        growth=(h_norm[1:] / h_norm[:-1]).max().item(),
        g_norm=per_sample / BATCH,
        g_norm_per_sample=per_sample,
        gain=None if frozen_accuracy is None else accuracy - float(frozen_accuracy),
    )


def _examine(model: nn.Module, blocks: list[nn.Module], x: Tensor, y: Tensor) -> tuple[Tensor, Tensor, Tensor]:
    """Row norms of h_0..h_L [L+1, n], of every sample's own gradient at h_L [n], and hits [n]."""
    x, y = (tensor.clone() if tensor.is_inference() else tensor for tensor in (x, y))
    with Stream(model, blocks) as stream:
        logits = model(x)
    _check_logits(logits, y)
    if not logits.requires_grad:
        raise ValueError("no gradient reaches the model's output: its forward runs under no_grad, or detaches")
    states = stream.norms(len(x))
    # the sum, not the mean, of the losses: a sample's gradient is then its own, whatever the batch
    gradient = _gradient(cross_entropy(logits, y, reduction="sum"), stream)
    return states, torch.linalg.vector_norm(gradient.double().flatten(1), dim=-1), logits.argmax(-1) == y


def _gradient(loss: Tensor, stream: Stream) -> Tensor:
    """At h_L; a readout that learns alone detaches h_L, and then as it was given to the readout."""
    for state in (stream.last(), stream.passed):
        if state is not None:
            (gradient,) = torch.autograd.grad(loss, state, retain_graph=True, allow_unused=True)
            if gradient is not None:
                return gradient
    raise ValueError(
        "no gradient reaches the last state: it is detached before a module gets it. Make what follows the blocks (a "
        "functional norm) a module, or audit without the detach"
    )


def _checked(x: Tensor, y: Tensor, frozen_accuracy: float | None) -> tuple[Tensor, Tensor]:
    for name, value in (("x", x), ("y", y)):
        if not isinstance(value, Tensor):
            raise TypeError(f"{name} is a {type(value).__name__}: audit takes tensors, x [n, ...] and y [n]")
    if y.dim() != 1 or y.is_floating_point() or y.dtype == torch.bool:
        raise ValueError(f"y must hold one class number per picture, [n] integers; it is {list(y.shape)} of {y.dtype}")
    if len(x) != len(y) or not len(x):
        raise ValueError(f"{len(x)} pictures and {len(y)} labels: there must be as many of each, and at least one")
    if x.is_floating_point() and not x.isfinite().all():
        raise ValueError("x holds values that are not finite: what fails would be the pictures, not the model")
    if frozen_accuracy is not None and not _is_fraction(frozen_accuracy):
        raise ValueError(f"frozen_accuracy = {frozen_accuracy!r} is not in 0..1: a fraction, not a percentage")
    return x, y.long()


def _is_fraction(value: object) -> bool:
    """Numbers of numpy and torch are numbers too."""
    try:
        return not isinstance(value, str) and 0 <= float(value) <= 1
    except (TypeError, ValueError, RuntimeError):
        return False


def _check_logits(logits: Tensor, y: Tensor) -> None:
    if not isinstance(logits, Tensor) or logits.dim() != 2 or len(logits) != len(y):
        seen = list(logits.shape) if isinstance(logits, Tensor) else type(logits).__name__
        raise ValueError(f"the model must return logits [n, classes]; for {len(y)} pictures it returned {seen}")
    if not logits.is_floating_point():
        raise ValueError(f"the model returned {logits.dtype}: audit needs logits, not class numbers")
    if y.min() < 0 or y.max() >= logits.shape[1]:
        raise ValueError(f"labels run from {y.min()} to {y.max()}, but the model has {logits.shape[1]} outputs")
    rows, close = logits.detach().double(), max(1e-4, 4 * torch.finfo(logits.dtype).eps)
    if logits.shape[1] > 1 and (rows >= 0).all() and torch.allclose(rows.sum(1), rows.new_ones(()), atol=close):
        raise ValueError("the model's outputs are probabilities: audit needs the logits before the softmax")


def _checked_blocks(model: nn.Module, blocks: Sequence[nn.Module]) -> list[nn.Module]:
    if not isinstance(blocks, Iterable):
        raise TypeError(f"blocks is a {type(blocks).__name__}: pass a list of modules, blocks=[...]")
    blocks, known = list(blocks), set(model.modules())
    for block in blocks:
        if not isinstance(block, nn.Module) or block not in known:
            raise ValueError(f"blocks must be modules of this model; {block!r:.60} is none")
    if not blocks:
        raise ValueError("blocks is empty: name the modules to audit")
    return list(dict.fromkeys(blocks))


def _outer_list(model: nn.Module) -> list[nn.Module]:
    lists = {name: m for name, m in model.named_modules() if isinstance(m, nn.ModuleList | nn.Sequential)}
    inside = {part for module in lists.values() for part in module.modules() if part is not module}
    outer = {name: module for name, module in lists.items() if module not in inside and len(module)}
    longest = [name for name, module in outer.items() if len(module) == max(map(len, outer.values()))]
    if not longest:
        raise ValueError("no nn.ModuleList or nn.Sequential in this model: pass blocks=[...], the modules to audit")
    if len(longest) > 1:
        raise ValueError(f"{', '.join(longest)} are equally long: pass blocks=[...], the modules to audit")
    return list(dict.fromkeys(outer[longest[0]]))


def _names(model: nn.Module, blocks: list[nn.Module]) -> list[str]:
    names = {module: name for name, module in model.named_modules()}
    return [names[block] for block in blocks]
