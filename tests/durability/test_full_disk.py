"""A disk that fills up: recording stops and resumes, training never notices."""

from __future__ import annotations

import contextlib
from pathlib import Path
from typing import Any

import polars as pl
import pytest

from tests.durability.helpers import (
    Child,
    attributes,
    count,
    fill,
    main_process,
    mounted,
    numbers,
    only_run,
    values,
)
from tests.harness import wait_until

pytestmark = pytest.mark.root

TRAIN = """
def train(begin, count, leaves=20):
    for i in range(begin, begin + count):
        with span("item", i=i):
            for _ in range(leaves):
                with span("leaf"):
                    pass
            log({"loss": float(i)}, step=i)
        event("tick", i=i)
"""


@pytest.fixture(params=["tmpfs", pytest.param("ext4", marks=pytest.mark.full)])
def disk(request: pytest.FixtureRequest, tmp_path: Path):
    with mounted(request.param, 24, tmp_path) as point:
        yield point


def test_full_disk(disk: Path, tmp_path: Path) -> None:
    """On a full disk training goes on with one warning, drops are counted and shown, all from
    before is kept, and recording resumes by itself when there is space again.
    """
    with Child(tmp_path) as child:
        child.do(TRAIN + f"run = init('full', dir={str(disk)!r})")
        child.do("train(0, 500)")
        filler = fill(disk)
        # 63,000 spans: more than what was allocated before can take.
        child.do("train(1000, 3000)")
        (warning,) = child.do("answer = warnings")
        filler.unlink()
        child.do("begin = 10_000")
        wait_until(lambda: _recording_again(child, disk))
        at = child.do("answer = begin; train(begin, 500)")
        assert child.do("answer = warnings") == [warning]
        child.do("run.finish()")
        assert child.end() == 0
    assert "No space left on device" in warning
    assert "Training continues" in warning
    run = only_run(disk)
    before = list(range(500))
    after = list(range(at, at + 500))
    items, losses = numbers(run, "item"), values(run, "loss")
    ticks = [a["i"] for a in attributes(_ticks(run))]
    for found in (items, losses, ticks):
        assert found[:500] == before
        assert found[-500:] == after
    trained = 500 + 3000 + (at - 10_000) + 500
    kept = len(items) + count(run, "item") + count(run, "leaf") + len(losses) + len(ticks)
    # Attributes, items, leaves, losses and ticks; where a span found no space, its attributes are
    # not counted once more.
    lost_with_span = trained - count(run, "item")
    assert main_process(run)["dropped"] == (1 + 1 + 20 + 1 + 1) * trained - kept - lost_with_span
    assert lost_with_span > 0


def _ticks(run: Any) -> pl.DataFrame:
    return run.events().filter(pl.col("name") == "tick").sort("time_ns").collect()


def _recording_again(child: Child, disk: Path) -> bool:
    """Train one more item, and see whether it can be read."""
    i = child.do("answer = begin; train(begin, 1); begin += 1")
    run = only_run(disk)
    return i in numbers(run, "item") and i in [a["i"] for a in attributes(_ticks(run))]


def test_full_disk_new_names(disk: Path, tmp_path: Path) -> None:
    """A name that was first used while the disk was full is known once there is space again, also
    after kill -9.
    """
    with Child(tmp_path) as child:
        child.do(f"run = init('names', dir={str(disk)!r})\nwith span('before'): pass")
        filler = fill(disk)
        code = (
            "for i in range(2000):\n    with span(f'new-{i}', i=i): pass\n    log({f'm-{i}': 1.0})"
        )
        child.do(code)
        filler.unlink()
        wait_until(lambda: _names(disk) >= {"before", *(f"new-{i}" for i in range(2000))})
        child.kill()
    assert not [n for n in _names(disk) if "lost" in n]


def test_full_disk_many_names(disk: Path, tmp_path: Path) -> None:
    """A new name on a full disk does not drag along all names that wait for space."""
    count_bytes = """
from stepwell.journal import names
class Counting:
    tried = 0
    def __getattr__(self, name):
        return getattr(os, name)
    def write(self, fd, data):
        self.tried += len(data)
        return os.write(fd, data)
names.os = Counting()
"""
    with Child(tmp_path) as child:
        child.do(count_bytes + f"run = init('names', dir={str(disk)!r})\nwith span('before'): pass")
        filler = fill(disk)
        child.do("for i in range(3000):\n    with span(f'new-{i}'): pass")
        tried = child.do("answer = names.os.tried")
        filler.unlink()
        wait_until(lambda: f"new-{2999}" in _names(disk))
    # All names together are a quarter of a megabyte.
    assert tried < 10_000_000


def _names(disk: Path) -> set[str]:
    return set(only_run(disk).spans().select("name").unique().collect()["name"])


@pytest.mark.full
def test_full_disk_at_start(disk: Path, tmp_path: Path) -> None:
    """A run that starts on a full disk begins to record when there is space."""
    filler = fill(disk)
    with Child(tmp_path) as child:
        child.do(
            TRAIN + f"run = init('late', dir={str(disk)!r}, config={{'lr': 1}})\ntrain(0, 100)"
        )
        assert len(child.do("answer = warnings")) == 1
        filler.unlink()
        child.do("begin = 10_000")
        wait_until(lambda: list(disk.glob("*/rank-*/process.json")))
        wait_until(lambda: _recording_again(child, disk))
        child.do("run.finish()")
        assert len(child.do("answer = warnings")) == 1
    run = only_run(disk)
    assert main_process(run)["dropped"] > 0
    assert run.config == {"lr": 1}
    assert run.status == "finished"


def test_finish_on_full_disk(disk: Path, tmp_path: Path) -> None:
    """Finishing on a full disk comes to an end and loses nothing that had been recorded."""
    with Child(tmp_path) as child:
        child.do(TRAIN + f"run = init('end', dir={str(disk)!r})\ntrain(0, 2000)")
        filler = fill(disk)
        child.do("run.finish(timeout=60)")
        # None, when what finish gives back was enough space to seal the rest.
        assert len(child.do("answer = warnings")) <= 1
        assert child.end() == 0
    with contextlib.suppress(FileNotFoundError):
        filler.unlink()
    assert numbers(only_run(disk), "item") == list(range(2000))
    assert values(only_run(disk), "loss") == [float(i) for i in range(2000)]


@pytest.mark.full
def test_full_to_the_end(disk: Path, tmp_path: Path) -> None:
    """A disk that stays full does not keep the run from saying how it ended and what it lost."""
    with Child(tmp_path) as child:
        child.do(TRAIN + f"run = init('end', dir={str(disk)!r})\ntrain(0, 500)")
        fill(disk)
        child.do("train(1000, 3000)")
        # Whatever sealing gives back is taken too.
        fill(disk)
        child.do("train(4000, 3000); run.finish(timeout=60)")
        assert child.end() == 0
    run = only_run(disk)
    assert run.status == "finished"
    # At least 63,000 spans of the second part, and none of the first.
    assert main_process(run)["dropped"] > 60_000


def test_full_disk_killed(disk: Path, tmp_path: Path) -> None:
    """Killed while the disk is full: everything from before is there, and the drops are shown."""
    with Child(tmp_path) as child:
        child.do(TRAIN + f"run = init('killed', dir={str(disk)!r})\ntrain(0, 500)")
        filler = fill(disk)
        child.do("train(1000, 3000)")
        child.kill()
    filler.unlink()
    run = only_run(disk)
    items = numbers(run, "item")
    assert items[:500] == list(range(500))
    assert items == sorted(items)
    assert values(run, "loss")[:500] == [float(i) for i in range(500)]
    assert run.status == "killed"
