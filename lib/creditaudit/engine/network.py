r"""One forward pass and one vector-Jacobian product, closed form, for every credit rule.

All tensors carry a leading axis S over runs. A `Tape` is what the forward pass remembers; its buffers are allocated
once and overwritten by every batch, because a fresh page costs more than the arithmetic that fills it. Given the
vector c_l that drives block l (the gradient of its loss with respect to f_l), the block's parameter gradients are

    dz = (c W2^T) * gelu'(z),   dW2 = act^T c,   M = xhat^T dz,   dW1 = gamma M + beta (x) sum dz,
    dgamma = rowsum(W1 * M),    dbeta = W1 sum dz

where xhat is the normalised input: going through M spares local methods the GEMM dz W1^T that only BP's chain needs.
A credit that is a low-rank product (DFA's e B_l) stays factored: act^T (r e) B costs 10/d of the dense GEMM, exactly.
"""

from collections.abc import Iterator
from dataclasses import dataclass
from typing import NamedTuple

import torch
from torch import Tensor

LN_EPS = 1e-5
_ln_backward = torch.ops.aten.native_layer_norm_backward
_gelu = torch.ops.aten.gelu.out
_gelu_backward = torch.ops.aten.gelu_backward.grad_input


class Affine(NamedTuple):
    """x W + b with W [S, in, out], the layout in which the forward GEMM is fastest, and b [S, 1, out]."""

    w: Tensor
    b: Tensor


class NetBlock(NamedTuple):
    norm: Affine  # gamma, beta [S, 1, d]
    w1: Affine
    w2: Affine


class Net(NamedTuple):
    """Views into flat buffers. In a gradient `Net` a frozen block is None."""

    embed: Affine
    blocks: tuple[NetBlock | None, ...]
    norm: Affine | None  # None: the head reads h_L as it is, a control of the study's
    head: Affine

    def tensors(self) -> Iterator[Tensor]:
        """Every parameter tensor, in construction order."""
        parts = [
            self.embed,
            *(affine for block in self.blocks if block for affine in block),
            self.norm,
            self.head,
        ]
        return (tensor for affine in parts if affine for tensor in affine)

    def to(self, dtype: torch.dtype, device: str | None = None) -> "Net":
        return self._map(lambda tensor: tensor.to(device or tensor.device, dtype))

    def run(self, s: int) -> "Net":
        """One run of a stack, its leading axis kept."""
        return self._map(lambda tensor: tensor[s : s + 1])

    def _map(self, change) -> "Net":
        def affine(part: Affine) -> Affine:
            return Affine(change(part.w), change(part.b))

        blocks = tuple(block and NetBlock(*map(affine, block)) for block in self.blocks)
        return Net(affine(self.embed), blocks, self.norm and affine(self.norm), affine(self.head))


@dataclass
class Credit:
    """A credit vector per sample: `rows` [S, B, d], or factored as rows [S, B, c] times basis [S, c, d]."""

    rows: Tensor
    basis: Tensor | None = None

    def dense(self) -> Tensor:
        return self.rows if self.basis is None else torch.bmm(self.rows, self.basis)

    def mean_square(self) -> Tensor:
        """Mean over features of the squared credit, [S, B, 1]; factored: e (B B^T) e^T / d."""
        if self.basis is None:
            return torch.linalg.vecdot(self.rows, self.rows).unsqueeze(-1) / self.rows.shape[-1]
        gram = torch.bmm(self.basis, self.basis.mT)
        return torch.linalg.vecdot(torch.bmm(self.rows, gram), self.rows).unsqueeze(-1) / self.basis.shape[-1]

    def scaled(self, factor: Tensor | float) -> "Credit":
        return Credit(self.rows * factor, self.basis)

    def pulled(self, weight: Tensor, out: Tensor) -> Tensor:
        """credit W^T."""
        right = weight.mT if self.basis is None else torch.bmm(self.basis, weight.mT)
        return torch.bmm(self.rows, right, out=out)

    def write_gradient(self, inputs: Tensor, out: Affine) -> None:
        """Gradient of an affine map with these inputs [S, B, in] whose output this credit drives."""
        if self.basis is None:
            torch.bmm(inputs.mT, self.rows, out=out.w)
            torch.sum(self.rows, 1, keepdim=True, out=out.b)
        else:
            torch.bmm(torch.bmm(self.rows.mT, inputs).mT, self.basis, out=out.w)
            torch.bmm(self.rows.sum(1, keepdim=True), self.basis, out=out.b)


class Normalised:
    """LayerNorm without its affine part, remembered: xhat, mean, 1/std."""

    def __init__(self, like: Tensor) -> None:
        self.xhat, self.mean, self.rstd = torch.empty_like(like), like.new_empty(0), like.new_empty(0)
        # as tensors: a Python number is converted at every call, which takes longer than the division itself
        self.width, self.eps = like.new_tensor(like.shape[-1]), like.new_tensor(LN_EPS)

    def run(self, h: Tensor) -> None:
        self.h, self.mean = h, torch.sum(h, -1, keepdim=True).div_(self.width)
        torch.sub(h, self.mean, out=self.xhat)
        variance = torch.linalg.vector_norm(self.xhat, dim=-1, keepdim=True).square_().div_(self.width)
        self.rstd = variance.add_(self.eps).rsqrt_()
        self.xhat.mul_(self.rstd)

    def input_gradient(self, dxhat: Tensor) -> Tensor:
        width = [self.h.shape[-1]]
        return _ln_backward(dxhat, self.h, width, self.mean, self.rstd, None, None, [True, False, False])[0]


class BlockTape:
    """What one block remembers of the forward pass; `dz` is filled by `pull`."""

    def __init__(self, like: Tensor, hidden: int) -> None:
        self.norm, self.f = Normalised(like), torch.empty_like(like)
        self.z, self.act, self.dz = (like.new_empty(*like.shape[:2], hidden) for _ in range(3))


class Tape:
    """States h_0..h_L, the blocks' inner values, and the output error e = softmax - onehot (per sample)."""

    def __init__(self, net: Net, batch: int) -> None:
        like = net.embed.w.new_empty(net.embed.w.shape[0], batch, net.embed.w.shape[2])
        self.net, self.batch = net, batch
        self.h = [torch.empty_like(like) for _ in range(len(net.blocks) + 1)]
        self.blocks = [BlockTape(like, block.w1.w.shape[2]) for block in net.blocks]
        self.norm, self.features = Normalised(like), torch.empty_like(like)
        hidden, self.scratch = net.blocks[0].w1.w.shape[2], torch.empty_like(like)
        self.inner = self.scratch if hidden == like.shape[2] else like.new_empty(*like.shape[:2], hidden)
        self.square = torch.empty_like(net.blocks[0].w1.w)

    def forward(self, x: Tensor) -> None:
        """x is [S, batch, pixels], or [1, batch, pixels] when all runs share it."""
        self.x = x.expand(self.h[0].shape[0], -1, -1)
        affine(self.x, self.net.embed, self.h[0])
        for l, block in enumerate(self.blocks):
            run_block(self.net.blocks[l], self.h[l], block, self.scratch)
            torch.add(self.h[l], block.f, out=self.h[l + 1])
        if self.net.norm:
            self.norm.run(self.h[-1])
            torch.addcmul(self.net.norm.b, self.norm.xhat, self.net.norm.w, out=self.features)
        else:
            self.features = self.h[-1]
        self.logits = torch.baddbmm(self.net.head.b, self.features, self.net.head.w)

    def score(self, y: Tensor) -> tuple[Tensor, Tensor]:
        """Fill in the output error; return the summed cross-entropy and the number of hits, [S] each."""
        target = y.expand(self.logits.shape[0], -1).unsqueeze(-1)
        log_p = torch.log_softmax(self.logits, -1)
        self.error = log_p.exp()
        self.error.scatter_add_(-1, target, torch.full_like(target, -1.0, dtype=log_p.dtype))
        hits = (self.logits.argmax(-1, keepdim=True) == target).sum((1, 2))
        self.log_likelihood = log_p.gather(-1, target)
        return -self.log_likelihood.sum((1, 2)), hits


def affine(x: Tensor, part: Affine, out: Tensor) -> Tensor:
    return torch.bmm(x, part.w, out=out).add_(part.b)


def run_block(weights: NetBlock, h: Tensor, block: BlockTape, scratch: Tensor) -> None:
    block.norm.run(h)
    torch.addcmul(weights.norm.b, block.norm.xhat, weights.norm.w, out=scratch)
    affine(scratch, weights.w1, block.z)
    _gelu(block.z, out=block.act)
    affine(block.act, weights.w2, block.f)


def output_gradient(tape: Tape) -> Tensor:
    """g_L: gradient of the *mean* cross-entropy at h_L."""
    torch.bmm(tape.error / tape.batch, tape.net.head.w.mT, out=tape.scratch)
    if not tape.net.norm:
        return tape.scratch.clone()
    return tape.norm.input_gradient(tape.scratch.mul_(tape.net.norm.w))


def readout_gradients(tape: Tape, grad: Net) -> None:
    """LayerNorm and head learn from the true cross-entropy under every method."""
    dlogits = Credit(tape.error / tape.batch)
    dlogits.write_gradient(tape.features, grad.head)
    if not tape.net.norm:
        return
    du = torch.bmm(dlogits.rows, tape.net.head.w.mT, out=tape.scratch)
    torch.sum(du, 1, keepdim=True, out=grad.norm.b)
    torch.sum(du.mul_(tape.norm.xhat), 1, keepdim=True, out=grad.norm.w)


def pull(tape: Tape, l: int, drive: Credit) -> None:
    """Carry the vector that drives block l back to its pre-activation z."""
    block = tape.blocks[l]
    drive.pulled(tape.net.blocks[l].w2.w, out=tape.inner)
    _gelu_backward(tape.inner, block.z, grad_input=block.dz)


def carried(tape: Tape, l: int) -> Tensor:
    """The pulled vector, carried on to the block's input h_l: what BP's chain adds at block l."""
    block, weights = tape.blocks[l], tape.net.blocks[l]
    du = torch.bmm(block.dz, weights.w1.w.mT, out=tape.scratch)
    return block.norm.input_gradient(du.mul_(weights.norm.w))


def block_gradients(tape: Tape, l: int, drive: Credit, grad: NetBlock) -> None:
    """Parameter gradients of block l for the vector that drives it (after `pull`)."""
    block, weights = tape.blocks[l], tape.net.blocks[l]
    drive.write_gradient(block.act, grad.w2)
    torch.sum(block.dz, 1, keepdim=True, out=grad.w1.b)
    m = torch.bmm(block.norm.xhat.mT, block.dz, out=tape.square)
    torch.mul(weights.norm.w.mT, m, out=grad.w1.w)
    grad.w1.w.baddbmm_(weights.norm.b.mT, grad.w1.b)
    torch.sum(m.mul_(weights.w1.w), 2, out=grad.norm.w[:, 0])
    torch.bmm(grad.w1.b, weights.w1.w.mT, out=grad.norm.b)
