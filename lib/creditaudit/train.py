"""One run from spec to record: epochs, trajectories, checkpoints, final diagnostics.

A run is a pure function of its spec. Weights and feedback come from the seed, an epoch's batches from (seed, epoch),
so a checkpoint needs no generator state, and a run interrupted anywhere continues to the same bits.
"""

import os
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import torch

from creditaudit import data, diagnostics
from creditaudit.engine import Stack
from creditaudit.records import Record, Store, plain, provenance
from creditaudit.spec import RECIPE, RunSpec

CHECKPOINT_SECONDS = 20.0  # at most this much work is lost when a run is killed

Progress = Callable[[RunSpec, int, float], None]  # spec, epochs done, test accuracy


def prepare_process() -> None:
    """One thread per worker, and no denormals: an exploding DFA run otherwise takes twice the time."""
    torch.set_num_threads(1)
    torch.set_flush_denormal(True)


def run(spec: RunSpec, store: Store, progress: Progress | None = None) -> Record:
    """Train one run, or finish an interrupted one, and save its record. A finished run is only read."""
    if (finished := store.get(spec)) is not None:
        return finished
    prepare_process()
    with torch.inference_mode():
        training = Training(spec, store.folder.parent / "checkpoints" / f"{spec.key}.pt")
        training.complete(progress or (lambda *_: None))
        record = training.record()
    store.save(record)
    training.checkpoint_path.unlink(missing_ok=True)
    return record


class Training:
    """A run in progress."""

    def __init__(self, spec: RunSpec, checkpoint_path: Path) -> None:
        self.spec, self.checkpoint_path = spec, checkpoint_path
        self.data = data.load(spec.data, spec.train_size, spec.test_size)
        self.test_x, self.test_y = data.test_tensors(self.data)
        self.stack = Stack([spec])
        self.start = self.stack.net.to(torch.float64)
        self.log: dict[str, list] = {}
        self.epoch, self.wall, self.cpu = 0, 0.0, 0.0
        self._resume()

    def complete(self, progress: Progress) -> None:
        saved = time.monotonic()
        while self.epoch < self.spec.epochs:
            wall, cpu = time.perf_counter(), time.process_time()
            self._note(self._train_epoch() | self.stack.rule.log() | self._evaluate())
            self.epoch += 1
            self.wall += time.perf_counter() - wall
            self.cpu += time.process_time() - cpu
            if time.monotonic() - saved > CHECKPOINT_SECONDS:
                self._checkpoint()
                saved = time.monotonic()
            progress(self.spec, self.epoch, self.log["test_accuracy"][-1])

    def record(self) -> Record:
        """The full diagnostics, and where every number came from."""
        wall, cpu = time.perf_counter(), time.process_time()
        final = {"test_accuracy": self.log["test_accuracy"][-1]}
        final |= diagnostics.examine(
            self.stack.net, self.start, self.stack.rule, self.test_x, self.test_y, self.spec.seed
        )
        spent = {
            "wall_seconds": self.wall + time.perf_counter() - wall,
            "cpu_seconds": self.cpu + time.process_time() - cpu,
            "diagnostics_cpu_seconds": time.process_time() - cpu,
            "flags": ["flush_denormal"],
        }
        return Record(self.spec, plain(self.log), plain(final), provenance() | spent)

    def _note(self, values: dict[str, Any]) -> None:
        for name, value in values.items():
            self.log.setdefault(name, []).append(value)

    def _train_epoch(self) -> dict[str, float]:
        self.stack.set_epoch(self.epoch)
        loss, hits = torch.zeros(1), torch.zeros(1, dtype=torch.int64)
        for x, y in data.batches(self.data, self.spec.seed, self.epoch, self.spec.batch, self.spec.augment):
            batch_loss, batch_hits = self.stack.step(x.unsqueeze(0), y.unsqueeze(0))
            loss += batch_loss
            hits += batch_hits
        seen = len(self.data.train_labels)
        return {"train_loss": loss.item() / seen, "train_accuracy": hits.item() / seen}

    def _evaluate(self) -> dict[str, Any]:
        """Test loss and accuracy, and median norms of states and exact gradients on the first 1024 test pictures."""
        loss, hits, norms = 0.0, 0, {}
        chunks = zip(*(t.split(diagnostics.TRAJECTORY_BATCH) for t in (self.test_x, self.test_y)), strict=True)
        for x, y in chunks:
            tape = self.stack.tape(len(y))
            tape.forward(x.unsqueeze(0))
            batch_loss, batch_hits = tape.score(y.unsqueeze(0))
            loss += batch_loss.item()
            hits += batch_hits.item()
            if not norms:
                norms = {
                    "h_norm": diagnostics.medians(tape.h),
                    "g_norm": diagnostics.medians(diagnostics.reference_gradients(tape)),
                }
        seen = len(self.test_y)
        return {"test_loss": loss / seen, "test_accuracy": hits / seen} | norms

    def _checkpoint(self) -> None:
        self.checkpoint_path.parent.mkdir(parents=True, exist_ok=True)
        scratch = self.checkpoint_path.with_suffix(f".{os.getpid()}")
        state = {"recipe": RECIPE, "epoch": self.epoch, "log": self.log, "wall": self.wall, "cpu": self.cpu}
        torch.save(state | {"stack": self.stack.state()}, scratch)
        scratch.replace(self.checkpoint_path)

    def _resume(self) -> None:
        if not self.checkpoint_path.exists():
            return
        state = torch.load(self.checkpoint_path, weights_only=True)
        if state["recipe"] == RECIPE:
            self.stack.load_state(state["stack"])
            self.epoch, self.log = state["epoch"], state["log"]
            self.wall, self.cpu = state["wall"], state["cpu"]
