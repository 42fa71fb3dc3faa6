"""TensorBoard: event files in a folder that TensorBoard is pointed at, written without TensorBoard.

``<savedir>/<name>-<run id>/`` has an event file for each process and attempt, and one with its
hyperparameters; ranks that log besides the first one have sub-folders ``rank-00003``. What TensorBoard has
no view for is described in a text, and its file is kept in ``files/``.
"""

from __future__ import annotations

import os
import re
from pathlib import Path
from typing import Any, ClassVar

from stepwell.loggers.backends.tensorboard.events import ItemEvents
from stepwell.loggers.backends.tensorboard.tfevents import (
    file_version,
    frame,
    hparams_end,
    hparams_start,
    scalar,
)
from stepwell.loggers.delivery.backend import Backend, ItemRecord, LogRecord, MetricRecord, Source
from stepwell.loggers.delivery.kept_files import as_one_part

FILES = "files"
DEFAULT_SAVEDIR = "mllogs/tensorboard"


class TensorBoardBackend(Backend):
    """Writes event files.

    How long the event file is belongs to what is kept with the cursor. A batch that comes again is
    written over its first try, with the same bytes, so nothing is there twice, and TensorBoard, which
    may be reading just then, sees no difference.
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
            # Before the event file: TensorBoard reads files in order, and looks at no earlier one again.
            self._write_params({**self.state["params"], **params})
        events = [event for record in records for event in self._events(record)]
        self.state["length"] = self._append(self.state["length"], events)
        self.state["params"].update(params)
        times = (record.time_ns for record in records)
        self.state["last_ns"] = max(self.state["last_ns"], *times)

    def finish(self, status: str) -> None:
        """Say how the run of these hyperparameters ended, if it had any."""
        if self.state["params"] and not self.state.get("ended"):
            event = hparams_end(status, self.state["last_ns"])
            self.state["length"] = self._append(self.state["length"], [event])
            self.state["ended"] = True

    # Where

    def _place(self) -> Path:
        run = as_one_part(self.source.run)
        name = re.sub(r"[^\w.+=@-]+", "_", self.run_name or self.source.application).strip("._")
        called = run if not name or name in run else f"{name[:100]}-{run}"
        return Path(called) if self.is_first else Path(called, f"rank-{self.rank:05d}")

    def _file_name(self) -> str:
        """Names begin with the time, since TensorBoard takes the last one for the one being written."""
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
        """Write events from this length of the file on; returns how long it is then."""
        length = self._usable(length)
        data = b"".join(map(frame, events))
        if length == 0:
            data = frame(file_version(self.source.started_ns)) + data
        fd = os.open(self.folder / self.state["file"], os.O_WRONLY | os.O_CREAT, 0o644)
        try:
            _write_at(fd, data, length)
            # Only now: a reader past this point would see nothing for a moment.
            os.ftruncate(fd, length + len(data))
            os.fsync(fd)
        finally:
            os.close(fd)
        return length + len(data)

    def _usable(self, length: int) -> int:
        """This length; 0, and another file, where somebody removed or cut the one there was."""
        path = self.folder / self.state["file"]
        if length == 0 or (path.exists() and path.stat().st_size >= length):
            return length
        self.state["file"] += "-"
        return 0

    def _write_params(self, params: dict[str, Any]) -> None:
        """A file of its own, replaced as a whole: of several lists TensorBoard shows the first one."""
        start_ns = self.source.started_ns
        event = hparams_start(params, self.source.run, start_ns)
        # It sorts before the event file of the same time.
        name = self.state["file"].rstrip("-").replace(".tfevents.", ".tfevents.0", 1)
        path = self.folder / name
        beside = self.folder / f".{path.name}"
        with beside.open("wb") as file:
            file.write(frame(file_version(start_ns)) + frame(event))
            file.flush()
            os.fsync(file.fileno())
        os.replace(beside, path)


def _write_at(fd: int, data: bytes, offset: int) -> None:
    view = memoryview(data)
    while view:
        written = os.pwrite(fd, view, offset)
        view, offset = view[written:], offset + written
