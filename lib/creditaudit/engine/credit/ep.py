r"""Equilibrium propagation: credit is how far the states move when the loss pulls on them.

Energy of a sample: E = 1/2 ||h_0 - embed(x)||^2 + 1/2 sum_l ||h_{l+1} - h_l - f_l(h_l)||^2. The free phase is the
forward pass (E = 0); the nudged phase minimises E + beta loss(h_L). Block l is driven by -(h_nudged - h_free)/beta at
its *output* h_{l+1}, the embed by the same at h_0, which is why h_0 may move and has an energy of its own.

With r_l the residual at state l, the minimum satisfies

    r_L = -beta grad loss(h_L),   r_l = r_{l+1} + J_l^T r_{l+1},   h_{l+1} = h_l + f_l(h_l) + r_{l+1},

and a relaxation sweep solves just that: residuals downwards at the present states, then states upwards. Gradient
descent on E has the same fixed point, but its chain of springs needs O(L^2) sweeps to get there. As beta -> 0 the
residuals become beta times the exact gradients, while a state's displacement sums up those of all layers below it:
in a near-identity network the credit of block l tends to (l + 2) g_{l+1}, the embed's to exactly g_0.
"""

import torch

from creditaudit.engine import network
from creditaudit.engine.credit import readout
from creditaudit.engine.credit.rule import Rule
from creditaudit.engine.network import Credit, Tape
from creditaudit.engine.settings import EQUILIBRIUM


class EquilibriumPropagation(Rule):
    name = "ep"
    label = "EP"
    place = 6
    colour = "#d99a00"
    marker = "P"
    dashes = (2.5, 1.2)
    full_name = "equilibrium propagation"
    formula = (
        "$a_l = (h_{l+1} - h_{l+1}^{\\beta}) / \\beta$, where $h^{\\beta}$ are the states that minimise an energy on "
        "which the loss pulls"
    )
    settings = EQUILIBRIUM

    def __init__(self, runs: int, width: int, depth: int) -> None:
        super().__init__(runs, width, depth)
        self.tapes: dict[int, Tape] = {}

    def begin(self, tape: Tape) -> None:
        self.tape, labels = tape, readout.onehot(tape)
        nudged = self._nudged_tape(tape)
        relax = self._solve if self.settings.relaxation == "solved" else self._descend
        self.nudged = relax(tape, nudged, labels)

    def _solve(self, tape: Tape, nudged: Tape, labels: torch.Tensor) -> Tape:
        at = tape
        for _ in range(self.settings.sweeps):
            residual = readout.loss_gradient(tape.net, at.h[-1], labels).mul_(-self.settings.beta)
            residuals = [residual]
            for l in reversed(range(self.depth)):
                network.pull(at, l, Credit(residual))
                residual = residual + network.carried(at, l)
                residuals.append(residual)
            self._settle(nudged, residuals[::-1])
            at = nudged
        return nudged

    def _descend(self, tape: Tape, nudged: Tape, labels: torch.Tensor) -> Tape:
        """From the free states, all states at once: h_l -= rate (r_l - r_{l+1} - J_l^T r_{l+1})."""
        for l, h in enumerate(tape.h):
            nudged.h[l].copy_(h)
        for _ in range(self.settings.sweeps):
            for l, block in enumerate(nudged.blocks):
                network.run_block(nudged.net.blocks[l], nudged.h[l], block, nudged.scratch)
            below = [tape.h[0], *(h + block.f for h, block in zip(nudged.h, nudged.blocks, strict=False))]
            residuals = [h - guess for h, guess in zip(nudged.h, below, strict=True)]
            pull = readout.loss_gradient(tape.net, nudged.h[-1], labels).mul_(self.settings.beta)
            for l in reversed(range(self.depth + 1)):
                slope = residuals[l] + pull
                if l > 0:
                    network.pull(nudged, l - 1, Credit(residuals[l]))
                    pull = -(residuals[l] + network.carried(nudged, l - 1))
                nudged.h[l].sub_(slope, alpha=self.settings.rate)
        return nudged

    def _nudged_tape(self, tape: Tape) -> Tape:
        if tape.batch not in self.tapes or self.tapes[tape.batch].net is not tape.net:
            self.tapes[tape.batch] = Tape(tape.net, tape.batch)
        return self.tapes[tape.batch]

    def _settle(self, nudged: Tape, residuals: list[torch.Tensor]) -> None:
        """States upwards: each is what the one below predicts, plus its residual."""
        torch.add(self.tape.h[0], residuals[0], out=nudged.h[0])
        for l, block in enumerate(nudged.blocks):
            network.run_block(nudged.net.blocks[l], nudged.h[l], block, nudged.scratch)
            torch.add(nudged.h[l], block.f, out=nudged.h[l + 1]).add_(residuals[l + 1])

    def _credit(self, l: int) -> Credit:
        return Credit((self.tape.h[l] - self.nudged.h[l]).div_(self.settings.beta))

    def block(self, l: int) -> Credit:
        return self._credit(l + 1)

    def embed(self) -> Credit:
        return self._credit(0)

    def log(self) -> dict[str, list[list[float]]]:
        """`credit_resolution`: cosine of the credit as trained with the same in float64, states 0..L, last batch.

        The displacement is of order beta/||h||, float32 resolves h to 1e-7 ||h||: the larger the states, the more
        of the credit is rounding.
        """
        coarse, x, labels = self.tape, self.tape.x, readout.onehot(self.tape).argmax(-1)
        fine = Tape(coarse.net.to(torch.float64), coarse.batch)
        credits = []
        for rule, tape in ((self, coarse), (self.to(torch.float64), fine)):
            tape.forward(x.to(tape.h[0].dtype))
            tape.score(labels)
            rule.begin(tape)
            credits.append([rule._credit(l).dense().double() for l in range(self.depth + 1)])
        cosines = [torch.cosine_similarity(a, b, -1, eps=1e-300).mean(-1) for a, b in zip(*credits, strict=True)]
        return {"credit_resolution": torch.stack(cosines, 1).tolist()}
