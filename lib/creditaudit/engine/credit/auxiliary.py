"""The small nets that learn to assign credit: a perceptron on [state, time, s], one AdamW, all closed form.

s is the output error e of the sample. Like the network itself, everything has a leading axis S over runs and lives in
one flat buffer per run, so a checkpoint holds the weights, both moments and the step count, nothing else.
"""

from collections.abc import Sequence
from itertools import pairwise

import torch
from torch import Tensor

from creditaudit.engine import adamw, network
from creditaudit.engine.credit.rule import Rule
from creditaudit.engine.model import padded
from creditaudit.engine.network import Affine

_gelu = torch.ops.aten.gelu.out
_gelu_backward = torch.ops.aten.gelu_backward.grad_input


class Trace:
    """What a perceptron remembers of one pass; the buffers are overwritten by the next."""

    def __init__(self, layers: list[Affine], rows: int) -> None:
        runs = layers[0].w.shape[0]

        def new(width: int) -> Tensor:
            return layers[0].w.new_empty(runs, rows, width)

        self.x, self.z = new(layers[0].w.shape[1]), [new(layer.w.shape[2]) for layer in layers]
        self.act, self.pulled, self.dz = ([torch.empty_like(z) for z in self.z[:-1]] for _ in range(3))

    def forward(self, layers: list[Affine]) -> Tensor:
        """The output for the inputs that stand in `x`."""
        value = self.x
        for layer, z, act in zip(layers, self.z, [*self.act, None], strict=True):
            network.affine(value, layer, z)
            value = z if act is None else _gelu(z, out=act)
        return value

    def pull(self, layers: list[Affine], dout: Tensor, more: list[Tensor] | None = None) -> Tensor:
        """Carry the gradient of the first rows' outputs to every pre-activation; returns the first one's.

        `more` is what a second loss adds at each pre-activation of the last rows.
        """
        rows = slice(dout.shape[1])
        for i in reversed(range(len(self.dz))):
            pulled, z, dz = (buffers[i][:, rows] for buffers in (self.pulled, self.z, self.dz))
            torch.bmm(dout, layers[i + 1].w.mT, out=pulled)
            dout = _gelu_backward(pulled, z, grad_input=dz)
            if more:
                dout[:, -more[i].shape[1] :] += more[i]
        return dout

    def write_gradients(self, dout: Tensor, grads: list[Affine]) -> None:
        """Parameter gradients, after `pull`."""
        for inputs, dz, grad in zip([self.x, *self.act], [*self.dz, dout], grads, strict=True):
            torch.bmm(inputs.mT, dz, out=grad.w)
            torch.sum(dz, 1, keepdim=True, out=grad.b)


class LearnedRule(Rule):
    """A rule with a perceptron of its own, trained beside the network as one more part of it."""

    sizes: list[int]  # widths of the perceptron, input to output; set by the rule before super().__init__

    def __init__(self, runs: int, width: int, depth: int) -> None:
        super().__init__(runs, width, depth)
        self.shapes = [shape for pair in pairwise(self.sizes) for shape in (pair, (1, pair[1]))]
        size = sum(padded(rows * cols) for rows, cols in self.shapes)
        self.weights, self.mean, self.square = (torch.zeros(runs, size) for _ in range(3))
        self.taken = torch.zeros(runs)  # training steps
        self.credited = depth  # states that get credit
        self.traces: dict[int, Trace] = {}

    def configure(self, seeds: Sequence[int], k: int, weight_decay: float, steps: int) -> None:
        self.weight_decay = weight_decay
        self.credited = self.depth if k else 1  # with frozen blocks only h_0's credit is used: the embed's
        self.gradient = torch.zeros_like(self.weights)

    def draw(self, s: int) -> None:
        for layer, (fan_in, fan_out) in zip(self.layers(self.weights), self.shapes[::2], strict=True):
            linear = torch.nn.Linear(fan_in, fan_out)
            layer.w[s].copy_(linear.weight.detach().T)
            layer.b[s, 0].copy_(linear.bias.detach())

    def layers(self, flat: Tensor) -> list[Affine]:
        """Views into a flat buffer [S, size]: weights, slow weights, moments or gradients."""
        views, offset = [], 0
        for rows, cols in self.shapes:
            views.append(flat[:, offset : offset + rows * cols].view(-1, rows, cols))
            offset += padded(rows * cols)
        return [Affine(*pair) for pair in zip(views[::2], views[1::2], strict=True)]

    def trace(self, rows: int) -> Trace:
        if rows not in self.traces:
            self.traces[rows] = Trace(self.layers(self.weights), rows)
        return self.traces[rows]

    def adamw(self, lr: float) -> None:
        """One step along `gradient`; every run of a stack has taken the same number of them."""
        moments = adamw.Moments(self.taken[0].to(torch.float32, copy=True), self.mean, self.square)
        adamw.step(self.weights, self.gradient, moments, lr, self.weight_decay)
        self.taken += 1

    def tensors(self) -> dict[str, Tensor]:
        return {name: getattr(self, name) for name in ("weights", "mean", "square", "taken")}
