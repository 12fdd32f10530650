"""The front page's marked blocks, written from the committed paper profile: what was found, and the verdicts.

A block stands between `<!-- name -->` and `<!-- /name -->`. `make appendix PROFILE=paper` refreshes them; a test
fails when one is out of date.
"""

import json
import re

from creditaudit import paths
from creditaudit.bind import appendix, pages
from creditaudit.runs.files import write_atomically
from creditaudit.show.display import as_markdown
from creditaudit.study import claims, report

README = paths.ROOT / "README.md"
PROFILE = "paper"


def blocks() -> dict[str, str]:
    """Name of each generated block and what belongs into it."""
    return {
        "results": "\n".join(f"- {text}" for text in found()),
        "verdicts": as_markdown(report.counts(claims.judge_all(PROFILE))),
    }


def found() -> list[str]:
    """What the cells tagged `front-page` say, in the appendix's order, where it holds."""
    made = [json.loads(pages.executed_path(*pair, PROFILE).read_text("utf-8")) for pair in appendix.contents()]
    cells = [cell for page in made for cell in page["cells"] if "front-page" in cell["metadata"].get("tags", [])]
    outputs = [output for cell in cells for output in cell["outputs"]]
    holding = [each for each in outputs if each["metadata"]["text/markdown"]["finding"]["state"] == "holds"]
    return ["".join(each["data"]["text/markdown"]) for each in holding]


def filled(text: str, contents: dict[str, str]) -> str:
    """The text with every marked block replaced; a block without its marks is an error."""
    for name, content in contents.items():
        pattern = re.compile(rf"(<!-- {name} -->\n).*?(\n?<!-- /{name} -->)", re.DOTALL)
        if not pattern.search(text):
            raise ValueError(f"README.md has no block <!-- {name} --> ... <!-- /{name} -->")
        text = pattern.sub(lambda found, content=content: f"{found[1]}{content}\n<!-- /{name} -->", text)  # noqa: B023
    return text


def refresh(profile: str) -> None:
    """Only the committed profile has a place on the front page, once all its pages are there."""
    if profile == PROFILE and all(pages.executed_path(*pair, PROFILE).exists() for pair in appendix.contents()):
        write_atomically(README, filled(README.read_text(), blocks()))
