"""Ranks write one run together; those that a real torchrun starts too."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

import polars as pl
import pytest

import stepwell
from stepwell.reading import RecordedRun
from tests.harness import run_ranks
from tests.harness.programs import free_port
from tests.processes.programs import environ, only_run, runs_in, write_program

pytestmark = pytest.mark.torch
pytest.importorskip("torch")

TRAINING = """
import torch.distributed as dist
dist.init_process_group("gloo")
run = stepwell.init("training", dir=RUNS, config={"lr": 0.1})
for step in range(3):
    run.set_step(step, epoch=0)
    with run.span("step"):
        run.log({"loss": 10.0 * run.rank + step})
    with run.span("barrier"):
        dist.barrier()
run.finish()
dist.destroy_process_group()
"""


def start(folder: Path, program: Path, *options: str) -> subprocess.Popen[str]:
    """A torchrun of two ranks."""
    launcher = [sys.executable, "-m", "torch.distributed.run", "--nproc-per-node=2"]
    return subprocess.Popen(
        [*launcher, "--monitor-interval=0.1", *options, str(program)],
        env=environ(folder),
        cwd=folder,
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        text=True,
    )


def end(process: subprocess.Popen[str]) -> tuple[str, str]:
    """Return the output of torchrun, which must succeed."""
    out, err = process.communicate(timeout=150)
    assert process.returncode == 0, err
    return out, err


def plain() -> str:
    return f"--master-port={free_port()}"


def rendezvous(name: str) -> list[str]:
    endpoint = f"--rdzv-endpoint=127.0.0.1:{free_port()}"
    return [f"--rdzv-id={name}", "--rdzv-backend=c10d", endpoint]


def check_two_ranks(run: RecordedRun) -> None:
    """One attempt of two ranks that recorded all of the training, on one clock."""
    processes = run.processes().collect().sort("rank")
    assert processes.select("rank", "local_rank", "world_size", "attempt", "role").rows() == [
        (0, 0, 2, 0, "main"),
        (1, 1, 2, 0, "main"),
    ]
    assert run.status == "finished"
    assert [attempt["world_size"] for attempt in run.document["attempts"]] == [2]
    metrics = run.metrics().collect().sort("rank", "step")
    assert metrics.select("rank", "step", "value").rows() == [
        (rank, step, 10.0 * rank + step) for rank in range(2) for step in range(3)
    ]
    barriers = run.spans().filter(pl.col("name") == "barrier").collect()
    barriers = barriers.with_columns(end=pl.col("start_ns") + pl.col("duration_ns"))
    by_step = barriers.group_by("step").agg(
        pl.col("start_ns").max().alias("last in"), pl.col("end").min().alias("first out")
    )
    # Nobody leaves a barrier before the last one has come: true only on one aligned clock.
    assert by_step.height == 3
    assert by_step.filter(pl.col("first out") < pl.col("last in")).height == 0


def check_one_launch(folder: Path, launch: subprocess.Popen[str]) -> None:
    """One run, one attempt, one clock; only rank 0 prints, and has nothing to say."""
    out, err = end(launch)
    check_two_ranks(only_run(folder))
    assert out == ""
    assert "stepwell" not in err


def test_two_ranks_write_one_run(tmp_path: Path) -> None:
    """One run, one attempt, one clock; they print nothing."""
    program = write_program(tmp_path, TRAINING)
    for done in run_ranks(program, env=environ(tmp_path), cwd=tmp_path, check=True):
        assert (done.stdout, done.stderr) == ("", "")
    check_two_ranks(only_run(tmp_path))


@pytest.mark.full
def test_two_ranks_with_a_rendezvous_write_one_run(tmp_path: Path) -> None:
    check_one_launch(
        tmp_path, start(tmp_path, write_program(tmp_path, TRAINING), *rendezvous("job"))
    )


@pytest.mark.full
def test_two_ranks_write_one_run_and_each_launch_is_another(tmp_path: Path) -> None:
    """The same program in the same folder, after each other and at once."""
    program = write_program(tmp_path, TRAINING)
    check_one_launch(tmp_path, start(tmp_path, program, plain()))
    for process in [start(tmp_path, program, plain()) for _ in range(2)]:
        end(process)
    runs = runs_in(tmp_path)
    assert len(runs) == 3
    for run in runs:
        check_two_ranks(run)


@pytest.mark.full
def test_a_restart_is_the_next_attempt_of_the_run(tmp_path: Path) -> None:
    """When a rank fails once torchrun starts all of them again: attempt 1 in the same run."""
    program = """
    run = stepwell.init("training", dir=RUNS)
    restarted = os.environ["TORCHELASTIC_RESTART_COUNT"] == "1"
    for step in range(2 if restarted else 0, 4):
        run.log({"loss": 100.0 * restarted + step}, step=step)
    run.flush()
    (Path("ready") / f"{restarted}-{run.rank}").touch()
    while len(list(Path("ready").glob(f"{restarted}-*"))) < 2:
        time.sleep(0.02)
    if not restarted:
        if run.rank == 1:
            raise ValueError("once")
        time.sleep(600)
    """
    (tmp_path / "ready").mkdir()
    end(start(tmp_path, write_program(tmp_path, program), "--max-restarts=1", plain()))
    run = only_run(tmp_path)
    processes = run.processes().collect().sort("attempt", "rank")
    assert processes.select("attempt", "rank", "status").rows() == [
        (0, 0, "killed"),
        (0, 1, "failed"),
        (1, 0, "finished"),
        (1, 1, "finished"),
    ]
    assert processes["error"].to_list() == [None, "ValueError: once", None, None]
    assert run.status == "finished"
    expected = [0.0, 1.0, 102.0, 103.0]
    for rank in range(2):
        own = run.metrics().filter(pl.col("rank") == rank).collect().sort("step")
        assert own["value"].to_list() == expected
    assert run.metrics(overwritten=True).collect()["overwritten"].sum() == 4


def test_ranks_other_than_0_are_quiet(tmp_path: Path) -> None:
    """A folder that is not writable gives one warning, on rank 0; all ranks continue training."""
    program = """
    run = stepwell.init("training", dir="/proc/nowhere")
    with run.span("step"):
        run.log({"loss": 1.0})
    run.finish()
    Path(f"done-{os.environ['RANK']}").touch()
    """
    ranks = run_ranks(
        write_program(tmp_path, program), env=environ(tmp_path), cwd=tmp_path, check=True
    )
    assert {path.name for path in tmp_path.glob("done-*")} == {"done-0", "done-1"}
    said = [rank.stderr.count("Training continues") for rank in ranks]
    assert said == [1, 0]
    assert stepwell.list_runs("/proc/nowhere") == []
