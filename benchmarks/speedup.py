"""How much sooner two workers are done than one, on this machine: local processes against a Dask cluster.

    .venv/bin/python -m benchmarks.speedup [--rounds 3]

Every round measures all four, in another order, from the first run handed out (workers are up by then) to the last
record saved. On a busy machine only the comparison within a round means something, and its spread over the rounds;
`busy`, the share of the workers' time that went into training, is the same under any load: what the crew itself costs.
"""

import argparse
import os
import random
import shutil
import tempfile
import time
from concurrent.futures import wait
from itertools import product
from pathlib import Path

import pandas as pd

KINDS, WORKERS = ("local", "dask"), (1, 2)
RUNS = {"width": 256, "depth": 4, "epochs": 12, "data": "cifar10"}  # real epochs: a crew costs per run and per epoch


def measure(kind: str, workers: int, runs: int, folder: Path) -> tuple[float, float]:
    """Seconds of a campaign whose workers are ready, and which share of them a worker trained."""
    from creditaudit.engine.spec import RunSpec
    from creditaudit.runs import sweep
    from creditaudit.runs.cluster import DaskCrew
    from creditaudit.runs.records import Store
    from creditaudit.runs.workers import LocalCrew

    store = Store(folder / "here")
    crew = LocalCrew(sweep.train_one, workers, store) if kind == "local" else DaskCrew(sweep.train_one, jobs=workers)
    wait([crew.submit(RunSpec(method="dfa", seed=seed, **RUNS | {"epochs": 2})) for seed in range(workers)])
    specs = [RunSpec(method="dfa", seed=seed, **RUNS) for seed in range(runs)]
    begun = time.perf_counter()
    assert sweep._train_with(crew, specs, store, ()) == runs
    took = time.perf_counter() - begun
    return took, sum(store.get(spec).provenance["wall_seconds"] for spec in specs) / workers / took


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--rounds", type=int, default=3)
    parser.add_argument("--runs", type=int, default=2)
    options = parser.parse_args()
    rows, rng = [], random.Random(0)
    with tempfile.TemporaryDirectory() as scratch:
        (Path(scratch) / "data").symlink_to(Path(__file__).resolve().parents[1] / "data")
        os.environ["CREDITAUDIT_ROOT"] = scratch  # before the package is imported: Dask's workers write there too
        for _ in range(options.rounds):
            took, busy, ways = {}, {}, list(product(KINDS, WORKERS))
            for kind, workers in rng.sample(ways, len(ways)):
                took[kind, workers], busy[kind, workers] = measure(kind, workers, options.runs, Path(scratch))
                shutil.rmtree(Path(scratch) / "here")
                shutil.rmtree(Path(scratch) / "outputs", ignore_errors=True)
            row = {f"{kind} {workers}, s": took[kind, workers] for kind, workers in ways}
            row |= {f"speed-up {kind}": took[kind, 1] / took[kind, 2] for kind in KINDS}
            row["dask / local"] = row["speed-up dask"] / row["speed-up local"]
            row |= {f"busy {kind} {workers}": busy[kind, workers] for kind, workers in ways}
            row["dask / local by busy"] = busy["dask", 2] / busy["dask", 1] / (busy["local", 2] / busy["local", 1])
            rows.append(row)
            print({name: round(value, 3) for name, value in rows[-1].items()}, flush=True)
    table = pd.DataFrame(rows)
    print(table.describe().loc[["50%", "min", "max", "std"]].T.round(3).to_string())


if __name__ == "__main__":
    main()
