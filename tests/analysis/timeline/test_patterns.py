"""Patterns among steps: planted ones are found with their steps and amounts, and nothing else is."""

from __future__ import annotations

import numpy as np
import polars as pl
import pytest

from stepwell.analysis.timeline import bursts, drift, outliers, percentiles
from stepwell.analysis.timeline.patterns import find_period
from stepwell.analysis.timeline.phases import PHASES
from stepwell.analysis.timeline.tables import STEPS

MS = 1_000_000


def table(count: int = 400, rank: int = 0, seed: int = 0, **phases: np.ndarray) -> pl.DataFrame:
    """Steps of about 10 ms: 1 for data, 4 forward, 4 backward, 1 optimizer, all a little noisy."""
    random = np.random.default_rng(seed)
    usual = {"data": 1, "forward": 4, "backward": 4, "optimizer": 1}
    columns = {
        name: random.normal(usual.get(name, 0) * MS, usual.get(name, 0) * MS / 20, count)
        for name in PHASES
    }
    for name, more in phases.items():
        columns[name.replace("_", " ")] = columns[name.replace("_", " ")] + more * MS
    # The first steps are usually slow.
    columns["forward"][:2] += 100 * MS
    whole = {name: np.maximum(values, 0).astype(np.int64) for name, values in columns.items()}
    period = sum(whole.values())
    return pl.DataFrame(
        {
            "rank": [rank] * count,
            "attempt": [0] * count,
            "step": np.arange(count),
            "epoch": [0] * count,
            "start_ns": np.cumsum(period),
            "duration_ns": period - whole["data"] - whole["other"],
            "gap_ns": whole["data"] + whole["other"],
            "period_ns": period,
            **whole,
        },
        schema=STEPS,
    )


def every(number: int, amount: float, count: int = 400, first: int | None = None) -> np.ndarray:
    at = np.arange(count)
    return np.where(at % number == (number - 1 if first is None else first), amount, 0.0)


def test_a_healthy_run_has_no_patterns() -> None:
    """Noise, a slow beginning, validation and checkpoints now and then."""
    for seed in range(20):
        steps = table(seed=seed, validation=every(100, 500), checkpoint=every(50, 300))
        assert bursts(steps) == []
        assert drift(steps) is None
        assert outliers(steps) == []


def test_one_batch_in_twenty() -> None:
    """Its phase, frequency, first step, duration and total cost."""
    (burst,) = bursts(table(data=every(20, 300)))
    assert (burst.phase, burst.period, burst.first, burst.count) == ("data", 20, 19, 20)
    assert burst.share == pytest.approx(1 / 20, rel=0.02)
    assert burst.slow_ns == pytest.approx(301 * MS, rel=0.01)
    assert burst.typical_ns == pytest.approx(1 * MS, rel=0.02)
    assert burst.lost_ns == pytest.approx(20 * 300 * MS, rel=0.01)
    assert burst.steps == tuple(range(19, 400, 20))


def test_one_batch_in_twenty_at_random() -> None:
    """No period, but a share."""
    at = np.random.default_rng(1).permutation(397)[:20] + 3
    more = np.zeros(400)
    more[at] = 300
    (burst,) = bursts(table(data=more))
    assert burst.period is None
    assert burst.steps == tuple(sorted(at.tolist()))


def test_noise_beside_it_does_not_hide_a_period() -> None:
    """Some other steps are slow too, but much less so."""
    noise = np.zeros(400)
    noise[[34, 48, 200, 222]] = 8
    (burst,) = bursts(table(data=every(20, 300) + noise))
    assert (burst.period, burst.count) == (20, 20)


def test_a_slow_time_is_no_burst() -> None:
    """Sixty slow steps in a row."""
    more = np.zeros(400)
    more[100:160] = 50
    assert bursts(table(backward=more)) == []


def test_delays_by_a_busy_machine_are_not_reported() -> None:
    """Now and then the scheduler interrupts a step for 4 ms, in any phase."""
    for seed in range(10):
        hits = np.random.default_rng(seed).random((4, 400)) < 0.04
        data, forward, backward, optimizer = np.where(hits, 6.0, 0.0)
        steps = table(
            seed=seed,
            data=data,
            forward=forward - 3.5,
            backward=backward - 3.5,
            optimizer=optimizer,
        )
        assert bursts(steps) == []
        assert outliers(steps) == []


def test_every_tenth_step_is_four_times_slower() -> None:
    """The phase is the one that is slower."""
    (burst,) = bursts(table(optimizer=every(10, 30)))
    assert (burst.phase, burst.period, burst.count) == ("optimizer", 10, 40)


def test_pauses_between_steps() -> None:
    """200 ms every 10 steps in no span."""
    (burst,) = bursts(table(other=every(10, 200)))
    assert (burst.phase, burst.period) == ("other", 10)
    assert burst.lost_ns == pytest.approx(40 * 200 * MS, rel=0.01)


def test_bursts_are_of_the_rank_that_has_them() -> None:
    """The other rank has none."""
    (burst,) = bursts(pl.concat([table(), table(rank=1, seed=1, data=every(20, 300))]))
    assert burst.rank == 1


def test_a_drift_and_what_drifts() -> None:
    """From 10 to 15 ms within the run, in the backward pass."""
    result = drift(table(backward=np.linspace(0, 5, 400)))
    assert result is not None
    assert (result.phase, result.kind, result.rank) == ("backward", "gradual", 0)
    assert result.ratio == pytest.approx(1.46, rel=0.05)
    assert result.lost_ns == pytest.approx(400 * 2.4 * MS, rel=0.1)


def test_a_sudden_change() -> None:
    """From step 240 on."""
    result = drift(table(data=np.where(np.arange(400) >= 240, 6.0, 0.0)))
    assert result is not None
    assert (result.phase, result.kind) == ("data", "sudden")
    assert result.from_step <= 240 <= result.to_step
    assert result.to_step - result.from_step <= 80


def test_steps_that_get_faster() -> None:
    """A ratio below one."""
    result = drift(table(data=np.linspace(5, 0, 400)))
    assert result is not None
    assert result.ratio < 0.75


def test_outliers_with_the_reason() -> None:
    """Each with its phase; steps of bursts are not among them."""
    one, other = np.zeros(400), np.zeros(400)
    one[150], other[300] = 90, 50
    result = outliers(table(backward=one, communication=other, data=every(20, 300)))
    assert [(o.step, o.phase) for o in result] == [(150, "backward"), (300, "communication")]
    assert result[0].phase_ns == pytest.approx(94 * MS, rel=0.02)
    assert result[0].phase_typical_ns == pytest.approx(4 * MS, rel=0.02)
    assert result[0].typical_ns == pytest.approx(10 * MS, rel=0.05)


def test_a_slow_checkpoint_is_no_outlier_of_training() -> None:
    """It is expected to take time now and then."""
    assert outliers(table(checkpoint=every(100, 900))) == []


def test_too_few_steps_say_nothing() -> None:
    """Neither does an empty table."""
    for steps in (table(10, data=every(5, 300, 10)), pl.DataFrame(schema=STEPS)):
        assert bursts(steps) == []
        assert drift(steps) is None
        assert outliers(steps) == []


def test_percentiles_by_hand() -> None:
    """Percentiles are actual values, for each rank and phase."""
    steps = table(100).with_columns(pl.Series("data", np.arange(1, 101)))
    result = percentiles(steps)
    row = result.filter(pl.col("phase") == "data").row(0, named=True)
    assert (row["count"], row["mean_ns"], row["max_ns"]) == (100, 50.5, 100)
    assert (row["p50_ns"], row["p95_ns"], row["p99_ns"]) == (51, 95, 99)
    assert result["phase"].to_list()[:3] == ["step", "gap", "period"]
    assert "validation" not in result["phase"].to_list()


def regular(*at: int) -> tuple[int, list[int]] | None:
    """Return the period, and the places on the beat."""
    places = np.array(at)
    result = find_period(places)
    return None if result is None else (result[0], places[result[1]].tolist())


def test_period_of_all() -> None:
    """From any first place on."""
    assert regular(4, 14, 24, 34) == (10, [4, 14, 24, 34])
    assert regular(7, 27, 47) == (20, [7, 27, 47])


def test_period_with_some_in_between() -> None:
    """They are left out, and their distances do not mislead."""
    assert regular(4, 14, 16, 18, 24, 34, 44, 53, 54, 64) == (10, [4, 14, 24, 34, 44, 54, 64])


def test_period_with_one_missing() -> None:
    """For example a step that was not slow enough."""
    assert regular(3, 8, 13, 23, 28) == (5, [3, 8, 13, 23, 28])


@pytest.mark.parametrize(
    "at", [(1, 2, 3, 4), (3, 11, 40, 77), (10, 20, 30, 77), (5, 9), (0, 3, 5, 6, 20, 23, 41, 60)]
)
def test_no_period(at: tuple[int, ...]) -> None:
    """Consecutive, random, periodic only at first, or too few."""
    assert regular(*at) is None
