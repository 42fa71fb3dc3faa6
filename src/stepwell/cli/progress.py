"""Spinners and progress bars for slow commands: on standard error, and only in a terminal."""

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
"""Seconds before a spinner or bar appears."""


@contextmanager
def waiting(what: str) -> Iterator[None]:
    """Show a spinner with a description and the elapsed time, if the block takes long."""
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


class ProgressBar:
    """A progress bar that appears if the work takes long. A context manager."""

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

    def __enter__(self) -> ProgressBar:
        return self

    def __exit__(self, *error: object) -> None:
        self._bar.stop()

    def update(self, done: int, total: int | None, what: str | None = None) -> None:
        """Set the finished and the total amount of work."""
        self._done = done
        text = None if what is None else _short(what, self._console)
        self._bar.update(self._task, completed=done, total=total or None, description=text)
        self._show()

    def advance(self, count: int) -> None:
        """Add finished work."""
        self.update(self._done + count, self._bar.tasks[0].total)  # type: ignore[arg-type]

    def _show(self) -> None:
        if not self._shown and time.monotonic() - self._began > PATIENCE:
            self._shown = True
            self._bar.start()


def _short(what: str, console: Console) -> str:
    """Return the description cut to the room beside a bar."""
    text = Text("".join(c if c.isprintable() else "?" for c in what))
    text.truncate(max(10, console.width - 50), overflow="ellipsis")
    return text.plain
