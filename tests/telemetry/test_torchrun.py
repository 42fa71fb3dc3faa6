"""The real launchers: torchrun on one and on two nodes, and a rank that starts the others."""

from __future__ import annotations

import shutil
import subprocess
import sys
from pathlib import Path

import pytest

from tests.harness import environment, run_script
from tests.harness.programs import free_port
from tests.telemetry.launching import RANK, read_seats, runs_of

pytestmark = pytest.mark.torch

FAILING_RANK = f"""{RANK}
import time
if attempt == 0 and place.rank == place.world_size - 1:
    while len(list((root / "out").iterdir())) < place.world_size - 1:
        time.sleep(0.05)
    sys.exit(1)
(root / "out" / str(os.getpid())).touch()
if attempt == 0:
    time.sleep(600)
"""


def start_torchrun(root: Path, *options: str) -> subprocess.Popen[str]:
    """Start a torchrun whose last rank fails at first, once the others are under way."""
    torchrun_program = shutil.which("torchrun", path=str(Path(sys.executable).parent))
    if torchrun_program is None:
        pytest.skip("torchrun is not installed")
    (root / "out").mkdir(exist_ok=True)
    script = root / "train.py"
    script.write_text(FAILING_RANK)
    return subprocess.Popen(
        [torchrun_program, "--max-restarts=1", "--monitor-interval=0.1", *options, str(script)],
        env=environment(TEST_ROOT=str(root)),
        stdout=subprocess.PIPE,
        stderr=subprocess.DEVNULL,
        text=True,
    )


def read_output(process: subprocess.Popen[str]) -> str:
    try:
        return process.communicate(timeout=120)[0]
    finally:
        # On SIGTERM torchrun ends its ranks too.
        process.terminate()


@pytest.mark.parametrize(
    "options",
    [
        [],
        pytest.param(["--rdzv-id=my-job", "--rdzv-backend=c10d"], marks=pytest.mark.full),
    ],
)
def test_a_real_torchrun_writes_one_run_and_restarts_into_it(
    tmp_path: Path, options: list[str]
) -> None:
    """Two ranks of torchrun, with and without a rendezvous id: one run; restarted: two attempts."""
    if not options:
        options = ["--master-port=0"]
    process = start_torchrun(tmp_path, "--nproc-per-node=2", *options)
    seats = read_seats(read_output(process))
    assert len(runs_of(seats)) == 1
    assert [(s.rank, s.attempt) for s in seats] == [(0, 0), (0, 1), (1, 0), (1, 1)]


@pytest.mark.full
def test_real_torchruns_of_two_nodes_stay_together_over_a_restart(tmp_path: Path) -> None:
    """Two agents meet at a rendezvous; after the failure of one rank both continue in attempt 1."""
    options = [
        "--nnodes=2",
        "--nproc-per-node=1",
        "--rdzv-id=my-job",
        "--rdzv-backend=c10d",
        f"--rdzv-endpoint=127.0.0.1:{free_port()}",
    ]
    agents = [start_torchrun(tmp_path, *options) for _ in range(2)]
    seats = read_seats("".join(map(read_output, agents)))
    assert len(runs_of(seats)) == 1
    assert sorted((s.rank, s.attempt) for s in seats) == [(0, 0), (0, 1), (1, 0), (1, 1)]


def test_ranks_that_rank_0_started_itself_share_its_run(tmp_path: Path) -> None:
    """Where rank 0 is the parent of the others, as in Lightning, the master address joins them."""
    pytest.importorskip("torch")
    script = (
        "import os, torch.distributed as dist\n"
        "os.environ.update(LOCAL_RANK='0', MASTER_ADDR='127.0.0.1', MASTER_PORT='29500')\n"
        "other = os.fork()\n"
        "if not other: os.environ['LOCAL_RANK'] = '1'\n"
        "rank = int(os.environ['LOCAL_RANK'])\n"
        f"store = dist.FileStore({str(tmp_path / 'store')!r}, 2)\n"
        "dist.init_process_group('gloo', store=store, rank=rank, world_size=2)\n"
        f"{RANK}\n"
        "if other: os.waitpid(other, 0)\n"
    )
    answer = run_script(script, env=environment(TEST_ROOT=str(tmp_path)), check=True)
    seats = read_seats(answer.stdout)
    assert [(seat.rank, seat.attempt) for seat in seats] == [(0, 0), (1, 0)]
    assert len(runs_of(seats)) == 1
