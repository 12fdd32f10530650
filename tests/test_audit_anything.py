"""`creditaudit.audit` on models nobody here wrote, against a slow version that goes through them step by step."""

import pytest
import torch
from torch import Tensor
from torch.nn.functional import relu

import creditaudit
from tests.foreign import CASES, ForClassification, Functional, made, no_terminal_norm

pytestmark = pytest.mark.filterwarnings("ignore::creditaudit.measure.audit.UnsafeReading")


@pytest.mark.parametrize("make", CASES)
def test_it_agrees_with_going_through_the_model_by_hand(make):
    case = made(make)
    before = {name: tensor.clone() for name, tensor in case.model.state_dict().items()}
    seen = creditaudit.audit(case.model, case.x, case.y)
    h, g, growth, accuracy = case.literal()
    assert seen.h_norm == pytest.approx(h, rel=1e-3)
    assert [128 * state.g_norm for state in seen.states] == pytest.approx(g, rel=1e-3)
    assert seen.growth == pytest.approx(growth, rel=1e-3)
    assert seen.accuracy == pytest.approx(accuracy) and seen.reference == "autograd"
    assert seen.g_norm_per_sample == pytest.approx(g[-1], rel=1e-3)
    for name, tensor in case.model.state_dict().items():
        assert torch.equal(before[name], tensor) and before[name].dtype == tensor.dtype
    assert not any(module._forward_hooks or module._forward_pre_hooks for module in case.model.modules())


def test_a_skip_around_the_layers_of_a_chain_is_not_overlooked():
    class Around(Functional):
        def forward(self, x: Tensor) -> Tensor:
            h = relu(self.fc1(x))
            h = h + 0.5 * relu(self.fc2(h))
            return self.fc4(h + relu(self.fc3(h))).narrow(1, 0, 10)

    with pytest.raises(creditaudit.measure.inputs.AuditError, match="no chain"):
        creditaudit.audit(Around(), torch.randn(6, 12), torch.arange(6))


def test_a_loader_a_mapping_and_tensors_give_the_same():
    torch.manual_seed(0)
    net, ids, y = ForClassification().eval(), torch.randint(0, 50, (150, 7)), torch.arange(150) % 10
    mask = (torch.rand(150, 7) > 0.3).long().index_fill(1, torch.tensor([0]), 1)
    one = creditaudit.audit(net, {"input_ids": ids, "attention_mask": mask}, y)
    rows = [{"input_ids": ids[i], "attention_mask": mask[i], "labels": y[i]} for i in range(150)]
    assert creditaudit.audit(net, torch.utils.data.DataLoader(rows, 64)).h_norm == pytest.approx(one.h_norm)
    pairs = torch.utils.data.DataLoader(torch.utils.data.TensorDataset(ids, y), 50)
    assert creditaudit.audit(net, pairs).g_norm == pytest.approx(creditaudit.audit(net, ids, y).g_norm)
    assert one.n == 150 and one.h_norm != creditaudit.audit(net, ids, y).h_norm


def test_blocks_may_be_named():
    case = made(no_terminal_norm)
    named = creditaudit.audit(case.model, case.x, case.y, blocks=["blocks.1", "blocks.2"])
    assert named.h_norm == creditaudit.audit(case.model, case.x, case.y).h_norm[1:]
