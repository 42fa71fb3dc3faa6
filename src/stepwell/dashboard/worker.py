"""Answers about large runs, computed in a process of their own.

A report on ten million spans takes seconds and hundreds of megabytes. In the server it would delay every
other request. Here it has its own interpreter, a low priority, and its memory is free again afterwards.
"""

from __future__ import annotations

import os
import subprocess
import sys
import threading
from collections.abc import Sequence
from dataclasses import asdict
from pathlib import Path
from typing import Any

from stepwell._core.errors import StepwellError
from stepwell.analysis.recording_cost import disk_bytes
from stepwell.analysis.run_list import compute_summary
from stepwell.dashboard.answers.comparison import comparison
from stepwell.dashboard.answers.overview import overview
from stepwell.dashboard.answers.provenance import provenance
from stepwell.dashboard.answers.ranks import ranks
from stepwell.dashboard.answers.values import encode, plain
from stepwell.reading import RecordedRun, open_run

LARGE = 16 << 20
"""Size on disk from which on a run is large: more than a million spans."""
NICE = 5
REFUSED = 3
"""Exit code of a process that wrote a sentence for the user; others than 0 are problems inside stepwell."""


def _summary(runs: Sequence[RecordedRun]) -> Any:
    return plain(asdict(compute_summary(runs[0])))


ANSWERS = {
    "overview": lambda runs: overview(runs[0]),
    "ranks": lambda runs: ranks(runs[0]),
    "provenance": lambda runs: provenance(runs[0]),
    "compare": comparison,
    "summary": _summary,
}
"""The answers that read all records of a run."""


class Workers:
    """Computes answers, those about large runs in other processes. They end with the server."""

    def __init__(self) -> None:
        self._lock = threading.Lock()
        self._running: set[subprocess.Popen[bytes]] = set()
        self._is_closed = False

    def answer(self, name: str, *runs: RecordedRun) -> bytes:
        """Return one of ``ANSWERS`` about these runs as JSON."""
        if not any(map(is_large, runs)):
            return encode(ANSWERS[name](runs))
        command = [sys.executable, "-m", __name__, name, *(str(run.path) for run in runs)]
        with self._lock:
            if self._is_closed:
                raise StepwellError("the server is ending")
            process = subprocess.Popen(
                command, stdin=subprocess.DEVNULL, stdout=subprocess.PIPE, stderr=subprocess.PIPE
            )
            self._running.add(process)
        try:
            body, problem = process.communicate()
        finally:
            with self._lock:
                self._running.discard(process)
        if process.returncode:
            raise self._error(process.returncode, problem.decode("utf-8", "replace").strip())
        return body

    def _error(self, code: int, text: str) -> Exception:
        """Return the error of a process that ended with this code and wrote this text."""
        if self._is_closed:
            return StepwellError("the server is ending")
        if code == REFUSED:
            return StepwellError(text)
        if code < 0:
            return StepwellError(
                f"The process that analyses the run was killed by signal {-code}. "
                "It may have run out of memory."
            )
        return RuntimeError(f"A process that analyses a run ended with {code}:\n{text}")

    def close(self) -> None:
        """End all processes."""
        with self._lock:
            self._is_closed = True
            for process in self._running:
                process.kill()


def is_large(run: RecordedRun) -> bool:
    """Return whether reading all of a run takes long."""
    return run.mirror is None and disk_bytes(run.folder) > LARGE


def main(name: str, *paths: str) -> None:
    """Print an answer about the runs in these folders."""
    os.nice(NICE)
    try:
        runs = [open_run(Path(path)) for path in paths]
        sys.stdout.buffer.write(encode(ANSWERS[name](runs)))
    except StepwellError as error:
        sys.stderr.write(str(error))
        sys.exit(REFUSED)


if __name__ == "__main__":
    main(*sys.argv[1:])
