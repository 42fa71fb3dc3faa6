"""``stepwell stacks``: the open spans of every rank and thread."""

from __future__ import annotations

import dataclasses
from typing import Any

from rich.text import Text

from stepwell.analysis.ranks.hang import Hang, hang
from stepwell.analysis.ranks.stacks import MAIN, Stack, stacks
from stepwell.analysis.tracebacks import shown_lines
from stepwell.cli.arguments import run_argument
from stepwell.cli.output import print_json
from stepwell.cli.progress import waiting
from stepwell.cli.terminal import console, headline, plain, seconds, wrapped
from stepwell.reading import RecordedRun

MOST_GROUPS = 40


def show_stacks(run: RecordedRun, after: float, as_json: bool = False) -> None:
    """Print the open spans of a run, hanging ranks first. Ranks with the same spans are one entry."""
    with waiting(f"reading {run.id}"):
        open_stacks = stacks(run)
        hung = hang(run, after_s=after, open_stacks=open_stacks)
    if as_json:
        print_json(_as_json(run, open_stacks, hung))
        return
    out = console()
    status = run.status
    out.print(headline(run.name, status))
    if hung is not None:
        out.print(Text(wrapped(hung.sentence, out.width), "red"))
    if not open_stacks:
        out.print(Text(wrapped(_nothing(run, status), out.width)))
        return
    groups = _groups(open_stacks)
    for path, group in groups[:MOST_GROUPS]:
        out.print()
        out.print(Text(wrapped(_heading(group), out.width)))
        out.print(Text("  " + wrapped(path, out.width - 2).replace("\n", "\n  ")))
        for line in _python(group[0]):
            out.print(Text.assemble("    ", plain(line)), style="dim", soft_wrap=True)
    if len(groups) > MOST_GROUPS:
        out.print(f"\n{len(groups) - MOST_GROUPS} more groups: use --json")


def _nothing(run: RecordedRun, status: str) -> str:
    if status == "finished":
        return "No spans were open when the run finished."
    if status in ("failed", "interrupted"):
        return f"An exception ended the run. `stepwell report {run_argument(run)}` shows where."
    return "No spans are open." if status == "running" else "No spans were open at the end."


def _groups(open_stacks: list[Stack]) -> list[tuple[str, list[Stack]]]:
    """Group threads of all ranks by name and open spans, ordered by rank."""
    groups: dict[tuple[str, str, str, str, str | None], list[Stack]] = {}
    for stack in open_stacks:
        path = " › ".join(frame.name for frame in stack.frames)
        key = path or _outside(stack), stack.thread, stack.role, stack.status, stack.place
        groups.setdefault(key, []).append(stack)
    return [(key[0], group) for key, group in groups.items()]


def _outside(stack: Stack) -> str:
    if stack.last is None:
        return "no open span"
    return f"no open span; the last one was {stack.last.name}"


def _python(stack: Stack) -> tuple[str, ...]:
    """Return the Python stack of a thread, or why it is unknown."""
    if stack.silent_s is not None and stack.thread == MAIN:
        return (
            f"No heartbeat for {seconds(stack.silent_s)}: C code holds the GIL, or the process is "
            f"stopped. `py-spy dump --native --pid {stack.pid}` shows where.",
        )
    return shown_lines(stack.lines)


def _heading(group: list[Stack]) -> str:
    first = group[0]
    ranks = sorted({stack.rank for stack in group})
    parts = [f"rank {ranks[0]}" if len(ranks) == 1 else f"ranks {rank_ranges(ranks)}"]
    if first.role == "worker":
        parts.append("worker" if len(group) == 1 else f"{len(group)} workers")
    parts.append(first.thread)
    steps = sorted({stack.step for stack in group if stack.step is not None})
    if steps:
        parts.append(f"step {steps[0]}" if len(steps) == 1 else f"steps {steps[0]} to {steps[-1]}")
    times = [_time(stack) for stack in group]
    durations = [time for time in times if time is not None]
    # A process that was killed right after the start of its span has no later sign of life.
    if durations and max(durations) > 0:
        short, long = seconds(min(durations)), seconds(max(durations))
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


def rank_ranges(ranks: list[int]) -> str:
    """Return ranks as ranges: 0-3, 5."""
    parts: list[list[int]] = []
    for rank in ranks:
        if parts and rank == parts[-1][-1] + 1:
            parts[-1] = [parts[-1][0], rank]
        else:
            parts.append([rank])
    shown = ["-".join(map(str, part)) for part in parts]
    more = f" and {len(shown) - 8} more ranges" if len(shown) > 8 else ""
    return ", ".join(shown[:8]) + more


def _as_json(run: RecordedRun, open_stacks: list[Stack], hung: Hang | None) -> dict[str, Any]:
    details = None if hung is None else {"sentence": hung.sentence, **dataclasses.asdict(hung)}
    return {
        "run": run.id,
        "status": run.status,
        "hang": details,
        "stacks": open_stacks,
    }
