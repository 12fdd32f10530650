"""`make bench`: the training step against the loops a person would otherwise write, in one interleaved run.

Absolute times on a shared machine are noise, so every contender takes its turn in every round, and the machine's GEMM
peak is measured in the same rounds. Times are wall time per step and run with both cores used as each contender does
best: two processes of one thread train two runs at once, so their wall time counts half.
"""

import multiprocessing
import resource
import statistics
import time
from collections.abc import Callable, Iterator
from dataclasses import dataclass, field
from pathlib import Path

import matplotlib.pyplot as plt
import pandas as pd
import torch
from tqdm import tqdm

from creditaudit import cost, data, params, paths, plain, protocol
from creditaudit.credit import RULES
from creditaudit.engine import Stack, initialised
from creditaudit.spec import RunSpec
from creditaudit.train import Training, training_mode

ROUNDS = 15
GEMM, TEST_PICTURES = 1024, 10_000
BP, DFA = RunSpec(method="bp"), RunSpec(method="dfa")
LOGGING_SHARE = 0.10
LADDER_HOURS = 4.5  # the study's took about 7 on one GPU
FROZEN = DFA.frozen()  # the cheapest run there is, so the one in which logging weighs most


@dataclass
class Contender:
    """Something that can train for n steps. `processes` copies run at once, each with `threads` threads."""

    name: str
    spec: RunSpec
    make: Callable[[RunSpec], Callable[[int], None]]
    processes: int
    threads: int
    steps: int
    flops: float = 0.0  # useful ones of a step; 0: those of the spec's training step
    times: list[float] = field(default_factory=list)  # wall seconds per step and run, one per round

    def __post_init__(self) -> None:
        self.flops = self.flops or cost.step_flops(self.spec)


def engine_steps(spec: RunSpec) -> Callable[[int], None]:
    """This project's step, augmentation included."""
    stack, batches = Stack([spec]), endless_batches(spec)
    if spec.method == "cb":
        stack.rule.warm_steps = 0  # the learned credit is what costs, not its DFA warm-up

    def steps(n: int) -> None:
        with torch.inference_mode():
            for _ in range(n):
                x, y = next(batches)
                stack.step(x.unsqueeze(0), y.unsqueeze(0))

    return steps


def endless_batches(spec: RunSpec) -> Iterator[tuple[torch.Tensor, torch.Tensor]]:
    pictures, epoch = data.load("cifar10"), 0
    while True:
        yield from data.batches(pictures, spec.seed, epoch, spec.batch, spec.augment)
        epoch += 1


def plain_steps(spec: RunSpec) -> Callable[[int], None]:
    rule = RULES[spec.method](1, spec.width, spec.depth)
    module = initialised(spec, rule)
    feedback = rule.tensors()["feedback"][0] if rule.tensors() else None
    return plain.train(spec, module, feedback, plain.preloaded_batches(data.load("cifar10"), spec.batch))


def loader_steps(spec: RunSpec) -> Callable[[int], None]:
    return plain.train(spec, initialised(spec), None, plain.loader_batches(data.load("cifar10"), spec.batch))


def gemm_steps(_: RunSpec) -> Callable[[int], None]:
    a, out = torch.randn(GEMM, GEMM), torch.empty(GEMM, GEMM)

    def steps(n: int) -> None:
        for _ in range(n):
            torch.mm(a, a, out=out)

    return steps


def test_passes(spec: RunSpec) -> Callable[[int], None]:
    """What every epoch logs: loss and accuracy on all test pictures, norms of states and gradients."""
    training = Training([spec], Path("unused"))

    def passes(n: int) -> None:
        with torch.inference_mode():
            for _ in range(n):
                training._evaluate()

    return passes


def ladder_specs() -> list[RunSpec]:
    """The runs of the study's ladder."""
    sets = [params.parameters("depth_ladder", name, "paper") for name in params.sets("depth_ladder")]
    return [spec for values in sets for spec in protocol.runs_of("depth_ladder", values)]


def _kind(spec: RunSpec) -> str:
    return f"ladder {spec.method} d{spec.width} L{spec.depth} k{spec.k}"


def _pass(spec: RunSpec) -> str:
    return f"ladder test pass d{spec.width} L{spec.depth}"


def contenders() -> list[Contender]:
    rules = [Contender(f"engine {m.upper()}", RunSpec(method=m), engine_steps, 2, 1, 30) for m in RULES]
    depths = [Contender(f"L = {n}", RunSpec(method="dfa", depth=n), engine_steps, 2, 1, 20) for n in (1, 2, 8)]
    lengths = [Contender(f"{n} steps", DFA, engine_steps, 2, 1, n) for n in (15, 60, 120)]
    kinds = {_kind(spec): Contender(_kind(spec), spec, engine_steps, 2, 1, 10) for spec in ladder_specs()}
    flops = {_pass(spec): (spec, cost.forward_flops(spec, TEST_PICTURES)) for spec in ladder_specs()}
    passes = [Contender(name, spec, test_passes, 2, 1, 1, flops=n) for name, (spec, n) in flops.items()]
    return [
        Contender("GEMM peak", BP, gemm_steps, 2, 1, 30, flops=2 * GEMM**3),
        *rules,
        Contender("engine DFA, frozen", FROZEN, engine_steps, 2, 1, 30),
        Contender("engine DFA, one worker", DFA, engine_steps, 1, 1, 30),
        Contender("test pass", DFA, test_passes, 2, 1, 1, flops=cost.forward_flops(DFA, TEST_PICTURES)),
        Contender("plain DFA, 1 process x 2 threads", DFA, plain_steps, 1, 2, 20),
        Contender("plain DFA, 2 processes x 1 thread", DFA, plain_steps, 2, 1, 20),
        Contender("plain BP, 1 process x 2 threads", BP, plain_steps, 1, 2, 20),
        Contender("plain BP, 2 processes x 1 thread", BP, plain_steps, 2, 1, 20),
        Contender("DataLoader BP, 1 process x 2 threads, 2 loaders", BP, loader_steps, 1, 2, 40),
        *depths,
        *lengths,
        *kinds.values(),
        *passes,
    ]


class Worker:
    """A process that keeps every contender ready, so that a turn costs no start-up."""

    def __init__(self) -> None:
        context = multiprocessing.get_context("spawn")
        self.pipe, theirs = context.Pipe()
        self.process = context.Process(target=_serve, args=(theirs,))
        self.process.start()

    def start(self, number: int, steps: int) -> None:
        self.pipe.send((number, steps))

    def result(self) -> float:
        return self.pipe.recv()

    def stop(self) -> None:
        self.process.terminate()
        self.process.join()


def _serve(pipe: "multiprocessing.connection.Connection") -> None:
    torch.set_flush_denormal(True)
    field_of, made = contenders(), {}
    while True:
        number, steps = pipe.recv()
        contender = field_of[number]
        torch.set_num_threads(contender.threads)
        if number not in made:
            made[number] = contender.make(contender.spec)
        begun = time.perf_counter()
        made[number](steps)
        pipe.send(time.perf_counter() - begun)


def _own_memory() -> float:
    status = Path("/proc/self/status")
    if not status.exists():
        return resource.getrusage(resource.RUSAGE_SELF).ru_maxrss * 1024.0
    anonymous = [line for line in status.read_text().splitlines() if line.startswith("RssAnon")]
    return float(anonymous[0].split()[1]) * 1024


def measure() -> list[Contender]:
    """All contenders in turn, round after round; the first round only warms up."""
    field_of, workers = contenders(), [Worker(), Worker()]
    try:
        _take_turns(field_of, workers)
    finally:
        for worker in workers:
            worker.stop()
    return field_of


def _take_turns(field_of: list[Contender], workers: list[Worker]) -> None:
    for turn in tqdm(range(ROUNDS + 1), desc="bench", unit="round"):
        for number, contender in enumerate(field_of):
            active = workers[: contender.processes]
            begun = time.perf_counter()
            for worker in active:
                worker.start(number, contender.steps if turn else 5)
            for worker in active:
                worker.result()
            if turn:
                contender.times.append((time.perf_counter() - begun) / contender.steps / contender.processes)


def summarise(field_of: list[Contender]) -> pd.DataFrame:
    """Minimum and median per step, and the share of the GEMM peak: useful operations of the *dense* algorithm."""
    peak = {pick: field_of[0].flops / pick(field_of[0].times) for pick in (min, statistics.median)}
    rows = []
    for contender in field_of:
        row = {"loop": contender.name}
        for pick, label in ((min, "min"), (statistics.median, "median")):
            row[f"{label} ms"] = pick(contender.times) * 1e3
            row[f"of peak, {label}"] = contender.flops / pick(contender.times) / peak[pick]
        rows.append(row)
    frame = pd.DataFrame(rows).set_index("loop")
    frame.attrs["peak"] = peak[min] / 1e9
    return frame


def verdicts(frame: pd.DataFrame) -> list[str]:
    """The promises about speed, each measured at the minimum and at the median: neighbours disturb the latter more."""
    ratios = [
        ("DFA against the plain loop, one process", "engine DFA", "plain DFA, 1 process x 2 threads", 4.0),
        ("DFA against the plain loop, two processes", "engine DFA", "plain DFA, 2 processes x 1 thread", 3.0),
        ("BP against the plain loop, one process", "engine BP", "plain BP, 1 process x 2 threads", 1.7),
        ("BP against the DataLoader loop", "engine BP", "DataLoader BP, 1 process x 2 threads, 2 loaders", 3.0),
        ("two workers against one", "engine DFA", "engine DFA, one worker", 1.8),
    ]
    promises = [
        (what, *(frame.loc[slow, ms] / frame.loc[fast, ms] for ms in ("min ms", "median ms")), needed)
        for what, fast, slow, needed in ratios
    ]
    # DFA's is dense-equivalent: the low-rank algebra executes fewer operations than are counted
    for name, what, needed in (("engine BP", "share", 0.50), ("engine DFA", "dense-equivalent share", 0.65)):
        shares = (frame.loc[name, f"of peak, {pick}"] for pick in ("min", "median"))
        promises.append((f"{name}, {what} of GEMM peak", *shares, needed))
    lines = [
        f"{what}: {least:.2f} at the minimum ({_kept(least, needed)}), {typical:.2f} at the median "
        f"({_kept(typical, needed)}); promised {needed}"
        for what, least, typical, needed in promises
    ]
    ms = frame["median ms"]
    rules = [f"{method.upper()} {ms[f'engine {method.upper()}'] / ms['engine DFA']:.2f}x" for method in RULES]
    return [*lines, f"cost of a step relative to DFA: {', '.join(rules)}"]


def logging_shares(frame: pd.DataFrame, diagnosing: float) -> list[str]:
    """What part of a 100-epoch run measures instead of training: a test pass per epoch, the diagnostics at its end."""
    lines = []
    for name, spec in (("engine BP", BP), ("engine DFA", DFA), ("engine DFA, frozen", FROZEN)):
        shares = []
        for ms in ("min ms", "median ms"):
            logging = spec.epochs * frame.loc["test pass", ms] + diagnosing * 1e3 / 2  # two runs at once
            shares.append(logging / (logging + spec.steps * frame.loc[name, ms]))
        kept = ["kept" if share <= LOGGING_SHARE else "MISSED" for share in shares]
        lines.append(
            f"{name}, share of logging and diagnostics: {shares[0]:.3f} at the minimum ({kept[0]}), "
            f"{shares[1]:.3f} at the median ({kept[1]}); promised at most {LOGGING_SHARE}"
        )
    return lines


def ladder_hours(frame: pd.DataFrame, diagnosing: float) -> str:
    """What the whole ladder takes two workers at the speed of this bench: every kind of run was measured."""
    hours = []
    for ms in ("min ms", "median ms"):
        runs = [s.steps * frame.loc[_kind(s), ms] + s.epochs * frame.loc[_pass(s), ms] for s in ladder_specs()]
        hours.append((sum(runs) / 1e3 + len(runs) * diagnosing / 2) / 3600)
    kept = ["kept" if value <= LADDER_HOURS else "MISSED" for value in hours]
    return (
        f"the ladder's {len(ladder_specs())} runs with two workers: {hours[0]:.2f} h at the minimum ({kept[0]}), "
        f"{hours[1]:.2f} h at the median ({kept[1]}); promised at most {LADDER_HOURS}"
    )


def _kept(value: float, needed: float) -> str:
    return "kept" if value >= needed else "MISSED"


def draw(field_of: list[Contender], frame: pd.DataFrame, target: Path) -> None:
    """Bars of time per step; time against blocks and against steps, which should be straight lines."""
    fig, (bars, blocks, length) = plt.subplots(1, 3, figsize=(12, 4.2), width_ratios=[2.2, 1, 1], layout="constrained")
    loops = [c for c in field_of if c.name.startswith(("engine", "plain", "DataLoader"))]
    names, medians = [c.name for c in loops], [statistics.median(c.times) * 1e3 for c in loops]
    bars.barh(names, medians, color=["#33608c" if name.startswith("engine") else "#b9b9b9" for name in names])
    for y, value in enumerate(medians):
        bars.text(value, y, f" {value:.2f}", va="center", fontsize=8)
    bars.invert_yaxis()
    bars.margins(x=0.08)
    bars.set_xlabel(f"ms of wall time per step and run (median of {ROUNDS})")
    deep = sorted(
        [c for c in field_of if c.name.startswith("L =") or c.name == "engine DFA"], key=lambda c: c.spec.depth
    )
    blocks.plot([c.spec.depth for c in deep], [statistics.median(c.times) * 1e3 for c in deep], "o-", color="#33608c")
    blocks.set(xlabel="blocks L (DFA)", ylabel="ms per step and run", ylim=(0, None), xlim=(0, None))
    long = [c for c in field_of if c.name.endswith(" steps")]
    length.plot([c.steps for c in long], [statistics.median(c.times) * c.steps for c in long], "o-", color="#33608c")
    length.set(xlabel="steps trained (DFA)", ylabel="seconds per run", ylim=(0, None), xlim=(0, None))
    target.parent.mkdir(parents=True, exist_ok=True)
    fig.savefig(target, dpi=150)
    plt.close(fig)


def weigh() -> tuple[float, float]:
    """Of a process that trains the primary shape: its own memory in bytes, and the seconds its diagnostics take."""
    context = multiprocessing.get_context("spawn")
    pipe, theirs = context.Pipe()
    process = context.Process(target=_train_and_weigh, args=(theirs,))
    process.start()
    memory, diagnosing = pipe.recv()
    process.join()
    return memory, diagnosing


def _train_and_weigh(pipe: "multiprocessing.connection.Connection") -> None:
    with training_mode():
        training = Training([BP], Path("unused"))
        training._note(training._evaluate())
        engine_steps(BP)(20)
        memory, begun = _own_memory(), time.process_time()
        training.records()
    pipe.send((memory, time.process_time() - begun))


def run() -> None:
    """Measure; print and save the table, the verdicts and the plot."""
    field_of = measure()
    frame = summarise(field_of)
    shown = frame[~frame.index.str.startswith("ladder")]
    memory, diagnosing = weigh()
    lines = [
        shown.to_string(float_format=lambda value: f"{value:.3f}"),
        f"GEMM peak, both cores, float32: {frame.attrs['peak']:.0f} GF/s",
        *verdicts(frame),
        *logging_shares(frame, diagnosing),
        ladder_hours(frame, diagnosing),
        f"memory of one training process beyond the shared pictures: {memory / 1e9:.2f} GB (at most 1.5)",
    ]
    print(*lines, sep="\n")
    folder = paths.OUTPUTS / "bench"
    draw(field_of, frame, folder / "bench.png")
    frame.to_csv(folder / "bench.csv", float_format="%.4f")
    (folder / "bench.txt").write_text("\n".join(lines) + "\n")
    print(f"saved: bench.txt, bench.csv and bench.png in {paths.shown(folder)}")
