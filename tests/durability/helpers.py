"""Real processes and disks for fault injection: a child that executes commands, one that runs a script."""

from __future__ import annotations

import contextlib
import json
import os
import shutil
import signal
import subprocess
import tempfile
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import polars as pl
import pytest

import stepwell
from tests import harness
from tests.harness import environment

PRELUDE = """
import json, logging, os, signal, sys, threading, time
import stepwell
from stepwell import event, init, log, set_step, span

warnings = []

class Keep(logging.Handler):
    def emit(self, record):
        warnings.append(record.getMessage())

logging.getLogger("stepwell").addHandler(Keep(logging.WARNING))
"""
OBEY = """
space = globals()
for line in sys.stdin:
    answer = None
    exec(json.loads(line), space)
    print(json.dumps(answer), flush=True)
"""


class Child:
    """A separate Python process that executes code piece by piece."""

    def __init__(self, cwd: Path, **variables: str) -> None:
        self.stderr_file = tempfile.TemporaryFile("w+")
        self.process = harness.start_script(
            PRELUDE + OBEY,
            cwd=cwd,
            env=environment(**variables),
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            stderr=self.stderr_file,
            text=True,
        )

    def do(self, code: str, **values: Any) -> Any:
        """Execute this in the child; returns what it left in ``answer``."""
        assert self.process.stdin is not None
        assert self.process.stdout is not None
        given = "".join(f"{name} = {value!r}\n" for name, value in values.items())
        try:
            self.process.stdin.write(json.dumps(given + code) + "\n")
            self.process.stdin.flush()
        except BrokenPipeError:
            pass
        line = self.process.stdout.readline()
        assert line, f"the child died ({self.process.wait()}):\n{self.stderr()}"
        return json.loads(line)

    def kill(self, number: int = signal.SIGKILL) -> None:
        """Send a signal and wait for the end."""
        self.process.send_signal(number)
        self.process.wait(60)

    def end(self) -> int:
        """Let it run off its end, as a script does; returns its exit code."""
        assert self.process.stdin is not None
        self.process.stdin.close()
        return self.process.wait(60)

    def stderr(self) -> str:
        """Its standard error."""
        self.stderr_file.seek(0)
        return self.stderr_file.read()

    def __enter__(self) -> Child:
        return self

    def __exit__(self, *_: object) -> None:
        if self.process.poll() is None:
            self.process.kill()
        self.process.wait()
        for file in (self.process.stdin, self.process.stdout, self.stderr_file):
            assert file is not None
            with contextlib.suppress(BrokenPipeError):
                file.close()


def run_script(code: str, cwd: Path, **variables: str) -> subprocess.CompletedProcess[str]:
    """Run a whole program to its end, however that comes about."""
    return harness.run_script(PRELUDE + code, cwd=cwd, env=environment(**variables))


# Reading


def only_run(root: Path) -> stepwell.reading.RecordedRun:
    """The one run below a folder."""
    (run,) = stepwell.list_runs(root)
    return run


def attributes(frame: pl.DataFrame) -> list[Any]:
    """The attribute sets of a table, parsed."""
    return [None if text is None else json.loads(text) for text in frame["attributes"]]


def numbers(run: Any, name: str, key: str = "i") -> list[int]:
    """This attribute of the spans of a name, in the order in which they began."""
    rows = run.spans().filter(pl.col("name") == name).sort("id").collect()
    return [entry[key] for entry in attributes(rows) if entry is not None]


def count(run: Any, name: str) -> int:
    """How many spans of a name were recorded."""
    return run.spans().filter(pl.col("name") == name).select("id").collect().height


def values(run: Any, name: str) -> list[float]:
    """The values of a metric in the order of their steps."""
    rows = run.metrics().filter(pl.col("name") == name).sort("step").collect()
    return rows["value"].to_list()


def main_process(run: Any) -> dict[str, Any]:
    """The row of the one main process."""
    (row,) = run.processes().filter(pl.col("role") == "main").collect().to_dicts()
    return row


def files_below(path: Path, pattern: str) -> list[str]:
    """Names of the files below a folder that match."""
    return sorted(p.name for p in path.rglob(pattern))


# Disks


def remove(folder: Path) -> None:
    """Remove a folder that is still being written to, including files that appear meanwhile."""
    for _ in range(100):
        shutil.rmtree(folder, ignore_errors=True)
        if not folder.exists():
            return
    raise AssertionError(f"{folder} comes back each time that it is removed")


def _call(*command: str) -> None:
    done = subprocess.run(command, capture_output=True, text=True)
    if done.returncode:
        pytest.skip(f"{' '.join(command)} does not work here: {done.stderr.strip()}")


@contextlib.contextmanager
def mounted(kind: str, megabytes: int, tmp_path: Path) -> Iterator[Path]:
    """A separate small file system: ``tmpfs``, or ``ext4`` in a file."""
    if os.geteuid() != 0:
        pytest.skip("needs root: it mounts a small file system to fill")
    point = tmp_path / f"disk-{kind}"
    point.mkdir()
    if kind == "ext4":
        if shutil.which("mkfs.ext4") is None:
            pytest.skip("needs mkfs.ext4 (e2fsprogs)")
        image = tmp_path / "disk.img"
        with image.open("wb") as file:
            file.truncate(megabytes << 20)
        _call("mkfs.ext4", "-q", "-m", "0", str(image))
        _call("mount", "-o", "loop", str(image), str(point))
    else:
        _call("mount", "-t", "tmpfs", "-o", f"size={megabytes}m", "tmpfs", str(point))
    try:
        yield point
    finally:
        subprocess.run(["umount", "-l", str(point)], check=True)


def remount(point: Path, how: str) -> None:
    """Make a mounted tmpfs ``ro`` or ``rw``."""
    subprocess.run(["mount", "-o", f"remount,{how}", str(point)], check=True)


def fill(point: Path) -> Path:
    """Fill a file system to its last byte with one file; returns it."""
    filler = point / "filler"
    with filler.open("ab", buffering=0) as file:
        for size in (1 << 20, 4096, 1):
            with contextlib.suppress(OSError):
                while file.write(bytes(size)) == size:
                    pass
        with contextlib.suppress(OSError):
            os.fsync(file.fileno())
    return filler
