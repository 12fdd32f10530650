"""The appendix: executed notebooks bound into one HTML and one PDF.

`params/appendix.yaml` gives the title and the order of the notebooks; the verdict summary on the title page
is counted from `outputs/<profile>/claims.json`. The same notebooks and claims always give the same bytes.
"""

import json
from pathlib import Path
from typing import Any

from creditaudit import params, paths, yamlfile
from creditaudit.appendix_html import render_html
from creditaudit.appendix_pdf import render_pdf
from creditaudit.chapters import AppendixError, chapters
from creditaudit.verdicts import VERDICTS

Order = list[tuple[str, str]]


def render(profile: str) -> tuple[Path, Path]:
    """Write the appendix of a profile and return its two paths."""
    config = _config()
    made = chapters(contents(config), profile)
    front = {
        "title": config["title"],
        "subtitle": config.get("subtitle", ""),
        "profile": profile,
        "verdicts": verdict_summary(profile),
    }
    html_path, pdf_path = output_paths(profile)
    html, pdf = render_html(made, **front), render_pdf(made, **front)
    html_path.parent.mkdir(parents=True, exist_ok=True)
    html_path.write_text(html)
    pdf_path.write_bytes(pdf)
    return html_path, pdf_path


def output_paths(profile: str) -> tuple[Path, Path]:
    """The paper profile has the product's own place; the others keep theirs among their outputs."""
    folder = paths.PAPER if profile == "paper" else paths.profile_dir(profile)
    return folder / "appendix.html", folder / "appendix.pdf"


def contents(config: dict[str, Any] | None = None) -> Order:
    """(section, set) in reading order. An entry is `section/set`, or `section` for all its sets."""
    order: Order = []
    for entry in (config or _config())["order"]:
        section, _, set_name = entry.partition("/")
        params.source_path(section)
        order += [(section, name) for name in ([set_name] if set_name else params.sets(section))]
    return order


def verdict_summary(profile: str) -> dict[str, Any] | None:
    """How many claims got which verdict, or None before they were checked."""
    path = paths.profile_dir(profile) / "claims.json"
    if not path.exists():
        return None
    verdicts = [claim["verdict"] for claim in json.loads(path.read_text())]
    unknown = set(verdicts) - set(VERDICTS)
    if unknown:
        raise AppendixError(f"{paths.shown(path)}: unknown verdict {sorted(unknown)[0]!r}")
    return {"total": len(verdicts), "counts": [(name, verdicts.count(name)) for name in VERDICTS]}


def _config() -> dict[str, Any]:
    path = paths.PARAMS / "appendix.yaml"
    if not path.exists():
        raise AppendixError(f"{paths.shown(path)} is missing: it gives the title and the order")
    config = yamlfile.load(path)
    for name in ("title", "order"):
        if not isinstance(config, dict) or not config.get(name):
            raise AppendixError(f"{paths.shown(path)}: {name} is missing")
    return config
