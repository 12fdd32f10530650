"""The appendix as one HTML file: nbconvert's machinery, our own templates, nothing loaded from outside.

Each chapter goes through `ChapterExporter` (template `index.html.j2`), then `book.html.j2` binds them.
Pictures are data URIs and formulas inline SVG, so the file opens the same with the network off.

The page only shows: whatever a record, a claim or a name says is text. Templates escape what is not marked as HTML,
markdown has no HTML in it, a finished page that could act or load is refused, and a policy in its head tells the
browser the same. The one exception is our own `appendix.js`, word for word, without which the page is complete.
"""

import base64
import hashlib
import re
from functools import cache
from html import escape
from html.parser import HTMLParser
from typing import Any
from urllib.parse import quote

from jinja2 import Environment, pass_context
from markupsafe import Markup
from nbconvert.exporters import HTMLExporter
from nbconvert.filters.highlight import Highlight2HTML
from nbconvert.filters.markdown_mistune import IPythonRenderer, MarkdownWithMath
from traitlets.config import Config

from creditaudit.bind import mathsvg
from creditaudit.bind.chapters import SHOWN, TEMPLATES, AppendixError, Chapter, slug
from creditaudit.bind.links import Links
from creditaudit.study.verdicts import VERDICTS

LIMIT = 4_000_000  # bytes
LONG = 40  # letters of prose in a table cell
_MARKUP = re.compile(r"<svg.*?</svg>|<[^>]*>")
_CODE = re.compile(r"(?<=<code>).*?(?=</code>)")
_RECORDS = re.compile(r'(?:<a href="[^#"][^"]*"><code>[^<]*(?:<wbr>[^<]*)*</code></a>\s*)+')
_FIRST = re.compile(r"\A<td([^>]*)>(.*?)</td>", re.DOTALL)
DOUBLE, SINGLE = '"', "'"
_PLAIN = " =:/;,.()-+'!*_~?@$"  # what may stand in an address within an attribute as it is
_LOADING = {"src", "srcset", "data", "poster", "background", "action", "formaction", "xlink:href"}
_ACTING = {
    "script", "iframe", "frame", "object", "embed", "applet", "form", "input", "button", "base", "link",
    "foreignobject", "animate", "set", "template", "portal",
}  # fmt: skip
_SCHEME = re.compile(r"([a-z][a-z0-9+.-]*):")
POLICY = "default-src 'none'; img-src data:; style-src 'unsafe-inline'; script-src 'sha256-{}'"
POLICY += "; base-uri 'none'; form-action 'none'"
_UNSEEN = re.compile(r'<span class="(?:n|p|o|w|bp|nn|nf|nc|fm|vm|nd|err)">(.*?)</span>')  # tokens that have no colour
_CSS_LOAD = re.compile(r"@import|url\(\s*['\"]?(?!#|data:)", re.IGNORECASE)


class Renderer(IPythonRenderer):
    """Markdown to HTML with drawn math, numbered headings, links, and tables that scroll in their own box."""

    def __init__(self, chapter: Chapter, headings: list[tuple[str, str]], links: Links) -> None:
        super().__init__(escape=True, allow_harmful_protocols=False, exclude_anchor_links=True)
        self.chapter, self.headings, self.links = chapter, headings, links

    def heading(self, text: str, level: int, **attrs: Any) -> str:
        level = max(level, 2) + 1  # the chapter's title is an h2
        anchor = f"{self.chapter.anchor}-{slug(_MARKUP.sub('', text))}"
        number = ""
        if level == 3:
            self.headings.append((anchor, Markup(text)))
            number = f'<span class="number">{self.chapter.number}.{len(self.headings)}</span> '
        return f'<h{level} id="{anchor}">{number}{text} {self_link(anchor)}</h{level}>\n'

    def codespan(self, text: str) -> str:
        """The name of a claim or of a run leads to it."""
        shown, href = super().codespan(text), self.links.of_code(text)
        return f'<a href="{escape(href)}">{shown}</a>' if href else shown

    def link(self, text: str, url: str, title: str | None = None) -> str:
        """One that would run something (javascript:, data:) is its words alone."""
        return super().link(text, url, title) if self.sanitize_url(url) == url else text

    def table(self, text: str) -> str:
        return f'<div class="scroll" tabindex="0"><table>{text}</table></div>\n'

    def table_cell(self, text: str, align: str | None = None, head: bool = False) -> str:
        """Prose gets room; a long identifier may break after a dot, a slash or an underscore."""
        text = _CODE.sub(lambda code: re.sub(r"(?<=[._/])", "<wbr>", code.group()), text)
        long = len(_MARKUP.sub("", text)) > LONG
        tag = "th" if head else "td"
        kind = f"verdict {text}" if text in VERDICTS else "long" if long else ""
        if _RECORDS.fullmatch(text):
            runs = text.count("<a ")
            text, kind = f"<details><summary>{runs} run{'s' * (runs > 1)}</summary>{text}</details>", ""
        kind = " ".join(filter(None, [kind, align if align != "left" else ""]))
        attributes = (' scope="col"' if head else "") + (f' class="{kind}"' if kind else "")
        return f"<{tag}{attributes}>{text}</{tag}>"

    def table_row(self, text: str) -> str:
        """The first cell names the row."""
        return "<tr>" + _FIRST.sub(r'<th scope="row"\1>\2</th>', text) + "</tr>\n"

    def inline_math(self, body: str) -> str:
        return mathsvg.inline(body)

    def block_math(self, body: str) -> str:
        return mathsvg.block(body)

    def latex_environment(self, name: str, body: str) -> str:
        return mathsvg.block(f"\\begin{{{name}}}{body}\\end{{{name}}}")


def self_link(anchor: str) -> Markup:
    return Markup('<a class="self" href="#{}" aria-label="link to this place">#</a>').format(anchor)


class ChapterExporter(HTMLExporter):
    """One notebook to one <section>."""

    def __init__(self, links: Links) -> None:
        self.links = links
        self.headings: list[tuple[str, str]] = []  # anchor and text
        self.highlight = Highlight2HTML(pygments_lexer="python")
        filters = {"data_uri": data_uri, "keyed": keyed, "self_link": self_link, "code": self.code}
        super().__init__(
            config=Config(SHOWN),
            template_name=TEMPLATES.name,
            extra_template_basedirs=[str(TEMPLATES.parent)],
            filters=filters | {"markdown2html": self.markdown, "inline_markdown": self.inline_markdown},
        )

    @pass_context
    def markdown(self, context: Any, source: str) -> Markup:
        chapter: Chapter = context["resources"]["chapter"]
        renderer = Renderer(chapter, self.headings, self.links)
        return Markup(MarkdownWithMath(renderer=renderer).render(source))

    @pass_context
    def inline_markdown(self, context: Any, source: str) -> Markup:
        """A caption or a title: markdown without its paragraph."""
        return Markup(self.markdown(context, source).strip().removeprefix("<p>").removesuffix("</p>"))

    def code(self, source: str) -> Markup:
        return Markup(_UNSEEN.sub(r"\1", self.highlight(source)))

    def _create_environment(self) -> Environment:
        environment = super()._create_environment()
        environment.autoescape = True
        return environment

    def chapter(self, chapter: Chapter) -> tuple[Markup, list[tuple[str, str]]]:
        """Its HTML and its headings."""
        self.headings = []
        try:
            body, _ = self.from_notebook_node(chapter.notebook, {"chapter": chapter, "links": self.links})
        except mathsvg.MathError as error:
            raise AppendixError(f"{chapter.section}--{chapter.set_name}: {error}") from error
        return Markup(body), self.headings

    def book(self, chapters: list[Chapter], **front: Any) -> str:
        """The whole file: title page, contents, chapters, references."""
        bodies = [self.chapter(chapter) for chapter in chapters]
        titles = [self.inline(chapter.title, chapter) for chapter in chapters]
        front |= {name: self.inline(front.get(name, ""), chapters[0]) for name in ("study", "headline")}
        front["references"] = [self.inline(text, chapters[0]) for text in front.get("references", ())]
        front["policy"] = POLICY.format(base64.b64encode(hashlib.sha256(script().encode()).digest()).decode())
        entries = list(zip(chapters, titles, bodies, strict=True))
        template = self.environment.get_template("book.html.j2")
        html = template.render(entries=entries, script=Markup(script()), **front)
        html = html.replace("</body>", f"{mathsvg.glyphs(html)}</body>")
        return re.sub(r"[ \t]+$", "", html, flags=re.MULTILINE)

    def inline(self, markdown: str, chapter: Chapter) -> Markup:
        return self.inline_markdown({"resources": {"chapter": chapter}}, markdown)


@cache
def script() -> str:
    """What the page may do: our own file, word for word."""
    return (TEMPLATES / "appendix.js").read_text("utf-8")


def render_html(chapters: list[Chapter], links: Links, **front: Any) -> str:
    html = ChapterExporter(links).book(chapters, **front)
    rest = html.replace(f"<script>{script()}</script>", "", 1)  # ours is the one script; any other is refused
    if forbidden := loading_or_acting(rest):
        raise AppendixError(f"the appendix would do more than show: {forbidden[0]}")
    if len(html.encode()) > LIMIT:
        raise AppendixError(
            f"the appendix has {len(html.encode()) / 1e6:.1f} MB, more than {LIMIT / 1e6:.0f} MB: name fewer sets in "
            "params/appendix.yaml; the executed notebooks are all there"
        )
    return html


def keyed(table: str, rows: list[dict[str, str]], links: Links) -> Markup:
    """The rows of a table's body with their ids, what they can be chosen by, and a link to their section."""
    head, body, rest = re.split(r"(?<=<tbody>)|(?=</tbody>)", table)
    notes = iter(rows)

    def row(found: re.Match[str]) -> str:
        note = next(notes)
        chosen = Markup("").join(Markup(' data-{}="{}"').format(*item) for item in note.items() if item[0] != "id")
        number, href = links.section(note["section"]) or (None, "")
        section = Markup(' <a class="section" href="{}">section {}</a>').format(href, number) if number else ""
        return Markup('<tr id="{}"{}>{}{}</th>').format(note["id"], chosen, Markup(found[1]), section)

    return Markup(head + re.sub(r"<tr>(.*?)</th>", row, body, flags=re.DOTALL) + rest)


def data_uri(content: str, kind: str) -> str:
    """A picture as nbformat stores it (text of an SVG, base64 of anything else), to be put into `src`."""
    if kind != "image/svg+xml":
        return f"data:{kind};base64,{''.join(content.split())}"
    return Markup(f"data:{kind},{quote(content.replace(DOUBLE, SINGLE), safe=_PLAIN)}")  # a third less than base64


def loading_or_acting(html: str) -> list[str]:
    """Everything in the page that a browser would fetch or that could act; a plain link waits for a click."""
    finder = _Finder()
    finder.feed(html)
    return finder.found


class _Finder(HTMLParser):
    """Finds pictures, styles and fonts from elsewhere, scripts, handlers, forms, refreshes, links that run code."""

    def __init__(self) -> None:
        super().__init__()
        self.found: list[str] = []
        self.in_style = False

    def handle_starttag(self, tag: str, attrs: list[tuple[str, str | None]]) -> None:
        self.in_style = tag == "style"
        values = {name: (value or "").strip() for name, value in attrs}
        acts = tag in _ACTING or any(name.startswith("on") or name in ("srcdoc", "formaction") for name in values)
        acts |= tag == "meta" and values.get("http-equiv", "").lower() not in ("", "content-security-policy")
        link = re.sub(r"[\x00-\x20]", "", values.get("href") or values.get("xlink:href") or "").lower()
        scheme = _SCHEME.match(link)
        acts |= bool(scheme) and scheme[1] not in ("http", "https", "mailto")
        loading = _LOADING if tag in ("a", "area") else _LOADING | {"href"}
        loads = any(name in loading and not value.startswith(("data:", "#")) for name, value in values.items())
        if acts or loads or _CSS_LOAD.search(values.get("style", "")):
            self.found.append(self.get_starttag_text()[:80])

    def handle_endtag(self, tag: str) -> None:
        self.in_style = False

    def handle_data(self, data: str) -> None:
        if self.in_style and (found := _CSS_LOAD.search(data)):
            self.found.append(f"style: {found.group(0)}")
