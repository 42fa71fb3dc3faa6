"""``python -m tests.fuzz``: damages files of every kind at random, reads them, and prints the results.

``--file F --reader R --seed N`` repeats one case.
"""

from __future__ import annotations

import argparse
import json
import os
import random
import re
import subprocess
import sys
import tempfile
import threading
import time
from collections import defaultdict
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from tests.fuzz.readers import OF_RUNS
from tests.fuzz.samples import make_runs, make_traces

LONGEST = 60.0
"""Seconds after which a reader hangs."""
MOST_MB = 1024


@dataclass
class Kind:
    """The results for one kind of file."""

    count: int = 0
    refused: int = 0
    seconds: float = 0.0
    mb: float = 0.0
    bad: list[str] = field(default_factory=list)


class Worker:
    """A process that reads; another one takes its place when it dies or hangs."""

    def __init__(self, folder: Path) -> None:
        self._folder = folder
        self._process: subprocess.Popen[str] | None = None

    def do(self, file: str, reader: str, seed: int) -> dict[str, Any]:
        """Have a file damaged and read."""
        process = self._process = self._process or self._start()
        assert process.stdin is not None
        assert process.stdout is not None
        process.stdin.write(json.dumps([file, reader, seed]) + "\n")
        process.stdin.flush()
        timer = threading.Timer(LONGEST, process.kill)
        timer.start()
        line = process.stdout.readline()
        timer.cancel()
        if line:
            answer: dict[str, Any] = json.loads(line)
            return answer
        self.end()
        return {"outcome": "died", "seconds": 0.0, "mb": 0.0, "trace": f"code {process.wait()}"}

    def end(self) -> None:
        """End the process."""
        if self._process is not None:
            self._process.kill()
            self._process.communicate()
            self._process = None

    def _start(self) -> subprocess.Popen[str]:
        command = [sys.executable, "-m", "tests.fuzz.worker", str(self._folder)]
        return subprocess.Popen(
            command,
            env={**os.environ, "STEPWELL_QUIET": "1"},
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            stderr=subprocess.DEVNULL,
            text=True,
        )


class Fuzz:
    """Samples, and what came of each kind of file with each reader."""

    def __init__(self, folder: Path) -> None:
        self.folder = folder
        runs, traces = make_runs(folder), make_traces(folder / "traces")
        files = [path for run in runs for path in run.rglob("*") if path.is_file()]
        files = [path for path in files if path.stat().st_size]
        self.pairs = [(str(path.relative_to(folder)), "import") for path in traces]
        self.pairs += [
            (str(path.relative_to(folder)), reader) for path in files for reader in OF_RUNS
        ]
        self.kinds: dict[tuple[str, str], Kind] = defaultdict(Kind)
        self.worker = Worker(folder)
        (folder / "outside").write_text('"OUTSIDE"')

    def round(self, file: str, reader: str, seed: int) -> Kind:
        """One file with one reader."""
        outcome = self.worker.do(file, reader, seed)
        kind = self.kinds[reader, _kind(file)]
        kind.count += 1
        kind.refused += outcome["outcome"] == "refused"
        kind.seconds = max(kind.seconds, outcome["seconds"])
        kind.mb = max(kind.mb, outcome["mb"])
        if outcome["outcome"] not in ("read", "refused") or outcome["mb"] > MOST_MB:
            kind.bad.append(f"--file {file} --reader {reader} --seed {seed}\n{outcome['trace']}")
        return kind


def _kind(file: str) -> str:
    path = Path(file)
    if path.suffix:
        return re.sub(
            r"\d+", "N", path.name if path.parent.name != "attempts" else "attempts/N.json"
        )
    return "items/…"


@contextmanager
def fuzzing() -> Iterator[Fuzz]:
    """Samples in a folder of their own."""
    with tempfile.TemporaryDirectory() as folder:
        fuzz = Fuzz(Path(folder))
        try:
            yield fuzz
        finally:
            fuzz.worker.end()


def main() -> int:
    """Print a table; whether anything was wrong."""
    parser = argparse.ArgumentParser(prog="python -m tests.fuzz", description=__doc__)
    parser.add_argument("--seconds", type=float, default=300)
    parser.add_argument("--file", default="", help="only files with this in their path")
    parser.add_argument("--reader", default="")
    parser.add_argument("--seed", type=int)
    asked = parser.parse_args()
    with fuzzing() as fuzz:
        pairs = [p for p in fuzz.pairs if asked.file in p[0] and asked.reader in p[1]]
        end = time.monotonic() + asked.seconds
        while time.monotonic() < end:
            seed = random.getrandbits(32) if asked.seed is None else asked.seed
            fuzz.round(*random.choice(pairs), seed)
            if asked.seed is not None:
                break
        print(
            f"{'reader':9}{'file':28}{'damaged':>9}{'refused':>9}{'worst s':>9}{'worst MB':>10}{'bad':>5}"
        )
        for (reader, name), kind in sorted(fuzz.kinds.items()):
            figures = f"{kind.count:9,}{kind.refused:9,}{kind.seconds:9.2f}{kind.mb:10.0f}{len(kind.bad):5}"
            print(f"{reader:9}{name:28}{figures}")
        bad = [text for kind in fuzz.kinds.values() for text in kind.bad]
        print(f"{sum(kind.count for kind in fuzz.kinds.values()):,} damaged files, {len(bad)} bad")
        for text in bad[:20]:
            print("\n" + text)
    return bool(bad)


if __name__ == "__main__":
    sys.exit(main())
