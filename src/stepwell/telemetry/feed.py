"""A feed passes the records of a process to one exporter, in batches, and repeats those that fail.

A feed has no thread. Its owner, an export thread or a sidecar process, calls ``step`` in a loop, and
``drain`` and ``close`` at the end.
"""

from __future__ import annotations

import logging
import time
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any, Protocol

from stepwell._core import clock
from stepwell._core.errors import log_warning
from stepwell._core.values import cut, text_of
from stepwell.follower.records import SpanRecord
from stepwell.follower.trace import Follower
from stepwell.telemetry.exporter import ExportFilter, Source, read_source, reads_log

MAX_BATCH = 2000
"""Most records in a batch."""
FIRST_DELAY = 0.1
QUARANTINE_AFTER = 5
"""Failures in a row after which it warns, and then retries only every QUARANTINE_DELAY seconds."""
QUARANTINE_DELAY = 30.0
SETTLED = 0.01
"""Seconds after which everything about a recorded span can be read."""
THREAD = "stepwell-export"
"""Prefix of the names of export threads."""
STARTING, WAITING, FAILING = "starting", "waiting for another process", "failing"
"""Stages of a feed that does not deliver."""


class Records(Protocol):
    """Where a feed reads records: a follower of spans or of the log."""

    def poll(self) -> Sequence[Any]:
        """Return the records since the last call."""
        ...

    @property
    def over(self) -> bool:
        """Whether the process has ended and all its records were returned."""
        ...


class Feed:
    """One exporter and the records it reads.

    Attributes:
        name: name of the exporter in messages.
        is_open: whether the exporter was opened.
        sent: number of records delivered.
        failures: number of failed calls.
        last_error: message of the latest failure, None without one.
    """

    def __init__(
        self, exporter: Any, records: Records, source: Source, name: str | None = None
    ) -> None:
        self.exporter = exporter
        self.records = records
        self.source = source
        self.name = name or exporter_name(exporter)
        self.sent = 0
        self.failures = 0
        self.last_error: str | None = None
        self._in_a_row = 0
        self._not_before = 0.0
        self.is_open = False
        self._has_warned = False
        self._waiting: list[Any] = []
        self._polled = 0.0
        self._was_empty = False
        self._seen_ns = 0

    # State

    @property
    def waiting(self) -> int:
        """Number of records that were read and not delivered yet."""
        return len(self._waiting)

    @property
    def quarantined(self) -> bool:
        """Whether it failed so often in a row that it is retried only rarely."""
        return self._in_a_row >= QUARANTINE_AFTER

    @property
    def stage(self) -> str:
        """``STARTING`` while it imports and connects, ``FAILING`` while it retries, "" while it delivers."""
        if self._in_a_row:
            return FAILING
        return "" if self.is_open else STARTING

    def count_left(self) -> int | None:
        """Return the number of records not delivered, None if unknown. Can be called from any thread."""
        return len(self._waiting)

    @property
    def over(self) -> bool:
        """Whether the recorded process has ended and everything is delivered."""
        return not self._waiting and self.records.over

    def pause(self) -> float:
        """Return the seconds until the next retry, 0 without a failure."""
        return max(0.0, self._not_before - time.monotonic())

    # Delivery

    def step(self) -> bool:
        """Deliver one batch; return whether to call again at once.

        False means that nothing is new, or that it failed: then ``pause`` returns when to retry.
        """
        if time.monotonic() < self._not_before:
            return False
        return self._try(self._hand_over) or False

    def drain(self, deadline: float, closing: bool = False) -> bool:
        """Deliver everything recorded so far; return whether it was done by ``deadline``
        (``time.monotonic()``).

        Failures are retried until then, up to five in a row: a receiver that was down may be back, and slow
        at first. With ``closing``, a feed in quarantine is tried once.
        """
        if not closing:
            self._in_a_row = 0
        since = time.monotonic() + SETTLED
        until_ns = clock.to_wall(clock.now()) + int(SETTLED * 1e9)
        self._not_before = 0.0
        while not self._has_all(since, until_ns):
            failures = self.failures
            if not self.step():
                pause = self.pause() or SETTLED / 2
                gave_up = self.quarantined and self.failures > failures
                if gave_up or time.monotonic() + pause >= deadline:
                    return False
                time.sleep(pause)
            elif time.monotonic() >= deadline:
                return False
        return self._flush()

    def _has_all(self, since: float, until_ns: int) -> bool:
        """Return whether everything recorded before an instant, given on both clocks, is delivered.

        One poll may return a part. A poll that returns nothing has seen everything, and so has one that
        returns records from after the instant. Without the latter, a thread that records all the time would
        never let it end.
        """
        if self._waiting:
            return False
        saw_all = self._was_empty and self._polled >= since
        return saw_all or self._seen_ns >= until_ns or self.records.over

    def close(self) -> None:
        """Flush and close the exporter, if it was ever opened."""
        if self.is_open:
            self._flush()
            self.is_open = False
            self._try(getattr(self.exporter, "close", do_nothing))

    def _flush(self) -> bool:
        if not self.is_open:
            return True
        before = self.failures
        self._try(getattr(self.exporter, "flush", do_nothing))
        return self.failures == before

    def _hand_over(self) -> bool:
        if not self.is_open:
            getattr(self.exporter, "open", do_nothing)(self.source)
            self.is_open = True
        if not self._waiting:
            self._waiting = self._look()
        batch = self._waiting[:MAX_BATCH]
        if batch:
            self.exporter.export(batch)
            self.sent += len(batch)
            del self._waiting[:MAX_BATCH]
        self._worked()
        return bool(batch)

    def _look(self) -> list[Any]:
        """Return new records, without those of export threads."""
        polled = time.monotonic()
        records = self.records.poll()
        self._polled, self._was_empty = polled, not records
        if records:
            self._seen_ns = max(self._seen_ns, record_time(records[-1]))
        # Records of the exporter itself would come back to it endlessly.
        return [record for record in records if not is_of_exporter(record)]

    # Failures

    def _try(self, call: Callable[[], Any]) -> Any:
        try:
            return call()
        except (Exception, SystemExit) as error:  # SystemExit would end a thread silently
            self._failed(error)
            return None

    def _failed(self, error: BaseException) -> None:
        self.failures += 1
        self._in_a_row += 1
        self.last_error = f"{type(error).__name__}: {cut(' '.join(text_of(error).split()), 500)}"
        is_early = not self.quarantined
        delay = FIRST_DELAY * 2 ** (self._in_a_row - 1) if is_early else QUARANTINE_DELAY
        self._not_before = time.monotonic() + delay
        if self.quarantined and not self._has_warned:
            self._has_warned = True
            log_warning(
                "Exporter %s failed %d times in a row (%s). Training continues and nothing is lost: the run "
                "folder has every record. It is retried every %.0f s, and gets all records once it works.",
                self.name,
                self._in_a_row,
                self.last_error,
                QUARANTINE_DELAY,
            )

    def _worked(self) -> None:
        if self.quarantined:
            logging.getLogger("stepwell").info("Exporter %s works again.", self.name)
        self._in_a_row = 0
        self._not_before = 0.0


def make_feed(
    exporter: Any,
    folder: Path,
    filter: ExportFilter,
    source: Source | None = None,
    name: str | None = None,
) -> Feed:
    """Return a feed of this exporter with the records of the process in ``folder``."""
    if reads_log(exporter):
        own: Feed = exporter.feed(folder, source)
        return own
    follower = Follower(folder, filter.keeps)
    return Feed(exporter, follower, source or read_source(folder, follower.document), name)


def is_of_exporter(record: Any) -> bool:
    """Return whether a thread of an exporter wrote a record."""
    return bool(record.thread.startswith(THREAD))


def record_time(record: Any) -> int:
    """Return the time of a record, in nanoseconds since the epoch."""
    if isinstance(record, SpanRecord):
        return record.start_ns if record.end_ns is None else record.end_ns
    return int(record.time_ns)


def exporter_name(exporter: Any) -> str:
    """Return the name of an exporter: its attribute ``name``, or that of its class."""
    own = getattr(exporter, "name", None)
    return own if isinstance(own, str) and own else type(exporter).__name__


def do_nothing(*_: object) -> None:
    """Stands in for a method that an exporter does not have."""
