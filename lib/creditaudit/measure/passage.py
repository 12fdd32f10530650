"""One forward pass along the stream of somebody's model: its states seen, moved, held or differentiated.

A block hands on the stream itself, or the skip is added outside of it; adding m to what leaves a block moves the state
after it by m in both cases, and a state that nothing but a block gets is moved by m where it enters. So every state has
a place at a block's call, and nothing else of the model needs to be known.
"""

from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from typing import Any, Literal

import torch
from torch import Tensor, nn
from torch.utils._pytree import tree_leaves, tree_map

from creditaudit.measure import inputs
from creditaudit.measure.inputs import AuditError, Batch


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
    unseen: bool = False  # the last state: the sum that was handed on before, but that no module gets


class Passage:
    """Row norms of all states, and what was asked for beside them."""

    def __init__(
        self,
        path: Path,
        probe: bool = False,
        keep: bool = False,
        moves: Mapping[int, Tensor] | None = None,
        hold: Mapping[int, Tensor] | None = None,
    ) -> None:
        self.path, self.probe, self.keep, self.moves, self.hold = path, probe, keep, dict(moves or {}), hold or {}
        self.norms, self.shapes = [None] * len(path.places), [None] * len(path.places)
        self.states = [None] * len(path.places)  # where asked to keep them
        self.probes = [None] * len(path.places)  # zeros added to the states: their gradients
        self.types: set[torch.dtype] = set()
        self.at = {(place.call, place.side): index for index, place in enumerate(path.places)}
        self.beside = any(place.beside for place in path.places)
        self.calls, self.silence = 0, ""

    def run(self, model: nn.Module, batch: Batch, weights: dict[str, Tensor] | None = None) -> Tensor:
        """The logits."""
        before, after = ([(module, hook) for module in self.path.modules] for hook in (self._enter, self._leave))
        return inputs.run(model, batch, weights, before, after)

    def check(self) -> None:
        if self.calls != len(self.path.calls):
            raise AuditError(
                f"the blocks are called {self.calls} times, {len(self.path.calls)} times before: a model whose depth "
                "depends on its input cannot be audited"
            )

    def gradients(self, total: Tensor) -> list[Tensor]:
        """Those of a summed loss at the probed states, [n, d]: zeros where none arrives, and `silence` says why."""
        found = [None] * len(self.probes)
        if not total.requires_grad:
            self.silence = "the forward pass runs under no_grad, or detaches"
        else:
            try:
                found = torch.autograd.grad(total, self.probes, allow_unused=True)
                self.silence = "the last state is detached" if found[-1] is None else ""
            except Exception as error:  # whatever a replaced backward raises
                self.silence = "its backward pass fails with " + f"{type(error).__name__}: {error}".splitlines()[0]
        pairs = zip(self.probes, found, strict=True)
        return [(torch.zeros_like(probe) if g is None else g).double().flatten(1) for probe, g in pairs]

    def _enter(self, _: nn.Module, arguments: tuple, named: dict[str, Any]) -> tuple[tuple, dict] | None:
        index, (state, again) = self.at.get((self.calls, "in")), entering(arguments, named)
        self.entered, self.shape = state.detach().clone() if self.beside else None, state.shape
        return None if index is None else again(self._pass(index, state, state))

    def _leave(self, _: nn.Module, __: tuple, output: Any) -> Any:
        entry, index = self.at.get((self.calls, "in")), self.at.get((self.calls, "out"))
        self.calls += 1
        left, again = leaving(output, self.shape)
        if entry is not None and self.path.places[entry].beside:
            left = self._moved(entry, left)
        if index is not None:
            state = self.entered + left if self.path.places[index].beside else left
            left = self._pass(index, state, left)
        return again(left)

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


def row_norms(tensor: Tensor) -> Tensor:
    return torch.linalg.vector_norm(tensor.detach().double().flatten(1), dim=-1)


def entering(arguments: tuple, named: dict[str, Any]) -> tuple[Tensor, Callable[[Tensor], tuple[tuple, dict]]]:
    """The stream in what a block gets, and the same with another tensor in its place.

    It is the first tensor of floats; the one called hidden_states where blocks get names.
    """
    tensors = {k: v for k, v in {**dict(enumerate(arguments)), **named}.items() if isinstance(v, Tensor)}
    floats = [key for key, value in tensors.items() if value.is_floating_point() and value.dim() > 1]
    if not tensors:
        raise AuditError("a block was called without a tensor: name the blocks yourself, blocks=[...]")
    key = "hidden_states" if not arguments and "hidden_states" in floats else (floats or list(tensors))[0]

    def again(tensor: Tensor) -> tuple[tuple, dict]:
        if isinstance(key, int):
            return (*arguments[:key], tensor, *arguments[key + 1 :]), named
        return arguments, named | {key: tensor}

    return tensors[key], again


def leaving(output: Any, entered: torch.Size) -> tuple[Tensor, Callable[[Tensor], Any]]:
    """The stream in a block's output (of several tensors the one shaped like what entered, else the first), and the
    output again with another tensor in its place."""
    tensors = [leaf for leaf in tree_leaves(output) if isinstance(leaf, Tensor)]
    if not tensors:
        raise AuditError(f"a block returned a {type(output).__name__}: name blocks that return a tensor, blocks=[...]")
    left = next((tensor for tensor in tensors if tensor.shape == entered), tensors[0])
    return left, lambda tensor: tree_map(lambda leaf: tensor if leaf is left else leaf, output)
