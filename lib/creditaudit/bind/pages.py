"""The executed notebooks of a profile: where they lie, how one is read, and the findings on them."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path
from typing import TYPE_CHECKING

from creditaudit import paths
from creditaudit.mistakes import Mistake

if TYPE_CHECKING:  # nbformat takes half a second, and where every page is up to date nothing needs it
    from nbformat import NotebookNode


class NotebookError(Mistake, RuntimeError):
    """A notebook did not run to its end; the message says where, why, and where the remains are."""


def folder(profile: str) -> Path:
    return paths.profile_dir(profile) / "notebooks"


def executed_path(section: str, set_name: str, profile: str) -> Path:
    return folder(profile) / f"{section}--{set_name}.ipynb"


def read(path: Path) -> NotebookNode:
    """An executed notebook, or an error in a sentence."""
    import nbformat

    try:
        return nbformat.read(path, as_version=4)
    except Exception as error:  # nbformat raises whatever it stumbles over
        why = " ".join(str(error).split())[:200]
        raise NotebookError(f"{paths.shown(path)} cannot be read ({why}): `make notebooks` executes it again") from None


def findings(profile: str) -> Iterator[tuple[str, str, str]]:
    """(notebook, state, text) of every finding on the executed pages of a profile."""
    for path in sorted(folder(profile).glob("*.ipynb")):
        for cell in read(path).cells:
            for output in cell.get("outputs", []):
                found = output.get("metadata", {}).get("text/markdown", {}).get("finding")
                if found:
                    yield path.stem, found["state"], output.data["text/markdown"]
