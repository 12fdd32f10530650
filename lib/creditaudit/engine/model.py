r"""The network of the study, twice: as a plain torch module, and as flat buffers for the engine.

ResMLP: h_0 = embed(x);  h_{l+1} = h_l + f_l(h_l),  f_l(h) = W2 gelu(W1 LN(h));  logits = head(LN(h_L)).

The module *is* the definition (and the oracle of the tests). The engine works on `Net`: the same numbers with a
leading axis S over runs, cut out of one flat buffer, so that one AdamW call updates everything that trains.
"""

from typing import NamedTuple

import torch
from torch import Tensor, nn

from creditaudit.engine.network import Affine, Net, NetBlock
from creditaudit.engine.pictures import CLASSES, PIXELS

W2_STD = 0.01  # of each block's second matrix at init: an untrained stack is nearly the identity


class Block(nn.Module):
    """f_l, without the skip; its inner width is the stream's in the study."""

    def __init__(self, width: int, hidden: int | None = None) -> None:
        super().__init__()
        self.norm = nn.LayerNorm(width)
        self.w1 = nn.Linear(width, hidden or width)
        self.w2 = nn.Linear(hidden or width, width)
        nn.init.normal_(self.w2.weight, std=W2_STD)
        nn.init.zeros_(self.w2.bias)

    def forward(self, h: Tensor) -> Tensor:
        return self.w2(nn.functional.gelu(self.w1(self.norm(h))))


class ResMLP(nn.Module):
    """Construction order (embed, blocks, norm, head) fixes which random numbers each part draws."""

    def __init__(self, width: int, depth: int, hidden: int | None = None, final_norm: bool = True) -> None:
        super().__init__()
        self.embed = nn.Linear(PIXELS, width)
        self.blocks = nn.ModuleList(Block(width, hidden) for _ in range(depth))
        self.norm = nn.LayerNorm(width) if final_norm else nn.Identity()
        self.head = nn.Linear(width, CLASSES)

    def states(self, x: Tensor) -> list[Tensor]:
        """h_0 ... h_L."""
        h = [self.embed(x.flatten(1))]
        for block in self.blocks:
            h.append(h[-1] + block(h[-1]))
        return h

    def readout(self, h: Tensor) -> Tensor:
        return self.head(self.norm(h))

    def forward(self, x: Tensor) -> Tensor:
        return self.readout(self.states(x)[-1])


class Buffers(NamedTuple):
    """The parameters of S runs: what trains in one flat buffer, its gradient in another, frozen blocks apart."""

    net: Net
    grad: Net
    flat: Tensor
    flat_grad: Tensor


def allocate(
    runs: int, width: int, depth: int, hidden: int, k: int, final_norm: bool, dtype: torch.dtype, device: str
) -> Buffers:
    """Zeroed buffers in which the last k of the blocks train."""
    ends = [(PIXELS, width), *([(1, width)] if final_norm else []), (width, CLASSES)]
    block = [(1, width), (width, hidden), (hidden, width)]
    trained = _Carver(runs, ends + k * block, dtype, device)
    frozen = _Carver(runs, (depth - k) * block, dtype, device)
    gradient = _Carver(runs, ends + k * block, dtype, device)
    return Buffers(
        net=_assemble(trained, [_block(frozen) for _ in range(depth - k)], k, final_norm),
        grad=_assemble(gradient, [None] * (depth - k), k, final_norm),
        flat=trained.flat,
        flat_grad=gradient.flat,
    )


def _assemble(carver: "_Carver", frozen: list[NetBlock | None], k: int, final_norm: bool) -> Net:
    embed, norm, head = carver.affine(), carver.affine() if final_norm else None, carver.affine()
    return Net(embed, tuple(frozen) + tuple(_block(carver) for _ in range(k)), norm, head)


def _block(carver: "_Carver") -> NetBlock:
    return NetBlock(carver.affine(), carver.affine(), carver.affine())


class _Carver:
    """Cuts [S, in, out] weights and [S, 1, out] biases out of one buffer, each on a 64-byte boundary:
    MKL's bits may depend on alignment, and a run must not depend on its neighbours."""

    def __init__(self, runs: int, shapes: list[tuple[int, int]], dtype: torch.dtype, device: str) -> None:
        self.runs, self.shapes, self.offset = runs, iter(shapes), 0
        size = sum(padded(runs * rows * cols) + padded(runs * cols) for rows, cols in shapes)
        self.flat = torch.zeros(size, dtype=dtype, device=device)

    def affine(self) -> Affine:
        rows, cols = next(self.shapes)
        return Affine(self._cut(rows, cols), self._cut(1, cols))

    def _cut(self, rows: int, cols: int) -> Tensor:
        size = self.runs * rows * cols
        view = self.flat[self.offset : self.offset + size].view(self.runs, rows, cols)
        self.offset += padded(size)
        return view


def padded(size: int) -> int:
    """The next multiple of 16 numbers, 64 bytes: every part of a flat buffer starts on a cache line."""
    return -(-size // 16) * 16


def load_module(net: Net, s: int, module: ResMLP) -> None:
    """Copy a module's parameters into run s (torch keeps weights as [out, in], the engine as [in, out])."""
    for target, source in zip(net.run(s).tensors(), module.parameters(), strict=True):
        target[0].copy_(source.detach().T if source.dim() == 2 else source.detach().unsqueeze(0))


def store_module(net: Net, s: int, module: ResMLP) -> None:
    """The way back, for tests and for whoever wants a torch module of a trained run."""
    with torch.no_grad():
        for source, target in zip(net.run(s).tensors(), module.parameters(), strict=True):
            target.copy_(source[0].T if target.dim() == 2 else source[0, 0])
