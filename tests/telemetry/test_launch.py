"""Ranks find their run and their attempt, each on its own."""

from __future__ import annotations

import json
import re
from collections.abc import Callable, Mapping
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import pytest

from stepwell.telemetry.launch import Launch, claim_attempt, find_launch
from stepwell.telemetry.rank_info import RankInfo
from tests.harness import environment, run_script
from tests.telemetry.launching import (
    DATED,
    RANK,
    Agent,
    Seat,
    attempts_of,
    runs_of,
    slurm_batch,
    torchrun,
)

SINGLE = RankInfo(rank=0, world_size=1, local_rank=0, node_rank=0, launcher="single")


# One process.


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
    """The id starts with the name, as far as it is valid in a folder name."""
    found = find_single(tmp_path, name="ResNet-50 / Größe: 3×3!")
    assert re.fullmatch(f"resnet-50-grosse-3-3-{DATED}", found.run_id)


def test_an_explicit_id_is_kept_and_the_environment_comes_second(tmp_path: Path) -> None:
    """The argument wins over STEPWELL_RUN_ID; every launch is a separate attempt."""
    environ = {"STEPWELL_RUN_ID": "from-environment"}
    assert find_single(tmp_path, environ, run_id="mine").run_id == "mine"
    launches = [find_single(tmp_path, environ) for _ in range(3)]
    assert {found.run_id for found in launches} == {"from-environment"}
    attempts = [claim_attempt(tmp_path / found.run_id, found.token) for found in launches]
    assert attempts == [0, 1, 2]


def test_a_wrong_id_in_the_environment_is_ignored(tmp_path: Path) -> None:
    """It is a run as without it."""
    assert re.fullmatch(DATED, find_single(tmp_path, {"STEPWELL_RUN_ID": "../x"}).run_id)


# Ranks of one launcher process.


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
    """Three launchers at the same time do not mix their ranks."""
    both = [torchrun(rank, 2, 2) for rank in range(2)]
    agents = [start_agent() for _ in range(3)]
    with ThreadPoolExecutor(3) as pool:
        launches = list(pool.map(lambda agent: agent.launch(*both), agents))
    assert [len(runs_of(seats)) for seats in launches] == [1, 1, 1]
    assert len(set.union(*map(runs_of, launches))) == 3


def test_the_port_tells_launches_of_one_script_apart(start_agent: Callable[[], Agent]) -> None:
    """A script may start several launches at once, and their ranks may arrive in any order."""
    script = start_agent()

    def start(rank: str, port: str) -> str:
        master = {"MASTER_ADDR": "127.0.0.1", "MASTER_PORT": port}
        return script.launch({"RANK": rank, "WORLD_SIZE": "2", **master})[0].run

    first, second = start("0", "29500"), start("0", "29501")
    assert first != second
    assert start("1", "29501") == second
    assert start("1", "29500") == first


def test_a_restart_by_the_same_launcher_is_the_next_attempt(
    start_agent: Callable[[], Agent],
) -> None:
    """When torchrun restarts its ranks, they continue their run as its second attempt."""
    agent = start_agent()
    first = agent.launch(*(torchrun(rank, 2, 2) for rank in range(2)))
    again = agent.launch(
        *(torchrun(rank, 2, 2, TORCHELASTIC_RESTART_COUNT="1") for rank in range(2))
    )
    assert runs_of(again) == runs_of(first)
    assert attempts_of(again) == {1}


@pytest.mark.parametrize("local_size", [2, 1], ids=["one node", "two nodes"])
def test_every_init_of_a_process_is_another_run(
    start_agent: Callable[[], Agent], local_size: int
) -> None:
    """The second init of each rank meets the others' second, and a restart finds both again."""
    agent = start_agent()

    def start(restarts: str) -> list[Seat]:
        more = {"TEST_INITS": "2", "TORCHELASTIC_RESTART_COUNT": restarts}
        # One after the other: rank 0 has asked twice before rank 1 asks for the first time.
        ranks = [torchrun(rank, 2, local_size, **more) for rank in range(2)]
        return [seat for rank in ranks for seat in agent.launch(rank)]

    first, again = start("0"), start("1")
    assert len(runs_of(first)) == 2
    assert [seat.run for seat in first[:2]] == [seat.run for seat in first[2:]]
    assert [(seat.rank, seat.run) for seat in again] == [(seat.rank, seat.run) for seat in first]
    assert (attempts_of(first), attempts_of(again)) == ({0}, {1})


def test_every_init_of_one_process_in_a_job_is_another_run(
    start_agent: Callable[[], Agent],
) -> None:
    """Three inits in a Slurm job are three runs, which the requeued job finds again in order."""
    first = start_agent().launch(slurm_batch(TEST_INITS="3"))
    again = start_agent().launch(slurm_batch(TEST_INITS="3", SLURM_RESTART_COUNT="1"))
    assert [seat.run for seat in again] == [seat.run for seat in first]
    assert len(runs_of(first)) == 3
    assert (attempts_of(first), attempts_of(again)) == ({0}, {1})


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
        variables = {"TEST_ROOT": str(blocked), "TEST_INITS": "3"}
        env = environment(**torchrun(rank, 2, 2), **variables)
        answer = run_script(script, env=env, check=True)
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
