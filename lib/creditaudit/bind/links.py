"""Where the appendix leads: a claim to its row in the register, a run to its record, a figure to its files."""

import os
from pathlib import Path

from creditaudit import paths
from creditaudit.bind import pages
from creditaudit.bind.chapters import Chapter
from creditaudit.study import params


class Links:
    """Addresses relative to the folder of the page; only of what is there."""

    def __init__(self, chapters: list[Chapter], profile: str, folder: Path) -> None:
        self.profile, self.folder = profile, folder
        self.claims = {row["id"]: row for chapter in chapters for row in _rows(chapter)}
        self.chapters = {f"{chapter.section}/{chapter.set_name}": chapter for chapter in chapters}
        self.records = {path.stem: path for path in (paths.profile_dir(profile) / "runs").glob("*.json")}

    def to(self, path: Path) -> str:
        return os.path.relpath(path, self.folder).replace(os.sep, "/")

    def of_code(self, text: str) -> str | None:
        """Where `text`, set as code, leads, if anywhere."""
        if text in self.claims:
            return f"#{text}"
        return self.to(self.records[text]) if text in self.records else None

    def first_claim(self, chapter: Chapter) -> str | None:
        """The first row of the register about a chapter's section and set."""
        place = f"{chapter.section}/{chapter.set_name}"
        return next((f"#{name}" for name, row in self.claims.items() if row["section"] == place), None)

    def section(self, place: str) -> tuple[int, str] | None:
        """Number and address of the chapter about a section and set, or of the section's first one."""
        section = place.partition("/")[0]
        others = (chapter for chapter in self.chapters.values() if chapter.section == section)
        chapter = self.chapters.get(place) or next(others, None)
        return (chapter.number, f"#{chapter.anchor}") if chapter else None

    def sources(self, chapter: Chapter, name: str | None = None) -> list[tuple[str, str]]:
        """The files behind a chapter, or behind its figure of this name."""
        outputs, stem = paths.profile_dir(self.profile), f"{chapter.section}--{chapter.set_name}"
        stem = chapter.section if chapter.set_name == params.DEFAULT_SET else stem
        pictures = [outputs / "figures" / f"{name}.{ending}" for ending in ("svg", "png")] if name else []
        tables = [outputs / "tables" / f"{each}.csv" for each in (name, stem) if each]
        found = {
            "picture": pictures,
            "data (CSV)": tables,
            "notebook": [params.source_path(chapter.section)],
            "with outputs": [] if name else [pages.executed_path(chapter.section, chapter.set_name, self.profile)],
            "parameters": [paths.PARAMS / chapter.section / f"{chapter.set_name}.yaml"],
        }
        there = {word: next((path for path in places if path.exists()), None) for word, places in found.items()}
        return [(word, self.to(path)) for word, path in there.items() if path]


def _rows(chapter: Chapter) -> list[dict[str, str]]:
    outputs = (output for cell in chapter.notebook.cells for output in cell.get("outputs", []))
    return [row for output in outputs for row in output.get("metadata", {}).get("label", {}).get("rows", [])]
