"""`creditaudit.audit` on models nobody here wrote, against a slow version that goes through them step by step."""

import dataclasses
import math
import os
import subprocess
import sys
from collections import namedtuple
from collections.abc import Callable
from types import SimpleNamespace

import nbformat
import pytest
import torch
from torch import Tensor, nn
from torch.nn.functional import cross_entropy, relu

import creditaudit
from creditaudit import paths
from creditaudit.engine.model import ResMLP
from creditaudit.measure import rules

pytestmark = pytest.mark.filterwarnings("ignore::creditaudit.measure.audit.UnsafeReading")


# torchvision is imported where it is needed: collecting the tests must not wait for it


class Case:
    """A model, and how it gets from its input to the first state, from state to state, and to the logits."""

    def __init__(self, model: nn.Module, x: Tensor, stem: Callable, steps: list[Callable], readout: Callable) -> None:
        self.model, self.x, self.stem, self.steps, self.readout = model.eval(), x, stem, steps, readout
        self.y = torch.arange(len(x)) % 10

    def literal(self) -> tuple[list[list[float]], list[list[float]], float, float]:
        """Norms of states and gradients, sample by sample; largest growth of medians in a stage; accuracy."""
        h_norms, g_norms, hits = [], [], []
        for i in range(len(self.x)):
            h = [self.stem(self.x[i : i + 1])]
            for step in self.steps:
                h.append(step(h[-1]))
            logits = self.readout(h[-1])
            g = torch.autograd.grad(cross_entropy(logits, self.y[i : i + 1]), h)
            h_norms.append([state.double().norm().item() for state in h])
            g_norms.append([gradient.double().norm().item() for gradient in g])
            hits.append((logits.argmax() == self.y[i]).item())
            shapes = [state.shape for state in h]
        medians = torch.tensor(h_norms).median(0).values
        growth = max((medians[l + 1] / medians[l]).item() for l in range(len(shapes) - 1) if shapes[l] == shapes[l + 1])
        return medians.tolist(), torch.tensor(g_norms).median(0).values.tolist(), growth, sum(hits) / len(hits)


def pictures(size: int = 32) -> Tensor:
    return torch.randn(6, 3, size, size)


def chained(modules: list[nn.Module]) -> Callable:
    return nn.Sequential(*modules)


def res_mlp() -> Case:
    net = ResMLP(24, 3)
    steps = [lambda h, block=block: h + block(h) for block in net.blocks]
    return Case(net, torch.randn(6, 3072), net.embed, steps, net.readout)


def resnet18() -> Case:
    from torchvision import models

    net = models.resnet18(num_classes=10)
    stem = chained([net.conv1, net.bn1, net.relu, net.maxpool])
    steps = [block for stage in (net.layer1, net.layer2, net.layer3, net.layer4) for block in stage]
    return Case(net, pictures(64), stem, steps, lambda h: net.fc(net.avgpool(h).flatten(1)))


def mobilenet() -> Case:
    from torchvision import models

    net = models.mobilenet_v2(num_classes=10, width_mult=0.35)
    parts = list(net.features)
    readout = chained([parts[-1], nn.AdaptiveAvgPool2d(1), nn.Flatten(), net.classifier])
    return Case(net, pictures(), parts[0], parts[1:-1], readout.eval())


def convnext() -> Case:
    from torchvision.models.convnext import CNBlockConfig, ConvNeXt

    net = ConvNeXt([CNBlockConfig(16, 24, 2), CNBlockConfig(24, None, 3)], num_classes=10, layer_scale=0.5)
    stem, first, down, second = net.features
    return Case(net, pictures(), stem, [*first, down, *second], chained([net.avgpool, net.classifier]))


def vision_transformer() -> Case:
    from torchvision import models

    net = models.VisionTransformer(32, 8, 3, 2, 16, 32, num_classes=10)
    nn.init.normal_(net.heads.head.weight)  # torchvision starts it at zero, where there is no gradient

    def stem(x: Tensor) -> Tensor:
        tokens = net._process_input(x)
        tokens = torch.cat([net.class_token.expand(len(x), -1, -1), tokens], 1)
        return tokens + net.encoder.pos_embedding

    return Case(net, pictures(), stem, list(net.encoder.layers), lambda h: net.heads(net.encoder.ln(h)[:, 0]))


class Layer(nn.Module):
    """As Hugging Face has it: keywords in, a tuple out."""

    def __init__(self, width: int) -> None:
        super().__init__()
        self.norm, self.attend = nn.LayerNorm(width), nn.MultiheadAttention(width, 2, batch_first=True)
        self.output = nn.Sequential(nn.Linear(width, 2 * width), nn.GELU(), nn.Linear(2 * width, width))

    def forward(self, attention_mask: Tensor | None = None, hidden_states: Tensor | None = None) -> tuple:
        h = self.norm(hidden_states)
        seen, weights = self.attend(h, h, h, key_padding_mask=attention_mask == 0)
        hidden_states = hidden_states + seen
        return hidden_states + self.output(hidden_states), weights


class Encoder(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.layer = nn.ModuleList(Layer(16) for _ in range(3))

    def forward(self, hidden_states: Tensor, attention_mask: Tensor) -> SimpleNamespace:
        for layer in self.layer:
            hidden_states, _ = layer(attention_mask=attention_mask, hidden_states=hidden_states)
        return SimpleNamespace(last_hidden_state=hidden_states)


class ForClassification(nn.Module):
    """Takes keywords, returns an object."""

    def __init__(self) -> None:
        super().__init__()
        self.embeddings, self.encoder, self.classifier = nn.Embedding(50, 16), Encoder(), nn.Linear(16, 10)

    def forward(self, input_ids: Tensor, attention_mask: Tensor | None = None, labels: Tensor | None = None):
        attention_mask = torch.ones_like(input_ids) if attention_mask is None else attention_mask
        last = self.encoder(self.embeddings(input_ids), attention_mask=attention_mask).last_hidden_state
        loss = None if labels is None else cross_entropy(self.classifier(last[:, 0]), labels)
        return SimpleNamespace(loss=loss, logits=self.classifier(last[:, 0]), hidden_states=None)


def hugging_face() -> Case:
    net = ForClassification()
    whole = torch.ones(1, 7).long()
    steps = [lambda h, layer=layer: layer(whole, h)[0] for layer in net.encoder.layer]
    return Case(net, torch.randint(0, 50, (6, 7)), net.embeddings, steps, lambda h: net.classifier(h[:, 0]))


def plain_mlp() -> Case:
    net = nn.Sequential(nn.Flatten(), nn.Linear(20, 16), nn.ReLU(), *hidden(16), *hidden(16), nn.Linear(16, 10))
    return Case(net, torch.randn(6, 4, 5), net[:3], [net[3:5], net[5:7]], net[7])


def hidden(width: int) -> list[nn.Module]:
    return [nn.Linear(width, width), nn.ReLU()]


class Functional(nn.Module):
    """An MLP with the activations in `forward`."""

    def __init__(self) -> None:
        super().__init__()
        self.fc1, self.fc2, self.fc3, self.fc4 = (nn.Linear(12, 12) for _ in range(4))

    def forward(self, x: Tensor) -> Tensor:
        return self.fc4(relu(self.fc3(relu(self.fc2(relu(self.fc1(x))))))).narrow(1, 0, 10)


def functional_mlp() -> Case:
    net = Functional()
    steps = [lambda h: relu(net.fc2(h)), lambda h: relu(net.fc3(h))]
    return Case(net, torch.randn(6, 12), lambda x: relu(net.fc1(x)), steps, lambda h: net.fc4(h).narrow(1, 0, 10))


class Stack(nn.Module):
    """Blocks of one class one after the other, and a readout straight from the last state: no terminal norm."""

    def __init__(self, blocks: list[nn.Module], width: int = 16) -> None:
        super().__init__()
        self.embed, self.blocks, self.head = nn.Linear(20, width), nn.ModuleList(blocks), nn.Linear(width, 10)

    def forward(self, x: Tensor) -> Tensor:
        h = self.embed(x)
        for block in self.blocks:
            h = block(h)
        return self.head(h)


class Skip(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.body = nn.Sequential(nn.LayerNorm(16), nn.Linear(16, 16), nn.GELU(), nn.Linear(16, 16))

    def forward(self, h: Tensor) -> Tensor:
        return h + self.body(h)


def stacked(blocks: list[nn.Module]) -> Case:
    net = Stack(blocks)
    return Case(net, torch.randn(6, 20), net.embed, list(net.blocks), net.head)


def no_terminal_norm() -> Case:
    return stacked([Skip() for _ in range(3)])


def shared_blocks() -> Case:
    return stacked([Skip()] * 3)


class PostNorm(Skip):
    def __init__(self) -> None:
        super().__init__()
        self.norm = nn.LayerNorm(16)

    def forward(self, h: Tensor) -> Tensor:
        return self.norm(super().forward(h))


def post_norm() -> Case:
    return stacked([PostNorm() for _ in range(3)])


def vgg() -> Case:
    from torchvision import models

    net = models.VGG(models.vgg.make_layers([8, 8, 8, "M", 12, 12, "M"]), num_classes=10, init_weights=False)
    net.avgpool, net.classifier = nn.AdaptiveAvgPool2d(1), nn.Linear(12, 10)
    f = list(net.features)
    last = chained([*f[9:], net.avgpool, nn.Flatten()])
    steps = [chained(f[2:4]), chained(f[4:7]), chained(f[7:9]), last]
    return Case(net, pictures(16), chained(f[:2]), steps, net.classifier)


CASES = [
    res_mlp,
    resnet18,
    mobilenet,
    convnext,
    vision_transformer,
    hugging_face,
    plain_mlp,
    functional_mlp,
    no_terminal_norm,
    shared_blocks,
    post_norm,
    vgg,
]


def made(make: Callable[[], Case]) -> Case:
    torch.manual_seed(0)
    case = make()
    for parameter in case.model.parameters():  # no zeros that hide an error
        parameter.data += 0.02 * torch.randn_like(parameter)
    return case


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


# ---- the gradient that is none


class Feedback(torch.autograd.Function):
    """A linear map whose backward goes through another matrix: what libraries for feedback alignment do."""

    @staticmethod
    def forward(context, x, weight, bias, feedback):
        context.save_for_backward(x, feedback)
        return x @ weight.T + bias

    @staticmethod
    def backward(context, sent):
        x, feedback = context.saved_tensors
        return sent @ feedback, sent.T @ x, sent.sum(0), None


class FALinear(nn.Linear):
    def __init__(self, entering: int, leaving: int) -> None:
        super().__init__(entering, leaving)
        self.register_buffer("feedback", torch.randn(leaving, entering) / math.sqrt(entering))

    def forward(self, x: Tensor) -> Tensor:
        return Feedback.apply(x, self.weight, self.bias, self.feedback)


def mlp(linear: type[nn.Linear], head: type[nn.Linear]) -> nn.Sequential:
    layers = [linear(20, 64), nn.ReLU(), linear(64, 64), nn.ReLU(), linear(64, 64), nn.ReLU(), head(64, 10)]
    return nn.Sequential(*layers)


def plain_twin(net: nn.Sequential) -> nn.Sequential:
    """The same function with torch's own backward."""
    twin = mlp(nn.Linear, nn.Linear)
    twin.load_state_dict({name: net.state_dict()[name] for name in twin.state_dict()})
    return twin


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


# ---- what a reader has to be told


def test_post_norm_hides_an_explosion_and_the_report_says_so():
    case = made(post_norm)
    with torch.no_grad():
        for block in case.model.blocks:
            block.body[-1].weight.mul_(1e6)
    with pytest.warns(creditaudit.UnsafeReading, match="nearly blind"):
        seen = creditaudit.audit(case.model, case.x, case.y)
    assert seen.d1 and "post-norm" in str(seen)
    h = case.model.embed(case.x)
    ratios = []
    for block in case.model.blocks:
        inner = h + block.body(h)
        ratios.append((inner.norm(dim=1).median() / h.norm(dim=1).median()).item())
        h = block.norm(inner)
    assert max(ratios) > 1e4 and f"{max(ratios):.3g} times" in repr(seen)


def test_the_common_post_norm_layer_is_recognised():
    layers = [nn.TransformerEncoderLayer(16, 2, 32, batch_first=True, norm_first=first) for first in (False, True)]
    for layer, blind in zip(layers, (True, False), strict=True):
        encoder = nn.TransformerEncoder(layer, 2, enable_nested_tensor=False)
        net = nn.Sequential(encoder, nn.Flatten(), nn.Linear(64, 10))
        seen = creditaudit.audit(net, torch.randn(8, 4, 16), torch.arange(8))
        assert any("nearly blind" in note for note in seen.notes) == blind


class Rounded(Skip):
    """Rounds to bfloat16 without a product in it, which not every machine can do."""

    def forward(self, h: Tensor) -> Tensor:
        return super().forward(h.float()).bfloat16()


class Rounding(Stack):
    def forward(self, x: Tensor) -> Tensor:
        h = self.embed(x).bfloat16()
        for block in self.blocks:
            h = block(h)
        return self.head(h.to(self.head.weight.dtype))


def test_bfloat16_is_read_and_the_reader_warned():
    torch.manual_seed(0)
    net, x, y = Rounding([Rounded() for _ in range(3)]), torch.randn(64, 20), torch.arange(64) % 10
    with pytest.warns(creditaudit.UnsafeReading, match="bfloat16"):
        seen = creditaudit.audit(net, x, y)
    exact = Stack([Skip() for _ in range(3)])
    exact.load_state_dict(net.state_dict())
    fine = creditaudit.audit(exact, x, y)
    assert seen.h_norm == pytest.approx(fine.h_norm, rel=0.02)
    assert seen.g_norm == pytest.approx(fine.g_norm, rel=0.1)


def test_tied_weights_and_modules_survive_the_reading_in_float64():
    net = Stack([Skip()] * 2)
    net.blocks[0].body[3].weight = net.blocks[0].body[1].weight
    before = [id(parameter) for parameter in net.parameters()]
    creditaudit.audit(net, torch.randn(6, 20), torch.arange(6))
    assert [id(parameter) for parameter in net.parameters()] == before
    assert all(parameter.dtype == torch.float32 for parameter in net.parameters())


Pair = namedtuple("Pair", ["hidden", "extra"])


@pytest.mark.parametrize("wrap", [lambda h: (h, None), lambda h: Pair(h, None), lambda h: {"hidden": h, "extra": None}])
def test_blocks_may_return_more_than_the_stream(wrap):
    class More(Skip):
        def forward(self, h):
            h = h["hidden"] if isinstance(h, dict) else h[0] if isinstance(h, tuple) else h
            return wrap(super().forward(h))

    class Opening(Stack):
        def forward(self, x):
            h = self.embed(x)
            for block in self.blocks:
                h = block(h)
                h = h["hidden"] if isinstance(h, dict) else h[0]
            return {"logits": self.head(h)}

    case = made(no_terminal_norm)
    net = Opening([More() for _ in range(3)])
    net.load_state_dict(case.model.state_dict())
    expected = creditaudit.audit(case.model, case.x, case.y)
    assert creditaudit.audit(net, case.x, case.y).states == expected.states


def test_what_a_logger_a_frame_and_a_notebook_get():
    case = made(convnext)
    seen = creditaudit.audit(case.model, case.x, case.y, frozen_accuracy=0.0)
    flat = seen.to_dict("audit/")
    assert flat["audit/growth"] == seen.growth and flat["audit/D1"] == 1 and flat["audit/h_norm/6"] == seen.h_norm[-1]
    assert all(isinstance(value, int | float) for value in flat.values())
    assert "gain" not in creditaudit.audit(case.model, case.x, case.y).to_dict()
    frame = seen.to_frame()
    assert len(frame) == 7 and frame.growth.max() == seen.growth and frame.growth.isna().sum() == 2
    assert len(seen.plot().axes) == 2
    table = creditaudit.reporting_table({"ours": seen, "theirs": seen})
    assert list(table.model) == ["ours", "theirs"] and table.verdict[0] == seen.verdict
    assert float(table["D1 growth"][0]) == pytest.approx(seen.growth, rel=0.01)


def test_a_table_a_log_and_a_page_keep_the_caveats_and_escape_names():
    torch.manual_seed(0)
    x, y = torch.randn(8, 20), torch.arange(8)
    chain = nn.Sequential(FALinear(20, 16), nn.ReLU(), FALinear(16, 12), nn.ReLU(), FALinear(12, 10))
    seen, plain = creditaudit.audit(chain, x, y), creditaudit.audit(Stack([Skip(), Skip()]), x, y)
    table = creditaudit.reporting_table({"A_1 & B": seen, "plain": plain})
    assert "RMS" in table["D1 growth"][0] and "RMS" not in table["D1 growth"][1]
    assert table.notes[0] == "gradient by differences; growth by RMS" and table.notes[1] == ""
    assert r"A\_1 \& B" in table.to_latex(index=False, escape=True)
    flat, same = seen.to_dict(), plain.to_dict()
    for name, (here, there) in {"reference_by_differences": (1, 0), "growth_by_rms": (1, 0), "notes": (2, 0)}.items():
        assert (flat[name], same[name]) == (here, there)
    case = dataclasses.replace(plain, notes=["a < b"], states=[dataclasses.replace(plain.states[0], name="<i>")])
    page = case._repr_html_()
    assert "<b>PASS(D1+D2), D3 open" in page and "&lt;i&gt;" in page and "a &lt; b" in page and "open</td>" in page
    pointing = creditaudit.alignment(Stack([Skip(), Skip()]), None, x, y)._repr_html_()
    assert "<td>blocks.1</td>" in pointing and "n = 8" in pointing


# ---- freezing


def test_a_frozen_twin_trains_all_but_the_blocks():
    torch.manual_seed(0)
    net = ResMLP(16, 2)
    twin = creditaudit.freeze(net)
    assert all(parameter.requires_grad for parameter in net.parameters())
    optimiser = torch.optim.AdamW(twin.parameters(), 0.1)
    cross_entropy(twin(torch.randn(8, 3072)), torch.arange(8)).backward()
    optimiser.step()
    changed = {n for (n, a), b in zip(net.named_parameters(), twin.parameters(), strict=True) if not torch.equal(a, b)}
    assert changed == {"embed.weight", "embed.bias", "norm.weight", "norm.bias", "head.weight", "head.bias"}


def test_a_plain_chain_is_frozen_between_its_ends():
    net = mlp(nn.Linear, nn.Linear)
    twin = creditaudit.freeze(net, x=torch.randn(4, 20), y=torch.arange(4))
    assert [layer.weight.requires_grad for layer in twin if isinstance(layer, nn.Linear)] == [True, False, False, True]
    with pytest.raises(ValueError, match="pass x and y"):
        creditaudit.freeze(net)


def test_what_cannot_be_frozen_is_refused():
    net = Stack([Skip(), Skip()])
    with pytest.raises(ValueError, match="nothing would be left"):
        creditaudit.freeze(net, [net])
    net.embed.bias = net.blocks[0].body[1].bias
    with pytest.raises(ValueError, match="shares a parameter"):
        creditaudit.freeze(net)
    with pytest.raises(ValueError, match="no parameters"):
        creditaudit.freeze(Stack([nn.ReLU(), nn.ReLU()]), ["blocks.0"])


def test_d3_from_a_twin():
    case = made(no_terminal_norm)
    twin = creditaudit.audit(creditaudit.freeze(case.model), case.x, case.y)
    seen = creditaudit.audit(case.model, case.x, case.y, frozen_accuracy=twin.accuracy)
    assert seen.gain == 0 and seen.d3 is False
    assert seen.verdict == rules.verdict(rules.judged(seen.growth, seen.g_norm, 0.0))


# ---- the notebook's recipes


def recipes() -> list[str]:
    book = nbformat.read(paths.NOTEBOOKS / "audit_your_own.ipynb", as_version=4)
    return [cell.source for cell in book.cells if "recipe" in cell.metadata.get("tags", [])]


def test_the_loop_and_the_callback_of_the_notebook_log_d1_and_d2():
    torch.manual_seed(0)
    x, y = torch.randn(64, 20), torch.arange(64) % 10
    names = {"torch": torch, "creditaudit": creditaudit, "cross_entropy": cross_entropy, "x": x, "y": y}
    names |= {"Net": lambda: Stack([Skip(), Skip()]), "x_test": x, "y_test": y}
    for recipe in recipes():
        exec(recipe, names)
    assert [row["epoch"] for row in names["log"]] == list(range(6))
    assert all({"D1", "D2", "growth", "g_norm"} <= set(row) for row in names["log"])

    class Module(Stack):
        """What Lightning's module gives to a callback."""

        def log_dict(self, found: dict[str, float]) -> None:
            self.logged = found

    module = Module([Skip(), Skip()]).train()
    names["AuditCallback"](x, y).on_validation_epoch_end(None, module)
    assert module.logged["audit/D1"] == 1 and module.logged["audit/h_norm/2"] > 0 and module.training


def test_importing_the_package_loads_neither_torch_nor_what_draws():
    code = "import sys, creditaudit; first = {*sys.modules}; creditaudit.audit, creditaudit.alignment"
    told = f"{code}; print('torch' in first, 'torch' in sys.modules, {{'pandas', 'matplotlib'}} & {{*sys.modules}})"
    search = os.environ | {"PYTHONPATH": str(paths.ROOT / "lib")}
    done = subprocess.run([sys.executable, "-c", told], env=search, capture_output=True, text=True, check=True)
    assert done.stdout.split("\n")[0] == "False True set()"
