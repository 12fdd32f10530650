"""The stream through somebody's blocks, caught by forward hooks while the model runs.

Norms are taken the moment a state passes, and every state that may serve as the last is handed on as a copy: code that
works in place (`h += 1`, `nn.ReLU(inplace=True)`) would otherwise change what was seen, or where the gradient is taken.
"""

from typing import Any, Literal

import torch
from torch import Tensor, nn

Handover = Literal["passed", "added", "other"]


class Stream:
    """Use as a context around one forward pass; then ask for `norms` and `last`."""

    def __init__(self, model: nn.Module, blocks: list[nn.Module]) -> None:
        self.blocks, self.called, self.inside = blocks, set(), False
        self.entered: list[Tensor] = []  # row norms of what entered, call by call
        self.shapes: list[torch.Size] = []
        self.state: Tensor | None = None  # what entered the last call
        self.left: Tensor | None = None  # what left it
        self.passed: Tensor | None = None  # what left it, as it entered a module afterwards
        self.added: Tensor | None = None  # that plus what had entered, as it entered a module: the skip is outside
        self.strange = False  # something of the stream's shape entered one that is neither
        self.handed_on: list[Handover] = []  # from each call to the next
        within = {module for block in blocks for module in block.modules()}
        self.others = [m for m in model.modules() if m not in within and not list(m.children())]

    def __enter__(self) -> "Stream":
        self.hooks = []
        try:
            for block in self.blocks:
                self.hooks.append(block.register_forward_pre_hook(self._enter, with_kwargs=True))
                self.hooks.append(block.register_forward_hook(self._leave))
            for module in self.others:
                self.hooks.append(module.register_forward_pre_hook(self._follow, with_kwargs=True))
        except RuntimeError as error:
            self.__exit__()
            raise ValueError(f"a module cannot be watched ({error}): audit the model before it is scripted") from error
        return self

    def __exit__(self, *_: object) -> None:
        for hook in self.hooks:
            hook.remove()

    def norms(self, batch: int) -> Tensor:
        """Row norms of h_0 .. h_L, [L+1, batch]."""
        if len(self.called) < len(self.blocks):
            raise ValueError("a block was not called: name the blocks yourself, blocks=[...]")
        shapes = [*self.shapes, self.left.shape]
        if len(kinds := {tuple(shape[1:]) for shape in shapes}) > 1:
            raise ValueError(
                f"the states differ in shape ({', '.join(map(str, sorted(kinds)))}), so their norms cannot be "
                "compared: name blocks that keep the stream's shape, blocks=[...]"
            )
        if shapes[0][0] != batch:
            raise ValueError(
                f"the states are {list(shapes[0])} for {batch} pictures: the first dimension must be the batch "
                "(for a sequence-first model, pass blocks that see it batch-first)"
            )
        return torch.stack([*self.entered, _row_norms(self.last())])

    def last(self) -> Tensor:
        """h_L, where the gradient is taken."""
        if "other" in self.handed_on:
            raise ValueError(
                "a block gets neither what the one before it returned, nor that added to what had entered it, so the "
                "stream cannot be followed: name blocks that return the stream, with whatever stands between them (a "
                "scaled skip, a norm) inside, blocks=[...]"
            )
        if set(self.handed_on) == {"passed"}:
            return self.left
        if self.added is not None:
            return self.added
        if self.passed is not None and set(self.handed_on) != {"added"}:  # one block alone
            return self.passed
        if self.strange or len(self.shapes) > 1:
            raise ValueError(
                "the last state cannot be seen: no module after the blocks gets what the last one returned, added to "
                "what had entered it where the others' were. Name blocks that return the stream, blocks=[...], or make "
                "what stands between them and the next module (a functional norm) a module"
            )
        return self.left  # one block, then pooled or flattened

    def _enter(self, block: nn.Module, arguments: tuple, named: dict[str, Any]) -> None:
        if self.inside:
            raise ValueError("a block lies inside another one: name blocks that follow each other, blocks=[...]")
        state = _first_tensor(arguments, named)
        if not state.is_floating_point():
            raise ValueError(f"a block gets {state.dtype} (tokens?): name blocks after the embedding, blocks=[...]")
        if self.left is not None:
            self.handed_on.append(self._relation(state) or "other")
        self.inside, self.passed, self.added, self.strange = True, None, None, False
        self.state = state.detach().clone()  # code after the block may add to it in place
        self.called.add(block)
        self.entered.append(_row_norms(state))
        self.shapes.append(state.shape)

    def _leave(self, block: nn.Module, _: tuple, output: Tensor) -> Tensor:
        if not isinstance(output, Tensor):
            raise ValueError(f"a block returned a {type(output).__name__}: name blocks that return one tensor")
        self.inside, self.left = False, _watched(output)
        return self.left.clone()

    def _follow(self, _: nn.Module, arguments: tuple, named: dict[str, Any]) -> tuple[tuple, dict] | None:
        given = [*arguments, *named.values()]
        if self.left is None or self.inside or self.added is not None or not isinstance(given and given[0], Tensor):
            return None
        if given[0].shape != self.left.shape or not given[0].is_floating_point():
            return None
        relation = self._relation(given[0])
        if relation is None or (relation == "passed" and self.passed is not None):
            self.strange |= relation is None
            return None
        state = _watched(given[0])
        setattr(self, relation, state)
        if arguments:
            return (state.clone(), *arguments[1:]), named
        return arguments, named | {next(iter(named)): state.clone()}

    def _relation(self, state: Tensor) -> Literal["passed", "added"] | None:
        """What a later tensor is to the last call; where it is both (not a number, or nothing entered), as before."""
        fits = {"passed": _equal(state, self.left), "added": _is_sum(state, self.state, self.left)}
        before = self.handed_on[-1] if self.handed_on else "passed"
        return before if fits.get(before) else next((name for name, it_does in fits.items() if it_does), None)


def _first_tensor(arguments: tuple, named: dict[str, Any]) -> Tensor:
    for value in (*arguments, *named.values()):
        if isinstance(value, Tensor):
            return value
    raise ValueError("a block was called without a tensor: name the blocks yourself, blocks=[...]")


def _watched(tensor: Tensor) -> Tensor:
    """The tensor as a place where the gradient can be taken, in a model without trainable parts too."""
    return tensor if tensor.requires_grad else tensor.detach().requires_grad_()


def _equal(a: Tensor, b: Tensor) -> bool:
    """Equal where not a number, too: a model that diverged still hands on its stream."""
    return a.shape == b.shape and a.dtype == b.dtype and torch.allclose(a, b, rtol=0, atol=0, equal_nan=True)


def _is_sum(total: Tensor, a: Tensor, b: Tensor) -> bool:
    """Up to the rounding of an addition in the coarsest of their types."""
    if a.shape != b.shape:
        return False
    rounding = 4 * max(torch.finfo(tensor.dtype).eps for tensor in (total, a, b))
    a, b, total = (tensor.detach().double() for tensor in (a, b, total))
    return torch.allclose(total, a + b, rtol=0, atol=rounding * _largest(a, b), equal_nan=True)


def _largest(*tensors: Tensor) -> float:
    finite = [tensor[tensor.isfinite()].abs() for tensor in tensors]
    return max((values.max().item() for values in finite if len(values)), default=0.0)


def _row_norms(tensor: Tensor) -> Tensor:
    return torch.linalg.vector_norm(tensor.detach().double().flatten(1), dim=-1)
