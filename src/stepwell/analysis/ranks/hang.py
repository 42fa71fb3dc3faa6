"""Hangs: which ranks sit in which collective or fetch since when, and who never came."""

from __future__ import annotations

from dataclasses import dataclass

import polars as pl

from stepwell.analysis.ranks.stacks import MAIN, Stack, stacks
from stepwell.analysis.time.words import phase_of_span
from stepwell.reading import RecordedRun

AFTER_S = 10.0
TIMES = 10.0
"""It hangs when it has taken so many seconds, and so many times what it ever took."""


@dataclass(frozen=True)
class Waiting:
    """Ranks that sit in spans of one name."""

    name: str
    phase: str | None
    ranks: tuple[int, ...]
    since_ns: int
    """When the first of them came."""
    seconds: float
    """For how long that one has been there."""
    number: int | None
    """How many of these each of them began before; None where they differ, or where it is no collective."""


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


@dataclass(frozen=True)
class Hang:
    """Ranks that wait, and the ranks that never came. ``missing`` is empty when all are there."""

    step: int | None
    attempt: int
    collective: str | None
    """What they wait in, where that is a collective."""
    waiting: tuple[Waiting, ...]
    missing: tuple[Missing, ...]

    @property
    def sentence(self) -> str:
        """All of it in one sentence."""
        first = self.waiting[0]
        sits = "sits" if len(first.ranks) == 1 else "sit"
        text = f"{_ranks(first.ranks)} {sits} in {first.name} for {first.seconds:.0f} s"
        if self.step is not None:
            text += f" (step {self.step})"
        for missing in self.missing[:3]:
            text += f"; rank {missing.rank} never came: {_whereabouts(missing)}"
        if len(self.missing) > 3:
            text += f"; nor did {len(self.missing) - 3} more"
        for other in self.waiting[1:] if not self.missing else ():
            text += f"; {_ranks(other.ranks)} in {other.name} for {other.seconds:.0f} s"
        return text


def hang(
    run: RecordedRun, *, after_s: float = AFTER_S, known: list[Stack] | None = None
) -> Hang | None:
    """What hangs, or hung when it was killed; None when nothing has taken conspicuously long.

    ``known`` are the stacks, when they have been read already.
    """
    mains = [s for s in (stacks(run) if known is None else known) if _is_main(s)]
    stuck = [s for s in mains if s.innermost is not None and s.innermost.seconds >= after_s]
    stuck = [s for s in stuck if s.status in ("running", "killed")]
    if not stuck:
        return None
    counts = _history(run, mains[0].attempt)
    stuck = [s for s in stuck if _is_long(s, counts)]
    meeting = [s for s in stuck if _phase(s) == "communication"]
    waiting = meeting or stuck
    if not waiting:
        return None
    missing = _missing(run, mains, meeting, counts)
    absent = {m.rank for m in missing}
    groups: dict[str, list[Stack]] = {}
    for stack in waiting:
        if stack.rank not in absent and stack.innermost is not None:
            groups.setdefault(stack.innermost.name, []).append(stack)
    made = sorted((_waiting(name, g, counts) for name, g in groups.items()), key=_earliest)
    if not made:
        return None
    steps = [s.step for s in waiting if s.step is not None]
    return Hang(
        step=max(steps, default=None),
        attempt=mains[0].attempt,
        collective=made[0].name if meeting else None,
        waiting=tuple(made),
        missing=tuple(missing),
    )


History = dict[tuple[int, str], tuple[int, int]]
"""By rank and name: how many spans of it were begun, and the longest one's nanoseconds."""


def _history(run: RecordedRun, attempt: int) -> History:
    table = (
        run.spans()
        .filter(
            (pl.col("attempt") == attempt)
            & ~pl.col("process").str.contains(".worker-", literal=True)
        )
        .group_by("rank", "name", "category")
        .agg(pl.len().alias("count"), pl.col("duration_ns").max())
        .collect()
    )
    found: History = {}
    for rank, name, category, count, longest in table.iter_rows():
        before = found.get((rank, name), (0, 0))
        found[rank, name] = before[0] + count, max(before[1], longest or 0)
        if phase_of_span(name, category) == "communication":
            all_of_them = found.get((rank, ""), (0, 0))
            found[rank, ""] = all_of_them[0] + count, 0
    return found


def _is_main(stack: Stack) -> bool:
    return stack.role == "main" and stack.thread == MAIN


def _is_long(stack: Stack, history: History) -> bool:
    frame = stack.innermost
    assert frame is not None
    longest = max((h[1] for (_, name), h in history.items() if name == frame.name), default=0)
    return frame.seconds * 1e9 >= TIMES * longest


def _phase(stack: Stack) -> str | None:
    """The phase of the innermost span that has one."""
    for frame in reversed(stack.frames):
        phase = phase_of_span(frame.name, frame.category)
        if phase is not None:
            return phase
    return None


def _missing(
    run: RecordedRun, mains: list[Stack], meeting: list[Stack], history: History
) -> list[Missing]:
    """Those that have begun fewer collectives than the ranks that wait, or are gone."""
    if not meeting:
        return []
    most = max(_collectives(s.rank, history) for s in meeting)
    here = {s.rank: s for s in mains}
    found = []
    for about in run.documents():
        rank = int(about["rank"])
        if about["attempt"] != meeting[0].attempt or about["role"] == "worker":
            continue
        stack = here.get(rank)
        in_collective = stack is not None and _phase(stack) == "communication"
        if in_collective and _collectives(rank, history) >= most:
            continue
        found.append(_absent(rank, stack, str(about["status"])))
    return sorted(found, key=lambda m: m.rank)


def _absent(rank: int, stack: Stack | None, status: str) -> Missing:
    if stack is None:
        return Missing(rank, status, (), None, None)
    inside = tuple(frame.name for frame in stack.frames)
    if stack.innermost is not None:
        return Missing(rank, stack.status, inside, stack.innermost.seconds, None)
    last = stack.last
    return Missing(
        rank, stack.status, (), None if last is None else last.seconds, last.name if last else None
    )


def _collectives(rank: int, history: History) -> int:
    return history.get((rank, ""), (0, 0))[0]


def _waiting(name: str, group: list[Stack], history: History) -> Waiting:
    frames = [s.innermost for s in group if s.innermost is not None]
    first = min(frames, key=lambda f: f.start_ns)
    numbers = {_collectives(s.rank, history) for s in group}
    phase = _phase(group[0])
    return Waiting(
        name=name,
        phase=phase,
        ranks=tuple(s.rank for s in group),
        since_ns=first.start_ns,
        seconds=first.seconds,
        number=numbers.pop() - 1 if len(numbers) == 1 and phase == "communication" else None,
    )


def _earliest(waiting: Waiting) -> tuple[int, int]:
    return -len(waiting.ranks), waiting.since_ns


def _ranks(ranks: tuple[int, ...]) -> str:
    if len(ranks) == 1:
        return f"rank {ranks[0]}"
    shown = ", ".join(map(str, ranks[:6]))
    return f"ranks {shown} and {len(ranks) - 6} more" if len(ranks) > 6 else f"ranks {shown}"


def _whereabouts(missing: Missing) -> str:
    if missing.inside:
        since = "" if missing.seconds is None else f" for {missing.seconds:.0f} s"
        return f"it is in {' › '.join(missing.inside[-3:])}{since}"
    if missing.status not in ("running", "killed"):
        return f"it has {missing.status}"
    if missing.last:
        return f"it is in no span since {missing.last} ended {missing.seconds:.0f} s ago"
    return "it is in no span"
