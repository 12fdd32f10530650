"""The end-of-run diagnostics against literal loops over samples and autograd, in float64."""

import pytest
import torch
from torch.nn.functional import cross_entropy

from creditaudit.engine.model import ResMLP
from creditaudit.engine.spec import RunSpec
from creditaudit.engine.step import Stack, initialised
from creditaudit.measure import diagnostics
from tests.networks import batch, feedback, scattered

SHAPE = {"width": 16, "depth": 3}
BATCHES = 2


class Literal:
    """One batch of 128: states, autograd's gradients of the mean loss, and the credit that drives each block."""

    def __init__(self, method: str, module: ResMLP, matrices: torch.Tensor | None, x, y) -> None:
        self.module, self.y = module, y
        self.h = module.states(x)
        logits = module.readout(self.h[-1])
        self.g = torch.autograd.grad(cross_entropy(logits, y), self.h)
        self.h = [h.detach() for h in self.h]
        if method == "bp":
            self.credit = list(self.g[1:])
        elif method == "dfa":
            error = logits.softmax(-1) - torch.eye(10, dtype=x.dtype)[y]
            self.credit = [(error @ matrices[l]).detach() for l in range(SHAPE["depth"])]
        else:
            at_state = [self.g[-1]]
            for l in reversed(range(SHAPE["depth"])):
                at_state.append(at_state[-1] @ matrices[l])
            self.credit = at_state[::-1][1:]

    def loss_from(self, l: int, h: torch.Tensor) -> torch.Tensor:
        with torch.no_grad():
            for block in self.module.blocks[l:]:
                h = h + block(h)
            return cross_entropy(self.module.readout(h), self.y, reduction="none")


@pytest.fixture(scope="module", params=["bp", "fa", "dfa"])
def both(request) -> tuple[dict, list[Literal], Stack, ResMLP]:
    """The diagnostics of a network at a generic point, and the same network in plain autograd."""
    stack, module = scattered(RunSpec(method=request.param, **SHAPE), torch.float64)
    x, y = batch(3, 128 * BATCHES)
    start = Stack([stack.spec], dtype=torch.float64).net
    final = diagnostics.examine(stack.net, start, stack.rule, x, y, seed=42)
    parts = zip(x.split(128), y.split(128), strict=True)
    return final, [Literal(request.param, module, feedback(stack), *part) for part in parts], stack, module


def over_samples(literal: list[Literal], of) -> list[torch.Tensor]:
    """of(batch, l) for every block, one number per sample."""
    return [torch.cat([of(part, l) for part in literal]) for l in range(SHAPE["depth"])]


def cosine(a: torch.Tensor, b: torch.Tensor) -> torch.Tensor:
    return torch.stack([u @ v / (u @ u).sqrt() / (v @ v).sqrt() for u, v in zip(a, b, strict=True)])


def test_norms_are_medians_over_samples_at_a_batch_of_128(both):
    final, literal, *_ = both
    for l in range(SHAPE["depth"] + 1):
        h, g = (torch.cat([getattr(part, name)[l] for part in literal]).norm(dim=-1).median() for name in "hg")
        assert final["h_norm"][l] == pytest.approx(h.item()) and final["g_norm"][l] == pytest.approx(g.item())
        assert final["g_norm_per_sample"][l] == pytest.approx(128 * g.item())
    growth = [after / before for before, after in zip(final["h_norm"], final["h_norm"][1:], strict=False)]
    assert final["block_growth"] == pytest.approx(growth) and final["growth"] == max(growth)


def test_cosines_stand_beside_the_gradient_of_their_convention(both):
    final, literal, *_ = both
    for name, of in {
        "gamma_in": lambda part, l: cosine(part.credit[l], part.g[l]),
        "gamma_out": lambda part, l: cosine(part.credit[l], part.g[l + 1]),
        "gamma_ceiling": lambda part, l: cosine(part.g[l + 1], part.g[l]),
    }.items():
        assert final[name] == pytest.approx([values.mean().item() for values in over_samples(literal, of)]), name
    assert final["gamma_in"] != pytest.approx(final["gamma_out"], abs=1e-3)  # the two could be told apart
    assert final["gamma_samples"] == 128 * BATCHES and final["gamma_undefined"] == [0] * SHAPE["depth"]


def test_exact_credit_reads_one_at_the_output_and_the_ceiling_at_the_input(both):
    final, _, stack, _ = both
    if stack.spec.method == "bp":
        assert final["gamma_out"] == pytest.approx([1.0] * SHAPE["depth"])
        assert final["gamma_in"] == pytest.approx(final["gamma_ceiling"])
    if stack.spec.method == "fa":
        assert final["gamma_out"][-1] == pytest.approx(1.0)
        assert final["gamma_in"][-1] == pytest.approx(final["gamma_ceiling"][-1])


def test_rho_is_pearson_of_predicted_and_true_changes(both):
    final, literal, stack, _ = both
    x, y = batch(3, 128 * BATCHES)
    parts = zip(x.split(128), y.split(128), strict=True)
    sheets = [diagnostics._Sheet(stack.net, stack.rule, *part) for part in parts]
    ours = diagnostics._rho(sheets, torch.Generator().manual_seed(5))
    generator = torch.Generator().manual_seed(5)
    seen: dict[str, list] = {f"{name}{l}": [] for name in ("rho_in", "rho_out") for l in range(SHAPE["depth"])}
    for part in literal:
        directions = torch.randn(32 * 128, SHAPE["width"], generator=generator, dtype=torch.float64)
        for i, v in enumerate(directions.split(128)):
            assert i < 32
            step = 1e-3 * v / v.norm(dim=-1, keepdim=True)
            for l in range(SHAPE["depth"]):
                for name, at in (("rho_in", l), ("rho_out", l + 1)):
                    change = part.loss_from(at, part.h[at] + step) - part.loss_from(at, part.h[at])
                    seen[f"{name}{l}"].append(torch.stack([(part.credit[l] * step).sum(-1), change]))
    for name in ("rho_in", "rho_out"):
        theirs = [torch.corrcoef(torch.cat(seen[f"{name}{l}"], 1))[0, 1].item() for l in range(SHAPE["depth"])]
        assert ours[name] == pytest.approx(theirs, abs=1e-6), name
    assert final["rho_in"] == pytest.approx(ours["rho_in"], abs=0.1)  # other directions, the same quantity


def test_nudging_is_the_mean_change_of_the_loss(both):
    final, literal, *_ = both
    for name, shift in (("nudge_in", 0), ("nudge_out", 1)):
        for eta in ("0.01", "0.003"):

            def change(part, l, shift=shift, eta=eta):
                a = part.credit[l]
                move = torch.stack([-float(eta) * row / row.square().mean().sqrt() for row in a])
                return part.loss_from(l + shift, part.h[l + shift] + move) - part.loss_from(
                    l + shift, part.h[l + shift]
                )

            theirs = [values.mean().item() for values in over_samples(literal, change)]
            assert final[name][eta] == pytest.approx(theirs, rel=1e-6), (name, eta)


def test_stability_and_drift(both):
    final, literal, stack, module = both
    first, second = (part.g[SHAPE["depth"] // 2].mean(0) for part in literal)
    assert final["stability"] == pytest.approx(cosine(first[None], second[None]).item())
    blocks = zip(module.blocks, initialised(stack.spec).double().blocks, strict=True)
    theirs = [((now.w1.weight - then.w1.weight).norm() / then.w1.weight.norm()).item() for now, then in blocks]
    assert final["drift"] == pytest.approx(theirs)


def test_credit_that_knows_nothing_scores_nothing(both):
    final, _, stack, _ = both
    assert abs(final["gamma_null"]["mean"]) < 4 * final["gamma_null"]["std"]
    if stack.spec.method == "bp":
        assert final["fresh_null"] is None
    else:
        assert abs(final["fresh_null"]["mean"]) < 4 * final["fresh_null"]["std"]
