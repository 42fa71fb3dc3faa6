"""``stepwell import``."""

from __future__ import annotations

import time
from collections.abc import Sequence
from pathlib import Path

from rich.console import Console
from rich.progress import BarColumn, Progress, TaskProgressColumn, TextColumn, TimeRemainingColumn

from stepwell.importing import Imported, import_files

PATIENCE = 1.0
"""Seconds after which a bar shows how far it is."""


def import_run(files: Sequence[Path], dir: Path | None, name: str | None, kind: str | None) -> None:
    """Import files as one run, with a progress bar, and say what was taken."""
    console = Console(stderr=True)
    bar = Progress(
        TextColumn("{task.description}"),
        BarColumn(),
        TaskProgressColumn(),
        TimeRemainingColumn(),
        console=console,
        transient=True,
        disable=not console.is_terminal,
    )
    watcher = _Watcher(bar)
    try:
        done = import_files(files, dir, name, kind=kind, progress=watcher)
    finally:
        bar.stop()
    _say(done)


class _Watcher:
    """Shows a bar once the import has taken a moment."""

    def __init__(self, bar: Progress) -> None:
        self._bar = bar
        self._began = time.monotonic()
        self._task = bar.add_task("reading", total=None)
        self._shown = False

    def __call__(self, what: str, done: int, total: int) -> None:
        self._bar.update(self._task, description=what, completed=done, total=total or None)
        if not self._shown and time.monotonic() - self._began > PATIENCE:
            self._shown = True
            self._bar.start()


def _say(done: Imported) -> None:
    taken = ", ".join(f"{number:,} {what}" for what, number in done.taken.items())
    print(f"{' and '.join(done.kinds)}: took {taken}")
    left_out = sorted(done.left_out.items(), key=lambda item: -item[1])
    if left_out:
        print(f"left out {sum(done.left_out.values()):,} records:")
        for reason, number in left_out[:20]:
            print(f"  {number:,}: {reason}")
        if len(left_out) > 20:
            print(f"  and for {len(left_out) - 20} more reasons, see imported_from in run.json")
    for note in done.notes[:20]:
        print(note)
    print(f"run {done.path.name} in {done.path}")
