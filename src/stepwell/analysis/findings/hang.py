"""Ranks that stay in one span, or record nothing, for much longer than usual."""

from __future__ import annotations

from collections.abc import Iterator
from typing import TYPE_CHECKING

import polars as pl

from stepwell._core.text import capital, duration
from stepwell.analysis.findings.facts import TRAINING_LOOP, Facts
from stepwell.analysis.findings.finding import Finding
from stepwell.analysis.progress import unusual
from stepwell.analysis.ranks.stacks import MAIN, Stack
from stepwell.analysis.tracebacks import shown_lines

if TYPE_CHECKING:
    from stepwell.analysis.ranks.hang import Hang

PATIENCE = 30.0
"""Seconds after which a running run is reported as hanging, and …"""
LEAST = 10.0
"""… a run that was killed."""
FIRST = 300.0
"""Seconds without a record that count as usual while there are too few steps to compare with."""
FEWEST_STEPS = 5


def find_hang(facts: Facts) -> Iterator[Finding]:
    """Yield at most one finding."""
    if facts.status not in ("running", "killed"):
        return
    from stepwell.analysis.ranks import hang

    is_running = facts.status == "running"
    hanging = None
    if not facts.summary.open_spans.is_empty():
        hanging = hang(
            facts.run,
            after_s=PATIENCE if is_running else LEAST,
            open_stacks=facts.summary.stacks,
            history=facts.summary.history,
        )
    if hanging is None:
        yield from _silence(facts)
        return
    ended = [absent.status for absent in hanging.missing if absent.ended_s is not None]
    if not is_running and any(status != "finished" for status in ended):
        # The others waited for a rank that had died: the finding `died` reports it.
        return
    missing = tuple(absent.rank for absent in hanging.missing)
    waiting = tuple(rank for group in hanging.waiting for rank in group.ranks)
    # If ranks are in different operations, the one with the fewest ranks is more likely the wrong one.
    stuck = hanging.waiting[-1].ranks[:1] if hanging.operations else (missing or waiting)[:1]
    lines = next((shown_lines(s.lines) for s in _mains(facts) if s.rank in stuck), ())
    yield Finding(
        "hang",
        "critical",
        f"{capital(hanging.sentence)}.",
        {"phase": hanging.collective, "waiting": list(waiting), "missing": list(missing)},
        () if hanging.step is None else (hanging.step,),
        missing or waiting,
        _advice(hanging, lines, is_running),
        facts.command("stacks"),
        lines=lines,
    )


def _mains(facts: Facts) -> list[Stack]:
    return [s for s in facts.summary.stacks if s.thread == MAIN and s.role == "main"]


def _silence(facts: Facts) -> Iterator[Finding]:
    """Yield a finding for a rank that has stopped recording, where no open span shows a hang."""
    for stack in _mains(facts):
        silent, quiet = stack.silent_s or 0.0, stack.quiet_s or 0.0
        rank = f"Rank {stack.rank}" if facts.ranks > 1 else "The process"
        steps = () if stack.step is None else (stack.step,)
        since = "" if stack.step is None else f" since step {stack.step}"
        if silent >= PATIENCE:
            yield Finding(
                "hang",
                "warning",
                f"{rank} is running but has written no heartbeat for {duration(silent * 1e9)}: C code "
                "holds the GIL, or the process is stopped.",
                {"silent_s": silent, "pid": stack.pid},
                steps,
                (stack.rank,),
                f"Run `py-spy dump --native --pid {stack.pid}` on {stack.host} to see where it is.",
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
                "If this line should not take that long, check why it does not return.",
                facts.command("stacks"),
                lines=shown_lines(stack.lines),
            )
            return


def _longest_quiet(facts: Facts) -> float:
    """Return the seconds without a record that are still usual for this run."""
    # Without the last step of each rank: it may be the one that hangs.
    periods = facts.steps.group_by("rank", "attempt").agg(pl.col("period_ns").head(pl.len() - 1))
    seconds = periods.explode("period_ns")["period_ns"].drop_nulls() / 1e9
    return FIRST if len(seconds) < FEWEST_STEPS else max(PATIENCE, unusual(seconds.to_list()))


def _advice(hanging: Hang, lines: tuple[str, ...], is_running: bool) -> str:
    from stepwell.analysis.ranks.hang import MESSAGES

    ended = [absent.status for absent in hanging.missing if absent.ended_s is not None]
    if "finished" in ended:
        return "Give all ranks the same number of steps (drop_last=True, or model.join())."
    if ended:
        return (
            "Stop the job, because the rank that ended does not come back. Find out why it ended."
        )
    if hanging.missing:
        return f"Check the {'line of code' if lines else 'span'} in which the missing rank is."
    if hanging.operations and set(hanging.operations).issubset(MESSAGES):
        return "Check that each send has a receive with the right rank and tag, in the same order."
    if hanging.operations:
        return (
            "All ranks of a process group must call the same operations in the same order: compare "
            "the code that leads to these calls."
        )
    if hanging.collective and hanging.is_complete:
        return (
            "All ranks are in the same operation of the same step: check the network, and whether "
            "the sizes of their tensors differ."
        )
    if hanging.collective:
        return "The ranks are not all in the same operation of the same step: compare their stacks."
    if hanging.waiting[0].phase == "data":
        return "Check the source of the data: the disk, the network, the DataLoader workers."
    if lines:
        return "Check why this line of code does not return."
    if is_running:
        return "Run `py-spy dump --pid …` to see the line of code."
    return "Add spans to the code in this place, to see next time which part of it hangs."
