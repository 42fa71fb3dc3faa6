"""dftracer's own tools, in an environment of their own, made once."""

from __future__ import annotations

import fcntl
import os
import re
import subprocess
import sys
import venv
from pathlib import Path

import pytest

VERSION = "0.0.12"
PLACE = Path(os.environ.get("XDG_CACHE_HOME") or Path.home() / ".cache") / "stepwell-tests"


def tools() -> Path:
    """The folder of the programs; the test is skipped, loudly, where they cannot be had."""
    given = os.environ.get("DFTRACER_UTILS")
    if given:
        return Path(given)
    place = PLACE / f"dftracer-utils-{VERSION}-{sys.version_info[0]}{sys.version_info[1]}"
    done = place / "done"
    PLACE.mkdir(parents=True, exist_ok=True)
    with open(place.with_suffix(".lock"), "w") as lock:
        fcntl.flock(lock, fcntl.LOCK_EX)
        if not done.exists():
            venv.create(place, with_pip=True, clear=True)
            package = f"dftracer-utils=={VERSION}"
            pip = [place / "bin" / "python", "-m", "pip", "install", "-q", package]
            result = subprocess.run(pip, capture_output=True, text=True, timeout=600, check=False)
            if result.returncode:
                pytest.skip(f"NOT TESTED with dftracer: {package} cannot be installed here")
            done.touch()
    return place / "bin"


def _run(tool: str, folder: Path) -> str:
    result = subprocess.run(
        [tools() / tool, "-d", folder], capture_output=True, text=True, timeout=120, check=False
    )
    assert result.returncode == 0, result.stdout + result.stderr
    return result.stdout


def validated_lines(folder: Path) -> int:
    """How many lines ``dftracer_validate`` found to be right: all of them, or the test fails."""
    found = re.search(r"(\d+) passed, 0 failed, (\d+) lines", _run("dftracer_validate", folder))
    assert found
    return int(found[2])


def counted_events(folder: Path) -> int:
    """Return the count of ``dftracer_event_count``, which includes metadata in the new dialect."""
    return int(_run("dftracer_event_count", folder).strip().lstrip("~"))
