"""A run that did not come to its end: with which error, or inside of what it was when it was killed."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import polars as pl

from stepwell.analysis.findings.facts import Facts
from stepwell.analysis.findings.finding import Finding
from stepwell.analysis.findings.wording import capital, ranks_listed
from stepwell.analysis.ranks.habits import latest_failures

MEMORY = ("outofmemory", "out of memory", "memoryerror", "cannot allocate")


def rule(facts: Facts) -> Iterator[Finding]:
    """At most one finding: the first rank that failed, else those that were killed."""
    if facts.status not in ("failed", "killed"):
        return
    failed = [d for d in facts.latest if facts.statuses[d["rank"]] == "failed"]
    if failed:
        # The others fail because of the first one.
        first = min(failed, key=lambda d: d["heartbeat"] or 0)
        yield _failed(facts, first, [int(d["rank"]) for d in failed])
        return
    killed = [rank for rank, status in facts.statuses.items() if status == "killed"]
    if killed:
        yield _killed(facts, killed)


def _failed(facts: Facts, document: dict[str, Any], ranks: list[int]) -> Finding:
    rank = int(document["rank"])
    error = _error(document.get("error"))
    place = _failed_inside(facts, rank)
    step = place.get("step")
    who = f"Rank {rank}" if facts.ranks > 1 else "It"
    where = f" at step {step}" if step is not None else ""
    inside = f" inside {place['path']}" if place.get("path") else ""
    text = f"{who} failed{where}{inside}: {error or 'no error was recorded'}."
    advice = "The traceback is in the output of the job; look at the batch of that step."
    if any(word in error.lower() for word in MEMORY):
        advice = "Memory ran out: a smaller batch, accumulation, or checkpointing of activations."
    return Finding(
        "died",
        "critical",
        text,
        {"error": error, "inside": place.get("path"), "step": step, "failed_ranks": ranks},
        () if step is None else (step,),
        (rank,),
        advice,
        facts.command("stacks"),
    )


def _failed_inside(facts: Facts, rank: int) -> dict[str, Any]:
    """The innermost spans that the last exception of a rank went through, and the step."""
    last = facts.latest[0]["attempt"]
    mine = [p for p in facts.summary.habits if (p.attempt, p.rank) == (last, rank)]
    around = latest_failures([failure for process in mine for failure in process.failures])
    if not around:
        return {"step": _last_step(facts, rank)}
    names = list(dict.fromkeys(name for name, _, _ in around))
    # Not the step of a span: a loop that an exception went through began long before.
    return {"path": " › ".join(names[-3:]), "step": _last_step(facts, rank)}


def _last_step(facts: Facts, rank: int) -> int | None:
    mine = (pl.col("role") != "worker") & (pl.col("rank") == rank)
    step = facts.processes.filter(mine).sort("attempt")["step"].drop_nulls()
    return int(step[-1]) if len(step) else None


def _error(error: Any) -> str:
    if isinstance(error, dict):
        kind = str(error.get("type") or error.get("exception_type") or "")
        message = str(error.get("message") or error.get("exception_message") or "")
        error = f"{kind}: {message}" if kind and message else kind or message
    text = " ".join(str(error or "").split())
    return text.removesuffix(".") if len(text) <= 200 else f"{text[:199]}…"


def _killed(facts: Facts, ranks: list[int]) -> Finding:
    spans = facts.open_spans.filter(
        pl.col("rank").is_in(ranks)
        & (pl.col("thread") == "MainThread")
        & ~pl.col("process").str.contains(".worker-", literal=True)
    ).sort("rank", "depth")
    names = list(dict.fromkeys(spans.filter(pl.col("rank") == ranks[0])["name"].to_list()))
    # Not the step of an open span: a loop began long before.
    step = _last_step(facts, ranks[0])
    inside = f" inside {' › '.join(names[-3:])}" if names else ""
    others = spans.filter(pl.col("rank") != ranks[0]).group_by("rank").agg(pl.col("name").last())
    if names and (others["name"] != names[-1]).any():
        inside = f", rank {ranks[0]}{inside}"
    where = f" at step {step}" if step is not None else ""
    who = capital(ranks_listed(ranks)) if facts.ranks > 1 else "It"
    were = "were" if len(ranks) > 1 and facts.ranks > 1 else "was"
    text = f"{who} {were} killed{where}{inside}, without an exception."
    return Finding(
        "died",
        "critical",
        text,
        {"inside": " › ".join(names) or None, "step": step},
        () if step is None else (step,),
        tuple(ranks),
        "Out of memory, a time limit or a signal from outside: ask the scheduler and the kernel's log.",
        facts.command("stacks"),
    )
