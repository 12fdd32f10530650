"""What a run costs, before it is run: arithmetic per step, and seconds by the speed of this project's own records."""

import os
from collections import Counter
from collections.abc import Iterable
from dataclasses import dataclass
from statistics import median

from creditaudit.engine.pictures import CLASSES, PIXELS
from creditaudit.engine.spec import RunSpec
from creditaudit.runs.records import Record

UNMEASURED_GFLOPS, UNMEASURED_FLOAT64_GFLOPS = 90.0, 25.0  # effective, one core, used until a record tells better
MOVED = 4 * 128 * 32  # pictures of four test batches moved in 32 directions: what the diagnostics of rho pass on


def step_flops(spec: RunSpec) -> float:
    """Useful floating-point operations of one training step, dense: what a GEMM-only machine would have to do."""
    if spec.network != "resmlp":  # local methods pass forward twice; autograd goes back through every block
        return (4 if spec.method != "bp" else 3) * forward_flops(spec, spec.batch)
    block, embed, head = _products(spec, spec.batch)
    # per trained block: dW1, dW2, and the pull through W2; chained credit costs one GEMM more per block
    backward = embed + 3 * spec.k * block + 2 * head
    if spec.method == "bp":
        backward += spec.depth * block + (spec.depth - spec.k) * block
    elif spec.method == "fa":
        backward += spec.depth * block
    return forward_flops(spec, spec.batch) + backward + _credit_flops(spec, block)


def forward_flops(spec: RunSpec, pictures: int) -> float:
    if spec.network != "resmlp":
        return pictures * _module_flops(spec)
    block, embed, head = _products(spec, pictures)
    return embed + 2 * spec.depth * block + head


def _module_flops(spec: RunSpec) -> float:
    """Of a picture's way through the other networks: weights of a block times the places at which they are used."""
    inner = spec.hidden or spec.width
    weights, places = {
        "vit": (4 * spec.width**2 + 2 * spec.width * inner, 17),
        "conv": (2 * 9 * spec.width * inner, 64),
    }[spec.network]
    return 2.0 * places * (spec.depth * weights + 3 * 64 * spec.width)


def _products(spec: RunSpec, pictures: int) -> tuple[int, int, int]:
    """One matrix product of a block, of the embed, of the head."""
    columns, inner = 2 * pictures * spec.width, spec.hidden or spec.width
    return columns * inner, columns * PIXELS, columns * CLASSES


def _credit_flops(spec: RunSpec, block: float) -> float:
    """What a learned rule adds: passes of its perceptron, or EP's sweeps (a VJP and a forward of every block each)."""
    states, settings = 2 * spec.batch * spec.depth, spec.rule_settings
    if spec.method == "ep":
        return 4 * settings.sweeps * spec.depth * block
    if spec.method == "sb":  # forward, credit, weight gradients; one pull less where the input's gradient is not needed
        layer = spec.width**2
        return states * layer * (4 * settings.layers - 1)
    if spec.method == "cb":  # credit at all states; slow copies; one transition per sample, terminal, its matching
        net = (spec.width + settings.hidden) * settings.hidden
        return net * (2 * states + 2 * spec.batch * (settings.copies + 2 * 3 + 3))
    return 0.0


def usual_cpu(records: Iterable[Record]) -> str | None:
    """The kind of CPU that made most of the records: a core-second is worth another amount of work on every kind."""
    kinds = Counter(record.provenance.get("cpu", "") for record in records)
    return kinds.most_common(1)[0][0] if kinds else None


def diagnostics_flops(spec: RunSpec) -> float:
    """Of the end of a run: the moved states of every layer pass through the blocks above it, in float64."""
    if spec.network != "resmlp":
        return 6 * forward_flops(spec, 10 * 128)  # norms and cosines alone
    block, _, _ = _products(spec, MOVED)
    return 2 * block * spec.depth * (spec.depth + 1)


@dataclass(frozen=True)
class Estimate:
    """Core-seconds of one epoch, and of the diagnostics that close the run."""

    epoch: float
    closing: float
    epochs: int

    @property
    def total(self) -> float:
        return self.epochs * self.epoch + self.closing


def estimate(spec: RunSpec, measured: Iterable[Record] = ()) -> Estimate:
    """In core-seconds of the usual CPU; its records of the same shape and method calibrate, else any of its."""
    measured = list(measured)
    cpu = usual_cpu(measured)
    finished = [record for record in measured if record.provenance.get("cpu", "") == cpu]
    shaped = [r for r in finished if r.spec.width == spec.width]
    alike = [r for r in shaped if r.spec.method == spec.method] or finished
    speeds = [step_flops(r.spec) * r.spec.steps / (r.provenance["cpu_seconds"] - _closing(r)) for r in alike]
    alike = [r for r in shaped if r.spec.depth == spec.depth] or finished
    closing_speeds = [diagnostics_flops(r.spec) / _closing(r) for r in alike if _closing(r)]
    training = step_flops(spec) * spec.steps / (median(speeds) if speeds else UNMEASURED_GFLOPS * 1e9)
    speed = median(closing_speeds) if closing_speeds else UNMEASURED_FLOAT64_GFLOPS * 1e9
    return Estimate(training / spec.epochs, diagnostics_flops(spec) / speed, spec.epochs)


def cpu_seconds(spec: RunSpec, measured: Iterable[Record] = ()) -> float:
    return estimate(spec, measured).total


def _closing(record: Record) -> float:
    return record.provenance.get("diagnostics_cpu_seconds", 0.0)


def cores() -> int:
    """Those this process may use: fewer than the machine's in a container or under a scheduler."""
    return len(os.sched_getaffinity(0)) if hasattr(os, "sched_getaffinity") else os.cpu_count() or 1
