"""A run that failed, was killed or was interrupted: which rank ended first, where and why.

In a distributed run the other ranks end because of the first one. Their errors (a closed connection, a
timeout of a collective) and the signals of the launcher are reported after it, as consequences.
"""

from __future__ import annotations

import re
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from typing import Any

import polars as pl

from stepwell._core.text import capital, ranks_listed
from stepwell.analysis.findings.facts import Facts
from stepwell.analysis.findings.finding import Finding
from stepwell.analysis.ranks.history import latest_failures
from stepwell.analysis.ranks.stacks import MAIN
from stepwell.analysis.timeline.phases import phase_of_span
from stepwell.analysis.tracebacks import is_lost_peer, own_line, shown_lines
from stepwell.reading.documents import SourceLine

MEMORY = ("outofmemory", "out of memory", "memoryerror", "cannot allocate")
HEARTBEATS = 2.0
"""Ranks whose last records are fewer heartbeats apart may have ended in either order."""
CONTAINERS = ("application", "training_loop")
"""Spans around the whole training, which do not show where it ended."""
WAITING = ("communication", "backward")
"""Phases in which a rank waits for others."""


@dataclass(frozen=True)
class End:
    """How one rank ended."""

    rank: int
    status: str
    time_ns: int
    """Time of the exception, or else of the last heartbeat or record."""
    slack_ns: int
    """The rank may have ended up to this much later."""
    error: str
    exit_code: int | None
    signal: str | None
    lines: tuple[SourceLine, ...]
    inside: tuple[str, ...]
    step: int | None
    is_waiting: bool
    raised_in: str = ""
    """The other process or thread that raised the error, such as ``DataLoader worker 0``."""

    @property
    def is_consequence(self) -> bool:
        """Whether the error shows that another rank ended first."""
        return self.status == "failed" and is_lost_peer(self.error)


def find_first_death(facts: Facts) -> Iterator[Finding]:
    """Yield at most one finding: how the first rank ended, and the consequences."""
    if not {"failed", "killed", "interrupted"}.intersection(facts.statuses.values()):
        return
    ends = [_end(facts, document) for document in facts.latest]
    first, others = _split(ends)
    sentence = " ".join([_first_sentence(facts, first), *_consequences(first[0], others)])
    root = first[0]
    yield Finding(
        "died",
        "note" if root.status == "interrupted" else "critical",
        sentence,
        {
            "status": root.status,
            "error": root.error or None,
            "exit_code": root.exit_code,
            "signal": root.signal,
            "inside": " › ".join(root.inside) or None,
            "step": root.step,
            "failed_ranks": [e.rank for e in ends if e.status == "failed"],
            "killed_ranks": [e.rank for e in ends if e.status == "killed"],
        },
        () if root.step is None else (root.step,),
        tuple(end.rank for end in first),
        _advice(first, len(ends)),
        facts.command("stacks"),
        lines=shown_lines(root.lines),
    )


# How each rank ended


def _end(facts: Facts, document: dict[str, Any]) -> End:
    rank, status = int(document["rank"]), facts.statuses[int(document["rank"])]
    parts = [p for p in facts.timelines if p.rank == rank and p.attempt == document["attempt"]]
    last = max([int(document["heartbeat"] or 0), *(part.end_ns for part in parts)])
    slack = int(HEARTBEATS * document["interval"] * 1e9) if status == "killed" else 0
    if status == "killed" and not document["signal"]:
        inside = _open_names(facts, rank)
    else:
        failures = _failures(facts, rank, int(document["attempt"]))
        inside = tuple(name for name, _, _ in failures)
        last = min((end for _, _, end in failures), default=last)
    phases = [phase_of_span(name, "") for name in inside]
    return End(
        rank=rank,
        status=status,
        time_ns=last,
        slack_ns=slack,
        error=_shortened(document["error"]),
        exit_code=document["exit_code"],
        signal=document["signal"],
        lines=tuple(document["traceback"]),
        inside=tuple(name for name in dict.fromkeys(inside) if name not in CONTAINERS),
        step=_last_step(facts, rank),
        is_waiting=any(phase in WAITING for phase in phases),
        raised_in=document["raised_in"],
    )


def _open_names(facts: Facts, rank: int) -> tuple[str, ...]:
    """Return the open spans of the main thread of a rank, outermost first."""
    is_main = ~pl.col("process").str.contains(".worker-", literal=True)
    spans = facts.summary.open_spans.filter(is_main, rank=rank, thread=MAIN)
    return tuple(spans.sort("depth")["name"].to_list())


def _failures(facts: Facts, rank: int, attempt: int) -> list[tuple[str, int, int]]:
    """Return the spans that the last exception of a rank passed through, outermost first."""
    mine = [p for p in facts.summary.history if (p.attempt, p.rank) == (attempt, rank)]
    return latest_failures([failure for process in mine for failure in process.failures])


def _last_step(facts: Facts, rank: int) -> int | None:
    # Not the step of an open span: a loop began at a much earlier step.
    mine = facts.summary.processes.filter(pl.col("role") != "worker", rank=rank)
    step = mine.sort("attempt")["step"].drop_nulls()
    return int(step[-1]) if len(step) else None


def _shortened(error: str | None) -> str:
    text = " ".join((error or "").split())
    return text.removesuffix(".") if len(text) <= 200 else f"{text[:199]}…"


# Which one was first


def _split(ends: list[End]) -> tuple[list[End], list[End]]:
    """Return the ranks that ended first, and those that ended because of them."""
    own = [e for e in ends if e.status in ("failed", "interrupted") and not e.is_consequence]
    killed = [e for e in ends if e.status == "killed"]
    failed = [e for e in ends if e.status == "failed"]
    finished = [e for e in ends if e.status == "finished"]
    if own:
        root = min(own, key=lambda e: e.time_ns)
        # The launcher kills the other ranks after a failure. A killed rank was first only if its last record
        # is well before the failure.
        before = [e for e in killed if e.time_ns + e.slack_ns < root.time_ns]
        together = [e for e in own if e.status == root.status == "interrupted"]
        first = _earliest(before) if before else together or [root]
    elif killed:
        first = _earliest(killed)
    elif finished and min(e.time_ns for e in finished) < min(e.time_ns for e in failed):
        first = [min(finished, key=lambda e: e.time_ns)]
    else:
        first = [min(failed, key=lambda e: e.time_ns)]
    ranks = {e.rank for e in first}
    others = [e for e in ends if e.rank not in ranks and e.status not in ("finished", "running")]
    return first, sorted(others, key=lambda e: e.time_ns)


def _earliest(killed: list[End]) -> list[End]:
    """Return the killed ranks that may have been the first; those waiting for others come last."""
    first = min(killed, key=lambda e: e.time_ns)
    near = [e for e in killed if e.time_ns <= first.time_ns + first.slack_ns]
    # A launcher sends a signal to the other ranks once one of them has died.
    near = [e for e in near if not e.signal] or near
    return sorted(near, key=lambda e: (e.is_waiting, e.rank))


# Sentences


def _first_sentence(facts: Facts, first: Sequence[End]) -> str:
    root = first[0]
    ranks = sorted(e.rank for e in first)
    who = capital(ranks_listed(ranks)) if facts.ranks > 1 else "The process"
    were = "were" if len(first) > 1 else "was"
    steps = {e.step for e in first}
    where = f" at step {root.step}" if root.step is not None and len(steps) == 1 else ""
    inside = f" inside {' › '.join(root.inside[-3:])}" if root.inside else ""
    line = own_line(root.lines)
    places = ([line.place] if line is not None else []) + [root.raised_in] * bool(root.raised_in)
    at = f" ({', '.join(places)})" if places else ""
    if root.status == "killed" and root.signal:
        return f"{who} {were} terminated by {root.signal}{where}{inside}{at}."
    if root.status == "killed" and len(first) > 1:
        is_same = len({e.inside for e in first}) == 1
        who += f" {were} killed{where}{inside if is_same else ''}, at about the same time and "
        return f"{who}without an exception{'' if is_same else _places(first)}."
    if root.status == "killed":
        return f"{who} was killed{where}{inside}, without an exception."
    if root.status == "interrupted":
        return f"{who} {were} interrupted with Ctrl-C{where}{inside}{at}."
    if root.status == "finished":
        return f"{who} finished{where}, before the others."
    if root.error.startswith("SystemExit"):
        return f"{who} exited{_exit_words(root)}{where}{inside}{at}."
    return f"{who} failed{where}{inside}: {root.error or 'no error was recorded'}{at}."


def _places(first: Sequence[End]) -> str:
    """Return where each of several ranks was, the one most likely first."""
    shown = [
        f"rank {e.rank} {'inside ' + ' › '.join(e.inside[-3:]) if e.inside else 'outside any span'}"
        for e in first[:3]
    ]
    more = f" and {len(first) - 3} more" if len(first) > 3 else ""
    return f": {', '.join(shown)}{more}"


def _exit_words(end: End) -> str:
    message = end.error.partition(": ")[2]
    if end.exit_code is None:
        return " with SystemExit (exit code not recorded)"
    code = f" with code {end.exit_code}"
    return code if message == str(end.exit_code) else f"{code} and message {message!r}"


def _consequences(root: End, others: Sequence[End]) -> list[str]:
    """Return a sentence each for the ranks that failed, were killed or interrupted after the first."""
    sentences = []
    for status in ("failed", "killed", "interrupted"):
        ends = [e for e in others if e.status == status]
        if not ends or status == root.status == "interrupted":
            continue
        were = "were" if len(ends) > 1 else "was"
        what = {
            "failed": f"then failed: {_first_part(ends[0].error)}",
            "killed": f"{were} then killed, probably by the launcher",
            "interrupted": f"{were} then interrupted with Ctrl-C",
        }[status]
        sentences.append(f"{capital(ranks_listed([e.rank for e in ends]))} {what}.")
    return sentences


def _first_part(error: str) -> str:
    """Return the first sentence of an error, without the file of the C++ code that raised it."""
    text = re.sub(r"\[\S+\.(cc|cpp|h|hpp|cu):\d+\] ", "", error)
    return text.partition(". ")[0] or "no error was recorded"


def _advice(first: Sequence[End], ranks: int) -> str:
    root = first[0]
    if any(word in root.error.lower() for word in MEMORY):
        return (
            "The process ran out of memory: use a smaller batch, gradient accumulation or activation "
            "checkpointing."
        )
    if root.status == "killed" and root.signal:
        return "The scheduler or the launcher sent the signal: check the time limit and preemption."
    if root.status == "killed" and len(first) == ranks > 1:
        return (
            "Check the output of the scheduler and the launcher: a time limit, a cancelled job or Ctrl-C "
            "ends all ranks at once, or one rank was killed and the launcher ended the others."
        )
    if root.status == "killed":
        return (
            "Check the kernel log (dmesg) for the out-of-memory killer, and the scheduler for a time "
            "limit or a signal."
        )
    if root.status == "finished":
        return "Give all ranks the same number of steps, for example with a DistributedSampler."
    if root.is_consequence:
        return "Another rank or host was lost first: check the output of the other ranks."
    return ""
