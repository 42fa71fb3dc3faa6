"""Ranks find their place, their run and their attempt, each on its own."""

from __future__ import annotations

import json
import os
import re
import shutil
import socket
import subprocess
import sys
import threading
from collections.abc import Callable, Iterator, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from stepwell.telemetry import claims, launch
from stepwell.telemetry.launch import (
    Launch,
    Place,
    check_run_id,
    claim_attempt,
    find_launch,
    find_place,
)
from stepwell.telemetry.launch_group import drop_rank_options
from stepwell.telemetry.place import RANK_VARIABLES

SOURCE = Path(launch.__file__).parents[2]
SINGLE = Place(rank=0, world_size=1, local_rank=0, node_rank=0, launcher="single")
DATED = r"\d{8}-\d{6}-[a-z2-7]{6}"

RANK = """
import json, os, sys
from pathlib import Path
from stepwell.telemetry.launch import claim_attempt, find_launch, find_place
root = Path(os.environ["TEST_ROOT"])
place = find_place(os.environ)
for turn in range(int(os.environ.get("TEST_INITS", "1"))):
    found = find_launch(
        root, place, run_id=None, name=os.environ.get("TEST_NAME"), environ=os.environ,
        argv=sys.argv,
    )
    attempt = claim_attempt(root / found.run_id, found.token)
    print(json.dumps([place.rank, found.run_id, attempt]), flush=True)
"""

# Stands for torchrun, mpirun or a script: starts ranks as its children, once for every line.
AGENT = """
import json, subprocess, sys
for line in sys.stdin:
    ranks = [
        subprocess.Popen(command, env=environ, stdout=subprocess.PIPE, text=True)
        for command, environ in json.loads(line)
    ]
    print(json.dumps("".join(rank.communicate()[0] for rank in ranks)), flush=True)
"""


@dataclass(frozen=True)
class Seat:
    """What one rank found."""

    rank: int
    run: str
    attempt: int


class Agent:
    """A launcher process of its own, as torchrun is on each node."""

    def __init__(self, root: Path) -> None:
        self.root = root
        self.process = subprocess.Popen(
            [sys.executable, "-c", AGENT],
            env=plain_environ(),
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            text=True,
        )

    def launch(
        self,
        *environs: Mapping[str, str],
        command: Sequence[str] = (),
        arguments: Sequence[str] = (),
    ) -> list[Seat]:
        """Start one process for each environment, all at once, and return what they found."""
        assert self.process.stdin is not None
        assert self.process.stdout is not None
        common = {**plain_environ(), "TEST_ROOT": str(self.root)}
        program = [*command, sys.executable, "-c", RANK, *arguments]
        ranks = [(program, {**common, **environ}) for environ in environs]
        self.process.stdin.write(json.dumps(ranks) + "\n")
        self.process.stdin.flush()
        return read_seats(json.loads(self.process.stdout.readline()))


def plain_environ() -> dict[str, str]:
    """The environment of a shell that no launcher has touched."""
    return {"PATH": os.environ["PATH"], "PYTHONPATH": str(SOURCE)}


def read_seats(output: str) -> list[Seat]:
    return sorted(
        (Seat(*json.loads(line)) for line in output.splitlines()),
        key=lambda seat: (seat.rank, seat.run, seat.attempt),
    )


def runs_of(seats: Sequence[Seat]) -> set[str]:
    return {seat.run for seat in seats}


def attempts_of(seats: Sequence[Seat]) -> set[int]:
    return {seat.attempt for seat in seats}


@pytest.fixture
def start_agent(tmp_path: Path) -> Iterator[Callable[[], Agent]]:
    agents: list[Agent] = []

    def start() -> Agent:
        agents.append(Agent(tmp_path))
        return agents[-1]

    yield start
    for agent in agents:
        agent.process.communicate()


@contextmanager
def at_once() -> Iterator[ThreadPoolExecutor]:
    with ThreadPoolExecutor(8) as pool:
        yield pool


def torchrun(rank: int, world: int, local: int, **more: str) -> dict[str, str]:
    return {
        "RANK": str(rank),
        "WORLD_SIZE": str(world),
        "LOCAL_RANK": str(rank % local),
        "LOCAL_WORLD_SIZE": str(local),
        "GROUP_RANK": str(rank // local),
        "TORCHELASTIC_RUN_ID": "none",
        "TORCHELASTIC_RESTART_COUNT": "0",
        "MASTER_ADDR": "node-a",
        "MASTER_PORT": "29500",
        **more,
    }


def slurm_step(rank: int, tasks: int, **more: str) -> dict[str, str]:
    return {
        "SLURM_JOB_ID": "4711",
        "SLURM_STEP_ID": "0",
        "SLURM_PROCID": str(rank),
        "SLURM_NTASKS": str(tasks),
        "SLURM_STEP_NUM_TASKS": str(tasks),
        "SLURM_LOCALID": str(rank),
        "SLURM_NODEID": "0",
        **more,
    }


def slurm_batch(**more: str) -> dict[str, str]:
    """A batch script of a job for four tasks: one process, although the variables say four."""
    return {"SLURM_JOB_ID": "4711", "SLURM_PROCID": "0", "SLURM_NTASKS": "4", **more}


# Where a process stands.


@pytest.mark.parametrize(
    ("environ", "place"),
    [
        ({}, SINGLE),
        (torchrun(5, 8, 4), Place(5, 8, 1, 1, "torchrun")),
        ({"RANK": "1", "WORLD_SIZE": "2", "LOCAL_RANK": "1"}, Place(1, 2, 1, None, "env")),
        ({"RANK": "5", "WORLD_SIZE": "8", "LOCAL_WORLD_SIZE": "4"}, Place(5, 8, 1, None, "env")),
        (
            {
                "OMPI_COMM_WORLD_RANK": "3",
                "OMPI_COMM_WORLD_SIZE": "4",
                "OMPI_COMM_WORLD_LOCAL_RANK": "1",
                "OMPI_COMM_WORLD_LOCAL_SIZE": "2",
                "OMPI_COMM_WORLD_NODE_RANK": "1",
            },
            Place(3, 4, 1, None, "mpi"),
        ),
        (
            {"PMI_RANK": "2", "PMI_SIZE": "4", "MPI_LOCALRANKID": "0"},
            Place(2, 4, 0, None, "mpi"),
        ),
        (
            {k: v for k, v in slurm_step(1, 2).items() if k != "SLURM_PROCID"} | {"PMIX_RANK": "1"},
            Place(1, 2, 1, None, "mpi"),
        ),
        (slurm_step(1, 2), Place(1, 2, 1, 0, "slurm")),
        ({"SLURM_PROCID": "1", "SLURM_STEP_NUM_TASKS": "2"}, Place(1, 2, 1, None, "slurm")),
        (slurm_step(0, 2) | torchrun(5, 8, 4), Place(5, 8, 1, 1, "torchrun")),
    ],
)
def test_the_place_comes_from_what_the_launcher_set(environ: dict[str, str], place: Place) -> None:
    """Each launcher's own variables give the rank, with torchrun's before MPI's and Slurm's."""
    assert find_place(environ) == place


@pytest.mark.parametrize(
    "environ",
    [
        slurm_batch(),
        slurm_batch(SLURM_STEP_ID="4294967291"),
        slurm_batch(SLURM_STEP_ID="4294967290"),
        {"RANK": "1"},
        {"RANK": "", "WORLD_SIZE": "2"},
        {"RANK": "abc", "WORLD_SIZE": "2"},
        {"RANK": "-1", "WORLD_SIZE": "2"},
        {"RANK": "2", "WORLD_SIZE": "2"},
        {"RANK": "1", "WORLD_SIZE": "9" * 5000},
        {"PMIX_RANK": "1"},
    ],
)
def test_one_process_is_one_process_whatever_lies_around(environ: dict[str, str]) -> None:
    """A Slurm batch script or interactive shell is single, and senseless values are ignored."""
    assert find_place(environ) == SINGLE


@given(
    st.dictionaries(
        st.sampled_from([*RANK_VARIABLES, "WORLD_SIZE", "LOCAL_RANK", "PMI_SIZE", "SLURM_NTASKS"]),
        st.text(),
    )
)
def test_no_environment_breaks_the_search(environ: dict[str, str]) -> None:
    """Whatever the variables hold, the rank is one of the world's."""
    place = find_place(environ)
    assert 0 <= place.rank < place.world_size


@pytest.mark.torch
def test_an_initialised_torch_distributed_tells_the_rank(tmp_path: Path) -> None:
    """Without variables, the rank is the one that the program gave to init_process_group."""
    pytest.importorskip("torch")
    script = (
        "import os, torch.distributed as dist\n"
        "from stepwell.telemetry.launch import find_place\n"
        "print(find_place({}).launcher)\n"
        f"store = dist.FileStore({str(tmp_path / 'store')!r}, 1)\n"
        "dist.init_process_group('gloo', store=store, rank=0, world_size=1)\n"
        "print(find_place({}).launcher)\n"
        "dist.destroy_process_group()\n"
    )
    answer = subprocess.run(
        [sys.executable, "-c", script],
        env=plain_environ(),
        check=True,
        capture_output=True,
        text=True,
    )
    assert answer.stdout.split() == ["single", "torch.distributed"]


@pytest.mark.torch
def test_ranks_that_rank_0_started_itself_share_its_run(tmp_path: Path) -> None:
    """Where rank 0 is the parent of the others, as in Lightning, the master address joins them."""
    pytest.importorskip("torch")
    script = (
        "import os, subprocess, sys, torch.distributed as dist\n"
        "rank = int(os.environ.setdefault('LOCAL_RANK', '0'))\n"
        "os.environ.update(MASTER_ADDR='127.0.0.1', MASTER_PORT='29500')\n"
        "environ = {**os.environ, 'LOCAL_RANK': '1'}\n"
        "others = [] if rank else [subprocess.Popen([sys.executable, __file__], env=environ)]\n"
        f"store = dist.FileStore({str(tmp_path / 'store')!r}, 2)\n"
        "dist.init_process_group('gloo', store=store, rank=rank, world_size=2)\n"
        f"{RANK}\n"
        "for other in others: other.wait()\n"
    )
    (tmp_path / "train.py").write_text(script)
    answer = subprocess.run(
        [sys.executable, str(tmp_path / "train.py")],
        env={**plain_environ(), "TEST_ROOT": str(tmp_path)},
        check=True,
        capture_output=True,
        text=True,
    )
    seats = read_seats(answer.stdout)
    assert [(seat.rank, seat.attempt) for seat in seats] == [(0, 0), (1, 0)]
    assert len(runs_of(seats)) == 1


# Run ids.


@pytest.mark.parametrize("run_id", ["a", "7", "run-1", "A.b_c+d=e@f", "x" * 128])
def test_an_ordinary_id_is_taken_as_it_is(run_id: str) -> None:
    """Letters, digits and a few signs make a run id."""
    assert check_run_id(run_id) == run_id


@pytest.mark.parametrize(
    ("run_id", "said"),
    [
        ("", "empty"),
        ("..", "starts with '.'"),
        (".launches", "starts with '.'"),
        ("-rf", "starts with '-'"),
        ("a/b", "contains '/'"),
        ("a\\b", "contains '\\\\\\\\'"),
        ("a\0b", r"contains '\\x00'"),
        ("a b\n", r"contains '\\n', ' '"),
        ("käse", "'kase' would do"),
        ("x" * 129, "129 characters"),
    ],
)
def test_an_id_that_is_no_safe_folder_name_is_refused(run_id: str, said: str) -> None:
    """The error says what is wrong with the id."""
    with pytest.raises(ValueError, match=said):
        check_run_id(run_id)


def find_single(root: Path, environ: Mapping[str, str] = {}, **asked: str) -> Launch:
    return find_launch(
        root,
        SINGLE,
        run_id=asked.get("run_id"),
        name=asked.get("name"),
        environ=environ,
        argv=["train.py"],
    )


def test_a_single_process_starts_a_new_run_each_time(tmp_path: Path) -> None:
    """The id has the time in it, no two are the same, and no file is left behind."""
    first, second = find_single(tmp_path), find_single(tmp_path)
    assert re.fullmatch(DATED, first.run_id)
    assert first.run_id != second.run_id
    assert first.token != second.token
    assert list(tmp_path.iterdir()) == []


def test_the_name_is_readable_in_the_id(tmp_path: Path) -> None:
    """The name stands in front, as far as it can be part of a folder's name."""
    found = find_single(tmp_path, name="ResNet-50 / Größe: 3×3!")
    assert re.fullmatch(f"resnet-50-grosse-3-3-{DATED}", found.run_id)


def test_an_explicit_id_is_kept_and_the_environment_comes_second(tmp_path: Path) -> None:
    """The argument wins over STEPWELL_RUN_ID; every launch is an attempt of its own."""
    environ = {"STEPWELL_RUN_ID": "from-environment"}
    assert find_single(tmp_path, environ, run_id="mine").run_id == "mine"
    launches = [find_single(tmp_path, environ) for _ in range(3)]
    assert {found.run_id for found in launches} == {"from-environment"}
    attempts = [claim_attempt(tmp_path / found.run_id, found.token) for found in launches]
    assert attempts == [0, 1, 2]


def test_a_wrong_id_in_the_environment_is_named(tmp_path: Path) -> None:
    """The error names the variable, for whoever did not know that it was set."""
    with pytest.raises(ValueError, match=r"STEPWELL_RUN_ID: '../x' cannot be a run id"):
        find_single(tmp_path, {"STEPWELL_RUN_ID": "../x"})


# Ranks of one launcher process on one node.


def test_the_ranks_of_one_launcher_share_run_and_attempt(start_agent: Callable[[], Agent]) -> None:
    """All ranks that one torchrun starts land in one run and one attempt."""
    seats = start_agent().launch(*(torchrun(rank, 4, 4) for rank in range(4)))
    assert [seat.rank for seat in seats] == [0, 1, 2, 3]
    assert len(runs_of(seats)) == 1
    assert attempts_of(seats) == {0}
    assert re.fullmatch(f"torchrun-{DATED}", seats[0].run)


def test_launches_after_each_other_are_separate_runs(start_agent: Callable[[], Agent]) -> None:
    """The same command started twice, by two launchers or by one script, gives two runs."""
    script = start_agent()
    ranks = [{"RANK": str(rank), "WORLD_SIZE": "2"} for rank in range(2)]
    launches = [script.launch(*ranks), script.launch(*ranks), start_agent().launch(*ranks)]
    assert [len(runs_of(seats)) for seats in launches] == [1, 1, 1]
    assert len(set.union(*map(runs_of, launches))) == 3


def test_launches_at_once_are_separate_runs(start_agent: Callable[[], Agent]) -> None:
    """Two launchers at the same time do not mix their ranks, nor does one with two ports."""
    both = [torchrun(rank, 2, 2) for rank in range(2)]
    agents = [start_agent() for _ in range(3)]
    with at_once() as pool:
        launches = list(pool.map(lambda agent: agent.launch(*both), agents))
    assert [len(runs_of(seats)) for seats in launches] == [1, 1, 1]
    assert len(set.union(*map(runs_of, launches))) == 3

    ports = [
        {"RANK": rank, "WORLD_SIZE": "2", "MASTER_ADDR": "127.0.0.1", "MASTER_PORT": port}
        for rank in "01"
        for port in ("29500", "29501")
    ]
    seats = start_agent().launch(*ports)
    assert sorted(len([s for s in seats if s.run == run]) for run in runs_of(seats)) == [2, 2]
    assert all({s.rank for s in seats if s.run == run} == {0, 1} for run in runs_of(seats))


def test_a_restart_by_the_same_launcher_is_the_next_attempt(
    start_agent: Callable[[], Agent],
) -> None:
    """When torchrun restarts its ranks, they go on with their run as its second attempt."""
    agent = start_agent()
    first = agent.launch(*(torchrun(rank, 2, 2) for rank in range(2)))
    again = agent.launch(
        *(torchrun(rank, 2, 2, TORCHELASTIC_RESTART_COUNT="1") for rank in range(2))
    )
    assert runs_of(again) == runs_of(first)
    assert attempts_of(again) == {1}


def test_every_init_of_a_process_is_another_run(start_agent: Callable[[], Agent]) -> None:
    """The second init of each rank meets the others' second, and a restart finds both again."""
    agent = start_agent()
    first = agent.launch(*(torchrun(rank, 2, 2, TEST_INITS="2") for rank in range(2)))
    again = agent.launch(
        *(torchrun(rank, 2, 2, TEST_INITS="2", TORCHELASTIC_RESTART_COUNT="1") for rank in range(2))
    )
    assert len(runs_of(first)) == 2
    assert {(seat.rank, seat.run) for seat in again} == {(seat.rank, seat.run) for seat in first}
    assert attempts_of(again) == {1}


@pytest.mark.skipif(not Path("/proc/self/exe").exists(), reason="needs /proc")
def test_a_wrapper_script_around_each_rank_does_not_part_them(
    start_agent: Callable[[], Agent],
) -> None:
    """`mpirun ./wrapper.sh python train.py` gives each rank a parent of its own: still one run."""
    ranks = [{"OMPI_COMM_WORLD_RANK": str(r), "OMPI_COMM_WORLD_SIZE": "2"} for r in range(2)]
    # The second command keeps the shell from replacing itself by the first.
    seats = start_agent().launch(*ranks, command=["sh", "-c", '"$@"; true', "wrapper"])
    assert len(runs_of(seats)) == 1
    assert re.fullmatch(f"mpi-{DATED}", seats[0].run)


def test_an_mpi_namespace_joins_ranks_of_different_nodes(
    start_agent: Callable[[], Agent],
) -> None:
    """Ranks under different daemons share the run of their PMIx namespace."""

    def rank(number: int, namespace: str) -> dict[str, str]:
        return {
            "OMPI_COMM_WORLD_RANK": str(number),
            "OMPI_COMM_WORLD_SIZE": "2",
            "OMPI_COMM_WORLD_LOCAL_SIZE": "1",
            "PMIX_NAMESPACE": namespace,
        }

    nodes = [start_agent(), start_agent()]
    first = [seat for n, node in enumerate(nodes) for seat in node.launch(rank(n, "job-1"))]
    other = [seat for n, node in enumerate(nodes) for seat in node.launch(rank(n, "job-2"))]
    assert len(runs_of(first)) == len(runs_of(other)) == 1
    assert runs_of(first) != runs_of(other)


def test_a_name_that_differs_between_ranks_still_makes_one_run(
    start_agent: Callable[[], Agent],
) -> None:
    """The first rank's name is the one in the id."""
    seats = start_agent().launch(*(torchrun(r, 2, 2, TEST_NAME=f"rank {r}") for r in range(2)))
    assert len(runs_of(seats)) == 1
    assert re.fullmatch(f"rank-[01]-{DATED}", seats[0].run)


def test_an_explicit_id_has_one_attempt_for_each_launch(start_agent: Callable[[], Agent]) -> None:
    """With STEPWELL_RUN_ID, two launches of two ranks are two attempts of one run."""
    ranks = [torchrun(rank, 2, 2, STEPWELL_RUN_ID="mine") for rank in range(2)]
    first, second = start_agent().launch(*ranks), start_agent().launch(*ranks)
    assert runs_of(first) | runs_of(second) == {"mine"}
    assert (attempts_of(first), attempts_of(second)) == ({0}, {1})


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
    assert re.fullmatch(r"slurm-4711\.0-[a-z2-7]{6}", first[0].run)
    assert re.fullmatch(r"slurm-4711\.1-[a-z2-7]{6}", step[0].run)


def test_a_step_of_an_array_job_has_the_index_in_its_id(start_agent: Callable[[], Agent]) -> None:
    """Each element of a job array is a run of its own."""
    array = {"SLURM_ARRAY_JOB_ID": "4700", "SLURM_ARRAY_TASK_ID": "3"}
    seats = start_agent().launch(*(slurm_step(rank, 2, **array) for rank in range(2)))
    assert len(runs_of(seats)) == 1
    assert seats[0].run.startswith("slurm-4700_3.0-")


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
    with at_once() as pool:
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
        with at_once() as pool:
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


def test_a_rank_does_not_join_a_launch_from_long_ago(
    start_agent: Callable[[], Agent], tmp_path: Path
) -> None:
    """A record of the same address counts only if it was made at about this rank's start."""
    first = start_agent().launch(torchrun(0, 2, 1))
    (record,) = (tmp_path / ".launches").glob("*/*.json")
    content = json.loads(record.read_text())
    record.write_text(json.dumps({**content, "started": content["started"] - 600}))
    late = start_agent().launch(torchrun(1, 2, 1))
    assert runs_of(first).isdisjoint(runs_of(late))


# Trouble.


def test_without_a_writable_root_ranks_still_agree_and_inits_differ(
    start_agent: Callable[[], Agent], tmp_path: Path
) -> None:
    """Where nothing can be written, every rank works out the same id; nothing is raised."""
    blocked = tmp_path / "a-file"
    blocked.touch()
    script = RANK.replace("claim_attempt(root / found.run_id, found.token)", "found.token")
    answers: list[list[tuple[str, str]]] = []
    for rank in range(2):
        environ = {**plain_environ(), **torchrun(rank, 2, 2), "TEST_ROOT": str(blocked)}
        answer = subprocess.run(
            [sys.executable, "-c", script],
            env={**environ, "TEST_INITS": "3"},
            check=True,
            capture_output=True,
            text=True,
        )
        answers.append([tuple(json.loads(line)[1:]) for line in answer.stdout.splitlines()])
    assert answers[0] == answers[1]
    assert len(set(answers[0])) == len({run for run, _ in answers[0]}) == 3


def test_a_record_that_leads_out_of_the_folder_is_not_believed(
    start_agent: Callable[[], Agent], tmp_path: Path
) -> None:
    """Whoever can write to the root cannot make a run write elsewhere."""
    agent = start_agent()
    agent.launch(torchrun(0, 2, 2))
    (record,) = (tmp_path / ".launches").glob("*/*.json")
    record.write_text(json.dumps({**json.loads(record.read_text()), "run_id": "../elsewhere"}))
    (seat,) = agent.launch(torchrun(1, 2, 2))
    assert re.fullmatch(f"torchrun-{DATED}", seat.run)


# Attempts.


def test_each_token_has_one_attempt_and_no_number_is_left_out(tmp_path: Path) -> None:
    """Ranks of several launches that claim at the same moment agree within each launch."""
    tokens = [f"launch-{number % 4}" for number in range(32)]
    together = threading.Barrier(len(tokens))

    def claim(token: str) -> tuple[str, int]:
        together.wait()
        return token, claim_attempt(tmp_path / "run", token)

    with ThreadPoolExecutor(len(tokens)) as pool:
        claimed = set(pool.map(claim, tokens))
    assert sorted(attempt for _, attempt in claimed) == [0, 1, 2, 3]
    assert len({token for token, _ in claimed}) == 4
    left = sorted(path.name for path in (tmp_path / "run" / "attempts").iterdir())
    assert left == ["0.json", "1.json", "2.json", "3.json"]
    content = json.loads((tmp_path / "run" / "attempts" / "0.json").read_text())
    assert content.keys() == {"token", "time"}


def test_attempts_are_claimed_on_a_file_system_without_links(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Where os.link fails, the file is created and then filled."""

    def refuse(*_: object) -> None:
        raise PermissionError("no links here")

    monkeypatch.setattr(os, "link", refuse)
    assert [claim_attempt(tmp_path, token) for token in ("a", "b", "a")] == [0, 1, 0]


def test_an_attempt_file_that_stays_empty_belongs_to_somebody_else(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A process that died while it claimed leaves a number that is not used again."""
    monkeypatch.setattr(claims, "_PATIENCE", 0.05)
    (tmp_path / "attempts").mkdir()
    (tmp_path / "attempts" / "0.json").touch()
    (tmp_path / "attempts" / "1.json").write_text("[]")
    assert claim_attempt(tmp_path, "a") == 2


def test_a_run_folder_that_cannot_be_written_raises(tmp_path: Path) -> None:
    """Claiming an attempt leaves it to the caller what to do without one."""
    (tmp_path / "file").touch()
    with pytest.raises(OSError, match="file"):
        claim_attempt(tmp_path / "file", "a")


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


# The real torchrun.

FAILING_RANK = (
    RANK
    + """
import time
if os.environ["TORCHELASTIC_RESTART_COUNT"] == "0" and place.rank == place.world_size - 1:
    while len(list((root / "out").iterdir())) < place.world_size - 1:
        time.sleep(0.05)
    sys.exit(1)
(root / "out" / f"{os.getpid()}").touch()
if attempt == 0:
    time.sleep(600)
"""
)


def start_torchrun(root: Path, *options: str) -> subprocess.Popen[str]:
    """Start a torchrun whose last rank fails at first, once the others are under way."""
    torchrun_program = shutil.which("torchrun", path=str(Path(sys.executable).parent))
    if torchrun_program is None:
        pytest.skip("torchrun is not installed")
    (root / "out").mkdir(exist_ok=True)
    script = root / "train.py"
    script.write_text(FAILING_RANK)
    environ = {**plain_environ(), "TEST_ROOT": str(root), "OMP_NUM_THREADS": "1"}
    return subprocess.Popen(
        [torchrun_program, "--max-restarts=1", "--monitor-interval=0.1", *options, str(script)],
        env=environ,
        stdout=subprocess.PIPE,
        stderr=subprocess.DEVNULL,
        text=True,
    )


@pytest.mark.torch
@pytest.mark.parametrize("options", [[], ["--rdzv-id=my-job", "--rdzv-backend=c10d"]])
def test_a_real_torchrun_writes_one_run_and_restarts_into_it(
    tmp_path: Path, options: list[str]
) -> None:
    """Two ranks of torchrun, with and without a rendezvous id: one run; restarted: two attempts."""
    if not options:
        options = ["--master-port=0"]
    process = start_torchrun(tmp_path, "--nproc-per-node=2", *options)
    seats = read_seats(process.communicate(timeout=120)[0])
    assert len(runs_of(seats)) == 1
    assert [(s.rank, s.attempt) for s in seats] == [(0, 0), (0, 1), (1, 0), (1, 1)]


@pytest.mark.torch
@pytest.mark.slow
def test_real_torchruns_of_two_nodes_stay_together_over_a_restart(tmp_path: Path) -> None:
    """Two agents meet at a rendezvous; after the failure of one rank both go on in attempt 1."""
    with socket.create_server(("127.0.0.1", 0)) as server:
        endpoint = f"127.0.0.1:{server.getsockname()[1]}"
    options = [
        "--nnodes=2",
        "--nproc-per-node=1",
        "--rdzv-id=my-job",
        "--rdzv-backend=c10d",
        f"--rdzv-endpoint={endpoint}",
    ]
    agents = [start_torchrun(tmp_path, *options) for _ in range(2)]
    seats = read_seats("".join(agent.communicate(timeout=180)[0] for agent in agents))
    assert len(runs_of(seats)) == 1
    assert sorted((s.rank, s.attempt) for s in seats) == [(0, 0), (0, 1), (1, 0), (1, 1)]
