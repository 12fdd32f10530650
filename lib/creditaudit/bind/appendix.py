"""The appendix: executed notebooks bound into one HTML and one PDF.

`params/appendix.yaml` gives the title and the order of the notebooks; the verdict summary on the title page
is counted from `outputs/<profile>/claims.json`. The same notebooks and claims always give the same bytes.
"""

import json
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any

from creditaudit import paths
from creditaudit.bind.chapters import AppendixError, chapters
from creditaudit.mistakes import Mistake
from creditaudit.runs import yamlfile
from creditaudit.runs.files import write_atomically
from creditaudit.runs.yamlfile import nearest
from creditaudit.study import params
from creditaudit.study.verdicts import VERDICTS

Order = list[tuple[str, str]]
OTHERS = "others"
_FIELDS = ("title", "subtitle", "study", "order", "parts", "small_print")


def render(profile: str) -> tuple[Path, Path]:
    """Write the appendix of a profile and return its two paths."""
    from creditaudit.bind.html import render_html  # late: nbconvert takes a second
    from creditaudit.bind.links import Links
    from creditaudit.bind.pdf import render_pdf

    config = _config()
    made = chapters(contents(config), profile, config.get("parts"))
    front = {
        "title": config["title"],
        "subtitle": config.get("subtitle", ""),
        "study": config.get("study", ""),
        "headline": "\n\n".join(filter(None, (chapter.headline for chapter in made))),
        "profile": profile,
        "verdicts": verdict_summary(profile),
        "references": references(),
    }
    html_path, pdf_path = output_paths(profile)
    with ThreadPoolExecutor(1) as aside:  # pandoc and typst do not need this process
        pdf = aside.submit(render_pdf, made, config.get("small_print", ()), **front)
        html = render_html(made, Links(made, profile, html_path.parent), **front)
    write_atomically(html_path, html)
    write_atomically(pdf_path, pdf.result())
    return html_path, pdf_path


def references() -> list[str]:
    """What CITATION.cff says this work rests on, as markdown."""
    path = paths.ROOT / "CITATION.cff"
    try:
        works = yamlfile.load(path).get("references", []) if path.exists() else []
        return [_cited(work) for work in works]
    except (LookupError, TypeError, AttributeError) as error:
        raise AppendixError(f"{paths.shown(path)}: a reference is not as it should be ({error!r})") from None


def _cited(work: dict[str, Any]) -> str:
    names = [" ".join(filter(None, [each.get("given-names"), each["family-names"]])) for each in work["authors"]]
    who = " and ".join(filter(None, [", ".join(names[:-1]), names[-1]]))
    where = work.get("journal") or work.get("conference", {}).get("name") or work.get("institution", {}).get("name")
    parts = [f"{who} ({work['year']}). *{work['title']}*", where, work.get("notes")]
    link = f"[{work['url'].removeprefix('https://')}]({work['url']})" if "url" in work else None
    return ". ".join(filter(None, [*parts, link])) + "."


def output_paths(profile: str) -> tuple[Path, Path]:
    """The paper profile has the product's own place; the others keep theirs among their outputs."""
    folder = paths.PAPER if profile == "paper" else paths.profile_dir(profile)
    return folder / "appendix.html", folder / "appendix.pdf"


def contents(config: dict[str, Any] | None = None) -> Order:
    """(section, set) in reading order. An entry is `section/set`, `section` for its sets, or `others`."""
    order: Order = []
    entries = (config or _config())["order"]
    named = {entry.partition("/")[0] for entry in entries}
    others = [section for section in params.sections() if section not in named]
    place = entries.index(OTHERS) if OTHERS in entries else len(entries)
    for entry in [*entries[:place], *others, *entries[place + 1 :]]:
        section, _, set_name = entry.partition("/")
        try:
            params.source_path(section)
        except Mistake as mistake:
            raise AppendixError(f"params/appendix.yaml: order: {mistake}") from None
        known = params.sets(section)
        if set_name and set_name not in known:
            raise AppendixError(f"params/appendix.yaml: {section} has no set {set_name!r}{nearest(set_name, known)}")
        order += [(section, name) for name in ([set_name] if set_name else known)]
    return order


def verdict_summary(profile: str) -> dict[str, Any] | None:
    """How many claims got which verdict, or None before they were checked; a value tested twice counts once."""
    path = paths.profile_dir(profile) / "claims.json"
    if not path.exists():
        return None
    try:
        claims = json.loads(path.read_text("utf-8"))
        if not isinstance(claims, list):
            raise TypeError("not a list")
        once = [claim for claim in claims if ".cross." not in claim.get("id", "")]
        verdicts = [claim["verdict"] for claim in once if claim.get("cause") != "another profile"]
        unknown = [verdict for verdict in verdicts if verdict not in VERDICTS]
    except (OSError, ValueError, LookupError, TypeError, AttributeError, RecursionError) as error:
        unknown = [f"{type(error).__name__}: {error}"]
    if unknown:
        raise AppendixError(
            f"{paths.shown(path)} is damaged ({unknown[0]!r} is no verdict): `make claims PROFILE={profile}` writes it"
        )
    counts = [(name, verdicts.count(name)) for name in VERDICTS]
    return {"total": len(verdicts), "elsewhere": len(once) - len(verdicts), "counts": counts}


def _config() -> dict[str, Any]:
    path = paths.PARAMS / "appendix.yaml"
    if not path.exists():
        raise AppendixError(f"{paths.shown(path)} is missing: it gives the title and the order")
    config = yamlfile.mapping(yamlfile.load(path), paths.shown(path))
    for name in config:
        if name not in _FIELDS:
            raise AppendixError(f"{paths.shown(path)}: unknown field {name!r}{nearest(name, _FIELDS)}")
    for name in ("title", "order"):
        if not config.get(name):
            raise AppendixError(f"{paths.shown(path)}: {name} is missing")
    for name in ("title", "subtitle", "study"):
        if not isinstance(config.get(name, ""), str):
            raise AppendixError(f"{paths.shown(path)}: {name} must be text, not {yamlfile.shown(config[name])}")
    if not isinstance(config["order"], list) or not all(isinstance(entry, str) for entry in config["order"]):
        raise AppendixError(f"{paths.shown(path)}: order must be a list of sections, each as section or section/set")
    parts = yamlfile.mapping(config.get("parts"), f"{paths.shown(path)}: parts")
    if not all(isinstance(title, str) for title in parts.values()):
        raise AppendixError(f"{paths.shown(path)}: parts must be titles, each under the section it begins with")
    small = config.get("small_print", [])
    for place, names in (("parts", list(parts)), ("small_print", small)):
        if not isinstance(names, list) or not set(map(str, names)) <= set(known := params.sections()):
            wrong = yamlfile.shown(names)
            raise AppendixError(f"{paths.shown(path)}: {place}: {wrong} are not all sections: {', '.join(known)}")
    return config
