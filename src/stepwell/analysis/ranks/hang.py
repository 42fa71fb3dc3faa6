"""Hangs: which ranks wait in which operation, for how long, and which ranks never arrived."""

from __future__ import annotations

from dataclasses import dataclass, replace
from typing import Any

from stepwell._core.text import duration
from stepwell.analysis.ranks.history import SpanHistory, TypicalDurations, read_typical_durations
from stepwell.analysis.ranks.stacks import MAIN, Stack, stacks
from stepwell.analysis.timeline.phases import phase_of_span
from stepwell.journal.document import status_of
from stepwell.reading import RecordedRun

AFTER_S = 10.0
"""Seconds that a rank must be in a span before it may count as hanging."""
HEARTBEATS = 2.0
"""A rank whose last heartbeat is this many intervals older than that of the others ended before them."""
PASSES = ("forward", "backward", "optimizer")
"""Phases that may contain collectives without a span of their own."""
MESSAGES = ("send", "receive")
"""Operations between two ranks, each the counterpart of the other."""


@dataclass(frozen=True)
class Waiting:
    """Ranks that wait in spans of one name, at one step."""

    name: str
    step: int | None
    phase: str | None
    ranks: tuple[int, ...]
    since_ns: int
    """When the first of them began to wait."""
    seconds: float
    """How long the first of them has waited."""
    number: int | None
    """Collectives that each of them began before; None if these differ, or outside collectives."""
    place: str | None = None
    """The line of Python code that the first of them is at, if recorded."""


@dataclass(frozen=True)
class Missing:
    """A rank that the others wait for."""

    rank: int
    status: str
    inside: tuple[str, ...]
    """The spans that it is in instead, the outermost first."""
    seconds: float | None
    """Time in the innermost span, or since its last span ended; None if it has no span."""
    last: str | None
    """The span that ended last, if it is in none."""
    place: str | None = None
    """The line of Python code that it is at, if recorded."""
    ended_s: float | None = None
    """How long before the last heartbeat of the others it ended; None if it is running."""


@dataclass(frozen=True)
class Hang:
    """Ranks that wait, and ranks that never arrived. ``missing`` is empty if all are there."""

    step: int | None
    attempt: int
    collective: str | None
    """The collective that they wait in; None if it is another operation."""
    waiting: tuple[Waiting, ...]
    missing: tuple[Missing, ...]
    ranks: int
    """Number of ranks of the run."""

    @property
    def is_complete(self) -> bool:
        """Whether all ranks are in the same operation of the same step."""
        return len(self.waiting) == 1 and len(self.waiting[0].ranks) == self.ranks

    @property
    def operations(self) -> tuple[str, ...]:
        """The operations, if ranks wait for each other in different ones; else empty."""
        if self.missing or any(group.phase != "communication" for group in self.waiting):
            return ()
        names = tuple(dict.fromkeys(_operation(group.name) for group in self.waiting))
        return names if self.collective is not None and len(names) > 1 else ()

    @property
    def sentence(self) -> str:
        """The hang in one sentence."""
        if self.operations:
            return self._in_different_operations()
        first = self.waiting[0]
        text = f"{_have_been(first)} in {first.name} for {duration(first.seconds * 1e9)}"
        if self.step is not None:
            text += f" (step {self.step})"
        if first.place is not None and not self.missing:
            text += f", at {first.place}"
        for missing in self.missing[:3]:
            text += f"; rank {missing.rank} never arrived: {_whereabouts(missing)}"
        if len(self.missing) > 3:
            text += f"; nor did {len(self.missing) - 3} more"
        for other in self.waiting[1:] if not self.missing else ():
            text += f"; {_ranks(other.ranks)} in {other.name} for {duration(other.seconds * 1e9)}"
            text += f" (step {other.step})" if other.step not in (None, self.step) else ""
        return text

    def _in_different_operations(self) -> str:
        first, *others = self.waiting
        text = f"{_have_been(first)} in {_operation_words(first)}"
        for other in others[:3]:
            text += f", {_ranks(other.ranks)} in {_operation_words(other)}"
        if set(self.operations).issubset(MESSAGES):
            return text
        return f"{text}: the ranks are in different operations"


def hang(
    run: RecordedRun,
    *,
    after_s: float = AFTER_S,
    open_stacks: list[Stack] | None = None,
    history: list[SpanHistory] | None = None,
) -> Hang | None:
    """Return what hangs, or hung when the run was killed; None if no span takes longer than it may.

    The limits come from the run itself. Ranks in a collective hang if they wait longer than ever before,
    unless the ranks that they wait for are busy: starting, validating or saving for no longer than usual.

    Args:
        run: the run.
        after_s: seconds that a rank must be in a span to count.
        open_stacks: the stacks, if they have been read already.
        history: the spans of each process so far, if they have been read already.
    """
    threads = stacks(run) if open_stacks is None else open_stacks
    mains = [s for s in threads if s.role == "main" and s.thread == MAIN]
    inside = [s for s in mains if s.innermost is not None and s.innermost.seconds >= after_s]
    inside = [s for s in inside if s.status in ("running", "killed")]
    if not inside:
        return None
    attempt = mains[0].attempt
    typical = read_typical_durations(run, attempt, history)
    waiting = [s for s in inside if _phase(s) == "communication"]
    if not waiting and len(mains) > 1:
        # The collectives of DDP and FSDP are part of the passes.
        waiting = [s for s in inside if _phase(s) in PASSES and typical.is_too_long(s)]
    stuck = [s for s in inside if typical.is_too_long(s)]
    if not waiting and not stuck:
        return None
    documents = [d for d in run.documents() if d["attempt"] == attempt and d["role"] != "worker"]
    missing = _missing(documents, mains, waiting, typical) if waiting else []
    if missing and _is_in_vain(waiting, missing, mains, typical):
        return _make_hang(documents, waiting, missing, typical, is_collective=True)
    if missing:
        # They wait for ranks that are busy.
        stuck = [s for s in stuck if s not in waiting]
    is_collective = any(s in waiting for s in stuck)
    # Ranks that wait in another operation, for which no limit is known, belong to it.
    stuck = waiting if is_collective else stuck
    return _make_hang(documents, stuck, [], typical, is_collective=is_collective)


def _is_in_vain(
    waiting: list[Stack], missing: list[Missing], mains: list[Stack], typical: TypicalDurations
) -> bool:
    """Return whether ranks wait in a collective for ranks that will not come."""
    running = any(stack.status == "running" for stack in waiting)
    if running and any(m.status != "running" for m in missing):
        return True
    # A rank is busy if it is in a span with a limit that it has not reached.
    busy = {stack.rank: typical.is_too_long(stack) is False for stack in mains}
    late = [m for m in missing if not busy.get(m.rank)]
    return bool(late) and any(typical.is_too_long(stack) for stack in waiting)


def _make_hang(
    documents: list[dict[str, Any]],
    waiting: list[Stack],
    missing: list[Missing],
    typical: TypicalDurations,
    *,
    is_collective: bool,
) -> Hang | None:
    absent = {m.rank for m in missing}
    by_place: dict[tuple[str, int | None], list[Stack]] = {}
    for stack in waiting:
        if stack.rank not in absent and stack.innermost is not None:
            by_place.setdefault((stack.innermost.name, stack.step), []).append(stack)
    groups = sorted(
        (_waiting(name, g, typical) for (name, _), g in by_place.items()), key=_earliest
    )
    if not groups:
        return None
    worlds = [int(document["world_size"] or 0) for document in documents]
    return Hang(
        step=max((s.step for s in waiting if s.step is not None), default=None),
        attempt=waiting[0].attempt,
        collective=groups[0].name if is_collective else None,
        waiting=tuple(groups),
        missing=tuple(missing),
        ranks=max(len({document["rank"] for document in documents}), *worlds),
    )


def _phase(stack: Stack) -> str | None:
    """Return the phase of the innermost span that has one."""
    for frame in reversed(stack.frames):
        phase = phase_of_span(frame.name, frame.category)
        if phase is not None:
            return phase
    return None


def _position(stack: Stack) -> tuple[int, int]:
    """Return how far a rank has come: its step, and the pass in it."""
    phase = _phase(stack)
    step = -1 if stack.step is None else stack.step
    return step, PASSES.index(phase) if phase in PASSES else -1


def _missing(
    documents: list[dict[str, Any]],
    mains: list[Stack],
    waiting_stacks: list[Stack],
    typical: TypicalDurations,
) -> list[Missing]:
    """Return ranks that ended, began fewer collectives, or are in an earlier pass than those that wait."""
    is_pass = _phase(waiting_stacks[0]) in PASSES
    most = max(typical.collectives[s.rank] for s in waiting_stacks)
    furthest = max(_position(s) for s in waiting_stacks)
    here = {s.rank: s for s in mains}
    if not is_pass and _is_mutual(waiting_stacks, documents):
        return []
    waiting = {stack.rank for stack in waiting_stacks}
    last_ns = max(int(d["heartbeat"] or 0) for d in documents if int(d["rank"]) in waiting)
    absent = []
    for document in documents:
        rank = int(document["rank"])
        stack = here.get(rank)
        if stack is not None and (is_pass or _phase(stack) == "communication"):
            if is_pass:
                is_there = _phase(stack) in PASSES and _position(stack) >= furthest
            else:
                is_there = typical.collectives[rank] >= most
            if is_there:
                continue
        missing = _absent(rank, stack, status_of(document))
        since_s = (last_ns - int(document["heartbeat"] or 0)) / 1e9
        if missing.status != "running" and since_s > HEARTBEATS * document["interval"]:
            missing = replace(missing, ended_s=since_s)
        absent.append(missing)
    return sorted(absent, key=lambda m: m.rank)


def _is_mutual(waiting: list[Stack], documents: list[dict[str, Any]]) -> bool:
    """Return whether all ranks are alive and wait in different operations."""
    operations = {_operation(s.innermost.name) for s in waiting if s.innermost is not None}
    if len(operations) < 2 or {int(d["rank"]) for d in documents} != {s.rank for s in waiting}:
        return False
    beats = [int(document["heartbeat"] or 0) for document in documents]
    apart_s = (max(beats) - min(beats)) / 1e9
    is_same_time = apart_s <= HEARTBEATS * max(document["interval"] for document in documents)
    return is_same_time and len({stack.status for stack in waiting}) == 1


def _operation(name: str) -> str:
    """Return the operation of a span: ``all_reduce`` for ``all_reduce.wait``."""
    return name.partition(".")[0]


def _operation_words(waiting: Waiting) -> str:
    details = [] if waiting.step is None else [f"step {waiting.step}"]
    details += [] if waiting.place is None else [waiting.place]
    in_brackets = f" ({', '.join(details)})" if details else ""
    return f"{waiting.name} for {duration(waiting.seconds * 1e9)}{in_brackets}"


def _absent(rank: int, stack: Stack | None, status: str) -> Missing:
    if stack is None:
        return Missing(rank, status, (), None, None)
    inside = tuple(frame.name for frame in stack.frames)
    span = stack.innermost or stack.last
    seconds = None if span is None else span.seconds
    last = None if stack.last is None else stack.last.name
    return Missing(rank, stack.status, inside, seconds, last, stack.place)


def _waiting(name: str, group: list[Stack], typical: TypicalDurations) -> Waiting:
    frames = [s.innermost for s in group if s.innermost is not None]
    first = min(frames, key=lambda f: f.start_ns)
    numbers = {typical.collectives[s.rank] for s in group}
    phase = _phase(group[0])
    return Waiting(
        name=name,
        step=group[0].step,
        phase=phase,
        ranks=tuple(s.rank for s in group),
        since_ns=first.start_ns,
        seconds=first.seconds,
        number=numbers.pop() - 1 if len(numbers) == 1 and phase == "communication" else None,
        place=next((s.place for s in group if s.innermost is first), None),
    )


def _earliest(waiting: Waiting) -> tuple[bool, int, int]:
    return _operation(waiting.name) in MESSAGES, -len(waiting.ranks), waiting.since_ns


def _have_been(waiting: Waiting) -> str:
    return f"{_ranks(waiting.ranks)} {'has' if len(waiting.ranks) == 1 else 'have'} been"


def _ranks(ranks: tuple[int, ...]) -> str:
    if len(ranks) == 1:
        return f"rank {ranks[0]}"
    shown = ", ".join(map(str, ranks[:6]))
    return f"ranks {shown} and {len(ranks) - 6} more" if len(ranks) > 6 else f"ranks {shown}"


def _whereabouts(missing: Missing) -> str:
    if missing.ended_s is not None:
        how = "was killed" if missing.status == "killed" else missing.status
        return f"it {how} {duration(missing.ended_s * 1e9)} earlier"
    at = "" if missing.place is None else f", at {missing.place}"
    return _span_words(missing) + at


def _span_words(missing: Missing) -> str:
    if missing.inside:
        spans = " › ".join(missing.inside[-3:])
        return f"it has been in {spans} for {duration((missing.seconds or 0.0) * 1e9)}"
    if missing.status != "running":
        return "it was killed" if missing.status == "killed" else f"it has {missing.status}"
    if missing.last:
        ago = duration((missing.seconds or 0.0) * 1e9)
        return f"it has been in no span since {missing.last} ended {ago} ago"
    return "it is in no span"
