"""``python -m tests.fuzz.worker``: damages a file and reads it, once for each line of its input."""

from __future__ import annotations

import json
import random
import re
import shutil
import sys
import time
import traceback
import warnings
from pathlib import Path
from typing import Any

from stepwell import StepwellError
from tests.fuzz.mutate import mutate
from tests.fuzz.readers import OF_RUNS, load


def attempt(folder: Path, file: str, reader: str, seed: int) -> dict[str, Any]:
    """Damage ``file`` (below ``folder``), read it, and put it back; returns how that went."""
    path = folder / file
    original = path.read_bytes()
    path.unlink()  # Another file in its place: what was mapped or cached of the old one stays whole.
    path.write_bytes(mutate(original, random.Random(seed)))
    _forget_peak()
    began = time.monotonic()
    outcome, trace = "read", ""
    try:
        if reader == "import":
            load(path)
        else:
            OF_RUNS[reader](folder / Path(file).parts[0] / Path(file).parts[1])
    except StepwellError:
        outcome = "refused"
    except BaseException:
        outcome, trace = "raised", traceback.format_exc()
        shutil.copy(path, folder / f"raised-{reader}-{seed}")
    took, peak = time.monotonic() - began, _peak_mb()
    path.unlink()
    path.write_bytes(original)
    return {"outcome": outcome, "seconds": took, "mb": peak, "trace": trace}


def _forget_peak() -> None:
    Path("/proc/self/clear_refs").write_text("5")


def _peak_mb() -> float:
    match = re.search(r"VmHWM:\s+(\d+) kB", Path("/proc/self/status").read_text())
    return int(match[1]) / 1024 if match else 0.0


if __name__ == "__main__":
    warnings.simplefilter("ignore")
    for line in sys.stdin:
        print(json.dumps(attempt(Path(sys.argv[1]), *json.loads(line))), flush=True)
