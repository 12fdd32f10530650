"""LaTeX to inline SVG: math that needs no script, no font and no network.

Letters become outlines in the colour of the surrounding text, scaled in em, so that an equation follows the
reader's font size and dark mode. Each letter is drawn once, in a sheet at the end of the page, and used from there. The
LaTeX source stays with a formula as its label.
"""

import re
import xml.etree.ElementTree as ET
from functools import cache
from html import escape
from itertools import pairwise

import ziamath
from ziafont import config
from ziamath.tex import tex2mml

SIZE = 20.0  # pixels per em while drawing
SCALE = 1.04  # STIX looks a little small beside the page's text face

ziamath.config.math.color = "currentColor"
config.svg2 = True  # letters as <symbol>, named by font and glyph
config.precision = 2
_SYMBOLS: dict[str, str] = {}  # every letter drawn so far


_ROWS = ("math", "mrow", "mstyle", "mtd")
_SCRIPTS = ("msub", "msup", "msubsup", "munder", "mover", "munderover")


class MathError(ValueError):
    """LaTeX that cannot be drawn."""


@cache
def inline(latex: str) -> str:
    return f'<span class="math">{_svg(latex, displayed=False)}</span>'


@cache
def block(latex: str) -> str:
    return f'<span class="math-block">{_svg(latex, displayed=True)}</span>'


def glyphs(html: str) -> str:
    """The letters that the formulas of a page use, to be put anywhere into it."""
    used = sorted(set(re.findall(r'<use\b[^>]*? href="#([\w.-]+)"', html)) & _SYMBOLS.keys())
    sheet = "".join(_SYMBOLS[name] for name in used)
    return f'<svg class="glyphs" aria-hidden="true">{sheet}</svg>\n' if used else ""


def _svg(latex: str, displayed: bool) -> str:
    try:
        svg = ziamath.Math(_mathml(latex.strip(), displayed), size=SIZE, margin=0.5).svgxml()
    except Exception as error:  # ziamath and latex2mathml raise whatever they stumble over
        raise MathError(f"cannot draw the formula {latex.strip()!r}: {error}") from error
    for symbol in svg.findall("symbol"):
        _SYMBOLS.setdefault(symbol.get("id", ""), _text(symbol))
        svg.remove(symbol)
    _, top, width, height = (float(number) for number in svg.get("viewBox", "").split())
    unit = SCALE / SIZE
    below = -(top + height) * unit  # the baseline is at y = 0
    svg.set("width", f"{width * unit:.3f}em")
    svg.set("height", f"{height * unit:.3f}em")
    svg.set("style", f"vertical-align:{below:.3f}em")
    svg.set("role", "img")
    svg.set("aria-label", latex.strip())
    return _text(svg)


def _mathml(latex: str, displayed: bool) -> ET.Element:
    """latex2mathml's reading of a formula, with the spaces and sizes that TeX would have given it."""
    root = ET.fromstring(re.sub(r' xmlns="[^"]*"', "", tex2mml(latex, inline=not displayed)))
    for parent in root.iter():
        for child in parent:
            if child.text == "\u2016" and child.get("stretchy") is None:
                child.set("stretchy", "false")  # \lVert grows only after \left
            elif child.tag == "mo" and (child.text == "\u2202" or _is_word(child)) and parent.tag != "munder":
                child.tag = "mi"  # \partial and \operatorname are no relations
        if parent.tag in _ROWS:
            _space_words(parent)
    return root


def _space_words(row: ET.Element) -> None:
    for child, following in pairwise(list(row)):
        if _is_word(child) and following.tag != "mo":
            row.insert(list(row).index(child) + 1, ET.Element("mspace", width="0.167em"))


def _is_word(node: ET.Element) -> bool:
    if node.tag in _SCRIPTS:
        return _is_word(node[0])
    return node.tag in ("mi", "mo") and len(node.text or "") > 1 and node.text.isalpha()


def _text(svg: ET.Element) -> str:
    """As HTML: no namespaces, which HTML implies, and no idle spaces in the outlines."""
    kept = {name: value for name, value in svg.attrib.items() if not name.startswith("xmlns")}
    if "d" in kept:
        kept["d"] = re.sub(r" ?([A-Z]) ?", r"\1", kept["d"])
    attributes = "".join(f' {name}="{escape(value)}"' for name, value in kept.items())
    inner = escape(svg.text or "") + "".join(_text(child) for child in svg)
    return f"<{svg.tag}{attributes}>{inner}</{svg.tag}>"
