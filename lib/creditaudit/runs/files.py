"""Files that are there whole or not at all, that carry a checksum, and that one process changes at a time."""

import hashlib
import json
import os
import platform
import re
import shutil
import sys
import tempfile
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from pathlib import Path
from typing import Any, NoReturn

from filelock import FileLock, Timeout
from pydantic import TypeAdapter, ValidationError

from creditaudit import paths
from creditaudit.mistakes import Mistake

SCRATCH = ".scratch"
SILENT = 3600.0  # seconds after which nobody can still be writing
_OWN_SUM = re.compile(r'"sha256": "[0-9a-f]{64}", ')


class Unwritable(Mistake, OSError):
    """A file cannot be written: disk full, read-only, a folder in its place; the message says which and why."""


class RecordError(Mistake, RuntimeError):
    """A record cannot be believed; the message says which file, why, and what to do."""

    def __init__(self, path: Path, why: str, remedy: str = "delete {} to have it made again") -> None:
        self.path, self.why, where = path, why, paths.shown(path)
        self.problem = where + why
        super().__init__(f"{self.problem}; {remedy.format(where)}")


def checksum(body: dict[str, Any]) -> str:
    """Over everything but the checksum itself, so an edited number is noticed."""
    content = {name: value for name, value in body.items() if name != "sha256"}
    return hashlib.sha256(json.dumps(content, sort_keys=True, allow_nan=False).encode()).hexdigest()


def _checksum_of_text(text: str) -> str:
    """The same of a file as `checked_text` writes it, where only line breaks stand between it and what was summed."""
    compact = re.sub(r"\n *", "", text.replace(",\n", ", \n"))
    return hashlib.sha256(_OWN_SUM.sub("", compact, count=1).encode()).hexdigest()


def read_checked(path: Path) -> dict[str, Any]:
    """A JSON object that carries its own checksum; the checksum itself is left out of what is returned."""
    return checked(text_of(path), path)


def text_of(path: Path) -> str:
    try:
        if not path.is_file():  # a pipe would keep us waiting
            raise RecordError(path, " is no file")
        return path.read_text("utf-8")
    except UnicodeDecodeError as error:
        raise RecordError(path, f" is not valid JSON ({error})") from None
    except OSError as error:
        raise RecordError(path, f" cannot be read ({error.strerror or error})") from None


def checked(text: str, path: Path) -> dict[str, Any]:
    """The object that stands in that file, or is to."""
    try:
        body = json.loads(text, parse_constant=_no_number, object_pairs_hook=_without_doubles)
        claimed = body.pop("sha256", None) if isinstance(body, dict) else None
        as_written = claimed and claimed == _checksum_of_text(text)
        actual = claimed if as_written else checksum(body) if claimed else ""
    except (ValueError, RecursionError) as error:  # no JSON, 1e999, a thousand brackets
        raise RecordError(path, f" is not valid JSON ({error})") from None
    if not claimed or claimed != actual:
        raise RecordError(path, " does not match its checksum: a number in it was changed by hand")
    return body


def _without_doubles(pairs: list[tuple[str, Any]]) -> dict[str, Any]:
    found = dict(pairs)
    if len(found) < len(pairs):
        names = [name for name, _ in pairs]
        raise ValueError(f"{next(name for name in names if names.count(name) > 1)!r} stands twice in one object")
    return found


def conforming(kind: Any, content: Any, path: Path) -> Any:
    """What was read from a file as a value of this type, or an error that names the place in the file."""
    try:
        return TypeAdapter(kind).validate_python(content)
    except ValidationError as error:
        problem = error.errors()[0]
        place = "".join(f", {name}" for name in problem["loc"])
        raise RecordError(path, f"{place}: {problem['msg'].lower()}") from None


def _no_number(word: str) -> None:
    raise ValueError(f"{word} is no number")


def checked_text(body: dict[str, Any]) -> str:
    return json.dumps(body | {"sha256": checksum(body)}, indent=1, sort_keys=True, allow_nan=False) + "\n"


def write_checked(path: Path, body: dict[str, Any]) -> None:
    write_atomically(path, checked_text(body))


def write_atomically(path: Path, *content: str | bytes | memoryview) -> None:
    """The file is there whole, or as it was before; what cannot be written leaves nothing behind but a sentence."""
    scratch = scratch_path(path)
    try:
        path.parent.mkdir(parents=True, exist_ok=True)
        with scratch.open("wb") as file:
            for part in content:
                file.write(part.encode() if isinstance(part, str) else part)
            file.flush()
            os.fsync(file.fileno())  # its checkpoint is removed next
        scratch.replace(path)
    except OSError as error:
        _fail(path, error)
    finally:
        with suppress(OSError):
            scratch.unlink()


def _fail(path: Path, error: OSError) -> NoReturn:
    raise Unwritable(
        f"{paths.shown(path)} cannot be written ({error.strerror or error}): mend that, and the same command goes on; "
        "what was finished before is kept"
    ) from None


def scratch_path(path: Path) -> Path:
    """Where this process prepares a file or a folder of that name."""
    return path.with_name(f".{path.name}.{os.getpid()}@{platform.node()}{SCRATCH}")


@contextmanager
def scratch_folder(target: Path) -> Iterator[Path]:
    """A folder beside the target for what is prepared in several files; gone afterwards."""
    folder = scratch_path(target)
    try:
        folder.mkdir(parents=True, exist_ok=True)
    except OSError as error:
        _fail(folder, error)
    try:
        yield folder
    finally:
        shutil.rmtree(folder, ignore_errors=True)


def sweep_scratch(folder: Path) -> None:
    """Remove what killed processes had begun to write, anywhere in the folder."""
    scratch = list(folder.rglob(f".*{SCRATCH}"))
    now = _clock_of(folder) if scratch else 0.0
    for path in scratch:
        if _is_abandoned(path, now):
            shutil.rmtree(path, ignore_errors=True) if path.is_dir() else path.unlink(missing_ok=True)


def _clock_of(folder: Path) -> float:
    """The time by the clock that dates the folder's files: of two machines on one disk, one may be a day off."""
    with suppress(OSError), tempfile.NamedTemporaryFile(dir=folder, prefix=".clock.") as file:
        return Path(file.name).stat().st_mtime
    return 0.0  # a disk that takes nothing: nothing on it is old


def _is_abandoned(scratch: Path, now: float) -> bool:
    """Its process is gone; of another machine's (on a shared disk) only that it has been silent for long is known."""
    pid, _, machine = scratch.name.removesuffix(SCRATCH).rpartition(".")[2].partition("@")
    with suppress(OSError):
        if now - max(path.stat().st_mtime for path in (scratch, *scratch.rglob("*"))) > SILENT:
            return True
    if machine != platform.node() or not pid.isdigit():
        return False
    try:
        os.kill(int(pid), 0)
    except ProcessLookupError:
        return True
    except OSError:
        return False
    return False


@contextmanager
def locked(path: Path, busy: str = "") -> Iterator[None]:
    """Whoever changes this file or folder holds its lock; the next one waits, and says `busy`."""
    lock = FileLock(path.with_name(f".{path.name}.lock"))
    try:
        path.parent.mkdir(parents=True, exist_ok=True)
        lock.acquire(blocking=False)
    except Timeout:
        if busy:
            print(busy, file=sys.stderr, flush=True)
        lock.acquire()
    except OSError as error:
        _fail(path, error)
    try:
        yield
    finally:
        lock.release()
