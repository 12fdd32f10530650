"""Learned credit against the written definitions: autograd in float64 is the oracle, a linear network the truth."""

import json
import math

import pytest
import torch
from torch import Tensor
from torch.nn.functional import cross_entropy, gelu, layer_norm

from creditaudit.engine import network
from creditaudit.engine.credit.auxiliary import LearnedRule
from creditaudit.engine.credit.credit_bridge import CreditBridge
from creditaudit.engine.network import Tape
from creditaudit.engine.settings import CREDIT_BRIDGE
from creditaudit.engine.spec import RunSpec
from creditaudit.engine.step import Stack
from creditaudit.measure import diagnostics
from creditaudit.runs import train
from creditaudit.runs.records import Store
from tests.networks import batch, scattered

LEARNED = ("sb", "cb", "ep")
SHAPE = {"width": 24, "depth": 3}
TINY = {"width": 16, "depth": 2, "epochs": 4, "data": "tiny", "batch": 64}


def worked(stack: Stack, x: Tensor, y: Tensor) -> tuple[Tape, list[Tensor]]:
    """A scored tape and the credit that drives the embed and each block."""
    stack.rule.warm_steps = 0
    tape = stack.tape(len(y))
    tape.forward(x[None])
    tape.score(y[None])
    return tape, [credit[0].clone() for credit in diagnostics.walk(stack.rule, tape)]


def literal_net(rule: LearnedRule, flat: Tensor, inputs: list[Tensor]) -> Tensor:
    """The auxiliary perceptron, written out; inputs broadcast over rows."""
    x = torch.cat([part.expand(len(inputs[0]), -1) for part in inputs], -1)
    layers = rule.layers(flat)
    for layer in layers[:-1]:
        x = gelu(x @ layer.w[0] + layer.b[0])
    return x @ layers[-1].w[0] + layers[-1].b[0]


def guess(rule: LearnedRule, flat: Tensor, h: Tensor, l: int, error: Tensor) -> Tensor:
    """G(h_l, l/L, e)."""
    return literal_net(rule, flat, [h, h.new_tensor([[l / rule.depth]]), error])


def value(rule: LearnedRule, flat: Tensor, h: Tensor, l: int, error: Tensor) -> Tensor:
    """V([LN(h_l), time, e])."""
    t = torch.pi * l / rule.depth * 2.0 ** torch.arange(CREDIT_BRIDGE.waves)
    time = torch.cat([t.sin(), t.cos()]).to(h)[None]
    return literal_net(rule, flat, [layer_norm(h, h.shape[-1:]), time, error])[:, 0]


def settled(rule: LearnedRule) -> LearnedRule:
    """Generic weights: at init every bias and the slow copy are special."""
    generator = torch.Generator().manual_seed(3)
    for flat in (rule.weights, *([rule.slow] if hasattr(rule, "slow") else [])):
        flat += 0.05 * torch.randn(flat.shape, generator=generator, dtype=flat.dtype)
    return rule


def close(ours: Tensor, theirs: Tensor, tolerance: float = 1e-9) -> None:
    assert (ours - theirs).abs().max() < tolerance * theirs.abs().max()


def test_state_bridge_credit_is_the_gradient_through_the_prediction():
    stack, module = scattered(RunSpec(method="sb", **SHAPE), torch.float64)
    rule, (x, y) = settled(stack.rule), batch(1)
    tape, credit = worked(stack, x, y)
    for l in range(3):
        h = tape.h[l][0].clone().requires_grad_()
        logits = module.readout(guess(rule, rule.weights, h, l, tape.error[0]))
        (expected,) = torch.autograd.grad(cross_entropy(logits, y, reduction="sum"), h)
        close(credit[l + 1], expected)
    close(credit[0], credit[1])


def test_credit_bridge_credit_is_the_gradient_of_the_value():
    stack, _ = scattered(RunSpec(method="cb", **SHAPE), torch.float64)
    rule, (x, y) = settled(stack.rule), batch(1)
    tape, credit = worked(stack, x, y)
    for l in range(3):
        h = tape.h[l][0].clone().requires_grad_()
        (expected,) = torch.autograd.grad(value(rule, rule.weights, h, l, tape.error[0]).sum(), h)
        close(credit[l + 1], expected)
    close(credit[0], credit[1])


def learned_gradient(stack: Stack, tape: Tape) -> Tensor:
    """What `learn` takes for the gradient of the auxiliary loss."""
    stack.rule.learn(tape, 0.0)
    return stack.rule.gradient.clone()


def test_state_bridge_learns_by_the_gradient_of_the_relative_error():
    stack, _ = scattered(RunSpec(method="sb", **SHAPE), torch.float64)
    rule, (x, y) = settled(stack.rule), batch(1)
    tape, _ = worked(stack, x, y)
    flat = rule.weights.clone().requires_grad_()
    wrong = [guess(rule, flat, tape.h[l][0], l, tape.error[0]) - tape.h[-1][0] for l in range(3)]
    loss = torch.stack(wrong).square().mean() / tape.h[-1].square().mean()
    (expected,) = torch.autograd.grad(loss, flat)
    close(learned_gradient(stack, tape), expected)
    log = rule.log()
    assert log["state_error"] == pytest.approx([loss.item()])
    assert log["state_error_layers"][0] == pytest.approx(
        [(part.square().mean() / tape.h[-1].square().mean()).item() for part in wrong]
    )


def test_credit_bridge_learns_by_the_gradient_of_bridge_and_terminal_losses():
    stack, module = scattered(RunSpec(method="cb", **SHAPE), torch.float64)
    rule, size, (x, y) = settled(stack.rule), 16, batch(1)
    tape, _ = worked(stack, x, y)
    flat, error = rule.weights.clone().requires_grad_(), tape.error[0]
    noise, temperature, bridge = rule._noise(tape.h[0])[0], CREDIT_BRIDGE.temperature, 0.0
    for b in range(size):
        l = next(i for i in range(3) if b < size * (i + 1) // 3)  # the layer that sample b teaches
        here, after = tape.h[l][0, b : b + 1], tape.h[l + 1][0, b : b + 1]
        copies = [
            value(rule, rule.slow, after + CREDIT_BRIDGE.noise * noise[k, b], l + 1, error[b : b + 1])
            for k in range(CREDIT_BRIDGE.copies)
        ]
        target = -temperature * torch.stack(copies).div(-temperature).exp().mean().log()
        bridge = bridge + (value(rule, flat, here, l, error[b : b + 1]) - target).square().sum() / size
    h = tape.h[-1][0].clone().requires_grad_()
    losses = cross_entropy(module.readout(h), y, reduction="none")
    (true,) = torch.autograd.grad(losses.sum(), h)
    v = value(rule, flat, h, 3, error)
    (slope,) = torch.autograd.grad(v.sum(), h, create_graph=True)
    terminal = (v - losses.detach()).square().mean() + (slope - true).square().sum() / true.square().sum()
    (expected,) = torch.autograd.grad(bridge + CREDIT_BRIDGE.terminal * terminal, flat)
    close(learned_gradient(stack, tape), expected)


@pytest.mark.parametrize("method", LEARNED)
def test_frozen_blocks_leave_the_embed_and_the_rule_to_learn_as_they_did(method):
    """With k = 0 the rule spares itself the credit of blocks that would not use it, and nothing else."""
    embeds, learned = [], []
    for k in (0, SHAPE["depth"]):
        stack, _ = scattered(RunSpec(method=method, k=k, **SHAPE), torch.float64)
        stack.rule.warm_steps = 0
        x, y = batch(1)
        tape = stack.tape(len(y))
        tape.forward(x[None])
        tape.score(y[None])
        stack.gradients(tape)
        embeds.append(stack.buffers.grad.embed.w.clone())
        learned.append(learned_gradient(stack, tape) if method != "ep" else torch.ones(1))
    close(*embeds)
    close(*learned)


@pytest.mark.parametrize("method", ["sb", "cb"])
def test_the_auxiliary_step_is_adamw(method):
    stack, _ = scattered(RunSpec(method=method, **SHAPE), torch.float64)
    rule = stack.rule
    parameter = torch.nn.Parameter(rule.weights.clone())
    oracle = torch.optim.AdamW([parameter], lr=1e-3, weight_decay=0.01)
    for i in range(4):
        tape, _ = worked(stack, *batch(i))
        rule.learn(tape, 1e-3)
        parameter.grad = rule.gradient.clone()
        oracle.step()
    torch.testing.assert_close(rule.weights, parameter.data, rtol=1e-7, atol=1e-10)
    assert rule.taken.tolist() == [4.0]


class LinearChain:
    """A linear residual chain h_{l+1} = h_l + h_l A_l under the usual softmax readout: its costates are known."""

    def __init__(self, method: str, strength: float, width: int = 16, depth: int = 3, size: int = 64) -> None:
        self.stack = Stack([RunSpec(method=method, width=width, depth=depth)])
        self.rule, self.stack.rule.warm_steps = self.stack.rule, 0
        self.stack.net.head.w.mul_(2)
        self.tape, self.generator = Tape(self.stack.net, size), torch.Generator().manual_seed(0)
        self.maps = [strength * torch.randn(width, width, generator=self.generator) / width**0.5 for _ in range(depth)]

    def run(self) -> None:
        """A fresh batch with labels drawn from the softmax, and its credit."""
        tape = self.tape
        tape.h[0].normal_(generator=self.generator)
        for l, block in enumerate(tape.blocks):
            block.norm.run(tape.h[l])
            torch.add(tape.h[l], tape.h[l] @ self.maps[l], out=tape.h[l + 1])
        tape.norm.run(tape.h[-1])
        torch.addcmul(tape.net.norm.b, tape.norm.xhat, tape.net.norm.w, out=tape.features)
        tape.logits = torch.baddbmm(tape.net.head.b, tape.features, tape.net.head.w)
        tape.score(torch.multinomial(tape.logits[0].softmax(-1), 1, generator=self.generator).T)
        self.rule.begin(tape)

    def train(self, steps: int, lr: float) -> None:
        for i in range(steps):
            self.run()
            self.rule.learn(self.tape, lr * (1 - i / steps))

    def alignment(self) -> list[float]:
        """Mean cosine of each block's credit with the true costate of its input."""
        self.run()
        costate, values = network.output_gradient(self.tape), []
        for l in reversed(range(len(self.maps))):
            costate = costate + costate @ self.maps[l].T
            values.append(diagnostics.cosines(self.rule.block(l).dense()[0], costate[0]).mean().item())
        return values[::-1]


def test_state_bridge_finds_the_costate_of_a_linear_network():
    chain = LinearChain("sb", strength=0.3)  # here even the exact g_L has a cosine of only .88 with the costate of h_0
    assert max(chain.alignment()) < 0.5
    chain.train(1200, 4e-3)
    assert min(chain.alignment()) > 0.9


@pytest.mark.parametrize(("matching", "found"), [(True, True), (False, False)])
def test_credit_bridge_finds_the_costate_of_a_linear_network_by_terminal_matching(monkeypatch, matching, found):
    """Values alone do not give it: s already tells the loss. Nor is the chain far from the identity: V's gradient
    at l < L is what it generalises from h_L, so transport by strong blocks is out of its reach."""
    if not matching:
        no_match = lambda self, z, w, tape: ([0 * part for part in z], [0 * part for part in w])  # noqa: E731
        monkeypatch.setattr(CreditBridge, "_match", no_match)
    chain = LinearChain("cb", strength=0.1, size=32)
    chain.train(900, 3e-3)
    assert (min(chain.alignment()) > 0.9) == found


@pytest.mark.parametrize("method", LEARNED)
def test_an_interrupted_run_continues_to_the_same_bits(tmp_path, monkeypatch, method):
    spec = RunSpec(method=method, penalty=0.01, **TINY)
    whole = train.run(spec, Store(tmp_path / "whole"))
    monkeypatch.setattr(train, "CHECKPOINT_SECONDS", 0.0)

    def pull_the_plug(key: str, epoch: int) -> None:
        if epoch == 2:
            raise KeyboardInterrupt

    with pytest.raises(KeyboardInterrupt):
        train.run(spec, Store(tmp_path / "cut"), pull_the_plug)
    resumed = train.run(spec, Store(tmp_path / "cut"))
    contents = [json.dumps([record.epochs, record.final], sort_keys=True) for record in (whole, resumed)]
    assert contents[0] == contents[1]
    assert ("state_error" in whole.epochs) == (method == "sb")
    assert ("credit_resolution" in whole.epochs) == (method == "ep")


@pytest.mark.parametrize("method", ["bp", "fa", "dfa", *LEARNED])
@pytest.mark.parametrize(("k", "penalty"), [(0, 0.0), (1, 0.01)])
def test_every_method_runs_with_k_and_lambda(tmp_path, method, k, penalty):
    spec = RunSpec(method=method, k=k, penalty=penalty, **TINY | {"epochs": 1})
    final = train.run(spec, Store(tmp_path)).final
    assert [drift == 0 for drift in final["drift"]] == [True] * (2 - k) + [False] * k
    assert all(value is not None for name in ("gamma_in", "rho_in", "h_norm", "g_norm") for value in final[name])


@pytest.mark.parametrize("method", LEARNED)
def test_stacked_runs_agree_with_single_ones(method):
    specs = [RunSpec(method=method, seed=s, penalty=p, **SHAPE) for s, p in [(1, 0.0), (2, 0.02), (3, 0.0)]]
    stacked, singles = Stack(specs, torch.float64), [Stack([spec], torch.float64) for spec in specs]
    for i in range(5):
        for stack in (stacked, *singles):
            stack.rule.warm_steps = 2
        batches = [batch(10 * i + s) for s in range(3)]
        stacked.step(torch.stack([x for x, _ in batches]), torch.stack([y for _, y in batches]))
        for single, (x, y) in zip(singles, batches, strict=True):
            single.step(x[None], y[None])
    for s, single in enumerate(singles):
        for ours, alone in zip(stacked.net.run(s).tensors(), single.net.tensors(), strict=True):
            torch.testing.assert_close(ours, alone, rtol=1e-6, atol=1e-9)
        for name, tensor in single.rule.tensors().items():
            torch.testing.assert_close(stacked.rule.tensors()[name][s : s + 1], tensor, rtol=1e-6, atol=1e-9)


def test_the_warm_up_is_dfa_and_ends_on_time():
    spec = RunSpec(method="cb", **TINY)  # 4 epochs of 9 batches
    stack = Stack([spec])
    kinds = []
    for i in range(36):
        stack.step(*(t[None] for t in batch(i, dtype=torch.float32)))
        kinds.append(stack.rule.block(0).basis is not None)
    warm = math.ceil(36 * CREDIT_BRIDGE.warm_up)
    assert 0 < warm < 36 and kinds == [True] * warm + [False] * (36 - warm)


def test_the_network_starts_the_same_under_every_method():
    nets = [Stack([RunSpec(method=method, **SHAPE)]).net for method in ("bp", *LEARNED)]
    for other in nets[1:]:
        assert all(torch.equal(a, b) for a, b in zip(nets[0].tensors(), other.tensors(), strict=True))
