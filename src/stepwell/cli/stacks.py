"""``stepwell stacks``: what every rank and thread is inside of."""

from __future__ import annotations

import dataclasses
from typing import Any

from rich.text import Text

from stepwell.analysis.ranks.hang import Hang, hang
from stepwell.analysis.ranks.stacks import MAIN, Stack, stacks
from stepwell.analysis.source_lines import shown_lines
from stepwell.cli.drawing import console, plain, seconds, wrapped
from stepwell.cli.output import print_json
from stepwell.cli.summary import COLOURS
from stepwell.cli.waiting import waiting
from stepwell.reading import RecordedRun

MOST_GROUPS = 40


def show_stacks(run: RecordedRun, after: float, as_json: bool = False) -> None:
    """Print the stacks of a run, those that hang first; ranks in the same place are one line."""
    with waiting(f"reading {run.id}"):
        found = stacks(run)
        hung = hang(run, after_s=after, known=found)
    if as_json:
        print_json(_as_json(run, found, hung))
        return
    out = console()
    status = run.status
    title = plain(run.name)
    title.stylize("bold")
    title.append(f"  {status}", COLOURS.get(status, "yellow"))
    out.print(title)
    if hung is not None:
        out.print(Text(wrapped(hung.sentence, out.width), "red"))
    if not found:
        out.print(Text(wrapped(_nothing(run, status), out.width)))
        return
    groups = _groups(found)
    for path, group in groups[:MOST_GROUPS]:
        out.print()
        out.print(Text(wrapped(_heading(group), out.width)))
        out.print(Text("  " + wrapped(path, out.width - 2).replace("\n", "\n  ")))
        for line in _python(group[0]):
            out.print(Text.assemble("    ", plain(line)), style="dim", soft_wrap=True)
    if len(groups) > MOST_GROUPS:
        out.print(f"\n{len(groups) - MOST_GROUPS} more with --json")


def _nothing(run: RecordedRun, status: str) -> str:
    if status == "finished":
        return "No thread was inside of a span when it finished."
    if status in ("failed", "interrupted"):
        return f"An exception ended it: stepwell report {run.id} shows where."
    return "No thread is, or was, inside of a span."


def _groups(found: list[Stack]) -> list[tuple[str, list[Stack]]]:
    """Threads of one name that are inside of the same, over all ranks; in the order of ranks."""
    groups: dict[tuple[str, str, str, str, str | None], list[Stack]] = {}
    for stack in found:
        path = " › ".join(frame.name for frame in stack.frames)
        key = path or _outside(stack), stack.thread, stack.role, stack.status, stack.place
        groups.setdefault(key, []).append(stack)
    return [(key[0], group) for key, group in groups.items()]


def _outside(stack: Stack) -> str:
    if stack.last is None:
        return "in no span"
    return f"in no span; the last one was {stack.last.name}"


def _python(stack: Stack) -> tuple[str, ...]:
    """The lines of Python code that a thread is at, or why they are not known."""
    if stack.silent_s is not None and stack.thread == MAIN:
        return (
            f"No heartbeat for {seconds(stack.silent_s)}: C code holds the GIL, or the process is "
            f"stopped. `py-spy dump --native --pid {stack.pid}` shows where.",
        )
    return shown_lines(stack.lines)


def _heading(group: list[Stack]) -> str:
    first = group[0]
    ranks = sorted({stack.rank for stack in group})
    parts = [f"rank {ranks[0]}" if len(ranks) == 1 else f"ranks {shorten(ranks)}"]
    if first.role == "worker":
        parts.append("worker" if len(group) == 1 else f"{len(group)} workers")
    parts.append(first.thread)
    steps = sorted({stack.step for stack in group if stack.step is not None})
    if steps:
        parts.append(f"step {steps[0]}" if len(steps) == 1 else f"steps {steps[0]} to {steps[-1]}")
    times = [_time(stack) for stack in group]
    known = [time for time in times if time is not None]
    if known:
        short, long = seconds(min(known)), seconds(max(known))
        parts.append(f"for {long}" if short == long else f"for {short} to {long}")
    if first.status != "running":
        parts.append(f"when it {'was killed' if first.status == 'killed' else first.status}")
    else:
        parts += [f"pid {first.pid} on {first.host}"] if len(group) == 1 else []
    return " · ".join(parts)


def _time(stack: Stack) -> float | None:
    if stack.innermost is not None:
        return stack.innermost.seconds
    return stack.last.seconds if stack.last is not None else None


def shorten(ranks: list[int]) -> str:
    """Ranks with ranges: 0-3, 5."""
    parts: list[list[int]] = []
    for rank in ranks:
        if parts and rank == parts[-1][-1] + 1:
            parts[-1] = [parts[-1][0], rank]
        else:
            parts.append([rank])
    shown = ["-".join(map(str, part)) for part in parts]
    more = f" and {len(shown) - 8} more ranges" if len(shown) > 8 else ""
    return ", ".join(shown[:8]) + more


def _as_json(run: RecordedRun, found: list[Stack], hung: Hang | None) -> dict[str, Any]:
    about = None if hung is None else {"sentence": hung.sentence, **dataclasses.asdict(hung)}
    return {
        "run": run.id,
        "status": run.status,
        "hang": about,
        "stacks": found,
    }
