"""A Dask cluster of real processes on this machine, reached by its address."""

from __future__ import annotations

import subprocess
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field

from tests.harness import REPOSITORY, Program, environment
from tests.harness.programs import free_port

HERE = ("--host", "127.0.0.1", "--no-dashboard")


@dataclass
class Cluster:
    address: str
    workers: list[Program] = field(default_factory=list)

    def add_worker(self) -> Program:
        command = ["worker", self.address, *HERE, "--no-nanny", "--nthreads", "1"]
        # They end with the scheduler if the test is killed.
        more = ("--memory-limit", "0", "--death-timeout", "60")
        self.workers.append(_start(*command, *more))
        return self.workers[-1]


@contextmanager
def cluster(workers: int) -> Iterator[Cluster]:
    port = free_port()
    scheduler = _start("scheduler", *HERE, "--port", str(port))
    made = Cluster(f"tcp://127.0.0.1:{port}")
    try:
        for _ in range(workers):
            made.add_worker()
        yield made
    finally:
        for process in (*made.workers, scheduler):
            process.kill()
            process.wait()


def _start(*words: str) -> Program:
    nothing = subprocess.DEVNULL
    return Program(
        ["-m", "dask", *words],
        cwd=REPOSITORY,
        env=environment(),
        stdin=nothing,
        stdout=nothing,
        stderr=nothing,
    )
