"""What several test modules share: a real browser (see tests/browser.py), and examples that CI can repeat."""

import os

import pytest
from hypothesis import settings

from tests import browser as real

settings.register_profile("ci", derandomize=True)  # the same examples each time; at a desk they are drawn anew
if os.environ.get("CI"):
    settings.load_profile("ci")


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
