"""kill -9 at a random moment: nothing whose call had returned is lost, and nothing is torn."""

from __future__ import annotations

import os
import random
import shutil
import subprocess
import time
from collections.abc import Iterator
from pathlib import Path

import pytest

from tests.durability import watcher
from tests.durability.helpers import only_run
from tests.durability.verify import Tables, verify
from tests.durability.victims import WITHOUT_END, Nursery
from tests.harness import start_script

pytestmark = pytest.mark.torch

LENGTHS = (0, WITHOUT_END, 64, WITHOUT_END, 64)
"""Lengths of the datasets, by lot: none, one epoch without end, or many short ones."""
ROUNDS = 10
FEW_ROUNDS = 2
MANY_ROUNDS = 60
LATEST = 0.3
"""Seconds: by then the busiest thread is in its third segment or a later one."""
POLLS = 8


@pytest.fixture(scope="module")
def nursery() -> Iterator[Nursery]:
    """One for all rounds."""
    nursery = Nursery()
    yield nursery
    nursery.close()


@pytest.mark.parametrize(
    ("lot", "rounds"),
    [
        *((lot, FEW_ROUNDS) for lot in range(3)),
        *(pytest.param(lot, ROUNDS, marks=pytest.mark.full) for lot in range(5)),
        *(pytest.param(lot, MANY_ROUNDS, marks=pytest.mark.torture) for lot in range(5)),
    ],
)
def test_kill(
    nursery: Nursery, tmp_path: Path, lot: int, rounds: int, request: pytest.FixtureRequest
) -> None:
    """Rounds of kill -9 with 3 threads, alone, with a DataLoader, or with many short epochs:
    every record whose call had returned is read back whole, and open spans are named.
    """
    moments = random.Random(os.urandom(8))
    seen = []
    for number in range(rounds):
        folder = tmp_path / str(number)
        victim = nursery.start(folder, LENGTHS[lot])
        time.sleep(moments.uniform(0, LATEST))
        victim.kill()
        run = only_run(folder / "runs")
        assert run.status == "killed"
        tables = Tables(run)
        verify(tables, victim.book)
        seen.append(tables.height())
        # A failed test keeps the files of the failed round.
        shutil.rmtree(folder)
    print(f"\n{request.node.name}: {sum(seen):,} spans, {min(seen):,} to {max(seen):,} a round")


@pytest.mark.parametrize(
    ("length", "rest"),
    [(WITHOUT_END, 0.005), pytest.param(64, 0.01, marks=pytest.mark.full)],
)
def test_live_reader(nursery: Nursery, tmp_path: Path, length: int, rest: float) -> None:
    """A reader that polls at full speed never fails and never sees a half-written record, neither
    while the run is written nor after it was killed.
    """
    victim = nursery.start(tmp_path, length, rest)
    with start_script(
        Path(watcher.__file__),
        tmp_path / "runs",
        stdin=subprocess.PIPE,
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        text=True,
    ) as reader:
        assert reader.stdout is not None
        seen = [reader.stdout.readline() for _ in range(POLLS)]
        victim.kill()
        seen += [reader.stdout.readline() for _ in range(2)]
        _, err = reader.communicate()
    assert reader.returncode == 0, err[-4000:]
    print(f"\n{len(seen)} polls, {int(seen[-1]):,} records in the last")
    verify(Tables(only_run(tmp_path / "runs")), victim.book)
