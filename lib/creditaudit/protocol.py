"""Which runs each section of the study needs: parameters in, specs out.

`shape` is any set of `RunSpec` fields that all runs of the section share: width, depth, epochs, data, ...
Runs that two sections share are equal specs, hence computed once (k = L of the ladder *is* the audit's run).
"""

from collections.abc import Sequence
from typing import Any

from creditaudit.spec import RunSpec

SEEDS = (42, 123, 456)


def depth_ladder(methods: Sequence[str], seeds: Sequence[int], **shape: Any) -> list[RunSpec]:
    """Accuracy against k: every method trains its last k = 0..L blocks."""
    full = RunSpec(method="bp", **shape)
    rungs = range(full.depth + 1)
    return [RunSpec(method=m, k=k, seed=s, **shape) for s in seeds for k in rungs for m in methods]


def audit(methods: Sequence[str], seeds: Sequence[int], **shape: Any) -> list[RunSpec]:
    """Every method at full depth, and its frozen twin (k = 0), the reference of D3."""
    full = [RunSpec(method=m, seed=s, **shape) for s in seeds for m in methods]
    return full + [spec.frozen() for spec in full]


def penalty_rescue(
    methods: Sequence[str],
    penalties: Sequence[float],
    swept: Sequence[str],
    seeds: Sequence[int],
    **shape: Any,
) -> list[RunSpec]:
    """Each method without and with the strongest claim's lambda = 1e-2; the `swept` ones over all penalties.

    Their matched controls are part of the list: the frozen run at the same epoch budget.
    """
    rescue = (0.0, 1e-2)
    runs = [RunSpec(method=m, penalty=p, seed=s, **shape) for s in seeds for p in rescue for m in methods]
    runs += [RunSpec(method=m, penalty=p, seed=s, **shape) for s in seeds for p in penalties for m in swept]
    runs += [run.frozen() for run in runs]
    return list(dict.fromkeys(runs))
