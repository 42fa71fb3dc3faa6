"""Series: as many points as the screen has room for, and no value that nobody sees."""

from __future__ import annotations

import math
import random
from pathlib import Path

import numpy as np
import polars as pl
import pytest

import stepwell
from stepwell import Run, StepwellError
from stepwell.analysis.cache import memory
from stepwell.analysis.detail import metric_list, series_at
from stepwell.journal import process_writer
from stepwell.journal.archive import Block
from stepwell.journal.process_writer import ProcessWriter
from stepwell.journal.state import local
from stepwell.reading import RecordedRun
from tests.analysis.detail.runs import CLOCK, Written

MILLISECOND = 1_000_000


@pytest.fixture
def written(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Written:
    """Runs with 50 metric rows in a segment."""
    monkeypatch.setattr(process_writer, "METRIC_ROWS", 50)
    return Written(tmp_path / "run")


def log_values(
    writer: ProcessWriter, name: str, values: list[float], first: int = 0, epoch_steps: int = 10
) -> None:
    for step, value in enumerate(values, first):
        clock = CLOCK + step * MILLISECOND
        writer.context(clock, step, step // epoch_steps)
        writer.metric(name, clock + 5, value, step)


def test_few_values_are_kept_as_they_are(written: Written) -> None:
    written.add(lambda writer: log_values(writer, "loss", [3.0, 2.0, 1.0]))
    (series,) = series_at(written.open(), ["loss", "no such metric"])
    assert (series.name, series.rank, series.count, series.is_downsampled) == (
        "loss",
        None,
        3,
        False,
    )
    assert series.x.tolist() == [0, 1, 2]
    assert series.y.tolist() == [3, 2, 1]
    assert (series.low, series.high, series.odd) == (None, None, [])


@pytest.mark.parametrize("seed", range(5))
def test_spikes_survive_downsampling(written: Written, seed: int) -> None:
    """Whatever the place of the highest and lowest value: they are in the band of their bucket."""
    chance = random.Random(seed)
    values = [chance.random() for _ in range(1000)]
    high, low = chance.sample(range(1000), 2)
    values[high], values[low] = 100.0, -100.0
    written.add(lambda writer: log_values(writer, "loss", values))
    (series,) = series_at(written.open(), ["loss"], points=20)
    assert series.is_downsampled
    assert series.count == 1000
    assert len(series.x) == 20
    assert series.low is not None
    assert series.high is not None
    assert series.high.argmax() == high * 20 // 999.001
    assert series.low.argmin() == low * 20 // 999.001
    assert (series.high.max(), series.low.min()) == (100.0, -100.0)
    # Buckets of 50 values: their means have the mean of all.
    assert series.y.mean() == pytest.approx(np.mean(values), abs=0.2)
    assert ((series.low <= series.y) & (series.y <= series.high)).all()


def test_values_that_are_not_finite_are_kept_apart(written: Written) -> None:
    values = [1.0, math.nan, 2.0, math.inf, -math.inf, 3.0]
    written.add(lambda writer: log_values(writer, "loss", values))
    run = written.open()
    (series,) = series_at(run, ["loss"])
    assert series.x.tolist() == [0, 2, 5]
    assert [(odd.x, odd.value) for odd in series.odd] == [(1, "nan"), (3, "inf"), (4, "-inf")]
    (info,) = metric_list(run).metrics
    assert (info.nonfinite, info.count, info.last, info.best, info.best_step) == (3, 6, 3.0, 1.0, 0)


def test_ranks_are_averaged_listed_or_spread(written: Written) -> None:
    for rank, values in enumerate([[1.0, 2.0], [3.0, 6.0]]):
        written.add(lambda writer, values=values: log_values(writer, "loss", values), rank=rank)
    run = written.open()
    (mean,) = series_at(run, ["loss"])
    assert (mean.rank, mean.y.tolist(), mean.low) == (None, [2.0, 4.0], None)
    ranks = series_at(run, ["loss"], by="rank")
    assert [(s.rank, s.y.tolist()) for s in ranks] == [(0, [1.0, 2.0]), (1, [3.0, 6.0])]
    (spread,) = series_at(run, ["loss"], by="spread")
    assert spread.low is not None
    assert spread.high is not None
    assert spread.y.tolist() == [2.0, 4.0]
    assert (spread.low.tolist(), spread.high.tolist()) == ([1.0, 2.0], [3.0, 6.0])
    (one,) = series_at(run, ["loss"], rank=1)
    assert (one.rank, one.y.tolist()) == (1, [3.0, 6.0])
    (info,) = metric_list(run).metrics
    assert (info.ranks, info.count, info.last, info.last_step) == (2, 4, 4.0, 1)


def test_a_later_attempt_overwrites_the_steps_that_it_repeats(written: Written) -> None:
    written.add(lambda writer: log_values(writer, "loss", [0.0] * 6), attempt=0)
    written.add(lambda writer: log_values(writer, "loss", [1.0] * 5, first=3), attempt=1)
    run = written.open()
    (series,) = series_at(run, ["loss"])
    table = run.metrics().sort("step").collect()
    assert series.x.tolist() == table["step"].to_list() == list(range(8))
    assert series.y.tolist() == table["value"].to_list() == [0, 0, 0, 1, 1, 1, 1, 1]
    (info,) = metric_list(run).metrics
    assert info.count == 8


def test_axes(written: Written) -> None:
    """Ten steps are an epoch, and a step is 8 samples."""
    written.document = {"config": {"global_batch_size": 8}}
    written.add(lambda writer: log_values(writer, "loss", [0.0] * 40))
    run = written.open()
    assert metric_list(run).axes == ["step", "epoch", "samples", "time"]
    expected = {
        "step": 12,
        "epoch": 1.2,
        "samples": 13 * 8,
        "time": 12 * MILLISECOND + 5,
    }
    for axis, place in expected.items():
        (series,) = series_at(run, ["loss"], x=axis)
        assert series.x[12] == pytest.approx(place), axis
    (none,) = series_at(run, ["loss"], x="tokens")
    assert len(none.x) == 0
    with pytest.raises(StepwellError, match="x must be"):
        series_at(run, ["loss"], x="sideways")


def test_a_running_count_is_an_axis(written: Written) -> None:
    def write(writer: ProcessWriter) -> None:
        log_values(writer, "loss", [0.0] * 5)
        log_values(writer, "tokens", [10.0, 20.0, 40.0, 80.0, 160.0])

    written.add(write)
    run = written.open()
    assert "tokens" in metric_list(run).axes
    (series,) = series_at(run, ["loss"], x="tokens")
    assert series.x.tolist() == [10, 20, 40, 80, 160]


def test_a_part_of_the_axis(written: Written) -> None:
    written.add(lambda writer: log_values(writer, "loss", [float(i) for i in range(200)]))
    (series,) = series_at(written.open(), ["loss"], start=50, end=59, points=1000)
    assert series.x.tolist() == list(range(50, 60))
    assert series.y.tolist() == list(range(50, 60))


def test_several_values_of_a_step_have_a_band(written: Written) -> None:
    def write(writer: ProcessWriter) -> None:
        writer.context(CLOCK, 0, 0)
        for number, value in enumerate([1.0, 9.0, 2.0]):
            writer.metric("system/cpu_percent", CLOCK + number, value, 0)

    written.add(write)
    run = written.open()
    (series,) = series_at(run, ["system/cpu_percent"])
    assert series.high is not None
    assert (series.y.tolist(), series.high.tolist()) == ([4.0], [9.0])
    (timed,) = series_at(run, ["system/cpu_percent"], x="time")
    assert timed.y.tolist() == [1.0, 9.0, 2.0]


def brute_force(run: RecordedRun, name: str) -> list[tuple[int, float]]:
    table = run.metrics().filter(pl.col("name") == name).group_by("step")
    return table.agg(pl.col("value").mean()).sort("step").collect().rows()


@pytest.mark.parametrize("seed", range(3))
def test_series_are_those_of_brute_force(written: Written, seed: int) -> None:
    """Several ranks, attempts and names; with steps, without, and with those of the context."""
    chance = random.Random(seed)

    def write(writer: ProcessWriter) -> None:
        clock = CLOCK
        for _ in range(300):
            clock += chance.randrange(1, 1000)
            kind = chance.randrange(4)
            if kind == 0:
                writer.context(clock, chance.randrange(100), chance.randrange(3))
            else:
                step = None if kind == 1 else chance.randrange(-5, 100)
                writer.metric(chance.choice("abc"), clock, chance.random(), step)

    for attempt in range(2):
        for rank in range(3):
            written.add(write, rank=rank, attempt=attempt, started=attempt)
    run = written.open()
    for _ in range(2):
        for name in "abc":
            (series,) = series_at(run, [name], points=10_000)
            expected = brute_force(run, name)
            assert series.x.tolist() == [step for step, _ in expected]
            assert series.y.tolist() == pytest.approx([value for _, value in expected])
        counts = {info.name: info.count for info in metric_list(run).metrics}
        assert sum(counts.values()) == run.metrics().collect().height
        memory.clear()


def test_the_second_call_unpacks_no_segment(written: Written, unpacked: list[Block]) -> None:
    written.add(lambda writer: log_values(writer, "loss", [1.0] * 500))
    run = written.open()
    first = series_at(run, ["loss"]), metric_list(run)
    unpacked.clear()
    memory.clear()
    second = series_at(run, ["loss"]), metric_list(run)
    assert unpacked == []
    assert first[1] == second[1]
    assert first[0][0].y.tolist() == second[0][0].y.tolist()


@pytest.mark.parametrize("damage", ["cut", "flip", "empty"])
def test_a_damaged_cache_is_made_again(written: Written, cache: Path, damage: str) -> None:
    written.add(lambda writer: log_values(writer, "loss", [float(i) for i in range(500)]))
    run = written.open()
    expected = series_at(run, ["loss"])[0].y.tolist(), metric_list(run)
    for path in cache.rglob("*.shelf"):
        data = bytearray(path.read_bytes())
        if damage == "cut":
            del data[len(data) // 2 :]
        elif damage == "flip":
            data[-20:] = bytes(20)
        path.write_bytes(b"" if damage == "empty" else bytes(data))
    memory.clear()
    assert (series_at(run, ["loss"])[0].y.tolist(), metric_list(run)) == expected


def test_without_a_cache_folder_everything_is_there(
    written: Written, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    (tmp_path / "file").write_text("")
    monkeypatch.setenv("STEPWELL_CACHE", str(tmp_path / "file"))
    written.add(lambda writer: log_values(writer, "loss", [1.0] * 200))
    run = written.open()
    assert series_at(run, ["loss"])[0].count == 200
    assert metric_list(run).metrics[0].count == 200


def test_a_live_run_shows_new_values(recorded: Run) -> None:
    for step in range(5):
        recorded.set_step(step)
        recorded.log({"loss": float(step)})
        assert local.lane.roll_metrics()
        recorded.flush()
    run = stepwell.open_run(recorded.path)
    assert series_at(run, ["loss"])[0].y.tolist() == [0, 1, 2, 3, 4]
    recorded.set_step(5)
    recorded.log({"loss": 5.0})
    assert series_at(run, ["loss"])[0].y.tolist() == [0, 1, 2, 3, 4, 5]
    (info,) = [info for info in metric_list(run).metrics if info.name == "loss"]
    assert (info.count, info.last, info.last_step) == (6, 5.0, 5)


def test_a_run_without_metrics_has_none(written: Written) -> None:
    written.add(lambda writer: writer.span("x", "", CLOCK, CLOCK + 1) and None)
    run = written.open()
    assert series_at(run, ["loss"]) == []
    assert metric_list(run).metrics == []
    assert metric_list(run).axes == ["step", "time"]
