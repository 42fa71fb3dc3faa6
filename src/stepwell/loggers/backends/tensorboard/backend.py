"""The TensorBoard backend: writes event files, without TensorBoard.

``<savedir>/<name>-<run id>/`` contains an event file for each process and attempt, and one with its
hyperparameters. Ranks that log, after the first, have subfolders such as ``rank-00003``. An item that
TensorBoard cannot show is described in a text, and its file is copied to ``files/``.
"""

from __future__ import annotations

import os
import re
from pathlib import Path
from typing import Any, ClassVar

from stepwell._core.files import sync
from stepwell.loggers.backends.tensorboard.events import ItemEvents
from stepwell.loggers.backends.tensorboard.tfevents import (
    file_version,
    frame,
    hparams_end,
    hparams_start,
    scalar,
)
from stepwell.loggers.delivery.backend import Backend, ItemRecord, LogRecord, MetricRecord, Source
from stepwell.loggers.delivery.files import run_folder_name

FILES = "files"
DEFAULT_SAVEDIR = "mllogs/tensorboard"


class TensorBoardBackend(Backend):
    """Writes event files.

    The length of the event file is saved with the cursor. A batch that comes again overwrites the first
    attempt with the same bytes. So nothing is written twice, and TensorBoard can read at the same time.
    """

    name: ClassVar[str] = "tensorboard"

    def open(self, source: Source, state: dict[str, Any]) -> None:
        """Choose the folder and the names of the files, if no earlier process did."""
        self.state = state
        self.source = source
        if "folder" not in state:
            savedir = Path(str(self.options.get("savedir") or DEFAULT_SAVEDIR)).expanduser()
            state["folder"] = str(savedir.absolute() / self._place())
            state["file"] = self._file_name()
            state["length"] = 0
            state["params"] = {}
            state["tags"] = {}
            state["last_ns"] = source.started_ns
        self.folder = Path(state["folder"])
        state["file"] = Path(str(state["file"])).name
        files = self.folder / FILES
        self.items = ItemEvents(self.content_path, files, state["tags"])

    def deliver(self, records: list[LogRecord], again: bool) -> None:
        """Append the records to the event file."""
        self.folder.mkdir(parents=True, exist_ok=True)
        params = {
            record.name: record.value
            for record in records
            if isinstance(record, ItemRecord) and record.kind == "param"
        }
        if params:
            # Before the event file: TensorBoard reads files in order and never goes back to an earlier one.
            self._write_params({**self.state["params"], **params})
        events = [event for record in records for event in self._events(record)]
        self.state["length"] = self._append(self.state["length"], events)
        self.state["params"].update(params)
        times = (record.time_ns for record in records)
        self.state["last_ns"] = max(self.state["last_ns"], *times)

    def finish(self, status: str) -> None:
        """Write the status of the run, if it has hyperparameters."""
        if self.state["params"] and not self.state.get("ended"):
            event = hparams_end(status, self.state["last_ns"])
            self.state["length"] = self._append(self.state["length"], [event])
            self.state["ended"] = True

    # Names

    def _place(self) -> Path:
        folder = run_folder_name(self.source.run, self.run_name or self.source.application)
        return Path(folder) if self.is_first else Path(folder, f"rank-{self.rank:05d}")

    def _file_name(self) -> str:
        """Return a name that starts with the time: TensorBoard takes the last file for the current one."""
        source = self.source
        host = re.sub(r"[^\w-]", "-", source.host) or "host"
        seconds = source.started_ns // 1_000_000_000
        unique = f"{source.attempt}.{source.pid}.{self.number or 0}"
        return f"events.out.tfevents.{seconds:010d}.{host}.{unique}"

    # Writing

    def _events(self, record: LogRecord) -> list[bytes]:
        if isinstance(record, MetricRecord):
            tag = self.items.scalar_tag(record.name)
            return [scalar(tag, record.value, record.step or 0, record.time_ns)]
        return [] if record.kind == "param" else self.items.of(record)

    def _append(self, length: int, events: list[bytes]) -> int:
        """Write events at this position of the file. Return the new length."""
        length = self._usable(length)
        data = b"".join(map(frame, events))
        if length == 0:
            data = frame(file_version(self.source.started_ns)) + data
        fd = os.open(self.folder / self.state["file"], os.O_WRONLY | os.O_CREAT, 0o644)
        try:
            _write_at(fd, data, length)
            # Only after writing: otherwise a reader behind this position would find no data for a moment.
            os.ftruncate(fd, length + len(data))
            os.fsync(fd)
        finally:
            os.close(fd)
        return length + len(data)

    def _usable(self, length: int) -> int:
        """Return this length; or choose a new file and return 0, if the file was removed or truncated."""
        path = self.folder / self.state["file"]
        if length == 0 or (path.exists() and path.stat().st_size >= length):
            return length
        self.state["file"] += "-"
        return 0

    def _write_params(self, params: dict[str, Any]) -> None:
        """Replace the file of hyperparameters: TensorBoard would show only the first of several lists."""
        start_ns = self.source.started_ns
        event = hparams_start(params, self.source.run, start_ns)
        # This name sorts before the event file of the same time.
        name = self.state["file"].rstrip("-").replace(".tfevents.", ".tfevents.0", 1)
        path = self.folder / name
        # A fixed name, unlike `replacing`: TensorBoard would also read a file that a crash leaves behind. The
        # batch that comes again replaces this one.
        beside = self.folder / f".{path.name}"
        beside.write_bytes(frame(file_version(start_ns)) + frame(event))
        sync(beside)
        os.replace(beside, path)


def _write_at(fd: int, data: bytes, offset: int) -> None:
    view = memoryview(data)
    while view:
        written = os.pwrite(fd, view, offset)
        view, offset = view[written:], offset + written
