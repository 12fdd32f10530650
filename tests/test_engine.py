"""The closed-form step against autograd, and the promises about stacking and freezing."""

import copy

import pytest
import torch

from creditaudit.engine import literal as oracle
from creditaudit.engine import model
from creditaudit.engine.spec import RunSpec
from creditaudit.engine.step import Stack, initialised
from tests.networks import batch, feedback, scattered

SHAPE = {"width": 24, "depth": 3}


@pytest.mark.parametrize("method", ["bp", "fa", "dfa"])
@pytest.mark.parametrize("k", range(SHAPE["depth"] + 1))
@pytest.mark.parametrize("penalty", [0.0, 0.03])
@pytest.mark.parametrize("normalise", [None, "batch", "none"])
def test_closed_form_gradients_equal_autograd(method, k, penalty, normalise, **other):
    if method == "bp" and normalise == "batch":
        pytest.skip("autograd has no literal loss for rescaled exact gradients")
    spec = RunSpec(method=method, k=k, penalty=penalty, normalise=normalise, **other, **SHAPE)
    stack, module = scattered(spec, torch.float64)
    x, y = batch(1)
    oracle.losses(spec, module, feedback(stack), x, y).backward()

    tape = stack.tape(len(y))
    tape.forward(x[None])
    tape.score(y[None])
    stack.gradients(tape)

    expected = model.ResMLP(spec.width, spec.depth, spec.hidden, spec.final_norm).double()
    for target, source in zip(expected.parameters(), module.parameters(), strict=True):
        target.data = torch.zeros_like(source) if source.grad is None else source.grad
    names = [name for name, _ in expected.named_parameters() if not _frozen(name, spec)]
    trained = [p for name, p in expected.named_parameters() if not _frozen(name, spec)]
    for name, ours, theirs in zip(names, stack.buffers.grad.tensors(), trained, strict=True):
        theirs = theirs.T if theirs.dim() == 2 else theirs[None]
        scale = theirs.abs().max().clamp(min=1e-12)
        assert (ours[0] - theirs).abs().max() < 1e-9 * scale, name


@pytest.mark.parametrize("method", ["bp", "fa", "dfa"])
@pytest.mark.parametrize(("hidden", "k"), [(8, 3), (64, 3), (64, 1)])
def test_blocks_of_another_inner_width_equal_autograd(method, hidden, k):
    test_closed_form_gradients_equal_autograd(method, k, 0.03, None, hidden=hidden)


@pytest.mark.parametrize("method", ["bp", "fa", "dfa"])
@pytest.mark.parametrize("k", [0, 2, 3])
def test_without_the_last_norm_gradients_equal_autograd(method, k):
    test_closed_form_gradients_equal_autograd(method, k, 0.03, None, final_norm=False)


def _frozen(name: str, spec: RunSpec) -> bool:
    return name.startswith("blocks.") and int(name.split(".")[1]) < spec.depth - spec.k


def test_rescaled_bp_keeps_its_chain_exact():
    """Normalising BP's credit scales each block's drive; what flows further down stays the raw gradient."""
    raw, rescaled = (Stack([RunSpec(method="bp", normalise=n, **SHAPE)], torch.float64) for n in (None, "sample"))
    x, y = batch(2)
    for stack in (raw, rescaled):
        tape = stack.tape(len(y))
        tape.forward(x[None])
        tape.score(y[None])
        stack.gradients(tape)
    torch.testing.assert_close(raw.rule.g, rescaled.rule.g)
    assert not torch.allclose(raw.buffers.flat_grad, rescaled.buffers.flat_grad)


@pytest.mark.parametrize("method", ["bp", "fa", "dfa"])
@pytest.mark.parametrize(("k", "penalty"), [(0, 0.0), (2, 0.0), (3, 0.01)])
def test_fifty_steps_equal_separate_adamw_per_part(method, k, penalty):
    # W2 starts near zero, so FA's and DFA's first steps are ill-conditioned in float32: compare in float64
    spec = RunSpec(method=method, k=k, penalty=penalty, **SHAPE)
    stack, module = Stack([spec], dtype=torch.float64), initialised(spec).double()
    parts, start = oracle.optimizers(spec, module), copy.deepcopy(module)
    for i in range(50):
        x, y = batch(i)
        oracle.step(spec, module, feedback(stack), parts, x, y)
        stack.step(x[None], y[None])
    ours = copy.deepcopy(start)
    model.store_module(stack.net, 0, ours)
    for (name, a), b, c in zip(ours.named_parameters(), module.parameters(), start.parameters(), strict=True):
        torch.testing.assert_close(a, b, rtol=1e-5, atol=1e-7, msg=name)
        assert torch.equal(a, c) == _frozen(name, spec), f"{name}: frozen blocks stay, all else moves"


@pytest.mark.parametrize("method", ["bp", "fa", "dfa"])
def test_float32_follows_the_oracle(method):
    spec = RunSpec(method=method, **SHAPE)
    stack, module = Stack([spec]), initialised(spec)
    parts = oracle.optimizers(spec, module)
    for i in range(50):
        x, y = batch(i, dtype=torch.float32)
        oracle.step(spec, module, feedback(stack), parts, x, y)
        stack.step(x[None], y[None])
    ours = initialised(spec)
    model.store_module(stack.net, 0, ours)
    x, _ = batch(99, 64, torch.float32)
    with torch.no_grad():
        a, b = ours.states(x)[-1], module.states(x)[-1]
    assert (a - b).norm() < 0.02 * b.norm()


@pytest.mark.parametrize("method", ["bp", "fa", "dfa"])
def test_stacked_runs_agree_with_single_ones(method):
    specs = [RunSpec(method=method, seed=s, penalty=p, **SHAPE) for s, p in [(1, 0.0), (2, 0.02), (3, 0.0)]]
    stacked, singles = Stack(specs, torch.float64), [Stack([spec], torch.float64) for spec in specs]
    for i in range(5):
        batches = [batch(10 * i + s) for s in range(3)]
        stacked.step(torch.stack([x for x, _ in batches]), torch.stack([y for _, y in batches]))
        for single, (x, y) in zip(singles, batches, strict=True):
            single.step(x[None], y[None])
    for s, single in enumerate(singles):
        for ours, alone in zip(stacked.net.run(s).tensors(), single.net.tensors(), strict=True):
            torch.testing.assert_close(ours, alone, rtol=1e-6, atol=1e-9)


def test_one_batch_can_serve_a_whole_stack():
    specs = [RunSpec(method="dfa", seed=s, **SHAPE) for s in (1, 2)]
    shared, repeated = Stack(specs), Stack(specs)
    x, y = batch(0, dtype=torch.float32)
    shared.step(x[None], y[None])
    repeated.step(torch.stack([x, x]), torch.stack([y, y]))
    torch.testing.assert_close(shared.buffers.flat, repeated.buffers.flat)


def test_only_seed_and_penalty_may_differ_in_a_stack():
    with pytest.raises(ValueError, match="seed and penalty"):
        Stack([RunSpec(method="dfa", **SHAPE), RunSpec(method="dfa", k=1, **SHAPE)])
