"""A process finds its place among the others in what its launcher set."""

from __future__ import annotations

from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from stepwell.telemetry.rank_info import RANK_VARIABLES, RankInfo, find_rank_info
from tests.harness import run_script
from tests.telemetry.launching import slurm_batch, slurm_step, torchrun

SINGLE = RankInfo(rank=0, world_size=1, local_rank=0, node_rank=0, launcher="single")


@pytest.mark.parametrize(
    ("environ", "place"),
    [
        ({}, SINGLE),
        (torchrun(5, 8, 4), RankInfo(5, 8, 1, 1, "torchrun")),
        ({"RANK": "1", "WORLD_SIZE": "2", "LOCAL_RANK": "1"}, RankInfo(1, 2, 1, None, "env")),
        ({"RANK": "5", "WORLD_SIZE": "8", "LOCAL_WORLD_SIZE": "4"}, RankInfo(5, 8, 1, None, "env")),
        (
            {
                "OMPI_COMM_WORLD_RANK": "3",
                "OMPI_COMM_WORLD_SIZE": "4",
                "OMPI_COMM_WORLD_LOCAL_RANK": "1",
                "OMPI_COMM_WORLD_LOCAL_SIZE": "2",
                "OMPI_COMM_WORLD_NODE_RANK": "1",
            },
            RankInfo(3, 4, 1, None, "mpi"),
        ),
        (
            {"PMI_RANK": "2", "PMI_SIZE": "4", "MPI_LOCALRANKID": "0"},
            RankInfo(2, 4, 0, None, "mpi"),
        ),
        (
            {k: v for k, v in slurm_step(1, 2).items() if k != "SLURM_PROCID"} | {"PMIX_RANK": "1"},
            RankInfo(1, 2, 1, None, "mpi"),
        ),
        (slurm_step(1, 2), RankInfo(1, 2, 1, 0, "slurm")),
        ({"SLURM_PROCID": "1", "SLURM_STEP_NUM_TASKS": "2"}, RankInfo(1, 2, 1, None, "slurm")),
        (slurm_step(0, 2) | torchrun(5, 8, 4), RankInfo(5, 8, 1, 1, "torchrun")),
    ],
)
def test_the_place_comes_from_what_the_launcher_set(
    environ: dict[str, str], place: RankInfo
) -> None:
    """Each launcher's own variables give the rank, with torchrun's before MPI's and Slurm's."""
    assert find_rank_info(environ) == place


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
    assert find_rank_info(environ) == SINGLE


@given(
    st.dictionaries(
        st.sampled_from([*RANK_VARIABLES, "WORLD_SIZE", "LOCAL_RANK", "PMI_SIZE", "SLURM_NTASKS"]),
        st.text(),
    )
)
def test_no_environment_breaks_the_search(environ: dict[str, str]) -> None:
    """Whatever the variables hold, the rank is one of the world's."""
    place = find_rank_info(environ)
    assert 0 <= place.rank < place.world_size


@pytest.mark.torch
def test_an_initialised_torch_distributed_tells_the_rank(tmp_path: Path) -> None:
    """Without variables, the rank is the one that the program gave to init_process_group."""
    pytest.importorskip("torch")
    script = (
        "import os, torch.distributed as dist\n"
        "from stepwell.telemetry.rank_info import find_rank_info\n"
        "print(find_rank_info({}).launcher)\n"
        f"store = dist.FileStore({str(tmp_path / 'store')!r}, 1)\n"
        "dist.init_process_group('gloo', store=store, rank=0, world_size=1)\n"
        "print(find_rank_info({}).launcher)\n"
        "dist.destroy_process_group()\n"
    )
    answer = run_script(script, check=True)
    assert answer.stdout.split() == ["single", "torch.distributed"]
