"""Sending a recorded run to an exporter afterwards, for the first time or again.

A sidecar that could not deliver everything leaves a note with the command that does.
"""

from __future__ import annotations

import contextlib
import os
import shlex
import time
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from stepwell._core.errors import StepwellError
from stepwell._core.files import read_json, write_json
from stepwell.journal.format import PROCESS
from stepwell.telemetry.exporter import ExportFilter, Record, SpanRecord
from stepwell.telemetry.exporter_config import make_exporter
from stepwell.telemetry.feed import Feed, do_nothing, make_feed

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
        _send(folder, make_exporter(to, options), keep, progress or do_nothing)
        for folder in folders
    ]


def _send(
    folder: Path, exporter: Any, filter: ExportFilter, progress: Callable[[int], None]
) -> Forwarded:
    counting = _CountingExporter(exporter, progress)
    feed = make_feed(counting, folder, filter)
    deliver_recorded(feed, lambda: f"{counting.spans} spans")
    remove_notes_of(folder, feed.name)
    return Forwarded(feed.source.process, counting.spans, counting.events, not feed.over)


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


def deliver_recorded(feed: Feed, sent: Callable[[], str]) -> None:
    """Deliver everything recorded so far, and close the exporter. Raise ``NotTaken`` if it fails.

    ``sent`` returns the progress as text, for error messages.
    """
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
    _close(feed, sent)


def _not_taken(feed: Feed, sent: str) -> None:
    feed.close()
    raise NotTaken(
        f"{feed.name}: {feed.last_error}. {sent} of {feed.source.process} were sent. Send the run again "
        "when the receiver works"
    )


def _close(feed: Feed, sent: Callable[[], str]) -> None:
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


class _CountingExporter:
    """Wraps an exporter, and counts the spans and events that it delivers."""

    def __init__(self, exporter: Any, progress: Callable[[int], None]) -> None:
        self.spans = 0
        self.events = 0
        self._exporter = exporter
        self._progress = progress

    def __getattr__(self, name: str) -> Any:
        return getattr(self._exporter, name)

    def export(self, records: list[Record]) -> None:
        self._exporter.export(records)
        spans = sum(isinstance(r, SpanRecord) and r.type != "start" for r in records)
        self.spans += spans
        self.events += sum(not isinstance(r, SpanRecord) for r in records)
        self._progress(spans)


# Notes about records that a sidecar has not delivered

UNDELIVERED = ".undelivered.json"


def forward_command(folder: Path, name: str, exporter: Any) -> str:
    """Return the command that sends the run of a process folder again, without secrets."""
    shown = dict(getattr(exporter, "shown_options", {}))
    address = shown.pop(getattr(exporter, "address_option", None), None)
    to = name if address is None else f"{name}={address}"
    options = [f"--option={key}={value}" for key, value in shown.items()]
    return shlex.join(["stepwell", "forward", str(folder.parent), "--to", to, *options])


def write_note(folder: Path, setup: dict[str, Any], exporter: Any, state: dict[str, Any]) -> None:
    """Write what was not delivered and the command to deliver it, without secrets."""
    note = {
        "exporter": setup["name"],
        "time": time.time_ns(),
        "sent": state["sent"],
        "waiting": state["waiting"],
        "problem": state["problem"],
        "command": forward_command(folder, setup["name"], exporter),
    }
    with contextlib.suppress(OSError):
        write_json(folder / f"{setup['notes']}{UNDELIVERED}", note)


def remove_note(folder: Path, name: str) -> None:
    """Remove a note, because its records were delivered after all."""
    with contextlib.suppress(OSError):
        (folder / f"{name}{UNDELIVERED}").unlink()


def remove_notes_of(folder: Path, exporter: str) -> None:
    """Remove the notes of an exporter, because everything of this process was delivered."""
    for path in folder.glob(f"export-*{UNDELIVERED}"):
        if (read_json(path) or {}).get("exporter") == exporter:
            remove_note(folder, path.name.removesuffix(UNDELIVERED))
