"""One run from spec to record: epochs, trajectories, checkpoints, final diagnostics.

A run is a pure function of its spec. Weights and feedback come from the seed, an epoch's batches from (seed, epoch),
so a checkpoint needs no generator state, and a run interrupted anywhere continues to the same bits.
"""

import os
import sys
import time
from collections.abc import Callable, Iterator, Sequence
from pathlib import Path

import numpy as np
import torch
from torch import Tensor

from creditaudit import paths
from creditaudit.engine import catalogue, data
from creditaudit.engine.literal import Literal
from creditaudit.engine.spec import RunSpec
from creditaudit.engine.step import Stack, training_mode
from creditaudit.measure import diagnostics, modules
from creditaudit.runs import checkpoints
from creditaudit.runs.provenance import provenance
from creditaudit.runs.records import Record, Store, plain

CHECKPOINT_SECONDS = float(os.environ.get("CREDITAUDIT_CHECKPOINT_SECONDS", 20))  # lost at most, when a run is killed

Progress = Callable[[str, int], None]  # a run's key, epochs done


def run(spec: RunSpec, store: Store, progress: Progress | None = None) -> Record:
    """Train one run, or finish an interrupted one, and save its record. A finished run is only read."""
    if (finished := store.get(spec)) is not None:
        return finished
    return run_stack([spec], store, progress)[0]


def run_stack(
    specs: Sequence[RunSpec],
    store: Store,
    progress: Progress | None = None,
    device: str = "cpu",
    kind: "type[Training] | None" = None,
) -> list[Record]:
    """Train runs that differ only in seed and lambda as one stack (on a CPU a stack of one is fastest)."""
    checkpoint = store.folder.parent / "checkpoints" / f"{specs[0].key}-{len(specs)}.pt"
    with training_mode():
        training = (kind or Training)(specs, checkpoint, device)
        training.complete(progress or (lambda *_: None))
        records = training.records()
    for record in records:
        store.save(record)
    checkpoint.unlink(missing_ok=True)
    return records


class Training:
    """A stack of runs in progress; most often of one."""

    def __init__(self, specs: Sequence[RunSpec], checkpoint_path: Path, device: str = "cpu") -> None:
        self.specs, self.spec, self.checkpoint_path, self.device = list(specs), specs[0], checkpoint_path, device
        self.data = data.load(self.spec.data, self.spec.train_size, self.spec.test_size, self.spec.validation)
        self.test_x, self.test_y = (tensor.to(device) for tensor in data.test_tensors(self.data))
        self.stack: Stack | Literal
        if self.spec.network == "resmlp":
            self.stack = Stack(self.specs, device=self.device)
            self.start = self.stack.net.to(torch.float64)
        else:  # alone: autograd knows nothing of stacks
            self.stack = Literal(self.spec)
            self.start = {name: tensor.clone() for name, tensor in self.stack.state()["parameters"].items()}
        self.logs: list[dict[str, list]] = [{} for _ in self.specs]
        self.epoch, self.wall, self.cpu = 0, 0.0, 0.0
        self.earlier: list[dict] = []  # who made the checkpoints from which this was resumed, and after which epoch
        self._resume()

    def complete(self, progress: Progress) -> None:
        saved = time.monotonic()
        while self.epoch < self.spec.epochs:
            wall, cpu = time.perf_counter(), time.process_time()
            values = self._train_epoch() | self._evaluate()  # name -> one entry per run
            for name, entries in values.items():
                for log, entry in zip(self.logs, entries, strict=True):
                    log.setdefault(name, []).append(entry)
            self.epoch += 1
            self.wall += time.perf_counter() - wall
            self.cpu += time.process_time() - cpu
            if time.monotonic() - saved > CHECKPOINT_SECONDS:
                self._checkpoint()
                saved = time.monotonic()
            for spec in self.specs:
                progress(spec.key, self.epoch)

    def records(self) -> list[Record]:
        return [self._record(s) for s in range(len(self.specs))]

    def _record(self, s: int) -> Record:
        """The full diagnostics of one run, and where every number came from."""
        wall, cpu = time.perf_counter(), time.process_time()
        spec, log, run = self.specs[s], self.logs[s], slice(s, s + 1)
        test = self.test_x.cpu(), self.test_y.cpu(), spec.seed
        final = {"test_accuracy": log["test_accuracy"][-1]}
        if isinstance(self.stack, Literal):
            final |= modules.examine(self.stack, self.start, *test)
        else:
            net, start = (whole.run(s).to(torch.float64, "cpu") for whole in (self.stack.net, self.start))
            final |= diagnostics.examine(net, start, self.stack.rule.to(torch.float64, "cpu", run), *test)
        spent = {
            "wall_seconds": self.wall / len(self.specs) + time.perf_counter() - wall,
            "cpu_seconds": self.cpu / len(self.specs) + time.process_time() - cpu,
            "diagnostics_cpu_seconds": time.process_time() - cpu,
            "flags": ["flush_denormal"],
            "threads": torch.get_num_threads(),
            "device": self.device,
            "stacked": len(self.specs),
        }
        if (code := catalogue.digest(spec.method)) is not None:
            spent["rule"] = code
        if self.earlier:
            spent["resumed_from"] = self.earlier
        return Record(spec, plain(log), plain(final), provenance() | spent)

    def _batches(self) -> Iterator[tuple[Tensor, Tensor]]:
        """[S, B, pixels] and [S, B]; runs of one seed share their batch."""
        seeds = dict.fromkeys(spec.seed for spec in self.specs)
        pictures = [self.data if self.spec.labels == "true" else data.randomised(self.data, seed) for seed in seeds]
        plan = self.epoch, self.spec.batch, self.spec.augment
        sources = [data.batches(given, seed, *plan) for given, seed in zip(pictures, seeds, strict=True)]
        where = [list(seeds).index(spec.seed) for spec in self.specs]
        for parts in zip(*sources, strict=True):
            if len(parts) == 1:
                yield tuple(part.unsqueeze(0).to(self.device) for part in parts[0])
            else:
                x, y = (torch.stack([parts[i][side] for i in where]).to(self.device) for side in (0, 1))
                yield x, y

    def _train_epoch(self) -> dict[str, list]:
        self.stack.set_epoch(self.epoch)
        loss = torch.zeros(len(self.specs), device=self.device)
        hits = torch.zeros(len(self.specs), dtype=torch.int64, device=self.device)
        steps = self.spec.steps // self.spec.epochs
        for step, (x, y) in enumerate(self._batches()):
            if self.spec.decay == "step":
                self.stack.set_epoch(self.epoch + step / steps)
            batch_loss, batch_hits = self.stack.step(x, y)
            loss += batch_loss
            hits += batch_hits
        seen = len(self.data.train_labels)
        return {
            "train_loss": [value / seen for value in loss.tolist()],
            "train_accuracy": [value / seen for value in hits.tolist()],
            **({} if isinstance(self.stack, Literal) else self.stack.rule.log()),
        }

    def _evaluate(self) -> dict[str, list]:
        """Test loss and accuracy, and median norms of states and exact gradients on the first 1024 test pictures."""
        if isinstance(self.stack, Literal):
            return modules.evaluate(self.stack, self.test_x, self.test_y)
        runs, norms = len(self.specs), {}
        loss, hits = np.zeros(runs), np.zeros(runs, np.int64)
        chunks = zip(*(t.split(diagnostics.TRAJECTORY_BATCH) for t in (self.test_x, self.test_y)), strict=True)
        for x, y in chunks:
            tape = self.stack.tape(len(y))
            tape.forward(x.unsqueeze(0))
            batch_loss, batch_hits = tape.score(y.unsqueeze(0))
            loss += batch_loss.tolist()
            hits += batch_hits.tolist()
            if not norms:
                norms = {
                    "h_norm": diagnostics.medians(tape.h),
                    "g_norm": diagnostics.medians(diagnostics.reference_gradients(tape)),
                    **diagnostics.credit_balance(self.stack.rule, tape, self.spec.normalisation, self.spec.rms_eps),
                }
        seen = len(self.test_y)
        return {"test_loss": (loss / seen).tolist(), "test_accuracy": (hits / seen).tolist()} | norms

    def _checkpoint(self) -> None:
        state = {"runs": self._runs(), "code": provenance()["code"], "stack": self.stack.state()}
        state |= {"epoch": self.epoch, "logs": self.logs, "wall": self.wall, "cpu": self.cpu}
        state["makers"] = [*self.earlier, provenance() | {"epoch": self.epoch}]
        checkpoints.write(self.checkpoint_path, state)

    def _resume(self) -> None:
        """Go on from the checkpoint; one that is damaged, of other runs or of other code is as good as none."""
        if not self.checkpoint_path.exists():
            return
        try:
            state = checkpoints.read(self.checkpoint_path, self.device)
        except checkpoints.DamagedCheckpoint as error:
            self._tell(f"it is damaged: {error}")
            return
        if state.get("runs") != self._runs():
            return
        if state.get("code") != provenance()["code"]:
            self._tell("other code wrote it")
            return
        self.stack.load_state(state["stack"])
        self.epoch, self.logs, self.earlier = state["epoch"], state["logs"], state["makers"]
        self.wall, self.cpu = state["wall"], state["cpu"]

    def _tell(self, why: str) -> None:
        where = paths.shown(self.checkpoint_path)
        print(f"{where} is not used ({why}): its run starts again from the first epoch", file=sys.stderr)

    def _runs(self) -> list[str]:
        """Whose checkpoint it is; a key holds the recipe too, and a rule that is not the study's its code."""
        return ["-".join(filter(None, [spec.key, catalogue.digest(spec.method)])) for spec in self.specs]
