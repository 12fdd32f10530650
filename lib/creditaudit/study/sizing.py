"""How long a list of runs takes with few workers or many: the schedule that a campaign keeps, simulated."""

from collections.abc import Sequence

import pandas as pd

from creditaudit.runs import cost, schedule
from creditaudit.study.frames import Runs

WORKERS = (1, 8, 64, 512)
START = 15.0  # seconds until a worker has loaded torch, on a busy core
OVERHEAD = 0.05  # seconds per run to hand out, send back, check and save; `python -m benchmarks.sizing --measure`


def hours(seconds: Sequence[float], overhead: float = OVERHEAD, crews: Sequence[int] = WORKERS) -> pd.DataFrame:
    """By crew: in the campaign's order, longest first, and less than any order takes; `busy`: the share trained."""
    rows = []
    for crew in crews:
        ours, longest = schedule.order(seconds, seconds, crew), sorted(seconds, reverse=True)
        took, simplest = (schedule.makespan(order, crew, overhead) + START for order in (ours, longest))
        bound = max(sum(seconds) / crew, max(seconds, default=0.0))
        row = {"campaign's order": took / 3600, "longest first": simplest / 3600, "bound": bound / 3600}
        rows.append({"workers": crew, **row, "busy": sum(seconds) / crew / took})
    return pd.DataFrame(rows).set_index("workers")


def seconds_of(runs: Runs) -> list[float]:
    """Core-seconds of every run that is asked for: by its record or, where it has none, by those of its kind."""
    known = {record.spec: record.provenance["cpu_seconds"] for record in runs.records}
    return [known.get(spec) or cost.cpu_seconds(spec, runs.records) for spec in runs.specs]
