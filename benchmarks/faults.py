"""`make faults`: kill, cut and damage campaigns and renders in progress, repeat the command, and tell what was lost.

After each fault the same command must end well, every record that was finished before must be there byte for byte, and
all numbers and pages must be those of an undisturbed one. The register shows the table (outputs/paper/faults.json).
"""

import argparse
import os
import random
import shutil
import sys
import tempfile
import time
from pathlib import Path

import pandas as pd

from benchmarks import damage
from benchmarks.disturbances import DISTURBANCES, RENDERS
from benchmarks.outcome import Fault
from benchmarks.victims import Project, Render
from creditaudit.study import injections

PROFILE = "paper"  # whose pages show the table
SIGNALLED = 3  # times each by default
OFTEN = {"Ctrl-C at a random moment": 17}  # so many times as often


def inject(name: str, times: int, project: Project, reference: dict[str, str], rng: random.Random) -> Fault:
    """Disturb, look what was finished by then, repeat the command, compare."""
    fault = Fault(name)
    while fault.times < times:
        project.clear()
        if (said := DISTURBANCES[name](project, rng)) is None:
            continue
        before = project.finished | project.files()
        status, last = project.finish()
        after = project.files()
        lost = sum(after.get(file) != content for file, content in before.items())
        fault.note(lost, status == 0 and project.numbers() == reference, said + (last if status else ""))
        print(f"{name}: {fault.times} of {times}, {fault.lost} runs lost", file=sys.stderr, flush=True)
    return fault


def main(arguments: list[str] | None = None) -> int:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--times", type=int, default=SIGNALLED, help="how often each disturbance")
    parser.add_argument("--damages", type=int, default=200, help="how many damaged records and checkpoints each")
    parser.add_argument("--seed", type=int, default=0)
    parser.add_argument("--only", default="", help="faults whose name holds this")
    parser.add_argument("--keep", action="store_true", help=f"keep the table in outputs/{PROFILE}/{injections.FILE}")
    options = parser.parse_args(arguments)
    rng, found = random.Random(options.seed), []
    with tempfile.TemporaryDirectory() as scratch:
        os.chmod(scratch, 0o755)
        project = Project(Path(scratch) / "project")
        status, said = project.finish()
        if status:
            print(f"the undisturbed campaign failed: {said}", file=sys.stderr)
            return 1
        render = Render(Path(scratch) / "render", project)
        render.clear()
        status, said = render.finish()
        if status:
            print(f"the undisturbed render failed: {said}", file=sys.stderr)
            return 1
        undisturbed = {project: project.numbers(), render: render.numbers()}
        assert all(undisturbed.values())

        def disturbed(name: str) -> Fault:
            victim = render if name.startswith(RENDERS) else project
            return inject(name, options.times * OFTEN.get(name, 1), victim, undisturbed[victim], rng)

        times, folder = options.damages, Path(scratch)
        apart = {
            "record cut or bit turned": lambda: damage.damage_records(times, project, rng),
            "side file cut or bit turned": lambda: damage.damage_side_files(times, folder / "side", rng),
            "data cut or bit turned": lambda: damage.damage_data(times // 5, folder / "data", rng),
            "checkpoint cut or bit turned": lambda: damage.damage_checkpoints(times, folder / "cp", rng),
            "run that diverges": lambda: damage.diverging(folder / "wild"),
        }
        plans = apart | {name: lambda name=name: disturbed(name) for name in DISTURBANCES}
        for name, plan in plans.items():
            if options.only in name:
                begun = time.monotonic()
                found.append(plan())
                if options.keep:
                    injections.keep(PROFILE, found[-1].row())
                print(f"{found[-1].row()} ({time.monotonic() - begun:.0f} s)", file=sys.stderr, flush=True)
        project.clear()
        render.clear()
        shutil.rmtree(render.outputs)
    print(pd.DataFrame([vars(one.row()) for one in found]).drop(columns="commit").to_string(index=False))
    print(f"{sum(one.times for one in found)} injections, {sum(one.lost for one in found)} runs lost")
    return 0 if all(one.sound() for one in found) else 1


if __name__ == "__main__":
    sys.exit(main())
