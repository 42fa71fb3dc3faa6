"""The exporters of a run: each one in a background thread of its own, or in a process of its own.

Nothing here is done by the training thread but starting, waiting for and ending them.
"""

from __future__ import annotations

import dataclasses
import os
import threading
import time
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from stepwell.journal.careful import plain_mapping
from stepwell.journal.errors import say, warn_once
from stepwell.journal.threads import start_thread
from stepwell.telemetry.deliveries import (
    Delivery,
    DeliveryProgress,
    drain_deliveries,
    finish_deliveries,
)
from stepwell.telemetry.export_filter import ExportFilter
from stepwell.telemetry.exporter import Source, check_exporter, source_of
from stepwell.telemetry.feeding import STARTING, THREAD, Feed, feed_of

POLL = 0.2
"""How often each exporter looks for new records, in seconds."""


class ExportThread:
    """Feeds one exporter from a daemon thread."""

    def __init__(self, feed: Feed) -> None:
        self.feed = feed
        self.exporter = feed.exporter
        self._thread: threading.Thread | None = None
        self._wake = threading.Event()
        self._lock = threading.Lock()
        self._asked = 0
        self._done = 0
        self._went_well = True
        self._deadline = 0.0
        self._closing = False
        self._has_ended = False
        self._is_left = False

    @property
    def name(self) -> str:
        """What the exporter is called in messages."""
        return self.feed.name

    @property
    def sent(self) -> int:
        """How many records it took."""
        return self.feed.sent

    @property
    def failures(self) -> int:
        """How many of its calls failed."""
        return self.feed.failures

    @property
    def last_error(self) -> str | None:
        """The latest failure in words."""
        return self.feed.last_error

    def __repr__(self) -> str:
        return f"<exporter {self.name}: {self.sent} records sent, {self.failures} failures>"

    # Called by whoever owns it

    def start(self) -> None:
        """Start the thread; when none can be had, the next call that needs it tries again."""
        if self._thread is None:
            self._thread = start_thread(f"{THREAD}-{self.name}", self._run)

    def ask(self, timeout: float, closing: bool = False) -> None:
        """Have all handed over that was recorded until now, and end with ``closing``."""
        self.start()
        with self._lock:
            self._closing = self._closing or closing
            self._deadline = time.monotonic() + timeout
            self._asked += 1
            self._wake.set()
        if self._thread is None:
            # There can be none: whoever waits does the work.
            self._answer(self._asked)
            if self._closing:
                self._end()

    def look(self) -> DeliveryProgress:
        """Return how far it is with what it was last asked for."""
        thread = self._thread
        is_gone = thread is None or thread is threading.current_thread() or not thread.is_alive()
        with self._lock:
            is_answered = self._done >= self._asked and not self._closing
            is_done = self._has_ended or is_answered
            is_delivered = is_done and self._went_well
        stage = "" if self.feed.stage == STARTING else self.feed.stage
        return DeliveryProgress(is_done or is_gone, is_delivered, self.sent, stage=stage)

    def count(self) -> None:
        """Do nothing: it would take the processor from the thread."""

    def hurry(self) -> None:
        """Do nothing: a thread has the priority of its process."""

    rest = keep_running = hurry

    def leave(self, reason: str) -> None:
        """Wait no longer; what it did not take is said once."""
        if self._has_ended and self._thread is not None:
            self._thread.join(1.0)
        if not self.look().is_delivered and not self._is_left:
            say(
                "exporter %s is missing records (%s); the run folder has all of them.",
                self.name,
                self.last_error or reason or "not done yet",
            )
        self._is_left = True

    # The thread

    def _run(self) -> None:
        while True:
            self._wake.wait(max(POLL, self.feed.pause()))
            self._wake.clear()
            with self._lock:
                asked, closing = self._asked, self._closing
            if asked > self._done:
                self._answer(asked)
            else:
                while self.feed.step() and self._asked == asked:
                    pass
            if closing:
                self._end()
                return

    def _answer(self, asked: int) -> None:
        went_well = self.feed.drain(self._deadline, self._closing)
        with self._lock:
            self._done = asked
            self._went_well = went_well

    def _end(self) -> None:
        self.feed.close()
        self._has_ended = True


class Exports:
    """All exporters of one run in this process."""

    def __init__(self, folder: Path, source: Source) -> None:
        self.folder = folder
        self.source = source
        self.pid = os.getpid()
        self.deliveries: list[Delivery] = []

    @classmethod
    def of(
        cls, folder: Path, about: Mapping[str, Any], name: str, labels: Mapping[str, Any]
    ) -> Exports:
        """For the run of this name, whose process is recorded in ``folder``."""
        source = source_of(folder, about)
        application = source.application if name == source.run else name
        exports = cls(folder, dataclasses.replace(source, application=application))
        exports.label(labels)
        return exports

    def label(self, labels: Mapping[str, Any]) -> None:
        """Let exporters that open from now on know these labels of the run."""
        known = {**self.source.labels, **plain_mapping(labels)}
        self.source = dataclasses.replace(self.source, labels=known)
        for thread in self._threads():
            thread.feed.source = self.source

    def add(self, exporter: Any, filter: ExportFilter | None = None) -> None:
        """Let this exporter have the run's records, from the first one on.

        One that is there already, or that equals one, is not added again.
        """
        check_exporter(exporter)
        if self.pid != os.getpid():
            warn_once(
                "exporter in a child", "a forked process runs no exporters: add %s before", exporter
            )
            return
        if any(known.exporter == exporter for known in self.deliveries):
            return
        delivery = self._delivery(exporter, filter or ExportFilter.default_of(exporter))
        self.deliveries.append(delivery)
        delivery.start()

    def _delivery(self, exporter: Any, filter: ExportFilter) -> Delivery:
        if getattr(exporter, "out_of_process", False):
            from stepwell.telemetry.sidecar import Sidecar

            return Sidecar(exporter, self.folder, filter)
        return ExportThread(feed_of(exporter, self.folder, filter, self.source))

    def keep_running(self) -> None:
        """Start sidecars again that have died."""
        for delivery in self.deliveries:
            delivery.keep_running()

    def drain(self, timeout: float) -> bool:
        """Have all handed over that was recorded until now; whether it was in time."""
        return self.pid != os.getpid() or drain_deliveries(self.deliveries, timeout)

    def finish(self, status: str, quiet: bool) -> None:
        """The run has ended in this way: hand over the rest to all of them, and end them."""
        if self.pid == os.getpid():
            finish_deliveries(self.deliveries, status, quiet=quiet)

    def _threads(self) -> list[ExportThread]:
        return [d for d in self.deliveries if isinstance(d, ExportThread)]
