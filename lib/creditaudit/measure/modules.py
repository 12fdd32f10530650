"""The diagnostics of a network that only autograd knows: norms, growth and cosines; rho and nudging are not measured.

A state of any shape counts as one vector per sample. Everything is in float64 at the end of a run, as elsewhere.
"""

import copy
from typing import Any

import torch
from torch import Tensor
from torch.nn.functional import cross_entropy

from creditaudit.engine import literal
from creditaudit.engine.literal import Literal
from creditaudit.measure import diagnostics
from creditaudit.measure.diagnostics import NUDGES, TRAJECTORY_BATCH


class _Sheet:
    """One test batch worked through: states, exact gradients and credits, each [B, features]."""

    def __init__(self, run: Literal, x: Tensor, y: Tensor) -> None:
        self.y, self.net = y, run.net
        h = [state.detach() for state in literal.states(run.net, x)]
        exact, first = literal.credits(run.spec.but(method="bp"), run.net, None, h, y)
        credit, _ = literal.credits(run.spec, run.net, run.feedback, h, y)
        self.h, self.g = ([each.flatten(1) for each in vectors] for vectors in (h, [first, *exact]))
        self.credit = [each.flatten(1) for each in credit]


def evaluate(run: Literal, x: Tensor, y: Tensor) -> dict[str, list]:
    """Test loss and accuracy, and median norms on the first 1024 test pictures; one entry, of one run, each."""
    loss, hits, norms = 0.0, 0, {}
    with torch.inference_mode(False):
        x, y = x.clone(), y.clone()
        for part_x, part_y in zip(x.split(TRAJECTORY_BATCH), y.split(TRAJECTORY_BATCH), strict=True):
            with torch.no_grad():
                logits = run.net.readout(literal.states(run.net, part_x)[-1])
            loss += cross_entropy(logits, part_y, reduction="sum").item()
            hits += (logits.argmax(-1) == part_y).sum().item()
            if not norms:
                sheet = _Sheet(run, part_x, part_y)
                both = {"h_norm": sheet.h, "g_norm": sheet.g}
                norms = {name: diagnostics.medians([each[None] for each in vectors]) for name, vectors in both.items()}
    return {"test_loss": [loss / len(y)], "test_accuracy": [hits / len(y)]} | norms


def examine(run: Literal, start: dict[str, Tensor], x: Tensor, y: Tensor, seed: int) -> dict[str, Any]:
    """The closing diagnostics; what takes closed forms of the ResMLP stays None."""
    with torch.inference_mode(False):
        fine = copy.copy(run)
        fine.net = copy.deepcopy(run.net).double()
        fine.feedback = None if run.feedback is None else run.feedback.double()
        sheets = [_Sheet(fine, a.clone().double(), b.clone()) for a, b in diagnostics.test_batches(x, y)]
        w1 = [(block.w1.weight.detach(), start[f"blocks.{l}.w1.weight"]) for l, block in enumerate(run.net.blocks)]
    unknown = [None] * run.spec.depth
    return {
        **diagnostics.norms(sheets),
        **diagnostics.gamma(sheets, torch.Generator().manual_seed(seed)),
        **{name: unknown for name in ("rho_in", "rho_out", "rho_scaled_in")},
        **{name: {str(eta): unknown for eta in NUDGES} for name in ("nudge_in", "nudge_out")},
        "stability": diagnostics.stability(sheets),
        "drift": diagnostics.drift(w1),
        "fresh_null": None,
    }
