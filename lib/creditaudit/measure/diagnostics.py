"""The diagnostics of the study, computed in float64 from the credit the run really used.

Published conventions are kept (first ten unshuffled test batches of 128, medians over samples, Gamma against the
gradient at the block's *input*), and beside each stands the reading that repairs its known weakness: a batch-free
gradient norm, Gamma against the block's output, cosines without the eps clamp and with the undefined ones counted.
Float64 is not a luxury: at ||h|| ~ 4e8 a step of 1e-3 is below float32's resolution.
"""

from collections.abc import Iterable, Iterator
from itertools import pairwise
from typing import Any

import torch
from torch import Tensor
from torch.nn.functional import cosine_similarity

from creditaudit.engine import network
from creditaudit.engine.credit import RULES, Rule
from creditaudit.engine.credit.rule import driving
from creditaudit.engine.network import Credit, Net, Tape
from creditaudit.engine.settings import Normalise
from creditaudit.measure.rules import BATCH, RHO_EPS, RHO_RELATIVE_EPS, largest

BATCHES = 10  # the study's audit batches; ||g|| depends on the batch size
TRAJECTORY_BATCH = 1024  # its per-epoch trajectories used one batch of this size
DIRECTIONS, RHO_BATCHES = 32, 4  # rho uses 4 of the 10 batches: 16384 pairs already
NUDGES = (0.01, 0.003)  # eta
NULL_DRAWS, FRESH_DRAWS = 20, 10  # the first, one direction per sample, is shown nowhere: rho draws after it
COPIES = 16  # moved copies of a batch that pass through the blocks at a time: more would leave the cache


def walk(rule: Rule, tape: Tape) -> list[Tensor]:
    """The raw credit that drives the embed and blocks 0..L-1, in this order, for a scored tape."""
    rule.begin(tape)
    credits = []
    for l in reversed(range(len(tape.blocks))):
        credit = rule.block(l)
        if rule.chains:
            network.pull(tape, l, credit)
        credits.append(credit.dense())
    credits.append(rule.embed().dense())
    return credits[::-1]


def reference_gradients(tape: Tape) -> list[Tensor]:
    """g_0 ... g_L: the exact gradient of the mean cross-entropy at every state."""
    runs, _, width = tape.h[0].shape
    return walk(RULES["bp"](runs, width, len(tape.blocks)), tape)


def medians(vectors: list[Tensor]) -> list[list[float]]:
    """For each run: the median over samples of every tensor's row norms."""
    norms = [torch.linalg.vector_norm(v, dim=-1) for v in vectors]
    return [[norm[s].median().item() for norm in norms] for s in range(len(vectors[0]))]


def credit_balance(rule: Rule, tape: Tape, normalise: Normalise, eps: float) -> dict[str, list[list[float]]]:
    """Who drives the blocks, and do they pull together? For each run, at the embed and blocks 0..L-1, on a scored tape.

    `credit_*` is of the raw credit, `drive_*` of the vector that trains after the normalisation, `state_*` of h_0..h_L:
    *_common    ||mean over samples|| / rms over samples of the norm: the part of it that all samples share
    *_fitted    share of the summed norms that comes from the quarter of samples with the smallest loss
    credit_norm median norm
    """
    rule = rule.to(tape.h[0].dtype, str(tape.h[0].device))
    raw = [credit.double() for credit in walk(rule, tape)]
    drive = [driving(rule, Credit(credit), normalise, eps).dense() for credit in raw]
    quarter = (-tape.log_likelihood[..., 0]).argsort(1)[:, : max(1, tape.batch // 4)]
    return {
        "credit_norm": medians(raw),
        "credit_common": _by_run(raw, _common),
        "drive_common": _by_run(drive, _common),
        "state_common": _by_run([h.double() for h in tape.h], _common),
        "credit_fitted": _by_run(raw, lambda v: _share(v, quarter)),
        "drive_fitted": _by_run(drive, lambda v: _share(v, quarter)),
    }


def _by_run(vectors: list[Tensor], of) -> list[list[float]]:
    """of(tensor [S, B, d]) -> [S], for every tensor; then the list of each run."""
    return torch.stack([of(v) for v in vectors], 1).tolist()


def _common(v: Tensor) -> Tensor:
    return torch.linalg.vector_norm(v.mean(1), dim=-1) / v.square().sum(-1).mean(1).sqrt()


def _share(v: Tensor, chosen: Tensor) -> Tensor:
    norms = torch.linalg.vector_norm(v, dim=-1)
    return norms.gather(1, chosen).sum(1) / norms.sum(1)


def examine(net: Net, start: Net, rule: Rule, x: Tensor, y: Tensor, seed: int) -> dict[str, Any]:
    """Every end-of-run diagnostic of one run, all in float64: `net` trained, `start` at its init, both with S = 1."""
    sheets = [_Sheet(net, rule, xb, yb) for xb, yb in test_batches(x, y)]
    generator = torch.Generator().manual_seed(seed)
    return {
        **norms(sheets),
        **gamma(sheets, generator),
        **_rho(sheets[:RHO_BATCHES], generator),
        **_nudging(sheets),
        "stability": stability(sheets),
        "drift": drift((now.w1.w, then.w1.w) for now, then in zip(net.blocks, start.blocks, strict=True)),
        "fresh_null": _fresh_null(net, rule, x, y, seed),
    }


class _Sheet:
    """One test batch worked through: states, exact gradients, the run's credits, per-sample loss."""

    def __init__(self, net: Net, rule: Rule, x: Tensor, y: Tensor) -> None:
        self.tape, self.y = Tape(net, len(y)), y
        self.tape.forward(x.to(torch.float64).unsqueeze(0))
        self.tape.score(y.unsqueeze(0))
        self.g = [g[0].clone() for g in reference_gradients(self.tape)]
        self.credit = [a[0].clone() for a in walk(rule, self.tape)[1:]]
        self.h = [h[0] for h in self.tape.h]
        self.loss = [self.loss_from(l, h) for l, h in enumerate(self.h)]  # equal but for rounding, which must cancel

    def loss_from(self, l: int, h: Tensor) -> Tensor:
        """Per-sample cross-entropy when the state h_l is replaced; h is [copies * batch, d]."""
        tape, h = self.tape, h.unsqueeze(0)
        block, scratch = network.BlockTape(h, tape.net.blocks[0].w1.w.shape[2]), torch.empty_like(h)
        for weights in tape.net.blocks[l:]:
            network.run_block(weights, h, block, scratch)
            h = h + block.f
        if tape.net.norm:
            block.norm.run(h)
            h = torch.addcmul(tape.net.norm.b, block.norm.xhat, tape.net.norm.w)
        logits = torch.baddbmm(tape.net.head.b, h, tape.net.head.w)[0]
        targets = self.y.repeat(len(logits) // len(self.y))
        return torch.nn.functional.cross_entropy(logits, targets, reduction="none")


def test_batches(x: Tensor, y: Tensor) -> Iterator[tuple[Tensor, Tensor]]:
    n = min(len(y), BATCH * BATCHES)
    return zip(x[:n].split(BATCH), y[:n].split(BATCH), strict=True)


def norms(sheets: list[_Sheet]) -> dict[str, Any]:
    layers = range(len(sheets[0].h))

    def median(of) -> list[float]:
        return [torch.cat([torch.linalg.vector_norm(of(s, l), dim=-1) for s in sheets]).median().item() for l in layers]

    h_norm = median(lambda sheet, l: sheet.h[l])
    growth = [after / before for before, after in pairwise(h_norm)]
    return {
        "h_norm": h_norm,
        "g_norm": median(lambda sheet, l: sheet.g[l]),
        "g_norm_per_sample": median(lambda sheet, l: sheet.g[l] * len(sheet.y)),
        "block_growth": growth,
        "growth": largest(growth),
    }


def cosines(a: Tensor, b: Tensor) -> Tensor:
    """Row cosines without any clamp; nan where one vector is zero."""
    norms = torch.linalg.vector_norm(a, dim=-1) * torch.linalg.vector_norm(b, dim=-1)
    return torch.linalg.vecdot(a, b) / torch.where(norms > 0, norms, torch.nan)


def _per_block(sheets: list[_Sheet], of) -> Tensor:
    """of(sheet, l) for every block, samples of all batches together: [L, n]."""
    return torch.stack([torch.cat([of(s, l) for s in sheets]) for l in range(len(sheets[0].credit))])


def gamma(sheets: list[_Sheet], generator: torch.Generator) -> dict[str, Any]:
    at_input = _per_block(sheets, lambda s, l: cosines(s.credit[l], s.g[l]))
    null = [
        _per_block(sheets, lambda s, l: cosines(_random_like(s.g[l], generator), s.g[l])) for _ in range(NULL_DRAWS)
    ]
    return {
        "gamma_in": at_input.nanmean(1).tolist(),
        "gamma_out": _per_block(sheets, lambda s, l: cosines(s.credit[l], s.g[l + 1])).nanmean(1).tolist(),
        "gamma_in_clamped": _per_block(sheets, lambda s, l: cosine_similarity(s.credit[l], s.g[l])).mean(1).tolist(),
        "gamma_undefined": (~at_input.isfinite()).sum(1).tolist(),
        "gamma_samples": at_input.shape[1],
        "gamma_ceiling": _per_block(sheets, lambda s, l: cosines(s.g[l + 1], s.g[l])).nanmean(1).tolist(),
        "gamma_null": _spread([draw.nanmean().item() for draw in null]),
    }


def _random_like(tensor: Tensor, generator: torch.Generator) -> Tensor:
    return torch.randn(tensor.shape, generator=generator, dtype=tensor.dtype)


def _spread(values: list[float]) -> dict[str, float]:
    draws = torch.tensor(values, dtype=torch.float64)
    return {"mean": draws.mean().item(), "std": draws.std().item(), "draws": len(values)}


def _rho(sheets: list[_Sheet], generator: torch.Generator) -> dict[str, list[float]]:
    """Pearson of <a_l, eps v> with the loss change, at the block's input and at its output."""
    blocks = len(sheets[0].credit)
    pairs = {name: [[] for _ in range(blocks)] for name in ("rho_in", "rho_out", "rho_scaled_in")}
    for sheet in sheets:
        v = _random_like(sheet.h[0].repeat(DIRECTIONS, 1), generator)
        v /= torch.linalg.vector_norm(v, dim=-1, keepdim=True)
        for l in range(blocks + 1):
            change = _loss_change(sheet, l, RHO_EPS * v)
            if l < blocks:
                scaled = RHO_RELATIVE_EPS * torch.linalg.vector_norm(sheet.h[l], dim=-1).repeat(DIRECTIONS)[:, None] * v
                pairs["rho_in"][l].append((_predicted(sheet, l, RHO_EPS * v), change))
                pairs["rho_scaled_in"][l].append((_predicted(sheet, l, scaled), _loss_change(sheet, l, scaled)))
            if l > 0:
                pairs["rho_out"][l - 1].append((_predicted(sheet, l - 1, RHO_EPS * v), change))
    return {name: [_pearson(layer) for layer in layers] for name, layers in pairs.items()}


def _loss_change(sheet: _Sheet, l: int, move: Tensor) -> Tensor:
    """`move` holds one or more moves of every sample, copy after copy."""
    copies = (sheet.h[l] + move.view(-1, *sheet.h[l].shape)).split(COPIES)
    moved = [sheet.loss_from(l, part.flatten(0, 1)) for part in copies]
    return torch.cat(moved) - sheet.loss[l].repeat(len(move) // len(sheet.y))


def _predicted(sheet: _Sheet, block: int, move: Tensor) -> Tensor:
    return torch.linalg.vecdot(sheet.credit[block].repeat(len(move) // len(sheet.y), 1), move)


def _pearson(pairs: list[tuple[Tensor, Tensor]]) -> float:
    both = torch.stack([torch.cat(side) for side in zip(*pairs, strict=True)])
    return torch.corrcoef(both)[0, 1].item()


def _nudging(sheets: list[_Sheet]) -> dict[str, dict[str, list[float]]]:
    """Mean change of the loss when a state moves by -eta a/rms(a), at the block's input and at its output."""

    def change(sheet: _Sheet, l: int, state: int, eta: float) -> Tensor:
        a = sheet.credit[l]
        return _loss_change(sheet, state, -eta * a / a.square().mean(-1, keepdim=True).sqrt())

    return {
        name: {str(eta): _per_block(sheets, lambda s, l: change(s, l, l + at, eta)).mean(1).tolist() for eta in NUDGES}  # noqa: B023
        for name, at in (("nudge_in", 0), ("nudge_out", 1))
    }


def stability(sheets: list[_Sheet]) -> float:
    """Mean pairwise cosine of the batches' mean gradient direction at layer L/2: above .30 means drift."""
    middle = len(sheets[0].credit) // 2
    means = torch.stack([sheet.g[middle].mean(0) for sheet in sheets])
    means = means / torch.linalg.vector_norm(means, dim=-1, keepdim=True)
    pairs = torch.triu_indices(len(means), len(means), offset=1)
    return (means @ means.T)[pairs[0], pairs[1]].mean().item()


def drift(w1: Iterable[tuple[Tensor, Tensor]]) -> list[float]:
    """||W1 - W1_init|| / ||W1_init|| of every block."""
    return [((now - then).norm() / then.norm()).item() for now, then in w1]


def _fresh_null(net: Net, rule: Rule, x: Tensor, y: Tensor, seed: int) -> dict[str, float] | None:
    """Deep Gamma (blocks 1..L-1) for feedback matrices the network was never trained against.

    A block whose credit no feedback matrix touches (FA's last: it gets the exact gradient) says nothing here.
    """
    if "feedback" not in rule.tensors() or len(net.blocks) == 1:
        return None
    xb, yb = next(test_batches(x, y))
    sheet, values = _Sheet(net, rule, xb, yb), []
    for draw in range(FRESH_DRAWS):
        credit = walk(_redrawn(rule, seed + 10_000 * (draw + 1)), sheet.tape)[1:]
        deep = [l for l in range(1, len(credit)) if not torch.equal(credit[l][0], sheet.credit[l])]
        if not deep:
            return None
        values.append(sum(cosines(credit[l][0], sheet.g[l]).nanmean().item() for l in deep) / len(deep))
    return _spread(values)


def _redrawn(rule: Rule, seed: int) -> Rule:
    fresh = type(rule)(1, rule.width, rule.depth)
    with torch.random.fork_rng(devices=[]):
        torch.manual_seed(seed)
        fresh.draw(0)
    return fresh.to(torch.float64)
