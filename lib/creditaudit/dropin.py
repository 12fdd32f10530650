"""`creditaudit.audit(model, x, y)`: D1, D2 and D3 for anybody's torch model.

The model is run as it is. Forward hooks catch what enters each block, the states h_0 .. h_{L-1}. The last state h_L is
what leaves the last block where the blocks hand on the stream themselves, and what enters the next module where the
skip is added outside; one backward pass gives the gradient there. All states must be of one shape, else their norms are
not comparable. Nothing about how the model was trained is needed, except for D3: the accuracy of the same model trained
with its blocks frozen.
"""

from collections.abc import Sequence
from dataclasses import dataclass
from functools import partial
from itertools import pairwise

import torch
from torch import Tensor, nn
from torch.nn.functional import cross_entropy

from creditaudit.diagnostics import largest
from creditaudit.metrics import D1_LIMIT, D2_FLOOR, D3_GAIN

BATCH = 128  # the study's: ||g_L|| of a mean loss shrinks with the batch


@dataclass(frozen=True)
class Audit:
    """What the diagnostics say. `gain` and `d3` are None where no frozen accuracy was given."""

    accuracy: float
    h_norm: list[float]  # median ||h_l||, l = 0..L
    growth: float  # D1: max_l of h_norm[l+1] / h_norm[l]
    g_norm: float  # D2: median ||dCE/dh_L||, mean CE over batches of 128
    g_norm_per_sample: float  # the same, free of the batch size
    gain: float | None  # D3: accuracy minus the frozen model's

    @property
    def d1(self) -> bool:
        return self.growth <= D1_LIMIT

    @property
    def d2(self) -> bool:
        return self.g_norm >= D2_FLOOR

    @property
    def d3(self) -> bool | None:
        return None if self.gain is None else self.gain >= D3_GAIN

    @property
    def verdict(self) -> str:
        """PASS, or FAIL(D1+D2) and so on; what was not measured is not judged."""
        failed = [name for name in ("d1", "d2", "d3") if getattr(self, name) is False]
        return f"FAIL({'+'.join(failed).upper()})" if failed else "PASS"

    def __str__(self) -> str:
        gain = "not measured: pass the accuracy with frozen blocks" if self.gain is None else f"{self.gain:+.3f}"
        return (
            f"{self.verdict}\n"
            f"  D1 scale stability     growth {self.growth:.3g} (fails above {D1_LIMIT:g})\n"
            f"  D2 reference validity  ||g_L|| {self.g_norm:.3g} (fails below {D2_FLOOR:g}), "
            f"{self.g_norm_per_sample:.3g} per sample\n"
            f"  D3 depth utility       {gain} (must be at least {D3_GAIN:+.2f})\n"
            f"  accuracy {self.accuracy:.4f}"
        )


def audit(
    model: nn.Module,
    x: Tensor,
    y: Tensor,
    blocks: Sequence[nn.Module] | None = None,
    frozen_accuracy: float | None = None,
) -> Audit:
    """D1-D3 of a classifier on test pictures x with labels y.

    `blocks` are the modules whose inputs are the states of the stream; by default the longest `nn.ModuleList` or
    `nn.Sequential` in the model that is not inside another one.
    """
    chosen = list(blocks) if blocks is not None else _outer_list(model)
    training = model.training
    model.eval()
    try:
        sheets = [_examine(model, chosen, xb, yb) for xb, yb in zip(x.split(BATCH), y.split(BATCH), strict=True)]
    finally:
        model.train(training)
    h_norm = torch.cat([norms for norms, _, _ in sheets], 1).median(1).values.tolist()
    gradients = torch.cat([g for _, g, _ in sheets])
    sizes = torch.cat([torch.full_like(g, len(g)) for _, g, _ in sheets])
    accuracy = sum(hits for _, _, hits in sheets) / len(y)
    return Audit(
        accuracy=accuracy,
        h_norm=h_norm,
        growth=largest([after / before for before, after in pairwise(h_norm)]),
        g_norm=gradients.median().item(),
        g_norm_per_sample=(gradients * sizes).median().item(),
        gain=None if frozen_accuracy is None else accuracy - frozen_accuracy,
    )


def _examine(model: nn.Module, blocks: list[nn.Module], x: Tensor, y: Tensor) -> tuple[Tensor, Tensor, int]:
    """Row norms of h_0..h_L [L+1, n], of g_L [n], and the number of hits."""
    entering: dict[int, Tensor] = {}
    leaving: dict[int, Tensor] = {}
    hooks = [block.register_forward_pre_hook(partial(_catch, entering, l)) for l, block in enumerate(blocks)]
    hooks += [block.register_forward_hook(partial(_catch_output, leaving, l)) for l, block in enumerate(blocks)]
    inner = {module for block in blocks for module in block.modules()}
    after = partial(_catch_next, entering, len(blocks))
    hooks += [m.register_forward_pre_hook(after) for m in model.modules() if m not in inner and not list(m.children())]
    try:
        with torch.enable_grad():
            logits = model(x)
            loss = cross_entropy(logits, y)
            states = _states(entering, leaving, len(blocks))
            (gradient,) = torch.autograd.grad(loss, states[-1])
    finally:
        for hook in hooks:
            hook.remove()
    return torch.stack([_row_norms(h) for h in states]), _row_norms(gradient), int((logits.argmax(-1) == y).sum())


def _states(entering: dict[int, Tensor], leaving: dict[int, Tensor], depth: int) -> list[Tensor]:
    """h_0 .. h_L, or what is wrong with the choice of blocks."""
    if len(leaving) < depth:
        raise ValueError("a block was not called: name the blocks yourself, blocks=[...]")
    hand_on = depth > 1 and all(torch.equal(leaving[l], entering[l + 1]) for l in range(depth - 1))
    last = leaving[depth - 1] if hand_on else entering.get(depth)
    if last is None:
        raise ValueError("nothing follows the last block: name the blocks yourself, blocks=[...]")
    states = [*(entering[l] for l in range(depth)), last]
    if len(shapes := {tuple(h.shape[1:]) for h in states}) > 1:
        raise ValueError(
            f"the states differ in shape ({', '.join(map(str, sorted(shapes)))}), so their norms cannot be compared: "
            "name blocks that keep the stream's shape, blocks=[...]"
        )
    return states


def _catch(states: dict[int, Tensor], l: int, _: nn.Module, inputs: tuple) -> None:
    states[l] = inputs[0]


def _catch_output(states: dict[int, Tensor], l: int, _: nn.Module, __: tuple, output: Tensor) -> Tensor:
    states[l] = output if output.requires_grad else output.requires_grad_()
    return states[l]


def _catch_next(states: dict[int, Tensor], depth: int, _: nn.Module, inputs: tuple) -> tuple:
    """The first module called after the last block."""
    if depth - 1 not in states or depth in states:
        return inputs
    h = inputs[0] if inputs[0].requires_grad else inputs[0].requires_grad_()
    states[depth] = h
    return (h, *inputs[1:])


def _row_norms(tensor: Tensor) -> Tensor:
    return torch.linalg.vector_norm(tensor.detach().double().flatten(1), dim=-1)


def _outer_list(model: nn.Module) -> list[nn.Module]:
    lists = [module for module in model.modules() if isinstance(module, nn.ModuleList | nn.Sequential)]
    inside = {part for module in lists for part in module.modules() if part is not module}
    outer = [list(module) for module in lists if module not in inside]
    if not outer:
        raise ValueError("no nn.ModuleList or nn.Sequential in this model: pass blocks=[...], the modules to audit")
    return max(outer, key=len)
