"""Whose turn a run is: whoever trains it holds its lock, so that two machines share a folder without sharing a run."""

from filelock import FileLock, Timeout

from creditaudit.runs.records import Store


class Turn:
    """The lock of one run; the operating system gives it back when its holder dies."""

    def __init__(self, store: Store, key: str) -> None:
        self.record = store.folder / f"{key}.json"
        self.path = store.folder.parent / ".turns" / f"{key}.lock"
        self.lock = FileLock(self.path)

    def take(self, wait: bool = False) -> bool:
        """False where somebody else trains this run."""
        self.path.parent.mkdir(parents=True, exist_ok=True)
        try:
            self.lock.acquire(blocking=wait)
        except Timeout:
            return False
        return True

    def give_back(self) -> None:
        """The lock file of a finished run is removed: who comes later finds the record."""
        if self.record.exists():
            self.path.unlink(missing_ok=True)
        self.lock.release()
