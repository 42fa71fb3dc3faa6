"""Commands in a real terminal: a pseudo-terminal of 80 columns, and what was drawn on it."""

from __future__ import annotations

import fcntl
import os
import pty
import re
import select
import signal
import struct
import subprocess
import sys
import termios
import time
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path

from rich.cells import cell_len

CODE = "import sys; sys.argv[0] = 'stepwell'; from stepwell.cli import main; main()"
_SEQUENCE = re.compile(r"\x1b(?:\[[0-9;?]*[A-Za-z]|\][^\x07]*\x07|[()][A-Z0-9])")


@dataclass(frozen=True)
class Shown:
    """What came out of a terminal."""

    code: int
    raw: str

    @property
    def text(self) -> str:
        """Without colours and the like."""
        return _SEQUENCE.sub("", self.raw).replace("\r\n", "\n")

    @property
    def lines(self) -> list[str]:
        """What was drawn line by line; those drawn over are there too."""
        return [line for line in re.split(r"[\r\n]", self.text) if line.strip()]

    @property
    def widest(self) -> int:
        """How many columns the widest line takes."""
        return max(map(cell_len, self.lines), default=0)


def environment(**more: str) -> dict[str, str]:
    """What a person's shell has, without anything that is set for tests or launchers."""
    env = {k: v for k, v in os.environ.items() if not k.startswith(("STEPWELL_", "COLUMNS"))}
    for name in ("NO_COLOR", "FORCE_COLOR", "LINES"):
        env.pop(name, None)
    return {**env, "TERM": "xterm-256color", **more}


def in_terminal(
    *arguments: str,
    cwd: Path,
    columns: int = 80,
    rows: int = 40,
    until: Callable[[str], bool] | None = None,
    timeout: float = 120,
    code: str = CODE,
    **more: str,
) -> Shown:
    """Run ``stepwell`` in a terminal; with ``until``, press Ctrl-C once that is true of what is shown."""
    main, side = pty.openpty()
    fcntl.ioctl(side, termios.TIOCSWINSZ, struct.pack("HHHH", rows, columns, 0, 0))
    process = subprocess.Popen(
        [sys.executable, "-c", code, *arguments],
        cwd=cwd,
        env=environment(**more),
        stdin=side,
        stdout=side,
        stderr=side,
        start_new_session=True,
    )
    os.close(side)
    try:
        raw = _read(main, process, until, time.monotonic() + timeout)
    finally:
        os.close(main)
        if process.poll() is None:
            process.kill()
    return Shown(process.wait(), raw)


def _read(
    main: int,
    process: subprocess.Popen[bytes],
    until: Callable[[str], bool] | None,
    deadline: float,
) -> str:
    data = b""
    while time.monotonic() < deadline:
        if select.select([main], [], [], 0.2)[0]:
            try:
                piece = os.read(main, 1 << 16)
            except OSError:  # The other side is closed.
                break
            if not piece:
                break
            data += piece
        if until is not None and until(data.decode("utf-8", "replace")):
            until = None
            process.send_signal(signal.SIGINT)
    else:
        raise AssertionError(f"it goes on: {data[-2000:].decode('utf-8', 'replace')}")
    process.wait(10)
    return data.decode("utf-8", "replace")


def piped(*arguments: str, cwd: Path, **more: str) -> subprocess.CompletedProcess[str]:
    """The same with its output piped."""
    return subprocess.run(
        [sys.executable, "-c", CODE, *arguments],
        cwd=cwd,
        env=environment(**more),
        capture_output=True,
        text=True,
        timeout=120,
        check=False,
    )
