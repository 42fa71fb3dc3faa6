"""How fast runs were, and which phase makes the difference."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest

import stepwell
from stepwell.analysis.compare import compare, time_table
from stepwell.analysis.goodput import goodput
from stepwell.reading import RecordedRun
from stepwell.testing import FakeClock
from tests.analysis.findings.training import train
from tests.harness import run_stepwell


def trained(folder: Path, times: dict[str, float], **more: Any) -> RecordedRun:
    """A training of 100 steps whose parts take these seconds where they do not take the usual ones."""
    return train(folder, steps=100, times=lambda step: times, **more)


def test_the_phase_that_explains_it(tmp_path: Path) -> None:
    """20 ms more of waiting for data, on steps of 33 ms."""
    fast = trained(tmp_path / "a", {}, config={"workers": 4})
    slow = trained(tmp_path / "b", {"wait for data": 0.021}, config={"workers": 0})
    found = compare([fast, slow])
    assert found.pace is not None
    assert (found.pace.fast, found.pace.slow) == ((0,), (1,))
    assert found.pace.more_ns == pytest.approx(20e6, rel=0.03)
    cause, *others = found.pace.causes
    assert (cause.phase, cause.share) == ("data", pytest.approx(1, abs=0.01))
    assert sum(other.ns for other in others) == pytest.approx(0, abs=0.2e6)
    assert found.pace.ratio == pytest.approx(53.1 / 33.1, rel=0.02)
    (told,) = [s for s in found.summary if "times as long" in s]
    assert told.startswith(f"{slow.id} is slower: a step takes 52.8 ms against 32.9 ms")
    assert "Waiting for data" in told


def test_two_phases_in_opposite_directions(tmp_path: Path) -> None:
    """10 ms more in forward, 4 ms less in backward: 6 ms in all."""
    fast = trained(tmp_path / "a", {}, config={"x": 1})
    slow = trained(tmp_path / "b", {"forward": 0.02, "backward": 0.016}, config={"x": 2})
    found = compare([slow, fast])
    assert found.pace is not None
    assert (found.pace.fast, found.pace.slow) == ((1,), (0,))
    causes = {cause.phase: cause.ns for cause in found.pace.causes}
    assert causes["forward"] == pytest.approx(10e6, rel=0.03)
    assert causes["backward"] == pytest.approx(-4e6, rel=0.03)
    assert sum(causes.values()) == pytest.approx(found.pace.more_ns)


def test_equal_pace_is_no_difference(tmp_path: Path) -> None:
    runs = [trained(tmp_path / name, {"forward": s}) for name, s in (("a", 0.01), ("b", 0.0103))]
    found = compare(runs)
    assert found.pace is None
    assert not [s for s in found.summary if "times as long" in s]


@pytest.mark.full
def test_repeats_tell_how_much_pace_varies(tmp_path: Path) -> None:
    """Runs that vary by more than variants are apart are as fast; those that do not vary are not."""

    def make(name: str, forwards: dict[int, list[float]]) -> list[RecordedRun]:
        return [
            trained(tmp_path / name / f"{x}-{i}", {"forward": s}, config={"x": x, "seed": i})
            for x, found in forwards.items()
            for i, s in enumerate(found)
        ]

    varied = compare(make("varied", {1: [0.010, 0.030, 0.020], 2: [0.015, 0.035, 0.025]}))
    assert varied.pace is None
    steady = compare(make("steady", {1: [0.010, 0.0101, 0.0102], 2: [0.013, 0.0131, 0.0132]}))
    assert steady.pace is not None
    assert steady.pace.slow == (3, 4, 5)
    assert steady.pace.causes[0].phase == "forward"
    assert [s for s in steady.summary if s.startswith("x=2 is slower")]


def test_throughput_and_goodput(tmp_path: Path) -> None:
    """A pause of 100 ms after every step: a third of the pace, and of the goodput."""
    config = {"global_batch_size": 8, "seq_length": 10}
    fast = trained(tmp_path / "a", {}, config={**config, "x": 1})
    slow = trained(tmp_path / "b", {"pause": 0.1}, config={**config, "x": 2})
    found = compare([fast, slow])
    quick, late = found.paces
    assert quick is not None
    assert late is not None
    assert quick.samples_per_second == pytest.approx(8 / 0.0331, rel=0.02)
    assert quick.tokens_per_second == pytest.approx(80 / 0.0331, rel=0.02)
    assert late.samples_per_second == pytest.approx(8 / 0.1331, rel=0.02)
    assert quick.goodput == goodput(fast).share
    (rates,) = [s for s in found.summary if s.startswith("Throughput: ")]
    assert f"{fast.id} 24" in rates
    assert "samples/s" in rates
    assert [s for s in found.summary if s.startswith("Goodput: ")]


def test_the_table_sums_to_the_step(tmp_path: Path) -> None:
    run = trained(tmp_path, {"pause": 0.01})
    table = time_table([run])
    phases = dict(table.select("phase", "mean_ns").iter_rows())
    whole = phases.pop("step")
    assert sum(phases.values()) == pytest.approx(whole)
    assert whole == pytest.approx(43.1e6, rel=0.02)
    assert table["share"].sum() == pytest.approx(2)


def test_the_command(tmp_path: Path) -> None:
    fast = trained(tmp_path / "a", {})
    slow = trained(tmp_path / "b", {"wait for data": 0.021})
    shown = run_stepwell("compare", str(fast.path), str(slow.path), cwd=tmp_path)
    assert shown.returncode == 0, shown.stderr
    lines = shown.stdout.splitlines()
    (data,) = [line.split() for line in lines if line.startswith("  data")]
    assert float(data[-2]) == pytest.approx(20, rel=0.02)
    told = json.loads(
        run_stepwell("compare", str(fast.path), str(slow.path), "--json", cwd=tmp_path).stdout
    )
    assert told["pace"]["causes"][0]["phase"] == "data"
    assert "step time" in shown.stdout
    without = run_stepwell("compare", str(fast.path), str(slow.path), "--no-time", cwd=tmp_path)
    assert "step time" not in without.stdout


def test_runs_without_steps_say_nothing_of_time(tmp_path: Path) -> None:
    import stepwell

    runs = []
    for name in "ab":
        with stepwell.init(name, dir=tmp_path) as run:
            run.log({"loss": 1.0}, step=1)
        runs.append(stepwell.open_run(run.path))
    found = compare(runs)
    assert found.paces == [None, None]
    assert found.pace is None


def test_steps_that_do_not_vary_at_all(tmp_path: Path) -> None:
    """Without a spread, four times as long is still slower."""

    def record(name: str, seconds: float) -> RecordedRun:
        with FakeClock() as clock, stepwell.init(name, dir=tmp_path) as run:
            for step in range(60):
                run.set_step(step)
                with run.span("forward"):
                    clock.advance(seconds)
        return stepwell.open_run(run.path)

    found = compare([record("quick", 0.01), record("slow", 0.04)])
    assert found.pace is not None
    assert "slow is slower: a step takes 40 ms against 10 ms (4 times as long)" in found.summary[1]
    assert compare([record("one", 0.01), record("two", 0.01)]).pace is None
