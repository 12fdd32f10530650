"""The readout applied to a state that is not h_L: a prediction of it, or its nudged version."""

import torch
from torch import Tensor

from creditaudit.engine.network import Net, Normalised, Tape


def onehot(tape: Tape) -> Tensor:
    """The labels, recovered from e = softmax - onehot: a rule sees nothing else of them."""
    return torch.softmax(tape.logits, -1) - tape.error


def loss_gradient(net: Net, state: Tensor, labels: Tensor) -> Tensor:
    """Gradient of each sample's cross-entropy with respect to its state [S, rows, d] (not divided by the batch)."""
    norm = Normalised(state)
    norm.run(state)
    features = torch.addcmul(net.norm.b, norm.xhat, net.norm.w)
    error = torch.softmax(torch.baddbmm(net.head.b, features, net.head.w), -1).sub_(labels)
    return norm.input_gradient(torch.bmm(error, net.head.w.mT).mul_(net.norm.w))
