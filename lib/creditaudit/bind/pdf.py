"""The appendix as a PDF through typst: no TeX, no browser, only typst's own fonts.

nbconvert turns a chapter into markdown (template `chapter.md.j2`), one call of pandoc turns that into typst,
and `paper/templates/creditaudit/book.typ` sets it. The standard PDF/UA-1 is the gate: it refuses a picture or
a formula without alternative text.
"""

import base64
import json
import re
import tempfile
from collections.abc import Collection
from pathlib import Path
from typing import Any

import pypandoc
import typst
from nbconvert.exporters import TemplateExporter
from nbformat import NotebookNode
from traitlets.config import Config

from creditaudit.bind.chapters import SHOWN, TEMPLATES, AppendixError, Chapter

TEXT_WIDTH = 164  # mm, as in book.typ
FIGURE_WIDTH = 0.88  # of what it has on the screen
# pandoc's markdown brought near to Jupyter's
DIALECT = (
    "markdown-yaml_metadata_block-citations-superscript-subscript-raw_tex-raw_html-raw_attribute"
    "-native_divs-native_spans-blank_before_header"
    "+lists_without_preceding_blankline+autolink_bare_uris"
)
_SVG_WIDTH = re.compile(r'<svg[^>]*?\bwidth="([\d.]+)pt"')


def _exporter(folder: Path) -> TemplateExporter:
    """One notebook to pandoc's markdown, code left out, pictures written beside it."""

    def picture(output: NotebookNode, kind: str) -> str:
        """An image in pandoc's markdown, as wide as drawn but never wider than the text."""
        label, content = output.metadata.label, output.data[kind]
        suffix = {"image/svg+xml": "svg", "image/png": "png", "image/jpeg": "jpg"}[kind]
        name = f"figure-{label.number}.{suffix}"
        (folder / name).write_bytes(content.encode() if suffix == "svg" else base64.b64decode(content))
        found = _SVG_WIDTH.search(content) if suffix == "svg" else None
        width = min(float(found.group(1)) * 25.4 / 72 * FIGURE_WIDTH, TEXT_WIDTH) if found else TEXT_WIDTH
        alt = " ".join(label.alt.split()).replace("&", "&amp;").replace('"', "&quot;")
        caption = " ".join(label.caption.split())
        notes = f'described="{alt}" width={width:.1f}mm number={label.number}'
        notes += " stays=true" if label.get("stays") else ""
        return f"![{caption}]({name}){{#{label.anchor} {notes}}}"

    return TemplateExporter(
        config=Config(SHOWN),
        template_name=TEMPLATES.name,
        template_file="chapter.md.j2",
        extra_template_basedirs=[str(TEMPLATES.parent)],
        filters={"picture": picture},
    )


def render_pdf(chapters: list[Chapter], small_print: Collection[str] = (), **front: Any) -> bytes:
    """The sections in `small_print` are set in smaller letters; study, headline and references are markdown."""
    with tempfile.TemporaryDirectory() as scratch:
        folder = Path(scratch)
        exporter = _exporter(folder)
        bodies = []
        for chapter in chapters:
            resources = {"chapter": chapter, "last": chapter is chapters[-1]}
            body = _typst(exporter.from_notebook_node(chapter.printed(), resources)[0])
            bodies.append(f"#small-print[\n{body}\n]" if chapter.section in small_print else body)
        (folder / "book.typ").write_text((TEMPLATES / "book.typ").read_text())
        front |= {name: _typst(front.get(name, "")) for name in ("study", "headline")}
        front["references"] = [_typst(text) for text in front.get("references", ())]
        (folder / "front.json").write_text(json.dumps(front))
        main = folder / "main.typ"
        main.write_text('#import "book.typ": *\n#show: book.with(json("front.json"))\n\n' + "\n\n".join(bodies))
        return _compiled(main, folder)


def _typst(markdown: str) -> str:
    """Tables become calls of book.typ's `fitted`: no line is long enough for pandoc to share out widths itself."""
    options = ["--columns=1000000", "--wrap=none", f"--lua-filter={TEMPLATES / 'typst.lua'}"]
    body = pypandoc.convert_text(markdown, "typst", format=DIALECT, extra_args=options)
    return body.replace("[#table(", "[#fitted(")


def _compiled(main: Path, folder: Path) -> bytes:
    try:
        return typst.compile(
            main, root=folder, format="pdf", pdf_standards=["ua-1"], ignore_system_fonts=True, timestamp=0
        )
    except typst.TypstError as error:
        raise AppendixError(
            f"typst refuses the appendix: {error.message} {' '.join(error.hints)}\n{error.diagnostic}"
        ) from error
