"""The slow literal version: plain torch modules, autograd, one AdamW per part. What the engine must equal."""

import torch
from torch import Tensor
from torch.nn.functional import cross_entropy, one_hot

from creditaudit.model import ResMLP
from creditaudit.spec import RunSpec


def rms_normalised(a: Tensor, mode: str) -> Tensor:
    if mode == "none":
        return a
    dims = -1 if mode == "sample" else (0, 1)
    return a / (a.square().mean(dims, keepdim=True).sqrt() + 1e-6)


def local_losses(spec: RunSpec, module: ResMLP, feedback: Tensor, x: Tensor, y: Tensor) -> Tensor:
    """The sum of every part's own loss, each on detached inputs (for BP: the task loss and its penalties)."""
    h = module.states(x)
    trained = range(spec.depth - spec.k, spec.depth)
    if spec.method == "bp":
        fs = [h[l + 1] - h[l] for l in trained]
        return cross_entropy(module.readout(h[-1]), y) + sum(spec.penalty * f.square().sum(-1).mean() for f in fs)
    h = [state.detach() for state in h]
    loss = cross_entropy(module.readout(h[-1]), y)
    credit, embed_credit = credits(spec, module, feedback, h[-1], y)
    for l in trained:
        f = module.blocks[l](h[l])
        loss = loss + (f * rms_normalised(credit[l], spec.normalisation)).sum(-1).mean()
        loss = loss + spec.penalty * f.square().sum(-1).mean()
    return loss + (module.embed(x) * rms_normalised(embed_credit, spec.normalisation)).sum(-1).mean()


def credits(spec: RunSpec, module: ResMLP, feedback: Tensor, h_last: Tensor, y: Tensor) -> tuple[list[Tensor], Tensor]:
    """What drives each block, and the embed, straight from the definitions."""
    top = h_last.clone().requires_grad_()
    logits = module.readout(top)
    (g_last,) = torch.autograd.grad(cross_entropy(logits, y), top)
    error = (logits.softmax(-1) - one_hot(y, logits.shape[-1])).detach()
    if spec.method == "dfa":
        return [error @ feedback[l] for l in range(spec.depth)], error @ feedback[0]
    a = [g_last]  # FA: a_L, a_{L-1}, ..., a_0
    for l in reversed(range(spec.depth)):
        a.insert(0, a[0] @ feedback[l])
    return a[1:], a[0]


def optimizers(spec: RunSpec, module: ResMLP) -> list[torch.optim.AdamW]:
    """One AdamW per trained part: embed, each of the last k blocks, readout."""
    parts = [module.embed.parameters(), [*module.norm.parameters(), *module.head.parameters()]]
    parts += [block.parameters() for block in module.blocks[spec.depth - spec.k :]]
    return [torch.optim.AdamW(part, lr=spec.lr, weight_decay=spec.weight_decay) for part in parts]


def step(spec: RunSpec, module: ResMLP, feedback: Tensor, parts: list[torch.optim.AdamW], x: Tensor, y: Tensor) -> None:
    module.zero_grad()
    local_losses(spec, module, feedback, x, y).backward()
    for part in parts:
        part.step()
