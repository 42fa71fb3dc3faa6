"""Traces of the torch profiler join the run: operators and kernels on the same timeline.

with torch.profiler.profile(schedule=…, on_trace_ready=trace_handler()) as prof:
"""

from __future__ import annotations

import itertools
import os
import subprocess
import sys
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import stepwell.journal
from stepwell.journal import clock
from stepwell.journal.errors import report, warn_once
from stepwell.journal.state import current_journal
from stepwell.telemetry.run import Run, active_run

FOLDER = "profiler"
PATIENCE = 60.0
"""Seconds that the end of a run waits for its traces."""
_numbers = itertools.count()


def trace_handler() -> Callable[[Any], None]:
    """For ``torch.profiler.profile(on_trace_ready=trace_handler())``.

    Each trace is kept in ``profiler/`` of the run's folder, as the profiler writes it, and joined to the run
    as a process of its own by a program in the background. Without a run nothing is done.
    """
    return _Handler()


class _Handler:
    def __init__(self) -> None:
        self._joining: list[subprocess.Popen[bytes]] = []
        self._run: Run | None = None

    def __call__(self, profiler: Any) -> None:
        try:
            run, journal = active_run(), current_journal()
            if run is None or run.disabled or journal is None:
                return
            if run is not self._run:
                self._run = run
                self._joining = []
                run.before_finish(self._run_ends)
            folder = run.path / FOLDER
            folder.mkdir(exist_ok=True)
            path = folder / f"{journal.folder.name}.{next(_numbers)}.json.gz"
            profiler.export_chrome_trace(str(path))
            offset = clock.wall() - clock.now()
            self._joining = [each for each in self._joining if each.poll() is None]
            self._joining.append(_join(path, run.path, journal.folder.name, offset))
        except Exception as error:
            report("profiler trace", error)

    def _run_ends(self, status: str) -> None:
        """Wait for those that are under way: whoever reads the run then has them."""
        deadline = time.monotonic() + PATIENCE
        for each in self._joining:
            try:
                each.wait(max(0.0, deadline - time.monotonic()))
            except subprocess.TimeoutExpired:
                warn_once("trace late", "a profiler trace is still being joined to the run")
                continue
            if each.returncode:
                warn_once(
                    "trace failed",
                    "a profiler trace could not be joined to the run: it is in %s of its folder, and "
                    "`stepwell import` takes it too",
                    FOLDER,
                )


def _join(path: Path, run: Path, process: str, offset: int) -> subprocess.Popen[bytes]:
    found = Path(stepwell.journal.__file__).parents[2]
    before = os.environ.get("PYTHONPATH")
    paths = f"{found}{os.pathsep}{before}" if before else f"{found}"
    return subprocess.Popen(
        [sys.executable, "-m", "stepwell.importing.joining", path, run, process, str(offset)],
        env={**os.environ, "PYTHONPATH": paths, "STEPWELL_MODE": "off"},
        stdin=subprocess.DEVNULL,
        stdout=subprocess.DEVNULL,
        stderr=subprocess.DEVNULL,
        # An interrupt of training is none of this one's.
        start_new_session=True,
    )
