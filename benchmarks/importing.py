"""The cost of ``import stepwell`` in a program that has imported nothing else."""

from __future__ import annotations

import os
import subprocess
import sys
import tempfile

from benchmarks.floor import Measured, summarize
from benchmarks.row import Effort

CODE = "import time; t = time.process_time(); import stepwell; print(time.process_time() - t)"
HEAVY = "import sys, stepwell; print(*{'torch', 'numpy', 'polars', 'asyncio'} & set(sys.modules))"


def cpu(effort: Effort) -> Measured:
    """CPU time in milliseconds, with the bytecode cached as it is after the first time."""
    with tempfile.TemporaryDirectory() as cache:
        heavy = _python(HEAVY, cache).strip()
        times = [1000 * float(_python(CODE, cache)) for _ in range(effort.rounds)]
    return summarize(times, note=f"pulls in {heavy}!" if heavy else "")


def _python(code: str, cache: str) -> str:
    environment = {**os.environ, "PYTHONPYCACHEPREFIX": cache}
    environment.pop("PYTHONDONTWRITEBYTECODE", None)
    command = [sys.executable, "-c", code]
    result = subprocess.run(command, env=environment, capture_output=True, text=True, check=True)
    return result.stdout
