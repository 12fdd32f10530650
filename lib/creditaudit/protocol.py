"""Which runs each section of the study needs: parameters in, specs out.

Arguments are named like the notebooks' parameters, so `make train` (through `runs_of`) and a notebook that calls
its section's function ask for the same specs. `shape` is any set of `RunSpec` fields that all runs of a section
share: width, depth, epochs, data, ... Runs that two sections share are equal specs, hence computed once (k = L of
the ladder *is* the audit's run).
"""

import inspect
from collections.abc import Callable, Mapping, Sequence
from typing import Any

from creditaudit.spec import RunSpec, SpecError


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
    rescue: float = 1e-2,
    long_epochs: int | None = None,
    **shape: Any,
) -> list[RunSpec]:
    """Each method without and with lambda = `rescue`, and frozen; the `swept` ones over all penalties.

    With `long_epochs`, DFA is also rescued for that many epochs: does the penalty hold as long as the audit runs?
    """
    vanilla = [RunSpec(method=m, seed=s, **shape) for s in seeds for m in methods]
    runs = vanilla + [run.but(penalty=rescue) for run in vanilla] + [run.frozen() for run in vanilla]
    runs += [RunSpec(method=m, penalty=p, seed=s, **shape) for s in seeds for p in penalties for m in swept]
    if long_epochs:
        if vanilla and long_epochs < vanilla[0].epochs:
            raise SpecError(f"long_epochs = {long_epochs}: not as long as epochs = {vanilla[0].epochs} (or null: none)")
        runs += [RunSpec(method="dfa", penalty=rescue, seed=s, **shape).but(epochs=long_epochs) for s in seeds]
    return list(dict.fromkeys(runs))


SECTIONS: dict[str, Callable[..., list[RunSpec]]] = {
    "depth_ladder": depth_ladder,
    "audit": audit,
    "penalty_rescue": penalty_rescue,
}


def runs_of(section: str, parameters: Mapping[str, Any]) -> list[RunSpec]:
    """The runs of one section, from all parameters of its notebook; none where the section trains nothing."""
    if section not in SECTIONS:
        return []
    build = SECTIONS[section]
    known = {*inspect.signature(build).parameters, *RunSpec.model_fields}
    return build(**{name: value for name, value in parameters.items() if name in known})
