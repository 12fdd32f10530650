"""`creditaudit.audit(model, x, y)`: D1, D2 and D3 for anybody's torch classifier.

The model is run as it is, and left as it was. The states h_0 .. h_L are what its blocks hand on (`stream` says where
they are seen); a block that is called twice counts twice. D1 compares states of one shape, stage by stage. D2 is read
at the last state from one backward pass, after a check that this is the gradient at all (`differences`). Nothing about
how the model was trained is needed, except for D3: the accuracy of the same model trained with its blocks frozen.
"""

import math
import sys
import warnings
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager, nullcontext, suppress
from dataclasses import dataclass, field
from html import escape
from itertools import pairwise
from typing import TYPE_CHECKING, Any

import torch
from torch import Tensor, nn
from torch.nn.functional import cross_entropy

from creditaudit.measure import conditions, differences, inputs, rules, stream
from creditaudit.measure.blocks import candidates
from creditaudit.measure.inputs import BATCH, AuditError, Batch
from creditaudit.measure.rules import D1_LIMIT, D2_FLOOR, D3_GAIN

if TYPE_CHECKING:
    import pandas as pd
    from matplotlib.figure import Figure

LOOK = 8  # samples of the pass that finds the stream


class UnsafeReading(UserWarning):
    """A number of the audit does not mean what it seems to mean; the message says why."""


@dataclass(frozen=True)
class State:
    """One state of the stream. Norms are medians over samples, of all a sample has (channels, places, tokens)."""

    name: str
    shape: tuple[int, ...]
    h_norm: float
    growth: float | None  # over the state before it; None where that has another shape
    growth_rms: float | None  # the same of the root mean square of the numbers: not the study's statistic
    g_norm: float  # of a sample's own gradient, divided by 128


@dataclass(frozen=True)
class Audit:
    """What the diagnostics say. `gain` and `d3` are None where no frozen accuracy was given."""

    blocks: list[str]  # names of the audited modules
    accuracy: float
    n: int
    states: list[State]
    growth: float  # D1: the largest growth from a state to the next of its stage
    g_norm: float  # D2: median ||dCE/dh_L|| as a mean CE over 128 pictures has it
    g_norm_per_sample: float  # the same, free of the batch size
    gain: float | None  # D3: accuracy minus the frozen model's
    reference: str  # autograd, differences; or unchecked, where the loss has no slope that could be measured
    notes: list[str] = field(default_factory=list)  # what a reader of the numbers has to know

    @property
    def h_norm(self) -> list[float]:
        return [state.h_norm for state in self.states]

    @property
    def d1(self) -> bool:
        return rules.scale_is_stable(self.growth)

    @property
    def d2(self) -> bool | None:
        return None if self.reference == "unchecked" else rules.reference_is_valid(self.g_norm)

    @property
    def d3(self) -> bool | None:
        return rules.depth_is_used(self.gain)

    @property
    def verdict(self) -> str:
        return rules.verdict(self._passes)

    @property
    def _passes(self) -> dict[str, bool | None]:
        return {"D1": self.d1, "D2": self.d2, "D3": self.d3}

    def _lines(self) -> list[tuple[str, str, bool | None]]:
        gain = "not measured: pass frozen_accuracy" if self.gain is None else f"{self.gain:+.3f}"
        return [
            ("D1 scale stability", f"growth {self.growth:.3g} (fails above {D1_LIMIT:g})", self.d1),
            (
                "D2 reference validity",
                f"||g_L|| {self.g_norm:.3g} (fails below {D2_FLOOR:g}), {self.g_norm_per_sample:.3g} per sample, "
                + ("unchecked" if self.d2 is None else f"by {self.reference}"),
                self.d2,
            ),
            ("D3 depth utility", f"{gain} (must be at least {D3_GAIN:+.2f})", self.d3),
        ]

    def __str__(self) -> str:
        rows = [f"  {name:<22} {told}" for name, told, _ in self._lines()]
        last = f"  accuracy {self.accuracy:.4f}, n = {self.n}; blocks: {', '.join(self.blocks)}"
        return "\n".join([self.verdict, *rows, last, *(f"  note: {note}" for note in self.notes)])

    def _repr_html_(self) -> str:
        words = {True: "passes", False: "<b>fails</b>", None: "open"}
        rows = "".join(
            f"<tr><th scope='row' style='text-align:left'>{name}</th><td>{words[ok]}</td>"
            f"<td style='text-align:left'>{escape(told)}</td></tr>"
            for name, told, ok in self._lines()
        )
        notes = "".join(f"<li>{escape(note)}</li>" for note in self.notes)
        about = f"accuracy {self.accuracy:.4f}, n = {self.n}; blocks: {escape(', '.join(self.blocks))}"
        return f"<p><b>{escape(self.verdict)}</b>; {about}</p><table>{rows}</table>" + (notes and f"<ul>{notes}</ul>")

    def to_dict(self, prefix: str = "") -> dict[str, float]:
        """Flat names and plain numbers, for any logger; a diagnostic is 1 where it passes. What is open is left out."""
        found: dict[str, Any] = {
            "accuracy": self.accuracy,
            "growth": self.growth,
            "g_norm": self.g_norm,
            "g_norm_per_sample": self.g_norm_per_sample,
            "gain": self.gain,
            **{name: None if ok is None else int(ok) for name, ok in self._passes.items()},
        }
        for l, state in enumerate(self.states):
            found |= {f"h_norm/{l}": state.h_norm, f"layer_g_norm/{l}": state.g_norm}
        return {prefix + name: value for name, value in found.items() if value is not None}

    def to_frame(self) -> "pd.DataFrame":
        """One row per state."""
        import pandas as pd

        rows = [vars(state) | {"shape": "×".join(map(str, state.shape))} for state in self.states]
        return pd.DataFrame(rows).rename_axis("l").reset_index()

    def plot(self) -> "Figure":
        """||h_l|| and ||g_l|| over the states; a line joins states of one shape."""
        from matplotlib.figure import Figure

        figure = Figure(figsize=(7, 2.8), layout="constrained")
        axes = figure.subplots(1, 2)
        stages = [0, *(l for l in range(1, len(self.states)) if self.states[l].growth is None), len(self.states)]
        for ax, name, label in ((axes[0], "h_norm", r"median $\|h_l\|$"), (axes[1], "g_norm", r"median $\|g_l\|$")):
            for start, stop in pairwise(stages):
                values = [getattr(state, name) for state in self.states[start:stop]]
                ax.plot(range(start, stop), values, "o-", color="0.15", markersize=4)
            ax.set(xlabel="state $l$", ylabel=label)
            ax.xaxis.get_major_locator().set_params(integer=True)
            if any(0 < getattr(state, name) < math.inf for state in self.states):
                ax.set_yscale("log")
        axes[1].axhline(D2_FLOOR, color="0.5", linestyle=":", linewidth=1)
        axes[1].annotate(f"D2 fails below {D2_FLOOR:g}", (0, D2_FLOOR), va="bottom", fontsize=8, color="0.4")
        figure.suptitle(self.verdict, fontsize=10)
        return figure


def audit(
    model: nn.Module,
    x: Any,
    y: Tensor | None = None,
    blocks: Sequence[nn.Module | str] | None = None,
    frozen_accuracy: float | None = None,
) -> Audit:
    """D1-D3 of a classifier that returns logits [n, classes] (or an object that has `logits`) for test data.

    `x` is a tensor [n, ...] or a mapping of keywords, with labels `y` [n]; or, alone, a DataLoader of pairs (x, y) or
    of mappings with labels. `blocks` are the modules (or their names) between which the states are; by default the
    class of modules that repeats most, and in a plain chain its weight layers.
    """
    inputs.check_model(model)
    frozen = inputs.fraction(frozen_accuracy, "frozen_accuracy")
    with as_it_was(model):
        given = inputs.batches(model, x, y)
        first = next(given)
        path = find_path(model, blocks, first)
        reference = differences.check(model, path, first)
        parts = [_examine(model, path, batch, reference) for batch in _chained(first, given)]
        g_norms = _gradient_norms(model, path, first, reference, torch.cat([part[1] for part in parts], -1))
    h, hits = (torch.cat([part[i] for part in parts], -1) for i in (0, 2))
    h_norm, shapes, types = h.median(1).values, parts[0][3], set().union(*(part[4] for part in parts))
    states = _states(path, h_norm.tolist(), shapes, [norm / BATCH for norm in g_norms])
    growths = [state.growth for state in states if state.growth is not None]
    by_rms = [state.growth_rms for state in states if state.growth_rms is not None]
    notes = _notes(path, reference, types, bool(growths))
    for note in notes:
        warnings.warn(note, UnsafeReading, stacklevel=2)
    accuracy = hits.double().mean().item()
    return Audit(
        blocks=path.names,
        accuracy=accuracy,
        n=len(hits),
        states=states,
        growth=_largest(growths or by_rms),
        g_norm=states[-1].g_norm,
        g_norm_per_sample=g_norms[-1],
        gain=None if frozen is None else accuracy - frozen,
        reference="differences" if not reference.last else "autograd" if reference.checked else "unchecked",
        notes=notes,
    )


def reporting_table(audits: Mapping[str, Audit]) -> "pd.DataFrame":
    """One row per model, ready for `.to_latex(index=False, escape=True)`."""
    import pandas as pd

    rows = {
        name: {
            "accuracy": f"{seen.accuracy:.3f}",
            "n": seen.n,
            "D1 growth": f"{seen.growth:.3g}",
            "D2 gradient norm": f"{seen.g_norm:.2g}",
            "D3 gain (pp)": "" if seen.gain is None else f"{100 * seen.gain:+.1f}",
            "verdict": seen.verdict,
            "reference": seen.reference,
        }
        for name, seen in audits.items()
    }
    return pd.DataFrame.from_dict(rows, orient="index").rename_axis("model").reset_index()


@contextmanager
def as_it_was(model: nn.Module) -> Iterator[None]:
    """In eval mode and with gradients, whatever surrounds it; afterwards every module has its own mode back."""
    modes = {module: module.training for module in model.modules()}
    compiles = "torch._dynamo" in sys.modules  # compiled code would not see that it is watched
    eager = torch.compiler.set_stance("force_eager") if compiles else nullcontext()
    model.eval()
    try:
        with torch.inference_mode(False), torch.enable_grad(), eager:
            yield
    finally:
        model.train(modes[model])  # for modules that do more than set a flag
        for module, mode in modes.items():
            module.training = mode


def find_path(model: nn.Module, blocks: Sequence[nn.Module | str] | None, first: Batch) -> stream.Path:
    look = first.part(0, LOOK)
    conditions.check_function(model, look)
    *finer, last = candidates(model, blocks, look)
    for found in finer:
        with suppress(AuditError):
            return _path(model, found, look, False)
    return _path(model, last, look, blocks is not None)


def _path(model: nn.Module, blocks: list[nn.Module], look: Batch, named: bool) -> stream.Path:
    path = stream.observe(model, blocks, look, named)
    conditions.check_chain(model, path, look)
    return path


def _chained(first: Batch, rest: Iterator[Batch]) -> Iterator[Batch]:
    yield first
    yield from rest


def _examine(model: nn.Module, path: stream.Path, batch: Batch, reference: differences.Reference) -> tuple:
    """Row norms of h_0..h_L and of every sample's own gradients there, both [L+1, n]; hits [n], shapes and types."""
    with stream.Passage(path, probe=True) as seen:
        logits = inputs.run(model, batch)
    seen.check()
    h = torch.stack(seen.norms)
    g = torch.full_like(h, torch.nan)
    if reference.last or reference.lower:
        # the sum, not the mean, of the losses: a sample's gradient is then its own, whatever the batch
        gradients, _ = differences.autograd(cross_entropy(logits, batch.y, reduction="sum"), seen)
        g = torch.stack([torch.linalg.vector_norm(gradient, dim=-1) for gradient in gradients])
    return h, g, logits.argmax(-1) == batch.y, seen.shapes, seen.types | {logits.dtype}


def _gradient_norms(
    model: nn.Module, path: stream.Path, first: Batch, reference: differences.Reference, g: Tensor
) -> list[float]:
    """Medians; by differences on the first samples where autograd returns something else than the gradient."""
    norms, last = g.median(1).values.tolist(), len(g) - 1
    wrong = ([] if reference.lower else list(range(last))) + ([] if reference.last else [last])
    if wrong:
        losses = differences.Losses(model, path, first.part(0, differences.SAMPLES))
        for l in wrong:
            count = differences.DIRECTIONS if l == last else differences.LOWER_DIRECTIONS
            norms[l] = differences.gradient_norms(losses, l, count).median().item()
    return norms


def _states(path: stream.Path, h: list[float], shapes: list[torch.Size], g: list[float]) -> list[State]:
    states = []
    for l, place in enumerate(path.places):
        growth = by_rms = None
        if l:
            ratio = h[l] / h[l - 1] if h[l - 1] else math.nan
            growth = ratio if shapes[l] == shapes[l - 1] else None
            by_rms = ratio * math.sqrt(shapes[l - 1].numel() / shapes[l].numel())
        states.append(State(place.name, tuple(shapes[l]), h[l], growth, by_rms, g[l]))
    return states


def _largest(values: list[float]) -> float:
    """Not a number if any is; Python's max would hide it."""
    return math.nan if any(math.isnan(value) for value in values) else max(values)


def _notes(path: stream.Path, reference: differences.Reference, types: set[torch.dtype], has_stages: bool) -> list[str]:
    notes = []
    if not reference.last:
        why = reference.reason or f"it is off by {reference.mismatch:.2g} times the gradient"
        notes.append(
            "what autograd returns at the last state is not the gradient of the loss, as where a library replaces "
            f"backward: {why}. D2 is measured by differences of the loss along random directions on up to "
            f"{differences.SAMPLES} samples"
        )
    elif not reference.lower:
        notes.append(
            "what autograd returns before the last state is not the gradient of the loss, as where a library replaces "
            "backward: g_norm there is measured by differences of the loss; D2 is not touched by it"
        )
    elif not reference.checked:
        notes.append(
            "the loss jumps when the last state is moved (a sign or a rounding behind it?), so that what autograd "
            "returns there could not be checked by differences: D2 is left open"
        )
    if not has_stages:
        notes.append(
            "no two states that follow each other have the same shape: D1 is judged by the growth of the root mean "
            "square of their numbers, which is not the study's statistic"
        )
    if path.growth_before_norm:
        notes.append(
            "the blocks end in a norm (post-norm), which sets the scale of what leaves them: D1 is nearly blind here. "
            f"What enters that norm is up to {_largest(path.growth_before_norm):.3g} times as long as what entered "
            "the block"
        )
    if half := sorted(str(kind).removeprefix("torch.") for kind in types & differences.HALF):
        notes.append(
            f"the model computes in {', '.join(half)}: norms are good to about 1 %, a gradient may have been rounded "
            "away. Audit it in float32 where the reading is near a limit"
        )
    return notes
