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
from stepwell.journal.follow import Follower
from stepwell.telemetry.export_filter import ExportFilter
from stepwell.telemetry.exporter import Record, SpanRecord, source_of
from stepwell.telemetry.exporter_loading import make_exporter
from stepwell.telemetry.feeding import Feed
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
    folders = _process_folders(Path(run).expanduser())
    keep = ExportFilter() if filter is None else filter
    # One for each process: each keeps track of what is open in its own.
    return [
        _Sending(folder, make_exporter(to, options), keep, progress or _ignore).all()
        for folder in folders
    ]


def _process_folders(run: Path) -> list[Path]:
    try:
        found = sorted(p for p in run.iterdir() if p.is_dir() and not p.is_symlink())
    except OSError as error:
        raise StepwellError(f"{run} is no run folder: {error.strerror}") from None
    folders = [folder for folder in found if (folder / PROCESS).is_file()]
    if not folders:
        raise StepwellError(f"{run} is no run folder: no process has recorded in it")
    return folders


class _Sending:
    """One process, on its way to one exporter."""

    def __init__(
        self, folder: Path, exporter: Any, filter: ExportFilter, progress: Callable[[int], None]
    ) -> None:
        self.folder = folder
        self.exporter = exporter
        self.progress = progress
        self.spans = 0
        self.events = 0
        self.follower = Follower(folder, filter.keeps)
        source = source_of(folder, self.follower.about)
        self.feed = Feed(_Counted(exporter, self._count), self.follower, source)

    def all(self) -> Forwarded:
        """Send everything there is."""
        failed = 0
        while not self.feed.over:
            before = self.feed.failures
            if self.feed.step():
                failed = 0
            elif self.feed.failures > before:
                failed += 1
                if failed >= TRIES:
                    self._not_taken()
                time.sleep(max(PAUSE, self.feed.pause()))
            elif not self.feed.over:
                break  # It still runs; this is all there is for now.
        self._end()
        running = not self.feed.over
        return Forwarded(self.feed.source.process, self.spans, self.events, running)

    def _end(self) -> None:
        before = self.feed.failures
        try:
            getattr(self.exporter, "tick", _ignore)()
        except Exception as error:
            raise NotTaken(str(error)) from None
        finally:
            self.feed.close()
        if self.feed.failures > before:
            self._not_taken()
        remove_notes_of(self.folder, self.feed.name)

    def _not_taken(self) -> None:
        self.feed.close()
        process = self.feed.source.process
        raise NotTaken(
            f"{self.feed.name}: {self.feed.last_error}. Of {process}, {self.spans} spans had been "
            "sent; send the run again when the receiver works"
        )

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
