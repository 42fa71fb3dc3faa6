"""Trainings that are healthy in ways of their own: nothing is found in any of them."""

from __future__ import annotations

import math
from pathlib import Path

import pytest

import stepwell
from stepwell.analysis.report import report
from stepwell.reading import RecordedRun
from stepwell.testing import FakeClock
from tests.analysis.findings.test_rules import nothing, only
from tests.analysis.findings.training import healthy_values, noise, train


@pytest.fixture(autouse=True)
def _strict(monkeypatch: pytest.MonkeyPatch) -> None:
    """A rule that fails is raised."""
    monkeypatch.setenv("STEPWELL_STRICT", "1")


def chance(step: int) -> float:
    """Between 0 and 1, the same every time."""
    return (noise(step) + 1) / 2


def test_small_batches_with_wrong_labels(tmp_path: Path) -> None:
    """One batch in twelve has a label that is wrong: that is how this loss is, and no spike."""

    def values(step: int) -> dict[str, float]:
        is_wrong = chance(7 * step + 3) < 1 / 12
        return {"loss": 0.02 + math.exp(-step / 9) + is_wrong * (0.5 + 4 * chance(step))}

    nothing(train(tmp_path, steps=400, values=values))


def test_losses_of_all_heights(tmp_path: Path) -> None:
    """The highest ones are little higher than the next."""

    def values(step: int) -> dict[str, float]:
        return {"loss": 0.01 + math.exp(-step / 9) + 0.9 * chance(step) ** 30}

    nothing(train(tmp_path, steps=400, values=values))


def test_two_optimizers(tmp_path: Path) -> None:
    """One with a schedule, one without: only groups of one optimizer follow the same."""

    def values(step: int) -> dict[str, float]:
        return {"lr/generator": 1e-4 * (1 - step / 200), "lr/critic": 1e-4}

    nothing(train(tmp_path, values=values))
    nothing(
        train(tmp_path, values=lambda s: {"lr-Adam/pg1": 1e-4, "lr-SGD/pg1": 1e-4 * (1 - s / 200)})
    )
    found = only(
        train(
            tmp_path, values=lambda s: {"lr-Adam/pg1": 1e-4, "lr-Adam/pg2": 1e-4 * (1 - s / 200)}
        ),
        "learning-rate",
    )
    assert "of lr-Adam/pg1 stays at 0.0001" in found.sentence


def test_accumulated_gradients(tmp_path: Path) -> None:
    """Only every fourth pass has an optimizer step, which takes as long as all the rest of it."""
    with FakeClock() as clock, stepwell.init("accumulates", dir=tmp_path) as run:
        for step in range(120):
            run.set_step(step)
            with run.span("forward"):
                clock.advance(0.01)
            with run.span("backward"):
                clock.advance(0.02)
            if step % 4 == 3:
                with run.span("optimizer"):
                    clock.advance(0.05)
    nothing(stepwell.open_run(run.path))


def test_numbers_alone(tmp_path: Path) -> None:
    """Only steps and numbers are recorded, so the parts of a step are unknown."""

    def record(name: str, pause: float) -> RecordedRun:
        with FakeClock() as clock, stepwell.init(name, dir=tmp_path) as run:
            for step in range(120):
                run.set_step(step)
                clock.advance(0.02 + pause * (step % 10 == 9))
                run.log(healthy_values(step))
        return stepwell.open_run(run.path)

    nothing(record("even", 0.0))
    found = only(record("uneven", 0.2), "slow-steps")
    assert found.sentence.startswith("Every 10th step takes 220 ms, the others 20 ms (steps 9, 19")


def test_a_busy_machine_does_not_make_it_wait_for_data(tmp_path: Path) -> None:
    """All parts of steps are held up now and then, the loader too."""

    def held_up(step: int, part: int) -> float:
        return 0.08 if chance(31 * step + 1000 * part) < 1 / 12 else 0.0

    def times(step: int) -> dict[str, float]:
        usual = {"wait for data": 0.002, "forward": 0.004, "backward": 0.006, "optimizer": 0.002}
        return {name: ns + held_up(step, i) for i, (name, ns) in enumerate(usual.items())}

    nothing(train(tmp_path, times=times, steps=300))


def test_a_bias_before_a_normalisation(tmp_path: Path) -> None:
    """Its gradient is nothing but rounding, that of its layer is not."""

    def values(step: int) -> dict[str, float]:
        norms = {"conv.weight": 0.1, "conv.bias": 1e-9, "norm.weight": 0.2, "head.weight": 0.5}
        return {**healthy_values(step), **{f"grad_norm/{k}": v for k, v in norms.items()}}

    nothing(train(tmp_path, values=values))


def test_gradients_that_grow_as_it_learns(tmp_path: Path) -> None:
    """A likelihood gets steeper the surer a model is; with the loss up again it is an explosion."""

    def values(step: int, back: float = 0.0) -> dict[str, float]:
        loss = 1 - step / 30 + 0.03 * noise(step) + max(0, step - 90) * back
        return {"loss": loss, "grad_norm": math.exp(step / 25) * (1 + 0.1 * noise(step + 500))}

    nothing(train(tmp_path, values=values))
    only(train(tmp_path, values=lambda s: values(s, back=0.1)), "exploding-gradients")


def test_one_slow_time_of_the_machine(tmp_path: Path) -> None:
    """Four of nine steps in a row were slow, and no others: that is not again and again."""
    times = {step: {"backward": 0.4} for step in (84, 86, 89, 92)}
    nothing(train(tmp_path, times=lambda step: times.get(step, {})))


def test_a_rank_that_validates_alone(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """The other one waits for it in the backward pass of the next step: that is the only finding."""
    monkeypatch.setenv("WORLD_SIZE", "2")
    for rank in (0, 1):
        monkeypatch.setenv("RANK", str(rank))
        monkeypatch.setenv("LOCAL_RANK", str(rank))
        with FakeClock() as clock, stepwell.init("two", dir=tmp_path, run_id="two") as run:
            for step in range(120):
                run.set_step(step)
                waits = 0.3 if rank == 1 and step % 20 == 0 and step else 0.0
                with run.span("forward"):
                    clock.advance(0.01)
                with run.span("backward"):
                    clock.advance(0.02 + waits)
                with run.span("optimizer"):
                    clock.advance(0.002)
                if rank == 0 and step % 20 == 19:
                    with run.span("validation"):
                        clock.advance(0.3)
    for document in run.path.glob("*/process.json"):
        # Two ranks of one launch, although they were recorded one after the other.
        document.write_text(document.read_text().replace('"attempt": 1', '"attempt": 0'))
    found = only(stepwell.open_run(run.path), "straggler")
    assert (found.ranks, found.evidence["phase"]) == ((0,), "validation")


def test_code_in_no_span_that_each_step_has(tmp_path: Path) -> None:
    """A loss outside of the model, metrics, waiting for a device: 60 % of each step, and no finding."""
    run = train(tmp_path, times=lambda step: {"pause": 0.05 + 0.01 * chance(step)})
    nothing(run)
    (hint,) = report(run).hints
    assert "58 % of the wall time" in hint.text


def epochs(folder: Path, first_batch: float, pause: float = 0.0, count: int = 4) -> RecordedRun:
    """Epochs of 20 steps whose first batch takes long; ``pause`` comes before it, in no span."""
    with FakeClock() as clock, stepwell.init("epochs", dir=folder) as run:
        for step in range(20 * count):
            is_first = step % 20 == 0
            clock.advance(pause * is_first)
            with run.span("data_loading"):
                clock.advance(first_batch if is_first else 0.001)
            run.set_step(step, step // 20)
            with run.span("training_single_iteration"), run.span("model_forward"):
                clock.advance(0.02)
    return stepwell.open_run(run.path)


@pytest.mark.parametrize("count", [3, 4, 8])
@pytest.mark.parametrize("pause", [0.0, 1.2])
def test_workers_that_start_in_each_epoch(tmp_path: Path, pause: float, count: int) -> None:
    """One finding, whatever the number of epochs, with the option that helps."""
    found = only(epochs(tmp_path, 2.0, pause, count), "data-bound")
    assert found.sentence.startswith(
        "The first batch of each epoch takes 2 s, other batches 1 ms ("
    )
    assert found.steps == tuple(range(20, 20 * count, 20))
    assert "persistent_workers=True" in (found.advice or "")
    wall = count * (pause + 2.0 + 19 * 0.001 + 20 * 0.02)
    assert found.evidence["share"] == pytest.approx(count * 1.999 / wall, rel=1e-6)


def test_first_batches_that_are_a_little_slower(tmp_path: Path) -> None:
    """That is how it is, and costs little."""
    nothing(epochs(tmp_path, 0.03))


@pytest.mark.parametrize("name", ["kl_loss", "train/kl_loss", "aux_loss", "vq_loss"])
@pytest.mark.parametrize("has_whole", [True, False])
def test_terms_of_a_loss_that_rise(tmp_path: Path, name: str, has_whole: bool) -> None:
    """The KL divergence of a VAE starts near 0 and rises while the loss as a whole falls."""

    def values(step: int) -> dict[str, float]:
        term = 1e-4 + 25 * (1 - math.exp(-step / 60)) * (1 + 0.02 * noise(step))
        rest = 90 + 450 * math.exp(-step / 50) * (1 + 0.02 * noise(step + 7))
        whole = {"train/loss": term + rest} if has_whole else {}
        return {name: term, "reconstruction_loss": rest, **whole}

    nothing(train(tmp_path, steps=400, values=values))


def test_a_part_of_a_loss_that_explodes(tmp_path: Path) -> None:
    """Without a loss as a whole its parts are looked at."""
    run = train(
        tmp_path, values=lambda s: {"box_loss": 1.3**s, "class_loss": 2 * math.exp(-s / 40)}
    )
    assert only(run, "diverged").evidence["metric"] == "box_loss"
