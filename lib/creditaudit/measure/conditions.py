"""What has to hold before a number about a model means anything; it is tried on a few samples, not believed.

The model answers the same when it is asked again, and answers for one sample whatever stands beside it in the batch:
otherwise there is no gradient of a sample. And the states are a chain: each makes the next, and reaches the loss
through it alone.
"""

import sys
from collections.abc import Iterator, Sequence
from contextlib import contextmanager, nullcontext, suppress
from itertools import pairwise

import torch
from torch import Tensor, nn

from creditaudit.measure.blocks import candidates
from creditaudit.measure.inputs import HALF, AuditError, Batch, run
from creditaudit.measure.passage import Passage, Path, Place
from creditaudit.measure.stream import UNFOLLOWED, UNSEEN, observe

LOOK = 8  # samples of the passes that find the stream
AGAIN, ALONE, COARSELY_ALONE = 1e-4, 1e-2, 0.1  # relative to the logits; sums are rounded in another order when alone
HELD = 1e-5
FEW, FAR, FOLLOWS = 4, 1e3, 10.0  # samples; scaled so much, a norm that grows by less than this does not follow


@contextmanager
def as_it_was(model: nn.Module) -> Iterator[None]:
    """In eval mode and with gradients, whatever surrounds it; afterwards every module has its own mode back.

    Torch's fast path of attention would skip the blocks' own forward, or hand on nested tensors.
    """
    modes, fast = {module: module.training for module in model.modules()}, torch.backends.mha.get_fastpath_enabled()
    compiles = "torch._dynamo" in sys.modules  # compiled code would not see that it is watched
    eager = torch.compiler.set_stance("force_eager") if compiles else nullcontext()
    model.eval()
    torch.backends.mha.set_fastpath_enabled(False)
    try:
        with torch.inference_mode(False), torch.enable_grad(), eager:
            yield
    finally:
        torch.backends.mha.set_fastpath_enabled(fast)
        model.train(modes[model])  # for modules that do more than set a flag
        for module, mode in modes.items():
            module.training = mode


def find_path(model: nn.Module, blocks: Sequence[nn.Module | str] | None, first: Batch) -> Path:
    """Through the blocks as named or, where nobody names them, through the finest that hand on one stream."""
    look = first.part(0, LOOK)
    check_function(model, look)
    *finer, last = candidates(model, blocks, look)
    for found in finer:
        with suppress(AuditError):
            return _path(model, found, look, False)
    return _path(model, last, look, blocks is not None)


def _path(model: nn.Module, blocks: list[nn.Module], look: Batch, named: bool) -> Path:
    path = observe(model, blocks, look, named)
    check_chain(model, path, look)
    return path


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
    base = Passage(path, keep=True)
    logits = base.run(model, batch)
    if base.calls != len(path.calls):
        raise AuditError(UNFOLLOWED)
    if not logits.isfinite().all():  # it diverged: the norms will say so
        return
    if torch.equal(base.states[-1].flatten(1), logits):
        raise AuditError(
            f"{_named(path.places[-1])} is the logits themselves, where the gradient knows nothing of the readout: "
            "name blocks that end before it, blocks=[...]"
        )
    sides = [place.side for place in path.places]
    for l, (here, there) in enumerate(pairwise(path.places)):
        before_gap = "in" in sides[l + 2 : l + 3]
        unseen = path.unseen and l + 2 == len(sides)
        if there.side == "out" and not before_gap and not unseen:  # a block, and the next one gets what it returns
            continue
        state = base.states[l]
        move = torch.randn(state.shape, generator=generator, dtype=torch.float64).to(state) * state.abs().mean()
        moved = Passage(path, moves={l: move}, keep=True)
        moved.run(model, batch)
        held = Passage(path, moves={l: move}, hold={l + 1: base.states[l + 1]}).run(model, batch)
        if _apart(logits, held) > HELD:
            beside = (
                f"{_named(here)} reaches the output beside {_named(there)}, so the states are no chain "
                "(a skip around them, two paths): name blocks that hand one stream on, blocks=[...]"
            )
            raise AuditError(UNSEEN if unseen else beside)
        if there.side == "in" and torch.equal(moved.states[l + 1], base.states[l + 1]):
            raise AuditError(
                f"{_named(there)} does not depend on {_named(here)}: name blocks that take the stream as "
                "their first tensor and return it, blocks=[...]"
            )


@torch.no_grad()
def bounded(model: nn.Module, path: Path, batch: Batch) -> list[str]:
    """States whose norm follows neither the state before nor the weights between, as behind a norm or a saturation."""
    batch = batch.part(0, FEW)
    base = Passage(path, keep=True)
    if not base.run(model, batch).isfinite().all():
        return []
    norms = torch.stack(base.norms).median(1).values.cpu()
    factors = [FAR * max(1.0, (there / here).item()) if here else 1.0 for here, there in pairwise(norms)]
    heavy = {
        f"{prefix}.{name}".lstrip("."): FAR * parameter
        for prefix, module in model.named_modules()  # each once, under whatever names
        for name, parameter in module._parameters.items()
        if parameter is not None and parameter.dim() > 1  # neither a bias nor the scale of a norm
    }
    stays = torch.tensor([here == there for here, there in pairwise(base.shapes)])  # as D1 compares them
    stays |= ~stays.any()
    for scales, weights in ((factors, None), ([1.0] * len(factors), heavy)):
        moved = Passage(path, hold={l: scale * base.states[l] for l, scale in enumerate(scales)})
        try:
            moved.run(model, batch, weights)
        except AuditError:  # a model that refuses such numbers: nothing is known
            return []
        stays &= (torch.stack(moved.norms).median(1).values.cpu() / norms)[1:] < FOLLOWS
    return [place.name for place, blind in zip(path.places[1:], stays.tolist(), strict=True) if blind]


def _named(place: Place) -> str:
    if not place.name:
        return "what the model returns"
    return f"what goes {place.name}" if place.name.startswith("into ") else f"what leaves {place.name}"


def _apart(logits: Tensor, others: Tensor) -> float:
    """Largest difference, relative to the largest logit; none where the model diverged."""
    if logits.shape != others.shape:
        return float("inf")
    both = logits.isfinite() & others.isfinite()
    scale = logits[both].abs().max().item() if both.any() else 0.0
    return (logits - others)[both].abs().max().item() / scale if scale else 0.0
