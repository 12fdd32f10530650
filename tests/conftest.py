"""What several test modules share: a real browser (see tests/browser.py)."""

import pytest

from tests import browser as real


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
