"""Signs of life: no step that takes long is silent for more than ten seconds."""

import threading
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager

QUIET = 8.0  # seconds without a word, after which one is due


@contextmanager
def heartbeat(status: Callable[[], str], every: float = QUIET) -> Iterator[None]:
    """While the body works, print `status()` now and then."""
    over = threading.Event()

    def beat() -> None:
        while not over.wait(every):
            print(status(), flush=True)

    thread = threading.Thread(target=beat, daemon=True)
    thread.start()
    try:
        yield
    finally:
        over.set()
        thread.join()


class Tally:
    """How many of several alike pieces are done, and when the last one will be."""

    def __init__(self, what: str, pieces: float, unit: str = "") -> None:
        self.what, self.pieces, self.unit, self.done, self.begun = what, pieces, unit, 0.0, time.monotonic()

    def status(self) -> str:
        if not self.pieces:  # some servers do not say how much there is
            return f"{self.what}: {self.done:.0f}{self.unit} done"
        said = f"{self.what}: {self.done:.0f} of {self.pieces:.0f}{self.unit} done"
        if not self.done:
            return said
        left = (time.monotonic() - self.begun) * (self.pieces - self.done) / self.done
        return f"{said}, about {left:.0f} s left"
