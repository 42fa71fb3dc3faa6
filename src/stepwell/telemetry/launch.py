"""Which run and which attempt this process belongs to, found by every rank on its own.

The first rank of a launch to arrive writes the run id into the ledger of its group, under
`<root>/.launches`, and the others read it there: no collective, no lock, and nobody waits.
"""

from __future__ import annotations

import itertools
import os
import time
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path

from stepwell.journal.settings import warn_setting
from stepwell.telemetry.claims import Ledger, Record, create_claim, load_claim
from stepwell.telemetry.launch_group import Group, find_group, make_digest
from stepwell.telemetry.place import STARTER, Place, find_place
from stepwell.telemetry.run_id import check_run_id, make_run_id, make_slug

__all__ = ["Launch", "Place", "check_run_id", "claim_attempt", "find_launch", "find_place"]

# How far apart the ranks of a launch may start, clocks of different nodes included.
_SAME_LAUNCH_SECONDS = 120.0

# Every round that finds no seat has seen another process get one; more than this is a broken disk.
_MOST_ROUNDS = 1000

# How often this process has looked for its launch, by group: each time is for another run.
_turns: dict[tuple[str, int], itertools.count[int]] = {}


@dataclass(frozen=True)
class Launch:
    """The run this process belongs to, and a token for the launch.

    All ranks of one launch have the same token, and no other launch has it.
    """

    run_id: str
    token: str


def find_launch(
    root: Path,
    place: Place,
    *,
    run_id: str | None,
    name: str | None,
    environ: Mapping[str, str],
    argv: Sequence[str],
) -> Launch:
    """Return the run and launch of this process in the runs folder `root`.

    The run id is the argument, else STEPWELL_RUN_ID, else it follows from the launch, else it is
    new. Asking again in the same process is for another run. An id that cannot name a folder is
    a ValueError; a root that cannot be written to raises nothing.
    """
    if place.launcher == "starter":
        told = _find_starter(root, environ)
        if told is not None:
            return told
    explicit = _find_explicit_id(run_id, environ)
    slug = make_slug(name)
    group = find_group(place, environ, argv)
    if group is None:
        return Launch(explicit or make_run_id(slug), os.urandom(8).hex())
    turn = next(_turns.setdefault((group.key, group.requeues), itertools.count()))
    try:
        ledger = Ledger(root / ".launches" / group.key, group.requeues)
        record = _join(ledger, group, place.rank, turn, explicit, slug)
    except OSError:
        return _work_out_launch(group, turn, explicit, slug)
    return Launch(explicit or record.run_id, make_digest(record.token, _attempt_mark(group)))


def claim_attempt(run_dir: Path, token: str) -> int:
    """Return the number of this launch's attempt in the run folder, the same on all of its ranks.

    The first rank of a launch takes the next free number. An OSError passes.
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
    ledger: Ledger, group: Group, rank: int, turn: int, explicit: str | None, slug: str
) -> Record:
    """Return the record of this launch, writing it if no other rank has."""
    for _ in range(_MOST_ROUNDS):
        records = ledger.read()
        for number, record in _find_candidates(records, group, turn):
            if _take_seat(ledger, group, number, rank):
                return record
        ordinal, run_id = _find_earlier_run(ledger, records, group, turn)
        run_id = explicit or run_id or _make_id(group, ordinal, slug)
        token = os.urandom(8).hex()
        record = Record(run_id, token, group.anchor, turn, ordinal, group.started)
        # Whether this or another rank's record got the number, the next round reads it.
        ledger.add(len(records), record)
    raise OSError("what is written into the ledger of launches does not stay there")


def _find_candidates(
    records: Sequence[Record | None], group: Group, turn: int
) -> list[tuple[int, Record]]:
    """Return the records that may be this launch's, with their numbers, the likeliest first."""
    found = [
        (number, record)
        for number, record in enumerate(records)
        if record is not None and record.anchor == group.anchor and record.turn == turn
    ]
    if not group.near:
        return found

    def distance(candidate: tuple[int, Record]) -> float:
        return abs(candidate[1].started - group.started)

    return sorted((c for c in found if distance(c) <= _SAME_LAUNCH_SECONDS), key=distance)


def _take_seat(ledger: Ledger, group: Group, number: int, rank: int) -> bool:
    """Join a record unless another process of the same rank has: then it is not our launch."""
    if group.alone:
        return True
    if not ledger.take_seat(number, rank, _attempt_mark(group)):
        return False
    if group.agent:
        ledger.mark(number, group.agent)
    return True


def _find_earlier_run(
    ledger: Ledger, records: Sequence[Record | None], group: Group, turn: int
) -> tuple[int, str | None]:
    """Return which of the group's runs a new record is for, and its id if it began before."""
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


def _attempt_mark(group: Group) -> int:
    """Return what tells the attempts of one record apart.

    Agents on several nodes count only the restarts that they caused themselves, so the count is
    no common mark; there, each attempt has a record of its own.
    """
    return 0 if group.near else group.restarts


def _make_id(group: Group, ordinal: int, slug: str) -> str:
    if group.dated:
        return make_run_id(slug or group.base)
    return "-".join(part for part in (slug, group.base, str(ordinal or "")) if part)


def _work_out_launch(group: Group, turn: int, explicit: str | None, slug: str) -> Launch:
    """Return what all ranks arrive at without a ledger, where the root cannot be written to."""
    if group.dated:
        parts = (slug or group.base or "run", make_digest(group.key, group.anchor)[:10])
    else:
        parts = (slug, group.base)
    run_id = "-".join(part for part in (*parts, str(turn or "")) if part)
    token = make_digest(group.key, group.anchor, group.requeues, group.restarts, turn)
    return Launch(explicit or run_id, token)
