"""Sending a recorded run to an exporter afterwards: for the first time, or again."""

from __future__ import annotations

import os
import time
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from stepwell.journal.document import PROCESS
from stepwell.journal.errors import StepwellError
from stepwell.telemetry.export_filter import ExportFilter
from stepwell.telemetry.exporter import Record, SpanRecord
from stepwell.telemetry.exporter_loading import make_exporter
from stepwell.telemetry.feeding import Feed, feed_of
from stepwell.telemetry.sidecar_notes import remove_notes_of

TRIES = 4
PAUSE = 1.0
"""Seconds between them."""


class NotTaken(ConnectionError):
    """The receiver does not take the records of a run."""


@dataclass(frozen=True)
class Forwarded:
    """What was sent of one process; ``running``: it still records, and there will be more."""

    process: str
    spans: int
    events: int
    running: bool


def forward(
    run: str | os.PathLike[str],
    to: str,
    options: Mapping[str, Any] | None = None,
    *,
    filter: ExportFilter | None = None,
    progress: Callable[[int], None] | None = None,
) -> list[Forwarded]:
    """Send every process of a run in this folder, from its first record on.

    Args:
        run: the run folder.
        to: an exporter by its name (``"otlp"``, ``"file"``) or as ``package.module.Class``.
        options: what it is made with, such as ``{"endpoint": "http://localhost:4318"}``.
        filter: which spans; else all but the short ones of every iteration.
        progress: called with the number of spans that were sent since it was last called.

    A receiver that does not take it raises ``NotTaken``. One that knows a span by its id, as OTLP
    receivers do, may get the same run as often as you like.
    """
    folders = recorded_processes(Path(run).expanduser())
    keep = ExportFilter() if filter is None else filter
    # One for each process: each keeps track of what is open in its own.
    return [
        _Sending(folder, make_exporter(to, options), keep, progress or _ignore).all()
        for folder in folders
    ]


def recorded_processes(run: Path) -> list[Path]:
    """The folders of a run's processes, in the order of ranks and attempts; not those of workers."""
    try:
        found = sorted(p for p in run.iterdir() if p.is_dir() and not p.is_symlink())
    except OSError as error:
        raise StepwellError(f"{run} is no run folder: {error.strerror}") from None
    folders = [folder for folder in found if (folder / PROCESS).is_file()]
    if not folders:
        raise StepwellError(f"{run} is no run folder: no process has recorded in it")
    return folders


def send_all(feed: Feed, sent: Callable[[], str]) -> None:
    """Hand over everything there is for now; ``sent`` tells in words how far it is, should it fail."""
    failed = 0
    while not feed.over:
        if feed.step():
            failed = 0
        elif feed.over or not feed.pause():
            break  # It still runs; this is all there is for now.
        else:
            failed += 1
            if failed >= TRIES:
                _not_taken(feed, sent())
            time.sleep(max(PAUSE, feed.pause()))


def _not_taken(feed: Feed, sent: str) -> None:
    feed.close()
    raise NotTaken(
        f"{feed.name}: {feed.last_error}. Of {feed.source.process}, {sent} had been sent; send the "
        "run again when the receiver works"
    )


def end_sending(feed: Feed, sent: Callable[[], str]) -> None:
    """Have passed on what is held back, and let go of the exporter."""
    before = feed.failures
    try:
        getattr(feed.exporter, "tick", _ignore)()
    except Exception as error:
        raise NotTaken(str(error)) from None
    finally:
        feed.close()
    if feed.failures > before:
        _not_taken(feed, sent())


class _Sending:
    """One process, on its way to one exporter."""

    def __init__(
        self, folder: Path, exporter: Any, filter: ExportFilter, progress: Callable[[int], None]
    ) -> None:
        self.folder = folder
        self.progress = progress
        self.spans = 0
        self.events = 0
        self.feed = feed_of(_Counted(exporter, self._count), folder, filter)

    def all(self) -> Forwarded:
        """Send everything there is."""
        send_all(self.feed, self._sent)
        end_sending(self.feed, self._sent)
        remove_notes_of(self.folder, self.feed.name)
        running = not self.feed.over
        return Forwarded(self.feed.source.process, self.spans, self.events, running)

    def _sent(self) -> str:
        return f"{self.spans} spans"

    def _count(self, records: list[Record]) -> None:
        spans = sum(isinstance(r, SpanRecord) and r.type != "start" for r in records)
        self.spans += spans
        self.events += sum(not isinstance(r, SpanRecord) for r in records)
        self.progress(spans)


class _Counted:
    """An exporter whose deliveries are counted."""

    def __init__(self, exporter: Any, count: Callable[[list[Record]], None]) -> None:
        self._exporter = exporter
        self._count = count

    def __getattr__(self, name: str) -> Any:
        return getattr(self._exporter, name)

    def export(self, records: list[Record]) -> None:
        self._exporter.export(records)
        self._count(records)


def _ignore(*_: object) -> None:
    """Nobody asked."""
