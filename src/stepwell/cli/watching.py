"""``stepwell watch``: a running job in the terminal, or a line of it now and then."""

from __future__ import annotations

import contextlib
import os
import time
from pathlib import Path
from typing import Any

from rich.console import Console
from rich.live import Live

from stepwell.analysis.live import LiveRun, Snapshot
from stepwell.cli.choosing import choose_run
from stepwell.cli.drawing import console
from stepwell.cli.output import print_line, to_plain
from stepwell.cli.watch_view import line_of, view_of
from stepwell.journal.errors import StepwellError
from stepwell.reading import RecordedRun, list_runs
from stepwell.reading.version import newer_format

REST = 4
"""It rests for at least so many times as long as a look took: a fifth of a core at most is taken."""
INTERRUPTED = 130


def run_to_watch(text: str | None, dir: Path | None) -> RecordedRun:
    """The run that is named; else the newest that is running, else the newest."""
    if text is not None:
        return choose_run(text, dir)
    known = [run for run in list_runs(dir)[:20] if newer_format(run.about) is None]
    running = (run for run in known if run.status == "running")
    return next(running, None) or choose_run(None, dir)


def watch_run(run: RecordedRun, interval: float | None, once: bool, as_json: bool) -> int:
    """Show a run until it has ended; returns the exit code, 1 unless it finished."""
    if interval is not None and not 0.1 <= interval <= 3600:
        raise StepwellError(f"--interval {interval:g}: write seconds, from 0.1 to 3600")
    with contextlib.suppress(OSError, AttributeError):
        os.nice(10)  # The training comes first.
    live = LiveRun(run)
    try:
        if once:
            return _show_once(live, as_json)
        out = console()
        if as_json or not out.is_terminal:
            return _print_lines(live, interval or (1.0 if as_json else 10.0), as_json)
        return _show_live(live, out, interval or 1.0)
    except KeyboardInterrupt:
        return INTERRUPTED


def _show_once(live: LiveRun, as_json: bool) -> int:
    now = live.look(last=True)
    if as_json:
        print_line(as_plain(now))
    else:
        out = console()
        out.print(view_of(now, out.width, now.findings))
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


def _show_live(live: LiveRun, out: Console, interval: float) -> int:
    """Drawn in place; the last view stays."""
    now = live.look()
    with Live(view_of(now, out.width), console=out, auto_refresh=False) as screen:
        while not now.is_over:
            began = time.monotonic()
            now = live.look()
            screen.update(view_of(now, out.width, now.findings, out.height), refresh=True)
            if not now.is_over:
                _rest(began, interval)
        now = live.look(last=True)
        screen.update(view_of(now, out.width, now.findings), refresh=True)
    return _code(now)


def _rest(began: float, interval: float) -> None:
    took = time.monotonic() - began
    time.sleep(max(interval - took, REST * took))


def _code(now: Snapshot) -> int:
    return int(now.status in ("failed", "interrupted", "killed"))


def as_plain(now: Snapshot) -> dict[str, Any]:
    """A snapshot for scripts: of the findings only what is new, of curves the last values."""
    plain: dict[str, Any] = to_plain(now)
    plain["findings"] = plain.pop("new")
    plain["done"] = now.done
    for metric in plain["metrics"]:
        del metric["curve"]
    return plain
