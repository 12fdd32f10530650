"""AdamW by torch's fused kernel, without the bookkeeping of `torch.optim`: that costs as much as a small product."""

from typing import NamedTuple

import torch
from torch import Tensor
from torch.optim.adamw import adamw

BETA1, BETA2, EPS = 0.9, 0.999, 1e-8  # torch's defaults, for every part


class Moments(NamedTuple):
    """What AdamW remembers of a buffer; the names are torch's, and those of checkpoints."""

    step: Tensor  # a number: steps taken
    exp_avg: Tensor
    exp_avg_sq: Tensor

    @classmethod
    def like(cls, weights: Tensor) -> "Moments":
        return cls(weights.new_zeros((), dtype=torch.float32), torch.zeros_like(weights), torch.zeros_like(weights))


def step(weights: Tensor, gradient: Tensor, moments: Moments, lr: float, weight_decay: float) -> None:
    """Move the weights and the moments in place, and count the step."""
    adamw(
        [weights], [gradient], [moments.exp_avg], [moments.exp_avg_sq], [], [moments.step], fused=True, amsgrad=False,
        beta1=BETA1, beta2=BETA2, lr=lr, weight_decay=weight_decay, eps=EPS, maximize=False,
    )  # fmt: skip
