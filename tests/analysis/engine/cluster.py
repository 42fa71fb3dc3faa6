"""A Dask cluster of real processes on this machine, reached by its address."""

from __future__ import annotations

import socket
import subprocess
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field
from pathlib import Path

DASK = (sys.executable, "-m", "dask")
HERE = ("--host", "127.0.0.1", "--no-dashboard")


@dataclass
class Cluster:
    address: str
    workers: list[subprocess.Popen[bytes]] = field(default_factory=list)

    def add_worker(self) -> subprocess.Popen[bytes]:
        command = [*DASK, "worker", self.address, *HERE, "--no-nanny", "--nthreads", "1"]
        # They go when the scheduler does, should the test be killed.
        more = ("--memory-limit", "0", "--death-timeout", "60")
        self.workers.append(_start(*command, *more))
        return self.workers[-1]


@contextmanager
def cluster(workers: int) -> Iterator[Cluster]:
    port = _free_port()
    scheduler = _start(*DASK, "scheduler", *HERE, "--port", str(port))
    made = Cluster(f"tcp://127.0.0.1:{port}")
    try:
        for _ in range(workers):
            made.add_worker()
        yield made
    finally:
        for process in (*made.workers, scheduler):
            process.kill()
            process.wait()


def _start(*command: str) -> subprocess.Popen[bytes]:
    place = Path(__file__).parents[3]
    return subprocess.Popen(
        command, cwd=place, stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL
    )


def _free_port() -> int:
    with socket.socket() as found:
        found.bind(("127.0.0.1", 0))
        return int(found.getsockname()[1])
