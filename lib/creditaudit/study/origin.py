"""Where records come from, in a footer's words: which runs, at which commits, on which machines, in how many hours."""

import re
from collections import Counter
from collections.abc import Iterable, Sequence
from typing import Any

import pandas as pd

from creditaudit.engine import catalogue
from creditaudit.engine.spec import RunSpec
from creditaudit.runs.records import Record

NAMED = 6  # missing runs, or commits, that are listed one by one


def kinds(specs: Iterable[RunSpec]) -> str:
    """2 BP frozen, 1 State Bridge at d=512, L=12: runs that are too many to be listed one by one."""
    counts = Counter(
        (catalogue.label(spec.method), spec.k == 0, f"$d={spec.width}$, $L={spec.depth}$") for spec in specs
    )
    shapes: dict[str, list[str]] = {}
    for (name, still, shape), count in sorted(counts.items()):
        shapes.setdefault(shape, []).append(f"{count} {name}{' frozen' * still}")
    return "; ".join(f"{', '.join(found)} at {shape}" for shape, found in shapes.items())


def commits(records: list[Record]) -> str:
    """Every commit once, or how many; one dirty record marks its commit."""
    marks: dict[str, bool] = {}
    for maker in _makers(records):
        mark = maker["commit"][:10]
        marks[mark] = marks.get(mark, False) or maker.get("dirty", False)
    if len(marks) > NAMED:
        changed = sum(marks.values())
        return f"{len(marks)} commits (the records name them{f'; {changed} with local changes' if changed else ''})"
    return "commit " + ", ".join(
        f"`{mark}`{' (with local changes)' if dirty else ''}" for mark, dirty in sorted(marks.items())
    )


def machines(records: list[Record]) -> str:
    def describe(origin: dict[str, Any]) -> str:
        threads = f"{origin.get('threads', 1)} thread{'s' if origin.get('threads', 1) != 1 else ''}"
        parts = [
            origin.get("device", "cpu"),
            cpu_name(origin.get("cpu", "")),
            threads,
            f"torch {origin.get('torch', '?')}",
        ]
        return ", ".join(filter(None, parts))

    return "; ".join(sorted({describe(maker) for maker in _makers(records)}))


def cpu_name(cpu: str) -> str:
    """The kind of CPU without its trade marks and clock."""
    return re.sub(r"\((R|TM)\)|@.*?(?=\(|$)", "", cpu).strip()


def core_hours(records: Sequence[Record]) -> str:
    """27 core-hours; of each kind of CPU apart, where there are several, since an hour is not worth the same on all."""
    seconds: Counter[str] = Counter()
    for record in records:
        seconds[cpu_name(record.provenance.get("cpu", ""))] += record.provenance.get("cpu_seconds", 0.0)
    if len(seconds) < 2:
        return f"{seconds.total() / 3600:.3g} core-hours"
    parts = [f"{spent / 3600:.3g} core-hours on {cpu}" for cpu, spent in seconds.most_common()]
    return f"{', '.join(parts[:-1])} and {parts[-1]}"


def _makers(records: list[Record]) -> list[dict[str, Any]]:
    """Where the runs were trained: to their end, and before an interruption."""
    return [maker for record in records for maker in (record.provenance, *record.provenance.get("resumed_from", []))]


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
