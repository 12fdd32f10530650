r"""Credit Bridge: a scalar net V([LN(h_l), time, s]) learns the loss to come; credit is its gradient a_l = grad_h V.

    bridge     V(h_l)  ->  -T log mean_k exp(-V_slow(h_{l+1} + noise_k) / T),      k = 1..K, V_slow an EMA copy
    terminal   V(h_L)  ->  loss,      grad_h V(h_L)  ->  grad_h loss                (without it the credit is noise:
               s alone tells the loss, so the values can be right while the gradient with respect to h is anything)

Block l is driven by a_l, the credit at its *input*; the embed by a_0. In the warm-up DFA drives the blocks while V
already learns. Each sample teaches one transition l -> l+1 per step (its layer's share of the shuffled batch): an
unbiased sample of the mean over layers, at a cost that does not grow with depth.
"""

import math
from collections.abc import Sequence
from itertools import pairwise
from typing import Any

import numpy as np
import torch
from torch import Tensor

from creditaudit.engine import network
from creditaudit.engine.credit.auxiliary import LearnedRule
from creditaudit.engine.network import Credit, Normalised, Tape
from creditaudit.engine.pictures import CLASSES
from creditaudit.engine.settings import CREDIT_BRIDGE


class CreditBridge(LearnedRule):
    name = "cb"
    label = "Credit Bridge"
    place = 5
    colour = "#5aa9e0"
    marker = "v"
    dashes = (8, 2)
    full_name = "learned credit, from a value net"
    formula = (
        "$a_l = \\partial V(\\mathrm{LN}(h_l), l/L, e)/\\partial h_l$, where $V$ learns the loss to come from its own "
        "value one layer on; in a warm-up DFA's credit"
    )

    settings = CREDIT_BRIDGE

    def __init__(self, runs: int, width: int, depth: int) -> None:
        self.sizes = [width + 2 * self.settings.waves + CLASSES, self.settings.hidden, self.settings.hidden, 1]
        super().__init__(runs, width, depth)
        self.slow = torch.zeros_like(self.weights)
        self.warm_feedback = torch.zeros(runs, depth, CLASSES, width)
        self.times, self.warm_steps = _time_embedding(depth, self.settings.waves), 0.0

    def configure(self, seeds: Sequence[int], k: int, weight_decay: float, steps: int) -> None:
        super().configure(seeds, k, weight_decay, steps)
        self.seeds, self.warm_steps = seeds, self.settings.warm_up * steps

    def to(self, *place: Any, **more: Any) -> "CreditBridge":
        copy = super().to(*place, **more)
        copy.warm_steps = self.warm_steps
        return copy

    def draw(self, s: int) -> None:
        super().draw(s)
        self.slow[s] = self.weights[s]
        self.warm_feedback[s] = torch.randn(self.depth, CLASSES, self.width) / CLASSES**0.5

    def begin(self, tape: Tape) -> None:
        self.tape, self.credit = tape, None
        if self.taken[0] < self.warm_steps:
            return
        layers, now = self.layers(self.weights), self.trace(self.credited * tape.batch)
        xhat = torch.stack([block.norm.xhat for block in tape.blocks[: self.credited]], 1)
        x = now.x.view(*xhat.shape[:-1], -1)
        self._fill(x, xhat, torch.arange(self.credited).view(-1, 1), tape.error.unsqueeze(1))
        dout = torch.ones_like(now.forward(layers))
        dxhat = torch.bmm(now.pull(layers, dout), layers[0].w[:, : self.width].mT)
        self.credit = dxhat.view_as(xhat)

    def block(self, l: int) -> Credit:
        if self.credit is None:
            return Credit(self.tape.error, self.warm_feedback[:, l])
        # the block's own LayerNorm has already normalised h_l
        return Credit(self.tape.blocks[l].norm.input_gradient(self.credit[:, l].contiguous()))

    def embed(self) -> Credit:
        return self.block(0)

    def learn(self, tape: Tape, lr: float) -> None:
        layers, now, batch = self.layers(self.weights), self.trace(2 * tape.batch), tape.batch
        shares = _shares(self.depth, batch)
        layer = torch.repeat_interleave(torch.tensor([cut.stop - cut.start for cut in shares]))
        self._fill(now.x[:, :batch], _taken([block.norm.xhat for block in tape.blocks], shares), layer, tape.error)
        self._fill(now.x[:, batch:], tape.norm.xhat, torch.tensor(self.depth), tape.error)
        value = now.forward(layers)
        target = torch.cat([self._bridge(tape, _taken(tape.h[1:], shares), layer + 1), -tape.log_likelihood], 1)
        dvalue = (value - target).mul_(2 / batch)
        dvalue[:, batch:] *= self.settings.terminal
        dz, dw = self._match([z[:, batch:] for z in now.z[:-1]], [part.w for part in layers], tape)
        now.pull(layers, dvalue, dz)
        gradients = self.layers(self.gradient)
        now.write_gradients(dvalue, gradients)
        for grad, more in zip(gradients, dw, strict=True):
            grad.w[:, : more.shape[1]] += more
        self.adamw(lr)
        self.slow.lerp_(self.weights, 1 - self.settings.ema)

    def _fill(self, x: Tensor, xhat: Tensor, layer: Tensor, error: Tensor) -> None:
        x[..., : self.width] = xhat
        x[..., self.width : -CLASSES] = self.times[layer]
        x[..., -CLASSES:] = error

    def _bridge(self, tape: Tape, after: Tensor, layer: Tensor) -> Tensor:
        """Soft-min of the slow copy's values around the next states, [S, B, 1]."""
        copies = (after.unsqueeze(1) + self.settings.noise * self._noise(after)).flatten(1, 2)
        trace, norm = self.trace(copies.shape[1]), Normalised(copies)
        norm.run(copies)
        x = trace.x.view(len(after), self.settings.copies, *after.shape[1:2], -1)
        self._fill(x, norm.xhat.view(*x.shape[:-1], -1), layer, tape.error.unsqueeze(1))
        values = trace.forward(self.layers(self.slow)).view(*x.shape[:-1], 1)
        t = self.settings.temperature
        return torch.logsumexp(values / -t, 1).sub_(math.log(self.settings.copies)).mul_(-t)

    def _noise(self, like: Tensor) -> Tensor:
        """A pure function of (seed, step), so that a resumed run draws the same: [S, K, B, d]."""
        step, shape = int(self.taken[0]), (self.settings.copies, *like.shape[1:])
        words = [int(np.random.SeedSequence([seed, step]).generate_state(1)[0]) for seed in self.seeds]
        draws = [torch.randn(shape, generator=torch.Generator().manual_seed(word)) for word in words]
        return torch.stack(draws).to(like)

    def _match(self, z: list[Tensor], w: list[Tensor], tape: Tape) -> tuple[list[Tensor], list[Tensor]]:
        """Gradient of ||grad V - g||^2 / ||g||^2 at h_L, by hand: what it adds at each pre-activation and weight.

        grad V = LN'(u) with u = r1 W1^T, r1 = p1 gelu'(z1), p1 = r2 W2^T, r2 = w3 gelu'(z2); then the same backwards.
        LN' is a symmetric matrix, so its adjoint is itself.
        """
        (slope1, bend1), (slope2, bend2) = map(_gelu_derivatives, z)
        w1, w2, w3 = w[0][:, : self.width], w[1], w[2].mT
        r2 = w3 * slope2
        p1 = torch.bmm(r2, w2.mT)
        r1 = p1 * slope1
        true = network.output_gradient(tape).mul_(tape.batch)
        wrong = tape.norm.input_gradient(torch.bmm(r1, w1.mT)).sub_(true)
        size = true.square_().sum((1, 2), keepdim=True).clamp_(min=torch.finfo(true.dtype).tiny)
        size = size if self.settings.matching == "relative" else tape.batch
        du = tape.norm.input_gradient(wrong.mul_(2 * self.settings.terminal / size))
        dr1 = torch.bmm(du, w1)
        dp1 = dr1 * slope1
        dr2 = torch.bmm(dp1, w2)
        dw = [torch.bmm(du.mT, r1), torch.bmm(dp1.mT, r2), (dr2 * slope2).sum(1).unsqueeze(-1)]
        return [dr1 * p1 * bend1, dr2 * w3 * bend2], dw

    def tensors(self) -> dict[str, Tensor]:
        return super().tensors() | {"slow": self.slow, "warm_feedback": self.warm_feedback}


def _gelu_derivatives(z: Tensor) -> tuple[Tensor, Tensor]:
    """gelu' = Phi + z phi, gelu'' = (2 - z^2) phi."""
    slope = torch.ops.aten.gelu_backward(torch.ones_like(z), z)
    square = z.square()
    return slope, (square / -2).exp_().mul_(square.neg_().add_(2)).mul_(1 / math.sqrt(2 * math.pi))


def _shares(depth: int, batch: int) -> list[slice]:
    """Layer l's share of the batch, as equal as can be."""
    return [slice(*cut) for cut in pairwise(batch * l // depth for l in range(depth + 1))]


def _taken(states: list[Tensor], shares: list[slice]) -> Tensor:
    """states[l] for the samples of layer l's share: [S, B, d]."""
    return torch.cat([state[:, cut] for state, cut in zip(states, shares, strict=True)], 1)


def _time_embedding(depth: int, waves: int) -> Tensor:
    """sin and cos of pi 2^j l/L for l = 0..L: [L + 1, 2 waves]."""
    angle = torch.arange(depth + 1).unsqueeze(1) / depth * math.pi * 2.0 ** torch.arange(waves)
    return torch.cat([angle.sin(), angle.cos()], 1)
