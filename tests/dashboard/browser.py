"""A real browser that looks at the page, and complains about what a person would not see."""

from __future__ import annotations

import contextlib
import os
import re
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from tests.exporters.perfetto import BROWSER_OPTIONS, browser_path
from tests.harness.environment import REPOSITORY

AXE = REPOSITORY / "ui" / "node_modules" / "axe-core" / "axe.min.js"
VIEWS = ("", "metrics", "media", "timeline", "ranks", "model", "system", "provenance")
PICTURES = os.environ.get("STEPWELL_SCREENSHOTS")
"""A folder for pictures of everything that the tests open."""
PATIENCE_MS = 150_000


class Browser:
    """Chromium. Each page that it opens must have no error, no foreign request and no barrier."""

    def __init__(self, chromium: Any) -> None:
        self._chromium = chromium

    @contextlib.contextmanager
    def page(
        self,
        link: str,
        width: int = 1280,
        scheme: str = "light",
        *,
        offline: bool = False,
        axe: bool = True,
    ) -> Iterator[Page]:
        """Open a link in a new window, and check at the end that nothing went wrong in it."""
        context = self._chromium.new_context(
            viewport={"width": width, "height": 900}, color_scheme=scheme, offline=offline
        )
        context.set_default_timeout(PATIENCE_MS)
        page = Page(context.new_page(), link)
        try:
            page.tab.goto(link)
            yield page
            page.check(axe)
        finally:
            context.close()


class Page:
    """One window with the page. ``tab`` is Playwright's."""

    def __init__(self, tab: Any, link: str) -> None:
        self.tab = tab
        self.problems: list[str] = []
        self.requests: list[str] = []
        self._home = link.split("?")[0].split("#")[0]
        tab.on("console", self._on_console)
        tab.on("pageerror", lambda error: self.problems.append(f"error: {error}"))
        tab.on("request", lambda request: self.requests.append(request.url))
        tab.on("response", self._on_response)
        tab.on("dialog", lambda dialog: self.problems.append(f"dialog: {dialog.message}"))

    def _on_console(self, message: Any) -> None:
        if message.type in ("error", "warning"):
            self.problems.append(f"console: {message.text}")

    def _on_response(self, response: Any) -> None:
        if response.status >= 400:
            self.problems.append(f"{response.status}: {response.url}")

    def go(self, route: str) -> None:
        """Open another view and wait until it has its data."""
        self.tab.evaluate("route => { location.hash = route; }", f"#/{route}")
        self.settle()

    def settle(self) -> None:
        """Wait until nothing is being loaded."""
        self.tab.wait_for_load_state("load")
        self.tab.wait_for_timeout(100)
        self.tab.wait_for_function(
            "() => !document.querySelector('.loading')"
            " && !document.body.innerText.includes('Analysing the run')"
        )
        self.tab.wait_for_timeout(150)

    @property
    def text(self) -> str:
        """All visible text, with single spaces."""
        return re.sub(r"\s+", " ", self.tab.locator("body").inner_text())

    def check(self, axe: bool = True) -> None:
        """Raise if there was an error, a request to elsewhere, sideways scrolling, or a barrier."""
        assert self.problems == []
        foreign = [
            url for url in self.requests if not url.startswith((self._home, "data:", "blob:"))
        ]
        assert foreign == []
        over = self.tab.evaluate(
            "() => document.documentElement.scrollWidth - document.documentElement.clientWidth"
        )
        assert over <= 0, f"the page is {over} px wider than the window"
        if axe and AXE.is_file():
            self.tab.evaluate(AXE.read_text())
            found = self.tab.evaluate(
                "async () => (await axe.run({resultTypes: ['violations']})).violations"
                ".map(v => `${v.id}: ${v.nodes.map(n => n.target.join(' ')).slice(0, 3).join(' | ')}`)"
            )
            assert found == []

    def picture(self, name: str) -> None:
        """Keep a picture of the whole page, if pictures are wanted."""
        if PICTURES:
            Path(PICTURES).mkdir(parents=True, exist_ok=True)
            self.tab.screenshot(path=str(Path(PICTURES) / f"{name}.png"), full_page=True)


@contextlib.contextmanager
def chromium() -> Iterator[Browser]:
    """Start Chromium, which ``make test`` installs; else skip the test, loudly."""
    playwright = pytest.importorskip("playwright.sync_api", reason="NOT TESTED: no playwright")
    with playwright.sync_playwright() as tools:
        running = tools.chromium.launch(executable_path=browser_path(), args=BROWSER_OPTIONS)
        try:
            yield Browser(running)
        finally:
            running.close()
