"""A real browser for the tests: the machine's own chromium, driven by Playwright, with the network off.

    def test_it(visit):
        page = visit(path)             # a Playwright page at a file of this machine
        page.click("text=Contents")    # visit.requests, visit.errors, visit.dialogs: what happened on all its pages

Without a browser, or without Playwright (`make browser`), such tests are skipped and say so.
"""

import shutil
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import pytest

NAMES = ("chromium", "chromium-browser", "google-chrome")


@contextmanager
def started() -> Iterator[Any]:
    """The browser, to be shared: starting one takes a second."""
    api = pytest.importorskip("playwright.sync_api", reason="no Playwright to drive a browser with: make browser")
    program = next(filter(None, map(shutil.which, NAMES)), None)
    if program is None:
        pytest.skip(f"no browser on this machine ({', '.join(NAMES)}); on Debian: apt-get install chromium")
    with api.sync_playwright() as driver:
        browser = driver.chromium.launch(executable_path=program)
        yield browser
        browser.close()


class Visits:
    """Opens pages in one browser window without network, and keeps account of what they tried."""

    def __init__(self, browser: Any, **manners: Any):
        self.context = browser.new_context(offline=True, **manners)
        self.context.set_default_timeout(10_000)
        self.requests: list[str] = []
        self.errors: list[str] = []
        self.dialogs: list[str] = []
        self.context.on("request", lambda request: self.requests.append(request.url))
        self.context.on("weberror", lambda error: self.errors.append(str(error.error)))
        self.context.on("console", lambda line: self.errors.append(line.text) if line.type == "error" else None)
        self.context.on("dialog", self._answer)

    def __call__(self, path: Path) -> Any:
        page = self.context.new_page()
        page.goto(path.resolve().as_uri())
        return page

    def _answer(self, dialog: Any) -> None:
        self.dialogs.append(dialog.message)
        dialog.dismiss()
