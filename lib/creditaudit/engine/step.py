"""The training step: forward, credit, local vector-Jacobian products, one fused AdamW. No autograd.

`Stack` holds S runs that differ only in seed and lambda. On a CPU S is 1 (one worker process per core, one thread,
one run at a time: its weights stay in cache). On a GPU the same code stacks runs, because one alone is launch-bound;
that path is *not tested on a GPU*.
"""

import math
from collections.abc import Iterator, Sequence
from contextlib import contextmanager

import torch
from torch import Tensor

from creditaudit.engine import adamw, model, network
from creditaudit.engine.credit import RULES, Rule
from creditaudit.engine.credit.rule import driving
from creditaudit.engine.network import Credit, Tape
from creditaudit.engine.spec import RunSpec


@contextmanager
def training_mode() -> Iterator[None]:
    """One thread, no autograd, no denormals (exploding DFA runs otherwise take twice the time); undone at the end."""
    threads = torch.get_num_threads()
    torch.set_num_threads(1)
    torch.set_flush_denormal(True)
    try:
        with torch.inference_mode():
            yield
    finally:
        torch.set_flush_denormal(False)
        torch.set_num_threads(threads)


def rule_of(spec: RunSpec) -> type[Rule]:
    """The class that trains a run, with the run's settings where these depart from the rule's."""
    rule = RULES[spec.method]
    return type(rule.__name__, (rule,), {"settings": spec.rule_settings}) if spec.settings else rule


class Stack:
    """S runs of one method and shape, trained in step."""

    def __init__(self, specs: Sequence[RunSpec], dtype: torch.dtype = torch.float32, device: str = "cpu") -> None:
        first = specs[0]
        if any(spec.but(seed=first.seed, penalty=first.penalty) != first for spec in specs):
            raise ValueError("runs can be stacked only if they differ in nothing but seed and penalty")
        self.specs, self.spec = list(specs), first
        self.buffers = model.allocate(
            len(specs), first.width, first.depth, first.hidden or first.width, first.k, first.final_norm, dtype, device
        )
        self.rule = rule_of(first)(len(specs), first.width, first.depth)
        for s, spec in enumerate(specs):
            module = initialised(spec, self.rule, s)
            model.load_module(self.net, s, module)
        self.rule = self.rule.to(dtype, device)
        self.rule.configure([spec.seed for spec in specs], first.k, first.weight_decay, first.steps)
        penalty = torch.tensor([spec.penalty for spec in specs], dtype=dtype, device=device)
        self.penalty = penalty.view(-1, 1, 1) if penalty.any() else None
        self.moments = adamw.Moments.like(self.buffers.flat)
        self.lr = first.lr
        self.tapes: dict[int, Tape] = {}

    @property
    def net(self) -> model.Net:
        return self.buffers.net

    def set_epoch(self, epoch: float) -> None:
        """Cosine decay to zero over the run."""
        self.lr = self.spec.lr * (1 + math.cos(math.pi * epoch / self.spec.epochs)) / 2

    def step(self, x: Tensor, y: Tensor) -> tuple[Tensor, Tensor]:
        """Train on one batch; returns summed loss and hits per run, as seen before the update."""
        tape = self.tape(x.shape[1])
        tape.forward(x)
        scores = tape.score(y)
        self.gradients(tape)
        self.rule.learn(tape, self.lr)
        # AdamW is elementwise: one call over a flat buffer equals the study's one optimizer per part
        adamw.step(self.buffers.flat, self.buffers.flat_grad, self.moments, self.lr, self.spec.weight_decay)
        return scores

    def tape(self, batch: int) -> Tape:
        """The buffers for a batch of this size (a run needs two: full batches and the epoch's last)."""
        if batch not in self.tapes:
            self.tapes[batch] = Tape(self.net, batch)
        return self.tapes[batch]

    def gradients(self, tape: Tape) -> None:
        """Fill the gradient buffer from one forward pass."""
        grad, rule = self.buffers.grad, self.rule
        mode, eps = self.spec.normalisation, self.spec.rms_eps
        network.readout_gradients(tape, grad)
        rule.begin(tape)
        for l in reversed(range(self.spec.depth)):
            trained = grad.blocks[l] is not None
            if not trained and not rule.relays:
                continue
            credit = rule.block(l)
            if trained:
                drive = self._penalised(driving(rule, credit, mode, eps), tape, l)
                network.pull(tape, l, drive)
                network.block_gradients(tape, l, drive, grad.blocks[l])
            if rule.chains and not (trained and mode == "none"):
                network.pull(tape, l, self._penalised(credit, tape, l) if trained else credit)
        driving(rule, rule.embed(), mode, eps).write_gradient(tape.x, grad.embed)

    def _penalised(self, drive: Credit, tape: Tape, l: int) -> Credit:
        """Add the gradient of lambda * mean_b ||f_l||^2."""
        if self.penalty is None:
            return drive
        return Credit(drive.dense() + tape.blocks[l].f * (2 / tape.batch * self.penalty))

    def state(self) -> dict:
        """Everything a bit-identical continuation needs, as plain tensors."""
        return {"flat": self.buffers.flat, "moments": self.moments._asdict(), "rule": self.rule.tensors()}

    def load_state(self, state: dict) -> None:
        """Continue from `state()`. Frozen blocks and feedback were redrawn from the seed."""
        self.buffers.flat.copy_(state["flat"])
        self.rule.load(state["rule"])
        for name, tensor in self.moments._asdict().items():
            tensor.copy_(state["moments"][name])


def initialised(spec: RunSpec, rule: Rule | None = None, s: int = 0) -> model.ResMLP:
    """The network at its random init; the rule's matrices continue the same random stream."""
    with torch.random.fork_rng(devices=[]):
        torch.manual_seed(spec.seed)
        module = model.ResMLP(spec.width, spec.depth, spec.hidden, spec.final_norm)
        if rule is not None:
            rule.draw(s)
    return module
