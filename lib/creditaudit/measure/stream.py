"""Where the states h_0 .. h_L of somebody's model are: found by running it once and comparing what its blocks hand on.

A new stage begins where the shape changes. A plain chain (an MLP: nothing but weight layers and what stands between
them) has its states where a layer is entered. `passage` then sees and moves the states at the places found here.
"""

from typing import Any, Literal

import torch
from torch import Tensor, nn

from creditaudit.measure import inputs
from creditaudit.measure.blocks import is_weight_layer
from creditaudit.measure.inputs import AuditError, Batch
from creditaudit.measure.passage import Path, Place, entering, leaving, row_norms

Handover = Literal["passed", "added", "stage", "other"]
NORMS = ("layernorm", "rmsnorm", "groupnorm", "instancenorm")  # they set the scale of every sample; batch norm does not
UNFOLLOWED = (
    "a block gets neither what the one before it returned, nor that added to what had entered it, so the stream "
    "cannot be followed: name blocks that return the stream, with whatever stands between them (a scaled skip, a "
    "norm) inside, blocks=[...]"
)
UNSEEN = (
    "the last state cannot be seen: no module after the blocks gets what the last one returned, added to what had "
    "entered it where the others' were. Name blocks that return the stream, blocks=[...], or make what stands between "
    "them and the next module (a functional norm) a module"
)


def observe(model: nn.Module, blocks: list[nn.Module], batch: Batch, named: bool) -> Path:
    """Where the states are. Blocks that nobody `named` may stay uncalled (heads for training only)."""
    seen = _Observer(model, blocks)
    seen.run(model, batch)
    names = {module: name for name, module in model.named_modules()}
    if uncalled := [names[block] for block in blocks if block not in seen.calls]:
        if named or not seen.calls:
            held = [f"{name}.{child}" for name in uncalled for child, _ in model.get_submodule(name).named_children()]
            instead = f"what it holds, blocks={held}" if held else "the blocks yourself, blocks=[...]"
            raise AuditError(f"{', '.join(uncalled)} was not called: name {instead}")
        return observe(model, [block for block in blocks if block in seen.calls], batch, True)
    is_chain = "other" in seen.handed_on
    if is_chain and (seen.reader is None or not all(map(is_weight_layer, blocks))):
        raise AuditError(UNFOLLOWED)
    audited, calls = [names[block] for block in blocks], [names[module] for module in seen.calls]
    if is_chain:
        calls.append(names[seen.reader])
        modules = list(dict.fromkeys([*blocks, seen.reader]))
        places = [Place(call, "in", False, f"into {name}") for call, name in enumerate(calls)]
        return Path(modules, audited, calls, places, list(range(len(calls) - 1)), list(range(1, len(calls))))
    return _stream(blocks, audited, calls, seen)


def _stream(blocks: list[nn.Module], audited: list[str], calls: list[str], seen: "_Observer") -> Path:
    usual = "added" if "added" in seen.handed_on else "passed"
    kinds = [usual if kind == "stage" else kind for kind in seen.handed_on] + [seen.last_handover()]
    if any(kind == "added" and entered != left for kind, (entered, left) in zip(kinds, seen.shapes, strict=True)):
        raise AuditError(UNFOLLOWED)  # a skip that changes the shape
    places, before, after = [Place(0, "in", kinds[0] == "added", f"into {calls[0]}")], [], []
    for call, name in enumerate(calls):
        if call and seen.handed_on[call - 1] == "stage":  # something between the blocks changes the shape
            places.append(Place(call, "in", kinds[call] == "added", f"into {name}"))
        before.append(len(places) - 1)
        places.append(Place(call, "out", kinds[call] == "added", name))
        after.append(len(places) - 1)
    growth = [g for g, kind in zip(seen.before_norm, kinds, strict=True) if g is not None and kind == "passed"]
    unseen = kinds[-1] == "added" and "added" not in seen.met
    return Path(blocks, audited, calls, places, before, after, growth, unseen)


class _Observer:
    """One forward pass: what enters and leaves the blocks, call by call, and how it is handed on."""

    def __init__(self, model: nn.Module, blocks: list[nn.Module]) -> None:
        self.blocks, self.calls, self.inside = blocks, [], False
        self.shapes: list[tuple[torch.Size, torch.Size]] = []  # of what entered and left, call by call
        self.state: Tensor | None = None  # what entered the last call
        self.left: Tensor | None = None  # what left it
        self.met: set[Handover | None] = set()  # what modules behind it got: that, its sum with the state, or neither
        self.reader: nn.Module | None = None  # the first weight layer after it
        self.handed_on: list[Handover] = []  # from each call to the next
        self.before_norm: list[float | None] = []  # growth up to a norm that ends the block
        self.normed: tuple[Tensor, Tensor] | None = None  # what a norm inside the block got, and made of it

    def run(self, model: nn.Module, batch: Batch) -> None:
        within = {module for block in self.blocks for module in block.modules()}
        others = [m for m in model.modules() if m not in within and not list(m.children())]
        norms = [m for m in within if any(name in type(m).__name__.lower() for name in NORMS)]
        before = [*((block, self._enter) for block in self.blocks), *((module, self._follow) for module in others)]
        after = [*((norm, self._norm) for norm in norms), *((block, self._leave) for block in self.blocks)]
        inputs.run(model, batch, before=before, after=after)
        every = [shape for both in self.shapes for shape in both]
        if wrong := [list(shape) for shape in every if not shape or shape[0] != len(batch)]:
            raise AuditError(
                f"the states are {wrong[0]} for {len(batch)} pictures: the first dimension must be the batch "
                "(build a sequence-first model with batch_first=True instead of transposes; its weights stay the same)"
            )
        if len(batch) > 1 and any(shape[:2] == (len(batch), len(batch)) for shape in every):  # which one is the batch?
            _Observer(model, self.blocks).run(model, batch.part(0, len(batch) - 1))

    def last_handover(self) -> Handover:
        """Whether h_L is what left the last block, or that plus what had entered it."""
        usual = {kind for kind in self.handed_on if kind != "stage"}
        if usual == {"passed"}:
            return "passed"
        if "added" in self.met or usual == {"added"}:  # where nothing shows it, `conditions` tries it
            return "added"
        if "passed" in self.met and usual != {"added"}:  # one block alone
            return "passed"
        if None in self.met or usual:
            raise AuditError(UNSEEN)
        return "passed"  # one block, then pooled or flattened

    def _enter(self, block: nn.Module, arguments: tuple, named: dict[str, Any]) -> None:
        if self.inside:
            raise AuditError("a block lies inside another one: name blocks that follow each other, blocks=[...]")
        state, _ = entering(arguments, named)
        if not state.is_floating_point():
            raise AuditError(f"a block gets {state.dtype} (tokens?): name blocks after the embedding, blocks=[...]")
        if self.left is not None:
            changed = state.shape != self.left.shape
            self.handed_on.append(self._relation(state) or ("stage" if changed else "other"))
        self.inside, self.met, self.reader, self.normed = True, set(), None, None
        self.state = state.detach().clone()  # code after the block may add to it in place
        self.calls.append(block)

    def _leave(self, block: nn.Module, _: tuple, output: Any) -> None:
        left, _ = leaving(output, self.state.shape)
        self.inside, self.left = False, left.detach().clone()
        self.shapes.append((self.state.shape, left.shape))
        ends = self.normed is not None and self.normed[0].shape == left.shape and torch.equal(self.normed[1], self.left)
        growth = row_norms(self.normed[0]).median() / row_norms(self.state).median() if ends else None
        self.before_norm.append(None if growth is None else growth.item())

    def _norm(self, _: nn.Module, arguments: tuple, output: Any) -> None:
        if self.inside and arguments and isinstance(output, Tensor):
            self.normed = arguments[0].detach().clone(), output.detach().clone()

    def _follow(self, module: nn.Module, arguments: tuple, named: dict[str, Any]) -> None:
        got = next(iter([*arguments, *named.values()]), None)
        if self.left is None or self.inside or not isinstance(got, Tensor):
            return
        if self.reader is None and is_weight_layer(module):
            self.reader = module
        if "added" not in self.met and got.shape == self.left.shape and got.is_floating_point():
            self.met.add(self._relation(got))

    def _relation(self, state: Tensor) -> Literal["passed", "added"] | None:
        """What a later tensor is to the last call; where it is both (not a number, or nothing entered), as before."""
        fits = {"passed": _equal(state, self.left), "added": _is_sum(state, self.state, self.left)}
        before = self.handed_on[-1] if self.handed_on else "passed"
        return before if fits.get(before) else next((name for name, it_does in fits.items() if it_does), None)


def _equal(a: Tensor, b: Tensor) -> bool:
    """Equal where not a number, too: a model that diverged still hands on its stream."""
    return a.shape == b.shape and a.dtype == b.dtype and torch.allclose(a, b, rtol=0, atol=0, equal_nan=True)


def _is_sum(total: Tensor, a: Tensor, b: Tensor) -> bool:
    """Up to the rounding of an addition in the coarsest of their types."""
    if not a.shape == b.shape == total.shape:
        return False
    rounding = 4 * max(torch.finfo(tensor.dtype).eps for tensor in (total, a, b))
    a, b, total = (tensor.detach().double() for tensor in (a, b, total))
    largest = torch.stack([a, b]).nan_to_num(0, 0, 0).abs().max().item() if a.numel() else 0.0
    return torch.allclose(total, a + b, rtol=0, atol=rounding * largest, equal_nan=True)
