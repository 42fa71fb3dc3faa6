"""A training job to hurt: its processes, its disk and its trackers."""

from __future__ import annotations

import json
import os
import signal
import subprocess
import sys
from collections.abc import Iterator
from contextlib import suppress
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from stepwell._core.system import is_alive
from tests.harness import environment, wait_until
from tests.harness.programs import Program, free_port, start_rank
from tests.loggers.faulty_proxy import FaultyProxy
from tests.torture import program

WORLD = 2
QUICK = {
    "MLFLOW_HTTP_REQUEST_TIMEOUT": "5",
    "MLFLOW_HTTP_REQUEST_MAX_RETRIES": "0",
    "STEPWELL_FINISH_TIMEOUT": "120",
}
"""Deliveries find out soon that a server does not answer."""


@dataclass
class Job:
    """Two ranks that train below ``folder``, with runs on a disk of their own.

    Attributes:
        folder: where the book is, and what exporters and trackers write.
        disk: the file system that runs are on.
        proxy: in front of the MLflow server; None without MLflow.
        steps: how many steps are trained.
        options: more for the program.
    """

    folder: Path
    disk: Path
    proxy: FaultyProxy | None = None
    steps: int = 60
    options: dict[str, Any] = field(default_factory=dict)
    ranks: list[Program] = field(default_factory=list)
    attempt: int = -1

    @property
    def runs(self) -> Path:
        return self.disk / "runs"

    @property
    def experiment(self) -> str:
        return f"torture {self.folder.name}"

    def start(self) -> None:
        """Start all ranks, as a new attempt."""
        self.attempt += 1
        options, env, port = self._options(), self._environment(), free_port()
        self.ranks = [
            start_rank(
                Path(program.__file__),
                options,
                rank=rank,
                world=WORLD,
                port=port,
                restarts=self.attempt,
                env=env,
                cwd=self.folder,
                stdin=subprocess.DEVNULL,
                stdout=subprocess.DEVNULL,
                stderr=self._stderr(rank).open("wb"),
                start_new_session=True,
            )
            for rank in range(WORLD)
        ]

    def launch(self) -> subprocess.Popen[bytes]:
        """Start all ranks with PyTorch's launcher, as a new attempt."""
        self.attempt += 1
        return subprocess.Popen(
            [
                *(sys.executable, "-m", "torch.distributed.run", "--standalone"),
                *(f"--nproc-per-node={WORLD}", program.__file__, self._options()),
            ],
            env=self._environment(),
            cwd=self.folder,
            stdin=subprocess.DEVNULL,
            stdout=subprocess.DEVNULL,
            stderr=self._stderr(0).open("wb"),
            start_new_session=True,
        )

    def _options(self) -> str:
        files = self.folder / "files"
        for needed in (files, self.folder / "book"):
            needed.mkdir(exist_ok=True)
        options = {
            "book": str(self.folder / "book"),
            "runs": str(self.runs),
            "files": str(files),
            "steps": self.steps,
            "pause": 0.02,
            "mlflow": self.proxy and self.proxy.url,
            "experiment": self.experiment,
            "attempt": self.attempt,
            **self.options,
        }
        return json.dumps(options)

    def _environment(self) -> dict[str, str]:
        return environment(HOME=str(self.folder), STEPWELL_RUN_ID="torture", **QUICK)

    def _stderr(self, rank: int) -> Path:
        return self.folder / f"stderr-{rank}-{self.attempt}"

    # What it does

    def book(self, rank: int, attempt: int | None = None) -> list[dict[str, Any]]:
        """Return the records that a rank has written so far."""
        number = self.attempt if attempt is None else attempt
        path = self.folder / "book" / f"rank-{rank}.attempt-{number}.jsonl"
        if not path.exists():
            return []
        return [json.loads(line) for line in path.read_text().splitlines()]

    def steps_of(self, rank: int, attempt: int | None = None) -> list[dict[str, Any]]:
        return [entry for entry in self.book(rank, attempt) if "step" in entry]

    def wait_for_step(self, step: int) -> None:
        """Until each rank is that far."""

        def is_there() -> bool:
            for rank in range(WORLD):
                assert self.ranks[rank].poll() is None, self.stderr(rank)
                if len(self.steps_of(rank)) <= step:
                    return False
            return True

        wait_until(is_there, 120)

    def stderr(self, rank: int) -> str:
        return self._stderr(rank).read_text(errors="replace")[-3000:]

    def wait(self, seconds: float = 180) -> list[int]:
        """The exit codes of all ranks."""
        return [rank.wait(seconds) for rank in self.ranks]

    # Its processes

    def sidecars(self, rank: int = 0, attempt: int | None = None) -> list[int]:
        """The sidecars of a rank that still run."""
        first = self.book(rank, attempt)[:1]
        pairs = [pair for entry in first for pair in entry["sidecars"]]
        return [pid for pid, start in pairs if start and is_alive(pid, start)]

    def all_sidecars(self) -> list[int]:
        """Those of earlier attempts too: the sidecar of a killed rank delivers for up to a minute."""
        attempts = range(self.attempt + 1)
        return [pid for attempt in attempts for pid in self.sidecars(attempt=attempt)]

    def workers(self, rank: int) -> list[int]:
        """DataLoader workers of a rank."""
        return [pid for pid in children(self.ranks[rank].pid) if pid not in self.sidecars(rank)]

    def signal(self, rank: int, number: int) -> None:
        os.kill(self.ranks[rank].pid, number)

    def end(self) -> None:
        """Kill what is left."""
        for rank in self.ranks:
            with suppress(ProcessLookupError):
                os.killpg(rank.pid, signal.SIGKILL)
            rank.wait(60)
        for pid in self.all_sidecars():
            with suppress(ProcessLookupError):
                os.kill(pid, signal.SIGKILL)


def children(pid: int) -> Iterator[int]:
    """The processes that a process has started."""
    with suppress(OSError):
        for task in Path(f"/proc/{pid}/task").iterdir():
            yield from map(int, (task / "children").read_text().split())
