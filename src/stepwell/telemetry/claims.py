"""Claims: small files with which processes on one or many nodes agree, without locks.

Of several processes that link a file to the same name, exactly one succeeds, on local and network file
systems; the others then read its content. Folders are never listed, because a network file system may
return an old listing for half a minute.
"""

from __future__ import annotations

import contextlib
import json
import os
import time
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

from stepwell.telemetry.run_names import check_run_id

_LARGEST_CLAIM = 64 * 1024
_PATIENCE = 0.5
_LOOKBACK = 100
"""Most requeues to search for an earlier run."""


def create_claim(path: Path, content: dict[str, Any], durable: bool = False) -> bool:
    """Create a file with its content in one step; return False if it already exists.

    ``durable``: whether the content must survive a power cut. Raise ValueError for NaN.
    """
    data = json.dumps(content, allow_nan=False).encode()
    temporary = path.with_name(f".{path.name}.{os.getpid()}.{os.urandom(4).hex()}")
    try:
        _write_new(temporary, data, durable)
        return _link(temporary, path) or _write_new(path, data, durable)
    except FileExistsError:
        return False
    finally:
        with contextlib.suppress(OSError):
            temporary.unlink()


def read_claim(path: Path) -> dict[str, Any] | None:
    """Return the content of a claim, None if it is missing or cannot be read."""
    try:
        return load_claim(path)
    except OSError:
        return None


def load_claim(path: Path) -> dict[str, Any] | None:
    """Return the content of a claim, None if it is damaged. Raise OSError if it cannot be read.

    A file system without links shows a claim before it is written, so this waits a moment for it.
    """
    deadline = time.monotonic() + _PATIENCE
    while True:
        with path.open("rb") as file:
            data = file.read(_LARGEST_CLAIM)
        try:
            content = json.loads(data)
        except (ValueError, RecursionError):
            content = None
        if isinstance(content, dict):
            return content
        if content is not None or data[:1] not in (b"", b"{") or time.monotonic() > deadline:
            return None
        time.sleep(0.01)


def take(path: Path) -> bool:
    """Create an empty file; return False if it already exists."""
    try:
        os.close(os.open(path, os.O_CREAT | os.O_EXCL | os.O_WRONLY, 0o666))
    except FileExistsError:
        return False
    return True


def _link(temporary: Path, path: Path) -> bool:
    """Link the file to its name; return False if the file system has no links."""
    try:
        os.link(temporary, path)
    except FileExistsError:
        # A network file system that loses the response repeats the request, and finds our own link.
        if temporary.stat().st_nlink != 2:
            raise
    except (OSError, NotImplementedError, AttributeError):
        return False
    return True


def _write_new(path: Path, data: bytes, durable: bool) -> bool:
    with path.open("xb") as file:
        file.write(data)
        if durable:
            file.flush()
            os.fsync(file.fileno())
    return True


@dataclass(frozen=True)
class LaunchRecord:
    """A launch, as written by the first of its ranks.

    `anchor` distinguishes the launch from others of its group, `turn` is the number of the `init` call in
    the process, `ordinal` counts the group's runs, `started` is in seconds since the epoch.
    """

    run_id: str
    token: str
    anchor: str
    turn: int
    ordinal: int
    started: float


class Ledger:
    """The records of one group of launches, in a folder that all of its ranks share."""

    def __init__(self, folder: Path, requeues: int) -> None:
        self._folder = folder
        self._requeues = requeues
        folder.mkdir(parents=True, exist_ok=True)

    def read(self) -> list[LaunchRecord | None]:
        """Return the records since the last requeue in order; None for one that is damaged."""
        return self._read(self._requeues)

    def add(self, number: int, record: LaunchRecord) -> bool:
        """Write the record with this number; return False if it already exists."""
        return create_claim(self._path(number, "json"), asdict(record))

    def take_seat(self, number: int, rank: int, restarts: int) -> bool:
        """Join a record as this rank; return False if another process already has."""
        return take(self._path(number, f"rank{rank}.{restarts}"))

    def mark(self, number: int, agent: str) -> None:
        """Record that the launcher process `agent` takes part in a launch."""
        take(self._path(number, f"agent-{agent}"))

    def is_marked(self, number: int, agent: str) -> bool:
        """Return whether that launcher process took part in a launch."""
        return self._path(number, f"agent-{agent}").exists()

    def find_before_requeue(self, ordinal: int) -> LaunchRecord | None:
        """Return the latest record of the group's `ordinal`-th run from before the requeue."""
        for requeues in range(self._requeues - 1, max(-1, self._requeues - 1 - _LOOKBACK), -1):
            for record in reversed(self._read(requeues)):
                if record is not None and record.ordinal == ordinal:
                    return record
        return None

    def _read(self, requeues: int) -> list[LaunchRecord | None]:
        records: list[LaunchRecord | None] = []
        with contextlib.suppress(FileNotFoundError):
            while True:
                path = self._folder / f"{requeues}-{len(records)}.json"
                records.append(_parse_record(load_claim(path)))
        return records

    def _path(self, number: int, kind: str) -> Path:
        return self._folder / f"{self._requeues}-{number}.{kind}"


def _parse_record(content: dict[str, Any] | None) -> LaunchRecord | None:
    """Return a checked record, None if it is invalid: the folder may be writable for others."""
    if content is None:
        return None
    try:
        return LaunchRecord(
            run_id=check_run_id(content["run_id"]),
            token=str(content["token"]),
            anchor=str(content["anchor"]),
            turn=int(content["turn"]),
            ordinal=int(content["ordinal"]),
            started=float(content["started"]),
        )
    except (KeyError, TypeError, ValueError, OverflowError):
        return None
