"""Records that were made elsewhere: believed only after checksum, recipe, name and duplicates were looked at."""

from collections.abc import Callable
from dataclasses import dataclass, field
from pathlib import Path

from creditaudit import paths
from creditaudit.engine.spec import RunSpec
from creditaudit.mistakes import Mistake
from creditaudit.runs import records
from creditaudit.runs.files import RecordError
from creditaudit.runs.records import Record, Store


@dataclass
class Collected:
    """What became of each file."""

    taken: list[str] = field(default_factory=list)
    there_already: list[str] = field(default_factory=list)
    refused: list[str] = field(default_factory=list)  # with the reason


def accept(text: str, spec: RunSpec, store: Store) -> Record:
    """Save what a worker sent; the record that is there already, if any, stays."""
    try:
        record = records.parse(text, store.path(spec))
    except RecordError:
        raise Mistake(f"what arrived for {spec.key} is damaged or of another run: it is not kept") from None
    if (there := store.get(spec)) is not None:
        return there
    store.save(record)
    return record


def collect(folder: Path, store: Store, wanted: Callable[[RunSpec], bool]) -> Collected:
    """Take the records below `folder` that this store lacks; nothing that is there is changed."""
    if folder.resolve() in (store.folder.resolve(), store.folder.parent.resolve()):
        raise Mistake(f"{paths.shown(folder)} is where records are collected: name the folder they come from")
    below = sorted(folder.rglob("*.json"))  # claims and the like lie beside the folder runs, and are no records
    files = [path for path in below if path.parent.name == "runs"] or [path for path in below if path.parent == folder]
    if not files:
        raise Mistake(f"{folder}: no records there; they lie in outputs/<profile>/runs of the other machine")
    found = Collected()
    for path in files:
        try:
            record = records.load(path)
        except RecordError as error:
            found.refused.append(error.problem)
            continue
        where = paths.shown(path)
        if not wanted(record.spec):
            found.refused.append(f"{where}: no section of this profile asks for such a run")
        elif (there := store.get(record.spec)) is None:
            store.save(record)
            found.taken.append(record.spec.key)
        elif (there.epochs, there.final) == (record.epochs, record.final):
            found.there_already.append(record.spec.key)
        else:
            here, elsewhere = (one.provenance.get("cpu", "unknown CPU") for one in (there, record))
            differ = f"its numbers ({elsewhere}) differ from those of the record here ({here}), which stays"
            found.refused.append(f"{where}: {differ}")
    return found
