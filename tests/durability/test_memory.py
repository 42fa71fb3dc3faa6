"""Flat memory: a process that records for long grows neither itself nor its files beyond measure."""

from __future__ import annotations

from pathlib import Path

import polars as pl
import pytest

from tests.durability.helpers import Child, main_process, only_run

CODE = """
def resident():
    with open("/proc/self/status") as file:
        return next(int(line.split()[1]) for line in file if line.startswith("VmRSS"))

def record(count):
    step = span("step")
    began = time.thread_time()
    for _ in range(count):
        with step:
            pass
    return (time.thread_time() - began) / count * 1e9

def work(count):
    # Something real inside each span, so that its timing is not always the same.
    step, numbers = span("step"), list(range(64))
    for i in range(count):
        with step:
            sum(numbers[: i % 64])
"""


def _soak(child: Child, tenth: int) -> tuple[float, list[float]]:
    """Record ten times ``tenth`` spans; returns the growth in MB and the cost of each tenth in ns."""
    # The first segments, their pages, zstd and the pump are there before it counts.
    child.do(CODE + "run = init('flat', dir='runs'); record(100_000); run.flush()")
    before = child.do("answer = resident()")
    costs = [child.do(f"answer = record({tenth}); run.flush()") for _ in range(10)]
    return (child.do("answer = resident()") - before) / 1024, costs


@pytest.mark.parametrize("spans", [300_000, pytest.param(1_000_000, marks=pytest.mark.full)])
def test_many_spans(tmp_path: Path, spans: int) -> None:
    """Several hundred thousand spans, or a million, grow the process by less than 20 MB."""
    with Child(tmp_path) as child:
        growth, _ = _soak(child, spans // 10)
        child.do("run.finish()")
    print(f"\n{spans:,} spans: {growth:+.1f} MB")
    assert growth < 20
    run = only_run(tmp_path / "runs")
    assert run.spans().select(pl.len()).collect().item() == 100_000 + spans


def test_bytes_per_span(tmp_path: Path) -> None:
    """A sealed span without attributes, with real timings, takes at most 10 bytes."""
    with Child(tmp_path) as child:
        child.do(CODE + "run = init('small', dir='runs'); work(300_000); run.finish()")
    run = only_run(tmp_path / "runs")
    size = sum(p.stat().st_size for p in run.path.glob("rank-*/*.zst"))
    print(f"\n{size / 300_000:.2f} bytes a span")
    assert run.spans().select(pl.len()).collect().item() == 300_000
    assert size <= 10 * 300_000


@pytest.mark.torture
def test_ten_million_spans(tmp_path: Path) -> None:
    """Ten million spans grow the process by less than 20 MB, and take at most 10 bytes each."""
    with Child(tmp_path) as child:
        growth, costs = _soak(child, 1_000_000)
        child.do("run.finish()")
    run = only_run(tmp_path / "runs")
    size = sum(p.stat().st_size for p in run.path.glob("rank-*/*.zst"))
    per_span = size / 10_100_000
    print(
        f"\n10,000,000 spans: {growth:+.1f} MB, {per_span:.2f} bytes a span, {costs[0]:.0f} ns at the "
        f"start, {costs[-1]:.0f} ns at the end ({costs[-1] / costs[0] - 1:+.0%})"
    )
    assert growth < 20
    assert per_span <= 10
    assert run.spans().select(pl.len()).collect().item() == 10_100_000
    assert main_process(run)["dropped"] == 0
