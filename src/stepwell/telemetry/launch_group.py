"""What the ranks of one launch have in common, worked out by each rank for itself.

A *group* is what stays the same when a launch is restarted or requeued: the Slurm job and the
command line, the launcher process, a rendezvous id. Its *anchor* tells one launch of the group
from the others: the launcher process, the Slurm step, an MPI namespace. Ranks on many nodes
without any of these have the master address, and that they started at about the same time.
"""

from __future__ import annotations

import base64
import hashlib
import json
import os
import re
import time
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace

from stepwell.telemetry.os_process import find_launcher, make_process_key, read_start_time
from stepwell.telemetry.place import Place, SlurmJob, find_local_size, find_slurm, read_count

_RANK_OPTION = (
    r"--?(?:(?:local|global|node|machine|group|process)[-_])?rank|--?process[-_](?:id|index)"
)
_RANK_OVERRIDE = r"\+*(?:[\w.]+\.)?(?:local|global|node|machine)_rank=\d+"


@dataclass(frozen=True)
class Group:
    """The group of launches this process belongs to, and its own launch's place in it.

    `base` starts the ids of the group's runs; `dated` says that time and chance complete them,
    else they follow from the base alone. `requeues` and `restarts` are the launchers' counts.
    """

    key: str
    anchor: str
    base: str
    dated: bool
    requeues: int = 0
    restarts: int = 0
    # One process is all of the launch.
    alone: bool = False
    # The next launch may have the same anchor: the time since `started` decides.
    near: bool = False
    started: float = 0.0
    # The launcher process on this node, where it outlives its ranks and starts them again.
    agent: str = ""


def find_group(place: Place, environ: Mapping[str, str], argv: Sequence[str]) -> Group | None:
    """Return the group of this process, or None for one that belongs with no other."""
    slurm = find_slurm(environ)
    command = make_digest(*drop_rank_options(argv))
    if place.world_size == 1 and place.launcher != "torchrun":
        return _make_lone_group(slurm, command) if slurm else None
    if slurm and _started_by_srun(slurm, place):
        return _make_slurm_group(slurm, command, anchor="step", step=True)
    anchor = _find_certain_anchor(place, environ)
    if anchor is None:
        return _find_near_group(place, environ, slurm, command)
    if slurm:
        group = _make_slurm_group(slurm, command, anchor=anchor)
    else:
        group = Group(key=make_digest(anchor), anchor=anchor, base=_base(place), dated=True)
    return replace(group, restarts=_count_restarts(place, environ))


def drop_rank_options(argv: Sequence[str]) -> list[str]:
    """Return the command line without what differs between the ranks of one launch."""
    kept: list[str] = []
    skip_number = False
    for argument in argv:
        if skip_number and argument.isdecimal():
            skip_number = False
            continue
        option, equals, _ = argument.partition("=")
        is_rank = re.fullmatch(_RANK_OPTION, option) is not None
        skip_number = is_rank and not equals
        if not is_rank and not re.fullmatch(_RANK_OVERRIDE, argument):
            kept.append(argument)
    return kept


def make_digest(*parts: object) -> str:
    """Return a hash of these values, safe in a file name."""
    data = hashlib.sha256(json.dumps(parts).encode()).digest()
    return base64.b32encode(data[:20]).decode().lower()


def _make_lone_group(slurm: SlurmJob, command: str) -> Group:
    group = _make_slurm_group(slurm, command, anchor=make_process_key(os.getpid()))
    return replace(group, alone=True)


def _make_slurm_group(slurm: SlurmJob, command: str, *, anchor: str, step: bool = False) -> Group:
    job = f"{slurm.job}.{slurm.step}" if step and slurm.step is not None else slurm.job
    return Group(
        key=make_digest("slurm", slurm.cluster, job, command),
        anchor=anchor,
        base=f"slurm-{job}-{command[:6]}",
        dated=False,
        requeues=slurm.requeues,
    )


def _started_by_srun(slurm: SlurmJob, place: Place) -> bool:
    """Whether the step's tasks are the ranks, rather than launchers that each start some."""
    same = slurm.tasks == place.world_size and slurm.rank == place.rank
    return same and place.launcher != "torchrun"


def _find_certain_anchor(place: Place, environ: Mapping[str, str]) -> str | None:
    """Return what only the ranks of this launch share, or None if there is no such thing."""
    if _is_on_one_node(place, environ):
        # A script may start several launches at once; each has a port of its own.
        port = environ.get("MASTER_PORT", "") if place.launcher == "env" else ""
        return f"{make_process_key(find_launcher(environ))}|{port}"
    namespace = environ.get("PMIX_NAMESPACE")
    if place.launcher == "mpi" and namespace:
        return f"{namespace}|{place.world_size}"
    return None


def _is_on_one_node(place: Place, environ: Mapping[str, str]) -> bool:
    master = environ.get("MASTER_ADDR", "")
    if place.launcher == "torch.distributed":
        # Rank 0 may be the parent of the others: only the master address is common to them.
        return not master
    local_size = find_local_size(environ)
    if local_size is not None:
        return local_size >= place.world_size
    return place.launcher == "mpi" or not master or _is_loopback(master)


def _find_near_group(
    place: Place, environ: Mapping[str, str], slurm: SlurmJob | None, command: str
) -> Group:
    """Return the group of ranks that have no certain mark in common."""
    master = _find_master(environ)
    anchor = f"{master}|{place.world_size}"
    if slurm:
        # mpirun starts the ranks of its own node outside of the step that holds the others.
        step = slurm.tasks > 1 and place.launcher != "mpi"
        group = _make_slurm_group(slurm, command, anchor=anchor, step=step)
    else:
        key = _make_near_key(place, environ, master, command)
        group = Group(key=key, anchor=anchor, base=_base(place), dated=True)
    # Who starts ranks late in a program's life has them meet when torch.distributed is set up.
    started = time.time() if place.launcher == "torch.distributed" else read_start_time()
    group = replace(group, near=True, started=started)
    if place.launcher != "torchrun":
        return group
    agent = make_digest(make_process_key(find_launcher(environ)))[:16]
    return replace(group, agent=agent, restarts=_count_restarts(place, environ))


def _make_near_key(place: Place, environ: Mapping[str, str], master: str, command: str) -> str:
    rendezvous = environ.get("TORCHELASTIC_RUN_ID", "none")
    if place.launcher == "torchrun":
        # With a rendezvous id, rank 0 and the master address may move to another node.
        where = rendezvous if rendezvous != "none" else master
        return make_digest("torchrun", where, command)
    # Command lines may differ by more than the rank here: Lightning adds to those of its children.
    return make_digest(place.launcher, master or command)


def _find_master(environ: Mapping[str, str]) -> str:
    address = environ.get("MASTER_ADDR", "")
    if not address:
        return ""
    node = make_process_key(1) if _is_loopback(address) else ""
    return f"{node}|{address}|{environ.get('MASTER_PORT', '')}"


def _is_loopback(address: str) -> bool:
    return address in ("localhost", "::1") or address.startswith("127.")


def _count_restarts(place: Place, environ: Mapping[str, str]) -> int:
    if place.launcher != "torchrun":
        return 0
    return read_count(environ, "TORCHELASTIC_RESTART_COUNT") or 0


def _base(place: Place) -> str:
    return place.launcher if place.launcher in ("torchrun", "mpi") else ""
