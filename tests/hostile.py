"""Strings that would act if a page took them for more than text, and where such strings end up."""

from collections.abc import Callable
from typing import Any

HOSTILE = [
    "<img src=x onerror=alert(1)>",
    "<script>alert(1)</script>",
    '<meta http-equiv="refresh" content="0;url=//evil">',
    "<details open ontoggle=alert(1)>x</details>",
    "<svg/onload=alert(1)>",
    "<a href=javascript:alert(1)>x</a>",
    '"><b onmouseover=alert(1)>',
    "</style></code></pre></script><iframe srcdoc=x>",
    "[click](javascript:alert(1))",
    "[click](JaVa&Tab;Script:alert(1))",
    "[click](data:text/html;base64,PHNjcmlwdD4=)",
    "<javascript:alert(1)>",
    '[x](https://a.b "" onclick=alert(1) x="")',
    "`<img src=x onerror=alert(1)>`",
    "```x onload=alert(1)\n<script>\n```",
    "<form action=//evil><input></form><base href=//evil>",
    "{{ 7 * 7 }}{% include 'style.css' %}",
]


def spread(text: str) -> Callable[[list[Any]], None]:
    """Put the text wherever a record, a claim or a person's words end up on a page."""

    def change(cells: list[Any]) -> None:
        line = text.replace("\n", " ")
        cells[
            2
        ].source = f"# Title {line}\n\n{text}\n\n## Heading {line}\n\n| a | b |\n|---|---|\n| {line} | x |\n\n- {line}"
        for cell in cells:
            for output in cell.get("outputs", []):
                if output.output_type == "stream":
                    output.text = text
                for notes in output.get("metadata", {}).values():
                    notes.update({name: line for name in ("caption", "alt") if name in notes})
                for kind in ("text/markdown", "text/plain"):
                    if kind in output.get("data", {}) and "role" not in output.metadata.get(kind, {}):
                        output.data[kind] = f"{output.data[kind]}\n\n{text}"

    return change
