"""The run and the attempt of this process, found by every rank on its own.

The first rank of a launch writes the run id into the ledger of its group, under `<root>/.launches`, and the
others read it there: no collective operation, no lock, no wait.

A *group* is what stays the same when a launch is restarted or requeued: the Slurm job and the command line,
the launcher process, a rendezvous id. Its *anchor* distinguishes one launch of the group from the others:
the launcher process, the Slurm step, an MPI namespace. Ranks on many nodes without any of these share the
master address and a similar start time.
"""

from __future__ import annotations

import base64
import hashlib
import itertools
import json
import os
import re
import time
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from pathlib import Path

from stepwell._core.environment import warn_setting
from stepwell.telemetry.claims import LaunchRecord, Ledger, create_claim, load_claim
from stepwell.telemetry.os_process import find_launcher, make_process_key, read_start_time
from stepwell.telemetry.rank_info import (
    STARTER,
    RankInfo,
    SlurmJob,
    find_local_size,
    find_slurm,
    read_count,
)
from stepwell.telemetry.run_names import check_run_id, make_run_id, make_slug

# Longest time between the starts of the ranks of a launch, including differences between clocks of nodes.
_SAME_LAUNCH_SECONDS = 120.0

# In every round without a seat another process got one; more rounds than this mean a broken disk.
_MOST_ROUNDS = 1000

# Number of calls for a launch in this process, by group: each call is for another run.
_turns: dict[tuple[str, int], itertools.count[int]] = {}

_RANK_OPTION = (
    r"--?(?:(?:local|global|node|machine|group|process)[-_])?rank|--?process[-_](?:id|index)"
)
_RANK_OVERRIDE = r"\+*(?:[\w.]+\.)?(?:local|global|node|machine)_rank=\d+"


@dataclass(frozen=True)
class Launch:
    """The run of this process, and a token that all ranks of the launch share, and no other launch has."""

    run_id: str
    token: str


def find_launch(
    root: Path,
    rank_info: RankInfo,
    *,
    run_id: str | None,
    name: str | None,
    environ: Mapping[str, str],
    argv: Sequence[str],
) -> Launch:
    """Return the run and launch of this process in the runs folder `root`.

    The run id is the argument, STEPWELL_RUN_ID, the id of the launch, or a new one, in this order. Another
    call in the same process is for another run. Raise ValueError if the id cannot name a folder. A root that
    is not writable raises nothing.
    """
    if rank_info.launcher == "starter":
        launch = _find_starter(root, environ)
        if launch is not None:
            return launch
    explicit = _find_explicit_id(run_id, environ)
    slug = make_slug(name)
    group = find_group(rank_info, environ, argv)
    if group is None:
        return Launch(explicit or make_run_id(slug), os.urandom(8).hex())
    turn = next(_turns.setdefault((group.key, group.requeues), itertools.count()))
    try:
        ledger = Ledger(root / ".launches" / group.key, group.requeues)
        record = _join(ledger, group, rank_info.rank, turn, explicit, slug)
    except OSError:
        return _work_out_launch(group, turn, explicit, slug)
    return Launch(explicit or record.run_id, make_digest(record.token, _attempt_mark(group)))


def claim_attempt(run_dir: Path, token: str) -> int:
    """Return the attempt number of this launch in the run folder, the same on all its ranks.

    The first rank of a launch takes the next free number. Raise OSError if the folder is not writable.
    """
    attempts = run_dir / "attempts"
    attempts.mkdir(parents=True, exist_ok=True)
    attempt = 0
    while True:
        path = attempts / f"{attempt}.json"
        if not path.exists() and create_claim(path, {"token": token, "time": time.time()}):
            return attempt
        content = load_claim(path)
        if content is not None and content.get("token") == token:
            return attempt
        attempt += 1


def _find_starter(root: Path, environ: Mapping[str, str]) -> Launch | None:
    """Return the launch of the rank that has started this process."""
    run_id, _, attempt = environ.get(STARTER, "").rpartition(":")
    try:
        claim = load_claim(root / check_run_id(run_id) / "attempts" / f"{int(attempt)}.json")
    except (OSError, ValueError):
        return None
    token = None if claim is None else claim.get("token")
    return Launch(run_id, token) if isinstance(token, str) else None


def _find_explicit_id(run_id: str | None, environ: Mapping[str, str]) -> str | None:
    if run_id is not None:
        return check_run_id(run_id)
    from_environ = environ.get("STEPWELL_RUN_ID")
    if not from_environ:
        return None
    try:
        return check_run_id(from_environ)
    except ValueError:
        near = make_slug(from_environ)
        example = f", such as {near}" if near else ""
        warn_setting("STEPWELL_RUN_ID", from_environ, f"letters, digits and . _ + = @ -{example}")
        return None


def _join(
    ledger: Ledger, group: LaunchGroup, rank: int, turn: int, explicit: str | None, slug: str
) -> LaunchRecord:
    """Return the record of this launch, writing it if no other rank has."""
    for _ in range(_MOST_ROUNDS):
        records = ledger.read()
        for number, record in _find_candidates(records, group, turn):
            if _take_seat(ledger, group, number, rank):
                return record
        ordinal, run_id = _find_earlier_run(ledger, records, group, turn)
        run_id = explicit or run_id or _make_id(group, ordinal, slug)
        token = os.urandom(8).hex()
        record = LaunchRecord(run_id, token, group.anchor, turn, ordinal, group.started)
        # Whichever rank's record got the number, the next round reads it.
        ledger.add(len(records), record)
    raise OSError("the ledger of launches does not keep what is written to it")


def _find_candidates(
    records: Sequence[LaunchRecord | None], group: LaunchGroup, turn: int
) -> list[tuple[int, LaunchRecord]]:
    """Return the records that may belong to this launch, with their numbers, most likely first."""
    candidates = [
        (number, record)
        for number, record in enumerate(records)
        if record is not None and record.anchor == group.anchor and record.turn == turn
    ]
    if not group.near:
        return candidates

    def distance(candidate: tuple[int, LaunchRecord]) -> float:
        return abs(candidate[1].started - group.started)

    return sorted((c for c in candidates if distance(c) <= _SAME_LAUNCH_SECONDS), key=distance)


def _take_seat(ledger: Ledger, group: LaunchGroup, number: int, rank: int) -> bool:
    """Join a record, unless another process of this rank has: then it is not our launch."""
    if group.alone:
        return True
    if not ledger.take_seat(number, rank, _attempt_mark(group)):
        return False
    if group.agent:
        ledger.mark(number, group.agent)
    return True


def _find_earlier_run(
    ledger: Ledger, records: Sequence[LaunchRecord | None], group: LaunchGroup, turn: int
) -> tuple[int, str | None]:
    """Return the ordinal of the run for a new record, and its id if the run exists."""
    if group.agent:
        same_turn = [(n, record) for n, record in enumerate(records) if record]
        same_turn = [(n, record) for n, record in reversed(same_turn) if record.turn == turn]
        for number, record in same_turn:
            if ledger.is_marked(number, group.agent):
                return record.ordinal, record.run_id
        if group.restarts and same_turn:
            return same_turn[0][1].ordinal, same_turn[0][1].run_id
    ordinal = 1 + max((record.ordinal for record in records if record), default=-1)
    before = ledger.find_before_requeue(ordinal)
    return ordinal, before.run_id if before else None


def _attempt_mark(group: LaunchGroup) -> int:
    """Return a number that distinguishes the attempts of one record.

    Agents on several nodes count only the restarts that they caused themselves, so the counts differ between
    nodes; there, each attempt has its own record.
    """
    return 0 if group.near else group.restarts


def _make_id(group: LaunchGroup, ordinal: int, slug: str) -> str:
    if group.dated:
        return make_run_id(slug or group.base)
    return "-".join(part for part in (slug, group.base, str(ordinal or "")) if part)


def _work_out_launch(group: LaunchGroup, turn: int, explicit: str | None, slug: str) -> Launch:
    """Return the launch that all ranks compute without a ledger, if the root is not writable."""
    if group.dated:
        parts = (slug or group.base or "run", make_digest(group.key, group.anchor)[:10])
    else:
        parts = (slug, group.base)
    run_id = "-".join(part for part in (*parts, str(turn or "")) if part)
    token = make_digest(group.key, group.anchor, group.requeues, group.restarts, turn)
    return Launch(explicit or run_id, token)


@dataclass(frozen=True)
class LaunchGroup:
    """The group of launches of this process, and the position of its own launch in it.

    `base` is the start of the ids of the group's runs; `dated` means that time and random letters complete
    them, otherwise they depend on the base alone. `requeues` and `restarts` are the counts of the launchers.
    """

    key: str
    anchor: str
    base: str
    dated: bool
    requeues: int = 0
    restarts: int = 0
    # The launch is a single process.
    alone: bool = False
    # The next launch may have the same anchor: the time since `started` decides.
    near: bool = False
    started: float = 0.0
    # The launcher process on this node, if it outlives its ranks and restarts them.
    agent: str = ""


def find_group(
    rank_info: RankInfo, environ: Mapping[str, str], argv: Sequence[str]
) -> LaunchGroup | None:
    """Return the group of this process, or None if it is on its own."""
    slurm = find_slurm(environ)
    command = make_digest(*drop_rank_options(argv))
    if rank_info.world_size == 1 and rank_info.launcher != "torchrun":
        if slurm is None:
            return None
        group = _make_slurm_group(slurm, command, anchor=make_process_key(os.getpid()))
        return replace(group, alone=True)
    if slurm and _started_by_srun(slurm, rank_info):
        return _make_slurm_group(slurm, command, anchor="step", step=True)
    anchor = _find_certain_anchor(rank_info, environ)
    if anchor is None:
        return _find_near_group(rank_info, environ, slurm, command)
    if slurm:
        group = _make_slurm_group(slurm, command, anchor=anchor)
    else:
        group = LaunchGroup(
            key=make_digest(anchor), anchor=anchor, base=_base(rank_info), dated=True
        )
    return replace(group, restarts=_count_restarts(rank_info, environ))


def drop_rank_options(argv: Sequence[str]) -> list[str]:
    """Return the command line without the options that differ between ranks."""
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


def _make_slurm_group(
    slurm: SlurmJob, command: str, *, anchor: str, step: bool = False
) -> LaunchGroup:
    job = f"{slurm.job}.{slurm.step}" if step and slurm.step is not None else slurm.job
    return LaunchGroup(
        key=make_digest("slurm", slurm.cluster, job, command),
        anchor=anchor,
        base=f"slurm-{job}-{command[:6]}",
        dated=False,
        requeues=slurm.requeues,
    )


def _started_by_srun(slurm: SlurmJob, rank_info: RankInfo) -> bool:
    """Return whether the tasks of the step are the ranks, rather than launchers of ranks."""
    same = slurm.tasks == rank_info.world_size and slurm.rank == rank_info.rank
    return same and rank_info.launcher != "torchrun"


def _find_certain_anchor(rank_info: RankInfo, environ: Mapping[str, str]) -> str | None:
    """Return a value that only the ranks of this launch share, or None if there is none."""
    if _is_on_one_node(rank_info, environ):
        # A script may start several launches at once; each has its own port.
        port = environ.get("MASTER_PORT", "") if rank_info.launcher == "env" else ""
        return f"{make_process_key(find_launcher(environ))}|{port}"
    namespace = environ.get("PMIX_NAMESPACE")
    if rank_info.launcher == "mpi" and namespace:
        return f"{namespace}|{rank_info.world_size}"
    return None


def _is_on_one_node(rank_info: RankInfo, environ: Mapping[str, str]) -> bool:
    master = environ.get("MASTER_ADDR", "")
    if rank_info.launcher == "torch.distributed":
        # Rank 0 may be the parent of the others: they share only the master address.
        return not master
    local_size = find_local_size(environ)
    if local_size is not None:
        return local_size >= rank_info.world_size
    return rank_info.launcher == "mpi" or not master or _is_loopback(master)


def _find_near_group(
    rank_info: RankInfo, environ: Mapping[str, str], slurm: SlurmJob | None, command: str
) -> LaunchGroup:
    """Return the group of ranks that share no unique value."""
    master = _find_master(environ)
    anchor = f"{master}|{rank_info.world_size}"
    if slurm:
        # mpirun starts the ranks of its own node outside the step of the others.
        step = slurm.tasks > 1 and rank_info.launcher != "mpi"
        group = _make_slurm_group(slurm, command, anchor=anchor, step=step)
    else:
        key = _make_near_key(rank_info, environ, master, command)
        group = LaunchGroup(key=key, anchor=anchor, base=_base(rank_info), dated=True)
    # Ranks started late in a program's life meet when torch.distributed is initialised.
    started = time.time() if rank_info.launcher == "torch.distributed" else read_start_time()
    group = replace(group, near=True, started=started)
    if rank_info.launcher != "torchrun":
        return group
    agent = make_digest(make_process_key(find_launcher(environ)))[:16]
    return replace(group, agent=agent, restarts=_count_restarts(rank_info, environ))


def _make_near_key(
    rank_info: RankInfo, environ: Mapping[str, str], master: str, command: str
) -> str:
    rendezvous = environ.get("TORCHELASTIC_RUN_ID", "none")
    if rank_info.launcher == "torchrun":
        # With a rendezvous id, rank 0 and the master address may move to another node.
        where = rendezvous if rendezvous != "none" else master
        return make_digest("torchrun", where, command)
    # Command lines may differ by more than the rank here: Lightning adds to those of its children.
    return make_digest(rank_info.launcher, master or command)


def _find_master(environ: Mapping[str, str]) -> str:
    address = environ.get("MASTER_ADDR", "")
    if not address:
        return ""
    node = make_process_key(1) if _is_loopback(address) else ""
    return f"{node}|{address}|{environ.get('MASTER_PORT', '')}"


def _is_loopback(address: str) -> bool:
    return address in ("localhost", "::1") or address.startswith("127.")


def _count_restarts(rank_info: RankInfo, environ: Mapping[str, str]) -> int:
    if rank_info.launcher != "torchrun":
        return 0
    return read_count(environ, "TORCHELASTIC_RESTART_COUNT") or 0


def _base(rank_info: RankInfo) -> str:
    return rank_info.launcher if rank_info.launcher in ("torchrun", "mpi") else ""
