"""The name table: every name is written once and has a small number as its id.

Ids belong to the Python process, not to a journal, so that a span object stays valid for later journals and
across a fork. A journal attaches its file, which gets all names so far, and each new name with a single
``write(2)`` before its id is first used.
"""

from __future__ import annotations

import itertools
import os
import threading

from stepwell._core.values import cut
from stepwell.journal.format import MAX_NAMES, METRIC, SPAN

MAX_NAME = 1000

Key = tuple[str, str, str]
"""(kind, category, name)"""

OVERFLOW: dict[str, Key] = {kind: (kind, "", "(too many names)") for kind in (SPAN, METRIC)}


class NameTable:
    """Ids of names, and the file with the names for readers."""

    def __init__(self) -> None:
        self.ids: dict[Key, int] = {}
        # Re-entrant: a signal handler may add a name while another one is written.
        self._lock = threading.RLock()
        self._numbers = itertools.count(1)
        self._keys: dict[int, Key] = {}
        self._lines: dict[int, bytes] = {}
        self._waiting: list[int] = []
        self._torn = False
        self._behind = False
        self._fd = -1
        for key in OVERFLOW.values():
            self.ids[key] = self._add(key)

    def intern(self, kind: str, name: str, category: str = "") -> int:
        """Return the id of a name. A new name is written to the attached file first."""
        key = (kind, category, name)
        number = self.ids.get(key)
        if number is not None:
            return number
        with self._lock:
            number = self.ids.get(key)
            if number is not None:
                return number
            if len(self.ids) >= MAX_NAMES:
                return self.ids[OVERFLOW[kind]]
            number = self._add(key)
            # After a failure the pump retries: writing the whole backlog for each new name would take
            # longer and longer.
            if not self._behind:
                self._write()
            # Other threads may use the id only now. A signal handler may have added the same name.
            return self.ids.setdefault(key, number)

    def key(self, number: int) -> Key:
        """Return (kind, category, name) of an id."""
        return self._keys[number]

    def lines(self) -> bytes:
        """Return the content of a file with the whole table."""
        return b"".join(map(self._line, self._keys))

    def attach(self, fd: int) -> None:
        """Write all names to this open file, and new names when they are added."""
        with self._lock:
            self._fd = fd
            self._waiting = list(self._keys)
            self._torn = False
            self._write()

    def detach(self) -> int:
        """Stop writing to the attached file. Return its descriptor, or -1."""
        fd, self._fd = self._fd, -1
        return fd

    def close(self, timeout: float = 1.0) -> None:
        """Stop writing to the attached file and close it, unless a write to it hangs."""
        if self._lock.acquire(timeout=timeout):
            fd = self.detach()
            self._lock.release()
            if fd >= 0:
                os.close(fd)
        else:
            self.detach()

    def retry(self) -> None:
        """Write names that a full disk prevented from being written."""
        if self._fd >= 0 and self._waiting:
            with self._lock:
                self._write()

    def renew_lock(self) -> None:
        """Replace the lock in a forked child: another thread of the parent may have held it."""
        self._lock = threading.RLock()

    def _add(self, key: Key) -> int:
        number = next(self._numbers)
        self._keys[number] = key
        self._waiting.append(number)
        return number

    def _write(self) -> None:
        if self._fd < 0:
            return
        # After a short write the last line is torn: the next write starts a new line, and readers use
        # complete lines only.
        batch = set(self._waiting)
        data = b"\n" * self._torn + b"".join(map(self._line, sorted(batch)))
        try:
            self._torn = os.write(self._fd, data) != len(data)
        except OSError:
            self._behind = True
            return
        self._behind = self._torn
        if not self._torn:
            self._waiting = [number for number in self._waiting if number not in batch]

    def _line(self, number: int) -> bytes:
        """Return the line of a name; cached, because every journal of the process writes all names."""
        line = self._lines.get(number)
        if line is None:
            line = self._lines[number] = self._encode(number)
        return line

    def _encode(self, number: int) -> bytes:
        import json

        # Lone surrogates cannot be encoded in UTF-8: they are written as escapes.
        parts = [cut(part, MAX_NAME) for part in self._keys[number]]
        shown = [part.encode("utf-8", "backslashreplace").decode() for part in parts]
        entry = dict(zip(("kind", "category", "name"), shown, strict=True))
        return json.dumps({"id": number, **entry}, ensure_ascii=False).encode() + b"\n"


names = NameTable()
"""The table of this process."""
