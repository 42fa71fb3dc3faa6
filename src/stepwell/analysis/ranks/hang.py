"""Hangs: which ranks sit in which collective or fetch since when, and who never came."""

from __future__ import annotations

from dataclasses import dataclass, replace
from typing import Any

from stepwell.analysis.ranks.habits import Habits
from stepwell.analysis.ranks.stacks import MAIN, Stack, stacks
from stepwell.analysis.ranks.usual import Usual, usual
from stepwell.analysis.time.words import phase_of_span
from stepwell.journal.liveness import status_of
from stepwell.reading import RecordedRun

AFTER_S = 10.0
"""What has taken fewer seconds does not hang yet."""
HEARTBEATS = 2.0
"""A rank whose last sign of life is this many heartbeats older than that of the others ended before them."""
PASSES = ("forward", "backward", "optimizer")
"""Phases in which ranks wait for each other without a span of its own."""
MESSAGES = ("send", "receive")
"""Operations between two ranks: one is the counterpart of the other."""


@dataclass(frozen=True)
class Waiting:
    """Ranks that sit in spans of one name, at one step."""

    name: str
    step: int | None
    phase: str | None
    ranks: tuple[int, ...]
    since_ns: int
    """When the first of them came."""
    seconds: float
    """For how long that one has been there."""
    number: int | None
    """How many of these each of them began before; None where they differ, or where it is no collective."""
    place: str | None = None
    """The line of Python code that the first of them is at, if that was recorded."""


@dataclass(frozen=True)
class Missing:
    """A rank that the others wait for."""

    rank: int
    status: str
    inside: tuple[str, ...]
    """The spans that it is in instead, the outermost first; empty when it is in none."""
    seconds: float | None
    """For how long it is in the innermost one, or since its last one ended; None when it has no span."""
    last: str | None
    """The span that ended last, when it is in none."""
    place: str | None = None
    """The line of Python code that it is at, if that was recorded."""
    ended_s: float | None = None
    """How long before the last sign of life of the others it ended; None when it did not."""


@dataclass(frozen=True)
class Hang:
    """Ranks that wait, and the ranks that never came. ``missing`` is empty when all are there."""

    step: int | None
    attempt: int
    collective: str | None
    """What they wait in, where that is a collective."""
    waiting: tuple[Waiting, ...]
    missing: tuple[Missing, ...]
    ranks: int
    """How many ranks the run has."""

    @property
    def is_complete(self) -> bool:
        """Whether all ranks are in the same operation of the same step."""
        return len(self.waiting) == 1 and len(self.waiting[0].ranks) == self.ranks

    @property
    def operations(self) -> tuple[str, ...]:
        """The different operations that the ranks wait for each other in; empty where it is one."""
        if self.missing or any(group.phase != "communication" for group in self.waiting):
            return ()
        names = tuple(dict.fromkeys(_operation(group.name) for group in self.waiting))
        return names if self.collective is not None and len(names) > 1 else ()

    @property
    def sentence(self) -> str:
        """All of it in one sentence."""
        if self.operations:
            return self._in_different_operations()
        first = self.waiting[0]
        sits = "sits" if len(first.ranks) == 1 else "sit"
        text = f"{_ranks(first.ranks)} {sits} in {first.name} for {first.seconds:.0f} s"
        if self.step is not None:
            text += f" (step {self.step})"
        if first.place is not None and not self.missing:
            text += f", at {first.place}"
        for missing in self.missing[:3]:
            text += f"; rank {missing.rank} never came: {_whereabouts(missing)}"
        if len(self.missing) > 3:
            text += f"; nor did {len(self.missing) - 3} more"
        for other in self.waiting[1:] if not self.missing else ():
            text += f"; {_ranks(other.ranks)} in {other.name} for {other.seconds:.0f} s"
            text += f" (step {other.step})" if other.step not in (None, self.step) else ""
        return text

    def _in_different_operations(self) -> str:
        first, *others = self.waiting
        waits = "waits" if len(first.ranks) == 1 else "wait"
        text = f"{_ranks(first.ranks)} {waits} in {_operation_words(first)} while "
        text += " and ".join(
            f"{_ranks(other.ranks)} {'is' if len(other.ranks) == 1 else 'are'} in "
            f"{_operation_words(other)}"
            for other in others[:3]
        )
        if set(self.operations).issubset(MESSAGES):
            return text
        return f"{text}: the ranks are in different operations"


def hang(
    run: RecordedRun,
    *,
    after_s: float = AFTER_S,
    known: list[Stack] | None = None,
    habits: list[Habits] | None = None,
) -> Hang | None:
    """What hangs, or hung when it was killed; None when nothing has taken longer than it may.

    What may take how long is told by the run itself. Ranks in a collective hang when they wait for longer
    than they ever had to, unless those that they wait for are at work: starting, validating or saving for no
    longer than that takes. ``known`` are the stacks and ``habits`` what was done before, when they have been
    read already.
    """
    mains = [s for s in (stacks(run) if known is None else known) if _is_main(s)]
    inside = [s for s in mains if s.innermost is not None and s.innermost.seconds >= after_s]
    inside = [s for s in inside if s.status in ("running", "killed")]
    if not inside:
        return None
    before = usual(run, mains[0].attempt, habits)
    met = [s for s in inside if _phase(s) == "communication"]
    if not met and len(mains) > 1:
        # The collectives of DDP and FSDP are part of the passes.
        met = [s for s in inside if _phase(s) in PASSES and before.is_too_long(s)]
    missing = _missing(run, mains, met, before)
    if met and missing and _is_in_vain(met, missing, mains, before):
        return _made(run, met, missing, before, is_meeting=True)
    stuck = [s for s in inside if before.is_too_long(s)]
    if met and missing:
        # They wait for others, who are at work.
        stuck = [s for s in stuck if s not in met]
    is_meeting = any(s in met for s in stuck)
    # Those that wait in another operation, which was never done before, belong to it.
    return _made(run, met if is_meeting else stuck, [], before, is_meeting=is_meeting)


def _is_in_vain(
    met: list[Stack], missing: list[Missing], mains: list[Stack], habits: Usual
) -> bool:
    """Whether ranks wait in a collective for ranks that are not on their way to it."""
    here = {stack.rank: stack for stack in mains}
    running = any(stack.status == "running" for stack in met)
    if running and any(m.status != "running" for m in missing):
        return True
    late = [m for m in missing if (s := here.get(m.rank)) is None or not habits.is_at_work(s)]
    return bool(late) and any(habits.is_too_long(stack) for stack in met)


def _made(
    run: RecordedRun,
    waiting: list[Stack],
    missing: list[Missing],
    habits: Usual,
    *,
    is_meeting: bool,
) -> Hang | None:
    absent = {m.rank for m in missing}
    groups: dict[tuple[str, int | None], list[Stack]] = {}
    for stack in waiting:
        if stack.rank not in absent and stack.innermost is not None:
            groups.setdefault((stack.innermost.name, stack.step), []).append(stack)
    made = sorted((_waiting(name, g, habits) for (name, _), g in groups.items()), key=_earliest)
    if not made:
        return None
    documents = _documents(run, waiting[0].attempt)
    worlds = [int(about["world_size"] or 0) for about in documents]
    return Hang(
        step=max((s.step for s in waiting if s.step is not None), default=None),
        attempt=waiting[0].attempt,
        collective=made[0].name if is_meeting else None,
        waiting=tuple(made),
        missing=tuple(missing),
        ranks=max(len({about["rank"] for about in documents}), *worlds),
    )


def _documents(run: RecordedRun, attempt: int) -> list[dict[str, Any]]:
    """Those of the ranks of an attempt."""
    every = run.documents()
    return [about for about in every if about["attempt"] == attempt and about["role"] != "worker"]


def _is_main(stack: Stack) -> bool:
    return stack.role == "main" and stack.thread == MAIN


def _phase(stack: Stack) -> str | None:
    """The phase of the innermost span that has one."""
    for frame in reversed(stack.frames):
        phase = phase_of_span(frame.name, frame.category)
        if phase is not None:
            return phase
    return None


def _position(stack: Stack) -> tuple[int, int]:
    """How far a rank has come: its step, and the pass in it."""
    phase = _phase(stack)
    step = -1 if stack.step is None else stack.step
    return step, PASSES.index(phase) if phase in PASSES else -1


def _missing(
    run: RecordedRun, mains: list[Stack], meeting: list[Stack], habits: Usual
) -> list[Missing]:
    """Those that are gone, have begun fewer collectives, or are in an earlier pass than those that wait."""
    if not meeting:
        return []
    is_pass = _phase(meeting[0]) in PASSES
    most = max(habits.collectives.get(s.rank, 0) for s in meeting)
    furthest = max(_position(s) for s in meeting)
    here = {s.rank: s for s in mains}
    documents = _documents(run, meeting[0].attempt)
    if not is_pass and _is_mutual(meeting, documents):
        return []
    waiting = {stack.rank for stack in meeting}
    last_ns = max(int(d["heartbeat"] or 0) for d in documents if int(d["rank"]) in waiting)
    found = []
    for about in documents:
        rank = int(about["rank"])
        stack = here.get(rank)
        if stack is not None and (is_pass or _phase(stack) == "communication"):
            if is_pass:
                is_there = _phase(stack) in PASSES and _position(stack) >= furthest
            else:
                is_there = habits.collectives.get(rank, 0) >= most
            if is_there:
                continue
        missing = _absent(rank, stack, status_of(about))
        since_s = (last_ns - int(about["heartbeat"] or 0)) / 1e9
        if missing.status != "running" and since_s > HEARTBEATS * about["interval"]:
            missing = replace(missing, ended_s=since_s)
        found.append(missing)
    return sorted(found, key=lambda m: m.rank)


def _is_mutual(meeting: list[Stack], documents: list[dict[str, Any]]) -> bool:
    """Whether all ranks are alive and wait, in different operations."""
    operations = {_operation(s.innermost.name) for s in meeting if s.innermost is not None}
    if len(operations) < 2 or {int(d["rank"]) for d in documents} != {s.rank for s in meeting}:
        return False
    beats = [int(about["heartbeat"] or 0) for about in documents]
    apart_s = (max(beats) - min(beats)) / 1e9
    is_same_time = apart_s <= HEARTBEATS * max(about["interval"] for about in documents)
    return is_same_time and len({stack.status for stack in meeting}) == 1


def _operation(name: str) -> str:
    """The operation of a span: ``all_reduce`` of ``all_reduce.wait``."""
    return name.partition(".")[0]


def _operation_words(waiting: Waiting) -> str:
    about = [] if waiting.step is None else [f"step {waiting.step}"]
    about += [] if waiting.place is None else [waiting.place]
    in_brackets = f" ({', '.join(about)})" if about else ""
    return f"{waiting.name} for {waiting.seconds:.0f} s{in_brackets}"


def _absent(rank: int, stack: Stack | None, status: str) -> Missing:
    if stack is None:
        return Missing(rank, status, (), None, None)
    inside = tuple(frame.name for frame in stack.frames)
    if stack.innermost is not None:
        return Missing(rank, stack.status, inside, stack.innermost.seconds, None, stack.place)
    name, seconds = (None, None) if stack.last is None else (stack.last.name, stack.last.seconds)
    return Missing(rank, stack.status, (), seconds, name, stack.place)


def _waiting(name: str, group: list[Stack], habits: Usual) -> Waiting:
    frames = [s.innermost for s in group if s.innermost is not None]
    first = min(frames, key=lambda f: f.start_ns)
    numbers = {habits.collectives.get(s.rank, 0) for s in group}
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


def _ranks(ranks: tuple[int, ...]) -> str:
    if len(ranks) == 1:
        return f"rank {ranks[0]}"
    shown = ", ".join(map(str, ranks[:6]))
    return f"ranks {shown} and {len(ranks) - 6} more" if len(ranks) > 6 else f"ranks {shown}"


def _whereabouts(missing: Missing) -> str:
    if missing.ended_s is not None:
        how = "was killed" if missing.status == "killed" else missing.status
        return f"it {how} {missing.ended_s:.0f} s before"
    at = "" if missing.place is None else f", at {missing.place}"
    return _span_words(missing) + at


def _span_words(missing: Missing) -> str:
    if missing.inside:
        since = "" if missing.seconds is None else f" for {missing.seconds:.0f} s"
        return f"it is in {' › '.join(missing.inside[-3:])}{since}"
    if missing.status != "running":
        return "it was killed" if missing.status == "killed" else f"it has {missing.status}"
    if missing.last:
        return f"it is in no span since {missing.last} ended {missing.seconds:.0f} s ago"
    return "it is in no span"
