"""Delivery of records from the journal to a backend, each record exactly once.

Before a batch is delivered, the cursor after it is saved as the intent; after delivery, as the cursor. A
process that continues after a crash in between delivers exactly the same batch, with ``again=True``: the
backend may have it already.

The configuration and the final values of a run are in run.json, not in the journal, since they may change
until the run ends. They are delivered as records too; backends accept them any number of times.
"""

from __future__ import annotations

import contextlib
import json
import re
import time
from pathlib import Path
from typing import Any

from stepwell._core.errors import StepwellError
from stepwell._core.files import locked, read_file, read_json, replacing
from stepwell._core.masking import MASK, mask
from stepwell._core.values import text_of
from stepwell.follower.log import LogFollower
from stepwell.follower.records import ItemRecord, StatusRecord
from stepwell.loggers.delivery.backend import Backend, NotYet
from stepwell.loggers.items.converters import flattened
from stepwell.telemetry.deliveries import Delivery, drain_deliveries, finish_deliveries
from stepwell.telemetry.exporter import Source, read_source
from stepwell.telemetry.feed import WAITING, Feed, is_of_exporter
from stepwell.telemetry.run import Run, recorder_of
from stepwell.telemetry.run_document import RUN

MOST_COUNTED = 1_000_000
NOT_YET = 0.5
"""Seconds until a backend that waits for another rank is called again."""
CONFIG = "run_config"
"""Key in the backend's state: the configuration that was delivered."""
CREDENTIALS = re.compile(r"""://[^\s/"']+@""")
"""User name and password, or a token, in an address."""
MAX_STATE = 64 << 20


class Busy(NotYet):
    """Another process is delivering the same records now."""


def state_path(folder: Path, backend: Backend) -> Path:
    """Return the file in a process folder with the state of the delivery to this backend."""
    name = re.sub(r"[^\w-]", "_", backend.name or type(backend).__name__)[:40]
    number = "forward" if backend.number is None else backend.number
    return folder / f"delivery-{name}-{number}.json"


def kept_state(path: Path) -> dict[str, Any]:
    """Return the backend's own state as it was last saved; empty if there is none."""
    state = (read_json(path) or {}).get("state")
    return state if isinstance(state, dict) else {}


class DeliveryState:
    """The state file of one delivery. Only the holder of its lock reads and writes it.

    Attributes:
        cursor: position after the last delivered batch; None at the start.
        intent: position after the batch that is being delivered; None if there is none.
        own: the backend's own state.
        status: the status that ``Backend.finish`` was called with; None before.
    """

    def __init__(self, path: Path) -> None:
        self.path = path
        self.cursor: dict[str, Any] | None = None
        self.intent: dict[str, Any] | None = None
        self.own: dict[str, Any] = {}
        self.status: str | None = None
        self._held: contextlib.ExitStack | None = None
        self._saved = ""

    # Lock

    def lock(self) -> None:
        """Lock the delivery until ``unlock`` or the end of this process. Raise Busy if it is locked."""
        if self._held is not None:
            return
        with contextlib.ExitStack() as stack:
            if not stack.enter_context(locked(self.path.with_suffix(".lock"), wait=False)):
                raise Busy(
                    "another process is delivering these records; after the end of a training this takes up "
                    "to a minute"
                )
            self._held = stack.pop_all()

    def unlock(self) -> None:
        """Let another process deliver."""
        if self._held is not None:
            self._held.close()
            self._held = None

    # Content

    def load(self) -> None:
        """Read the file, if it exists. Raise StepwellError if it is damaged."""
        try:
            text = read_file(self.path, MAX_STATE).decode()
            saved = json.loads(text)
            self.cursor, self.intent = saved["cursor"], saved["intent"]
            self.own, self.status = saved["state"], saved["status_delivered"]
            self._saved = text
        except FileNotFoundError:
            return
        except (ValueError, KeyError, TypeError):
            # Starting over would deliver everything twice. That is for the user to decide.
            raise StepwellError(
                f"{self.path} is damaged, so it is unknown which records were delivered. Remove it to "
                "deliver everything again"
            ) from None

    def intend(self, cursor: dict[str, Any]) -> None:
        """Save that the records up to this cursor are about to be delivered."""
        self.intent = cursor
        self.save()

    def commit(self) -> None:
        """Save that the batch was delivered."""
        self.cursor, self.intent = self.intent, None
        self.save()

    def end(self, cursor: dict[str, Any], status: str) -> None:
        """Save that the backend was finished with this status."""
        self.cursor, self.intent, self.status = cursor, None, status
        self.save()

    def save(self) -> None:
        """Replace the file in one step, unless nothing has changed. The new state survives a power cut."""
        content = {
            "cursor": self.cursor,
            "intent": self.intent,
            "state": self.own,
            "status_delivered": self.status,
        }
        text = json.dumps(content, allow_nan=False)
        if text == self._saved:
            return
        with replacing(self.path, durable=True) as new:
            new.write_text(text, encoding="utf-8")
        self._saved = text


class LogFeed(Feed):
    """Feeds one backend with the log of one process, and saves how far it is."""

    def __init__(self, backend: Backend, folder: Path, source: Source | None = None) -> None:
        self.follower = LogFollower(folder, backend.number, limit=backend.batch)
        source = source or read_source(folder, self.follower.document)
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
        """The current activity if nothing is delivered. Waiting for another rank is not a failure."""
        return WAITING if self._is_early else super().stage

    def count_left(self) -> int | None:
        """Return the number of records in the run folder that are not delivered; None for very many."""
        follower = LogFollower(self.folder, self.backend.number, self.memory.cursor)
        count = 0
        while count < MOST_COUNTED:
            records = follower.poll()
            if not records or isinstance(records[0], StatusRecord):
                return count
            count += len(records)
        return None

    def claim(self) -> None:
        """Lock the delivery and continue where the last process stopped. Raise Busy if it is locked."""
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
            self._waiting = [record for record in records if not is_of_exporter(record)]
            self._again = bool(self._waiting)
            if not self._waiting:
                memory.commit()
        self._has_resumed = True

    def _hand_over(self) -> bool:
        self.claim()
        if self.over:
            return False
        if not self.is_open:
            self._open()
        batch = self._waiting = self._waiting or self._look()
        if batch:
            self._deliver_config()
            self._deliver(batch)
        self._worked()
        return bool(batch)

    def _open(self) -> None:
        self.backend.run_folder = self.folder.parent
        try:
            self.backend.open(self.source, self.memory.own)
        finally:
            # If it created a run before it failed, it must not create another one.
            self.memory.save()
        self.is_open = True

    def _deliver_config(self) -> None:
        """Deliver the run's configuration, or its changes, to a backend that has no logger.

        A backend with a logger gets the parameters that were logged to it.
        """
        if self.backend.number is not None:
            return
        path = self.folder.parent / RUN
        stamp = path.stat().st_mtime_ns if path.exists() else 0
        if stamp == self._config_stamp:
            return
        delivered = self.memory.own.setdefault(CONFIG, {})
        records = config_records(self.folder.parent, delivered, self.source.started_ns)
        if records:
            self.backend.deliver(list(records), True)
            delivered.update((record.name, record.value) for record in records)
            self.memory.save()
        self._config_stamp = stamp

    def _deliver_summary(self) -> None:
        """Deliver the final values of the run, from one rank only."""
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
            # If this cannot be written, it is written with the next batch.
            memory.commit()

    def close(self) -> None:
        """Close the backend and unlock the delivery."""
        super().close()
        self.memory.unlock()
        self._has_resumed = False

    def _failed(self, error: BaseException) -> None:
        if not isinstance(error, NotYet):
            self._is_early = False
            super()._failed(_without_secrets(error))
            return
        # It waits for another rank: this is not counted as a failure of the backend.
        self._is_early = True
        self.last_error = str(error)
        self._not_before = time.monotonic() + NOT_YET

    def _worked(self) -> None:
        self._is_early = False
        super()._worked()


def _without_secrets(error: BaseException) -> BaseException:
    """Mask the secrets in an error's message: it is printed, and written into the run."""
    message = text_of(error)
    masked = str(mask(CREDENTIALS.sub(f"://{MASK}@", message)))
    return error if masked == message else type(type(error).__name__, (Exception,), {})(masked)


class LogDelivery:
    """The delivery to one backend, for the logger of that backend.

    ``delivery`` has its progress: records sent, failures, the last error. It is None if nothing is delivered.
    """

    def __init__(self, path: Path, delivery: Delivery | None) -> None:
        self.delivery = delivery
        self._path = path

    def drain(self, timeout: float) -> bool:
        """Wait until all records in the run folder are delivered. Return False after ``timeout`` seconds."""
        return self.delivery is None or drain_deliveries([self.delivery], timeout)

    def close(self, timeout: float) -> None:
        """Deliver the rest, and the final status if it is known, within ``timeout`` seconds."""
        if self.delivery is not None:
            finish_deliveries([self.delivery], timeout=timeout)

    def state(self) -> dict[str, Any]:
        """Return the backend's own state, such as its run id; empty before it has connected."""
        return kept_state(self._path)


def start_delivery(run: Run, backend: Backend) -> LogDelivery:
    """Start to deliver the records of this process to a backend, in the background."""
    run.add_exporter(backend)
    delivery = next((d for d in run.exporters if d.exporter is backend), None)
    recorder = recorder_of(run)
    folder = run.path if recorder is None else recorder.folder
    return LogDelivery(state_path(folder, backend), delivery)


NONFINITE = "nonfinite"
"""Key of the numbers that JSON cannot represent."""


def config_records(run_folder: Path, delivered: dict[str, Any], time_ns: int) -> list[ItemRecord]:
    """Return the parameters of the configuration that were not delivered with the same value."""
    flat = _mapping(run_folder, "config")
    return [
        _record("param", name, value, time_ns)
        for name, value in flat.items()
        if name not in delivered or delivered[name] != value
    ]


def summary_records(run_folder: Path, time_ns: int) -> list[ItemRecord]:
    """Return the final values that were set through ``run.summary``."""
    values = _mapping(run_folder, "summary")
    return [_record("summary", name, value, time_ns) for name, value in values.items()]


def tags_of(run_folder: Path) -> list[str]:
    """Return the tags of a run."""
    tags = (read_json(run_folder / RUN) or {}).get("tags")
    return [str(tag) for tag in tags] if isinstance(tags, list) else []


def _mapping(run_folder: Path, key: str) -> dict[str, Any]:
    """Return a mapping of run.json without nesting, including its numbers that are not finite."""
    mapping = (read_json(run_folder / RUN) or {}).get(key)
    values = dict(mapping) if isinstance(mapping, dict) else {}
    words = values.pop(NONFINITE, None)
    flat = flattened(values)
    if isinstance(words, dict):
        flat |= {name: str(word) for name, word in words.items() if flat.get(name, "") is None}
    return flat


def _record(kind: str, name: str, value: Any, time_ns: int) -> ItemRecord:
    return ItemRecord(kind, name, (), None, None, value, None, None, None, None, time_ns, "run")
