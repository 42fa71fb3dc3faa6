"""Running a program under torchrun, on this machine."""

from __future__ import annotations

import socket
import subprocess
import sys
from pathlib import Path

import pytest

from tests.durability.helpers import environment


def run_torchrun(
    program: str, folder: Path, timeout: float, **variables: str
) -> subprocess.CompletedProcess[str]:
    """Run this program in two processes and wait for it; skips where torchrun is not installed."""
    torchrun = Path(sys.executable).with_name("torchrun")
    if not torchrun.exists():
        pytest.skip("torchrun is not installed")
    with socket.socket() as free:
        free.bind(("127.0.0.1", 0))
        port = free.getsockname()[1]
    (folder / "program.py").write_text(program)
    return subprocess.run(
        [str(torchrun), "--nproc-per-node=2", f"--master-port={port}", "program.py"],
        cwd=folder,
        env=environment(OMP_NUM_THREADS="1", **variables),
        capture_output=True,
        text=True,
        timeout=timeout,
    )
