"""The string table: every name is written once and referred to by a small number.

Ids belong to the Python process, not to a run, so that a span object stays valid from one run to
the next and across a fork. Whoever opens a process folder attaches a file: it gets all names known so
far, and each new one with a single ``write(2)`` before its id is first used.
"""

from __future__ import annotations

import itertools
import os
import threading

from stepwell.journal.format import MAX_NAMES
from stepwell.journal.values import cut

SPAN = "span"
METRIC = "metric"
MAX_NAME = 1000

Key = tuple[str, str, str]
"""(kind, category, name)"""

OVERFLOW: dict[str, Key] = {kind: (kind, "", "(too many names)") for kind in (SPAN, METRIC)}


class NameTable:
    """Ids of names, and the file that tells a reader what they mean."""

    def __init__(self) -> None:
        self.ids: dict[Key, int] = {}
        # Re-entrant: a signal handler may name something while a name is being written.
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
        """The id of this name, written to the attached file when it is new."""
        key = (kind, category, name)
        found = self.ids.get(key)
        if found is not None:
            return found
        with self._lock:
            found = self.ids.get(key)
            if found is not None:
                return found
            if len(self.ids) >= MAX_NAMES:
                return self.ids[OVERFLOW[kind]]
            number = self._add(key)
            # After a failure the pump tries again: to write all that waits for each new name would
            # take ever longer.
            if not self._behind:
                self._write()
            # Only now may other threads use it. A signal handler may have named the same meanwhile.
            return self.ids.setdefault(key, number)

    def key(self, number: int) -> Key:
        """What an id stands for."""
        return self._keys[number]

    def lines(self) -> bytes:
        """The whole table as it stands in a file."""
        return b"".join(map(self._line, self._keys))

    def attach(self, fd: int) -> None:
        """Write all names to this open file now, and new ones as they come."""
        with self._lock:
            self._fd = fd
            self._waiting = list(self._keys)
            self._torn = False
            self._write()

    def detach(self) -> int:
        """Stop writing to the attached file; returns it, or -1."""
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
        """Write what a full disk kept from being written."""
        if self._fd >= 0 and self._waiting:
            with self._lock:
                self._write()

    def renew_lock(self) -> None:
        """In a forked child: another thread of the parent may have held the lock."""
        self._lock = threading.RLock()

    def _add(self, key: Key) -> int:
        number = next(self._numbers)
        self._keys[number] = key
        self._waiting.append(number)
        return number

    def _write(self) -> None:
        if self._fd < 0:
            return
        # A short write tore the last line; the next try starts on a new one, and readers take
        # the last complete entry of an id.
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
        """How a name stands in a file; made once, since each run of a process writes all of them."""
        line = self._lines.get(number)
        if line is None:
            line = self._lines[number] = self._encode(number)
        return line

    def _encode(self, number: int) -> bytes:
        import json

        # Lone surrogates cannot be UTF-8: the table keeps them as visible escapes.
        parts = [cut(part, MAX_NAME) for part in self._keys[number]]
        shown = [part.encode("utf-8", "backslashreplace").decode() for part in parts]
        entry = dict(zip(("kind", "category", "name"), shown, strict=True))
        return json.dumps({"id": number, **entry}, ensure_ascii=False).encode() + b"\n"


names = NameTable()
"""The table of this process."""
