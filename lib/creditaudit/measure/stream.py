"""The stream through somebody's blocks: where its states are, and how to see, move and differentiate them.

`observe` runs the model once and finds the states h_0 .. h_L. A block hands on the stream itself, or the skip is added
outside of it; adding m to what leaves a block moves the state after it by m in both cases, and a state that nothing
but a block gets is moved by m where it enters. So every state has a place at a block's call, and nothing else of the
model needs to be known. A new stage begins where the shape changes.

A plain chain (an MLP: nothing but weight layers and what stands between them) has its states where a layer is entered.
"""

from collections.abc import Callable, Iterator, Mapping
from copy import copy
from dataclasses import dataclass, field
from typing import Any, Literal

import torch
from torch import Tensor, nn

from creditaudit.measure.blocks import is_weight_layer
from creditaudit.measure.inputs import AuditError, Batch, run

Handover = Literal["passed", "added", "stage", "other"]
NORMS = ("layernorm", "rmsnorm", "groupnorm", "instancenorm")  # they set the scale of every sample; batch norm does not


@dataclass(frozen=True)
class Place:
    """One state of the stream: at which call of a block, on which side of it."""

    call: int
    side: Literal["in", "out"]
    beside: bool  # the skip runs beside the block
    name: str


@dataclass(frozen=True)
class Path:
    """The states of the stream in order, and the modules at whose calls they are seen."""

    modules: list[nn.Module]
    names: list[str]  # of the audited modules, each once
    calls: list[str]  # what is called, call by call
    places: list[Place]
    before: list[int]  # of every call the place of what enters and of what leaves
    after: list[int]
    growth_before_norm: list[float] = field(default_factory=list)  # of post-norm blocks


class Passage:
    """Use as a context around one forward pass: row norms of all states, and what was asked for beside them."""

    def __init__(
        self,
        path: Path,
        probe: bool = False,
        keep: bool = False,
        moves: Mapping[int, Tensor] | None = None,
        hold: Mapping[int, Tensor] | None = None,
    ) -> None:
        self.path, self.probe, self.keep, self.moves, self.hold = path, probe, keep, dict(moves or {}), hold or {}
        self.norms: list[Tensor | None] = [None] * len(path.places)
        self.shapes: list[torch.Size | None] = [None] * len(path.places)
        self.types: set[torch.dtype] = set()
        self.states: list[Tensor | None] = [None] * len(path.places)  # where asked to keep them
        self.probes: list[Tensor | None] = [None] * len(path.places)  # zeros added to the states: their gradients
        self.at = {(place.call, place.side): index for index, place in enumerate(path.places)}
        self.beside = any(place.beside for place in path.places)
        self.calls, self.entered = 0, None
        self.entering = torch.Size()

    def __enter__(self) -> "Passage":
        self.hooks = []
        try:
            for module in self.path.modules:
                self.hooks.append(module.register_forward_pre_hook(self._enter, with_kwargs=True))
                self.hooks.append(module.register_forward_hook(self._leave))
        except RuntimeError as error:
            self.__exit__()
            raise _unwatchable(error) from error
        return self

    def __exit__(self, *_: object) -> None:
        for hook in self.hooks:
            hook.remove()

    def check(self) -> None:
        if self.calls != len(self.path.calls):
            raise AuditError(
                f"the blocks are called {self.calls} times, {len(self.path.calls)} times before: a model whose depth "
                "depends on its input cannot be audited"
            )

    def _enter(self, _: nn.Module, arguments: tuple, named: dict[str, Any]) -> tuple[tuple, dict] | None:
        index = self.at.get((self.calls, "in"))
        key = _stream_key(arguments, named)
        state = _get(arguments, named, key)
        self.entered, self.entering = state.detach().clone() if self.beside else None, state.shape
        if index is None:
            return None
        return _replaced(arguments, named, key, self._pass(index, state, state))

    def _leave(self, _: nn.Module, __: tuple, output: Any) -> Any:
        entry, index = self.at.get((self.calls, "in")), self.at.get((self.calls, "out"))
        self.calls += 1
        left, rebuild = _opened(output, self.entering)
        if entry is not None and self.path.places[entry].beside:
            left = self._moved(entry, left)
        if index is not None:
            state = self.entered + left if self.path.places[index].beside else left
            left = self._pass(index, state, left)
        return rebuild(left)

    def _pass(self, index: int, state: Tensor, carrier: Tensor) -> Tensor:
        """What goes on in place of the carrier: never the tensor itself, which code behind may change in place."""
        self.norms[index], self.shapes[index] = row_norms(state), state.shape[1:]
        self.types |= {state.dtype, carrier.dtype}
        if self.keep:
            self.states[index] = state.detach().clone()
        if self.probe:
            self.probes[index] = torch.zeros_like(carrier).requires_grad_()
        if index in self.hold:
            self.moves[index] = self.hold[index] - state  # for a skip beside the block
            if not self.path.places[index].beside:
                return self.hold[index].clone()
        return self._moved(index, carrier)

    def _moved(self, index: int, carrier: Tensor) -> Tensor:
        if self.probes[index] is not None:
            carrier = carrier + self.probes[index]
        if index in self.moves:
            return carrier + self.moves[index].view_as(carrier).to(carrier.dtype)
        return carrier.clone()


def observe(model: nn.Module, blocks: list[nn.Module], batch: Batch, named: bool) -> Path:
    """Where the states are. Blocks that nobody `named` may stay uncalled (heads for training only)."""
    with _Observer(model, blocks) as seen:
        run(model, batch)
    names = {module: name for name, module in model.named_modules()}
    if uncalled := [names[block] for block in blocks if block not in seen.calls]:
        if named or not seen.calls:
            raise AuditError(f"{', '.join(uncalled)} was not called: name the blocks yourself, blocks=[...]")
        return observe(model, [block for block in blocks if block in seen.calls], batch, True)
    seen.check_batch(len(batch))
    if "other" in seen.handed_on:
        if all(is_weight_layer(block) for block in blocks):
            return _chain(blocks, seen, names)
        raise unfollowed()
    return _stream(blocks, seen, names)


def row_norms(tensor: Tensor) -> Tensor:
    return torch.linalg.vector_norm(tensor.detach().double().flatten(1), dim=-1)


def _stream(blocks: list[nn.Module], seen: "_Observer", names: dict[nn.Module, str]) -> Path:
    calls = [names[module] for module in seen.calls]
    usual = "added" if "added" in seen.handed_on else "passed"
    kinds = [usual if kind == "stage" else kind for kind in seen.handed_on] + [seen.last_handover()]
    if any(kinds[call] == "added" and entered != left for call, (entered, left) in enumerate(seen.calls_shapes())):
        raise unfollowed()  # a skip that changes the shape
    places, before, after = [Place(0, "in", kinds[0] == "added", f"into {calls[0]}")], [], []
    for call, name in enumerate(calls):
        if call and seen.handed_on[call - 1] == "stage":  # something between the blocks changes the shape
            places.append(Place(call, "in", kinds[call] == "added", f"into {name}"))
        before.append(len(places) - 1)
        places.append(Place(call, "out", kinds[call] == "added", name))
        after.append(len(places) - 1)
    growth = [g for g, kind in zip(seen.before_norm, kinds, strict=True) if g is not None and kind == "passed"]
    return Path(blocks, [names[block] for block in blocks], calls, places, before, after, growth)


def _chain(blocks: list[nn.Module], seen: "_Observer", names: dict[nn.Module, str]) -> Path:
    if seen.reader is None:
        raise unfollowed()
    calls = [names[module] for module in seen.calls]
    places = [Place(call, "in", False, f"into {name}") for call, name in enumerate([*calls, names[seen.reader]])]
    modules = list(dict.fromkeys([*blocks, seen.reader]))
    states = list(range(len(calls)))
    ends = [l + 1 for l in states]
    return Path(modules, [names[block] for block in blocks], [*calls, names[seen.reader]], places, states, ends)


class _Observer:
    """One forward pass: what enters and leaves the blocks, call by call, and how it is handed on."""

    def __init__(self, model: nn.Module, blocks: list[nn.Module]) -> None:
        self.blocks, self.calls, self.inside = blocks, [], False
        self.shapes: list[torch.Size] = []
        self.state: Tensor | None = None  # what entered the last call
        self.left: Tensor | None = None  # what left it
        self.passed = self.added = False  # what left it, alone or added to what had entered, entered a module
        self.strange = False  # something of the stream's shape entered one that is neither
        self.reader: nn.Module | None = None  # the first weight layer after it
        self.handed_on: list[Handover] = []  # from each call to the next
        self.before_norm: list[float | None] = []  # growth up to a norm that ends the block
        self.normed: tuple[Tensor, Tensor] | None = None  # what a norm inside the block got, and made of it
        within = {module for block in blocks for module in block.modules()}
        self.others = [m for m in model.modules() if m not in within and not list(m.children())]
        self.norms = [m for m in within if any(name in type(m).__name__.lower() for name in NORMS)]

    def __enter__(self) -> "_Observer":
        self.hooks = []
        try:
            for norm in self.norms:
                self.hooks.append(norm.register_forward_hook(self._norm))
            for block in self.blocks:
                self.hooks.append(block.register_forward_pre_hook(self._enter, with_kwargs=True))
                self.hooks.append(block.register_forward_hook(self._leave))
            for module in self.others:
                self.hooks.append(module.register_forward_pre_hook(self._follow, with_kwargs=True))
        except RuntimeError as error:
            self.__exit__()
            raise _unwatchable(error) from error
        return self

    def __exit__(self, *_: object) -> None:
        for hook in self.hooks:
            hook.remove()

    def check_batch(self, batch: int) -> None:
        if wrong := [list(shape) for shape in self.shapes if not shape or shape[0] != batch]:
            raise AuditError(
                f"the states are {wrong[0]} for {batch} pictures: the first dimension must be the batch "
                "(for a sequence-first model, pass blocks that see it batch-first)"
            )

    def calls_shapes(self) -> Iterator[tuple[torch.Size, torch.Size]]:
        """What entered and left, call by call."""
        return zip(self.shapes[::2], self.shapes[1::2], strict=True)

    def last_handover(self) -> Handover:
        """Whether h_L is what left the last block, or that plus what had entered it."""
        told = {kind for kind in self.handed_on if kind != "stage"}
        if told == {"passed"}:
            return "passed"
        if self.added:
            return "added"
        if self.passed and told != {"added"}:  # one block alone
            return "passed"
        if self.strange or told:
            raise AuditError(
                "the last state cannot be seen: no module after the blocks gets what the last one returned, added to "
                "what had entered it where the others' were. Name blocks that return the stream, blocks=[...], or make "
                "what stands between them and the next module (a functional norm) a module"
            )
        return "passed"  # one block, then pooled or flattened

    def _enter(self, block: nn.Module, arguments: tuple, named: dict[str, Any]) -> None:
        if self.inside:
            raise AuditError("a block lies inside another one: name blocks that follow each other, blocks=[...]")
        state = _get(arguments, named, _stream_key(arguments, named))
        if not state.is_floating_point():
            raise AuditError(f"a block gets {state.dtype} (tokens?): name blocks after the embedding, blocks=[...]")
        if self.left is not None:
            changed = state.shape != self.left.shape
            self.handed_on.append(self._relation(state) or ("stage" if changed else "other"))
        self.inside, self.passed, self.added, self.strange, self.reader = True, False, False, False, None
        self.state = state.detach().clone()  # code after the block may add to it in place
        self.normed = None
        self.calls.append(block)
        self.shapes.append(state.shape)

    def _leave(self, block: nn.Module, _: tuple, output: Any) -> None:
        left = _opened(output, self.state.shape)[0]
        self.inside, self.left = False, left.detach().clone()
        self.shapes.append(left.shape)
        ends = self.normed is not None and self.normed[0].shape == left.shape and _equal(self.normed[1], self.left)
        growth = row_norms(self.normed[0]).median() / row_norms(self.state).median() if ends else None
        self.before_norm.append(None if growth is None else growth.item())

    def _norm(self, _: nn.Module, arguments: tuple, output: Any) -> None:
        if self.inside and arguments and isinstance(output, Tensor):
            self.normed = arguments[0].detach().clone(), output.detach().clone()

    def _follow(self, module: nn.Module, arguments: tuple, named: dict[str, Any]) -> None:
        given = [*arguments, *named.values()]
        if self.left is None or self.inside or not isinstance(given and given[0], Tensor):
            return
        if self.reader is None and is_weight_layer(module):
            self.reader = module
        if self.added or given[0].shape != self.left.shape or not given[0].is_floating_point():
            return
        relation = self._relation(given[0])
        self.strange |= relation is None
        self.passed |= relation == "passed"
        self.added |= relation == "added"

    def _relation(self, state: Tensor) -> Literal["passed", "added"] | None:
        """What a later tensor is to the last call; where it is both (not a number, or nothing entered), as before."""
        fits = {"passed": _equal(state, self.left), "added": _is_sum(state, self.state, self.left)}
        before = self.handed_on[-1] if self.handed_on else "passed"
        return before if fits.get(before) else next((name for name, it_does in fits.items() if it_does), None)


def _stream_key(arguments: tuple, named: dict[str, Any]) -> int | str:
    """Which argument is the stream: the first tensor of floats; the one called hidden_states where blocks get names."""
    given = {**dict(enumerate(arguments)), **named}
    tensors = {key: value for key, value in given.items() if isinstance(value, Tensor)}
    floats = [key for key, value in tensors.items() if value.is_floating_point() and value.dim() > 1]
    if not tensors:
        raise AuditError("a block was called without a tensor: name the blocks yourself, blocks=[...]")
    if not arguments and "hidden_states" in floats:
        return "hidden_states"
    return (floats or list(tensors))[0]


def _get(arguments: tuple, named: dict[str, Any], key: int | str) -> Tensor:
    return arguments[key] if isinstance(key, int) else named[key]


def _replaced(arguments: tuple, named: dict[str, Any], key: int | str, value: Tensor) -> tuple[tuple, dict]:
    if isinstance(key, int):
        return (*arguments[:key], value, *arguments[key + 1 :]), named
    return arguments, named | {key: value}


def _opened(output: Any, entered: torch.Size) -> tuple[Tensor, Callable[[Tensor], Any]]:
    """The stream in a block's output (of several tensors the one shaped like what entered, else the first), and the
    output again with another tensor in its place."""
    if isinstance(output, Tensor):
        return output, lambda tensor: tensor
    parts = list(output.items() if isinstance(output, Mapping) else enumerate(output)) if _holds(output) else []
    tensors = {key: value for key, value in parts if isinstance(value, Tensor)}
    if not tensors:
        raise AuditError(f"a block returned a {type(output).__name__}: name blocks that return a tensor, blocks=[...]")
    key = next((key for key, value in tensors.items() if value.shape == entered), next(iter(tensors)))
    return tensors[key], lambda tensor: _with_entry(output, key, tensor)


def _holds(output: Any) -> bool:
    return isinstance(output, tuple | Mapping)


def _with_entry(output: Any, key: Any, tensor: Tensor) -> Any:
    if isinstance(output, tuple):
        parts = [*output[:key], tensor, *output[key + 1 :]]
        return type(output)(*parts) if hasattr(output, "_fields") else type(output)(parts)
    again = copy(output)
    again[key] = tensor
    return again


def _equal(a: Tensor, b: Tensor) -> bool:
    """Equal where not a number, too: a model that diverged still hands on its stream."""
    return a.shape == b.shape and a.dtype == b.dtype and torch.allclose(a, b, rtol=0, atol=0, equal_nan=True)


def _is_sum(total: Tensor, a: Tensor, b: Tensor) -> bool:
    """Up to the rounding of an addition in the coarsest of their types."""
    if not a.shape == b.shape == total.shape:
        return False
    rounding = 4 * max(torch.finfo(tensor.dtype).eps for tensor in (total, a, b))
    a, b, total = (tensor.detach().double() for tensor in (a, b, total))
    return torch.allclose(total, a + b, rtol=0, atol=rounding * _largest(a, b), equal_nan=True)


def _largest(*tensors: Tensor) -> float:
    finite = [tensor[tensor.isfinite()].abs() for tensor in tensors]
    return max((values.max().item() for values in finite if len(values)), default=0.0)


def _unwatchable(error: Exception) -> AuditError:
    return AuditError(f"a module cannot be watched ({error}): audit the model before it is scripted")


def unfollowed() -> AuditError:
    return AuditError(
        "a block gets neither what the one before it returned, nor that added to what had entered it, so the stream "
        "cannot be followed: name blocks that return the stream, with whatever stands between them (a scaled skip, a "
        "norm) inside, blocks=[...]"
    )
