"""Joining: what the torch profiler wrote becomes a process of the run that it was made in.

    python -m stepwell.importing.joining TRACE RUN PROCESS OFFSET

It is done in a process of its own: a trace may hold a million operators, and training goes on. The folder
appears in the run when it is whole.
"""

from __future__ import annotations

import os
import shutil
import sys
from pathlib import Path
from typing import Any

from stepwell.importing.chrome import ChromeReader
from stepwell.importing.folder import RunWriter
from stepwell.importing.rows import Process, Rows
from stepwell.importing.sorting import Sorter
from stepwell.importing.sources import Source
from stepwell.journal.document import PROCESS, clock_offset, read_json
from stepwell.journal.errors import StepwellError
from stepwell.telemetry.run_id import make_run_id

ROLE = "profiler"


def join_trace(trace: Path, run: Path, process: str, offset: int) -> Path:
    """Write a trace as a process beside the one that made it; returns its folder.

    ``offset`` is what the wall clock of that process was ahead of its monotonic clock when the trace was
    made: the trace has times of the wall clock, which may have been set anew since the run began.
    """
    main = read_json(run / process / PROCESS)
    if main is None:
        raise StepwellError(f"there is no process {process!r} in {str(run)!r}")
    work = run / f".joining-{make_run_id()}"
    work.mkdir()
    try:
        rows = Rows(Sorter(work))
        ChromeReader(rows, Source(trace), 0).read(_say_nothing)
        if not rows.sorter.count:
            raise StepwellError(f"there is no record to take in {str(trace)!r}")
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
    """Writes one process with the place of another."""

    shift = 0

    def __init__(self, folder: Path, main: dict[str, Any], rows: Rows) -> None:
        super().__init__(folder, str(main.get("run")), rows)
        self._main = main
        for each in rows.processes.values():
            self._family.rename(each, f"{main['process']}.{ROLE}-{make_run_id()}")

    def _document(self, process: Process) -> dict[str, Any]:
        main = self._main
        taken = ("run", "attempt", "rank", "local_rank", "world_size", "host", "pid")
        found = super()._document(process)
        found.update({key: main[key] for key in taken if key in main})
        found.update(role=ROLE, parent=main["process"], worker=None)
        found["anchors"] = [[clock, wall + self.shift] for clock, wall in found["anchors"]]
        return found


def _move(made: Path, run: Path) -> Path:
    """Put the processes where readers find them."""
    found = made
    for folder in sorted(p for p in made.iterdir() if p.is_dir()):
        found = run / folder.name
        os.rename(folder, found)
    return found


def _say_nothing() -> None:
    pass


if __name__ == "__main__":
    if hasattr(os, "nice"):
        # Training comes first.
        os.nice(10)
    join_trace(Path(sys.argv[1]), Path(sys.argv[2]), sys.argv[3], int(sys.argv[4]))
