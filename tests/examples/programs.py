"""Helpers that run the examples."""

from __future__ import annotations

import subprocess
from pathlib import Path
from typing import Any

import stepwell
from stepwell.reading import RecordedRun
from tests.harness import REPOSITORY, environment, run_script


def run_example(
    name: str, folder: Path, variables: dict[str, str] | None = None, **options: Any
) -> subprocess.CompletedProcess[str]:
    """Run an example in a folder, which is also its home. Internal errors of stepwell are raised."""
    env = environment(HOME=str(folder), STEPWELL_STRICT="1", **(variables or {}))
    return run_script(
        REPOSITORY / "examples" / name, cwd=folder, env=env, check=True, timeout=240, **options
    )


def run_of(done: subprocess.CompletedProcess[str], folder: Path) -> RecordedRun:
    """Return the only run of an example, which must have finished and whose path must be printed."""
    (run,) = stepwell.list_runs(folder / "runs")
    assert str(run.path) in done.stdout
    assert run.status == "finished"
    return run
