"""Feedback alignment (Lillicrap): a_L = g_L exactly, a_l = a_{l+1} B_l with a fixed random B_l.

B_l stands for the whole block Jacobian, skip included. Block l is driven by the credit at its *output*, a_{l+1}.
The chain carries raw vectors; they are normalised only where they are used.
"""

import torch
from torch import Tensor

from creditaudit.engine.credit.rule import Rule
from creditaudit.engine.network import Credit, output_gradient


class FeedbackAlignment(Rule):
    name = "fa"
    label = "FA"
    place = 2
    colour = "#2fae8a"
    marker = "s"
    dashes = (5, 1.6)
    full_name = "feedback alignment"
    formula = "$a_{L-1} = g_L$ exactly, $a_{l-1} = a_l B_l$ with fixed random $B_l$"
    relays = True

    def __init__(self, runs: int, width: int, depth: int) -> None:
        super().__init__(runs, width, depth)
        self.feedback = torch.zeros(runs, depth, width, width)

    def draw(self, s: int) -> None:
        for l in range(self.depth):
            self.feedback[s, l] = torch.randn(self.width, self.width) / self.width**0.5

    def block(self, l: int) -> Credit:
        self.a = output_gradient(self.tape) if l == self.depth - 1 else self._back(l + 1)
        return Credit(self.a)

    def embed(self) -> Credit:
        return Credit(self._back(0))

    def _back(self, l: int) -> Tensor:
        return torch.bmm(self.a, self.feedback[:, l])

    def tensors(self) -> dict[str, Tensor]:
        return {"feedback": self.feedback}
