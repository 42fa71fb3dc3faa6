"""Ranks that sit in the same place for much longer than that ever took."""

from __future__ import annotations

from collections.abc import Iterator
from typing import TYPE_CHECKING

from stepwell.analysis.findings.facts import Facts
from stepwell.analysis.findings.finding import Finding
from stepwell.analysis.findings.wording import capital

if TYPE_CHECKING:
    from stepwell.analysis.ranks.hang import Hang

PATIENCE = 30.0
"""Seconds until it is said of a run that goes on, and …"""
LEAST = 10.0
"""… of one that was killed."""


def rule(facts: Facts) -> Iterator[Finding]:
    """At most one finding."""
    if facts.status not in ("running", "killed") or facts.open_spans.is_empty():
        return
    from stepwell.analysis.ranks import hang

    found = hang(
        facts.run,
        after_s=PATIENCE if facts.status == "running" else LEAST,
        known=facts.summary.stacks,
        habits=facts.summary.habits,
    )
    if found is None:
        return
    missing = tuple(one.rank for one in found.missing)
    waiting = tuple(rank for group in found.waiting for rank in group.ranks)
    yield Finding(
        "hang",
        "critical",
        f"{capital(found.sentence)}.",
        {"phase": found.collective, "waiting": list(waiting), "missing": list(missing)},
        () if found.step is None else (found.step,),
        missing or waiting,
        _advice(found, facts.status == "running"),
        facts.command("stacks"),
    )


def _advice(found: Hang, is_running: bool) -> str:
    if found.missing:
        return "Look at what the rank that never came is inside of."
    if found.collective:
        return "All are there: the network or a deadlock."
    if found.waiting[0].phase == "data":
        return "Look at what it reads from: the disk, the network, its workers."
    if is_running:
        return "Look at what its code does there: `py-spy dump --pid …` shows the line."
    return "Put the parts of its code there into spans, to see in which one it is the next time."
