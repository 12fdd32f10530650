"""`creditaudit.alignment` against the engine's own diagnostics, the definitions, and replaced backward passes."""

import pytest
import torch
from torch import nn

import creditaudit
from creditaudit.engine import data, model
from creditaudit.engine.network import Tape
from creditaudit.engine.spec import RunSpec
from creditaudit.measure import diagnostics
from creditaudit.runs.train import Training
from tests.foreign import FALinear, Stack, made, mlp, no_terminal_norm, plain_twin, vgg

SPEC = RunSpec(method="dfa", width=16, depth=3, epochs=3, data="tiny", batch=64)


@pytest.fixture(scope="module")
def dfa(tmp_path_factory):
    """A DFA run: its record, its torch module, and its credits for all test pictures."""
    with torch.inference_mode():
        training = Training([SPEC], tmp_path_factory.mktemp("run") / "unused.pt")
        training.complete(lambda *_: None)
        record = training.records()[0]
    module = model.ResMLP(SPEC.width, SPEC.depth)
    model.store_module(training.stack.net, 0, module)
    x, y = data.test_tensors(data.load("tiny"))
    net, rule = training.stack.net.to(torch.float64), training.stack.rule.to(torch.float64)
    tape = Tape(net, len(y))
    tape.forward(x.double().unsqueeze(0))
    tape.score(y.unsqueeze(0))
    return record, module.double(), x.double(), y, [credit[0].clone() for credit in diagnostics.walk(rule, tape)[1:]]


def test_it_agrees_with_the_engine(dfa):
    record, module, x, y, credits = dfa
    seen, final = creditaudit.alignment(module, credits, x, y).to_frame(), record.final
    assert list(seen.cosine_in) == pytest.approx(final["gamma_in"], abs=2e-4)  # the record trained in float32
    assert list(seen.cosine_out) == pytest.approx(final["gamma_out"], abs=2e-4)
    assert list(seen.ceiling) == pytest.approx(final["gamma_ceiling"], abs=2e-4)
    assert list(seen.undefined) == final["gamma_undefined"]
    assert list(seen.nudge_out) == pytest.approx(final["nudge_out"]["0.01"], rel=1e-2, abs=1e-6)
    assert list(seen.rho_in) == pytest.approx(final["rho_scaled_in"], abs=0.1)  # other directions are drawn


def exact(net: Stack, x: torch.Tensor, y: torch.Tensor) -> list[torch.Tensor]:
    """The gradient at every state, written out."""
    h = [net.embed(x)]
    for block in net.blocks:
        h.append(block(h[-1]))
    loss = nn.functional.cross_entropy(net.head(h[-1]), y, reduction="sum")
    return list(torch.autograd.grad(loss, h))


def test_the_gradient_itself_is_perfect_and_its_opposite_the_opposite():
    case = made(no_terminal_norm)
    g = exact(case.model, case.x, case.y)
    best = creditaudit.alignment(case.model, g[1:], case.x, case.y)
    assert [row.cosine_out for row in best.blocks] == pytest.approx([1, 1, 1], abs=1e-5)
    assert [row.cosine_in for row in best.blocks] == pytest.approx([row.ceiling for row in best.blocks], abs=1e-5)
    assert all(row.rho_out > 0.999 and row.nudge_out < 0 for row in best.blocks)
    worst = creditaudit.alignment(case.model, lambda x, y: [-v for v in exact(case.model, x, y)[1:]], case.x, case.y)
    for row, good in zip(worst.blocks, best.blocks, strict=True):
        assert row.cosine_out == pytest.approx(-1, abs=1e-5) and row.rho_out < -0.999 and row.nudge_out > 0
        assert row.ceiling == pytest.approx(good.ceiling) and row.cosine_in == pytest.approx(-good.cosine_in, abs=1e-5)
    sent = creditaudit.alignment(case.model, None, case.x, case.y)  # what backward sends is the gradient here
    assert [row.cosine_out for row in sent.blocks] == pytest.approx([1, 1, 1], abs=1e-9)


def test_random_directions_lie_in_the_null_band_and_samples_without_credit_are_counted():
    case = made(no_terminal_norm)
    x, y = torch.randn(500, 20), torch.arange(500) % 10
    credits = [torch.randn(500, 16) for _ in range(3)]
    credits[1][:7] = 0
    seen = creditaudit.alignment(case.model, credits, x, y)
    assert [row.undefined for row in seen.blocks] == [0, 7, 0]
    assert all(abs(row.cosine_in) < 4 * row.null_std for row in seen.blocks)
    means = [nn.functional.cosine_similarity(torch.randn(500, 16), torch.randn(500, 16)).mean() for _ in range(300)]
    assert torch.stack(means).std().item() == pytest.approx(seen.blocks[0].null_std, rel=0.15)


def test_a_credit_of_nothing_is_undefined_and_not_perfect():
    case = made(no_terminal_norm)
    seen = creditaudit.alignment(case.model, [torch.zeros(6, 16)] * 3, case.x, case.y)
    assert {row.undefined for row in seen.blocks} == {6} and {row.cosine_out for row in seen.blocks} == {None}
    assert "cosine_out/0" not in seen.to_dict() and "undefined/0" in seen.to_dict()


def test_what_a_replaced_backward_sends_is_held_against_the_true_gradient():
    """By differences alone; the plain twin has the truth from autograd."""
    torch.manual_seed(0)
    net, x, y = mlp(FALinear, FALinear), torch.randn(64, 20), torch.arange(64) % 10
    seen = creditaudit.alignment(net, None, x, y)
    assert seen.reference == "differences" and seen.notes
    h1 = net[:2](x).detach().requires_grad_()
    h2 = net[2:4](h1)
    h3 = net[4:6](h2)
    loss = nn.functional.cross_entropy(net[6](h3), y, reduction="sum")
    sent = [v.detach() for v in torch.autograd.grad(loss, [h2, h3])]
    truth = creditaudit.alignment(plain_twin(net), sent, x, y)
    assert truth.reference == "autograd"
    for mine, true in zip(seen.blocks, truth.blocks, strict=True):
        assert mine.cosine_out == pytest.approx(true.cosine_out, abs=0.02)
        assert mine.cosine_in == pytest.approx(true.cosine_in, abs=0.02)
        assert mine.nudge_out == pytest.approx(true.nudge_out, rel=1e-3, abs=1e-7)
        assert mine.ceiling is None and true.ceiling is not None


def test_a_credit_has_the_shape_of_one_side_of_a_block_that_changes_it():
    case = made(vgg)
    seen = creditaudit.alignment(case.model, None, case.x, case.y)
    changes = [row.block for row in seen.blocks if row.cosine_in is None]
    assert changes == ["features.4", "features.7", "features.9"] and len(seen.blocks) == 4
    assert all(row.cosine_out == pytest.approx(1) for row in seen.blocks)
    assert len(seen.plot().axes) == 1 and "features.7" in str(seen)


@pytest.mark.parametrize(
    ("credits", "said"),
    [
        ([torch.zeros(6, 16)] * 2, "2 credits for 3 calls"),
        ([torch.zeros(5, 16)] * 3, "a row per picture"),
        ([torch.zeros(6, 9)] * 3, "neither"),
        ([None] * 3, "must be a tensor"),
        (3, "one tensor per call"),
        (lambda x: [x], "f\\(x, y\\)"),
        (lambda x, y: None, "returned a NoneType"),
    ],
)
def test_credits_that_do_not_fit_are_refused(credits, said):
    case = made(no_terminal_norm)
    with pytest.raises(ValueError, match=said):
        creditaudit.alignment(case.model, credits, case.x, case.y)


def test_rows_that_cannot_be_matched_with_pictures_are_refused():
    case = made(no_terminal_norm)
    data, credits = torch.utils.data.TensorDataset(case.x, case.y), [torch.randn(6, 16) for _ in range(3)]
    ordered = torch.utils.data.DataLoader(data, 4)
    with pytest.raises(ValueError, match="shuffles"):
        creditaudit.alignment(case.model, credits, torch.utils.data.DataLoader(data, 4, shuffle=True))
    with pytest.raises(ValueError, match="9 rows for 6 pictures"):
        creditaudit.alignment(case.model, [torch.randn(9, 16)] * 3, ordered)
    whole, parts = (creditaudit.alignment(case.model, credits, *given) for given in ((case.x, case.y), (ordered,)))
    assert [row.cosine_out for row in parts.blocks] == pytest.approx([row.cosine_out for row in whole.blocks])
    by_function = creditaudit.alignment(
        case.model, lambda x, y: exact(case.model, x, y)[1:], torch.utils.data.DataLoader(data, 4, shuffle=True)
    )
    assert [row.cosine_out for row in by_function.blocks] == pytest.approx([1, 1, 1], abs=1e-5)


@pytest.mark.parametrize("scale", [1e200, 1e-200, 1e-300])
def test_the_length_of_a_credit_does_not_matter_however_extreme(scale):
    case = made(no_terminal_norm)
    credits = [torch.randn(6, 16, dtype=torch.float64) for _ in range(3)]
    seen, plain = (creditaudit.alignment(case.model, [s * c for c in credits], case.x, case.y) for s in (scale, 1.0))
    for name, value in plain.to_dict().items():
        assert seen.to_dict()[name] == pytest.approx(value, rel=1e-6), name


def test_credit_that_is_no_number_or_nothing_is_said():
    case = made(no_terminal_norm)
    credits = [torch.randn(6, 16) for _ in range(3)]
    credits[0][2, 3], credits[2][4:] = torch.nan, 0
    seen = creditaudit.alignment(case.model, credits, case.x, case.y)
    assert [row.undefined for row in seen.blocks] == [1, 0, 2]
    assert "blocks.0 1" in seen.notes[0] and "blocks.2 2" in seen.notes[1] and len(seen.notes) == 2
    assert seen.blocks[0].rho_out is not None and seen.blocks[0].nudge_out is not None
