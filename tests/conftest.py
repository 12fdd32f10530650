"""What several test modules share: a real browser (see tests/browser.py), and examples that CI can repeat."""

import os
import sys
from pathlib import Path

import pytest
from hypothesis import settings

from tests import browser as real

settings.register_profile("ci", derandomize=True)  # the same examples each time; at a desk they are drawn anew
if os.environ.get("CI"):
    settings.load_profile("ci")
sys.modules["rfc3987_syntax"] = None  # nbformat's checker of IRIs: its grammar takes a second, and no notebook has one


def pytest_ignore_collect(collection_path: Path, config: pytest.Config) -> bool | None:
    """`make test K=name` imports only the modules in which the name stands: most of them wait for torch."""
    word = config.option.keyword.lower()
    named = not word.isidentifier() or word in f"{collection_path}\n{_text(collection_path)}".lower()
    return None if named else True


def _text(path: Path) -> str:
    return path.read_text() if path.match("test_*.py") else ""


LONGEST = ["test_pipeline", "test_hands", "test_faults", "test_playground", "test_live", "test_executors"]


def pytest_collection_modifyitems(items: list[pytest.Item]) -> None:
    """The longest files first (see --no-loadscope-reorder), lest one core waits for the other at the end."""
    items.sort(key=lambda item: LONGEST.index(item.path.stem) if item.path.stem in LONGEST else len(LONGEST))


@pytest.fixture(scope="session")
def browser():
    with real.started() as program:
        yield program


@pytest.fixture
def visit(browser):
    """Open files of this machine in a fresh browser window without network."""
    visits = real.Visits(browser)
    yield visits
    visits.context.close()
