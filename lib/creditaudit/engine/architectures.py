"""Residual networks beside the ResMLP: the study's control, a small vision transformer, and a convolutional net.

The study gives no more of them than "four blocks, d = 128, a class token"; what is chosen here is the plainest. As in
the ResMLP the last matrix of every branch starts with std 0.01, so an untrained stack is nearly the identity.
"""

import torch
from torch import Tensor, nn

from creditaudit.engine.model import W2_STD, ResMLP
from creditaudit.engine.pictures import CLASSES

PATCH = 8  # pixels; the coarsest that leaves a sequence, because a CPU trains it
STRIDE = 4  # of the convolutional net's embed: states are 8 x 8 pixels


def build(network: str, width: int, depth: int, hidden: int | None = None, final_norm: bool = True) -> nn.Module:
    """An untrained network, drawn from torch's global stream."""
    if network == "vit":
        return ViTMini(width, depth, hidden or width)
    if network == "conv":
        return ConvNet(width, depth, hidden or width)
    return ResMLP(width, depth, hidden, final_norm)


def _quiet(layer: nn.Linear | nn.Conv2d) -> nn.Module:
    nn.init.normal_(layer.weight, std=W2_STD)
    nn.init.zeros_(layer.bias)
    return layer


class Patches(nn.Module):
    """Patches as tokens, a class token before them, learned positions."""

    def __init__(self, width: int) -> None:
        super().__init__()
        self.cut = nn.Conv2d(3, width, PATCH, PATCH)
        self.first = nn.Parameter(0.02 * torch.randn(1, 1, width))
        self.places = nn.Parameter(0.02 * torch.randn(1, 1 + (32 // PATCH) ** 2, width))

    def forward(self, x: Tensor) -> Tensor:
        tokens = self.cut(x.view(-1, 3, 32, 32)).flatten(2).mT
        return torch.cat([self.first.expand(len(x), -1, -1), tokens], 1) + self.places


class TransformerBlock(nn.Module):
    """What a pre-norm block adds to its input: attention, then a perceptron on the sum."""

    def __init__(self, width: int, hidden: int, heads: int = 4) -> None:
        super().__init__()
        self.heads = heads
        self.norm1, self.norm2 = nn.LayerNorm(width), nn.LayerNorm(width)
        self.qkv, self.out = nn.Linear(width, 3 * width), _quiet(nn.Linear(width, width))
        self.w1, self.w2 = nn.Linear(width, hidden), _quiet(nn.Linear(hidden, width))

    def forward(self, h: Tensor) -> Tensor:
        q, k, v = self.qkv(self.norm1(h)).unflatten(-1, (3, self.heads, -1)).permute(2, 0, 3, 1, 4)
        seen = nn.functional.scaled_dot_product_attention(q, k, v).transpose(1, 2).flatten(2)
        added = self.out(seen)
        return added + self.w2(nn.functional.gelu(self.w1(self.norm2(h + added))))


class ViTMini(nn.Module):
    def __init__(self, width: int, depth: int, hidden: int) -> None:
        super().__init__()
        self.embed = Patches(width)
        self.blocks = nn.ModuleList(TransformerBlock(width, hidden) for _ in range(depth))
        self.norm, self.head = nn.LayerNorm(width), nn.Linear(width, CLASSES)

    def readout(self, h: Tensor) -> Tensor:
        return self.head(self.norm(h[:, 0]))


class ConvBlock(nn.Module):
    def __init__(self, width: int, hidden: int) -> None:
        super().__init__()
        self.norm = nn.GroupNorm(1, width)
        self.w1, self.w2 = nn.Conv2d(width, hidden, 3, padding=1), _quiet(nn.Conv2d(hidden, width, 3, padding=1))

    def forward(self, h: Tensor) -> Tensor:
        return self.w2(nn.functional.gelu(self.w1(self.norm(h))))


class ConvNet(nn.Module):
    def __init__(self, width: int, depth: int, hidden: int) -> None:
        super().__init__()
        # patches of the picture as the channels of a small map
        self.embed = nn.Sequential(nn.Unflatten(-1, (3, 32, 32)), nn.Conv2d(3, width, STRIDE, STRIDE))
        self.blocks = nn.ModuleList(ConvBlock(width, hidden) for _ in range(depth))
        self.norm, self.head = nn.LayerNorm(width), nn.Linear(width, CLASSES)

    def readout(self, h: Tensor) -> Tensor:
        return self.head(self.norm(h.mean((2, 3))))
