"""How long the paper takes with 1, 8, 64 or 512 workers: measured costs, measured overhead, a simulated schedule.

    .venv/bin/python -m benchmarks.sizing [--overhead SECONDS]

The overhead of a run beside its training is what `--measure` finds on a Dask cluster of this machine.
"""

import argparse
import time

import pandas as pd

from creditaudit import paths, pipeline
from creditaudit.runs import cost, schedule
from creditaudit.runs.records import Store

WORKERS = (1, 8, 64, 512)
START = 15.0  # seconds until a worker has loaded torch, on a busy core; --measure finds this machine's
OVERHEAD = 0.05  # seconds per run: hand out, send back, check, save; --measure finds the first two


def table(seconds: list[float], overhead: float = OVERHEAD, crews: tuple[int, ...] = WORKERS) -> pd.DataFrame:
    """Hours by crew: in documented order, in the campaign's, longest first, and what no order can beat."""
    rows = []
    for crew in crews:
        ours = schedule.order(seconds, seconds, crew)
        took = schedule.makespan(ours, crew, overhead) + START
        bound = max(sum(seconds) / crew, max(seconds))
        rows.append(
            {
                "workers": crew,
                "documented order, h": (schedule.makespan(seconds, crew, overhead) + START) / 3600,
                "campaign's order, h": took / 3600,
                "longest first, h": (schedule.makespan(sorted(seconds, reverse=True), crew, overhead) + START) / 3600,
                "bound, h": bound / 3600,
                "busy": sum(seconds) / crew / took,
            }
        )
    return pd.DataFrame(rows).set_index("workers")


def paper_seconds() -> list[float]:
    """Core-seconds of every run of the paper profile, in the documented order, by the records where there are any."""
    store = Store(paths.profile_dir("paper"))
    records = store.all()
    known = {record.spec: record.provenance["cpu_seconds"] for record in records}
    specs = pipeline.in_training_order("paper", pipeline.chosen())
    return [known.get(spec) or cost.cpu_seconds(spec, records) for spec in specs]


def measured_overhead(tasks: int = 200) -> float:
    """Seconds that an empty task takes there and back on a real Dask cluster with one worker."""
    from distributed import Client, LocalCluster

    with (
        LocalCluster(n_workers=1, threads_per_worker=1, processes=True, dashboard_address=None) as cluster,
        Client(cluster, set_as_default=False) as client,
    ):
        executor = client.get_executor(pure=False, retries=0)
        executor.submit(int).result()
        begun = time.perf_counter()
        for _ in range(tasks):
            executor.submit(int).result()
        return (time.perf_counter() - begun) / tasks


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--overhead", type=float, default=OVERHEAD)
    parser.add_argument("--measure", action="store_true", help="measure the overhead first")
    options = parser.parse_args()
    overhead = measured_overhead() if options.measure else options.overhead
    seconds = paper_seconds()
    print(
        f"{len(seconds)} runs, {sum(seconds) / 3600:.1f} core-hours, the longest {max(seconds) / 3600:.2f} h; "
        f"{1e3 * overhead:.1f} ms per run and {START:.0f} s per worker beside training"
    )
    print(table(seconds, overhead).round(2).to_string())


if __name__ == "__main__":
    main()
