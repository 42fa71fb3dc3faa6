"""Curves aligned by steps, samples, tokens and time."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

import stepwell
from stepwell import training
from stepwell._core.errors import StepwellError
from stepwell.analysis.compare import compare, curve_table, metric_table
from stepwell.analysis.compare.axis import amounts_of
from stepwell.reading import RecordedRun
from stepwell.testing import FakeClock
from tests.analysis.compare.recording import record
from tests.harness import run_stepwell


@pytest.fixture
def provider(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> Iterator[training.TrainingTelemetryProvider]:
    monkeypatch.setenv("STEPWELL_DIR", str(tmp_path))
    provider = training.TrainingTelemetryProvider.instance()
    yield provider
    provider.reset()


def trained(
    provider: training.TrainingTelemetryProvider, iterations: list[dict[str, Any]], **config: Any
) -> RecordedRun:
    """A run of the training telemetry with iterations of these sizes; its loss is 100 less samples."""
    provider.configure(config=training.TrainingTelemetryConfig(**config))
    run = stepwell.active_run()
    assert run is not None
    done = 0
    with training.application(), training.training_loop(train_iterations_start=0):
        for sizes in iterations:
            with training.training_iteration(**sizes):
                pass
            done += sizes.get("samples", 0)
            stepwell.log({"loss": 100.0 - done})
    provider.reset()
    return stepwell.open_run(run.path)


def test_samples_are_those_that_the_telemetry_counted(
    provider: training.TrainingTelemetryProvider,
) -> None:
    """Ten iterations of 2 samples, then ten of 4, reported every five: 20 and 60 in all."""
    run = trained(
        provider, [{"samples": 2}] * 10 + [{"samples": 4}] * 10, log_every_n_train_iterations=5
    )
    amounts = amounts_of(run, "samples")
    assert amounts.source == "telemetry"
    assert amounts.steps.tolist() == [0, 5, 10, 15, 20]
    assert amounts.amounts.tolist() == [0, 10, 20, 40, 60]


def test_runs_of_other_batch_sizes_meet_where_they_saw_as_much(
    provider: training.TrainingTelemetryProvider,
) -> None:
    """Both lose 1 with each sample, so that by samples they are the same, and by steps they are not."""
    small = trained(provider, [{"samples": 2}] * 40, log_every_n_train_iterations=10)
    large = trained(provider, [{"samples": 4}] * 20, log_every_n_train_iterations=10)
    (loss,) = compare([small, large], ["loss"], by="samples").metrics
    assert (loss.common_at, loss.better) == (80.0, None)
    by_step = compare([small, large], ["loss"]).metrics[0]
    assert (by_step.common_at, by_step.better) == (19, 1)
    table = curve_table([small, large], ["loss"], by="samples")
    assert (table["value"] == 100 - table["at"]).all()


def test_tokens_by_configuration(provider: training.TrainingTelemetryProvider) -> None:
    run = trained(provider, [{}] * 10, global_batch_size_or_fn=8, seq_length_or_fn=128)
    assert amounts_of(run, "tokens").amounts[-1] == 10 * 8 * 128


@pytest.mark.parametrize(("by", "each"), [("samples", 32), ("tokens", 32 * 16)])
def test_any_run_whose_config_tells_its_batches(tmp_path: Path, by: str, each: int) -> None:
    config = {"global_batch_size": 32, "seq_length": 16}
    run = record(tmp_path, "a", {"loss": float}, config=config)
    other = record(tmp_path, "b", {"loss": float}, config={**config, "global_batch_size": 64})
    (loss,) = compare([run, other], by=by).metrics
    # At step 19 of a run, 20 batches are done; that is in the middle of the other.
    assert (loss.first_at, loss.common_at) == (2 * each, 20 * each)
    assert amounts_of(run, by).source == "config"


def test_a_running_count_that_was_logged(tmp_path: Path) -> None:
    counts = {"loss": float, "train/tokens": lambda step: 1000.0 * (step + 1)}
    a, b = (record(tmp_path, name, counts) for name in "ab")
    assert amounts_of(a, "tokens").source == "metric"
    assert metric_table([a, b], ["loss"], by="tokens")["common_at"].to_list() == [20000.0] * 2


def test_by_time_it_counts_from_the_start_of_each_run(tmp_path: Path) -> None:
    """One logs every second, the other every two: after 38 s the first is twice as far."""
    runs = []
    for name, seconds in (("fast", 1.0), ("slow", 2.0)):
        with FakeClock() as clock:
            with stepwell.init(name, dir=tmp_path) as run:
                for step in range(40):
                    clock.advance(seconds)
                    run.log({"acc": float(step)}, step=step)
            runs.append(stepwell.open_run(run.path))
    found = compare(runs, by="time", time=False)
    (acc,) = found.metrics
    assert acc.common_at == pytest.approx(40, abs=0.01)
    assert [run.common for run in acc.runs if run] == pytest.approx([39, 19], abs=0.01)
    assert found.summary[0].startswith("fast is better at acc: 39 against 19 after 40 s, ahead ")


def test_what_was_not_recorded_is_said_with_what_to_write(tmp_path: Path) -> None:
    for name in "ab":
        record(tmp_path / "runs", name, {"loss": float}, 3, config={"batch_size": 4})
    done = run_stepwell("compare", "a", "b", "--by", "tokens", cwd=tmp_path)
    assert done.returncode == 2
    assert "'a' did not record the tokens of its steps" in done.stderr
    assert '"global_batch_size": 256, "seq_length": 2048' in done.stderr
    assert "its config has batch_size, which may be for one rank only" in done.stderr
    done = run_stepwell("compare", "a", "b", "--by", "epoch", cwd=tmp_path)
    assert "by must be 'step', 'samples', 'tokens' or 'time', got 'epoch'" in done.stderr


def test_places_before_anybody_counted(tmp_path: Path) -> None:
    """A count that was first logged at step 9 goes back to the start at the rate it has then."""
    with stepwell.init("late", dir=tmp_path) as run:
        for step in (9, 19):
            run.log({"samples": 10.0 * (step + 1)}, step=step)
    amounts = amounts_of(stepwell.open_run(run.path), "samples")
    import numpy as np

    assert amounts.after(np.array([1.0, 15.0, 40.0])).tolist() == [10, 150, 400]
    with pytest.raises(StepwellError, match="tokens"):
        amounts_of(stepwell.open_run(run.path), "tokens")
