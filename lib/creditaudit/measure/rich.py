"""What a notebook shows of an audit or an alignment: one line, tables, and what a reader has to know."""

from collections.abc import Iterable
from html import escape
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    import pandas as pd


def page(head: str, tables: Iterable["pd.DataFrame"], notes: Iterable[str]) -> str:
    shown = [
        table.to_html(index=False, border=0, na_rep="", float_format="{:.3g}".format, escape=True) for table in tables
    ]
    said = "".join(f"<li>{escape(note)}</li>" for note in notes)
    return "\n".join([f"<p><b>{escape(head)}</b></p>", *shown, f"<ul>{said}</ul>" if said else ""])
