"""`creditaudit.audit(model, x, y)`: D1, D2 and D3 for anybody's torch classifier.

The model is run as it is, and left as it was. The states h_0 .. h_L are what its blocks hand on (`stream` says where
they are seen); a block that is called twice counts twice. D1 compares states of one shape, stage by stage. D2 is read
at the last state from one backward pass, after a check that this is the gradient at all (`differences`). Nothing about
how the model was trained is needed, except for D3: the accuracy of the same model trained with its blocks frozen.
"""

import math
import warnings
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any

import torch
from torch import Tensor, nn
from torch.nn.functional import cross_entropy

from creditaudit.measure import differences, inputs, rich, rules
from creditaudit.measure.conditions import LOOK, as_it_was, bounded, find_path
from creditaudit.measure.inputs import BATCH, HALF, AuditError, Batch, Sample
from creditaudit.measure.passage import Passage, Path
from creditaudit.measure.rules import D1_LIMIT, D2_FLOOR, D3_GAIN

if TYPE_CHECKING:
    import pandas as pd
    from matplotlib.figure import Figure



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


@dataclass(frozen=True, repr=False)
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
    def by_rms(self) -> bool:
        """Whether no two states of one shape follow each other, so that D1 is not the study's."""
        return all(state.growth is None for state in self.states)

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
    def passes(self) -> dict[str, bool | None]:
        return {"D1": self.d1, "D2": self.d2, "D3": self.d3}

    @property
    def verdict(self) -> str:
        return rules.verdict(self.passes)

    def __repr__(self) -> str:
        how = "unchecked" if self.d2 is None else f"by {self.reference}"
        g_norms = f"{self.g_norm:.3g} (fails below {D2_FLOOR:g}), {self.g_norm_per_sample:.3g} per sample"
        gain = "not measured: pass frozen_accuracy" if self.gain is None else f"{self.gain:+.3f}"
        lines = [
            self.verdict,
            f"  D1 scale stability     growth {self.growth:.3g} (fails above {D1_LIMIT:g})",
            f"  D2 reference validity  ||g_L|| {g_norms}, {how}",
            f"  D3 depth utility       {gain} (must be at least {D3_GAIN:+.2f})",
            f"  accuracy {self.accuracy:.4f}, n = {self.n}; blocks: {', '.join(self.blocks)}",
        ]
        return "\n".join([*lines, *(f"  note: {note}" for note in self.notes)])

    def to_dict(self, prefix: str = "") -> dict[str, float]:
        """Flat names and plain numbers, for any logger; a diagnostic is 1 where it passes. What is open is left out.

        A logger takes no words: `reference_by_differences` and `growth_by_rms` are 0 or 1, `notes` counts the caveats.
        """
        found = {name: getattr(self, name) for name in ("accuracy", "growth", "g_norm", "g_norm_per_sample", "gain")}
        found |= {name: None if passed is None else int(passed) for name, passed in self.passes.items()}
        found |= {"reference_by_differences": int(self.reference == "differences"), "growth_by_rms": int(self.by_rms)}
        found |= {"notes": len(self.notes)}
        for l, state in enumerate(self.states):
            found |= {f"h_norm/{l}": state.h_norm, f"layer_g_norm/{l}": state.g_norm}
        return {prefix + name: value for name, value in found.items() if value is not None}

    def _repr_html_(self) -> str:
        import pandas as pd

        judged = {
            "": list(self.passes),
            "of": ["growth", "‖g_L‖", "gain"],
            "measured": [self.growth, self.g_norm, self.gain],
            "limit": [f"≤ {D1_LIMIT:g}", f"≥ {D2_FLOOR:g}", f"≥ {D3_GAIN:+g}"],
            "result": [{True: "passes", False: "fails", None: "open"}[passed] for passed in self.passes.values()],
        }
        head = f"{self.verdict}: accuracy {self.accuracy:.4f}, n = {self.n}, gradient by {self.reference}"
        return rich.page(head, [pd.DataFrame(judged), self.to_frame()], self.notes)

    def to_frame(self) -> "pd.DataFrame":
        """One row per state."""
        import pandas as pd

        rows = [vars(state) | {"shape": "×".join(map(str, state.shape))} for state in self.states]
        return pd.DataFrame(rows).rename_axis("l").reset_index()

    def plot(self) -> "Figure":
        """||h_l|| and ||g_l|| over the states; a line joins states of one shape."""
        from matplotlib.figure import Figure

        frame, figure = self.to_frame(), Figure(figsize=(7, 2.8), layout="constrained")
        axes = figure.subplots(1, 2)
        for ax, name in zip(axes, ("h_norm", "g_norm"), strict=True):
            for _, stage in frame.groupby(frame.growth.isna().cumsum()):
                ax.plot(stage.l, stage[name], "o-", color="0.15", markersize=4)
            ax.set(xlabel="state $l$", ylabel=rf"median $\|{name[0]}_l\|$")
            ax.xaxis.get_major_locator().set_params(integer=True)
            if frame[name].between(0, math.inf, inclusive="neither").any():
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
        look, given = inputs.opening(inputs.batches(model, x, y), LOOK)
        path = find_path(model, blocks, look)
        reference, blind = differences.check(model, path, look), bounded(model, path, look)
        sample, parts = Sample(differences.SAMPLES), []
        for batch in given:
            parts.append(_examine(model, path, batch, reference))
            if not (reference.last and reference.lower):
                sample.add(batch)
        g_norms = _gradient_norms(model, path, sample, reference, torch.cat([part[1] for part in parts], -1))
    h, hits = (torch.cat([part[i] for part in parts], -1) for i in (0, 2))
    h_norm, shapes, types = h.median(1).values, parts[0][3], set().union(*(part[4] for part in parts))
    states = _states(path, h_norm.tolist(), shapes, [norm / BATCH for norm in g_norms])
    growths = [state.growth for state in states if state.growth is not None]
    by_rms = [state.growth_rms for state in states if state.growth_rms is not None]
    notes = _notes(path, reference, types, bool(growths), min(len(hits), differences.SAMPLES), blind)
    for note in notes:
        warnings.warn(note, UnsafeReading, stacklevel=2)
    accuracy = hits.double().mean().item()
    return Audit(
        blocks=path.names,
        accuracy=accuracy,
        n=len(hits),
        states=states,
        growth=rules.largest(growths or by_rms),
        g_norm=states[-1].g_norm,
        g_norm_per_sample=g_norms[-1],
        gain=None if frozen is None else accuracy - frozen,
        reference="differences" if not reference.last else "autograd" if reference.checked else "unchecked",
        notes=notes,
    )


def reporting_table(audits: Mapping[str, Audit]) -> "pd.DataFrame":
    """One row per model, ready for `.to_latex(index=False, escape=True)`."""
    import pandas as pd

    if not isinstance(audits, Mapping) or not all(isinstance(seen, Audit) for seen in audits.values()):
        kind = type(audits).__name__
        raise AuditError(f"reporting_table takes audits by name, {{'mine': audit(model, x, y)}}; this is a {kind}")

    rows = {
        name: {
            "accuracy": f"{seen.accuracy:.3f}",
            "n": seen.n,
            "D1 growth": f"{seen.growth:.3g}{' (RMS)' * seen.by_rms}",
            "D2 gradient norm": f"{seen.g_norm:.2g}",
            "D3 gain (pp)": "" if seen.gain is None else f"{100 * seen.gain:+.1f}",
            "verdict": seen.verdict,
            "reference": seen.reference,
            "notes": "; ".join(note.partition(":")[0] for note in seen.notes),
        }
        for name, seen in audits.items()
    }
    return pd.DataFrame.from_dict(rows, orient="index").rename_axis("model").reset_index()


def _examine(model: nn.Module, path: Path, batch: Batch, reference: differences.Reference) -> tuple:
    """Row norms of h_0..h_L and of every sample's own gradients there, both [L+1, n]; hits [n], shapes and types."""
    seen = Passage(path, probe=True)
    logits = seen.run(model, batch)
    seen.check()
    h = torch.stack(seen.norms)
    g = torch.full_like(h, torch.nan)
    if reference.last or reference.lower:
        # the sum, not the mean, of the losses: a sample's gradient is then its own, whatever the batch
        gradients = seen.gradients(cross_entropy(logits, batch.y, reduction="sum"))
        g = torch.stack([torch.linalg.vector_norm(gradient, dim=-1) for gradient in gradients])
    return h, g, logits.argmax(-1) == batch.y, seen.shapes, seen.types | {logits.dtype}


def _gradient_norms(
    model: nn.Module, path: Path, sample: Sample, reference: differences.Reference, g: Tensor
) -> list[float]:
    """Medians; by differences on some samples where autograd returns something else than the gradient."""
    norms, last = g.median(1).values.tolist(), len(g) - 1
    wrong = ([] if reference.lower else list(range(last))) + ([] if reference.last else [last])
    if wrong:
        losses = [differences.Losses(model, path, batch) for batch in sample.batches]
        for l in wrong:
            count = differences.DIRECTIONS if l == last else differences.LOWER_DIRECTIONS
            norms[l] = torch.cat([differences.gradient_norms(each, l, count) for each in losses]).median().item()
    return norms


def _states(path: Path, h: list[float], shapes: list[torch.Size], g: list[float]) -> list[State]:
    states = []
    for l, place in enumerate(path.places):
        growth = by_rms = None
        if l:
            ratio = h[l] / h[l - 1] if h[l - 1] else math.nan
            growth = ratio if shapes[l] == shapes[l - 1] else None
            by_rms = ratio * math.sqrt(shapes[l - 1].numel() / shapes[l].numel())
        states.append(State(place.name, tuple(shapes[l]), h[l], growth, by_rms, g[l]))
    return states


def _notes(
    path: Path,
    reference: differences.Reference,
    types: set[torch.dtype],
    has_stages: bool,
    sampled: int,
    blind: list[str],
) -> list[str]:
    """Each begins with what it is about, for a table."""
    wrong = "what autograd returns {} is not the gradient of the loss, as where a library replaces backward"
    half = sorted(str(kind).removeprefix("torch.") for kind in types & HALF)
    notes = []
    if not reference.last:
        why = reference.reason or f"it is off by {reference.mismatch:.2g} times the gradient"
        notes.append(
            f"gradient by differences: {wrong.format('at the last state')}: {why}. D2 is measured by differences of "
            f"the loss along random directions on {sampled} of the samples"
        )
    elif not reference.lower:
        notes.append(
            f"lower gradients by differences: {wrong.format('before the last state')}: g_norm there is measured by "
            "differences of the loss; D2 is not touched by it"
        )
    elif not reference.checked:
        notes.append(
            "gradient unchecked: the loss jumps when the last state is moved (a sign or a rounding behind it?), so "
            "that what autograd returns there could not be checked by differences: D2 is left open"
        )
    if not has_stages:
        notes.append(
            "growth by RMS: no two states that follow each other have the same shape, and D1 is judged by the growth "
            "of the root mean square of their numbers, which is not the study's statistic"
        )
    if path.growth_before_norm or blind:
        where = f" ({', '.join([*blind[:3], *['...'] * (len(blind) > 3)])})" if blind else ""
        notes.append(
            "D1 nearly blind: a norm at the end of the blocks (post-norm), or a saturation, sets the length of the "
            f"states{where}, however long what comes before is"
        )
    if path.growth_before_norm:
        notes[-1] += (
            f". What enters that norm is up to {rules.largest(path.growth_before_norm):.3g} times as long as what "
            "entered the block"
        )
    if half:
        notes.append(
            f"{', '.join(half)}: the model computes in it, so that norms are good to about 1 % and a gradient may have "
            "been rounded away. Audit it in float32 where the reading is near a limit"
        )
    return notes
