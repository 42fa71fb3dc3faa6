"""Commands in a real terminal: a pseudo-terminal of 80 columns, and what was drawn on it."""

from __future__ import annotations

import fcntl
import os
import pty
import re
import select
import signal
import struct
import termios
import time
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path

from rich.cells import cell_len

from tests.harness import CLI, Program, environment, start_script

_SEQUENCE = re.compile(r"\x1b(?:\[[0-9;?]*[A-Za-z]|\][^\x07]*\x07|[()][A-Z0-9])")


@dataclass(frozen=True)
class Shown:
    """The output of a terminal."""

    code: int
    raw: str

    @property
    def text(self) -> str:
        """Without colours and the like."""
        return _SEQUENCE.sub("", self.raw).replace("\r\n", "\n")

    @property
    def lines(self) -> list[str]:
        """The drawn lines, including those that were drawn over."""
        return [line for line in re.split(r"[\r\n]", self.text) if line.strip()]

    @property
    def widest(self) -> int:
        """How many columns the widest line takes."""
        return max(map(cell_len, self.lines), default=0)


def in_terminal(
    *arguments: str,
    cwd: Path,
    columns: int = 80,
    rows: int = 40,
    until: Callable[[str], bool] | None = None,
    timeout: float = 120,
    code: str = CLI,
    **more: str,
) -> Shown:
    """Run ``stepwell`` in a terminal; with ``until``, press Ctrl-C once that is true of what is shown."""
    main, side = pty.openpty()
    fcntl.ioctl(side, termios.TIOCSWINSZ, struct.pack("HHHH", rows, columns, 0, 0))
    process = start_script(
        code,
        *arguments,
        cwd=cwd,
        env=environment(TERM="xterm-256color", **more),
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
    process: Program,
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
    process.wait(60)
    return data.decode("utf-8", "replace")
