"""What a run costs, before it is run: arithmetic per step, and seconds by the speed of this project's own records."""

from collections import Counter
from collections.abc import Iterable
from statistics import median

from creditaudit.credit.settings import CREDIT_BRIDGE, EQUILIBRIUM, STATE_BRIDGE
from creditaudit.model import CLASSES, PIXELS
from creditaudit.records import Record
from creditaudit.spec import RunSpec

UNMEASURED_GFLOPS = 90.0  # effective, one core, used until a record tells better


def step_flops(spec: RunSpec) -> float:
    """Useful floating-point operations of one training step, dense: what a GEMM-only machine would have to do."""
    block, embed, head = _products(spec, spec.batch)
    # per trained block: dW1, dW2, and the pull through W2; chained credit costs one GEMM more per block
    backward = embed + 3 * spec.k * block + 2 * head
    if spec.method == "bp":
        backward += spec.depth * block + (spec.depth - spec.k) * block
    elif spec.method == "fa":
        backward += spec.depth * block
    return forward_flops(spec, spec.batch) + backward + _credit_flops(spec, block)


def forward_flops(spec: RunSpec, pictures: int) -> float:
    block, embed, head = _products(spec, pictures)
    return embed + 2 * spec.depth * block + head


def _products(spec: RunSpec, pictures: int) -> tuple[int, int, int]:
    """One matrix product of a block, of the embed, of the head."""
    return 2 * pictures * spec.width**2, 2 * pictures * PIXELS * spec.width, 2 * pictures * CLASSES * spec.width


def _credit_flops(spec: RunSpec, block: float) -> float:
    """What a learned rule adds: passes of its perceptron, or EP's sweeps (a VJP and a forward of every block each)."""
    states = 2 * spec.batch * spec.depth
    if spec.method == "ep":
        return 4 * EQUILIBRIUM.sweeps * spec.depth * block
    if spec.method == "sb":  # forward, credit, weight gradients; one pull less where the input's gradient is not needed
        layer = spec.width**2
        return states * layer * (4 * STATE_BRIDGE.layers - 1)
    if spec.method == "cb":  # credit at all states; slow copies; one transition per sample, terminal, its matching
        net = (spec.width + CREDIT_BRIDGE.hidden) * CREDIT_BRIDGE.hidden
        return net * (2 * states + 2 * spec.batch * (CREDIT_BRIDGE.copies + 2 * 3 + 3))
    return 0.0


def usual_cpu(records: Iterable[Record]) -> str | None:
    """The kind of CPU that made most of the records: a core-second is worth another amount of work on every kind."""
    kinds = Counter(record.provenance.get("cpu", "") for record in records)
    return kinds.most_common(1)[0][0] if kinds else None


def cpu_seconds(spec: RunSpec, measured: Iterable[Record] = ()) -> float:
    """Expected core-seconds of the usual CPU; its records of the same width and method calibrate, else any of its."""
    measured = list(measured)
    cpu = usual_cpu(measured)
    finished = [record for record in measured if record.provenance.get("cpu", "") == cpu]
    alike = [r for r in finished if (r.spec.width, r.spec.method) == (spec.width, spec.method)] or finished
    speeds = [step_flops(r.spec) * r.spec.steps / r.provenance["cpu_seconds"] for r in alike]
    return step_flops(spec) * spec.steps / (median(speeds) if speeds else UNMEASURED_GFLOPS * 1e9)
