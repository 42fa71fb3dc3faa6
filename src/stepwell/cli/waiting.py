"""Something to look at while a command takes long: on standard error, and only on a terminal."""

from __future__ import annotations

import time
from collections.abc import Iterator
from contextlib import contextmanager
from threading import Timer

from rich.console import Console
from rich.progress import (
    BarColumn,
    Progress,
    SpinnerColumn,
    TaskProgressColumn,
    TextColumn,
    TimeElapsedColumn,
    TimeRemainingColumn,
)
from rich.text import Text

PATIENCE = 1.0
"""Seconds that nobody minds."""


@contextmanager
def waiting(what: str) -> Iterator[None]:
    """Once this has taken a moment, say what it is about, and for how long it has gone on."""
    console = Console(stderr=True)
    if not console.is_terminal:
        yield
        return
    spinner = Progress(
        SpinnerColumn(),
        TextColumn("{task.description}", markup=False),
        TimeElapsedColumn(),
        console=console,
        transient=True,
    )
    spinner.add_task(_short(what, console))
    timer = Timer(PATIENCE, spinner.start)
    timer.daemon = True
    timer.start()
    try:
        yield
    finally:
        timer.cancel()
        timer.join()
        spinner.stop()


class Bar:
    """A bar that shows how far something is, once it has taken a moment. A context manager."""

    def __init__(self, what: str) -> None:
        console = Console(stderr=True)
        self._bar = Progress(
            TextColumn("{task.description}", markup=False),
            BarColumn(),
            TaskProgressColumn(),
            TimeRemainingColumn(),
            console=console,
            transient=True,
            disable=not console.is_terminal,
        )
        self._console = console
        self._task = self._bar.add_task(_short(what, console), total=None)
        self._began = time.monotonic()
        self._done = 0
        self._shown = False

    def __enter__(self) -> Bar:
        return self

    def __exit__(self, *error: object) -> None:
        self._bar.stop()

    def update(self, done: int, total: int | None, what: str | None = None) -> None:
        """So much is done of so much."""
        self._done = done
        text = None if what is None else _short(what, self._console)
        self._bar.update(self._task, completed=done, total=total or None, description=text)
        self._show()

    def advance(self, count: int) -> None:
        """So much more is done."""
        self.update(self._done + count, self._bar.tasks[0].total)  # type: ignore[arg-type]

    def _show(self) -> None:
        if not self._shown and time.monotonic() - self._began > PATIENCE:
            self._shown = True
            self._bar.start()


def _short(what: str, console: Console) -> str:
    """What fits beside a bar."""
    text = Text("".join(c if c.isprintable() else "?" for c in what))
    text.truncate(max(10, console.width - 50), overflow="ellipsis")
    return text.plain
