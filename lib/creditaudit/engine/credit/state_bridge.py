r"""State Bridge: a net G(h_l, t_l, s) learns to predict h_L; credit is the loss's gradient *through the prediction*.

    a_l = d/dh_l  cross-entropy(readout(G(h_l, l/L, e)), y),      G minimises ||G(h_l, l/L, e) - h_L||^2.

States are detached, the readout is the current one, and a_l drives block l, whose *input* is h_l; the embed gets a_0.
The credit uses G as it was before the batch taught it.
"""

import torch
from torch import Tensor

from creditaudit.engine.credit import readout
from creditaudit.engine.credit.auxiliary import LearnedRule
from creditaudit.engine.network import Credit, Tape
from creditaudit.engine.pictures import CLASSES
from creditaudit.engine.settings import STATE_BRIDGE


class StateBridge(LearnedRule):
    name = "sb"
    label = "State Bridge"
    place = 4
    colour = "#b8699a"
    marker = "D"
    dashes = (3, 1.2, 1.2, 1.2, 1.2, 1.2)
    full_name = "learned credit, from a predicted state"
    formula = (
        "$a_l = \\partial\\,\\mathrm{CE}(\\mathrm{readout}(G(h_l, l/L, e)))/\\partial h_l$, where $G$ learns to "
        "predict $h_L$"
    )

    settings = STATE_BRIDGE

    def __init__(self, runs: int, width: int, depth: int) -> None:
        self.sizes = [width + 1 + CLASSES, *[width] * self.settings.layers]
        super().__init__(runs, width, depth)
        self.errors: list[tuple[Tensor, Tensor]] = []  # of each batch: over all layers, and layer by layer

    def begin(self, tape: Tape) -> None:
        self.tape, layers = tape, self.layers(self.weights)
        self.now = self.trace(self.depth * tape.batch)
        self._fill(self.now.x, tape)
        self.guess = self.now.forward(layers)
        if self.settings.predicts == "change":
            self.guess = self.guess + torch.cat(tape.h[:-1], 1)
        labels = readout.onehot(tape).repeat(1, self.credited, 1)
        dguess = readout.loss_gradient(tape.net, self.guess[:, : labels.shape[1]], labels)
        dz = self.now.pull(layers, dguess)
        credit = torch.bmm(dz, layers[0].w[:, : self.width].mT)
        if self.settings.predicts == "change":
            credit += dguess
        self.credit = credit.view(-1, self.credited, tape.batch, self.width)

    def _fill(self, x: Tensor, tape: Tape) -> None:
        """[h_l, l/L, e] for l = 0 ... L-1."""
        x = x.view(-1, self.depth, tape.batch, x.shape[-1])
        for l in range(self.depth):
            x[:, l, :, : self.width] = tape.h[l]
            x[:, l, :, self.width] = l / self.depth
        x[..., self.width + 1 :] = tape.error.unsqueeze(1)

    def block(self, l: int) -> Credit:
        return Credit(self.credit[:, l])

    def embed(self) -> Credit:
        return self.block(0)

    def learn(self, tape: Tape, lr: float) -> None:
        target = tape.norm.xhat if self.settings.predicts == "direction" else tape.h[-1]
        wrong = self.guess - target.repeat(1, self.depth, 1)
        scale = self.depth * target.square().sum((1, 2), keepdim=True)
        by_layer = wrong.view(-1, self.depth, tape.batch * self.width).square().sum(2) * (self.depth / scale[:, 0])
        self.errors.append((wrong.square().sum((1, 2)) / scale[:, 0, 0], by_layer))
        dout = wrong.mul_(2 / scale)
        self.now.pull(self.layers(self.weights), dout)
        self.now.write_gradients(dout, self.layers(self.gradient))
        self.adamw(lr)

    def log(self) -> dict[str, list]:
        """`state_error`: ||G - h_L||^2 / ||h_L||^2, mean over layers and the epoch's batches; 1 is predicting zero.

        `state_error_layers` is the same for every h_l from which h_L is predicted.
        """
        errors, self.errors = self.errors, []
        names = ("state_error", "state_error_layers")
        return {
            name: torch.stack(part).mean(0).tolist()
            for name, part in zip(names, zip(*errors, strict=True), strict=True)
        }
