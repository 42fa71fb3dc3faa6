"""Norms of models that are spread over processes are those of the model that is not."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
from pathlib import Path

import pytest

pytest.importorskip("torch.distributed")

pytestmark = [pytest.mark.torch, pytest.mark.full]
ROOT = Path(__file__).parents[2]


@pytest.mark.parametrize("size", [2, 4])
def test_every_rank_has_the_numbers_of_the_whole(size: int, tmp_path: Path) -> None:
    """Data parallel, FSDP2, tensor parallel and on a mesh of both; also when one rank is in trouble."""
    launcher = [sys.executable, "-m", "torch.distributed.run", "--standalone"]
    running = subprocess.Popen(
        [*launcher, f"--nproc-per-node={size}", "-m", f"{__package__}.sharded_program", tmp_path],
        cwd=ROOT,
        env={**os.environ, "OMP_NUM_THREADS": "1", "PYTHONPATH": str(ROOT)},
        stdout=subprocess.PIPE,
        stderr=subprocess.STDOUT,
        text=True,
        start_new_session=True,
    )
    try:
        said, _ = running.communicate(timeout=200)
    except subprocess.TimeoutExpired:
        os.killpg(running.pid, signal.SIGKILL)
        said, _ = running.communicate()
        pytest.fail(f"not done after 200 s: {said[-4000:]}")
    assert running.returncode == 0, said[-4000:]
