"""Models that would give wrong numbers: measured rightly, left open or refused in a sentence that says why."""

import pytest
import torch
from torch import Tensor, nn
from torch.nn import functional as F
from torchvision import models

import creditaudit
from creditaudit.measure.inputs import AuditError

pytestmark = pytest.mark.filterwarnings("ignore::creditaudit.measure.audit.UnsafeReading")
WIDTH = 16


class Branch(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.body = nn.Sequential(nn.LayerNorm(WIDTH), nn.Linear(WIDTH, WIDTH), nn.GELU(), nn.Linear(WIDTH, WIDTH))

    def forward(self, h: Tensor) -> Tensor:
        return self.body(h)


class Skip(Branch):
    def forward(self, h: Tensor) -> Tensor:
        return h + self.body(h)


class Net(nn.Module):
    block: type[nn.Module] = Skip

    def __init__(self) -> None:
        super().__init__()
        self.embed, self.norm, self.head = nn.Linear(WIDTH, WIDTH), nn.LayerNorm(WIDTH), nn.Linear(WIDTH, 10)
        self.blocks = nn.ModuleList(self.block() for _ in range(3))

    def stream(self, h: Tensor) -> Tensor:
        for block in self.blocks:
            h = block(h)
        return h

    def readout(self, h: Tensor) -> Tensor:
        return self.head(self.norm(h))

    def forward(self, x: Tensor) -> Tensor:
        return self.readout(self.stream(self.embed(x)))


def made(kind: type[nn.Module]) -> nn.Module:
    torch.manual_seed(0)
    return kind()


def audited(net: nn.Module, n: int = 24, shape: tuple[int, ...] = (WIDTH,)) -> creditaudit.Audit:
    x = torch.randn(n, *shape, generator=torch.Generator().manual_seed(1))
    return creditaudit.audit(net, x, torch.arange(n) % 10)


class Dropping(Net):
    def readout(self, h):
        return self.head(F.dropout(self.norm(h)))  # functional: it knows of no eval mode


class Remembering(Net):
    asked = 0

    def readout(self, h):
        self.asked += 1
        return super().readout(h) * (1 + 0.01 * self.asked)


class OfTheBatch(Net):
    def __init__(self) -> None:
        super().__init__()
        self.norm = nn.BatchNorm1d(WIDTH, track_running_stats=False)


class SequenceFirst(Net):
    """Its layers take [sequence, batch, width] and get [batch, sequence, width]: a pass over the batch."""

    def __init__(self) -> None:
        super().__init__()
        self.blocks = nn.ModuleList(nn.GRU(WIDTH, WIDTH) for _ in range(3))

    def forward(self, x):
        h = self.embed(x[:, None].expand(-1, len(x), -1))  # as long as the batch is big, so that no shape tells
        for block in self.blocks:
            h, _ = block(h)
        return self.readout(h[:, 0])


@pytest.mark.parametrize(
    ("kind", "said"),
    [
        (Dropping, "draws at random"),
        (Remembering, "remembers"),
        (OfTheBatch, "samples beside it"),
        (SequenceFirst, "samples beside it"),
    ],
)
def test_a_model_that_is_no_function_of_one_sample_is_refused(kind, said):
    with pytest.raises(AuditError, match=said):
        audited(made(kind))


@pytest.mark.parametrize("sizes", [[1, 23], [1] * 24])
def test_a_first_batch_of_one_sample_hides_no_mixing(sizes):
    net, x, y = made(OfTheBatch), torch.randn(24, WIDTH), torch.arange(24) % 10
    with pytest.raises(AuditError, match="samples beside it"):
        creditaudit.audit(net, list(zip(x.split(sizes), y.split(sizes), strict=True)))


class Detached(Net):
    def readout(self, h):
        return super().readout(h.detach())


@pytest.mark.parametrize("size", [1, 30, 128])
def test_differences_are_taken_from_all_batches(size):
    """The first samples have another gradient than the rest: a reading from them alone would be off by far."""
    net, twin, x, y = made(Detached), made(Net), torch.randn(300, WIDTH), torch.zeros(300).long()
    with torch.no_grad():
        for each in (net, twin):
            each.head.bias[0] += 4
    y[:64] = 1
    pairs = list(zip(x.split(size), y.split(size), strict=True))
    seen, true = creditaudit.audit(net, pairs), creditaudit.audit(twin, x, y)
    assert seen.reference == "differences" and seen.g_norm == pytest.approx(true.g_norm, rel=0.3)
    assert any("64 of the samples" in note for note in seen.notes)


def test_batches_of_sequences_of_several_lengths_are_measured_together():
    class Long(Detached):
        def forward(self, x, scale):
            return super().forward(scale * x.mean(1))

    net, generator = made(Long), torch.Generator().manual_seed(1)
    batches = [
        {"x": torch.randn(n, t, WIDTH, generator=generator), "scale": 1.0, "y": torch.arange(n)}
        for n, t in ((1, 3), (4, 5), (6, 3))
    ]
    seen = creditaudit.audit(net, batches)
    assert seen.n == 11 and seen.reference == "differences" and seen.g_norm > 0


class Convolutional(nn.Module):
    """Two blocks after a stem; `forward` of the children decides what goes where."""

    def __init__(self, features: int = 8) -> None:
        super().__init__()
        self.stem = nn.Conv2d(3, 8, 3, padding=1)
        self.blocks = nn.ModuleList(nn.Sequential(nn.Conv2d(8, 8, 3, padding=1), nn.ReLU()) for _ in range(2))
        self.head = nn.Linear(features, 10)

    def along(self, x: Tensor) -> Tensor:
        h = self.stem(x)
        for block in self.blocks:
            h = block(h)
        return h.mean((2, 3))


class TwoViews(Convolutional):
    def __init__(self) -> None:
        super().__init__(16)

    def forward(self, x):
        return self.head(torch.cat([self.along(x), self.along(x[:, :, :8, :8])], 1))


class Around(Convolutional):
    """As a U-Net: something passes by the block of the smaller picture."""

    def forward(self, x):
        first = self.blocks[0](self.stem(x))
        second = self.blocks[1](F.max_pool2d(first, 2))
        return self.head((first + F.interpolate(second, scale_factor=2)).mean((2, 3)))


class SkipOfAnotherShape(nn.Module):
    """Every block doubles the width, and so does the skip beside it."""

    def __init__(self) -> None:
        super().__init__()
        sizes = [(8, 16), (16, 32), (32, 64)]
        self.blocks = nn.ModuleList(nn.Sequential(nn.Linear(a, b), nn.GELU(), nn.Linear(b, b)) for a, b in sizes)
        self.skips = nn.ModuleList(nn.Linear(a, b) for a, b in sizes)
        self.embed, self.head = nn.Linear(WIDTH, 8), nn.Linear(64, 10)

    def forward(self, x):
        h = self.embed(x)
        for block, skip in zip(self.blocks, self.skips, strict=True):
            h = skip(h) + block(h)
        return self.head(h)


class Ensemble(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.one, self.other = models.resnet18(num_classes=10), models.resnet18(num_classes=10)

    def forward(self, x):
        return self.one(x) + self.other(x)


class Timed(Skip):
    def __init__(self) -> None:
        super().__init__()
        self.time = nn.Linear(4, WIDTH)

    def forward(self, t, h):
        return super().forward(h) + self.time(t)


class Diffused(Net):
    """The stream is the second thing that a block gets."""

    block = Timed

    def stream(self, h):
        for block in self.blocks:
            h = block(torch.ones(len(h), 4), h)
        return h


@pytest.mark.parametrize(
    ("kind", "shape"),
    [
        (TwoViews, (3, 16, 16)),
        (Around, (3, 16, 16)),
        (SkipOfAnotherShape, (WIDTH,)),
        (Ensemble, (3, 32, 32)),
        (Diffused, (WIDTH,)),
    ],
)
def test_states_that_are_no_chain_are_refused(kind, shape):
    with pytest.raises(AuditError, match=r"no chain|cannot be (followed|seen)"):
        audited(made(kind), 6, shape)


class Attending(Skip):
    def forward(self, h):
        return h[:, :4].softmax(-1), super().forward(h)


class Weighted(Net):
    """What a block returns first is something else."""

    block = Attending

    def stream(self, h):
        for block in self.blocks:
            _, h = block(h)
        return h


class Lossy(Net):
    def forward(self, x):
        logits = super().forward(x)
        return logits.logsumexp(1).mean(), logits


class Halved(Branch):
    def forward(self, h):
        return super().forward(h).half()


class HalfBranches(Net):
    """A float stream to which blocks in half precision add: a fine move of what they return is rounded away."""

    block = Halved

    def stream(self, h):
        for block in self.blocks:
            h = h + block(h)
        return h


@pytest.mark.parametrize(("kind", "close"), [(Weighted, 1e-6), (Lossy, 1e-6), (HalfBranches, 2e-3)])
def test_what_only_looks_different_is_read_as_its_plain_twin(kind, close):
    seen, plain = audited(made(kind)), audited(made(Net))
    assert seen.reference == "autograd" and seen.h_norm == pytest.approx(plain.h_norm, rel=close)
    assert [s.g_norm for s in seen.states] == pytest.approx([s.g_norm for s in plain.states], rel=close)


@pytest.mark.parametrize("how", ["whole", "in place", "blocks"])
def test_a_compiled_model_is_audited_as_it_was_written(how):
    net, x = made(Net), torch.randn(4, WIDTH)
    expected = audited(made(Net))
    if how == "whole":
        net = torch.compile(net, backend="eager")
    elif how == "in place":
        net.compile(backend="eager")
    else:
        net.blocks = nn.ModuleList(torch.compile(block, backend="eager") for block in net.blocks)
    net(x)  # compiled now, before anybody watches
    seen = audited(net)
    assert seen.h_norm == expected.h_norm and seen.g_norm == expected.g_norm


class Padded(nn.Module):
    """Torch's own encoder with its defaults: without gradients it would hand on nested tensors."""

    def __init__(self) -> None:
        super().__init__()
        self.encoder = nn.TransformerEncoder(nn.TransformerEncoderLayer(WIDTH, 2, 32, batch_first=True), 2)
        self.head = nn.Linear(WIDTH, 10)

    def forward(self, x, mask):
        return self.head(self.encoder(x, src_key_padding_mask=mask)[:, 0])


def test_a_padding_mask_is_heeded_and_the_fast_path_is_back_afterwards():
    net, x, y = made(Padded), torch.randn(8, 6, WIDTH), torch.arange(8)
    mask = torch.arange(6).expand(8, -1) >= torch.tensor([6, 4, 4, 4, 3, 3, 6, 6])[:, None]
    seen, h = creditaudit.audit(net, {"x": x, "mask": mask}, y), [x]
    for layer in net.eval().encoder.layers:
        h.append(layer(h[-1], src_key_padding_mask=mask))
    assert seen.h_norm == pytest.approx([state.flatten(1).norm(dim=1).median().item() for state in h], rel=1e-4)
    assert torch.backends.mha.get_fastpath_enabled()


class EndsInFunction(Branch):
    def forward(self, h):
        return F.layer_norm(h + super().forward(h), (WIDTH,))


class EndsInScaling(Branch):
    def forward(self, h):
        h = h + super().forward(h)
        return h / h.norm(dim=-1, keepdim=True)


class EndsInSaturation(Branch):
    def forward(self, h):
        return torch.tanh(h + super().forward(h))


class NormedChain(Branch):
    """Whatever enters it is normed, and nothing goes around: but its weights set the length of what leaves."""


@pytest.mark.parametrize("factor", [1.0, 1e6])
@pytest.mark.parametrize(
    ("kind", "blind"),
    [(EndsInFunction, True), (EndsInScaling, True), (EndsInSaturation, True), (NormedChain, False), (Skip, False)],
)
def test_blocks_whose_end_hides_an_explosion_are_noticed_without_their_names(kind, blind, factor):
    net = made(type("Ending", (Net,), {"block": kind}))
    with torch.no_grad():
        for block in net.blocks:
            block.body[-1].weight.mul_(factor)
    before = {name: tensor.clone() for name, tensor in net.state_dict().items()}
    seen = audited(net)
    assert any("nearly blind" in note for note in seen.notes) == blind
    assert seen.d1 or (factor > 1 and not blind)
    assert all(torch.equal(before[name], tensor) for name, tensor in net.state_dict().items())


def test_a_model_that_diverged_is_not_called_post_norm():
    net = made(type("Ending", (Net,), {"block": type("PostNorm", (Skip,), {})}))
    for block in net.blocks:
        block.body.append(nn.LayerNorm(WIDTH))
    with torch.no_grad():
        net.blocks[0].body[1].weight.fill_(torch.inf)
    seen = audited(net)
    assert seen.d1 is False and not any("nearly blind" in note for note in seen.notes)


@pytest.mark.parametrize("blocks", [["blocks.2", "norm", "head"], ["head"], [""]])
def test_a_last_state_that_is_the_logits_is_refused(blocks):
    with pytest.raises(AuditError, match="logits themselves"):
        creditaudit.audit(made(Net), torch.randn(8, WIDTH), torch.arange(8), blocks=blocks)


class Sign(torch.autograd.Function):
    """A straight-through estimator: a step, with the backward of a line."""

    @staticmethod
    def forward(context, x):
        return x.sign()

    @staticmethod
    def backward(context, sent):
        return sent


class Binary(Net):
    def readout(self, h):
        return self.head(Sign.apply(self.norm(h)))


def test_where_the_loss_has_no_slope_d2_is_left_open():
    seen = audited(made(Binary))
    assert seen.reference == "unchecked" and seen.d2 is None and "D2" not in seen.to_dict()
    assert seen.verdict == "PASS(D1), D2+D3 open" and "left open" in str(seen)


class Features(Net):
    def forward(self, x):
        h = self.stream(self.embed(x))
        return h, self.readout(h)


class Headless(Net):
    def forward(self, x):
        h = self.embed(x)[:, None]
        return h, self.stream(h)[:, 0]


class OneOutput(Net):
    def __init__(self) -> None:
        super().__init__()
        self.head = nn.Linear(WIDTH, 1)


@pytest.mark.parametrize(
    ("kind", "said"),
    [(Features, r"\[8, 16\] and \[8, 10\]"), (Headless, "must return logits"), (OneOutput, "one output")],
)
def test_what_may_not_be_the_logits_is_not_taken_for_them(kind, said):
    with pytest.raises(AuditError, match=said):
        audited(made(kind))


def test_a_data_set_is_no_loader():
    data = torch.utils.data.TensorDataset(torch.randn(8, WIDTH), torch.arange(8))
    with pytest.raises(AuditError, match="DataLoader"):
        creditaudit.audit(made(Net), data)


class Stage(nn.Module):
    """As timm and Hugging Face have it: what repeats on the outside is a stage of blocks."""

    def __init__(self, count: int) -> None:
        super().__init__()
        self.layers = nn.ModuleList(Skip() for _ in range(count))

    def forward(self, h):
        for layer in self.layers:
            h = layer(h)
        return h


class Experts(Stage):
    def forward(self, h):
        return h + sum(layer(h) for layer in self.layers)


@pytest.mark.parametrize(("kind", "count"), [(Stage, 6), (Experts, 3)])
def test_blocks_inside_of_stages_are_found_and_experts_are_none(kind, count):
    net = made(Net)
    net.blocks = nn.ModuleList(kind(2) for _ in range(3))
    assert len(audited(net).blocks) == count


def test_a_dictionary_that_computes_is_a_block():
    net = models.DenseNet(4, (2, 2), 8, num_classes=10)
    assert audited(net, 6, (3, 32, 32)).blocks == ["features.denseblock1", "features.denseblock2"]
