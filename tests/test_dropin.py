"""The drop-in audit against the engine's own diagnostics, and on models it was not made for."""

import numpy as np
import pytest
import torch
from torch import nn

import creditaudit
from creditaudit.engine import data, model
from creditaudit.engine.spec import RunSpec
from creditaudit.engine.step import Stack
from creditaudit.measure import rules
from creditaudit.measure.rules import D2_FLOOR
from creditaudit.runs.train import Training

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
    assert seen.g_norm_per_sample == pytest.approx(record.final["g_norm_per_sample"][-1], rel=1e-4)
    assert seen.g_norm == seen.g_norm_per_sample / 128  # the record's own has a last batch of 4
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
    assert creditaudit.audit(module, x, y).verdict == "PASS(D1+D2), D3 open"
    seen = creditaudit.audit(module, x, y, frozen_accuracy=0.0)
    assert seen.d3 == (seen.accuracy >= rules.D3_GAIN)
    with torch.no_grad():
        module.blocks[1].w2.weight.mul_(1e9)
    seen = creditaudit.audit(module, x, y)
    assert seen.verdict == "FAIL(D1+D2), D3 open" and seen.g_norm < D2_FLOOR
    assert "FAIL(D1+D2)" in str(seen) and "not measured" in str(seen) and "blocks.1" in str(seen)


class Narrowing(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.blocks = nn.ModuleList([nn.Linear(16, 12), nn.Linear(12, 8)])
        self.head = nn.Linear(8, 10)

    def forward(self, x):
        for block in self.blocks:
            x = block(x)
        return self.head(x)


def test_states_that_all_differ_in_shape_are_judged_by_rms_and_it_is_said():
    torch.manual_seed(0)
    net, x, y = Narrowing(), torch.randn(8, 16), torch.randint(0, 10, (8,))
    with pytest.warns(creditaudit.UnsafeReading, match="root mean square"):
        seen = creditaudit.audit(net, x, y)
    h = [x, net.blocks[0](x), net.blocks[1](net.blocks[0](x))]
    rms = [state.norm(dim=1).median().item() / state.shape[1] ** 0.5 for state in h]
    assert seen.growth == pytest.approx(max(rms[1] / rms[0], rms[2] / rms[1]), rel=1e-5)
    assert [state.growth for state in seen.states] == [None, None, None]


def test_a_stream_that_is_not_a_number_fails_d1():
    module = model.ResMLP(SPEC.width, SPEC.depth)
    with torch.no_grad():
        module.blocks[2].w2.weight.fill_(torch.nan)
    x, y = data.test_tensors(data.load("tiny"))
    assert "D1" in creditaudit.audit(module, x, y).verdict


def test_a_model_without_a_list_of_blocks_asks_for_them():
    with pytest.raises(ValueError, match="blocks="):
        creditaudit.audit(nn.Linear(4, 10), torch.randn(8, 4), torch.randint(0, 10, (8,)))


class Residual(nn.Module):
    """h + f(h), with the skip inside the block (as torchvision has it) or outside; f may work in place."""

    def __init__(self, blocks: list[nn.Module], after: nn.Module, skip: bool = True) -> None:
        super().__init__()
        self.blocks, self.after, self.head, self.skip = nn.ModuleList(blocks), after, nn.Linear(16, 10), skip

    def forward(self, x):
        for block in self.blocks:
            x = x + block(x) if self.skip else block(x)
        return self.head(self.after(x))


def literal(net: Residual, x: torch.Tensor, y: torch.Tensor) -> tuple[list[float], float]:
    """Median norms of the states and of each sample's own gradient at the last, written out."""
    h = [x]
    for block in net.blocks:
        h.append(h[-1] + block(h[-1].clone()) if net.skip else block(h[-1].clone()))
    last = h[-1].detach().requires_grad_()
    loss = nn.functional.cross_entropy(net.head(net.after(last.clone())), y, reduction="sum")
    (g,) = torch.autograd.grad(loss, last)
    return [state.norm(dim=1).median().item() for state in h], g.norm(dim=1).median().item()


def linear() -> nn.Module:
    return nn.Linear(16, 16)


def in_place() -> nn.Module:
    return nn.Sequential(nn.ReLU(inplace=True), nn.Linear(16, 16))


def separate() -> list[nn.Module]:
    return [linear() for _ in range(3)]


def shared() -> list[nn.Module]:
    return [linear()] * 3


def shared_in_place() -> list[nn.Module]:
    return [in_place()] * 2


@pytest.mark.parametrize("after", [nn.Identity(), nn.ReLU(inplace=True), nn.LayerNorm(16)])
@pytest.mark.parametrize(
    ("make", "skip"),  # an in-place block would spoil its own skip
    [(separate, True), (separate, False), (shared, True), (shared, False), (shared_in_place, False)],
)
def test_states_and_gradient_are_those_of_the_definition(make, skip, after):
    """Separate blocks, one block called again and again, work in place in and after the blocks."""
    torch.manual_seed(0)
    net, x, y = Residual(make(), after, skip), torch.randn(40, 16), torch.randint(0, 10, (40,))
    norms, gradient = literal(net, x, y)
    seen = creditaudit.audit(net, x, y)
    assert seen.h_norm == pytest.approx(norms, rel=1e-4)
    assert seen.g_norm_per_sample == pytest.approx(gradient, rel=1e-4)


class Local(Residual):
    """As local rules train: every part learns alone, on a detached state."""

    def forward(self, x):
        for block in self.blocks:
            x = x.detach() + block(x.detach()) if self.skip else block(x.detach())
        return self.head(self.after(x.detach()))


@pytest.mark.parametrize("skip", [True, False])
def test_a_readout_that_learns_alone_still_has_its_gradient(skip):
    torch.manual_seed(0)
    net, x, y = Local(separate(), nn.LayerNorm(16), skip), torch.randn(40, 16), torch.randint(0, 10, (40,))
    assert creditaudit.audit(net, x, y).g_norm_per_sample == pytest.approx(literal(net, x, y)[1], rel=1e-4)


def test_a_detached_state_that_no_module_gets_is_measured_by_differences():
    class Pooled(Local):
        def forward(self, x):
            for block in self.blocks:
                x = block(x)
            return self.head(nn.functional.layer_norm(x.detach(), [16]))

    torch.manual_seed(0)
    net = Pooled(separate(), nn.Identity(), skip=False)
    x, y = torch.randn(9, 16), torch.zeros(9).long()
    with pytest.warns(creditaudit.UnsafeReading, match="detached"):
        seen = creditaudit.audit(net, x, y)
    plain = Residual(list(net.blocks), nn.LayerNorm(16, elementwise_affine=False), skip=False)
    plain.head = net.head
    assert seen.reference == "differences"
    assert seen.g_norm_per_sample == pytest.approx(literal(plain, x, y)[1], rel=1e-4)


def test_the_verdict_does_not_depend_on_how_many_pictures_are_given():
    net, x, y = (
        Residual([linear(), linear()], nn.Identity()),
        torch.randn(1, 16).repeat(300, 1),
        torch.zeros(300).long(),
    )
    few, many = (creditaudit.audit(net, x[:n], y[:n]) for n in (8, 300))
    assert few.g_norm == pytest.approx(many.g_norm, rel=1e-5)


def test_every_module_gets_its_own_mode_back():
    net = Residual([nn.Sequential(linear(), nn.BatchNorm1d(16)) for _ in range(2)], nn.Dropout())
    net.train()
    net.blocks[0][1].eval()
    before = [module.training for module in net.modules()]
    creditaudit.audit(net, torch.randn(8, 16), torch.randint(0, 10, (8,)))
    assert [module.training for module in net.modules()] == before


def test_a_model_that_diverged_fails_instead_of_being_refused():
    net = ConvNet()
    with torch.no_grad():
        net.stages[1][0].weight.fill_(torch.nan)
    seen = creditaudit.audit(net, torch.randn(8, 3, 16, 16), torch.randint(0, 10, (8,)))
    assert seen.verdict.startswith("FAIL(D1+D2)")


def test_without_gradients_switched_on_and_without_trainable_parts():
    net = Residual([linear(), linear()], nn.Identity()).requires_grad_(False)
    x, y = torch.randn(8, 16), torch.randint(0, 10, (8,))
    expected = creditaudit.audit(net, x, y)
    with torch.inference_mode():
        assert creditaudit.audit(net, x * 1, y * 1) == expected


class Unwatched(Residual):
    @torch.no_grad()
    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return super().forward(x)


class Functional(Residual):
    """What follows the blocks is no module, or is called by keyword; `side` looks at something else of that shape."""

    def __init__(self, blocks: list[nn.Module], skip: bool, how: str) -> None:
        super().__init__(blocks, nn.LayerNorm(16), skip)
        self.how, self.side = how, nn.Identity()

    def forward(self, x):
        for block in self.blocks:
            x = x + block(x) if self.skip else block(x)
        if self.how == "functional":
            return self.head(nn.functional.layer_norm(x, [16]))
        self.side(2 * x)
        return self.head(self.after(input=x))


@pytest.mark.parametrize("skip", [True, False])
@pytest.mark.parametrize("count", [1, 3])
def test_a_module_called_by_keyword_gets_the_stream_and_a_side_branch_is_not_mistaken_for_it(count, skip):
    torch.manual_seed(0)
    net, x, y = Functional([linear() for _ in range(count)], skip, "keyword"), torch.randn(40, 16), Y.repeat(5)
    norms, gradient = literal(net, x, y)
    seen = creditaudit.audit(net, x, y)
    assert seen.h_norm == pytest.approx(norms, rel=1e-4)
    assert seen.g_norm_per_sample == pytest.approx(gradient, rel=1e-4)


class Branched(Residual):
    """h + scale f(h), where a module does the scaling of the branch: the branch is not the stream."""

    def __init__(self, count: int, scale: float) -> None:
        super().__init__([linear() for _ in range(count)], nn.LayerNorm(16))
        self.branch = nn.Dropout() if scale == 1 else nn.Linear(16, 16, bias=False)
        if scale != 1:
            self.branch.weight.data = scale * torch.eye(16)

    def forward(self, x):
        for block in self.blocks:
            x = x + self.branch(block(x))
        return self.head(self.after(x))


@pytest.mark.parametrize("count", [1, 3])
def test_a_module_in_the_branch_is_not_mistaken_for_what_follows_the_blocks(count):
    torch.manual_seed(0)
    net, x, y = Branched(count, scale=1).eval(), torch.randn(40, 16), Y.repeat(5)
    seen, (norms, gradient) = creditaudit.audit(net, x, y), literal(net, x, y)
    assert seen.h_norm == pytest.approx(norms, rel=1e-4)
    assert seen.g_norm_per_sample == pytest.approx(gradient, rel=1e-4)


def test_a_scaled_branch_is_refused_and_not_measured_as_if_it_were_the_stream():
    with pytest.raises(ValueError, match=r"cannot be followed.*scaled skip"):
        creditaudit.audit(Branched(3, scale=1e-5), X, Y)


@pytest.mark.parametrize(("count", "skip"), [(1, False), (1, True)])
def test_a_last_state_that_no_module_gets_is_not_guessed(count, skip):
    with pytest.raises(ValueError, match=r"cannot be seen.*functional norm"):
        creditaudit.audit(Functional([linear() for _ in range(count)], skip, "functional"), X, Y)


class Ending(Residual):
    """The skip stands outside, and nothing but a function gets the last state; or something else than that state."""

    def __init__(self, how: str) -> None:
        super().__init__([linear() for _ in range(3)], nn.LayerNorm(16, elementwise_affine=False))
        self.how = how

    def forward(self, x):
        for block in self.blocks:
            before, x = x, block(x) + x
        if self.how == "without the skip":
            x = x - before
        if self.how == "scaled":
            x = x + before
        return self.head(nn.functional.layer_norm(x, [16]))


def test_a_last_sum_that_no_module_gets_is_taken_where_all_others_were_sums():
    torch.manual_seed(0)
    net, x, y = Ending("sum"), torch.randn(40, 16), Y.repeat(5)
    norms, gradient = literal(net, x, y)
    seen = creditaudit.audit(net, x, y)
    assert seen.h_norm == pytest.approx(norms, rel=1e-4)
    assert seen.g_norm_per_sample == pytest.approx(gradient, rel=1e-4)


@pytest.mark.parametrize("how", ["without the skip", "scaled"])
def test_a_last_state_that_is_no_such_sum_is_refused(how):
    with pytest.raises(ValueError, match="cannot be seen"):
        creditaudit.audit(Ending(how), X, Y)


def test_a_model_whose_sequence_comes_first_is_told_what_to_build():
    class Encoder(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            layer = nn.TransformerEncoderLayer(16, 2, 32)
            self.encoder, self.head = nn.TransformerEncoder(layer, 2, enable_nested_tensor=False), nn.Linear(16, 10)

        def forward(self, x):
            return self.head(self.encoder(x.transpose(0, 1)).mean(0))

    for length in (6, 8):  # as long as the batch is big, too
        with pytest.raises(ValueError, match="batch_first=True"):
            creditaudit.audit(Encoder(), torch.randn(8, length, 16), Y)


def test_blocks_that_hand_on_the_stream_need_no_module_after_them():
    net = Functional([linear(), linear()], False, "functional")
    assert creditaudit.audit(net, X, Y).h_norm[-1] == pytest.approx(literal(net, X, Y)[0][-1], rel=1e-4)


def test_blocks_in_half_precision_with_the_skip_outside():
    class Half(nn.Linear):
        def forward(self, x):
            return super().forward(x).half()

    seen = creditaudit.audit(Residual([Half(16, 16), Half(16, 16)], nn.LayerNorm(16)), X, Y)
    assert len(seen.h_norm) == 3 and seen.d1


def test_a_scripted_block_is_refused_and_no_hook_stays():
    with pytest.warns(FutureWarning, match="deprecated"):
        net = Residual([linear(), torch.jit.script(linear())], nn.Identity())
    with pytest.raises(ValueError, match="before it is scripted"):
        creditaudit.audit(net, X, Y)
    assert not any(module._forward_pre_hooks or module._forward_hooks for module in net.modules())


def test_a_module_that_acts_in_train_and_eval_is_left_as_it_was():
    class Merging(nn.Linear):
        merged = False

        def train(self, mode: bool = True):
            self.merged = not mode
            return super().train(mode)

    net = Residual([Merging(16, 16), Merging(16, 16)], nn.Identity()).train()
    creditaudit.audit(net, X, Y)
    assert not any(block.merged for block in net.blocks) and net.blocks[0].training


def test_a_model_without_gradients_or_logits_is_refused():
    with torch.inference_mode():
        unborn = Residual([linear(), linear()], nn.Identity())
    with pytest.raises(ValueError, match="built under torch"):
        creditaudit.audit(unborn, X, Y)

    class Classes(Residual):
        def forward(self, x):
            return super().forward(x).round().int()

    with pytest.raises(ValueError, match=r"returned torch.int32: audit needs logits"):
        creditaudit.audit(Classes([linear(), linear()], nn.Identity()), X, Y)


def test_two_points_are_two_points_in_floats_too():
    assert 0.57 - 0.55 < 0.02 and rules.depth_is_used(0.57 - 0.55) and not rules.depth_is_used(0.0199)


def test_numbers_of_numpy_and_torch_are_accuracies_too():
    net = Residual([linear(), linear()], nn.Identity())
    gains = {creditaudit.audit(net, X, Y, frozen_accuracy=kind(0.5)).gain for kind in (float, np.float32, torch.tensor)}
    assert len(gains) == 1


X, Y = torch.randn(8, 16), torch.randint(0, 10, (8,))


class Bag(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.embed, self.head = nn.EmbeddingBag(99, 16), nn.Linear(16, 10)

    def forward(self, x):
        return self.head(self.embed(x))


@pytest.mark.parametrize(
    ("arguments", "said"),
    [
        ({"x": X.numpy()}, "takes tensors"),
        ({"y": Y[:, None]}, "one class number per picture"),
        ({"y": Y.float()}, "one class number per picture"),
        ({"y": Y[:5]}, "8 pictures and 5 labels"),
        ({"y": Y + 10}, "10 outputs"),
        ({"x": X.where(X < 9, torch.nan) * torch.nan}, "not finite"),
        ({"frozen_accuracy": 34.9}, "not a percentage"),
        ({"frozen_accuracy": "0.3"}, "not in 0..1"),
        ({"frozen_accuracy": [0.3]}, "not in 0..1"),
        ({"blocks": []}, "empty"),
        ({"x": X.long().abs(), "model": Bag(), "blocks": ["embed"]}, "tokens"),
        ({"blocks": linear()}, "pass a list of modules"),
        ({"blocks": "blocks.0"}, "is a str"),
        ({"blocks": ["blocks"]}, r"not called.*'blocks.0', 'blocks.1'"),
        ({"model": nn.Sequential(nn.LazyLinear(16), linear(), nn.Linear(16, 10)), "blocks": None}, "lazy layers"),
        ({"model": linear().to("meta")}, "model is on the meta device"),
        ({"x": X.to("meta")}, "x or y is on the meta device"),
        ({"model": torch.relu}, "modules of an nn.Module"),
        ({"x": X[:, :5]}, "does not run on the given"),
        ({"y": None}, "y is missing"),
        ({"x": {"input_ids": X}, "y": None}, "no labels"),
        ({"x": [(X, Y, Y)], "y": None}, "tuple of 3.*pairs"),
        ({"x": {"x": X, "mask": Y.tolist()}}, "'mask' is a list"),
        ({"x": [], "y": None}, "not a single picture"),
        ({"blocks": [nn.Linear(2, 2)]}, "modules of this model"),
        ({"model": nn.Sequential(Residual([linear(), linear()], nn.Identity()), nn.Softmax(-1))}, "logits before"),
        ({"model": nn.Sequential(Residual([linear(), linear()], nn.Identity()), nn.Flatten(0))}, "must return logits"),
    ],
)
def test_what_cannot_be_audited_is_refused_in_a_sentence(arguments, said):
    arguments = {"model": Residual([linear(), linear()], nn.Identity()), "x": X, "y": Y} | arguments
    if isinstance(arguments["model"], nn.Sequential) and "blocks" not in arguments:
        arguments["blocks"] = list(arguments["model"][0].blocks)
    with pytest.raises((TypeError, ValueError), match=said):
        creditaudit.audit(**arguments)


def test_a_forward_pass_without_gradients_is_measured_by_differences():
    torch.manual_seed(0)
    net = Unwatched([linear(), linear()], nn.LayerNorm(16))
    with pytest.warns(creditaudit.UnsafeReading, match="no_grad"):
        seen = creditaudit.audit(net, X, Y)
    assert seen.g_norm_per_sample == pytest.approx(literal(net, X, Y)[1], rel=1e-4)


class Towers(nn.Module):
    """As many blocks of one class as of another."""

    def __init__(self) -> None:
        super().__init__()
        self.left, self.right = nn.ModuleList([ConvNet(), ConvNet()]), nn.ModuleList([in_place(), in_place()])

    def forward(self, x):
        return x


def test_classes_of_equal_count_are_not_guessed_between():
    with pytest.raises(ValueError, match=r"left.0 .*right.0 .*blocks="):
        creditaudit.audit(Towers(), X, Y)


@pytest.mark.parametrize("audits", [[], creditaudit.audit, {"mine": 3}])
def test_a_table_of_what_is_no_mapping_of_audits_is_refused(audits):
    with pytest.raises(ValueError, match="audits by name"):
        creditaudit.reporting_table(audits)
