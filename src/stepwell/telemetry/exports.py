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
from typing import Any, Protocol

from stepwell.journal.careful import plain_mapping
from stepwell.journal.errors import report, say, warn_once
from stepwell.journal.settings import warn_setting
from stepwell.telemetry.export_filter import ExportFilter
from stepwell.telemetry.exporter import Source, check_exporter, source_of
from stepwell.telemetry.feeding import THREAD, Feed, feed_of

POLL = 0.2
"""How often each exporter looks for new records, in seconds."""
DRAIN_TIMEOUT = 5.0
"""How long the end of a run waits for its exporters, unless ``STEPWELL_EXPORT_TIMEOUT`` is set."""


class Delivery(Protocol):
    """One exporter at work: what ``run.exporters`` lists.

    ``name`` is the exporter's name, ``sent`` how many records it took, ``failures`` how many of its
    calls failed, and ``last_error`` the latest failure in words.
    """

    exporter: Any

    @property
    def name(self) -> str: ...
    @property
    def sent(self) -> int: ...
    @property
    def failures(self) -> int: ...
    @property
    def last_error(self) -> str | None: ...

    def start(self) -> None:
        """Begin; returns at once."""
        ...

    def drain(self, timeout: float) -> bool:
        """Have all handed over that was recorded until now; whether it was in time."""
        ...

    def close(self, timeout: float) -> None:
        """The run has ended: hand over the rest and end, without taking longer than this."""
        ...


class ExportThread:
    """Feeds one exporter from a daemon thread."""

    def __init__(self, feed: Feed) -> None:
        self.feed = feed
        self.exporter = feed.exporter
        self._thread: threading.Thread | None = None
        self._wake = threading.Event()
        self._answered = threading.Condition()
        self._asked = 0
        self._done = 0
        self._went_well = True
        self._deadline = 0.0
        self._closing = False
        self._has_ended = False

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
        if self._thread is not None:
            return
        thread = threading.Thread(target=self._run, name=f"{THREAD}-{self.name}", daemon=True)
        try:
            thread.start()
        except RuntimeError as error:
            report("ExportThread.start", error)
        else:
            self._thread = thread

    def ask(self, timeout: float, *, closing: bool = False) -> int:
        """Have all handed over that was recorded until now; gives a number to ``wait`` for."""
        self.start()
        with self._answered:
            self._closing = self._closing or closing
            self._deadline = time.monotonic() + timeout
            self._asked += 1
            self._wake.set()
            return self._asked

    def wait(self, asked: int, timeout: float) -> bool:
        """Whether what was asked for has been done in time."""
        thread = self._thread
        if self._has_ended:
            return self._went_well
        if thread is None or thread is threading.current_thread() or not thread.is_alive():
            return False
        with self._answered:
            return self._answered.wait_for(lambda: self._done >= asked, timeout) and self._went_well

    def drain(self, timeout: float) -> bool:
        """Have all handed over that was recorded until now; whether it was in time."""
        return self.wait(self.ask(timeout), timeout)

    def close(self, timeout: float) -> None:
        """The run has ended: hand over the rest and end; what could not be is said once."""
        if not self._closing:
            self.ask(timeout, closing=True)
        thread = self._thread
        if thread is not None and thread is not threading.current_thread():
            thread.join(timeout)
        if thread is None or thread.is_alive() or not self._went_well:
            say(
                "exporter %s had not taken all records when the run ended%s. Nothing is lost: the "
                "run folder has every record.",
                self.name,
                f" ({self.last_error})" if self.last_error else "",
            )

    # The thread

    def _run(self) -> None:
        while True:
            self._wake.wait(max(POLL, self.feed.pause()))
            self._wake.clear()
            with self._answered:
                asked, closing = self._asked, self._closing
            if asked > self._done:
                self._answer(asked)
            else:
                while self.feed.step() and self._asked == asked:
                    pass
            if closing:
                self.feed.close()
                self._has_ended = True
                return

    def _answer(self, asked: int) -> None:
        went_well = self.feed.drain(self._deadline)
        with self._answered:
            self._done = asked
            self._went_well = went_well
            self._answered.notify_all()


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

    def drain(self, timeout: float) -> bool:
        """Have all handed over that was recorded until now; whether it was in time."""
        if self.pid != os.getpid():
            return True
        deadline = time.monotonic() + timeout
        # All at once: one that hangs must not take the time of the others.
        asked = [(thread, thread.ask(timeout)) for thread in self._threads()]
        drained = [sidecar.drain(_left(deadline)) for sidecar in self._sidecars()]
        drained += [thread.wait(number, _left(deadline)) for thread, number in asked]
        return all(drained)

    def close(self, timeout: float) -> None:
        """The run has ended: hand over the rest to all of them, within this time together."""
        if self.pid != os.getpid():
            return
        deadline = time.monotonic() + timeout
        for thread in self._threads():
            thread.ask(timeout, closing=True)
        for delivery in (*self._sidecars(), *self._threads()):
            delivery.close(_left(deadline))

    def finish(self) -> None:
        """Close them, within the time that the end of a run may take."""
        self.close(drain_timeout())

    def _threads(self) -> list[ExportThread]:
        return [d for d in self.deliveries if isinstance(d, ExportThread)]

    def _sidecars(self) -> list[Delivery]:
        return [d for d in self.deliveries if not isinstance(d, ExportThread)]


def _left(deadline: float) -> float:
    return max(0.0, deadline - time.monotonic())


def drain_timeout() -> float:
    """How long the end of a run waits for its exporters."""
    text = os.environ.get("STEPWELL_EXPORT_TIMEOUT", "").strip()
    try:
        return max(0.0, float(text)) if text else DRAIN_TIMEOUT
    except ValueError:
        warn_setting("STEPWELL_EXPORT_TIMEOUT", text, "a number of seconds, such as 5")
        return DRAIN_TIMEOUT
