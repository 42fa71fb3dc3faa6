"""``stepwell report``: the answer first, in 80 columns."""

from __future__ import annotations

from dataclasses import replace

from rich.console import Console
from rich.table import Table
from rich.text import Text

from stepwell.analysis.findings import SEVERITIES, Finding, Unchecked
from stepwell.analysis.findings.wording import duration, percent
from stepwell.analysis.report import Hint, PhaseLine, Report, report
from stepwell.cli.drawing import (
    console,
    most_columns,
    number,
    plain,
    print_summary,
    size,
    table_console,
    wrapped,
)
from stepwell.cli.output import print_json
from stepwell.cli.summary import COLOURS
from stepwell.cli.waiting import waiting
from stepwell.reading import RecordedRun

LEAST_SHARE = 0.001
"""Phases that took less are shown as part of ``other``."""
OTHER = "other"
MARKS = {"critical": ("!!", "red"), "warning": ("! ", "yellow"), "note": ("· ", "cyan")}


def show_report(
    run: RecordedRun,
    as_json: bool = False,
    fail_on: str | None = None,
    *,
    engine: str = "local",
    scheduler: str | None = None,
) -> int:
    """Print the report of a run; returns the exit code: 1 when there is a finding to fail on."""
    with waiting(f"reading {run.id}"):
        made = report(run, engine=engine, scheduler=scheduler)
    if as_json:
        print_json(made)
    else:
        _print(made)
    if fail_on is None:
        return 0
    limit = SEVERITIES.index(fail_on)
    return int(any(SEVERITIES.index(f.severity) <= limit for f in made.findings))


def _print(made: Report) -> None:
    out = console()
    out.print(_headline(made, out.width))
    out.print(Text(wrapped(_facts(made), out.width)))
    out.print()
    if made.findings:
        for finding in made.findings:
            print_finding(out, finding)
    elif made.steps is not None:
        out.print("No problems found.", style="green")
        if made.unchecked:
            out.print(Text(wrapped(_unchecked(made.unchecked), out.width)))
    if made.time:
        out.print()
        _print_time(out, made)
    if made.values:
        out.print()
        _print_values(made)
    if made.summary:
        out.print()
        print_summary(made.summary)
    if made.hints:
        out.print()
        _print_hints(out, made.hints)
    out.print()
    out.print(Text(wrapped(_cost(made), out.width)))


def _unchecked(subjects: list[Unchecked]) -> str:
    listed = ", ".join(f"{one.subject} ({one.reason})" for one in subjects)
    return f"Not checked: {listed}."


def _print_hints(out: Console, hints: list[Hint]) -> None:
    for hint in hints:
        out.print(plain(hint.text))
        for line in hint.lines:
            out.print(plain(f"    {line}"))


def _headline(made: Report, width: int) -> Text:
    text = f"{made.name}  {made.status} after {duration(made.wall_ns)}"
    if made.step is not None:
        text += f" at step {made.step}"
    if made.left is not None:
        done = percent(made.left.done / made.left.target)
        text += f", {done} of {made.left.target} steps"
        if made.left.ns is not None:
            text += f", about {duration(made.left.ns)} left"
    shown = Text(wrapped(text, width))
    at = shown.plain.find(made.status, len(made.name)) if shown.plain.startswith(made.name) else -1
    if at >= 0:
        shown.stylize("bold", 0, len(made.name))
        shown.stylize(COLOURS.get(made.status, "yellow"), at, at + len(made.status))
    return shown


def _facts(made: Report) -> str:
    parts = ["1 rank" if made.ranks == 1 else f"{made.ranks} ranks"]
    if made.attempts > 1:
        parts.append(f"{made.attempts} attempts")
    if made.goodput is not None:
        parts.append(f"goodput {percent(made.goodput)}")
    if made.steps is not None:
        line = made.steps
        epochs = "" if line.epochs is None else f" in {_counted(line.epochs, 'epoch')}"
        parts.append(
            f"{line.count:,} steps of {duration(line.p50_ns)} (p95 {duration(line.p95_ns)}, "
            f"longest {duration(line.max_ns)} at {line.max_step}){epochs}"
            if line.count > 1
            else f"1 step of {duration(line.p50_ns)}"
        )
    if made.throughput is not None:
        parts.append(f"{made.throughput}")
    return " · ".join(parts)


def _counted(count: int, what: str) -> str:
    return f"{count:,} {what}" if count == 1 else f"{count:,} {what}s"


def print_finding(out: Console, finding: Finding, when: str = "") -> None:
    """A finding and what to try next, indented below its mark; ``when`` stands before the sentence."""
    mark, colour = MARKS[finding.severity]
    sentence = _indented(out, when + finding.sentence)
    if finding.severity == "critical":
        sentence.stylize(colour)
    out.print(Text.assemble((f"{mark} ", colour), sentence))
    for line in finding.lines:
        out.print(Text.assemble("     ", plain(line)), style="dim", soft_wrap=True)
    if finding.advice:
        out.print(Text.assemble("   ", _indented(out, f"→ {finding.advice}")))


def _indented(out: Console, text: str) -> Text:
    """Broken into lines, all but the first of them indented."""
    return Text(wrapped(text, out.width - 3).replace("\n", "\n   "))


def _print_time(out: Console, made: Report) -> None:
    title = "where the time went" if made.ranks == 1 else f"time, mean of {made.ranks} ranks"
    rows = [_phase_cells(line) for line in _shown(made.time)]
    headings: tuple[str, ...] = ("time", "share", "p50 a step", "p95")
    if not any(row[3] for row in rows):
        rows, headings = [row[:3] for row in rows], headings[:2]
    table_console().print(_table(title, headings, rows))
    for line in made.background:
        out.print(plain(f"beside it: {line.kind} {duration(line.ns)}"))


def _shown(lines: list[PhaseLine]) -> list[PhaseLine]:
    """The lines, with those that took hardly any time in the one for all else."""
    small = [line for line in lines if line.share < LEAST_SHARE and line.phase != OTHER]
    if not small:
        return lines
    other = next((line for line in lines if line.phase == OTHER), PhaseLine(OTHER, 0, 0.0))
    ns, share = (sum(getattr(x, name) for x in (other, *small)) for name in ("ns", "share"))
    kept = [line for line in lines if line not in small and line is not other]
    return [*kept, replace(other, ns=ns, share=share)]


def _phase_cells(line: PhaseLine) -> list[str | Text]:
    p50 = "" if line.p50_ns is None else duration(line.p50_ns)
    p95 = "" if line.p95_ns is None else duration(line.p95_ns)
    return [plain(line.phase), duration(line.ns), percent(line.share), p50, p95]


def _print_values(made: Report) -> None:
    has_best = any(line.best is not None for line in made.values)
    rows = []
    for line in made.values:
        row: list[str | Text] = [plain(line.name), number(line.last), _step(line.last_step)]
        if has_best:
            row += ["" if line.best is None else number(line.best), _step(line.best_step)]
        rows.append(row)
    headings = ("last", "step", "best", "step") if has_best else ("last", "step")
    title = "values" if made.ranks == 1 else f"values, mean of {made.ranks} ranks"
    table_console().print(_table(title, headings, rows))


def _step(step: int | None) -> str:
    return "" if step is None else f"{step}"


def _cost(made: Report) -> str:
    cost = made.cost
    ranks = max(1, made.ranks)
    each = cost.ns / (made.steps.count * ranks) if made.steps else 0.0
    a_rank = " a rank" if ranks > 1 else ""
    a_step = f", {duration(each)} a step" if each else ""
    beside = ""
    if cost.beside_ns is not None:
        beside = (
            f"; measured beside it: {duration(cost.beside_ns / ranks)} of processor time{a_rank}"
        )
    return (
        f"recording: {cost.spans:,} spans and {cost.metrics:,} numbers, {size(cost.bytes)}, "
        f"at least {duration(cost.ns / ranks)}{a_rank} ({percent(cost.share)} of the time{a_step}){beside}"
    )


def _table(title: str, headings: tuple[str, ...], rows: list[list[str | Text]]) -> Table:
    table = Table(box=None, pad_edge=False, padding=(0, 2, 0, 0))
    table.add_column(title, no_wrap=True, max_width=most_columns(36))
    for number_of, heading in enumerate(headings, 1):
        width = max([len(heading), *(len(row[number_of]) for row in rows)])
        table.add_column(heading, justify="right", no_wrap=True, min_width=width)
    for row in rows:
        table.add_row(*row)
    return table
