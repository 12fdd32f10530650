"""How a notebook shows things, so that the appendix can number, caption and describe them.

A figure needs a caption (what it shows: the finding) and an alt text (what a person who cannot see it should
know); a table needs a caption. Both travel in the output's metadata. Captions are markdown with `$math$`; in
a table write `\\lVert h \\rVert`, because `|` separates columns.
"""

import io
import re
from collections.abc import Sequence
from typing import Any

import matplotlib.pyplot as plt
import pandas as pd
from IPython import get_ipython
from IPython.display import display
from matplotlib.figure import Figure

from creditaudit import paths
from creditaudit.runs.files import write_atomically
from creditaudit.show import svg

HEAVY = 250_000  # bytes of SVG above which a picture of pixels is the smaller evil
_PLAIN = re.compile(r"-?\d+(\.\d+)?")
_NUMERIC = re.compile(r"(?:×/÷|[-+−<>~≈\[\]().,\d\s×±–—%]|[eE](?=[-+−\d])|pp)*")


def show_figure(fig: Figure, caption: str, alt: str, name: str | None = None, profile: str | None = None) -> None:
    """Show a figure and close it; with a name and a profile also save it as figures/<name> among its products."""
    notes = {"caption": _required(caption, "caption", name), "alt": _required(alt, "alt text", name)}
    kind, content = _drawn(fig)
    plt.close(fig)  # or the inline backend would show it a second time
    if name and profile:
        ending = "svg" if kind == "image/svg+xml" else "png"
        write_atomically(paths.products_dir(profile) / "figures" / f"{name}.{ending}", content)
    shown: Any = content.decode() if kind == "image/svg+xml" else content
    _publish({kind: shown, "text/plain": f"Figure: {alt}"}, {kind: notes | ({"name": name} if name else {})})
    _caption(caption)


def show_table(frame: pd.DataFrame, caption: str, printed: Sequence[str] = (), **notes: Any) -> None:
    """Show a frame as a markdown table; the PDF prints only the columns that are `printed`, if any are.

    Samples write themselves. Notes travel in its metadata.
    """
    notes |= {"caption": _required(caption, "caption")} | ({"printed": list(printed)} if printed else {})
    _publish({"text/markdown": as_markdown(frame)}, {"text/markdown": notes})
    _caption(caption)


def text(markdown: str) -> None:
    """Show a sentence that the notebook computed."""
    _publish({"text/markdown": markdown}, {})


def as_markdown(frame: pd.DataFrame) -> str:
    """A pipe table; columns of numbers are right-aligned, a missing value is a dash, the index is dropped."""
    columns = {str(name): _cells(frame[name]) for name in frame}
    rule = ["---:" if all(map(_NUMERIC.fullmatch, texts)) else ":---" for texts in columns.values()]
    rows = [[_escaped(name) for name in columns], rule, *map(list, zip(*columns.values(), strict=True))]
    return "\n".join(f"| {' | '.join(row)} |" for row in rows)


def _cells(values: pd.Series) -> list[str]:
    """Rounded numbers have as many digits as the others of their column: 22.0 below 19.3."""
    texts = [_cell(value) for value in values]
    plain = [
        isinstance(value, float) and bool(_PLAIN.fullmatch(text)) for value, text in zip(values, texts, strict=True)
    ]
    digits = max((len(text.partition(".")[2]) for text, fits in zip(texts, plain, strict=True) if fits), default=0)
    cells = [
        f"{value:.{digits}f}" if fits and float(text) == value else text
        for value, text, fits in zip(values, texts, plain, strict=True)
    ]
    return [text.replace(" ", "\u00a0") if _NUMERIC.fullmatch(text) else text for text in cells]  # with its unit and ±


def _cell(value: Any) -> str:
    if pd.api.types.is_scalar(value) and pd.isna(value):
        return "–"
    if isinstance(value, float):
        return f"{value:.4g}"
    return _escaped(str(value))


def _escaped(text: str) -> str:
    return re.sub(r"(?<!\\)\|", r"\\|", text).replace("\n", " ")


def in_notebook() -> bool:
    """In a kernel, which can show one thing again and again."""
    return getattr(get_ipython(), "kernel", None) is not None


def _drawn(fig: Figure) -> tuple[str, bytes]:
    """SVG with outlined letters, the same bytes every time; PNG where the SVG is too heavy."""
    with plt.rc_context({"svg.hashsalt": "creditaudit", "svg.fonttype": "path"}):
        drawn = _saved(fig, "svg", metadata={"Date": None, "Creator": None}, transparent=True)
    drawn = svg.slim(drawn[drawn.index(b"<svg") :])
    if len(drawn) <= HEAVY:
        return "image/svg+xml", drawn
    return "image/png", _saved(fig, "png", metadata={"Software": None}, dpi=200)


def _saved(fig: Figure, kind: str, **options: Any) -> bytes:
    buffer = io.BytesIO()
    fig.savefig(buffer, format=kind, bbox_inches="tight", pad_inches=0.04, **options)
    return buffer.getvalue()


def _required(text: str, what: str, name: str | None = None) -> str:
    if not text.strip():
        raise ValueError(f"{name or 'this figure or table'} has no {what}: say what it shows")
    return text.strip()


def _caption(caption: str) -> None:
    """For readers in Jupyter; the appendix has its own way and skips this output."""
    _publish({"text/markdown": f"*{caption}*"}, {"text/markdown": {"role": "caption"}})


def _publish(data: dict[str, Any], metadata: dict[str, Any]) -> None:
    display({"text/plain": "", **data}, raw=True, metadata=metadata)
