"""Who takes part in `make bench`, and the race itself: every contender takes its turn in every round.

Times are wall time per step and run with both cores used as each contender does best: two processes of one thread
train two runs at once, so their wall time counts half.
"""

import multiprocessing
import time
from collections.abc import Callable, Iterator
from dataclasses import dataclass, field
from pathlib import Path

import torch
from tqdm import tqdm

from benchmarks import plain
from creditaudit.engine import data
from creditaudit.engine.credit import RULES
from creditaudit.engine.spec import RunSpec
from creditaudit.engine.step import Stack, initialised
from creditaudit.runs import cost
from creditaudit.runs.train import Training
from creditaudit.study import params, sections

ROUNDS = 15
GEMM, TEST_PICTURES = 1024, 10_000
BP, DFA = RunSpec(method="bp"), RunSpec(method="dfa")
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
    return [spec for values in sets for spec in sections.runs_of("depth_ladder", values)]


def kind_name(spec: RunSpec) -> str:
    return f"ladder {spec.method} d{spec.width} L{spec.depth} k{spec.k}"


def pass_name(spec: RunSpec) -> str:
    return f"ladder test pass d{spec.width} L{spec.depth}"


def contenders() -> list[Contender]:
    rules = [Contender(f"engine {m.upper()}", RunSpec(method=m), engine_steps, 2, 1, 30) for m in RULES]
    depths = [Contender(f"L = {n}", RunSpec(method="dfa", depth=n), engine_steps, 2, 1, 20) for n in (1, 2, 8)]
    lengths = [Contender(f"{n} steps", DFA, engine_steps, 2, 1, n) for n in (15, 60, 120)]
    kinds = {kind_name(spec): Contender(kind_name(spec), spec, engine_steps, 2, 1, 10) for spec in ladder_specs()}
    flops = {pass_name(spec): (spec, cost.forward_flops(spec, TEST_PICTURES)) for spec in ladder_specs()}
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
        theirs.close()  # else a worker that dies is waited for without end

    def start(self, number: int, steps: int) -> None:
        self.pipe.send((number, steps))

    def wait(self) -> None:
        self.pipe.recv()

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
        made[number](steps)
        pipe.send("done")


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
                worker.wait()
            if turn:
                contender.times.append((time.perf_counter() - begun) / contender.steps / contender.processes)
