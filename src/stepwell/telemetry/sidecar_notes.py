"""Notes of a sidecar in the process folder: a log of problems, and what was not delivered."""

from __future__ import annotations

import logging
import os
import shlex
import time
from pathlib import Path
from typing import Any

from stepwell._core.files import write_json

FIRST_PAUSE = 60.0
LONGEST_PAUSE = 3600.0
MAX_LOG = 1 << 20
UNDELIVERED = ".undelivered.json"


class Notes(logging.Handler):
    """A small log file, created with its first line. Contains stepwell's warnings too.

    A line of the same kind is repeated only after one minute, then two, four, up to an hour.
    """

    def __init__(self, folder: Path, name: str) -> None:
        super().__init__(logging.WARNING)
        self.path = folder / f"{name}.log"
        self._kinds: dict[str, tuple[float, float]] = {}
        logging.getLogger("stepwell").addHandler(self)

    def write(self, text: str, kind: str | None = None) -> None:
        """Append a line with the time, unless one of this kind was written recently."""
        if kind is not None and not self._is_due(kind):
            return
        when = time.strftime("%Y-%m-%dT%H:%M:%S%z")
        line = " ".join(f"{when} {text}".split()) + "\n"
        flags = os.O_WRONLY | os.O_APPEND | os.O_CREAT | getattr(os, "O_NOFOLLOW", 0)
        try:
            fd = os.open(self.path, flags, 0o644)
            try:
                if os.fstat(fd).st_size < MAX_LOG:
                    os.write(fd, line.encode("utf-8", "replace"))
            finally:
                os.close(fd)
        except OSError:
            pass  # The run folder is gone or full; there is nowhere else to write.

    def emit(self, record: logging.LogRecord) -> None:
        """Write a warning of stepwell in this process."""
        self.write(record.getMessage(), str(record.msg))

    def _is_due(self, kind: str) -> bool:
        now = time.monotonic()
        due, pause = self._kinds.get(kind, (0.0, FIRST_PAUSE))
        if now < due:
            return False
        self._kinds[kind] = (now + pause, min(2 * pause, LONGEST_PAUSE))
        return True


def forward_command(folder: Path, name: str, exporter: Any) -> str:
    """Return the command that sends the run of a process folder again, without secrets."""
    shown = dict(getattr(exporter, "shown_options", {}))
    address = shown.pop(getattr(exporter, "address_option", None), None)
    to = name if address is None else f"{name}={address}"
    options = [f"--option={key}={value}" for key, value in shown.items()]
    return shlex.join(["stepwell", "forward", str(folder.parent), "--to", to, *options])


def write_note(folder: Path, setup: dict[str, Any], exporter: Any, state: dict[str, Any]) -> None:
    """Write what was not delivered and the command to deliver it, without secrets."""
    note = {
        "exporter": setup["name"],
        "time": time.time_ns(),
        "sent": state["sent"],
        "waiting": state["waiting"],
        "problem": state["problem"],
        "command": forward_command(folder, setup["name"], exporter),
    }
    try:
        write_json(folder / f"{setup['notes']}{UNDELIVERED}", note)
    except OSError:
        pass


def remove_note(folder: Path, name: str) -> None:
    """Remove a note, because its records were delivered after all."""
    try:
        (folder / f"{name}{UNDELIVERED}").unlink()
    except OSError:
        pass


def remove_notes_of(folder: Path, exporter: str) -> None:
    """Remove the notes of an exporter, because everything of this process was delivered."""
    from stepwell._core.files import read_json

    for path in folder.glob(f"export-*{UNDELIVERED}"):
        if (read_json(path) or {}).get("exporter") == exporter:
            remove_note(folder, path.name.removesuffix(UNDELIVERED))
