"""Archives that a crash or a bad disk damaged."""

from __future__ import annotations

import shutil
from pathlib import Path
from typing import Any

import polars as pl
import pytest

import stepwell
from tests.durability.helpers import Child, numbers, only_run, values

SPANS = 60_000
TRAIN = f"""
run = init('torn', dir='runs', run_id='torn')
for i in range({SPANS}):
    with span("item", i=i):
        pass
    log({{"loss": float(i)}}, step=i)
    if i % 10_000 == 9_999:
        event("tick", i=i)
run.finish()
"""


@pytest.fixture(scope="module")
def whole(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The folder of runs of a whole one."""
    folder = tmp_path_factory.mktemp("whole")
    with Child(folder) as child:
        child.do(TRAIN)
    return folder / "runs"


@pytest.fixture
def run(whole: Path, tmp_path: Path) -> Any:
    """A copy of it, to be damaged."""
    shutil.copytree(whole, tmp_path / "runs")
    return only_run(tmp_path / "runs")


def _archive(run: Any, kind: str) -> Path:
    (path,) = run.path.glob(f"rank-*/{kind}-*.zst")
    return path


def _is_beginning(rows: list[Any], wanted: list[Any], fraction: float) -> None:
    """The rows read are the first rows written, up to about the damage."""
    assert rows == wanted[: len(rows)]
    assert len(rows) > (fraction - 0.35) * len(wanted)
    assert len(rows) < len(wanted)


def _read_everything(run: Any) -> None:
    for name in ("spans", "metrics", "events", "processes", "open_spans", "artifacts"):
        getattr(run, name)().collect()


@pytest.mark.sampled(2)
@pytest.mark.parametrize("fraction", [0.4, 0.7, 0.999])
def test_truncated(run: Any, fraction: float) -> None:
    """Blocks before the end of a truncated archive are read."""
    for kind in ("spans", "metrics"):
        path = _archive(run, kind)
        data = path.read_bytes()
        path.write_bytes(data[: int(len(data) * fraction)])
    _read_everything(run)
    _is_beginning(numbers(run, "item"), list(range(SPANS)), fraction)
    _is_beginning(values(run, "loss"), [float(i) for i in range(SPANS)], fraction)
    assert run.events().collect().height == SPANS // 10_000


@pytest.mark.parametrize("fraction", [0.4, 0.7, 0.999])
def test_flipped_bit(run: Any, fraction: float) -> None:
    """Blocks before a wrong bit are read, and no wrong data are returned."""
    for kind in ("spans", "metrics"):
        path = _archive(run, kind)
        data = bytearray(path.read_bytes())
        data[int(len(data) * fraction)] ^= 0x10
        path.write_bytes(data)
    _read_everything(run)
    _is_beginning(numbers(run, "item"), list(range(SPANS)), fraction)
    _is_beginning(values(run, "loss"), [float(i) for i in range(SPANS)], fraction)


@pytest.mark.sampled(2)
@pytest.mark.parametrize("size", [0, 1, 15, 16, 17, 40])
def test_hardly_begun(run: Any, size: int) -> None:
    """An archive of a few bytes is an empty one."""
    path = _archive(run, "spans")
    path.write_bytes(path.read_bytes()[:size])
    _read_everything(run)
    assert numbers(run, "item") == []
    assert len(values(run, "loss")) == SPANS


def test_next_attempt(run: Any, tmp_path: Path) -> None:
    """A run with a torn archive can be gone on with, and its next attempt is whole."""
    path = _archive(run, "spans")
    path.write_bytes(path.read_bytes()[: path.stat().st_size // 2])
    with Child(tmp_path) as child:
        child.do(TRAIN)
        assert child.do("answer = warnings") == []
    again = stepwell.open_run(run.path)
    second = again.spans().filter(pl.col("attempt") == 1).sort("id").collect()
    assert second.height == SPANS
    assert set(again.spans().collect()["attempt"]) == {0, 1}
    assert values(again, "loss") == [float(i) for i in range(SPANS)]
