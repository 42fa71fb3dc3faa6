"""``stepwell report`` and ``stepwell alert``: findings first, then the numbers."""

from __future__ import annotations

import contextlib
import sys
from dataclasses import replace
from datetime import datetime
from pathlib import Path

from rich.console import Console
from rich.text import Text

from stepwell._core.errors import StepwellError
from stepwell._core.text import duration, percent, size
from stepwell.analysis.findings import SEVERITIES, Alerts, Finding, Unchecked
from stepwell.analysis.findings.alerts import as_json as finding_json
from stepwell.analysis.report import Hint, PhaseLine, Report, cost_sentence, report
from stepwell.cli.output import complain, print_json, print_line
from stepwell.cli.progress import waiting
from stepwell.cli.terminal import (
    COLOURS,
    MARKS,
    console,
    counted,
    lasted,
    metric_value,
    plain,
    print_summary,
    table,
    table_console,
    wrapped,
)
from stepwell.reading import RecordedRun

LEAST_SHARE = 0.001
"""Phases with a smaller share are added to ``other``."""
OTHER = "other"


def show_report(
    run: RecordedRun,
    as_json: bool = False,
    fail_on: str | None = None,
    *,
    engine: str = "local",
    scheduler: str | None = None,
) -> int:
    """Print the report of a run. Return the exit code: 1 if a finding has at least ``fail_on``."""
    with waiting(f"reading {run.id}"):
        result = report(run, engine=engine, scheduler=scheduler)
    if as_json:
        print_json(result)
    else:
        _print(result)
    if fail_on is None:
        return 0
    limit = SEVERITIES.index(fail_on)
    return int(any(SEVERITIES.index(f.severity) <= limit for f in result.findings))


def write_report(run: RecordedRun, path: Path) -> None:
    """Write the report of a run as one HTML file, and print its path."""
    from stepwell.dashboard.html import write_html

    if not path.is_dir() and path.suffix.lower() not in (".html", ".htm"):
        raise StepwellError(f"-o must end in .html, got {str(path)!r}")
    with waiting(f"reading {run.id}"):
        written = write_html(run, path)
    print(f"{written} ({size(written.stat().st_size)})")


def _print(result: Report) -> None:
    out = console()
    out.print(_headline(result, out.width))
    out.print(Text(wrapped(_facts(result), out.width)))
    out.print()
    if result.findings:
        for finding in result.findings:
            print_finding(out, finding)
    elif result.steps is not None:
        out.print("No problems found.", style="green")
        if result.unchecked:
            out.print(Text(wrapped(_unchecked(result.unchecked), out.width)))
    if result.time:
        out.print()
        _print_time(out, result)
    if result.values:
        out.print()
        _print_values(result)
    if result.summary:
        out.print()
        print_summary(result.summary)
    if result.hints:
        out.print()
        _print_hints(out, result.hints)
    out.print()
    out.print(Text(wrapped(cost_sentence(result), out.width)))


def _unchecked(subjects: list[Unchecked]) -> str:
    listed = ", ".join(f"{item.subject} ({item.reason})" for item in subjects)
    return f"Not checked: {listed}."


def _print_hints(out: Console, hints: list[Hint]) -> None:
    for hint in hints:
        out.print(Text(wrapped(hint.text, out.width)))
        for line in hint.lines:
            out.print(plain(f"    {line}"))


def _headline(result: Report, width: int) -> Text:
    text = f"{result.name}  {result.status} {lasted(result.status, result.wall_ns)}"
    if result.step is not None:
        text += f" at step {result.step}"
    if result.left is not None:
        done = percent(result.left.done / result.left.target)
        text += f", {done} of {result.left.target} steps"
        if result.left.ns is not None:
            text += f", about {duration(result.left.ns)} left"
    shown = Text(wrapped(text, width))
    at = (
        shown.plain.find(result.status, len(result.name))
        if shown.plain.startswith(result.name)
        else -1
    )
    if at >= 0:
        shown.stylize("bold", 0, len(result.name))
        shown.stylize(COLOURS.get(result.status, "yellow"), at, at + len(result.status))
    return shown


def _facts(result: Report) -> str:
    parts = ["1 rank" if result.ranks == 1 else f"{result.ranks} ranks"]
    if result.attempts > 1:
        parts.append(f"{result.attempts} attempts")
    if result.goodput is not None:
        parts.append(f"goodput {percent(result.goodput)}")
    if result.steps is not None:
        line = result.steps
        epochs = "" if line.epochs is None else f" in {counted(line.epochs, 'epoch')}"
        parts.append(
            f"{line.count:,} steps of {duration(line.p50_ns)} (p95 {duration(line.p95_ns)}, "
            f"longest {duration(line.max_ns)} at step {line.max_step}){epochs}"
            if line.count > 1
            else f"1 step of {duration(line.p50_ns)}"
        )
    if result.throughput is not None:
        parts.append(f"{result.throughput}")
    return " · ".join(parts)


def print_finding(out: Console, finding: Finding, when: str = "") -> None:
    """Print a finding and its advice, indented below its mark, with ``when`` before the sentence."""
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
    return Text(wrapped(text, out.width - 3).replace("\n", "\n   "))


def _print_time(out: Console, result: Report) -> None:
    title = "where the time went" if result.ranks == 1 else f"time, mean of {result.ranks} ranks"
    rows = [_phase_cells(line) for line in _shown(result.time)]
    headings: tuple[str, ...] = ("time", "share", "p50 per step", "p95")
    if not any(row[3] for row in rows):
        rows, headings = [row[:3] for row in rows], headings[:2]
    table_console().print(table(title, headings, rows))
    for line in result.background:
        out.print(plain(f"in the background: {line.kind} {duration(line.ns)}"))


def _shown(lines: list[PhaseLine]) -> list[PhaseLine]:
    """Return the lines, with very small phases added to ``other``."""
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


def _print_values(result: Report) -> None:
    has_best = any(line.best is not None for line in result.values)
    rows = []
    for line in result.values:
        last = metric_value(line.name, line.last)
        row: list[str | Text] = [plain(line.name), last, _step(line.last_step)]
        if has_best:
            best = "" if line.best is None else metric_value(line.name, line.best)
            row += [best, _step(line.best_step)]
        rows.append(row)
    headings = ("last", "step", "best", "step") if has_best else ("last", "step")
    title = "values" if result.ranks == 1 else f"values, mean of {result.ranks} ranks"
    table_console().print(table(title, headings, rows))


def _step(step: int | None) -> str:
    return "" if step is None else f"{step}"


def follow_run(
    run: RecordedRun,
    command: str | None,
    webhook: str | None,
    every: float,
    least: str,
    once: bool,
    as_json: bool = False,
) -> int:
    """Print and deliver each new finding until the run has ended.

    Return the exit code: 1 if a finding could not be delivered.
    """
    out = console()

    def show(finding: Finding) -> None:
        if as_json:
            print_line(finding_json(run, finding))
        else:
            print_finding(out, finding, f"{datetime.now():%H:%M:%S} ")
            sys.stdout.flush()

    alerts = Alerts(run, callback=show, command=command, webhook=webhook, least=least)
    if once:
        alerts.check()
        alerts.deliver_rest()
    else:
        with contextlib.suppress(KeyboardInterrupt):
            alerts.follow(max(1.0, every))
    for sentence in alerts.undelivered:
        complain(sentence)
    return int(bool(alerts.undelivered))
