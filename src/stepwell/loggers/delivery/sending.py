"""Delivery: from the journal to a backend, each record exactly once.

Before a batch is handed over, the cursor behind it is written down; when it was taken, that it was. Whoever
goes on after a crash in between hands over exactly the same batch, and tells the backend that it may
have got it already.
"""

from __future__ import annotations

import re
import time
from pathlib import Path
from typing import Any

from stepwell.journal.follow_log import LogFollower
from stepwell.journal.masking import MASK, mask
from stepwell.journal.records import LogRecord, StatusRecord
from stepwell.journal.values import text_of
from stepwell.loggers.delivery.backend import Backend, NotYet
from stepwell.loggers.delivery.run_facts import RUN, config_records, summary_records
from stepwell.loggers.delivery.state import DeliveryState, kept_state, state_path
from stepwell.telemetry.deliveries import Delivery, drain_deliveries, finish_deliveries
from stepwell.telemetry.exporter import Source, source_of
from stepwell.telemetry.feeding import THREAD, WAITING, Feed
from stepwell.telemetry.run import Run

MOST_COUNTED = 1_000_000
NOT_YET = 0.5
"""Seconds until a backend that waits for another rank is called again."""
CONFIG = "run_config"
"""In the state of delivery: the configuration that the backend has."""
CREDENTIALS = re.compile(r"""://[^\s/"']+@""")
"""In an address: a user's name and password, or a token."""


class LogFeed(Feed):
    """One backend, the log that it is fed from, and what is remembered of that."""

    def __init__(self, backend: Backend, folder: Path, source: Source | None = None) -> None:
        self.follower = LogFollower(folder, backend.number, limit=backend.batch)
        source = source or source_of(folder, self.follower.about)
        super().__init__(backend, self.follower, source)
        self.backend = backend
        self.folder = folder
        self.memory = DeliveryState(state_path(folder, backend))
        self._again = False
        self._has_resumed = False
        self._is_early = False
        self._config_stamp = -1

    @property
    def stage(self) -> str:
        """What it does, unless it delivers; waiting for another rank is not a failure."""
        return WAITING if self._is_early else super().stage

    def count_left(self) -> int | None:
        """Return how many records are not delivered, as the run folder says; None for very many."""
        follower = LogFollower(self.folder, self.backend.number, self.memory.cursor)
        count = 0
        while count < MOST_COUNTED:
            records = follower.poll()
            if not records or isinstance(records[0], StatusRecord):
                return count
            count += len(records)
        return None

    def claim(self) -> None:
        """Make sure that nobody else delivers the same, and go on where the last one was; or ``Busy``."""
        if self._has_resumed:
            return
        memory = self.memory
        memory.lock()
        memory.load()
        self._waiting = []
        if memory.intent is None:
            self.follower.seek(memory.cursor)
        else:
            records = self.follower.between(memory.cursor or {}, memory.intent)
            self._waiting = [record for record in records if not _is_own(record)]
            self._again = bool(self._waiting)
            if not self._waiting:
                memory.commit()
        self._has_resumed = True

    def _hand_over(self) -> bool:
        self.claim()
        if self.over:
            return False
        if not self._is_open:
            self._open()
        if not self._waiting:
            self._waiting = self._look()
        if self._waiting:
            self._deliver_config()
        batch = self._waiting
        if batch:
            self._deliver(batch)
        self._worked()
        return bool(batch)

    def _open(self) -> None:
        self.backend.run_folder = self.folder.parent
        try:
            self.backend.open(self.source, self.memory.own)
        finally:
            # A run that it made before it failed must not be made again.
            self.memory.save()
        self._is_open = True

    def _deliver_config(self) -> None:
        """Deliver the run's configuration, or what has changed of it, to a backend of the whole run.

        A backend with a logger gets the parameters that its logger was given.
        """
        if self.backend.number is not None:
            return
        path = self.folder.parent / RUN
        stamp = path.stat().st_mtime_ns if path.exists() else 0
        if stamp == self._config_stamp:
            return
        known = self.memory.own.setdefault(CONFIG, {})
        records = config_records(self.folder.parent, known, self.source.started_ns)
        if records:
            self.backend.deliver(list(records), True)
            known.update((record.name, record.value) for record in records)
            self.memory.save()
        self._config_stamp = stamp

    def _deliver_summary(self) -> None:
        """Deliver the final values that were set, once for all ranks."""
        records = summary_records(self.folder.parent, time.time_ns())
        if records and self.backend.is_first:
            self.backend.deliver(list(records), True)

    def _deliver(self, batch: list[Any]) -> None:
        memory = self.memory
        try:
            if isinstance(batch[0], StatusRecord):
                self._deliver_summary()
                self.backend.finish(batch[0].status)
                memory.end(self.follower.cursor, batch[0].status)
            else:
                if not self._again:
                    memory.intend(self.follower.cursor)
                again, self._again = self._again, True
                self.backend.deliver(list(batch), again)
        except BaseException:
            memory.save()
            raise
        self._waiting = []
        self._again = False
        if memory.intent is not None:
            self.sent += len(batch)
            # Where this cannot be written, it is with the next batch.
            memory.commit()

    def close(self) -> None:
        """Let go of the backend, and let others deliver."""
        super().close()
        self.memory.unlock()
        self._has_resumed = False

    def _failed(self, error: BaseException) -> None:
        if not isinstance(error, NotYet):
            self._is_early = False
            super()._failed(_without_secrets(error))
            return
        # It waits for somebody, which is no failure of the backend.
        self._is_early = True
        self.last_error = str(error)
        self._not_before = time.monotonic() + NOT_YET

    def _worked(self) -> None:
        self._is_early = False
        super()._worked()


def _is_own(record: LogRecord) -> bool:
    """Whether it comes from a thread that exports, and would come back to it for ever."""
    return record.thread.startswith(THREAD)


def _without_secrets(error: BaseException) -> BaseException:
    """The error, without what is secret in an address in it: it is printed, and written into the run."""
    told = text_of(error)
    masked = str(mask(CREDENTIALS.sub(f"://{MASK}@", told)))
    return error if masked == told else type(type(error).__name__, (Exception,), {})(masked)


class LogDelivery:
    """The delivery to one backend, as the logger in front of it sees it."""

    def __init__(self, backend: Backend, path: Path, delivery: Delivery | None) -> None:
        self.backend = backend
        self._path = path
        self._delivery = delivery

    @property
    def delivery(self) -> Delivery | None:
        """How it goes: records sent, failures, the last error. None where nothing is delivered."""
        return self._delivery

    def drain(self, timeout: float) -> bool:
        """Have all delivered that is in the run folder; whether it was in time."""
        return self._delivery is None or drain_deliveries([self._delivery], timeout)

    def close(self, timeout: float) -> None:
        """Deliver the rest, and how it ended if the journal has been told; no longer than this."""
        if self._delivery is not None:
            finish_deliveries([self._delivery], timeout=timeout)

    def state(self) -> dict[str, Any]:
        """What the backend keeps about itself, such as its run id; empty before it has connected."""
        return kept_state(self._path)


def start_delivery(run: Run, backend: Backend) -> LogDelivery:
    """Have a backend fed with what is logged in this process; nobody waits for it."""
    run.add_exporter(backend)
    found = next((d for d in run.exporters if d.exporter is backend), None)
    recorder = run._recorder
    folder = run.path if recorder is None else recorder.folder
    return LogDelivery(backend, state_path(folder, backend), found)
