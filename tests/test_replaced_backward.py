"""Models whose backward is not the gradient, as in libraries of feedback alignment: noticed, and measured otherwise."""

import pytest
import torch
from torch import Tensor, nn
from torch.nn.functional import cross_entropy

import creditaudit
from tests.foreign import FALinear, mlp, plain_twin

pytestmark = pytest.mark.filterwarnings("ignore::creditaudit.measure.audit.UnsafeReading")


def agrees_with_its_twin(net: nn.Module, inner: nn.Sequential, head_scale: float) -> creditaudit.Audit:
    """D2 and the gradients below, within what 32 and 8 random directions can tell."""
    with torch.no_grad():
        inner[-1].weight.mul_(head_scale)
    x, y = torch.randn(64, 20), torch.arange(64) % 10
    seen, twin = creditaudit.audit(net, x, y), creditaudit.audit(plain_twin(inner), x, y)
    assert twin.reference == "autograd" and seen.verdict == twin.verdict
    assert seen.g_norm == pytest.approx(twin.g_norm, rel=1e-3)  # 64 numbers: every axis is moved
    assert [s.g_norm for s in seen.states] == pytest.approx([s.g_norm for s in twin.states], rel=0.3)
    return seen


@pytest.mark.parametrize("head_scale", [1.0, 1e-8])
def test_a_replaced_backward_is_noticed_and_d2_measured_by_differences(head_scale):
    torch.manual_seed(0)
    net = mlp(FALinear, FALinear)
    seen = agrees_with_its_twin(net, net, head_scale)
    assert seen.reference == "differences" and "replaces backward" in str(seen)
    assert seen.d2 == (head_scale == 1.0)


def test_a_backward_replaced_below_the_last_state_leaves_d2_alone():
    torch.manual_seed(0)
    net = mlp(FALinear, nn.Linear)
    seen = agrees_with_its_twin(net, net, 1.0)
    assert seen.reference == "autograd" and any("before the last state" in note for note in seen.notes)


def test_a_state_of_many_numbers_is_measured_along_random_directions():
    torch.manual_seed(0)
    x, y = torch.randn(64, 20), torch.arange(64) % 10
    net = nn.Sequential(FALinear(20, 300), nn.ReLU(), FALinear(300, 300), nn.ReLU(), FALinear(300, 10))
    twin = nn.Sequential(nn.Linear(20, 300), nn.ReLU(), nn.Linear(300, 300), nn.ReLU(), nn.Linear(300, 10))
    twin.load_state_dict({name: net.state_dict()[name] for name in twin.state_dict()})
    seen, plain = creditaudit.audit(net, x, y), creditaudit.audit(twin, x, y)
    assert seen.reference == "differences" and seen.g_norm == pytest.approx(plain.g_norm, rel=0.1)


class Raising(torch.autograd.Function):
    @staticmethod
    def forward(context, x):
        return x.clone()

    @staticmethod
    def backward(context, sent):
        raise AttributeError("no error was broadcast")


class Broken(nn.Linear):
    def forward(self, x: Tensor) -> Tensor:
        return Raising.apply(super().forward(x))


def test_a_backward_that_fails_is_not_needed():
    torch.manual_seed(0)
    net = mlp(nn.Linear, Broken)
    assert "AttributeError" in str(agrees_with_its_twin(net, net, 1.0))


@pytest.mark.parametrize("head_scale", [1.0, 1e-8])
@pytest.mark.parametrize("mode", ["fa", "dfa", "usf", "frsf", "brsf"])
def test_biotorch(mode, head_scale):
    """As `make biotorch` installs it; Feedback above stands for it elsewhere."""
    biotorch = pytest.importorskip("biotorch.module.biomodule")
    torch.manual_seed(0)
    net = biotorch.BioModule(mlp(nn.Linear, nn.Linear), mode=mode, output_dim=10)
    assert agrees_with_its_twin(net, net.module, head_scale).reference == "differences"


def test_biotorch_dfa_after_training():
    biotorch = pytest.importorskip("biotorch.module.biomodule")
    torch.manual_seed(0)
    net = biotorch.BioModule(mlp(nn.Linear, nn.Linear), mode="dfa", output_dim=10).train()
    optimiser, x, y = torch.optim.SGD(net.parameters(), 0.1), torch.randn(64, 20), torch.arange(64) % 10
    for _ in range(20):
        optimiser.zero_grad()
        cross_entropy(net(x, y, cross_entropy), y).backward()
        optimiser.step()
    assert agrees_with_its_twin(net, net.module, 1.0).reference == "differences"
