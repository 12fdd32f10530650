"""The appendix: executed notebooks bound into one HTML and one PDF.

`params/appendix.yaml` gives the title and the order of the notebooks; the verdict summary on the title page
is counted from `outputs/<profile>/claims.json`. The same notebooks and claims always give the same bytes.
"""

from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any

from pydantic import BaseModel, ConfigDict, Field, TypeAdapter, ValidationError

from creditaudit import paths
from creditaudit.bind.chapters import AppendixError, chapters
from creditaudit.mistakes import Mistake
from creditaudit.runs import yamlfile
from creditaudit.runs.files import write_atomically
from creditaudit.runs.yamlfile import nearest
from creditaudit.study import params
from creditaudit.study.verdicts import VERDICTS, Verdict

Order = list[tuple[str, str]]
OTHERS = "others"


class _Config(BaseModel):
    """`params/appendix.yaml`."""

    model_config = ConfigDict(strict=True, extra="forbid")

    title: str = Field(min_length=1)
    subtitle: str = ""
    study: str = ""
    order: list[str] = Field(min_length=1)
    parts: dict[str, str] = {}  # titles, each under the section it begins with
    small_print: list[str] = []


class _Claim(BaseModel):
    """What of an entry of claims.json is counted."""

    id: str = ""
    verdict: Verdict
    cause: str | None = None


def render(profile: str) -> tuple[Path, Path]:
    """Write the appendix of a profile and return its two paths."""
    from creditaudit.bind.html import render_html  # late: nbconvert takes a second
    from creditaudit.bind.links import Links
    from creditaudit.bind.pdf import render_pdf

    config = _config()
    made = chapters(contents(), profile, config.parts)
    front = config.model_dump(include={"title", "subtitle", "study"}) | {
        "headline": "\n\n".join(filter(None, (chapter.headline for chapter in made))),
        "profile": profile,
        "verdicts": verdict_summary(profile),
        "references": references(),
    }
    html_path, pdf_path = output_paths(profile)
    with ThreadPoolExecutor(1) as aside:  # pandoc and typst do not need this process
        pdf = aside.submit(render_pdf, made, config.small_print, **front)
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


def contents() -> Order:
    """(section, set) in reading order. An entry is `section/set`, `section` for its sets, or `others`."""
    order: Order = []
    entries = _config().order
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
        claims = TypeAdapter(list[_Claim]).validate_json(path.read_bytes())
    except (OSError, ValidationError):
        raise AppendixError(f"{paths.shown(path)} is damaged: `make claims PROFILE={profile}` writes it") from None
    once = [claim for claim in claims if ".cross." not in claim.id]
    verdicts = [claim.verdict for claim in once if claim.cause != "another profile"]
    counts = [(name, verdicts.count(name)) for name in VERDICTS]
    return {"total": len(verdicts), "elsewhere": len(once) - len(verdicts), "counts": counts}


def _config() -> _Config:
    path = paths.PARAMS / "appendix.yaml"
    where = paths.shown(path)
    try:
        config = _Config.model_validate(yamlfile.mapping(yamlfile.load(path), where))
    except ValidationError as error:
        problem, known = error.errors()[0], ", ".join(_Config.model_fields)
        place = ".".join(map(str, problem["loc"]))
        raise AppendixError(f"{where}: {place}: {problem['msg'].lower()} (its fields are {known})") from None
    known = params.sections()
    for name in [*config.parts, *config.small_print]:
        if name not in known:
            raise AppendixError(f"{where}: parts and small_print name sections, not {name!r}{nearest(name, known)}")
    return config
