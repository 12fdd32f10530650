"""What has to hold before a number of the audit means anything; it is tried on a few samples, not believed.

The model answers the same when it is asked again, and answers for one sample whatever stands beside it in the batch:
otherwise there is no gradient of a sample. And the states are a chain: each makes the next, and reaches the loss
through it alone.
"""

from itertools import pairwise

import torch
from torch import Tensor, nn

from creditaudit.measure.inputs import AuditError, Batch, run
from creditaudit.measure.stream import Passage, Path, Place, unfollowed

HALF = {torch.float16, torch.bfloat16}
AGAIN, ALONE, COARSELY_ALONE = 1e-4, 1e-2, 0.1  # relative to the logits; sums are rounded in another order when alone
HELD = 1e-5


@torch.no_grad()
def check_function(model: nn.Module, batch: Batch) -> None:
    """Refuses a model that draws at random, remembers, or mixes the samples of a batch."""
    logits, again = run(model, batch), run(model, batch)
    if _apart(logits, again) > AGAIN:
        raise AuditError(
            "the same input gives other logits the second time: audit needs a model that neither draws at random nor "
            "remembers in eval mode (is a functional dropout left on?)"
        )
    if len(batch) < 2:
        return
    types = {tensor.dtype for tensor in (logits, *model.parameters(), *model.buffers())}
    half = len(batch) // 2  # the later ones: a recurrence over the batch goes forwards
    apart = _apart(logits[half:], run(model, batch.part(half, len(batch))))
    if apart > (COARSELY_ALONE if types & HALF else ALONE):
        raise AuditError(
            f"the logits of a sample change by {100 * apart:.2g} % with the samples beside it: a batch norm without "
            "running statistics, or a model that wants the sequence before the batch?"
        )


@torch.no_grad()
def check_chain(model: nn.Module, path: Path, batch: Batch) -> None:
    """Refuses states that what stands between the blocks, or around one of another shape, does not make a chain of."""
    batch, generator = batch.part(0, 2), torch.Generator().manual_seed(0)
    with Passage(path, keep=True) as base:
        logits = run(model, batch)
    if base.calls != len(path.calls):
        raise unfollowed()
    if not logits.isfinite().all():  # it diverged: the norms will say so
        return
    sides = [place.side for place in path.places]
    for l, (here, there) in enumerate(pairwise(path.places)):
        before_gap = "in" in sides[l + 2 : l + 3]
        if there.side == "out" and not before_gap:  # a block, and the next one gets what it returns
            continue
        state = base.states[l]
        move = torch.randn(state.shape, generator=generator, dtype=torch.float64).to(state) * state.abs().mean()
        with Passage(path, moves={l: move}, keep=True) as moved:
            run(model, batch)
        with Passage(path, moves={l: move}, hold={l + 1: base.states[l + 1]}):
            held = run(model, batch)
        if _apart(logits, held) > HELD:
            raise AuditError(
                f"{_named(here)} reaches the output beside {_named(there)}, so the states are no chain "
                "(a skip around them, two paths): name blocks that hand one stream on, blocks=[...]"
            )
        if there.side == "in" and torch.equal(moved.states[l + 1], base.states[l + 1]):
            raise AuditError(
                f"{_named(there)} does not depend on {_named(here)}: name blocks that take the stream as "
                "their first tensor and return it, blocks=[...]"
            )


def _named(place: Place) -> str:
    return f"what goes {place.name}" if place.name.startswith("into ") else f"what leaves {place.name}"


def _apart(logits: Tensor, others: Tensor) -> float:
    """Largest difference, relative to the largest logit; none where the model diverged."""
    if logits.shape != others.shape:
        return float("inf")
    both = logits.isfinite() & others.isfinite()
    scale = logits[both].abs().max().item() if both.any() else 0.0
    return (logits - others)[both].abs().max().item() / scale if scale else 0.0
