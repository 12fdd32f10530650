"""The drop-in audit against the engine's own diagnostics, and on models it was not made for."""

import pytest
import torch
from torch import nn

import creditaudit
from creditaudit import data, model
from creditaudit.engine import Stack
from creditaudit.metrics import D2_FLOOR
from creditaudit.spec import RunSpec
from creditaudit.train import Training

SPEC = RunSpec(method="dfa", width=16, depth=3, epochs=3, data="tiny", batch=64)


@pytest.fixture(scope="module")
def trained(tmp_path_factory):
    """A DFA run as engine record and as torch module."""
    with torch.inference_mode():
        training = Training([SPEC], tmp_path_factory.mktemp("run") / "unused.pt")
        training.complete(lambda *_: None)
        record = training.records()[0]
    module = model.ResMLP(SPEC.width, SPEC.depth)
    model.store_module(training.stack.net, 0, module)
    return record, module


def test_it_agrees_with_the_engine(trained):
    record, module = trained
    x, y = data.test_tensors(data.load("tiny"))
    seen = creditaudit.audit(module.double(), x.double(), y)
    assert seen.accuracy == pytest.approx(record.final["test_accuracy"], abs=0.005)
    assert seen.h_norm == pytest.approx(record.final["h_norm"], rel=1e-4)
    assert seen.growth == pytest.approx(record.final["growth"], rel=1e-4)
    assert seen.g_norm == pytest.approx(record.final["g_norm"][-1], rel=1e-4)
    assert seen.g_norm_per_sample == pytest.approx(record.final["g_norm_per_sample"][-1], rel=1e-4)
    assert seen.gain is None and seen.d3 is None


class ConvNet(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.stem = nn.Conv2d(3, 8, 3)
        self.stages = nn.Sequential(*[nn.Sequential(nn.Conv2d(8, 8, 3, padding=1), nn.ReLU()) for _ in range(3)])
        self.head = nn.Linear(8, 10)

    def forward(self, x):
        return self.head(self.stages(self.stem(x)).mean((2, 3)))


def test_it_takes_a_model_it_was_not_made_for():
    torch.manual_seed(0)
    net = ConvNet()
    x, y = torch.randn(200, 3, 16, 16), torch.randint(0, 10, (200,))
    seen = creditaudit.audit(net, x, y, blocks=list(net.stages), frozen_accuracy=0.5)
    states = [net.stem(x)]
    for stage in net.stages:
        states.append(stage(states[-1]))
    norms = [h.flatten(1).norm(dim=1).median().item() for h in states]  # the last one before the pooling
    assert seen.h_norm == pytest.approx(norms, rel=1e-4)
    assert creditaudit.audit(net, x, y).h_norm == seen.h_norm  # finds the stages, not the layers inside one
    assert seen.d3 is False and "D3" in seen.verdict
    assert net.training and not any(module._forward_pre_hooks for module in net.modules())


def test_an_exploding_stream_fails_d1_and_a_vanishing_reference_d2():
    stack = Stack([SPEC])
    module = model.ResMLP(SPEC.width, SPEC.depth)
    model.store_module(stack.net, 0, module)
    x, y = data.test_tensors(data.load("tiny"))
    assert creditaudit.audit(module, x, y).verdict == "PASS"
    with torch.no_grad():
        module.blocks[1].w2.weight.mul_(1e9)
    seen = creditaudit.audit(module, x, y)
    assert seen.verdict == "FAIL(D1+D2)" and seen.g_norm < D2_FLOOR
    assert "FAIL(D1+D2)" in str(seen) and "not measured" in str(seen)


class Narrowing(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.blocks = nn.ModuleList([nn.Linear(16, 12), nn.Linear(12, 8)])
        self.head = nn.Linear(8, 10)

    def forward(self, x):
        for block in self.blocks:
            x = block(x)
        return self.head(x)


def test_states_of_different_shape_are_refused():
    with pytest.raises(ValueError, match=r"differ in shape .*blocks="):
        creditaudit.audit(Narrowing(), torch.randn(8, 16), torch.randint(0, 10, (8,)))


def test_a_stream_that_is_not_a_number_fails_d1():
    module = model.ResMLP(SPEC.width, SPEC.depth)
    with torch.no_grad():
        module.blocks[2].w2.weight.fill_(torch.nan)
    x, y = data.test_tensors(data.load("tiny"))
    assert "D1" in creditaudit.audit(module, x, y).verdict


def test_a_model_without_a_list_of_blocks_asks_for_them():
    with pytest.raises(ValueError, match="blocks="):
        creditaudit.audit(nn.Linear(4, 10), torch.randn(8, 4), torch.randint(0, 10, (8,)))
