"""A run's checkpoint: what a bit-identical continuation needs, after a line with the digest of every byte of it.

A flipped bit in the weights still loads, and trains on to numbers that nobody would doubt; hence the digest.
"""

import hashlib
import io
from pathlib import Path
from typing import Any

import torch

from creditaudit.mistakes import Mistake
from creditaudit.runs.files import write_atomically

_MARK = b"creditaudit checkpoint sha256 "


class DamagedCheckpoint(Mistake, ValueError):
    """The file is not what was written; the message says in which way."""


def write(path: Path, state: dict[str, Any]) -> None:
    body = io.BytesIO()
    torch.save(state, body)
    content = body.getbuffer()
    write_atomically(path, _head(content), content)


def read(path: Path, device: str = "cpu") -> dict[str, Any]:
    """The state as it was written, to the bit, or `DamagedCheckpoint`."""
    try:
        content = memoryview(path.read_bytes())
    except OSError as error:
        raise DamagedCheckpoint(error.strerror or str(error)) from None
    size = len(_head(b""))
    if content[:size] != _head(content[size:]):
        raise DamagedCheckpoint("it does not match its digest")
    return torch.load(io.BytesIO(content[size:]), weights_only=True, map_location=device)


def _head(content: bytes | memoryview) -> bytes:
    return _MARK + hashlib.sha256(content).hexdigest().encode() + b"\n"
