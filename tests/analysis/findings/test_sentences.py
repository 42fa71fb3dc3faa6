"""Sentences of findings are true and have the numbers, also in difficult cases."""

from __future__ import annotations

import math
from pathlib import Path

import pytest

import stepwell
from stepwell.analysis.findings import findings
from stepwell.testing import FakeClock
from stepwell.testing.simulate import Restart, RunPlan, simulate
from stepwell.testing.simulate.plan import SECOND
from tests.analysis.findings.test_rules import only
from tests.analysis.findings.training import healthy_values, noise, train


@pytest.fixture(autouse=True)
def _strict(monkeypatch: pytest.MonkeyPatch) -> None:
    """A rule that fails is raised."""
    monkeypatch.setenv("STEPWELL_STRICT", "1")


def test_gradients_that_were_infinite_before_the_loss_was_nan(tmp_path: Path) -> None:
    """Each is called what it was."""

    def values(step: int) -> dict[str, float]:
        return {
            "loss": math.nan if step >= 70 else healthy_values(step)["train/loss"],
            "grad_norm": math.inf if step >= 68 else 1.0,
        }

    found = only(train(tmp_path, values=values), "not-finite")
    assert found.sentence == (
        "loss is NaN from step 70 on; gradients were already infinite at step 68."
    )
    assert found.steps == (68,)


def test_a_loss_that_is_infinite_once_and_then_nan(tmp_path: Path) -> None:
    """As the logarithm of zero is, in the step before its gradient is used."""

    def values(step: int) -> dict[str, float]:
        return {"loss": 1.0 if step < 70 else math.inf if step == 70 else math.nan}

    found = only(train(tmp_path, values=values), "not-finite")
    assert found.sentence == "loss is infinite from step 70 on, and NaN from step 71 on."


def test_of_two_losses_the_first_to_go_is_named(tmp_path: Path) -> None:
    """Whichever was logged first."""

    def values(step: int) -> dict[str, float]:
        return {"a_loss": math.nan if step >= 80 else 1.0, "b_loss": math.inf if step == 50 else 1}

    found = only(train(tmp_path, values=values), "not-finite")
    assert found.sentence == "b_loss is infinite at step 50 (1 value)."


def test_every_second_batch_is_waited_for(tmp_path: Path) -> None:
    """As with two workers that are too slow: the step in the middle would say too little."""

    def times(step: int) -> dict[str, float]:
        return {"wait for data": 0.06 if step % 2 else 0.0001}

    found = only(train(tmp_path, times=times), "data-bound")
    assert found.sentence.startswith("Waiting for data takes 44 % of the wall time (on average 30.")
    assert found.sentence.endswith("ms step).")


def test_every_tenth_step_on_a_busy_machine(tmp_path: Path) -> None:
    """The period is recognised in spite of delays by other programs."""

    def times(step: int) -> dict[str, float]:
        odd = step in (16, 38, 41, 73, 87)
        return {"forward": 0.06 if step % 10 == 4 or odd else 0.01}

    found = only(train(tmp_path, times=times), "slow-steps")
    assert found.sentence.startswith("Every 10th step takes")
    assert found.steps == tuple(range(4, 120, 10))


def test_accuracy_in_per_cent(tmp_path: Path) -> None:
    """Validation stays at 40 % while training goes from 30 to 95 %."""

    def values(step: int) -> dict[str, float]:
        learnt = 95 - 65 * math.exp(-step / 30)
        return {"train/acc": learnt, "val/acc": 40 + 0.5 * noise(step)}

    found = only(train(tmp_path, values=values), "not-generalising")
    assert "val/acc stays at 39.9" in found.sentence


def test_vanishing_gradients_tell_the_loss(tmp_path: Path) -> None:
    """How high it is still, and was at first."""

    def values(step: int) -> dict[str, float]:
        return {"train/loss": 2.3 - 0.005 * step, "gradient_norm/overall": math.exp(-step / 5)}

    found = only(train(tmp_path, values=values), "vanishing-gradients")
    assert found.sentence.endswith(", while train/loss is still 1.73 (2.27 at the start).")


def test_a_single_step_was_done_again(tmp_path: Path) -> None:
    """In the singular."""
    plan = RunPlan(1, 200, (Restart(101, gap_ns=30 * SECOND),), checkpoint_every=100)
    simulate(tmp_path / "run", plan)
    found = [f for f in findings(stepwell.open_run(tmp_path / "run")) if f.rule == "restarts"]
    assert "): 1 step was repeated, " in found[0].sentence


def test_an_error_that_ends_with_a_full_stop(tmp_path: Path) -> None:
    """There is one at the end, not two."""
    with pytest.raises(ValueError, match="bad"), stepwell.init("dies", dir=tmp_path) as run:
        raise ValueError("bad batch.")
    sentence = only(stepwell.open_run(run.path), "died").sentence
    assert sentence.startswith("The process failed: ValueError: bad batch (test_sentences.py:")


def test_validation_that_gets_worse_from_the_start_does_not_stay(tmp_path: Path) -> None:
    """It overfits, and that is all."""

    def values(step: int) -> dict[str, float]:
        training = {"train/loss": 0.05 + 0.6 * math.exp(-step / 40) + 0.01 * noise(step)}
        return training | ({} if step % 10 else {"val/loss": 0.58 + 0.006 * step})

    found = only(train(tmp_path, values=values), "overfitting")
    assert "val/loss is best there" in found.sentence


def test_a_step_that_hangs_is_no_pause(tmp_path: Path) -> None:
    """A problem in progress is described as such, and the advice depends on the phase."""
    with FakeClock() as clock, stepwell.init("hung", dir=tmp_path) as run:
        for step in range(41):
            run.set_step(step)
            with run.span("train step"):
                with run.span("forward"):
                    clock.advance(0.03)
                if step == 40:
                    clock.advance(500)
                    run.flush()
                    found = findings(stepwell.open_run(run.path))
    assert [f.rule for f in found] == ["hang"]
    assert "py-spy dump" in found[0].advice
