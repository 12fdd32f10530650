"""The numbers on the front page: README.md's marked blocks, written from the committed paper records.

A block stands between `<!-- name -->` and `<!-- /name -->`. `make appendix PROFILE=paper` refreshes them; a test
fails when one is out of date.
"""

import re

from creditaudit import claims, overview, paths
from creditaudit.claims import load_claims
from creditaudit.display import as_markdown
from creditaudit.records import Store

README = paths.ROOT / "README.md"
PROFILE = "paper"


def blocks() -> dict[str, str]:
    """Name of each generated block and what belongs into it."""
    results = claims.check(load_claims(), Store(paths.profile_dir(PROFILE)), PROFILE)
    return {
        "verdicts": as_markdown(overview.summary_table(results)),
        "certainty": claims.summary(results).sentence,
        "cost": overview.cost(PROFILE, overview.ladders(PROFILE)),
    }


def filled(text: str, contents: dict[str, str]) -> str:
    """The text with every marked block replaced; a block without its marks is an error."""
    for name, content in contents.items():
        pattern = re.compile(rf"(<!-- {name} -->\n).*?(\n?<!-- /{name} -->)", re.DOTALL)
        if not pattern.search(text):
            raise ValueError(f"README.md has no block <!-- {name} --> ... <!-- /{name} -->")
        text = pattern.sub(lambda found, content=content: f"{found[1]}{content}\n<!-- /{name} -->", text)  # noqa: B023
    return text


def refresh() -> None:
    README.write_text(filled(README.read_text(), blocks()))
