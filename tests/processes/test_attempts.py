"""Which launches are one run, and what its later attempts change."""

from __future__ import annotations

import logging
from collections.abc import Iterable
from pathlib import Path

import polars as pl
import pytest

import stepwell
from stepwell import StepwellError
from tests.processes.programs import execute, only_run, runs_in, write_program

TRAINING = """
with stepwell.init("training", dir=RUNS) as run:
    run.log({"loss": 1.0}, step=0)
    print(run.id, run.attempt)
"""


def train(folder: Path, *arguments: str, **more: str) -> tuple[str, int]:
    """Run the training; returns its run id and attempt."""
    program = folder / "program.py"
    if not program.exists():
        write_program(folder, TRAINING)
    run_id, attempt = execute(folder, program, *arguments, **more).split()
    return run_id, int(attempt)


def batch(**more: str) -> dict[str, str]:
    """The environment of a program in a batch script."""
    return {"SLURM_JOB_ID": "4711", "SLURM_PROCID": "0", "SLURM_NTASKS": "4", **more}


def step(number: int, **more: str) -> dict[str, str]:
    """The environment of a program that ``srun -n 1`` started."""
    numbers = {"SLURM_STEP_ID": str(number), "SLURM_STEP_NUM_TASKS": "1", "SLURM_LOCALID": "0"}
    return batch(SLURM_NODEID="0", **numbers, **more)


def test_programs_without_a_launcher_are_separate_runs(tmp_path: Path) -> None:
    """Starting a program again is another run."""
    assert train(tmp_path)[0] != train(tmp_path)[0]
    assert len(runs_in(tmp_path)) == 2


@pytest.mark.full
def test_three_trainings_in_one_slurm_job_are_three_runs(tmp_path: Path) -> None:
    """In a batch script without srun, each has a run; the requeued job continues all three."""
    seeds = ("1", "2", "2")
    first = [train(tmp_path, seed, **batch()) for seed in seeds]
    assert len({run_id for run_id, _ in first}) == 3
    assert all("4711" in run_id and attempt == 0 for run_id, attempt in first)
    requeued = [train(tmp_path, seed, **batch(SLURM_RESTART_COUNT="1")) for seed in seeds]
    assert requeued == [(run_id, 1) for run_id, _ in first]
    again = train(tmp_path, "1", **batch(SLURM_RESTART_COUNT="2"))
    assert again == (first[0][0], 2)
    assert len(runs_in(tmp_path)) == 3


def test_three_steps_of_one_slurm_job_are_three_runs(tmp_path: Path) -> None:
    """With srun each step is a run, also of the same command line; a requeue continues it."""
    first = [train(tmp_path, **step(number)) for number in range(3)]
    assert len({run_id for run_id, _ in first}) == 3
    requeued = train(tmp_path, **step(0, SLURM_RESTART_COUNT="1"))
    assert requeued == (first[0][0], 1)
    other = train(tmp_path, "--another", **step(1, SLURM_RESTART_COUNT="1"))
    assert other[0] not in {run_id for run_id, _ in first}


def test_the_same_id_again_is_the_next_attempt(tmp_path: Path) -> None:
    """The argument and STEPWELL_RUN_ID name the run; the later attempt's metrics win per step."""
    for attempt, (begin, end) in enumerate([(0, 4), (2, 6)]):
        with stepwell.init(dir=tmp_path, run_id="mine") as run:
            assert (run.id, run.attempt) == ("mine", attempt)
            for number in range(begin, end):
                run.log({"loss": 100.0 * attempt + number}, step=number)
            run.log({f"only {attempt}": 1.0}, step=3)
            with run.span("work"):
                pass
    recorded = stepwell.open_run(tmp_path / "mine")
    loss = recorded.metrics().filter(pl.col("name") == "loss").collect().sort("step")
    assert loss.select("step", "value", "attempt").rows() == [
        (0, 0.0, 0),
        (1, 1.0, 0),
        (2, 102.0, 1),
        (3, 103.0, 1),
        (4, 104.0, 1),
        (5, 105.0, 1),
    ]
    everything = recorded.metrics(overwritten=True).collect().sort("step", "attempt")
    rows = everything.filter(pl.col("name") == "loss").select("step", "value", "overwritten").rows()
    assert rows == [
        (0, 0.0, False),
        (1, 1.0, False),
        (2, 2.0, True),
        (2, 102.0, False),
        (3, 3.0, True),
        (3, 103.0, False),
        (4, 104.0, False),
        (5, 105.0, False),
    ]
    names = recorded.metrics().filter(pl.col("step") == 3).collect()["name"]
    assert sorted(names) == ["loss", "only 0", "only 1"]
    assert recorded.spans().collect()["attempt"].to_list() == [0, 1]
    assert [item["attempt"] for item in recorded.document["attempts"]] == [0, 1]


def test_the_environment_names_the_run(tmp_path: Path) -> None:
    """STEPWELL_RUN_ID and STEPWELL_DIR say which run and where; an argument comes first."""
    where = {"STEPWELL_RUN_ID": "from-environment"}
    assert train(tmp_path, **where) == ("from-environment", 0)
    assert train(tmp_path, **where) == ("from-environment", 1)
    assert only_run(tmp_path).id == "from-environment"
    program = 'print(stepwell.init(run_id="argument").path)'
    script = write_program(tmp_path, program, name="other.py")
    printed = execute(tmp_path, script, STEPWELL_DIR=str(tmp_path / "elsewhere"), **where)
    assert printed.strip() == str(tmp_path / "elsewhere" / "argument")


def test_resume_false_refuses_an_id_that_exists(tmp_path: Path) -> None:
    """The error names the id and what to do; the run is unchanged, and none is active."""
    stepwell.init(dir=tmp_path, run_id="taken", resume=False).finish()
    with pytest.raises(StepwellError, match=r"'taken' already exists .* choose another run_id"):
        stepwell.init(dir=tmp_path, run_id="taken", resume=False)
    assert stepwell.active_run() is None
    assert len(stepwell.open_run(tmp_path / "taken").document["attempts"]) == 1
    with stepwell.init(dir=tmp_path, run_id="taken") as run:
        assert run.attempt == 1


@pytest.mark.parametrize(
    ("arguments", "said"),
    [
        ({"run_id": "a/b"}, r"'a/b' cannot be a run id: it contains '/'.*such as 'a-b'"),
        ({"run_id": "../x"}, r"starts with '\.'"),
        ({"run_id": ""}, "it is empty"),
        ({"run_id": "x" * 129}, "129 characters and at most 128"),
        ({"run_id": 7}, "not a string"),
        ({"name": 7}, "name must be a string.*got 7"),
        (
            {"tags": "baseline"},
            r"tags must be a list of strings, such as \['baseline'\], got 'baseline'",
        ),
        ({"tags": [1]}, "must be a list of strings"),
        ({"tags": None}, "must be a list of strings"),
        ({"tags": 3}, "must be a list of strings"),
        ({"config": 3}, "config must be a dict.*got an int"),
        ({"dir": 3}, "dir must be a path.*got 3"),
    ],
)
def test_a_wrong_argument_says_what_to_write(
    tmp_path: Path, arguments: dict[str, object], said: str
) -> None:
    """``init`` raises StepwellError with the value and the remedy, and leaves no file."""
    with pytest.raises(StepwellError, match=said):
        stepwell.init(**{"dir": tmp_path, **arguments})  # type: ignore[arg-type]
    assert stepwell.active_run() is None
    assert list(tmp_path.iterdir()) == []


@pytest.mark.parametrize("tags", [["a", "b"], ("a", "b"), iter(["a", "b"]), {"a": 1, "b": 2}])
def test_tags_may_be_any_collection(tmp_path: Path, tags: Iterable[str]) -> None:
    """They are kept, also when they can be gone through only once."""
    run = stepwell.init(dir=tmp_path, tags=tags)
    run.finish()
    assert stepwell.open_run(run.path).document["tags"] == ["a", "b"]


def test_a_wrong_status_says_what_to_write(tmp_path: Path) -> None:
    """``finish`` lists the valid statuses, and the run stays active until one is given."""
    run = stepwell.init(dir=tmp_path)
    with pytest.raises(
        StepwellError, match="must be one of finished, failed, interrupted, killed, got 'done'"
    ):
        run.finish("done")
    assert stepwell.active_run() is run
    run.finish("failed")
    assert stepwell.open_run(run.path).status == "failed"


def test_a_failed_init_leaves_the_active_run_alone(tmp_path: Path) -> None:
    """A wrong call does not finish the run that is being recorded."""
    run = stepwell.init(dir=tmp_path)
    with pytest.raises(StepwellError):
        stepwell.init(dir=tmp_path, run_id="a/b")
    with pytest.raises(StepwellError):
        stepwell.init(dir=tmp_path, run_id=run.id, resume=False)
    assert stepwell.active_run() is run
    with run.span("work"):
        pass
    run.finish()
    assert stepwell.open_run(run.path).spans().collect()["name"].to_list() == ["work"]


def test_nothing_is_said_when_all_is_well(
    tmp_path: Path, capfd: pytest.CaptureFixture[str], caplog: pytest.LogCaptureFixture
) -> None:
    """A run that is recorded without trouble prints nothing and logs no warning."""
    with caplog.at_level(logging.WARNING), stepwell.init(dir=tmp_path) as run, run.span("work"):
        run.log({"loss": 1.0})
    assert tuple(capfd.readouterr()) == ("", "")
    assert caplog.records == []
