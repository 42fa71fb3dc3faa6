"""Feeding one exporter: records from a follower go in, batch by batch, again and again if need be.

A feed has no thread of its own. Whoever owns it, an export thread or a sidecar process, calls ``step``
in a loop, and ``drain`` and ``close`` at the end.
"""

from __future__ import annotations

import logging
import time
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any, Protocol

from stepwell.journal import clock
from stepwell.journal.errors import say
from stepwell.journal.follow import Follower
from stepwell.journal.records import SpanRecord
from stepwell.journal.values import cut, text_of
from stepwell.telemetry.export_filter import ExportFilter
from stepwell.telemetry.exporter import Source, reads_log, source_of

MAX_BATCH = 2000
"""So many records an exporter is given at once."""
FIRST_DELAY = 0.1
QUARANTINE_AFTER = 5
"""So many failures in a row, and it is said; from then on it is tried every now and then only."""
QUARANTINE_DELAY = 30.0
SETTLED = 0.01
"""So many seconds after it was recorded, all there is to know of a span can be read."""
THREAD = "stepwell-export"
"""How the names of all export threads begin."""
STARTING, WAITING, FAILING = "starting", "waiting for another process", "failing"
"""What a feed does when it does not deliver."""


class Records(Protocol):
    """Where a feed gets records: a ``Follower``, or one of the log."""

    def poll(self) -> Sequence[Any]:
        """What is new since the last call."""
        ...

    @property
    def over(self) -> bool:
        """Whether the process has ended and all of it was given out."""
        ...


class Feed:
    """One exporter, what it is fed from, and how that goes.

    Attributes:
        name: what the exporter is called in messages.
        sent: how many records it took.
        failures: how many of its calls failed.
        last_error: the latest failure in words, None when there was none.
    """

    def __init__(
        self, exporter: Any, records: Records, source: Source, name: str | None = None
    ) -> None:
        self.exporter = exporter
        self.records = records
        self.source = source
        self.name = name or name_of(exporter)
        self.sent = 0
        self.failures = 0
        self.last_error: str | None = None
        self._in_a_row = 0
        self._not_before = 0.0
        self._is_open = False
        self._said = False
        self._waiting: list[Any] = []
        self._looked = 0.0
        self._saw_nothing = False
        self._seen_ns = 0

    # How it goes

    @property
    def waiting(self) -> int:
        """How many records were read and not taken yet."""
        return len(self._waiting)

    @property
    def quarantined(self) -> bool:
        """Whether it failed so often in a row that it is tried only now and then."""
        return self._in_a_row >= QUARANTINE_AFTER

    @property
    def is_open(self) -> bool:
        """Whether the exporter is ready for records."""
        return self._is_open

    @property
    def stage(self) -> str:
        """What it does, unless it delivers: importing and connecting, or trying again."""
        if self._in_a_row:
            return FAILING
        return "" if self._is_open else STARTING

    def count_left(self) -> int | None:
        """Return how many records are not delivered; None where that is unknown. For any thread."""
        return len(self._waiting)

    @property
    def over(self) -> bool:
        """Whether the recorded process has ended and the exporter took all of it."""
        return not self._waiting and self.records.over

    def pause(self) -> float:
        """How many seconds until the next try after a failure; 0 when none is due."""
        return max(0.0, self._not_before - time.monotonic())

    # The work

    def step(self) -> bool:
        """Hand over one batch; whether more may be had by calling again at once.

        False: nothing is new, or it failed, and ``pause`` says when to try again.
        """
        if time.monotonic() < self._not_before:
            return False
        return self._try(self._hand_over) or False

    def drain(self, deadline: float, closing: bool = False) -> bool:
        """Hand over all that was recorded until now; whether it was, by ``time.monotonic()``.

        Failures are tried again until then, up to five in a row: a receiver that was down may be back, and
        slow at first. With ``closing``, one that has failed so often before is tried once.
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
        """Whether it took all that was recorded before an instant, given on both clocks.

        A look may give out a part; one that finds nothing has seen all, and so has one that finds
        what was recorded later. Else another thread that records and records would be waited for.
        """
        if self._waiting:
            return False
        saw_all = self._saw_nothing and self._looked >= since
        return saw_all or self._seen_ns >= until_ns or self.records.over

    def close(self) -> None:
        """Flush and close the exporter, if it was ever opened."""
        if self._is_open:
            self._flush()
            self._is_open = False
            self._try(getattr(self.exporter, "close", _nothing))

    def _flush(self) -> bool:
        if not self._is_open:
            return True
        before = self.failures
        self._try(getattr(self.exporter, "flush", _nothing))
        return self.failures == before

    def _hand_over(self) -> bool:
        if not self._is_open:
            getattr(self.exporter, "open", _nothing)(self.source)
            self._is_open = True
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
        """What is new."""
        looked = time.monotonic()
        records = self.records.poll()
        self._looked, self._saw_nothing = looked, not records
        if records:
            self._seen_ns = max(self._seen_ns, time_of(records[-1]))
        # What an exporter records itself would come back to it for ever.
        return [record for record in records if not record.thread.startswith(THREAD)]

    # Failures

    def _try(self, call: Callable[[], Any]) -> Any:
        try:
            return call()
        except (Exception, SystemExit) as error:  # the latter would end a thread unseen
            self._failed(error)
            return None

    def _failed(self, error: BaseException) -> None:
        self.failures += 1
        self._in_a_row += 1
        self.last_error = f"{type(error).__name__}: {cut(' '.join(text_of(error).split()), 500)}"
        is_early = not self.quarantined
        delay = FIRST_DELAY * 2 ** (self._in_a_row - 1) if is_early else QUARANTINE_DELAY
        self._not_before = time.monotonic() + delay
        if self.quarantined and not self._said:
            self._said = True
            say(
                "exporter %s failed %d times in a row (%s). Training goes on and nothing is lost: "
                "the run folder has every record. It is tried again every %.0f s, and gets what it "
                "missed as soon as it works.",
                self.name,
                self._in_a_row,
                self.last_error,
                QUARANTINE_DELAY,
            )

    def _worked(self) -> None:
        if self.quarantined:
            logging.getLogger("stepwell").info("exporter %s works again", self.name)
        self._in_a_row = 0
        self._not_before = 0.0


def feed_of(
    exporter: Any,
    folder: Path,
    filter: ExportFilter,
    source: Source | None = None,
    name: str | None = None,
) -> Feed:
    """What feeds this exporter with the records of the process in ``folder``, as it wants them."""
    if reads_log(exporter):
        own: Feed = exporter.feed(folder, source)
        return own
    follower = Follower(folder, filter.keeps)
    return Feed(exporter, follower, source or source_of(folder, follower.about), name)


def time_of(record: Any) -> int:
    """When what a record tells of happened, in nanoseconds since the epoch."""
    if isinstance(record, SpanRecord):
        return record.start_ns if record.end_ns is None else record.end_ns
    return int(record.time_ns)


def name_of(exporter: Any) -> str:
    """What an exporter is called: its own ``name``, else that of its class."""
    own = getattr(exporter, "name", None)
    return own if isinstance(own, str) and own else type(exporter).__name__


def _nothing(*_: object) -> None:
    """In place of a method that an exporter does not have."""
