"""A backend under test: what delivery does with it, without a run that records."""

from __future__ import annotations

import hashlib
import json
import time
from pathlib import Path
from typing import Any

from stepwell.loggers.delivery.backend import Backend, ItemRecord, LogRecord, MetricRecord, Source

STARTED = time.time_ns() - 1_000_000_000
PNG = bytes.fromhex(
    "89504e470d0a1a0a0000000d4948445200000001000000010802000000907753de"
    "0000000c49444154789c63f8cfc0000003010100c9fe92ef0000000049454e44ae426082"
)
"""A picture of one red pixel."""


def metric(
    name: str, value: float, step: int = 0, *, at: int = 0, epoch: int | None = None
) -> LogRecord:
    """A metric that was logged ``at`` nanoseconds after the start."""
    return MetricRecord(name, (1,), step, epoch, value, STARTED + at, "MainThread")


class Log:
    """A run folder, and what delivery keeps: the state of one backend, as JSON."""

    def __init__(self, folder: Path, rank: int = 0, world_size: int = 1, attempt: int = 0) -> None:
        self.folder = folder
        (folder / "artifacts").mkdir(parents=True, exist_ok=True)
        self.source = Source(
            run=folder.name,
            attempt=attempt,
            rank=rank,
            world_size=world_size,
            process=f"rank-{rank:05d}.attempt-{attempt}.pid-{4711 + rank}",
            host="node7",
            pid=4711 + rank,
            application="demo",
            labels={"team": "vision"},
            started_ns=STARTED,
        )
        self.state: dict[str, Any] = {}

    def open(self, backend: Backend) -> Backend:
        """As a process that starts, or continues where another one ended."""
        self.state = json.loads(json.dumps(self.state, allow_nan=False))
        backend.run_folder = self.folder
        backend.open(self.source, self.state)
        json.dumps(self.state, allow_nan=False)
        return backend

    def killed(self) -> dict[str, Any]:
        """What a process that is killed now leaves."""
        return json.loads(json.dumps(self.state, allow_nan=False))

    def content(self, data: bytes) -> str:
        """Keep a content with the run."""
        sha256 = hashlib.sha256(data).hexdigest()
        (self.folder / "artifacts" / sha256).write_bytes(data)
        return sha256

    def item(
        self,
        kind: str,
        name: str,
        value: Any = None,
        *,
        data: bytes | None = None,
        file: str | None = None,
        media: str | None = None,
        step: int | None = None,
        at: int = 0,
        **attributes: Any,
    ) -> LogRecord:
        """An item; with ``data`` it is a file."""
        return ItemRecord(
            kind,
            name,
            (1,),
            step,
            None,
            value,
            None if data is None else self.content(data),
            file,
            media,
            None if data is None else len(data),
            STARTED + at,
            "MainThread",
            attributes,
        )
