"""The saved state of a delivery: its cursor, the batch in progress, and the backend's own state."""

from __future__ import annotations

import contextlib
import errno
import json
import os
import re
from pathlib import Path
from typing import Any

from stepwell._core.errors import StepwellError
from stepwell._core.files import read_file, read_json, replacing, sync
from stepwell.loggers.delivery.backend import Backend, NotYet

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
        self._lock = -1
        self._saved = ""

    # Lock

    def lock(self) -> None:
        """Lock the delivery until ``unlock`` or the end of this process. Raise Busy if it is locked."""
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
        """Let another process deliver."""
        if self._lock >= 0:
            os.close(self._lock)
            self._lock = -1

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
        with replacing(self.path) as new:
            new.write_text(text, encoding="utf-8")
            sync(new)
        self._saved = text
        # Some network file systems cannot sync a folder: the new file is in place all the same.
        with contextlib.suppress(OSError):
            sync(self.path.parent)


def _lock(fd: int) -> None:
    try:
        import fcntl
    except ImportError:
        return  # This system has no such locks.
    try:
        fcntl.flock(fd, fcntl.LOCK_EX | fcntl.LOCK_NB)
    except OSError as error:
        if error.errno in (errno.EWOULDBLOCK, errno.EACCES):
            raise Busy(
                "another process is delivering these records; after the end of a training this takes up to a "
                "minute"
            ) from None
        # Some network file systems have no locks: then two processes may deliver at once.
