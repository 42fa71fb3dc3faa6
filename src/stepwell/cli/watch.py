"""``stepwell watch``: a live page in a terminal, or a line per update in a pipe."""

from __future__ import annotations

import contextlib
import os
import time
from collections.abc import Sequence
from datetime import datetime
from pathlib import Path
from typing import Any

from rich.console import Console, Group, RenderableType
from rich.live import Live
from rich.text import Text

from stepwell._core.errors import StepwellError
from stepwell._core.text import percent, rate
from stepwell.analysis.findings import Finding
from stepwell.analysis.live import LiveRun, RankNow, Snapshot
from stepwell.cli.arguments import choose_run, folder_of_runs, run_argument
from stepwell.cli.output import print_line, to_plain
from stepwell.cli.stacks import rank_ranges
from stepwell.cli.terminal import (
    MARKS,
    UNLIMITED,
    console,
    curve,
    headline,
    lasted,
    metric_value,
    plain,
    seconds,
    wrapped,
)
from stepwell.reading import RecordedRun, list_runs
from stepwell.reading.documents import newer_format

REST = 4
"""Waits at least this many times as long as an update took, so that it uses at most a fifth of a core."""
INTERRUPTED = 130


def run_to_watch(text: str | None, dir: Path | None) -> RecordedRun:
    """Return the named run; otherwise the newest running run, or the newest run."""
    folder = folder_of_runs(text)
    if text is not None and folder is None:
        return choose_run(text, dir)
    dir = folder or dir
    runs = [run for run in list_runs(dir)[:20] if newer_format(run.document) is None]
    running = (run for run in runs if run.status == "running")
    return next(running, None) or choose_run(None, dir)


def watch_run(run: RecordedRun, interval: float | None, once: bool, as_json: bool) -> int:
    """Show a run until it has ended. Return the exit code: 1 unless it finished."""
    if interval is not None and not 0.1 <= interval <= 3600:
        raise StepwellError(f"--interval must be 0.1 to 3600 seconds, got {interval:g}")
    with contextlib.suppress(OSError, AttributeError):
        os.nice(10)  # The training comes first.
    live = LiveRun(run)
    try:
        if once:
            return _show_once(live, run_argument(run), as_json)
        out = console()
        if as_json or not out.is_terminal:
            return _print_lines(live, interval or (1.0 if as_json else 10.0), as_json)
        return _show_live(live, run_argument(run), out, interval or 1.0)
    except KeyboardInterrupt:
        return INTERRUPTED


def _show_once(live: LiveRun, run: str, as_json: bool) -> int:
    now = live.look(last=True)
    if as_json:
        print_line(as_plain(now))
    else:
        out = console()
        room = out.width if out.is_terminal else UNLIMITED
        out.print(view_of(now, run, out.width, now.findings, room=room), soft_wrap=True)
    return _code(now)


def _print_lines(live: LiveRun, interval: float, as_json: bool) -> int:
    while True:
        began = time.monotonic()
        now = live.look()
        if now.is_over:
            now = live.look(last=True)
        if as_json:
            print_line(as_plain(now))
        else:
            for line in line_of(now):
                print(line, flush=True)
        if now.is_over:
            return _code(now)
        _rest(began, interval)


def _show_live(live: LiveRun, run: str, out: Console, interval: float) -> int:
    """Draw the page in place. The last one stays on the screen."""
    now = live.look()
    with Live(view_of(now, run, out.width), console=out, auto_refresh=False) as screen:
        while not now.is_over:
            began = time.monotonic()
            now = live.look()
            screen.update(view_of(now, run, out.width, now.findings, out.height), refresh=True)
            if not now.is_over:
                _rest(began, interval)
        now = live.look(last=True)
        screen.update(view_of(now, run, out.width, now.findings), refresh=True)
    return _code(now)


def _rest(began: float, interval: float) -> None:
    took = time.monotonic() - began
    time.sleep(max(interval - took, REST * took))


def _code(now: Snapshot) -> int:
    return int(now.status in ("failed", "interrupted", "killed"))


def as_plain(now: Snapshot) -> dict[str, Any]:
    """Return a snapshot for scripts, with new findings only and without curves."""
    plain: dict[str, Any] = to_plain(now)
    plain["findings"] = plain.pop("new")
    plain["done"] = now.done
    for metric in plain["metrics"]:
        del metric["curve"]
    return plain


BAR = 30
MOST_RANKS = 8
MOST_FINDINGS = 4
LEAST_SHARE = 0.005
MOST_LINES = 8
OTHER = "other"


def view_of(
    now: Snapshot,
    run: str,
    width: int,
    findings: Sequence[Finding] = (),
    height: int = 200,
    room: int | None = None,
) -> RenderableType:
    """Return the page: status, progress, values, time, ranks, findings.

    It has at most ``height`` lines. Bars fit ``width``; longer names are cut at ``room`` (default: width).
    ``run`` names the run in commands.
    """
    room = room or width
    parts: list[list[Text]] = [
        [_headline(now), *_progress(now, width)],
        _metrics(now, width, room),
        _time(now, width),
        _ranks(now, run, room),
        _findings(findings, width),
    ]
    if now.is_over:
        parts.append([Text(f"`stepwell report {run}` explains it.", "dim")])
    lines: list[Text] = []
    for part in parts:
        if part:
            lines += [Text(""), *part] if lines else part
    if len(lines) > height - 1:
        lines = [*lines[: max(1, height - 2)], Text("…", "dim")]
    for line in lines:
        line.truncate(room, overflow="ellipsis")
    return Group(*lines)


def _headline(now: Snapshot) -> Text:
    text = headline(now.name, now.status)
    text.append(f" {lasted(now.status, now.seconds * 1e9)}")
    if now.attempt:
        text.append(f", attempt {now.attempt}")
    if now.error and now.is_over:
        text.append("  ").append_text(plain(now.error.splitlines()[0]))
    return text


def _progress(now: Snapshot, width: int) -> list[Text]:
    if now.step is None:
        return [] if now.is_over else [Text("no step yet")]
    line = Text()
    if now.done is not None:
        full = round(now.done * BAR)
        line.append("━" * full, "green").append("─" * (BAR - full), "bright_black")
        line.append(f" {percent(now.done)}  ")
    line.append("step " + _place(now))
    if now.seconds_left is not None:
        line.append(f" · {_left(now.seconds_left)} left", "bold")
    rates = _rates(now)
    if now.is_over:
        rates = "" if now.throughput is None else f"{now.throughput}"
    if not rates:
        return [line]
    if line.cell_len + len(rates) + 3 <= width:
        return [line.append(f" · {rates}")]
    return [line, Text(rates)]


def _left(value: float) -> str:
    """Return an estimate in whole seconds."""
    return seconds(round(value)) if value >= 1 else "1 s"


def _place(now: Snapshot) -> str:
    of = f" of {now.target}" if now.target else ""
    epoch = "" if now.epoch is None else f" · epoch {now.epoch}"
    return f"{now.step}{of}{epoch}"


def _rates(now: Snapshot) -> str:
    rates = {
        "step": now.steps_per_second,
        "sample": now.samples_per_second,
        "token": now.tokens_per_second,
    }
    return " · ".join(_rate(value, what) for what, value in rates.items() if value)


def _rate(value: float, what: str) -> str:
    if what == "step" and value < 1:
        return f"{seconds(1 / value)} per step"
    return f"{rate(value)} {what}s/s"


def _metrics(now: Snapshot, width: int, room: int) -> list[Text]:
    longest = max((len(metric.name) for metric in now.metrics), default=0)
    widest = min(longest, max(28, room - 62))
    bars = max(8, min(40, width - min(widest, width - 52) - 24))
    lines = []
    for metric in now.metrics:
        name = plain(metric.name)
        name.truncate(widest, overflow="ellipsis", pad=True)
        step = "" if metric.step is None else f"{metric.step}"
        name.append(f"  {metric_value(metric.name, metric.last):>10}").append(
            f" {step:>8}  ", "dim"
        )
        lines.append(name.append(curve(list(metric.curve), bars), "cyan"))
    if lines:
        head = Text(f"{'values':<{widest}}  {'last':>10} {'step':>8}")
        return [_heading(head), *lines]
    return []


def _time(now: Snapshot, width: int) -> list[Text]:
    shown = [(p, share) for p, share in now.time.items() if share >= LEAST_SHARE and p != OTHER]
    shown = shown[: MOST_LINES - 1]
    if not now.time:
        return []
    rest = max(0.0, 1 - sum(share for _, share in shown))
    shown += [(OTHER, rest)] if rest >= LEAST_SHARE else []
    who = "" if len(now.ranks) == 1 else f" of {len(now.ranks)} ranks"
    last = "minute" if now.time_seconds > 55 else seconds(now.time_seconds)
    lines = [_heading(Text(f"the last {last}{who}"))]
    for phase, share in shown:
        line = Text(f"{phase:<20}{percent(share):>6} ")
        lines.append(line.append("█" * max(1, round(share * (width - 30))), "blue"))
    return lines


def _ranks(now: Snapshot, run: str, width: int) -> list[Text]:
    """Return a line for each group of ranks with the same open spans."""
    groups: dict[tuple[str, str], list[RankNow]] = {}
    for rank in now.ranks:
        path = " › ".join(rank.inside) or "no open span"
        groups.setdefault((path, rank.status), []).append(rank)
    if now.is_over and not any(rank.inside for rank in now.ranks):
        return []
    title = "open spans when it ended" if now.is_over else "open spans"
    lines = [_heading(Text(title))]
    for (path, status), group in list(groups.items())[:MOST_RANKS]:
        lines.append(_rank_line(path, status, group, width))
    more = len(groups) - MOST_RANKS
    if more > 0 or now.not_followed:
        count = sum(len(group) for group in list(groups.values())[MOST_RANKS:]) + now.not_followed
        lines.append(Text(f"and {count} more ranks: `stepwell stacks {run}`", "dim"))
    return lines


def _rank_line(path: str, status: str, group: list[RankNow], width: int) -> Text:
    ranks = sorted(rank.rank for rank in group)
    who = f"rank {ranks[0]}" if len(ranks) == 1 else f"ranks {rank_ranges(ranks)}"
    if status != "running":
        who += f" ({status})"
    longest = max(rank.seconds for rank in group)
    # Only spans that last: shorter ones would flicker.
    since = f"  {seconds(longest)}" if longest >= 1 and status == "running" else ""
    room = width - len(who) - len(since) - 2
    shown = plain(path)
    if shown.cell_len > room:
        # The innermost spans are the most useful.
        shown = plain("…" + path[-max(1, room - 1) :])
    return Text(f"{who}  ").append_text(shown).append(since, "yellow")


def _findings(findings: Sequence[Finding], width: int) -> list[Text]:
    lines = []
    for finding in findings[:MOST_FINDINGS]:
        mark, colour = MARKS[finding.severity]
        for at, piece in enumerate(wrapped(finding.sentence, width - 3).splitlines()):
            lines.append(Text.assemble((f"{mark if at == 0 else '  '} ", colour), piece))
    if len(findings) > MOST_FINDINGS:
        lines.append(Text(f"   and {len(findings) - MOST_FINDINGS} more", "dim"))
    return lines


def _heading(text: Text) -> Text:
    text.stylize("bold")
    return text


def line_of(now: Snapshot) -> list[str]:
    """Return a line with the state of the run, and one for each new finding."""
    clock = f"{datetime.fromtimestamp(now.time_ns / 1e9):%H:%M:%S}"
    words = [clock, now.status]
    if now.step is not None:
        words.append("step " + _place(now).replace(" · ", " "))
    if now.done is not None:
        words.append(percent(now.done))
    if now.seconds_left is not None:
        words.append(f"{_left(now.seconds_left)} left")
    if not now.is_over:
        words += [_rates(now)] if _rates(now) else []
    words += [
        f"{metric.name} {metric_value(metric.name, metric.last)}" for metric in now.metrics[:3]
    ]
    words += [f"{phase} {percent(share)}" for phase, share in list(now.time.items())[:3]]
    if now.error and now.is_over:
        words.append(now.error.splitlines()[0])
    lines = [" · ".join(words)]
    lines += [f"{clock} · {finding.severity}: {finding.sentence}" for finding in now.new]
    return [plain(line).plain for line in lines]
