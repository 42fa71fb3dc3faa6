"""``Backend``: the base class of everything that delivers the log of a run (metrics, parameters, files).

A backend runs in another process than training. It gets the records of the journal in batches; a batch that
it does not accept comes again. To write one, subclass ``Backend`` and write ``deliver``.
"""

from __future__ import annotations

import re
import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any, ClassVar

from stepwell._core.errors import warn_once
from stepwell._core.files import read_json
from stepwell.follower.records import ItemRecord as ItemRecord
from stepwell.follower.records import LogRecord as LogRecord
from stepwell.follower.records import MetricRecord as MetricRecord
from stepwell.telemetry.artifacts import artifact_path
from stepwell.telemetry.claims import create_claim
from stepwell.telemetry.exporter import Source as Source

if TYPE_CHECKING:
    from stepwell.telemetry.feed import Feed

BACKENDS = "backends"
"""The folder of a run for files that its backends share between ranks."""

PLACES = ("tracking_uri", "savedir", "provenance_save_dir", "entity")
"""Options that contain a destination."""
FOLDER = "folder"
"""Key of a destination that is not an option: the folder that ``open`` chose."""


class NotYet(Exception):
    """Raised by a backend that has to wait for another rank. It is called again later."""


class Backend:
    """Base class of all backends. Only ``deliver`` has to be written.

    All methods are called from one background thread or process, never from the training thread, so they may
    be slow. A method that raises is called again later; this affects neither training nor other backends.
    Import SDKs inside the methods.

    Attributes:
        number: number of its logger in the process, from 1; None: it gets the records of all loggers.
        rank: the rank of that process.
        ranks: the ranks that log; None: all of them.
        run_name: the name of the run in the backend; None: the name of the run.
        options: the other options, plain JSON without secrets.
        run_folder: the run folder. Set before ``open``.
        state: its saved state, for backends that set it in ``open``.
    """

    name: ClassVar[str] = ""
    """The name for ``stepwell forward RUN --to NAME``."""

    address_option: ClassVar[str | None] = None
    """The option that ``--to NAME=ADDRESS`` sets; None: it has no address."""

    reads: ClassVar[str] = "log"

    out_of_process: ClassVar[bool] = True
    """Whether it runs in another process, where it is created again from ``description()``."""

    batch: ClassVar[int] = 2000
    """The largest number of records per call of ``deliver``."""

    def __init__(
        self,
        *,
        number: int | None = None,
        rank: int = 0,
        ranks: Sequence[int] | None = None,
        run_name: str | None = None,
        **options: Any,
    ) -> None:
        self.number = number
        self.rank = rank
        self.ranks = None if ranks is None else sorted(ranks)
        self.run_name = run_name
        self.options = options
        self.run_folder = Path()
        self.state: dict[str, Any] = {}

    # To be overridden

    def open(self, source: Source, state: dict[str, Any]) -> None:
        """Connect. Called before the first batch, and again in each process that continues the delivery.

        Args:
            source: the process that recorded.
            state: this backend's own state: plain JSON, empty at first. Changes, here or later, are saved
                together with the cursor: after ``open``, and with every batch.
        """

    def deliver(self, records: list[LogRecord], again: bool) -> None:
        """Deliver these records. If it raises, exactly the same batch comes again, until it succeeds.

        Args:
            records: at least one record.
            again: whether an earlier attempt with exactly this batch may have succeeded, in whole or in part.
        """
        raise NotImplementedError(f"{type(self).__name__} has no method deliver(records, again)")

    def flush(self) -> None:
        """Send buffered records, if there are any."""

    def finish(self, status: str) -> None:
        """End the run: everything is delivered. ``status`` is one of ``liveness.ENDINGS``.

        If it raises, it is called again.
        """

    def close(self) -> None:
        """Release connections. The run may continue later, or have been finished before."""

    # Tools for backends

    @property
    def is_first(self) -> bool:
        """Whether this rank is the first of those that log. The first rank creates what all share."""
        return self.rank == (0 if not self.ranks else self.ranks[0])

    def content_path(self, sha256: str) -> Path:
        """Return the path of the file with this content. It does not exist if the content was removed."""
        if not re.fullmatch(r"[0-9a-f]{64}", sha256):
            raise ValueError(f"sha256 must be 64 hexadecimal digits, got {sha256!r}")
        path = artifact_path(self.run_folder, sha256)
        # Contents are never links. A link in a run folder from someone else might lead to a secret file.
        return path.with_name(f"{sha256} (a link)") if path.is_symlink() else path

    def shared(self, key: str) -> dict[str, Any] | None:
        """Return the value that some rank of this run published under this key; None if none has."""
        return read_json(self._shared_path(key))

    def publish(self, key: str, value: dict[str, Any]) -> dict[str, Any]:
        """Publish a value for all ranks, also of later attempts. Return the first published value."""
        path = self._shared_path(key)
        path.parent.mkdir(exist_ok=True)
        create_claim(path, value, durable=True)
        first = self.shared(key)
        if first is None:
            raise NotYet(f"{path} is being written")
        return first

    def _shared_path(self, key: str) -> Path:
        return self.run_folder / BACKENDS / (re.sub(r"[^\w.-]", "_", key)[:100] + ".json")

    def warn(self, key: str, message: str) -> None:
        """Warn once per logger. Also keep the message in ``state["notes"]``: a sidecar has no terminal."""
        if key not in self.state["notes"]:
            self.state["notes"][key] = message
            warn_once(f"{self.name} {self.state['run_id']} {key}", "%s", message)

    # For delivery

    def places(self, state: dict[str, Any]) -> dict[str, str]:
        """Return the destinations in its options and its state, by the name of the option."""
        places = {name: self.options.get(name) for name in PLACES}
        folder = state.get("folder") or state.get("savedir")
        if folder:
            places[FOLDER] = folder
        return {name: str(place) for name, place in places.items() if place}

    def description(self) -> dict[str, Any]:
        """Return the class and the options, to create the same backend in another process."""
        own = type(self)
        options = {
            "number": self.number,
            "rank": self.rank,
            "ranks": self.ranks,
            "run_name": self.run_name,
            **self.options,
        }
        return {"class": f"{own.__module__}.{own.__qualname__}", "options": options}

    def feed(self, folder: Path, source: Source | None = None) -> Feed:
        """Return the feed that reads the log of the process in this folder for this backend."""
        from stepwell.loggers.delivery.feed import LogFeed

        return LogFeed(self, folder, source)


POLL_INTERVAL = 0.05
RUN_KEYS = ("run_id", "id", "folder", "url")
"""Keys of the state. A backend has its run when one of them is set."""


@dataclass(frozen=True)
class BackendRun:
    """The backend's own run. A field is None if the backend has no such thing.

    Attributes:
        id: the backend's id of the run.
        name: its name in the backend.
        url: its web page.
        folder: the folder of its files on this machine.
    """

    id: str | None = None
    name: str | None = None
    url: str | None = None
    folder: str | None = None

    @classmethod
    def of(cls, state: dict[str, Any]) -> BackendRun:
        """Create it from the backend's state."""
        values = {
            "id": state.get("run_id") or state.get("id"),
            "name": state.get("run_name") or state.get("name"),
            "url": state.get("url"),
            "folder": state.get("folder") or state.get("savedir"),
        }
        return cls(**{key: None if value is None else str(value) for key, value in values.items()})


def wait_for_run(
    delivery: Any, timeout: float, find: Callable[[dict[str, Any]], Any]
) -> Any | None:
    """Wait until the backend has its run. Return ``find(state)``; None after ``timeout`` seconds."""
    worker = None if delivery is None else delivery.delivery
    if worker is None:
        return None
    deadline = time.monotonic() + timeout
    worker.hurry()
    try:
        while True:
            run = _find(delivery.state(), find)
            if run is not None or time.monotonic() >= deadline:
                return run
            time.sleep(POLL_INTERVAL)
    finally:
        worker.rest()


def _find(state: dict[str, Any], find: Callable[[dict[str, Any]], Any]) -> Any | None:
    if not any(state.get(key) for key in RUN_KEYS):
        return None
    try:
        return find(state)
    except NotYet:
        return None
