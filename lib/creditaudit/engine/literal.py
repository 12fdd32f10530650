r"""The training loop a person would write: torch modules, autograd, one AdamW per part. Slow and literal on purpose.

It trains any module made of `embed`, `blocks` and `readout` (h_0 = embed(x), h_{l+1} = h_l + f_l(h_l), logits =
readout(h_L)) by BP, FA or DFA; a state of any shape counts as one vector per sample. The networks that are no ResMLP
are trained by it; for the ResMLP it is the oracle of the engine's tests and the plain loop of the bench.
"""

import math

import torch
from torch import Tensor, nn
from torch.nn.functional import cross_entropy, one_hot

from creditaudit.engine import architectures
from creditaudit.engine.credit import RULES
from creditaudit.engine.pictures import CLASSES
from creditaudit.engine.spec import RunSpec


def states(net: nn.Module, x: Tensor) -> list[Tensor]:
    """h_0 ... h_L."""
    h = [net.embed(x.flatten(1))]
    for block in net.blocks:
        h.append(h[-1] + block(h[-1]))
    return h


def built(spec: RunSpec) -> nn.Module:
    """The untrained network of a run."""
    return architectures.build(spec.network, spec.width, spec.depth, spec.hidden, spec.final_norm)


def losses(spec: RunSpec, net: nn.Module, feedback: Tensor | None, x: Tensor, y: Tensor) -> Tensor:
    """BP: the task loss and its penalties. Else the sum of every part's own loss, each on detached inputs.

    The local methods pass forward twice: their losses need the output error, which the first pass gives.
    """
    h, trained = states(net, x), range(spec.depth - spec.k, spec.depth)
    if spec.method == "bp":
        loss = cross_entropy(net.readout(h[-1]), y)
        return loss + sum(_penalty(spec, h[l + 1] - h[l]) for l in trained) if spec.penalty else loss
    h = [state.detach() for state in h]
    credit, embed_credit = credits(spec, net, feedback, h, y)
    loss = cross_entropy(net.readout(h[-1]), y)
    for l in trained:
        f = net.blocks[l](h[l])
        loss = loss + (f * normalised(credit[l], spec)).flatten(1).sum(-1).mean()
        loss = loss + _penalty(spec, f) if spec.penalty else loss
    return loss + (net.embed(x.flatten(1)) * normalised(embed_credit, spec)).flatten(1).sum(-1).mean()


def _penalty(spec: RunSpec, f: Tensor) -> Tensor:
    return spec.penalty * f.flatten(1).square().sum(-1).mean()


def normalised(a: Tensor, spec: RunSpec) -> Tensor:
    if spec.normalisation == "none":
        return a
    dims = tuple(range(1, a.dim())) if spec.normalisation == "sample" else tuple(range(a.dim()))
    return a / (a.square().mean(dims, keepdim=True).sqrt() + spec.rms_eps)


def credits(
    spec: RunSpec, net: nn.Module, feedback: Tensor | None, h: list[Tensor], y: Tensor
) -> tuple[list[Tensor], Tensor]:
    """What drives each block, and the embed, straight from the definitions; h are the detached states."""
    if spec.method == "bp":
        top = [state.clone().requires_grad_() for state in h[:1]]
        for block in net.blocks:
            top.append(top[-1] + block(top[-1]))
        g = torch.autograd.grad(cross_entropy(net.readout(top[-1]), y), top)
        return list(g[1:]), g[0]
    if spec.method == "dfa":
        with torch.no_grad():
            error = net.readout(h[-1]).softmax(-1) - one_hot(y, CLASSES)
        a = [(error @ feedback[l]).view_as(h[l]) for l in range(spec.depth)]
        return a, a[0]
    last = h[-1].clone().requires_grad_()
    a = list(torch.autograd.grad(cross_entropy(net.readout(last), y), last))  # a_L
    for l in reversed(range(spec.depth)):
        a.insert(0, (a[0].flatten(1) @ feedback[l]).view_as(h[l]))
    return a[1:], a[0]


def optimizers(spec: RunSpec, net: nn.Module) -> list[torch.optim.AdamW]:
    """One AdamW per trained part: embed, each of the last k blocks, readout; BP at full depth needs only one."""
    settings = {"lr": spec.lr, "weight_decay": spec.weight_decay}
    if spec.method == "bp" and spec.k == spec.depth:
        return [torch.optim.AdamW(net.parameters(), **settings)]
    readout = [part for name, part in net.named_parameters() if not name.startswith(("embed.", "blocks."))]
    parts = [net.embed.parameters(), readout]
    parts += [block.parameters() for block in net.blocks[spec.depth - spec.k :]]
    return [torch.optim.AdamW(part, **settings) for part in parts]


def step(
    spec: RunSpec, net: nn.Module, feedback: Tensor | None, parts: list[torch.optim.AdamW], x: Tensor, y: Tensor
) -> None:
    net.zero_grad()
    losses(spec, net, feedback, x, y).backward()
    for part in parts:
        part.step()


class Literal:
    """One run of any network in training, with what `runs.train` asks of a `Stack`."""

    def __init__(self, spec: RunSpec) -> None:
        with torch.inference_mode(False), torch.random.fork_rng(devices=[]):
            torch.manual_seed(spec.seed)
            self.spec, self.net = spec, built(spec)
            size = states(self.net, torch.zeros(1, 3 * 32 * 32))[0].numel()
            rule = RULES[spec.method](1, size, spec.depth)
            rule.draw(0)  # after the weights, from the same stream
            self.feedback = rule.tensors()["feedback"][0] if rule.tensors() else None
            self.parts = optimizers(spec, self.net)
            self._prepare_moments()

    def _prepare_moments(self) -> None:
        """AdamW makes its moments at its first step; a checkpoint needs them before."""
        for part in self.parts:
            for group in part.param_groups:
                group["lr"] = 0.0
                for parameter in group["params"]:
                    parameter.grad = torch.zeros_like(parameter)
            part.step()
            for moments in part.state.values():
                moments["step"].zero_()
        self.set_epoch(0)

    def set_epoch(self, epoch: float) -> None:
        lr = self.spec.lr * (1 + math.cos(math.pi * epoch / self.spec.epochs)) / 2
        for part in self.parts:
            for group in part.param_groups:
                group["lr"] = lr

    def step(self, x: Tensor, y: Tensor) -> tuple[Tensor, Tensor]:
        """Train on one batch [1, B, pixels]; returns summed loss and hits, as seen before the update."""
        with torch.inference_mode(False):
            x, y = x[0].clone(), y[0].clone()
            with torch.no_grad():
                logits = self.net.readout(states(self.net, x)[-1])
            step(self.spec, self.net, self.feedback, self.parts, x, y)
            loss = cross_entropy(logits, y, reduction="sum")
        return loss[None], (logits.argmax(-1) == y).sum()[None]

    def state(self) -> dict:
        moments = [
            {f"{name}{i}": value for i, each in enumerate(part.state.values()) for name, value in each.items()}
            for part in self.parts
        ]
        parameters = {name: value.detach() for name, value in self.net.named_parameters()}
        return {"parameters": parameters, "moments": {str(i): each for i, each in enumerate(moments)}}

    def load_state(self, state: dict) -> None:
        with torch.inference_mode(False), torch.no_grad():
            for kind, tensors in self.state().items():
                for name, tensor in tensors.items():
                    if kind == "parameters":
                        tensor.copy_(state[kind][name])
                    else:
                        for key, moment in tensor.items():
                            moment.copy_(state[kind][name][key])
