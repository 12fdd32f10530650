"""Where records come from: which runs, at which commits, on which machines, in how many hours."""

import re
from collections import Counter
from collections.abc import Iterable, Sequence
from typing import Any

import pandas as pd

from creditaudit.engine import catalogue
from creditaudit.engine.spec import RunSpec
from creditaudit.runs.records import Record


def kinds(specs: Iterable[RunSpec]) -> str:
    """2 BP frozen, 1 State Bridge at d=512, L=12: runs that are too many to be listed one by one."""
    counts = Counter((f"$d={s.width}$, $L={s.depth}$", catalogue.label(s.method), s.k == 0) for s in specs)
    shapes: dict[str, list[str]] = {}
    for (shape, name, still), count in sorted(counts.items(), key=lambda each: each[0][1:] + each[0][:1]):
        shapes.setdefault(shape, []).append(f"{count} {name}{' frozen' * still}")
    return "; ".join(f"{', '.join(found)} at {shape}" for shape, found in shapes.items())


def makers(records: Sequence[Record]) -> dict[str, Any]:
    """Of a section's footer: who trained the runs, to their end and before an interruption."""
    found = [maker for record in records for maker in (record.provenance, *record.provenance.get("resumed_from", []))]
    hours = spent(records).groupby("CPU")["core-hours"].sum().sort_values(ascending=False)
    return {
        "commits": len({maker["commit"] for maker in found}),
        "changed": len({maker["commit"] for maker in found if maker.get("dirty")}),
        "torch": ", ".join(sorted({f"torch {each.get('torch')} ({each.get('device', 'cpu')})" for each in found})),
        "hours": ", ".join(f"{spent:.3g} core-hours on {cpu}" for cpu, spent in hours.items()),
    }


def cpu_name(cpu: str) -> str:
    """The kind of CPU without its trade marks and clock."""
    return re.sub(r"\((R|TM)\)|@.*?(?=\(|$)", "", cpu).strip()


def spent(records: Iterable[Record]) -> pd.DataFrame:
    """One row per record: what made it, and the hours it took."""
    rows = [
        {
            "key": record.spec.key,
            "CPU": cpu_name(record.provenance.get("cpu", "")),
            "commit": record.provenance.get("commit", "")[:10],
            "core-hours": record.provenance.get("cpu_seconds", 0.0) / 3600,
            "wall hours": record.provenance.get("wall_seconds", 0.0) / 3600,
        }
        for record in records
    ]
    return pd.DataFrame(rows, columns=["key", "CPU", "commit", "core-hours", "wall hours"])
