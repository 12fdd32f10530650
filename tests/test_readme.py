"""The front page says what the records say, and names things that exist."""

import re
import subprocess

import pytest

from creditaudit import paths, readme
from creditaudit.__main__ import _HELP

TEXT = readme.README.read_text()


def new_records() -> bool:
    """A campaign or a verification is under way: what is not committed, hence not rendered, yet."""
    asked = ["git", "status", "--porcelain", "--", "outputs/paper/runs", "outputs/paper/verified.json"]
    return bool(subprocess.run(asked, cwd=paths.ROOT, capture_output=True, text=True, check=False).stdout)


@pytest.mark.skipif(new_records(), reason="there are records that have not been committed")
def test_generated_blocks_are_current():
    assert readme.filled(TEXT, readme.blocks()) == TEXT, "run `make appendix PROFILE=paper` to refresh README.md"


def test_a_block_without_marks_is_an_error():
    with pytest.raises(ValueError, match="verdicts"):
        readme.filled("no marks here", {"verdicts": "x"})


def test_every_linked_file_exists():
    links = re.findall(r"\]\(([^)h][^)]*)\)", TEXT)
    assert links
    assert [link for link in links if not (paths.ROOT / link).exists()] == []


def test_every_make_target_and_verb_exists():
    makefile = (paths.ROOT / "Makefile").read_text()
    targets = set(re.findall(r"^([a-z-]+):", makefile, re.M))
    assert set(re.findall(r"make ([a-z-]+)", TEXT)) - {"sure"} <= targets
    verbs = set(re.findall(r"python -m creditaudit ([a-z][a-z-]*)", TEXT))
    assert verbs <= set(_HELP)
