"""Equilibrium propagation against its energy, minimised by a plain solver, and against the exact gradient."""

from dataclasses import replace

import pytest
import torch
from torch import Tensor
from torch.nn.functional import cross_entropy

from creditaudit.engine import model
from creditaudit.engine.model import ResMLP
from creditaudit.engine.settings import EQUILIBRIUM
from creditaudit.engine.spec import RunSpec
from creditaudit.engine.step import Stack, initialised
from creditaudit.measure import diagnostics
from tests.networks import batch
from tests.test_learned_credit import SHAPE, close, worked


def energy(module: ResMLP, x: Tensor, y: Tensor, h: list[Tensor], beta: float) -> Tensor:
    parts = [h[0] - module.embed(x)] + [h[l + 1] - h[l] - block(h[l]) for l, block in enumerate(module.blocks)]
    half = sum(part.square().sum() for part in parts) / 2
    return half + beta * cross_entropy(module.readout(h[-1]), y, reduction="sum")


def relaxed(module: ResMLP, x: Tensor, y: Tensor, beta: float) -> list[Tensor]:
    """The nudged phase as plain minimisation of the energy."""
    h = [state.detach().clone().requires_grad_() for state in module.states(x)]
    solver = torch.optim.LBFGS(
        h, max_iter=400, history_size=50, tolerance_grad=1e-13, tolerance_change=0, line_search_fn="strong_wolfe"
    )

    def closure() -> Tensor:
        solver.zero_grad()
        total = energy(module, x, y, h, beta)
        total.backward()
        return total

    solver.step(closure)
    return [state.detach() for state in h]


def test_ep_reports_when_float32_no_longer_resolves_its_credit():
    resolution = []
    for scale in (1.0, 1e3):
        stack = Stack([RunSpec(method="ep", **SHAPE)])
        stack.net.embed.w.mul_(scale)
        x, y = batch(1, dtype=torch.float32)
        stack.step(x[None], y[None])
        resolution.append(min(stack.rule.log()["credit_resolution"][0]))
    assert resolution[0] > 0.99 and resolution[1] < 0.9


def ep_stack(scale: float, beta: float, sweeps: int, **more) -> tuple[Stack, ResMLP]:
    """An EP run and its module, with blocks of the given strength."""
    spec = RunSpec(method="ep", **SHAPE)
    stack, module = Stack([spec], torch.float64), initialised(spec).double()
    with torch.no_grad():
        for block in module.blocks:
            block.w2.weight.mul_(scale)
    model.load_module(stack.net, 0, module)
    stack.rule.settings = replace(EQUILIBRIUM, beta=beta, sweeps=sweeps, **more)
    return stack, module


@pytest.mark.parametrize("beta", [EQUILIBRIUM.beta, 0.01])
def test_ep_relaxes_to_the_minimum_of_the_energy(beta):
    stack, module = ep_stack(10.0, beta, 40)
    x, y = batch(1)
    _, credit = worked(stack, x, y)
    nudged, free = relaxed(module, x, y, beta), module.states(x)
    for l in range(4):
        close(credit[l], -(nudged[l] - free[l]) / beta, 1e-4)


def test_descent_arrives_where_the_solution_is():
    """And before that it is plain gradient descent on the energy, all states at once."""
    x, y = batch(1)
    stack, module = ep_stack(10.0, 0.1, 3, relaxation="descent", rate=0.3)
    _, credit = worked(stack, x, y)
    free = [state.detach() for state in module.states(x)]
    h = [state.clone() for state in free]
    for _ in range(3):
        moving = [state.requires_grad_() for state in h]
        slopes = torch.autograd.grad(energy(module, x, y, moving, 0.1), moving)
        h = [(state - 0.3 * slope).detach() for state, slope in zip(h, slopes, strict=True)]
    for l in range(4):
        close(credit[l] + 1, 1 - (h[l] - free[l]) / 0.1, 1e-9)
    solved, descended = (ep_stack(1.0, 0.1, n, relaxation=how)[0] for n, how in ((40, "solved"), (400, "descent")))
    for ours, theirs in zip(worked(descended, x, y)[1], worked(solved, x, y)[1], strict=True):
        close(ours, theirs, 1e-4)


def test_ep_as_shipped_is_settled():
    """At init, where ||h|| is smallest and the nudge strongest, two sweeps are within 10 % of the fixed point."""
    (shipped, _), (longer, _) = (ep_stack(1.0, EQUILIBRIUM.beta, n) for n in (EQUILIBRIUM.sweeps, 40))
    x, y = batch(1)
    for ours, settled_credit in zip(worked(shipped, x, y)[1], worked(longer, x, y)[1], strict=True):
        assert (ours - settled_credit).norm() < 0.1 * settled_credit.norm()


def test_ep_tends_to_the_exact_gradient_as_beta_vanishes():
    x, y = batch(1)
    for scale, tolerance in ((10.0, None), (1e-3, 1e-6)):
        stack, _ = ep_stack(scale, 1e-6, 3)
        tape, credit = worked(stack, x, y)
        exact = [g[0] * len(y) for g in diagnostics.reference_gradients(tape)]
        close(credit[0], exact[0], 1e-4)  # the embed's is g_0 in any network
        for l in range(3):
            cosine = diagnostics.cosines(credit[l + 1], exact[l + 1]).min().item()
            if tolerance is None:
                assert 0.3 < cosine < 1 - 1e-3, "displacements of a far-from-identity network are not gradients"
            else:
                assert cosine > 1 - tolerance
                close(credit[l + 1], (l + 2) * exact[l + 1], 1e-2)
