"""Traces of the torch profiler in the run: operators and kernels on the same timeline.

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
from stepwell._core import clock
from stepwell._core.errors import report, warn_once
from stepwell.journal.state import current_journal
from stepwell.telemetry.run import Run, active_run

FOLDER = "profiler"
PATIENCE = 60.0
"""Seconds that the end of a run waits for its traces to be added."""
_numbers = itertools.count()


def trace_handler() -> Callable[[Any], None]:
    """Return a handler for ``torch.profiler.profile(on_trace_ready=trace_handler())``.

    Each trace is kept unchanged in the folder ``profiler/`` of the run. A background process adds it to the
    run, as a process of its own. Without an active run the handler does nothing.
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
        """Wait for traces that are still being added, so that readers of the finished run find them."""
        deadline = time.monotonic() + PATIENCE
        for each in self._joining:
            try:
                each.wait(max(0.0, deadline - time.monotonic()))
            except subprocess.TimeoutExpired:
                warn_once("trace late", "A profiler trace is still being added to the run.")
                continue
            if each.returncode:
                warn_once(
                    "trace failed",
                    "A profiler trace could not be added to the run. It is in the folder %s of the run; "
                    "try `stepwell import` on it.",
                    FOLDER,
                )


def _join(path: Path, run: Path, process: str, offset: int) -> subprocess.Popen[bytes]:
    source = Path(stepwell.journal.__file__).parents[2]
    before = os.environ.get("PYTHONPATH")
    paths = f"{source}{os.pathsep}{before}" if before else f"{source}"
    return subprocess.Popen(
        [sys.executable, "-m", "stepwell.importing.profiler_join", path, run, process, str(offset)],
        env={**os.environ, "PYTHONPATH": paths, "STEPWELL_MODE": "off"},
        stdin=subprocess.DEVNULL,
        stdout=subprocess.DEVNULL,
        stderr=subprocess.DEVNULL,
        # An interrupt of the training must not reach this process.
        start_new_session=True,
    )
