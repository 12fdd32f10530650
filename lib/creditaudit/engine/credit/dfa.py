"""Direct feedback alignment: block l is driven by a_l = e B_l, a fixed random projection of the output error.

The embed shares B_0 with block 0 (a matrix of its own moves the norms away from the published ones).
"""

import torch
from torch import Tensor

from creditaudit.engine.credit.rule import Rule
from creditaudit.engine.network import Credit
from creditaudit.engine.pictures import CLASSES


class DirectFeedback(Rule):
    name = "dfa"
    label = "DFA"
    place = 3
    colour = "#c8500a"
    marker = "^"
    dashes = (6, 1.6, 1.4, 1.6)
    full_name = "direct feedback alignment"
    formula = "$a_l = e\\,B_l$, a fixed random projection of the output error $e$"

    def __init__(self, runs: int, width: int, depth: int) -> None:
        super().__init__(runs, width, depth)
        self.feedback = torch.zeros(runs, depth, CLASSES, width)

    def draw(self, s: int) -> None:
        for l in range(self.depth):
            self.feedback[s, l] = torch.randn(CLASSES, self.width) / CLASSES**0.5

    def block(self, l: int) -> Credit:
        return Credit(self.tape.error, self.feedback[:, l])  # factored: rank <= 10

    def embed(self) -> Credit:
        return self.block(0)

    def tensors(self) -> dict[str, Tensor]:
        return {"feedback": self.feedback}
