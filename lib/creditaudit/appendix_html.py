"""The appendix as one HTML file: nbconvert's machinery, our own templates, nothing loaded from outside.

Each chapter goes through `ChapterExporter` (template `index.html.j2`), then `book.html.j2` binds them.
Pictures are data URIs and formulas inline SVG, so the file opens the same with the network off.
"""

import base64
import re
from html.parser import HTMLParser
from typing import Any

from jinja2 import pass_context
from markupsafe import Markup
from nbconvert.exporters import HTMLExporter
from nbconvert.filters.markdown_mistune import IPythonRenderer, MarkdownWithMath
from traitlets.config import Config

from creditaudit import mathsvg, paths
from creditaudit.chapters import AppendixError, Chapter
from creditaudit.verdicts import VERDICTS

LIMIT = 6_000_000  # bytes
LONG = 40  # letters of prose in a table cell
_CODE = re.compile(r"(?<=<code>).*?(?=</code>)")
_LOADING = {"src", "srcset", "data", "poster", "background", "action", "formaction", "xlink:href"}
_CSS_LOAD = re.compile(r"@import|url\(\s*['\"]?(?!#|data:)", re.IGNORECASE)


class Renderer(IPythonRenderer):
    """Markdown to HTML with drawn math, numbered headings and tables that scroll in their own box."""

    def __init__(self, prefix: str, chapter: int, headings: list[str]) -> None:
        super().__init__(escape=False, exclude_anchor_links=True)
        self.prefix, self.chapter, self.headings = prefix, chapter, headings

    def heading(self, text: str, level: int, **attrs: Any) -> str:
        level = max(level, 2) + 1  # the chapter's title is an h2
        number = ""
        if level == 3:
            self.headings.append(text)
            number = f'<span class="number">{self.chapter}.{len(self.headings)}</span> '
        plain = re.sub(r"<[^>]*>", "", text)
        anchor = f"{self.prefix}-{re.sub(r'[^a-z0-9]+', '-', plain.lower()).strip('-')}"
        return f'<h{level} id="{anchor}">{number}{text}</h{level}>\n'

    def table(self, text: str) -> str:
        return f'<div class="scroll" tabindex="0"><table>{text}</table></div>\n'

    def table_cell(self, text: str, align: str | None = None, head: bool = False) -> str:
        """Prose gets room; a long identifier may break after a dot, a slash or an underscore."""
        text = _CODE.sub(lambda code: re.sub(r"(?<=[._/])", "<wbr>", code.group()), text)
        long = len(re.sub(r"<svg.*?</svg>|<[^>]*>", "", text)) > LONG
        tag = "th" if head else "td"
        kind = f"verdict {text}" if text in VERDICTS else "long" if long else ""
        attributes = (f' class="{kind}"' if kind else "") + (f' style="text-align:{align}"' if align else "")
        return f"<{tag}{attributes}>{text}</{tag}>\n"

    def inline_math(self, body: str) -> str:
        return mathsvg.inline(body)

    def block_math(self, body: str) -> str:
        return mathsvg.block(body)

    def latex_environment(self, name: str, body: str) -> str:
        return mathsvg.block(f"\\begin{{{name}}}{body}\\end{{{name}}}")


class ChapterExporter(HTMLExporter):
    """One notebook to one <section>."""

    def __init__(self, **options: Any) -> None:
        self.headings: list[str] = []
        super().__init__(
            template_name="creditaudit", extra_template_basedirs=[str(paths.PAPER / "templates")], **options
        )

    @property
    def default_config(self) -> Config:
        shown = ["image/svg+xml", "image/png", "image/jpeg", "text/markdown", "text/plain"]
        config = Config({"NbConvertBase": {"display_data_priority": shown}})
        merged = super().default_config.copy()
        merged.merge(config)
        return merged

    def default_filters(self):
        yield from super().default_filters()
        yield "markdown2html", self.markdown
        yield "inline_markdown", self.inline_markdown
        yield "data_uri", data_uri

    @pass_context
    def markdown(self, context: Any, source: str) -> Markup:
        chapter: Chapter = context["resources"]["chapter"]
        renderer = Renderer(chapter.anchor, chapter.number, self.headings)
        return Markup(MarkdownWithMath(renderer=renderer).render(source))

    @pass_context
    def inline_markdown(self, context: Any, source: str) -> Markup:
        """A caption or a title: markdown without its paragraph."""
        return Markup(self.markdown(context, source).strip().removeprefix("<p>").removesuffix("</p>"))

    def chapter(self, chapter: Chapter) -> str:
        self.headings = []
        try:
            body, _ = self.from_notebook_node(chapter.notebook, {"chapter": chapter})
        except mathsvg.MathError as error:
            raise AppendixError(f"{chapter.section}--{chapter.set_name}: {error}") from error
        return body

    def book(self, chapters: list[Chapter], **front: Any) -> str:
        """The whole file: title page, contents, chapters."""
        bodies = [Markup(self.chapter(chapter)) for chapter in chapters]
        titles = [self.title(chapter) for chapter in chapters]
        entries = list(zip(chapters, titles, bodies, strict=True))
        html = self.environment.get_template("book.html.j2").render(entries=entries, **front)
        return re.sub(r"[ \t]+$", "", html, flags=re.MULTILINE)

    def title(self, chapter: Chapter) -> Markup:
        return self.inline_markdown({"resources": {"chapter": chapter}}, chapter.title)


def render_html(chapters: list[Chapter], **front: Any) -> str:
    html = ChapterExporter().book(chapters, **front)
    loaded = external_loads(html)
    if loaded:
        raise AppendixError(f"the appendix would load from outside: {loaded[0]}")
    if len(html.encode()) > LIMIT:
        raise AppendixError(
            f"the appendix has {len(html.encode()) / 1e6:.1f} MB, more than {LIMIT / 1e6:.0f} MB: name fewer sets in "
            "params/appendix.yaml; the executed notebooks are all there"
        )
    return html


def data_uri(content: str, kind: str) -> str:
    """A picture as nbformat stores it (text of an SVG, base64 of anything else), to be put into `src`."""
    encoded = base64.b64encode(content.encode()).decode() if kind == "image/svg+xml" else "".join(content.split())
    return f"data:{kind};base64,{encoded}"


def external_loads(html: str) -> list[str]:
    """Everything in the page that a browser would fetch. A plain link is not: it waits for a click."""
    finder = _LoadFinder()
    finder.feed(html)
    return finder.found


class _LoadFinder(HTMLParser):
    def __init__(self) -> None:
        super().__init__()
        self.found: list[str] = []
        self.in_style = False

    def handle_starttag(self, tag: str, attrs: list[tuple[str, str | None]]) -> None:
        self.in_style = tag == "style"
        for name, value in attrs:
            value = value or ""
            loads = name in _LOADING or (name == "href" and tag not in ("a", "area"))
            outside = not value.startswith(("data:", "#"))
            if (loads and outside) or (name == "style" and _CSS_LOAD.search(value)):
                self.found.append(f"<{tag} {name}={value[:80]!r}>")
        if tag in ("script", "iframe", "object", "embed"):
            self.found.append(f"<{tag}>")

    def handle_endtag(self, tag: str) -> None:
        self.in_style = False

    def handle_data(self, data: str) -> None:
        if self.in_style and (found := _CSS_LOAD.search(data)):
            self.found.append(f"style: {found.group(0)}")
