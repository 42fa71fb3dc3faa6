"""The recorder: one process's journal in a run folder, with its pump, from opening to closing."""

from __future__ import annotations

import contextlib
import os
from collections.abc import Mapping
from pathlib import Path
from typing import TYPE_CHECKING, Any

from stepwell.journal import clock
from stepwell.journal.cap import SizeCap
from stepwell.journal.document import PROCESS, ProcessDocument
from stepwell.journal.journal import Journal
from stepwell.journal.metrics import context
from stepwell.journal.pump import Pump
from stepwell.journal.spool import choose_spool
from stepwell.journal.state import state
from stepwell.journal.system import process_start

if TYPE_CHECKING:
    from stepwell.telemetry.ending import Ending
    from stepwell.telemetry.runtime.pauses import Pauses
    from stepwell.telemetry.stack_watch import StackWatch

HEARTBEAT = 1.0
SHARED_HEARTBEAT = 10.0
"""On a shared file system a thousand ranks renew theirs."""


class Recorder:
    """Records this process into ``<run folder>/<process>`` until it is closed."""

    pauses: Pauses | None = None
    stacks: StackWatch | None = None

    def __init__(self, run_folder: Path, process: str, about: Mapping[str, Any]) -> None:
        self.folder = run_folder / process
        self.pid = os.getpid()
        cap = SizeCap.from_environment()
        spool = choose_spool(run_folder)
        self.journal = Journal(self.folder if spool is None else spool / process)
        self.about = {
            "process": process,
            **about,
            "pid": self.pid,
            "start": process_start(self.pid),
            "role": "main",
            "parent": None,
            "spool": None if spool is None else str(self.journal.folder),
            "started": clock.wall(),
        }
        interval = HEARTBEAT if spool is None else SHARED_HEARTBEAT
        self.document = ProcessDocument(self.folder / PROCESS, self.about, interval)
        self.pump = Pump(self.journal, self.folder, self.document, cap)

    def open(self) -> None:
        """Make this the process's recorder. What cannot be written yet is tried again later."""
        context.clear()
        clock.anchor()
        try:
            self.folder.mkdir(parents=True, exist_ok=True)
            self.journal.open()
            self.document.write()
        except OSError as error:
            self.journal.fail(error)
        state.activate(self.journal)
        self.pump.start()

    def close(self, ending: Ending, timeout: float) -> None:
        """Seal everything and say how it ended."""
        if self.pauses is not None:
            self.pauses.stop()
        if state.journal is self.journal:
            state.activate(None)
        document = self.document
        document.status, document.error = ending.status, ending.error
        document.exit_code, document.signal = ending.exit_code, ending.signal
        try:
            self.pump.stop(timeout)
        except BaseException:
            # Another Ctrl-C: the files are read as they are, and how it ended is known.
            with contextlib.suppress(OSError):
                document.write()
            raise
        if self.stacks is not None:
            self.stacks.remove()
        self.journal.close_files()
