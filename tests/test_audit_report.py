"""What an audit has to tell its reader: caveats, tables, logs, pages."""

import dataclasses
from collections import namedtuple

import pytest
import torch
from torch import Tensor, nn

import creditaudit
from tests.foreign import FALinear, Skip, Stack, convnext, made, no_terminal_norm, post_norm

pytestmark = pytest.mark.filterwarnings("ignore::creditaudit.measure.audit.UnsafeReading")


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
