"""The recorder: the journal of a process in a run folder, and its pump, from opening to closing."""

from __future__ import annotations

import contextlib
import os
from collections.abc import Mapping
from pathlib import Path
from typing import TYPE_CHECKING, Any

from stepwell._core import clock
from stepwell._core.system import process_start
from stepwell.journal.cap import SizeCap
from stepwell.journal.document import ProcessDocument
from stepwell.journal.format import PROCESS
from stepwell.journal.journal import Journal
from stepwell.journal.metrics import context
from stepwell.journal.pump import Pump
from stepwell.journal.spool import choose_spool
from stepwell.journal.state import state

if TYPE_CHECKING:
    from stepwell.telemetry.outcome import Outcome
    from stepwell.telemetry.runtime.gc_pauses import GcPauses
    from stepwell.telemetry.stacks import StackWatch

HEARTBEAT = 1.0
SHARED_HEARTBEAT = 10.0
"""Seconds between heartbeats on a shared file system, where a thousand ranks write theirs."""


class Recorder:
    """Records this process into ``<run folder>/<process>`` until it is closed.

    ``info`` is the fixed part of its process.json.
    """

    pauses: GcPauses | None = None
    stacks: StackWatch | None = None

    def __init__(self, run_folder: Path, process: str, info: Mapping[str, Any]) -> None:
        self.folder = run_folder / process
        self.pid = os.getpid()
        cap = SizeCap.from_environment()
        spool = choose_spool(run_folder)
        self.journal = Journal(self.folder if spool is None else spool / process)
        self.info = {
            "process": process,
            **info,
            "pid": self.pid,
            "start": process_start(self.pid),
            "role": "main",
            "parent": None,
            "spool": None if spool is None else str(self.journal.folder),
            "started": clock.wall(),
        }
        interval = HEARTBEAT if spool is None else SHARED_HEARTBEAT
        self.document = ProcessDocument(self.folder / PROCESS, self.info, interval)
        self.pump = Pump(self.journal, self.folder, self.document, cap)

    def open(self) -> None:
        """Make this the recorder of the process. Files that cannot be written are retried later."""
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

    def close(self, outcome: Outcome, timeout: float) -> None:
        """Seal everything and record the outcome."""
        if self.pauses is not None:
            self.pauses.stop()
        if state.journal is self.journal:
            state.activate(None)
        document = self.document
        document.status, document.error = outcome.status, outcome.error
        document.exit_code, document.signal = outcome.exit_code, outcome.signal
        try:
            self.pump.stop(timeout)
        except BaseException:
            # Another Ctrl-C: readers can use the files as they are, with the outcome.
            with contextlib.suppress(OSError):
                document.write()
            raise
        if self.stacks is not None:
            self.stacks.remove()
        self.journal.close_files()
