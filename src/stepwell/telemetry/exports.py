"""The exporters of a run, each in a background thread or in a sidecar process.

The training thread only starts them, waits for them and ends them.
"""

from __future__ import annotations

import dataclasses
import threading
import time
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from stepwell._core.errors import log_warning
from stepwell._core.threads import start_thread
from stepwell._core.values import plain_mapping
from stepwell.telemetry.deliveries import (
    Delivery,
    DeliveryProgress,
    drain_deliveries,
    finish_deliveries,
)
from stepwell.telemetry.exporter import ExportFilter, read_source
from stepwell.telemetry.feed import STARTING, THREAD, Feed, make_feed

POLL = 0.2
"""Seconds between two looks for new records."""


class ExportThread:
    """Feeds one exporter from a daemon thread. A ``Delivery``."""

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
        return self.feed.name

    @property
    def sent(self) -> int:
        return self.feed.sent

    @property
    def failures(self) -> int:
        return self.feed.failures

    @property
    def last_error(self) -> str | None:
        return self.feed.last_error

    def __repr__(self) -> str:
        return f"<exporter {self.name}: {self.sent} records sent, {self.failures} failures>"

    # For the owner

    def start(self) -> None:
        """Start the thread. If the system has none left, the next call that needs it tries again."""
        if self._thread is None:
            self._thread = start_thread(f"{THREAD}-{self.name}", self._run)

    def ask(self, timeout: float, closing: bool = False) -> None:
        self.start()
        with self._lock:
            self._closing = self._closing or closing
            self._deadline = time.monotonic() + timeout
            self._asked += 1
            self._wake.set()
        if self._thread is None:
            # No thread is available: the calling thread does the work.
            self._answer(self._asked)
            if self._closing:
                self._end()

    def look(self) -> DeliveryProgress:
        thread = self._thread
        is_gone = thread is None or thread is threading.current_thread() or not thread.is_alive()
        with self._lock:
            is_answered = self._done >= self._asked and not self._closing
            is_done = self._has_ended or is_answered
            is_delivered = is_done and self._went_well
        stage = "" if self.feed.stage == STARTING else self.feed.stage
        return DeliveryProgress(is_done or is_gone, is_delivered, self.sent, stage=stage)

    def count(self) -> None:
        """Do nothing: counting would slow down the thread."""

    def hurry(self) -> None:
        """Do nothing: a thread has the priority of its process."""

    rest = keep_running = hurry

    def leave(self, reason: str) -> None:
        """Stop waiting; warn once about missing records."""
        if self._has_ended and self._thread is not None:
            self._thread.join(1.0)
        if not self.look().is_delivered and not self._is_left:
            log_warning(
                "Exporter %s is missing records (%s). The run folder has all of them.",
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
    """All exporters of one run. Not for forked processes: their ``Run`` has no recorder."""

    def __init__(
        self, folder: Path, document: Mapping[str, Any], name: str, labels: Mapping[str, Any]
    ) -> None:
        """Args: ``folder`` is the process folder, ``name`` the name of the run."""
        self.folder = folder
        self.deliveries: list[Delivery] = []
        source = read_source(folder, document)
        application = source.application if name == source.run else name
        self.source = dataclasses.replace(source, application=application)
        self.label(labels)

    def label(self, labels: Mapping[str, Any]) -> None:
        """Pass these labels of the run to exporters that open from now on."""
        merged = {**self.source.labels, **plain_mapping(labels)}
        self.source = dataclasses.replace(self.source, labels=merged)
        for delivery in self.deliveries:
            if isinstance(delivery, ExportThread):
                delivery.feed.source = self.source

    def add(self, exporter: Any, filter: ExportFilter | None = None) -> None:
        """Add an exporter, which gets all records from the first one on.

        An exporter equal to one already added is ignored.
        """
        if any(delivery.exporter == exporter for delivery in self.deliveries):
            return
        delivery = self._delivery(exporter, filter or ExportFilter.default_for(exporter))
        self.deliveries.append(delivery)
        delivery.start()

    def _delivery(self, exporter: Any, filter: ExportFilter) -> Delivery:
        if getattr(exporter, "out_of_process", False):
            from stepwell.telemetry.sidecar import Sidecar

            return Sidecar(exporter, self.folder, filter)
        return ExportThread(make_feed(exporter, self.folder, filter, self.source))

    def keep_running(self) -> None:
        """Restart sidecars that have died."""
        for delivery in self.deliveries:
            delivery.keep_running()

    def drain(self, timeout: float) -> bool:
        """Deliver everything recorded so far; return whether it was delivered in time."""
        return drain_deliveries(self.deliveries, timeout)

    def finish(self, status: str, quiet: bool) -> None:
        """Deliver the rest and end all exporters; ``status`` is how the run ended."""
        finish_deliveries(self.deliveries, status, quiet=quiet)
