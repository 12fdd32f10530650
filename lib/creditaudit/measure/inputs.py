"""What a person may hand to the audit: tensors, keywords, a DataLoader; and what a model may return."""

from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from contextlib import ExitStack
from dataclasses import dataclass
from itertools import chain
from typing import Any

import torch
from torch import Tensor, nn
from torch.nn.parameter import is_lazy
from torch.utils.data import Dataset, RandomSampler, SubsetRandomSampler, WeightedRandomSampler

from creditaudit.mistakes import Mistake

BATCH = 128  # the study's: ||g_L|| of a mean loss shrinks with the batch
HALF = {torch.float16, torch.bfloat16}
LABELS = ("labels", "label", "targets", "target", "y")  # how batches that are mappings name the classes


class AuditError(Mistake, ValueError):
    """The model or its input cannot be audited; the message says why, and what to do."""


@dataclass(frozen=True)
class Batch:
    """Inputs as the model is called with them, and labels."""

    arguments: tuple[Tensor, ...]
    named: dict[str, Any]
    y: Tensor

    def __len__(self) -> int:
        return len(self.y)

    @property
    def tensors(self) -> list[Tensor]:
        return [value for value in (*self.arguments, *self.named.values()) if isinstance(value, Tensor)]

    def part(self, start: int, stop: int) -> "Batch":
        return self._each(lambda tensor: tensor[start:stop] if self._has_rows(tensor) else tensor)

    def rows(self, which: Tensor) -> "Batch":
        """Copied, so that the rest can be forgotten."""
        return self._each(lambda tensor: tensor[which.to(tensor.device)] if self._has_rows(tensor) else tensor)

    def repeated(self, copies: int) -> "Batch":
        return self._each(lambda tensor: torch.cat([tensor] * copies) if self._has_rows(tensor) else tensor)

    def to(self, target: torch.device) -> "Batch":
        return self._each(lambda tensor: tensor.to(target))

    def double(self) -> "Batch":
        return self._each(lambda tensor: tensor.double() if tensor.is_floating_point() else tensor)

    def fits(self, other: "Batch") -> bool:
        """Whether both can be run as one."""
        ours, theirs = ({**dict(enumerate(each.arguments)), **each.named} for each in (self, other))
        return ours.keys() == theirs.keys() and all(self._alike(ours[key], other, theirs[key]) for key in ours)

    def _alike(self, ours: Any, other: "Batch", theirs: Any) -> bool:
        if not isinstance(ours, Tensor) or not isinstance(theirs, Tensor):
            return type(ours) is type(theirs) and ours == theirs
        if self._has_rows(ours) and other._has_rows(theirs):
            return ours.dtype == theirs.dtype and ours.shape[1:] == theirs.shape[1:]
        return not self._has_rows(ours) and torch.equal(ours, theirs)

    def _has_rows(self, tensor: Tensor) -> bool:
        return bool(tensor.dim()) and len(tensor) == len(self)

    def _each(self, change: Callable[[Tensor], Tensor]) -> "Batch":
        def changed(value: Any) -> Any:
            return change(value) if isinstance(value, Tensor) else value

        named = {name: changed(value) for name, value in self.named.items()}
        return Batch(tuple(map(changed, self.arguments)), named, change(self.y))


def check_model(model: nn.Module) -> None:
    if not isinstance(model, nn.Module):
        raise AuditError(f"model is a {type(model).__name__}: audit watches the modules of an nn.Module")
    if any(map(is_lazy, chain(model.parameters(), model.buffers()))):
        raise AuditError("the model has lazy layers without weights: run it once on a batch, model(x), then audit it")
    if any(parameter.is_inference() for parameter in model.parameters()):
        raise AuditError("the model was built under torch.inference_mode, so it has no gradients: build it outside")


def batches(model: nn.Module, x: Any, y: Tensor | None) -> Iterator[Batch]:
    """Batches of at most 128 on the model's device: from tensors, from a mapping of keywords, from a loader's pairs."""
    device = next((parameter.device for parameter in model.parameters()), torch.device("cpu"))
    if device.type == "meta":
        raise AuditError("the model is on the meta device, where tensors hold no numbers: load its weights first")
    found = False
    for batch in _given(x, y):
        for start in range(0, len(batch), BATCH):
            found = True
            yield batch.part(start, start + BATCH).to(device)
    if not found:
        raise AuditError("there is not a single picture to audit with: the loader gave no batch")


def joined(parts: Iterable[Batch]) -> list[Batch]:
    """Those that can be run as one in one batch: all of them, but where sequences differ in length."""
    groups: list[list[Batch]] = []
    for part in parts:
        group = next((group for group in groups if group[0].fits(part)), None)
        if group is None:
            groups.append([part])
        else:
            group.append(part)
    return [_concatenated(group) for group in groups]


def _concatenated(group: list[Batch]) -> Batch:
    first, y = group[0], torch.cat([batch.y for batch in group])

    def whole(values: Sequence[Any]) -> Any:
        has_rows = isinstance(values[0], Tensor) and first._has_rows(values[0])
        return torch.cat(list(values)) if has_rows else values[0]

    named = {name: whole([batch.named[name] for batch in group]) for name in first.named}
    return Batch(tuple(map(whole, zip(*(batch.arguments for batch in group), strict=True))), named, y)


def opening(given: Iterator[Batch], count: int) -> tuple[Batch, Iterator[Batch]]:
    """A batch of `count` samples of the beginning (or more; fewer where they do not fit together), and all of it."""
    taken: list[Batch] = []
    while sum(map(len, taken)) < count and (batch := next(given, None)) is not None:
        taken.append(batch)
    return max(joined(taken), key=len), chain(taken, given)


class Sample:
    """Up to so many samples, drawn evenly from all that are shown to it."""

    def __init__(self, count: int) -> None:
        self.count, self.generator = count, torch.Generator().manual_seed(0)
        self.parts: list[tuple[Batch, Tensor]] = []  # each sample with a number that is drawn: the smallest stay

    def add(self, batch: Batch) -> None:
        self.parts.append((batch, torch.rand(len(batch), generator=self.generator, dtype=torch.float64)))
        drawn = torch.cat([numbers for _, numbers in self.parts])
        bound = drawn.sort().values[: self.count][-1]
        kept = [(part, numbers, numbers <= bound) for part, numbers in self.parts]
        self.parts = [(part.rows(stays), numbers[stays]) for part, numbers, stays in kept if stays.any()]

    @property
    def batches(self) -> list[Batch]:
        return joined(part for part, _ in self.parts)


def is_shuffled(x: Any) -> bool:
    samplers = (getattr(x, "sampler", None), getattr(getattr(x, "batch_sampler", None), "sampler", None))
    return any(isinstance(sampler, RandomSampler | SubsetRandomSampler | WeightedRandomSampler) for sampler in samplers)


def _given(x: Any, y: Tensor | None) -> Iterator[Batch]:
    if isinstance(x, Mapping) or y is not None or isinstance(x, Tensor):
        yield _checked(x, y)
        return
    if isinstance(x, Dataset):
        raise AuditError(f"x is a {type(x).__name__}: wrap it, DataLoader(dataset, {BATCH})")
    if not isinstance(x, Iterable):
        raise AuditError(f"x is a {type(x).__name__}: audit takes tensors x and y, or a loader of (x, y) pairs")
    for item in x:
        if isinstance(item, Mapping):
            yield _checked(item, None)
        elif isinstance(item, tuple | list) and len(item) == 2:
            yield _checked(*item)
        else:
            what, several = type(item).__name__, isinstance(item, tuple | list)
            what += f" of {len(item)}" if several else ""
            instead = "; pass ((x, y) for x, y, *_ in loader)" if several and len(item) > 2 else ""
            raise AuditError(
                f"the loader gives a {what}: audit takes pairs (x, y), or mappings with {LABELS[0]!r}{instead}"
            )


def _checked(x: Any, y: Tensor | None) -> Batch:
    named = dict(x) if isinstance(x, Mapping) else {}
    if y is None:
        y = next((named.pop(name) for name in LABELS if name in named), None)
    if y is None and isinstance(x, Mapping):
        raise AuditError(f"the batch has no labels: pass y, or a mapping with one of {', '.join(LABELS)}")
    if y is None:
        raise AuditError("y is missing: audit takes tensors x [n, ...] and y [n], or a loader of (x, y) pairs")
    arguments = {} if isinstance(x, Mapping) else {"x": x}
    for name, value in {**arguments, "y": y}.items():
        if not isinstance(value, Tensor):
            raise AuditError(f"{name} is a {type(value).__name__}: audit takes tensors, x [n, ...] and y [n]")
    if y.dim() != 1 or y.is_floating_point() or y.dtype == torch.bool:
        raise AuditError(f"y must hold one class number per picture, [n] integers; it is {list(y.shape)} of {y.dtype}")
    for name, value in named.items():
        if isinstance(value, Iterable) and not isinstance(value, Tensor | str):
            kind = type(value).__name__
            raise AuditError(f"{name!r} is a {kind}: audit takes tensors with a row per picture, [n, ...]")
    batch = Batch(tuple(arguments.values()), named, y.long())
    tensors = [tensor for tensor in batch.tensors if tensor.dim()]
    if not len(y) or not tensors or len(tensors[0]) != len(y):
        counted = len(tensors[0]) if tensors else 0
        raise AuditError(f"{counted} pictures and {len(y)} labels: there must be as many of each, and at least one")
    if any(tensor.is_meta for tensor in tensors) or y.is_meta:
        raise AuditError("x or y is on the meta device, where tensors hold no numbers: pass them from the CPU or a GPU")
    if any(tensor.is_floating_point() and not tensor.isfinite().all() for tensor in tensors):
        raise AuditError("x holds values that are not finite: what fails would be the pictures, not the model")
    return batch._each(lambda tensor: tensor.clone() if tensor.is_inference() else tensor)


def run(
    model: nn.Module,
    batch: Batch,
    weights: dict[str, Tensor] | None = None,
    before: Iterable[tuple[nn.Module, Callable]] = (),
    after: Iterable[tuple[nn.Module, Callable]] = (),
) -> Tensor:
    """The logits, with the model's own weights or with others in their place; hooks stay for this pass only."""
    with ExitStack() as hooks:
        try:
            for module, hook in before:
                hooks.enter_context(module.register_forward_pre_hook(hook, with_kwargs=True))
            for module, hook in after:
                hooks.enter_context(module.register_forward_hook(hook))
        except RuntimeError as error:
            raise AuditError(f"a module cannot be watched ({error}): audit the model before it is scripted") from error
        try:
            if weights is None:
                output = model(*batch.arguments, **batch.named)
            else:
                output = torch.func.functional_call(model, weights, batch.arguments, batch.named, tie_weights=False)
        except Mistake:
            raise
        except Exception as error:
            given = ", ".join(f"{list(tensor.shape)} {tensor.dtype}" for tensor in batch.tensors)
            why = f"{type(error).__name__}: {error}".splitlines()[0]
            raise AuditError(f"the model does not run on the given {given}: {why}") from error
    return _logits(output, batch.y)


def _logits(output: Any, y: Tensor) -> Tensor:
    named = output.get("logits") if isinstance(output, Mapping) else getattr(output, "logits", None)
    output = output if named is None else named
    if isinstance(output, tuple | list):  # a loss may stand first
        output = [part for part in output if isinstance(part, Tensor) and part.dim()]
        flat = [str(list(part.shape)) for part in output if part.dim() == 2]
        if len(flat) > 1:
            both = " and ".join(flat)
            raise AuditError(f"the model returns {both}, any of which may be the logits: have it return them alone")
        output = output[0] if output else None
    if not isinstance(output, Tensor) or output.dim() != 2 or len(output) != len(y):
        seen = list(output.shape) if isinstance(output, Tensor) else type(output).__name__
        raise AuditError(f"the model must return logits [n, classes]; for {len(y)} pictures it returned {seen}")
    if not output.is_floating_point():
        raise AuditError(f"the model returned {output.dtype}: audit needs logits, not class numbers")
    if output.shape[1] < 2:
        raise AuditError("the model has one output: audit takes the cross-entropy of two or more logits")
    if y.min() < 0 or y.max() >= output.shape[1]:
        raise AuditError(f"labels run from {y.min()} to {y.max()}, but the model has {output.shape[1]} outputs")
    rows, close = output.detach().double(), max(1e-4, 4 * torch.finfo(output.dtype).eps)
    if (rows >= 0).all() and torch.allclose(rows.sum(1), rows.new_ones(()), atol=close):
        raise AuditError("the model's outputs are probabilities: audit needs the logits before the softmax")
    return output


def fraction(value: Any, name: str) -> float | None:
    """Numbers of numpy and torch are numbers too."""
    if value is None:
        return None
    try:
        if not isinstance(value, str) and 0 <= float(value) <= 1:
            return float(value)
    except (TypeError, ValueError, RuntimeError):
        pass
    raise AuditError(f"{name} = {value!r} is not in 0..1: a fraction, not a percentage")
