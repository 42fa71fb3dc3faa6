"""Add a trace of the torch profiler to its run, as a separate process.

    python -m stepwell.importing.profiler_join TRACE RUN PROCESS OFFSET

Runs in a separate process, because a trace may contain a million operators while training continues. The
folder appears in the run when it is complete.
"""

from __future__ import annotations

import os
import shutil
import sys
from pathlib import Path
from typing import Any

from stepwell._core.errors import StepwellError
from stepwell._core.files import read_json
from stepwell.importing.chrome import ChromeReader
from stepwell.importing.rows import RowSorter, TraceProcess, TraceRows
from stepwell.importing.run_writer import RunWriter
from stepwell.importing.sources import TraceSource
from stepwell.journal.document import clock_offset
from stepwell.journal.format import PROCESS
from stepwell.telemetry.run_names import make_run_id

ROLE = "profiler"


def join_trace(trace: Path, run: Path, process: str, offset: int) -> Path:
    """Write a trace as a process beside the one that recorded it; return the new folder.

    ``offset`` is wall clock minus monotonic clock of that process, in ns, when the trace was recorded: the
    trace contains times of the wall clock, which may have been changed since the run began.
    """
    main = read_json(run / process / PROCESS)
    if main is None:
        raise StepwellError(f"no process {process!r} in {str(run)!r}")
    work = run / f".joining-{make_run_id()}"
    work.mkdir()
    try:
        rows = TraceRows(RowSorter(work))
        ChromeReader(rows, TraceSource(trace), 0).read(_ignore)
        if not rows.sorter.count:
            raise StepwellError(f"no records to import in {str(trace)!r}")
        aligned = clock_offset(main.get("anchors") or [])
        writer = _JoiningWriter(work / "run", main, rows)
        writer.shift = 0 if aligned is None else aligned - offset
        (work / "run").mkdir()
        writer.write(lambda done, total: None)
        writer.close(process, {})
        return _move(work / "run", run)
    finally:
        shutil.rmtree(work, ignore_errors=True)


class _JoiningWriter(RunWriter):
    """Writes a process with the rank, host and attempt of another."""

    shift = 0

    def __init__(self, folder: Path, main: dict[str, Any], rows: TraceRows) -> None:
        super().__init__(folder, str(main.get("run")), rows)
        self._main = main
        for each in rows.processes.values():
            each.folder = f"{main['process']}.{ROLE}-{make_run_id()}"

    def _document(self, process: TraceProcess) -> dict[str, Any]:
        main = self._main
        copied = ("run", "attempt", "rank", "local_rank", "world_size", "host", "pid")
        document = super()._document(process)
        document.update({key: main[key] for key in copied if key in main})
        document.update(role=ROLE, parent=main["process"], worker=None)
        document["anchors"] = [[clock, wall + self.shift] for clock, wall in document["anchors"]]
        return document


def _move(source: Path, run: Path) -> Path:
    """Move the process folders into the run; return the last one."""
    target = source
    for folder in sorted(p for p in source.iterdir() if p.is_dir()):
        target = run / folder.name
        os.rename(folder, target)
    return target


def _ignore() -> None:
    pass


if __name__ == "__main__":
    if hasattr(os, "nice"):
        # Training comes first.
        os.nice(10)
    join_trace(Path(sys.argv[1]), Path(sys.argv[2]), sys.argv[3], int(sys.argv[4]))
