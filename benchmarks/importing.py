"""What ``import stepwell`` costs a program that has imported nothing yet."""

from __future__ import annotations

import subprocess
import sys

from benchmarks.floor import Measured, summarize
from benchmarks.row import Effort

CODE = "import time; t = time.process_time(); import stepwell; print(time.process_time() - t)"
HEAVY = "import sys, stepwell; print(*{'torch', 'numpy', 'polars', 'asyncio'} & set(sys.modules))"


def cpu(effort: Effort) -> Measured:
    """CPU time in milliseconds."""
    heavy = _python(HEAVY).strip()
    times = [1000 * float(_python(CODE)) for _ in range(effort.rounds)]
    return summarize(times, note=f"pulls in {heavy}!" if heavy else "")


def _python(code: str) -> str:
    result = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    return result.stdout
