"""What a delivery remembers: how far it is, what it is about to hand over, and the backend's own state."""

from __future__ import annotations

import errno
import json
import os
import re
from pathlib import Path
from typing import Any

from stepwell.journal.document import read_json
from stepwell.journal.errors import StepwellError
from stepwell.journal.files import read_file
from stepwell.loggers.delivery.backend import Backend, NotYet

MAX_STATE = 64 << 20


class Busy(NotYet):
    """Another process is delivering this just now."""


def state_path(folder: Path, backend: Backend) -> Path:
    """The file in a process folder where the delivery to this backend is remembered."""
    name = re.sub(r"[^\w-]", "_", backend.name or type(backend).__name__)[:40]
    number = "forward" if backend.number is None else backend.number
    return folder / f"delivery-{name}-{number}.json"


def kept_state(path: Path) -> dict[str, Any]:
    """The backend's own state as it was last kept; empty when there is none."""
    found = (read_json(path) or {}).get("state")
    return found if isinstance(found, dict) else {}


class DeliveryState:
    """One such file. Only the holder of its lock reads and writes it.

    Attributes:
        cursor: behind the last batch that was taken; None at the beginning.
        intent: behind the batch that is being handed over; None when none is.
        own: the backend's own state.
        status: what the backend was told about the end; None when it was not yet.
    """

    def __init__(self, path: Path) -> None:
        self.path = path
        self.cursor: dict[str, Any] | None = None
        self.intent: dict[str, Any] | None = None
        self.own: dict[str, Any] = {}
        self.status: str | None = None
        self._lock = -1
        self._saved = ""

    # One at a time

    def lock(self) -> None:
        """Be the only one to deliver until ``unlock``, or the end of this process; else ``Busy``."""
        if self._lock >= 0:
            return
        flags = os.O_RDWR | os.O_CREAT | getattr(os, "O_CLOEXEC", 0) | getattr(os, "O_NOFOLLOW", 0)
        fd = os.open(self.path.with_suffix(".lock"), flags, 0o644)
        try:
            _lock(fd)
        except BaseException:
            os.close(fd)
            raise
        self._lock = fd

    def unlock(self) -> None:
        """Let another one deliver."""
        if self._lock >= 0:
            os.close(self._lock)
            self._lock = -1

    # What is kept

    def load(self) -> None:
        """Read the file, if there is one."""
        try:
            text = read_file(self.path, MAX_STATE).decode()
            kept = json.loads(text)
            self.cursor, self.intent = kept["cursor"], kept["intent"]
            self.own, self.status = kept["state"], kept["status_delivered"]
            self._saved = text
        except FileNotFoundError:
            return
        except (ValueError, KeyError, TypeError):
            # To begin anew would deliver everything twice, which is for somebody to decide.
            raise StepwellError(
                f"{self.path} is damaged: nobody knows what was delivered. Remove it to deliver "
                "everything again"
            ) from None

    def intend(self, cursor: dict[str, Any]) -> None:
        """Note that everything up to this cursor is about to be handed over."""
        self.intent = cursor
        self.save()

    def commit(self) -> None:
        """Note that it was taken."""
        self.cursor, self.intent = self.intent, None
        self.save()

    def end(self, cursor: dict[str, Any], status: str) -> None:
        """Note that the backend was told how it ended."""
        self.cursor, self.intent, self.status = cursor, None, status
        self.save()

    def save(self) -> None:
        """Replace the file in one step, unless nothing has changed; it outlives a power cut too."""
        kept = {
            "cursor": self.cursor,
            "intent": self.intent,
            "state": self.own,
            "status_delivered": self.status,
        }
        text = json.dumps(kept, allow_nan=False)
        if text == self._saved:
            return
        beside = self.path.with_name(f".{self.path.name}.{os.getpid()}")
        try:
            with beside.open("w", encoding="utf-8") as file:
                file.write(text)
                file.flush()
                os.fsync(file.fileno())
            os.replace(beside, self.path)
        except OSError:
            beside.unlink(missing_ok=True)
            raise
        self._saved = text
        _sync_folder(self.path.parent)


def _lock(fd: int) -> None:
    try:
        import fcntl
    except ImportError:
        return  # There is no such lock on this system.
    try:
        fcntl.flock(fd, fcntl.LOCK_EX | fcntl.LOCK_NB)
    except OSError as error:
        if error.errno in (errno.EWOULDBLOCK, errno.EACCES):
            raise Busy(
                "another process is delivering this just now; that of a training goes on for up to a "
                "minute after its end"
            ) from None
        # Some network file systems have none: then nothing keeps two apart.


def _sync_folder(folder: Path) -> None:
    try:
        fd = os.open(folder, os.O_RDONLY)
    except OSError:
        return
    try:
        os.fsync(fd)
    except OSError:
        pass
    finally:
        os.close(fd)
