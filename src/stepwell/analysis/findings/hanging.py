"""Ranks that sit in the same place for much longer than that ever took."""

from __future__ import annotations

from collections.abc import Iterator
from typing import TYPE_CHECKING

import polars as pl

from stepwell.analysis.findings.facts import Facts
from stepwell.analysis.findings.finding import Finding
from stepwell.analysis.findings.wording import capital, duration
from stepwell.analysis.progress import unusual
from stepwell.analysis.ranks.stacks import MAIN, Stack
from stepwell.analysis.source_lines import shown_lines
from stepwell.vocabulary import StandardTrainingJobSpanName

if TYPE_CHECKING:
    from stepwell.analysis.ranks.hang import Hang

PATIENCE = 30.0
"""Seconds until it is said of a run that goes on, and …"""
LEAST = 10.0
"""… of one that was killed."""
FIRST = 300.0
"""Seconds without a record that are usual while there are hardly any steps to compare with."""
FEWEST_STEPS = 5
TRAINING_LOOP = StandardTrainingJobSpanName.TRAINING_LOOP.value


def rule(facts: Facts) -> Iterator[Finding]:
    """At most one finding."""
    if facts.status not in ("running", "killed"):
        return
    from stepwell.analysis.ranks import hang

    found = None
    if not facts.open_spans.is_empty():
        found = hang(
            facts.run,
            after_s=PATIENCE if facts.status == "running" else LEAST,
            known=facts.summary.stacks,
            habits=facts.summary.habits,
        )
    if found is None:
        yield from _silence(facts)
        return
    is_running = facts.status == "running"
    ended = [absent.status for absent in found.missing if absent.ended_s is not None]
    if not is_running and any(status != "finished" for status in ended):
        # The others waited for a rank that had died: that is the finding, and how it died.
        return
    missing = tuple(absent.rank for absent in found.missing)
    waiting = tuple(rank for group in found.waiting for rank in group.ranks)
    # Of ranks in different operations that of the fewest is more likely the wrong one.
    stuck = found.waiting[-1].ranks[:1] if found.operations else (missing or waiting)[:1]
    lines = next((shown_lines(s.lines) for s in _mains(facts) if s.rank in stuck), ())
    yield Finding(
        "hang",
        "critical",
        f"{capital(found.sentence)}.",
        {"phase": found.collective, "waiting": list(waiting), "missing": list(missing)},
        () if found.step is None else (found.step,),
        missing or waiting,
        _advice(found, lines, is_running),
        facts.command("stacks"),
        lines=lines,
    )


def _mains(facts: Facts) -> list[Stack]:
    return [s for s in facts.summary.stacks if s.thread == MAIN and s.role == "main"]


def _silence(facts: Facts) -> Iterator[Finding]:
    """A rank that records nothing any more, where no span says whether that is too long."""
    for stack in _mains(facts):
        silent, quiet = stack.silent_s or 0.0, stack.quiet_s or 0.0
        rank = f"Rank {stack.rank}" if facts.ranks > 1 else "The process"
        steps = () if stack.step is None else (stack.step,)
        since = "" if stack.step is None else f" since step {stack.step}"
        if silent >= PATIENCE:
            yield Finding(
                "hang",
                "warning",
                f"{rank} runs, but has written no heartbeat for {duration(silent * 1e9)}: C code "
                "holds the GIL, or the process is stopped.",
                {"silent_s": silent, "pid": stack.pid},
                steps,
                (stack.rank,),
                f"`py-spy dump --native --pid {stack.pid}` on {stack.host} shows where it is.",
                facts.command("stacks"),
            )
            return
        if stack.place is not None and quiet >= _longest_quiet(facts):
            is_training = any(frame.name == TRAINING_LOOP for frame in stack.frames)
            has, at = ("has", "is") if stack.status == "running" else ("had", "was")
            yield Finding(
                "hang",
                "warning" if is_training else "note",
                f"{rank} {has} recorded nothing for {duration(quiet * 1e9)}{since}: it {at} at "
                f"{stack.place}.",
                {"quiet_s": quiet, "place": stack.place},
                steps,
                (stack.rank,),
                "If that should not take so long, look at this line of code: it did not return.",
                facts.command("stacks"),
                lines=shown_lines(stack.lines),
            )
            return


def _longest_quiet(facts: Facts) -> float:
    """Seconds without a record that are nothing unusual for this run."""
    # Not the last step of a rank: it may be the one that hangs.
    periods = facts.steps.group_by("rank", "attempt").agg(pl.col("period_ns").head(pl.len() - 1))
    seconds = periods.explode("period_ns")["period_ns"].drop_nulls() / 1e9
    return FIRST if len(seconds) < FEWEST_STEPS else max(PATIENCE, unusual(seconds.to_list()))


def _advice(found: Hang, lines: tuple[str, ...], is_running: bool) -> str:
    from stepwell.analysis.ranks.hang import MESSAGES

    ended = [absent.status for absent in found.missing if absent.ended_s is not None]
    if "finished" in ended:
        return "Give all ranks the same number of steps (drop_last=True, or model.join())."
    if ended:
        return "Stop the job: a rank that has ended does not come back. Find out why it ended."
    if found.missing:
        place = "line" if lines else "span"
        return f"Look at the {place} that the rank that never came is {'at' if lines else 'in'}."
    if found.operations and set(found.operations).issubset(MESSAGES):
        return "Check that each send has a receive of the right rank and tag, in the same order."
    if found.operations:
        return (
            "All ranks of a process group must call the same operations in the same order: compare "
            "the code that leads to these calls."
        )
    if found.collective and found.is_complete:
        return (
            "All ranks are in the same operation of the same step: check the network, and whether "
            "the sizes of their tensors differ."
        )
    if found.collective:
        return "The ranks are not all in the same operation of the same step: compare their stacks."
    if found.waiting[0].phase == "data":
        return "Look at what it reads from: the disk, the network, its workers."
    if lines:
        return "Look at that line of code: it did not return."
    if is_running:
        return "Look at what its code does there: `py-spy dump --pid …` shows the line."
    return "Put the parts of its code there into spans, to see in which one it is the next time."
