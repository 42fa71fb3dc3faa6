"""The environment that programs of tests start with."""

from __future__ import annotations

import os
import re
import tempfile
from pathlib import Path

import stepwell

SOURCE = Path(stepwell.__file__).parents[1]
REPOSITORY = Path(__file__).parents[2]

RESERVED_VARIABLES = re.compile(
    r"(STEPWELL|OTEL|SLURM|OMPI|PMI|PMIX|MPI|TORCHELASTIC|MASTER)_?.*"
    r"|(LOCAL_|GROUP_|NODE_|ROLE_)?(RANK|WORLD_SIZE|SIZE)"
)
TERMINAL_VARIABLES = ("COLUMNS", "LINES", "NO_COLOR", "FORCE_COLOR")


def recording_environment(runs: str | os.PathLike[str], **variables: str) -> dict[str, str]:
    """Return ``environment()`` for a program that records in TEST_RUNS and raises internal errors."""
    return environment(TEST_RUNS=os.fspath(runs), **{"STEPWELL_STRICT": "1", **variables})


def environment(**variables: str) -> dict[str, str]:
    """Return this process's environment without stepwell's, a launcher's or a terminal's variables.

    Programs find stepwell and the ``tests`` package. System metrics are off: tests count metrics. So are the
    lines at the start and end of a run: tests compare what programs
    print. Readers do not use the user's cache.
    """
    kept = {
        name: value
        for name, value in os.environ.items()
        if not RESERVED_VARIABLES.fullmatch(name) and name not in TERMINAL_VARIABLES
    }
    return {
        **kept,
        "PYTHONPATH": os.pathsep.join([str(SOURCE), str(REPOSITORY)]),
        "PYTHONFAULTHANDLER": "1",
        "OMP_NUM_THREADS": "1",
        "STEPWELL_RUNTIME": "off",
        "STEPWELL_QUIET": "1",
        "STEPWELL_CACHE": os.path.join(
            tempfile.gettempdir(), f"stepwell-tests-cache-{os.getuid()}"
        ),
        **variables,
    }
