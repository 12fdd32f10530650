"""In which order a campaign begins its runs, and how long that takes."""

import hashlib
import heapq
from collections.abc import Sequence
from typing import TypeVar

from creditaudit.engine.spec import RunSpec

GOOD_ENOUGH = 1.01  # the documented order is left only for more than this

Item = TypeVar("Item")


def makespan(seconds: Sequence[float], workers: int, overhead: float = 0.0) -> float:
    """Until the last run ends, when whoever is free takes the next; `overhead` is what a run costs beside itself."""
    free = [0.0] * min(workers, len(seconds))
    for second in seconds:
        heapq.heapreplace(free, free[0] + second + overhead)
    return max(free, default=0.0)


def order(items: Sequence[Item], seconds: Sequence[float], workers: int) -> list[Item]:
    """The order given as far as it costs nothing, then longest first, so that no long run is left for the end."""

    def whole(kept: int) -> float:
        return makespan([*seconds[:kept], *sorted(seconds[kept:], reverse=True)], workers)

    ends = [whole(kept) for kept in range(len(items) + 1)]
    kept = max(kept for kept, end in enumerate(ends) if end <= GOOD_ENOUGH * min(ends))
    longest_first = sorted(range(kept, len(items)), key=lambda place: -seconds[place])
    return [*items[:kept], *(items[place] for place in longest_first)]


def shard(specs: Sequence[RunSpec], part: int, parts: int) -> list[RunSpec]:
    """Part `part` (from 1) of `parts`; where a run belongs depends on nothing but its key."""
    return [s for s in specs if int(hashlib.sha256(s.key.encode()).hexdigest(), 16) % parts == part - 1]
