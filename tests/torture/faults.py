"""The faults that are injected into a training job while it trains.

Each one makes up for what it did, where that can be, and returns.
"""

from __future__ import annotations

import os
import random
import resource
import shutil
import signal
import subprocess
import time
from collections.abc import Callable
from contextlib import suppress
from dataclasses import dataclass

from stepwell._core.system import process_start
from tests.durability.helpers import fill
from tests.torture.job import WORLD, Job


@dataclass(frozen=True)
class Fault:
    """One way to hurt a job.

    Attributes:
        hurt: does it; returns when it is over.
        kills: whether training cannot survive it, with or without stepwell.
        may_drop: whether records may be dropped, which must be counted then.
        loses_folder: whether the run folder is gone.
        options: more for the program.
    """

    hurt: Callable[[Job, random.Random], None]
    kills: bool = False
    may_drop: bool = False
    loses_folder: bool = False
    options: tuple[tuple[str, object], ...] = ()


def kill_a_rank(job: Job, rng: random.Random) -> None:
    job.signal(rng.randrange(WORLD), signal.SIGKILL)


def kill_all(job: Job, _: random.Random) -> None:
    for rank in range(WORLD):
        job.signal(rank, signal.SIGKILL)


def terminate_all(job: Job, _: random.Random) -> None:
    for rank in range(WORLD):
        job.signal(rank, signal.SIGTERM)


def stop_a_rank(job: Job, rng: random.Random) -> None:
    rank = rng.randrange(WORLD)
    job.signal(rank, signal.SIGSTOP)
    time.sleep(1.0)
    job.signal(rank, signal.SIGCONT)


def kill_a_worker(job: Job, rng: random.Random) -> None:
    rank = rng.randrange(WORLD)
    for pid in job.workers(rank):
        os.kill(pid, signal.SIGKILL)


def _signal_sidecars(job: Job, number: int) -> None:
    for pid in job.sidecars():
        with suppress(ProcessLookupError):
            os.kill(pid, number)


def kill_sidecars(job: Job, _: random.Random) -> None:
    _signal_sidecars(job, signal.SIGKILL)


def terminate_sidecars(job: Job, _: random.Random) -> None:
    _signal_sidecars(job, signal.SIGTERM)


def stop_sidecars(job: Job, _: random.Random) -> None:
    _signal_sidecars(job, signal.SIGSTOP)
    time.sleep(1.0)
    _signal_sidecars(job, signal.SIGCONT)


def server_fails(job: Job, rng: random.Random) -> None:
    assert job.proxy is not None
    job.proxy.mode = rng.choice(["500", "500 afterwards", "hang", "hang afterwards"])
    time.sleep(2.0)
    job.proxy.mode = "well"


def full_disk(job: Job, _: random.Random) -> None:
    filler = fill(job.disk)
    time.sleep(1.0)
    filler.unlink()


def immutable_files(job: Job, _: random.Random) -> None:
    os.sync()
    subprocess.run(["chattr", "-R", "-f", "+i", str(job.runs)], check=False)
    time.sleep(1.0)
    subprocess.run(["chattr", "-R", "-f", "-i", str(job.runs)], check=False)


def read_only_disk(job: Job, _: random.Random) -> None:
    """Not while a file is open for writing: then the kernel refuses, and nothing happens."""
    subprocess.run(["mount", "-o", "remount,ro", str(job.disk)], check=False, capture_output=True)
    time.sleep(1.0)
    subprocess.run(["mount", "-o", "remount,rw", str(job.disk)], check=False, capture_output=True)


def removed_folder(job: Job, _: random.Random) -> None:
    shutil.rmtree(job.runs, ignore_errors=True)


def few_descriptors(job: Job, _: random.Random) -> None:
    """A few more than the job has open: DataLoaders need some."""
    for program in job.ranks:
        count = len(os.listdir(f"/proc/{program.pid}/fd")) + 8
        _limit_for_a_while(program.pid, resource.RLIMIT_NOFILE, count)


def small_files(job: Job, _: random.Random) -> None:
    for program in job.ranks:
        _limit_for_a_while(program.pid, resource.RLIMIT_FSIZE, 1 << 16)


def _limit_for_a_while(pid: int, what: int, limit: int) -> None:
    soft, hard = resource.prlimit(pid, what)
    resource.prlimit(pid, what, (limit, hard))
    time.sleep(0.7)
    if process_start(pid):
        resource.prlimit(pid, what, (soft, hard))


def interrupts(job: Job, rng: random.Random) -> None:
    """A handler records, at random microseconds."""
    for _ in range(300):
        for rank in range(WORLD):
            with suppress(ProcessLookupError):
                job.signal(rank, signal.SIGUSR1)
        time.sleep(rng.uniform(0, 0.004))


def nothing(_: Job, __: random.Random) -> None:
    """For comparison."""


HANDLER = (("handler", True),)
FAULTS: dict[str, Fault] = {
    "nothing": Fault(nothing),
    "kill a rank": Fault(kill_a_rank, kills=True),
    "kill all ranks": Fault(kill_all, kills=True),
    "SIGTERM": Fault(terminate_all, kills=True),
    "kill a DataLoader worker": Fault(kill_a_worker, kills=True),
    "stop a rank for a second": Fault(stop_a_rank),
    "kill sidecars": Fault(kill_sidecars),
    "terminate sidecars": Fault(terminate_sidecars),
    "stop sidecars for a second": Fault(stop_sidecars),
    "a server that fails": Fault(server_fails),
    "full disk": Fault(full_disk, may_drop=True),
    "immutable files": Fault(immutable_files, may_drop=True),
    "read-only disk": Fault(read_only_disk, may_drop=True),
    "removed folder": Fault(removed_folder, loses_folder=True),
    "few descriptors": Fault(few_descriptors, may_drop=True),
    "small files": Fault(small_files, may_drop=True),
    "interrupts": Fault(interrupts, options=HANDLER),
    "clock ahead": Fault(nothing, options=(("clock_at", 20), ("clock_by", 3600.0))),
    "clock back": Fault(nothing, options=(("clock_at", 20), ("clock_by", -3600.0))),
}
