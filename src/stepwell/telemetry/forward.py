"""Sending a recorded run to an exporter afterwards, for the first time or again."""

from __future__ import annotations

import os
import time
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from stepwell._core.errors import StepwellError
from stepwell.journal.format import PROCESS
from stepwell.telemetry.exporter import ExportFilter, Record, SpanRecord
from stepwell.telemetry.exporter_config import make_exporter
from stepwell.telemetry.feed import Feed, do_nothing, make_feed
from stepwell.telemetry.sidecar_notes import remove_notes_of

TRIES = 4
PAUSE = 1.0
"""Seconds between them."""


class NotTaken(ConnectionError):
    """The receiver does not accept the records of a run."""


@dataclass(frozen=True)
class Forwarded:
    """The records sent of one process; ``running`` if it still records, so that there will be more."""

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
    """Send the records of every process of a run, from the first record on.

    Args:
        run: the run folder.
        to: name of an exporter ("otlp", "file") or ``package.module.Class``.
        options: its options, such as ``{"endpoint": "http://localhost:4318"}``.
        filter: the spans to send. Default: all but the short ones of every iteration.
        progress: called with the number of spans sent since the last call.

    Raise ``NotTaken`` if the receiver does not accept the records. Receivers that identify spans by id, as
    those of OTLP do, may get the same run any number of times.
    """
    folders = recorded_processes(Path(run).expanduser())
    keep = ExportFilter() if filter is None else filter
    # One exporter per process: each keeps track of the open spans of its process.
    return [
        _Sending(folder, make_exporter(to, options), keep, progress or do_nothing).all()
        for folder in folders
    ]


def recorded_processes(run: Path) -> list[Path]:
    """Return the folders of a run's processes, ordered by rank and attempt, without those of workers."""
    try:
        entries = sorted(p for p in run.iterdir() if p.is_dir() and not p.is_symlink())
    except OSError as error:
        raise StepwellError(f"{run} is not a run folder: {error.strerror}") from None
    folders = [folder for folder in entries if (folder / PROCESS).is_file()]
    if not folders:
        raise StepwellError(f"{run} is not a run folder: no process has recorded in it")
    return folders


def send_all(feed: Feed, sent: Callable[[], str]) -> None:
    """Deliver everything recorded so far; ``sent`` returns the progress as text, for error messages."""
    failed = 0
    while not feed.over:
        if feed.step():
            failed = 0
        elif feed.over or not feed.pause():
            break  # The process still records; this is everything so far.
        else:
            failed += 1
            if failed >= TRIES:
                _not_taken(feed, sent())
            time.sleep(max(PAUSE, feed.pause()))


def _not_taken(feed: Feed, sent: str) -> None:
    feed.close()
    raise NotTaken(
        f"{feed.name}: {feed.last_error}. {sent} of {feed.source.process} were sent. Send the run again "
        "when the receiver works"
    )


def end_sending(feed: Feed, sent: Callable[[], str]) -> None:
    """Send what the exporter has buffered, and close it."""
    before = feed.failures
    try:
        getattr(feed.exporter, "tick", do_nothing)()
    except Exception as error:
        raise NotTaken(str(error)) from None
    finally:
        feed.close()
    if feed.failures > before:
        _not_taken(feed, sent())


class _Sending:
    """Sends the records of one process to an exporter."""

    def __init__(
        self, folder: Path, exporter: Any, filter: ExportFilter, progress: Callable[[int], None]
    ) -> None:
        self.folder = folder
        self.progress = progress
        self.spans = 0
        self.events = 0
        self.feed = make_feed(_CountingExporter(exporter, self._count), folder, filter)

    def all(self) -> Forwarded:
        """Send everything recorded so far."""
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


class _CountingExporter:
    """Wraps an exporter, and counts its deliveries."""

    def __init__(self, exporter: Any, count: Callable[[list[Record]], None]) -> None:
        self._exporter = exporter
        self._count = count

    def __getattr__(self, name: str) -> Any:
        return getattr(self._exporter, name)

    def export(self, records: list[Record]) -> None:
        self._exporter.export(records)
        self._count(records)
