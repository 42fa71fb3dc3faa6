"""Lines on standard error: where a run records, how it ended, and on a terminal the progress of exporters.

Only rank 0 prints, unless ``init(quiet=True)`` or ``STEPWELL_QUIET=1``. Nothing here raises: standard error
may be closed, broken or replaced.
"""

from __future__ import annotations

import contextlib
import os
import sys
import time
from collections.abc import Sequence
from pathlib import Path
from typing import IO, TYPE_CHECKING, Any

from stepwell._core.text import duration, number
from stepwell.journal.metrics import latest, logged_names
from stepwell.vocabulary import loss_names

if TYPE_CHECKING:
    from stepwell.journal.lane import Lane
    from stepwell.telemetry.outcome import Outcome

MOST_NAMES = 200
SHOWN_AFTER = 1.0
"""Seconds of waiting before the progress line appears."""
REWRITTEN_EVERY = 0.25


def print_start(path: Path) -> None:
    """Print where a run is recorded."""
    command = _report_command(path, newest=True)
    print_line(f"recording to {_short(path)}; `{command}` shows how it is doing")


def print_end(path: Path, outcome: Outcome, ns: int, step: int | None, losses: str) -> None:
    """Print how a run ended, after how long, and the command for its report."""
    why = f" ({_reason(outcome)})" if outcome.status == "failed" and _reason(outcome) else ""
    at = "" if step is None else f" at step {step}"
    more = f", {losses}" if losses else ""
    command = _report_command(path, newest=False)
    print_line(f"{outcome.status} after {duration(ns)}{at}{more}{why}; `{command}` explains it")


def _reason(outcome: Outcome) -> str:
    """Return the kind of the error, or the exit code."""
    if outcome.exit_code:
        return f"exit code {outcome.exit_code}"
    return "" if outcome.error is None else str(outcome.error.get("type") or "")


def last_losses(lanes: Sequence[Lane]) -> str:
    """Return the last values of the losses as text, such as "loss 0.123"; "" without any."""
    names = [name for name in logged_names() if "loss" in str(name).lower()][:MOST_NAMES]
    # Names of an earlier run in this process have no value here.
    values = {name: latest(name, list(lanes)) for name in names}
    losses = {name: value for name, value in values.items() if value is not None}
    return ", ".join(f"{name} {number(losses[name])}" for name in loss_names(losses))


def _report_command(path: Path, newest: bool) -> str:
    """Return the command that reports on a run; without arguments if that is enough."""
    default = Path(os.environ.get("STEPWELL_DIR") or "runs").expanduser()
    if path.parent != _shell_folder() / default:
        import shlex

        return f"stepwell report {shlex.quote(_short(path))}"
    return "stepwell report" if newest else f"stepwell report {path.name}"


def _short(path: Path) -> str:
    """Return a path as it is written in the shell that started this program."""
    with contextlib.suppress(OSError, ValueError):
        return str(path.relative_to(_shell_folder()))
    return str(path)


def _shell_folder() -> Path:
    """Return the folder of that shell. The program may have changed its own, as Hydra does."""
    folder = Path(os.environ.get("PWD", ""))
    return folder if folder.is_absolute() else Path.cwd()


def print_line(text: str) -> None:
    """Write one whole line to standard error. Failures are ignored."""
    with contextlib.suppress(Exception):
        _write(f"stepwell: {text}\n")


class ProgressLine:
    """A line about a wait, rewritten in place. Only on a terminal, and not for short waits."""

    def __init__(self, quiet: bool) -> None:
        self._is_on = not quiet and _is_terminal()
        self._due = time.monotonic() + SHOWN_AFTER
        self._length = 0

    def show(self, text: str) -> None:
        """Replace the line, a few times a second at most. Failures are ignored."""
        now = time.monotonic()
        if not self._is_on or now < self._due or _open_bars() is not None:
            return
        self._due = now + REWRITTEN_EVERY
        with contextlib.suppress(Exception):
            width = os.get_terminal_size(sys.stderr.fileno()).columns or 80
            line = f"stepwell: {text} (Ctrl-C: continue in the background)"[: width - 1]
            _write("\r" + line.ljust(self._length))
            self._length = len(line)

    def erase(self) -> None:
        """Remove the line, if it was shown."""
        if self._length:
            with contextlib.suppress(Exception):
                _write("\r" + " " * self._length + "\r")
            self._length = 0


def _is_terminal() -> bool:
    try:
        return sys.stderr.isatty()
    except Exception:  # It may be None, closed, or any object.
        return False


def _write(line: str) -> None:
    stream: IO[str] | None = sys.stderr
    if stream is None:
        return
    bars = _open_bars()
    if bars is not None:
        # tqdm clears its bars, writes the line above them, and draws them again.
        bars.write(line, file=stream, end="")
    elif sys.__stderr__ is not None and stream is sys.__stderr__:
        # Not through the buffer: text that a broken pipe leaves in it makes Python exit with code 120.
        stream.flush()
        os.write(stream.fileno(), line.encode(stream.encoding or "utf-8", "replace"))
    else:
        stream.write(line)
        stream.flush()


def _open_bars() -> Any:
    """Return the class of tqdm's progress bars if some are open, otherwise None."""
    tqdm = getattr(sys.modules.get("tqdm"), "tqdm", None)
    return tqdm if getattr(tqdm, "_instances", None) else None
