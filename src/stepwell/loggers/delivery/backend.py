"""Backends: what carries the log of a run (metrics, parameters, files) to MLflow and the like.

A backend never meets the training code. It reads what the journal holds, in a process of its own, and is
told of each batch until it took it. To write one, subclass ``Backend``, and write ``deliver``.
"""

from __future__ import annotations

import json
import os
import re
import uuid
from collections.abc import Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any, ClassVar

from stepwell.journal.document import read_json
from stepwell.journal.records import ItemRecord as ItemRecord
from stepwell.journal.records import LogRecord as LogRecord
from stepwell.journal.records import MetricRecord as MetricRecord
from stepwell.telemetry.artifacts import artifact_path
from stepwell.telemetry.exporter import Source as Source

if TYPE_CHECKING:
    from stepwell.telemetry.feeding import Feed

BACKENDS = "backends"
"""The folder of a run where its backends tell each other what all ranks share."""

PLACES = ("tracking_uri", "savedir", "provenance_save_dir", "entity")
"""Options that say where a backend sends to."""
FOLDER = "folder"
"""In place of an option: the folder that was chosen when it was first opened."""


class NotYet(Exception):
    """What is needed comes from another rank, and is not there yet: raised to be called again."""


class Backend:
    """Base class of all backends; only ``deliver`` has to be written.

    Every method is called from one background thread or process, never from the training thread, so it
    may be slow. What raises is tried again later; it disturbs neither training nor other backends.
    SDKs are imported inside of the methods.

    Attributes:
        number: which logger of its process it is, from 1; None takes whatever was logged.
        rank: the rank of that process.
        ranks: the ranks that log; None: all of them.
        run_name: what the run is called in the backend; None: as it is called here.
        options: the other options, plain JSON, never secrets.
        run_folder: the run folder, from ``open`` on.
    """

    name: ClassVar[str] = ""
    """What it is called: ``stepwell forward RUN --to NAME``."""

    address_option: ClassVar[str | None] = None
    """The option that ``--to NAME=ADDRESS`` sets; None: it has no address."""

    reads: ClassVar[str] = "log"

    out_of_process: ClassVar[bool] = True
    """Whether it runs in a process of its own, made anew there from what ``description`` says."""

    batch: ClassVar[int] = 2000
    """So many records it is given at most at once."""

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

    # What a backend writes

    def open(self, source: Source, state: dict[str, Any]) -> None:
        """Connect. Called before the first batch, and again by each process that goes on with it.

        ``state`` is this backend's own: plain JSON, empty at first. What is put into it, here or later,
        is kept together with how far delivery is: after ``open``, and with every batch.
        """

    def deliver(self, records: list[LogRecord], again: bool) -> None:
        """Take these records; there is at least one.

        To raise is to say that they were not taken: exactly the same batch comes again, until it was.
        ``again``: an earlier try of exactly this batch may have got through, in whole or in part.
        """
        raise NotImplementedError(f"{type(self).__name__} has no method deliver(records, again)")

    def flush(self) -> None:
        """Pass on what is still held back."""

    def finish(self, status: str) -> None:
        """All was delivered and there will be no more: ``status`` is one of ``liveness.ENDINGS``.

        To raise is to be called again, as ``deliver`` is.
        """

    def close(self) -> None:
        """Let go, without a word about how the run ended: it may go on, or have been finished."""

    # What it may use

    @property
    def is_first(self) -> bool:
        """Whether this rank is the first of those that log, which creates what all share."""
        return self.rank == (0 if not self.ranks else self.ranks[0])

    def content_path(self, sha256: str) -> Path:
        """The file with this content; there is none where the content is gone."""
        if not re.fullmatch(r"[0-9a-f]{64}", sha256):
            raise ValueError(f"{sha256!r} is no sha256")
        path = artifact_path(self.run_folder, sha256)
        # Contents are never links: one in a run folder of somebody else's may lead to a secret of ours.
        return path.with_name(f"{sha256} (a link)") if path.is_symlink() else path

    def shared(self, key: str) -> dict[str, Any] | None:
        """What some rank of this run published under this key; None: nothing yet."""
        return read_json(self._shared_path(key))

    def publish(self, key: str, value: dict[str, Any]) -> dict[str, Any]:
        """Tell all ranks, also of later attempts. The first one counts: returns what counts."""
        path = self._shared_path(key)
        path.parent.mkdir(exist_ok=True)
        beside = path.with_name(f".{path.name}.{uuid.uuid4().hex}")
        try:
            _write(beside, value)
            _link(beside, path)
        finally:
            beside.unlink(missing_ok=True)
        found = self.shared(key)
        if found is None:
            raise NotYet(f"{path} is being written")
        return found

    def _shared_path(self, key: str) -> Path:
        return self.run_folder / BACKENDS / (re.sub(r"[^\w.-]", "_", key)[:100] + ".json")

    # What delivery needs

    def places(self, state: dict[str, Any]) -> dict[str, str]:
        """Where it would send to or write, as its options and its state say, by the name of the option."""
        found = {name: self.options.get(name) for name in PLACES}
        kept = state.get("folder") or state.get("savedir")
        if kept:
            found[FOLDER] = kept
        return {name: str(place) for name, place in found.items() if place}

    def description(self) -> dict[str, Any]:
        """How to make the same backend in another process."""
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
        """What gives this backend the log of the process in this folder."""
        from stepwell.loggers.delivery.sending import LogFeed

        return LogFeed(self, folder, source)


def _write(path: Path, value: dict[str, Any]) -> None:
    with path.open("w", encoding="utf-8") as file:
        file.write(json.dumps(value, allow_nan=False))
        file.flush()
        os.fsync(file.fileno())


def _link(source: Path, target: Path) -> None:
    """Give a complete file its name, unless another has it."""
    try:
        os.link(source, target)
    except FileExistsError:
        pass
    except OSError:
        # No links on this file system: a reader may see an empty file for a moment, which is no JSON.
        try:
            with target.open("xb") as file:
                file.write(source.read_bytes())
        except FileExistsError:
            pass
