"""The rank of this process in its launch, read from the environment.

Nothing here waits, writes or imports torch: the values come from variables that launchers set, or from
`torch.distributed` if the program has initialised it.
"""

from __future__ import annotations

import re
import sys
from collections.abc import Mapping
from dataclasses import dataclass

# The variables in which launchers pass the rank. Not SLURM_PROCID: a batch script has it too, and so has
# every launcher that the script starts.
RANK_VARIABLES = ("RANK", "OMPI_COMM_WORLD_RANK", "PMI_RANK", "PMIX_RANK")

# A rank that starts the other ranks itself, as Lightning does, passes them its run and attempt in this
# variable.
STARTER = "STEPWELL_STARTER"

# Slurm gives batch scripts and interactive shells step ids from the top of the 32-bit range. A single
# process runs there, whatever the number of tasks.
_FIRST_SPECIAL_STEP = 0xFFFFFFF0


@dataclass(frozen=True)
class RankInfo:
    """The rank of this process, and the launcher that set it.

    `node_rank` is None if the launcher does not provide it. `launcher` is one of "torchrun", "slurm",
    "mpi", "torch.distributed", "env" (RANK and WORLD_SIZE were set by other means), "starter" (rank 0 has
    started this process) and "single".
    """

    rank: int
    world_size: int
    local_rank: int
    node_rank: int | None
    launcher: str


@dataclass(frozen=True)
class SlurmJob:
    """The Slurm job of this process; outside a step, `step` is None and `tasks` is 1."""

    job: str
    cluster: str
    requeues: int
    step: int | None
    tasks: int
    rank: int


def find_rank_info(environ: Mapping[str, str]) -> RankInfo:
    """Return the rank of this process; invalid values count as missing."""
    return (
        _from_rank(environ)
        or _from_starter(environ)
        or _from_mpi(environ)
        or _from_slurm(environ)
        or _from_torch(environ)
        or RankInfo(rank=0, world_size=1, local_rank=0, node_rank=0, launcher="single")
    )


def find_slurm(environ: Mapping[str, str]) -> SlurmJob | None:
    """Return the Slurm job of this process, or None."""
    job = _slurm_job_name(environ)
    if job is None:
        return None
    return SlurmJob(
        job=job,
        cluster=environ.get("SLURM_CLUSTER_NAME", ""),
        requeues=read_count(environ, "SLURM_RESTART_COUNT") or 0,
        step=_slurm_step(environ),
        tasks=_slurm_step_tasks(environ) or 1,
        rank=read_count(environ, "SLURM_PROCID") or 0,
    )


def find_local_size(environ: Mapping[str, str]) -> int | None:
    """Return the number of processes of this launch on this node, or None if unknown."""
    return read_count(
        environ,
        "LOCAL_WORLD_SIZE",
        "OMPI_COMM_WORLD_LOCAL_SIZE",
        "MPI_LOCALNRANKS",
        "PMI_LOCAL_SIZE",
        "LOCAL_SIZE",
    )


def read_count(environ: Mapping[str, str], *names: str) -> int | None:
    """Return the first of these variables that is a number of at least 0, or None."""
    for name in names:
        text = environ.get(name, "").strip()
        if re.fullmatch(r"[0-9]{1,12}", text):
            return int(text)
    return None


def _from_rank(environ: Mapping[str, str]) -> RankInfo | None:
    launcher = "torchrun" if "TORCHELASTIC_RUN_ID" in environ else "env"
    return _make_info(
        launcher,
        rank=read_count(environ, "RANK"),
        world_size=read_count(environ, "WORLD_SIZE"),
        local_rank=read_count(environ, "LOCAL_RANK"),
        local_size=find_local_size(environ),
        node_rank=read_count(environ, "GROUP_RANK", "NODE_RANK"),
    )


def _from_starter(environ: Mapping[str, str]) -> RankInfo | None:
    """Return the rank of a process that rank 0 has started; only the local rank is in the environment."""
    local_rank = read_count(environ, "LOCAL_RANK")
    if STARTER not in environ or not local_rank:
        return None
    return _make_info(
        "starter",
        rank=local_rank,
        world_size=read_count(environ, "WORLD_SIZE"),
        local_rank=local_rank,
        local_size=None,
        node_rank=read_count(environ, "NODE_RANK"),
    )


def _from_mpi(environ: Mapping[str, str]) -> RankInfo | None:
    """Read the variables of Open MPI, then those of MPICH, Intel MPI and Slurm's plugins.

    OMPI_COMM_WORLD_NODE_RANK is not a node rank: it numbers the processes of a node.
    """
    open_mpi = _make_info(
        "mpi",
        rank=read_count(environ, "OMPI_COMM_WORLD_RANK"),
        world_size=read_count(environ, "OMPI_COMM_WORLD_SIZE"),
        local_rank=read_count(environ, "OMPI_COMM_WORLD_LOCAL_RANK"),
        local_size=read_count(environ, "OMPI_COMM_WORLD_LOCAL_SIZE"),
        node_rank=None,
    )
    return open_mpi or _make_info(
        "mpi",
        rank=read_count(environ, "PMI_RANK", "PMIX_RANK"),
        world_size=read_count(environ, "PMI_SIZE") or _slurm_step_tasks(environ),
        local_rank=read_count(environ, "MPI_LOCALRANKID", "PMI_LOCAL_RANK", "SLURM_LOCALID"),
        local_size=read_count(environ, "MPI_LOCALNRANKS", "PMI_LOCAL_SIZE"),
        node_rank=None,
    )


def _from_slurm(environ: Mapping[str, str]) -> RankInfo | None:
    return _make_info(
        "slurm",
        rank=read_count(environ, "SLURM_PROCID"),
        world_size=_slurm_step_tasks(environ),
        local_rank=read_count(environ, "SLURM_LOCALID"),
        local_size=None,
        node_rank=read_count(environ, "SLURM_NODEID"),
    )


def _from_torch(environ: Mapping[str, str]) -> RankInfo | None:
    distributed = sys.modules.get("torch.distributed")
    if distributed is None:
        return None
    try:
        if not (distributed.is_available() and distributed.is_initialized()):
            return None
        rank, world_size = int(distributed.get_rank()), int(distributed.get_world_size())
    except Exception:
        # A half-imported or replaced torch must not break the program.
        return None
    return _make_info(
        "torch.distributed",
        rank=rank,
        world_size=world_size,
        local_rank=read_count(environ, "LOCAL_RANK"),
        local_size=find_local_size(environ),
        node_rank=read_count(environ, "GROUP_RANK", "NODE_RANK"),
    )


def _make_info(
    launcher: str,
    *,
    rank: int | None,
    world_size: int | None,
    local_rank: int | None,
    local_size: int | None,
    node_rank: int | None,
) -> RankInfo | None:
    """Return the rank if it is valid in its world.

    A missing local rank is computed as if ranks were numbered node by node.
    """
    if rank is None or world_size is None or not 0 <= rank < world_size:
        return None
    if local_rank is None:
        local_rank = rank % local_size if local_size else rank
    if node_rank is None and world_size in (1, local_size):
        node_rank = 0
    return RankInfo(rank, world_size, local_rank, node_rank, launcher)


def _slurm_job_name(environ: Mapping[str, str]) -> str | None:
    array = read_count(environ, "SLURM_ARRAY_JOB_ID")
    index = read_count(environ, "SLURM_ARRAY_TASK_ID")
    if array is not None and index is not None:
        return f"{array}_{index}"
    job = read_count(environ, "SLURM_JOB_ID", "SLURM_JOBID")
    return None if job is None else str(job)


def _slurm_step(environ: Mapping[str, str]) -> int | None:
    step = read_count(environ, "SLURM_STEP_ID", "SLURM_STEPID")
    return step if step is not None and step < _FIRST_SPECIAL_STEP else None


def _slurm_step_tasks(environ: Mapping[str, str]) -> int | None:
    """Return the number of tasks of the step, or None outside a step.

    A batch script has SLURM_PROCID=0 and SLURM_NTASKS=N too: N tasks *could* run, but only one does.
    """
    if _slurm_step(environ) is not None:
        return read_count(environ, "SLURM_STEP_NUM_TASKS", "SLURM_NTASKS", "SLURM_NPROCS")
    if read_count(environ, "SLURM_STEP_ID", "SLURM_STEPID") is None:
        return read_count(environ, "SLURM_STEP_NUM_TASKS")
    return None
