"""What every credit rule offers the engine, and how raw credit becomes the vector that drives a block."""

from collections.abc import Sequence
from typing import Any

import torch
from torch import Tensor

from creditaudit.engine.network import Credit, Tape
from creditaudit.engine.settings import Normalise


class Rule:
    """The engine calls `begin` once per batch, `block(l)` for l = L-1 ... 0, `embed`, and in training `learn`."""

    name: str  # in specs: dfa
    label: str  # on pages: DFA
    place = 100  # in tables and figures
    colour: str
    marker: str
    full_name: str  # for the set-up section, as is
    formula: str  # the credit in a line
    relays = False  # True: block(l) is made from block(l + 1), so frozen blocks are asked too
    chains = False  # True: the credit passes through the blocks' own Jacobians, frozen ones included
    settings: Any = None  # a rule's own, of engine/settings.py

    def __init__(self, runs: int, width: int, depth: int) -> None:
        self.runs, self.width, self.depth = runs, width, depth

    def configure(self, seeds: Sequence[int], k: int, weight_decay: float, steps: int) -> None:
        """Be told about the runs to be trained and their length; copies made for diagnostics are not told."""

    def draw(self, s: int) -> None:
        """Draw run s's random matrices from torch's global stream, right after its weights."""

    def begin(self, tape: Tape) -> None:
        """Look at a fresh forward pass."""
        self.tape = tape

    def block(self, l: int) -> Credit:
        """The raw credit that drives block l."""
        raise NotImplementedError

    def embed(self) -> Credit:
        """The raw credit that drives the embed."""
        raise NotImplementedError

    def learn(self, tape: Tape, lr: float) -> None:
        """Improve the rule itself on a batch whose credit was just used; `lr` is the run's, decayed."""

    def log(self) -> dict[str, list]:
        """What the rule has to say about the epoch that ends: name -> one entry per run."""
        return {}

    def tensors(self) -> dict[str, Tensor]:
        """Everything the rule keeps between steps, for checkpoints."""
        return {}

    def load(self, tensors: dict[str, Tensor]) -> None:
        for name, tensor in tensors.items():
            self.tensors()[name].copy_(tensor)

    def to(self, dtype: torch.dtype, device: str = "cpu", run: slice = slice(None)) -> "Rule":
        """A copy in another precision, of some of the runs; its `tensors()` are attributes of the same name."""
        copy = type(self)(len(range(self.runs)[run]), self.width, self.depth)
        for name, tensor in self.tensors().items():
            setattr(copy, name, tensor[run].to(device, dtype))
        return copy


def driving(rule: Rule, credit: Credit, normalise: Normalise, eps: float) -> Credit:
    """The gradient of the local loss mean_b <f_l, a/rms(a)>; BP's own loss is a mean over the batch already."""
    batch = rule.tape.batch
    if normalise == "none":
        return credit if rule.chains else credit.scaled(1 / batch)
    mean_square = credit.mean_square()
    if normalise == "batch":
        mean_square = mean_square.mean(1, keepdim=True)
    return credit.scaled(mean_square.sqrt_().add_(eps).mul_(batch).reciprocal_())
