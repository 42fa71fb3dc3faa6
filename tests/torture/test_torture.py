"""A real training job under every fault: training notices nothing, and nothing is lost uncounted."""

from __future__ import annotations

import os
import random
import signal
import time
from collections import Counter
from collections.abc import Iterator
from contextlib import suppress
from pathlib import Path

import pytest

from tests.durability.helpers import mounted
from tests.harness import wait_until
from tests.loggers.faulty_proxy import FaultyProxy
from tests.loggers.mlflow_server import Server
from tests.loggers.needs import needs
from tests.torture.faults import FAULTS
from tests.torture.job import WORLD, Job
from tests.torture.verify import check_run, check_steps, check_trackers, check_training

pytestmark = [
    pytest.mark.root,
    pytest.mark.torch,
    pytest.mark.filterwarnings("ignore"),
    needs("mlflow", "tensorboard"),
]

SHORT = (
    *("kill a rank", "kill all ranks", "kill sidecars", "a server that fails", "full disk"),
    *("immutable files", "removed folder", "few descriptors", "interrupts"),
)
"""About two minutes of it, for the full suite."""
SECONDS = float(os.environ.get("TORTURE_SECONDS", 15 * 60))
DISK_MB = 96
TORCHRUN = "kill a rank of torchrun"


class Torture:
    """Rounds on one MLflow server; what each came to is printed at the end."""

    def __init__(self, folder: Path, server: Server) -> None:
        self.folder = folder
        self.server = server
        self.weights: str | None = None
        self.rounds: Counter[str] = Counter()
        self.records = 0

    def round(self, name: str, seed: int) -> None:
        """Train, hurt, and look at what is left."""
        rng, fault = random.Random(seed), FAULTS[name]
        folder = self.folder / f"{sum(self.rounds.values())}-{name.replace(' ', '-')}"
        folder.mkdir()
        print(f"{name}, seed {seed}", flush=True)
        proxy = FaultyProxy(self.server.port)
        with mounted("ext4", DISK_MB, folder) as disk:
            job = Job(folder, disk, proxy, options=dict(fault.options))
            try:
                self._train(job, name, rng)
                self.records += check_run(job, fault)
                check_trackers(job, fault)
            finally:
                job.end()
                proxy.close()
        self.rounds[name] += 1

    def torchrun(self, seed: int) -> None:
        """Kill a rank that PyTorch's launcher has started, then start the job again, as a scheduler does."""
        rng, fault = random.Random(seed), FAULTS["kill a rank"]
        folder = self.folder / f"{sum(self.rounds.values())}-torchrun"
        folder.mkdir()
        print(f"{TORCHRUN}, seed {seed}", flush=True)
        proxy = FaultyProxy(self.server.port)
        with mounted("ext4", DISK_MB, folder) as disk:
            job = Job(folder, disk, proxy)
            launcher = job.launch()
            try:
                far = rng.randrange(5, 30)
                wait_until(lambda: all(len(job.steps_of(rank)) > far for rank in range(WORLD)))
                os.kill(job.book(rng.randrange(WORLD))[0]["pid"], signal.SIGKILL)
                assert launcher.wait(120) != 0
                launcher = job.launch()
                assert launcher.wait(240) == 0, job.stderr(0)
                self.weights = check_steps(job, self.weights)
                self.records += check_run(job, fault)
                check_trackers(job, fault)
            finally:
                with suppress(ProcessLookupError):
                    os.killpg(launcher.pid, signal.SIGKILL)
                launcher.wait(60)
                job.end()
                proxy.close()
        self.rounds[TORCHRUN] += 1

    def _train(self, job: Job, name: str, rng: random.Random) -> None:
        fault = FAULTS[name]
        job.start()
        job.wait_for_step(rng.randrange(5, 30))
        fault.hurt(job, rng)
        self.weights = check_training(job, fault, self.weights) or self.weights
        if fault.kills and rng.random() < 0.5:
            job.start()
            self.weights = check_training(job, FAULTS["nothing"], self.weights)


@pytest.fixture(scope="module")
def torture(tmp_path_factory: pytest.TempPathFactory, server: Server) -> Iterator[Torture]:
    """All rounds of this module train the same model."""
    made = Torture(tmp_path_factory.mktemp("torture"), server)
    yield made
    told = ", ".join(f"{count} x {name}" for name, count in made.rounds.items())
    print(f"\n{made.records:,} records compared in {made.rounds.total()} rounds: {told}")


@pytest.mark.full
@pytest.mark.parametrize("name", SHORT)
def test_a_round(torture: Torture, name: str) -> None:
    """One of each of the faults that are met most often."""
    torture.round(name, int.from_bytes(os.urandom(4), "big"))


@pytest.mark.full
def test_a_killed_job_of_torchrun_is_started_again(torture: Torture) -> None:
    """Records of both attempts are in one run, and in the trackers once."""
    torture.torchrun(int.from_bytes(os.urandom(4), "big"))


@pytest.mark.torture
def test_a_quarter_of_an_hour(torture: Torture) -> None:
    """All faults in turn, at random moments."""
    end = time.monotonic() + SECONDS
    for number in range(1_000_000):
        if time.monotonic() >= end:
            break
        name = [*FAULTS, TORCHRUN][number % (len(FAULTS) + 1)]
        seed = int.from_bytes(os.urandom(4), "big")
        if name == TORCHRUN:
            torture.torchrun(seed)
        else:
            torture.round(name, seed)
