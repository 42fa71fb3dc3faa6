"""Which launches belong together: those of a Slurm job, a rendezvous, or just an address."""

from __future__ import annotations

import json
import re
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import pytest

from stepwell.telemetry.launch import drop_rank_options
from tests.telemetry.launching import (
    Agent,
    Seat,
    attempts_of,
    runs_of,
    slurm_batch,
    slurm_step,
    torchrun,
)

# Slurm.


def test_the_tasks_of_a_step_share_a_run_that_has_the_job_in_its_id(
    start_agent: Callable[[], Agent],
) -> None:
    """Tasks on different nodes find the same run; the next step is another."""
    nodes = [start_agent(), start_agent()]
    first = [s for n, node in enumerate(nodes) for s in node.launch(slurm_step(n, 2))]
    step = [
        s for n, node in enumerate(nodes) for s in node.launch(slurm_step(n, 2, SLURM_STEP_ID="1"))
    ]
    assert len(runs_of(first)) == len(runs_of(step)) == 1
    assert re.fullmatch(r"slurm-4711\.0-[a-z2-9]{6}", first[0].run)
    assert re.fullmatch(r"slurm-4711\.1-[a-z2-9]{6}", step[0].run)


def test_a_step_of_an_array_job_has_the_index_in_its_id(start_agent: Callable[[], Agent]) -> None:
    """Each element of a job array is a separate run."""
    array = {"SLURM_ARRAY_JOB_ID": "4700", "SLURM_ARRAY_TASK_ID": "3"}
    seats = start_agent().launch(*(slurm_step(rank, 2, **array) for rank in range(2)))
    assert len(runs_of(seats)) == 1
    assert seats[0].run.startswith("slurm-4700_3.0-")


@pytest.mark.full
@pytest.mark.parametrize(
    "trainings",
    [
        [slurm_batch()] * 3,
        [slurm_step(0, 1, SLURM_STEP_ID=step) for step in "257"],
    ],
    ids=["in the batch script", "in steps of one task"],
)
def test_three_trainings_in_one_job_are_three_runs_and_a_requeue_goes_on_with_them(
    start_agent: Callable[[], Agent], trainings: list[dict[str, str]]
) -> None:
    """The n-th training of the requeued job is the next attempt of the n-th of the first."""
    job = start_agent()
    first = [job.launch(training)[0] for training in trainings]
    requeued = start_agent()
    again = [requeued.launch({**each, "SLURM_RESTART_COUNT": "1"})[0] for each in trainings]
    third = start_agent().launch({**trainings[0], "SLURM_RESTART_COUNT": "3"})
    assert len(runs_of(first)) == 3
    assert attempts_of(first) == {0}
    assert [seat.run for seat in again] == [seat.run for seat in first]
    assert attempts_of(again) == {1}
    assert third == [Seat(0, first[0].run, 2)]
    assert first[1].run == first[0].run + "-1"


def test_another_command_line_in_the_requeued_job_is_another_run(
    start_agent: Callable[[], Agent],
) -> None:
    """Only the same command line is the same training."""
    first = start_agent().launch(slurm_batch(), arguments=["--lr", "1"])
    other = start_agent().launch(slurm_batch(SLURM_RESTART_COUNT="1"), arguments=["--lr", "2"])
    assert runs_of(first).isdisjoint(runs_of(other))


def test_a_name_with_the_time_in_it_does_not_part_a_requeued_job_from_its_run(
    start_agent: Callable[[], Agent],
) -> None:
    """The id that the run began with stays, whatever name the requeued job gives."""
    first = start_agent().launch(slurm_batch(TEST_NAME="try at 10:15"))
    again = start_agent().launch(slurm_batch(TEST_NAME="try at 12:40", SLURM_RESTART_COUNT="1"))
    assert again == [Seat(0, first[0].run, 1)]


def test_torchrun_in_a_batch_script_is_found_again_by_the_requeued_job(
    start_agent: Callable[[], Agent],
) -> None:
    """Two torchruns at once in a job are two runs; the requeued job's first is an attempt more."""
    both = [slurm_batch() | torchrun(rank, 2, 2) for rank in range(2)]
    agents = [start_agent(), start_agent()]
    with ThreadPoolExecutor(2) as pool:
        launches = list(pool.map(lambda agent: agent.launch(*both), agents))
    again = start_agent().launch(*({**rank, "SLURM_RESTART_COUNT": "1"} for rank in both))
    assert [len(runs_of(seats)) for seats in launches] == [1, 1]
    assert runs_of(launches[0]) != runs_of(launches[1])
    assert len(runs_of(again)) == 1
    assert runs_of(again) <= runs_of(launches[0]) | runs_of(launches[1])
    assert attempts_of(again) == {1}


def test_the_second_torchrun_of_a_job_restarts_into_its_own_run(
    start_agent: Callable[[], Agent],
) -> None:
    """A restart by torchrun does not stray into the run of the torchrun before it."""
    both = [slurm_batch() | torchrun(rank, 2, 2) for rank in range(2)]
    start_agent().launch(*both)
    second = start_agent()
    before = second.launch(*both)
    after = second.launch(*({**rank, "TORCHELASTIC_RESTART_COUNT": "1"} for rank in both))
    assert runs_of(after) == runs_of(before)
    assert attempts_of(after) == {1}


def test_srun_of_one_torchrun_for_each_node_is_one_run(start_agent: Callable[[], Agent]) -> None:
    """With a torchrun under each task of a step, all ranks of all nodes share run and attempt."""
    nodes = [start_agent(), start_agent()]
    environs = [slurm_step(rank // 2, 2) | torchrun(rank, 4, 2) for rank in range(4)]
    seats = nodes[0].launch(*environs[:2]) + nodes[1].launch(*environs[2:])
    assert len(runs_of(seats)) == 1
    assert attempts_of(seats) == {0}
    assert seats[0].run.startswith("slurm-4711.0-")


# Many nodes, and nothing certain in common.


@pytest.mark.full
@pytest.mark.parametrize("rendezvous", ["none", "my-job"])
@pytest.mark.parametrize("in_slurm", [False, True])
def test_nodes_agree_though_each_counts_its_own_restarts(
    start_agent: Callable[[], Agent], rendezvous: str, in_slurm: bool
) -> None:
    """Only the failed node's restart count rises, and the ranks still stay together.

    What torch's agent does: the nodes whose ranks were healthy restart them with the old count.
    """
    around = [slurm_step(n, 2) if in_slurm else {} for n in range(2)]
    nodes = [start_agent(), start_agent()]

    def launch(*restarts: str) -> list[Seat]:
        with ThreadPoolExecutor(2) as pool:
            found = pool.map(
                lambda n: nodes[n].launch(
                    *(
                        around[n]
                        | torchrun(
                            rank,
                            4,
                            2,
                            TORCHELASTIC_RUN_ID=rendezvous,
                            TORCHELASTIC_RESTART_COUNT=restarts[n],
                        )
                        for rank in (2 * n, 2 * n + 1)
                    )
                ),
                range(2),
            )
            return [seat for seats in found for seat in seats]

    first, failed, failed_again = launch("0", "0"), launch("0", "1"), launch("1", "1")
    assert len(runs_of(first)) == 1
    assert runs_of(failed) == runs_of(failed_again) == runs_of(first)
    assert [attempts_of(seats) for seats in (first, failed, failed_again)] == [{0}, {1}, {2}]


@pytest.mark.full
def test_the_same_launch_on_many_nodes_again_is_another_run(
    start_agent: Callable[[], Agent],
) -> None:
    """Neither a fixed rendezvous id nor a fixed port makes two launches one."""
    for rendezvous in ("none", "my-job"):
        launches = []
        for _ in range(2):
            ranks = [torchrun(rank, 2, 1, TORCHELASTIC_RUN_ID=rendezvous) for rank in range(2)]
            launches.append([seat for rank in ranks for seat in start_agent().launch(rank)])
        assert [len(runs_of(seats)) for seats in launches] == [1, 1]
        assert runs_of(launches[0]).isdisjoint(runs_of(launches[1]))


def age_record(root: Path) -> None:
    """Make the only record of a launch ten minutes older."""
    (record,) = (root / ".launches").glob("*/*.json")
    content = json.loads(record.read_text())
    record.write_text(json.dumps({**content, "started": content["started"] - 600}))


def test_a_rank_does_not_join_a_launch_from_long_ago(
    start_agent: Callable[[], Agent], tmp_path: Path
) -> None:
    """A record of the same address counts only if it was made at about this rank's start."""
    first = start_agent().launch(torchrun(0, 2, 1))
    age_record(tmp_path)
    late = start_agent().launch(torchrun(1, 2, 1))
    assert runs_of(first).isdisjoint(runs_of(late))


def test_a_restarted_node_that_had_not_begun_before_goes_on_with_the_run(
    start_agent: Callable[[], Agent], tmp_path: Path
) -> None:
    """A rank that failed before its init finds the run of the others once it is restarted."""
    healthy, failing = start_agent(), start_agent()
    first = healthy.launch(torchrun(0, 2, 1))
    age_record(tmp_path)
    again = failing.launch(torchrun(1, 2, 1, TORCHELASTIC_RESTART_COUNT="1"))
    again += healthy.launch(torchrun(0, 2, 1))
    assert runs_of(again) == runs_of(first)
    assert attempts_of(again) == {1}


# The command line.


@pytest.mark.parametrize(
    "options",
    [
        ["--local-rank=1"],
        ["--local_rank", "1"],
        ["--rank", "1"],
        ["--node-rank=1", "--machine_rank", "1"],
        ["--process-id", "1"],
        ["trainer.local_rank=1"],
    ],
)
def test_what_differs_between_ranks_is_no_part_of_the_command_line(options: list[str]) -> None:
    """Options that carry a rank are left out, all others are kept."""
    argv = ["train.py", "--lr", "1", *options, "--ranking", "2", "lora_rank=8"]
    assert drop_rank_options(argv) == ["train.py", "--lr", "1", "--ranking", "2", "lora_rank=8"]


def test_a_rank_option_without_a_number_takes_nothing_with_it() -> None:
    """`--rank --lr 1` loses the switch alone."""
    assert drop_rank_options(["--rank", "--lr", "1"]) == ["--lr", "1"]
