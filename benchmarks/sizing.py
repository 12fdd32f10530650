"""How long the paper takes with 1, 8, 64 or 512 workers: the table of the register, with the overhead measured here.

    .venv/bin/python -m benchmarks.sizing [--measure] [--check]

`--measure` finds the overhead of a run beside its training on a Dask cluster of this machine; `--check` trains runs of
a second with two workers and compares the time they take with the simulated schedule of the time each took.
"""

import argparse
import tempfile
import time
from concurrent.futures import wait
from pathlib import Path

from creditaudit import study
from creditaudit.engine.spec import RunSpec
from creditaudit.runs import cost, schedule, sweep
from creditaudit.runs.records import Store
from creditaudit.runs.workers import LocalCrew
from creditaudit.study import sizing


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


def simulated_and_real(workers: int = 2) -> tuple[float, float]:
    """Seconds of a campaign of uneven runs: by the schedule of what each took, and by the clock."""
    shape = {"width": 64, "depth": 4, "data": "tiny"}
    specs = [RunSpec(method="dfa", seed=seed, epochs=5 + 5 * (seed % 7), **shape) for seed in range(21)]
    with tempfile.TemporaryDirectory() as folder:
        store = Store(Path(folder) / "here")
        crew = LocalCrew(sweep.train_one, workers, store)
        wait([crew.submit(RunSpec(method="bp", seed=seed, epochs=2, **shape)) for seed in range(workers)])
        begun = time.perf_counter()
        sweep._train_with(crew, specs, store, ())
        real = time.perf_counter() - begun
        took = {spec: store.get(spec).provenance["wall_seconds"] for spec in specs}
        expected = [cost.cpu_seconds(spec) for spec in specs]
        ordered = schedule.order(specs, expected, workers)
        return schedule.makespan([took[spec] for spec in ordered], workers, sizing.OVERHEAD), real


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--measure", action="store_true", help="measure the overhead first")
    parser.add_argument("--check", action="store_true", help="compare the simulation with a campaign")
    options = parser.parse_args()
    if options.check:
        simulated, real = simulated_and_real()
        print(f"two workers: {simulated:.1f} s simulated, {real:.1f} s measured, {real / simulated - 1:+.1%}")
    overhead = measured_overhead() if options.measure else sizing.OVERHEAD
    seconds = sizing.seconds_of(study.everything("paper"))
    print(
        f"{len(seconds)} runs, {sum(seconds) / 3600:.1f} core-hours, the longest {max(seconds) / 3600:.2f} h; "
        f"{1e3 * overhead:.1f} ms per run and {sizing.START:.0f} s per worker beside training; in hours:"
    )
    print(sizing.hours(seconds, overhead).round(2).to_string())


if __name__ == "__main__":
    main()
