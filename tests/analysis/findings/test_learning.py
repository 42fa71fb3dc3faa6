"""Rules about losses: each fault gets one sentence, and healthy curves get none."""

from __future__ import annotations

import math
from collections.abc import Callable
from typing import Any

import numpy as np
import pytest

from tests.analysis.findings.synthetic import Curve, Floats, judge

Rng = np.random.Generator
Curves = dict[str, Curve]


@pytest.fixture(autouse=True)
def _strict(monkeypatch: pytest.MonkeyPatch) -> None:
    """A rule that fails is raised."""
    monkeypatch.setenv("STEPWELL_STRICT", "1")


def steps(count: int) -> Floats:
    return np.arange(count, dtype=np.float64)


def falling(count: int, start: float = 2.3, end: float = 0.4, pace: float = 0.15) -> Floats:
    """Return a loss that falls to ``1/e`` of its way within a share ``pace`` of the steps."""
    return end + (start - end) * np.exp(-steps(count) / (pace * count))


def drifting(rng: Rng, count: int, memory: float = 0.95) -> Floats:
    """Return noise of unit variance that changes slowly."""
    white = rng.normal(size=count)
    values = np.empty(count)
    values[0] = white[0]
    for i in range(1, count):
        values[i] = memory * values[i - 1] + math.sqrt(1 - memory**2) * white[i]
    return values


# Healthy curves

HEALTHY: dict[str, Callable[[Rng], Curves | tuple[Curves, dict[str, Any]]]] = {}


def healthy(make: Callable[[Rng], Any]) -> Callable[[Rng], Any]:
    HEALTHY[make.__name__] = make
    return make


@healthy
def smooth(rng: Rng) -> Any:
    return {"loss": falling(1000)}


@healthy
def noisy_batches(rng: Rng) -> Any:
    return {"loss": falling(1000) * (1 + 0.3 * rng.normal(size=1000)).clip(0.1)}


@healthy
def very_noisy_and_slow(rng: Rng) -> Any:
    return {"loss": falling(1000, 2.3, 2.0, 0.5) * (1 + 0.4 * rng.normal(size=1000)).clip(0.1)}


@healthy
def lognormal_noise(rng: Rng) -> Any:
    return {"train/loss": falling(800) * np.exp(0.7 * rng.normal(size=800))}


@healthy
def converged_to_zero(rng: Rng) -> Any:
    return {"loss": 2.3 * np.exp(-steps(2000) / 60) + 1e-6 * np.exp(2 * rng.normal(size=2000))}


@healthy
def floor_reached_in_the_first_steps(rng: Rng) -> Any:
    return {"loss": 0.5 + 1.8 * np.exp(-steps(3000) / 5) + 0.05 * rng.normal(size=3000)}


@healthy
def floor_reached_early_with_much_noise(rng: Rng) -> Any:
    values = (0.8 + 1.5 * np.exp(-steps(5000) / 30)) * np.exp(0.3 * rng.normal(size=5000))
    return {"loss": values}


@healthy
def diffusion(rng: Rng) -> Any:
    values = (0.05 + 0.95 * np.exp(-steps(2000) / 40)) * np.exp(0.4 * rng.normal(size=2000))
    return {"train_loss": values}


@healthy
def plateau_during_warm_up(rng: Rng) -> Any:
    plateau = np.where(steps(1000) < 300, 2.3, 0.4 + 1.9 * np.exp(-(steps(1000) - 300) / 150))
    rate = 1e-3 * np.minimum(1, (steps(1000) + 1) / 300)
    return {"loss": plateau + 0.03 * rng.normal(size=1000), "learning_rate/group_0": rate}


@healthy
def still_warming_up(rng: Rng) -> Any:
    rate = 1e-3 * (steps(150) + 1) / 2000
    return {"loss": 2.31 + 0.02 * rng.normal(size=150), "learning_rate/group_0": rate}


@healthy
def plateau_in_the_middle(rng: Rng) -> Any:
    t = steps(2000)
    values = 0.3 + 1 / (1 + np.exp((t - 200) / 40)) + 1 / (1 + np.exp((t - 1400) / 60))
    return {"loss": values + 0.03 * rng.normal(size=2000)}


@healthy
def grokking(rng: Rng) -> Any:
    train = 4.6 * np.exp(-steps(3000) / 100) + 1e-3
    val = np.where(steps(3000) < 2000, 4.7, 0.1 + 4.6 * np.exp(-(steps(3000) - 2000) / 100))
    return {"train/loss": train, "val/loss": (np.arange(0, 3000, 50), val[::50])}


@healthy
def fine_tuning_from_a_small_loss(rng: Rng) -> Any:
    return {"loss": 0.03 * np.exp(0.5 * rng.normal(size=600))}


@healthy
def fine_tuning_of_a_language_model(rng: Rng) -> Any:
    values = 1.9 + 0.15 * rng.normal(size=1500)
    return {"loss": values}, {"model_name_or_path": "gpt2"}


@healthy
def fine_tuning_that_gains_a_little(rng: Rng) -> Any:
    return {"loss": falling(1000, 2.1, 1.95, 0.3) + 0.1 * rng.normal(size=1000)}


@healthy
def resumed(rng: Rng) -> Any:
    return {"loss": (np.arange(5000, 6000), 1.2 + 0.1 * rng.normal(size=1000))}


@healthy
def few_steps(rng: Rng) -> Any:
    return {"loss": 2.3 + 0.2 * rng.normal(size=20)}


@healthy
def fifty_noisy_steps(rng: Rng) -> Any:
    return {"loss": 2.3 - 0.002 * steps(50) + 0.2 * rng.normal(size=50)}


@healthy
def policy_gradient(rng: Rng) -> Any:
    return {
        "loss": 0.5 * rng.normal(size=1000) + 0.2 * drifting(rng, 1000),
        "episode_reward": 20 + steps(1000) / 10,
    }


@healthy
def policy_gradient_without_rewards(rng: Rng) -> Any:
    return {"loss": rng.normal(size=1000) * (1 + 0.5 * drifting(rng, 1000))}


@healthy
def q_learning(rng: Rng) -> Any:
    values = (0.01 + 2 * (1 - np.exp(-steps(2000) / 500))) * np.exp(0.5 * rng.normal(size=2000))
    return {"loss": values, "episode/return": 10 + steps(2000) / 20}


@healthy
def adversarial(rng: Rng) -> Any:
    return {
        "loss/generator": 0.7 + steps(1500) / 500 + 0.3 * rng.normal(size=1500),
        "loss/discriminator": 0.69 + 0.02 * rng.normal(size=1500),
    }


@healthy
def adversarial_with_jumps(rng: Rng) -> Any:
    values = 0.7 + 0.05 * rng.normal(size=1500)
    values[700:] += 3
    values[[300, 400]] += 4
    return {"loss/generator": values, "loss/discriminator": 0.69 + 0.02 * rng.normal(size=1500)}


@healthy
def adversarial_by_other_names(rng: Rng) -> Any:
    return {
        "g_loss": 0.7 + steps(1500) / 700 + 0.3 * rng.normal(size=1500),
        "d_loss": 1.386 + 0.02 * rng.normal(size=1500),
    }


@healthy
def cyclical_learning_rate(rng: Rng) -> Any:
    phase = steps(2000) % 400 / 400
    values = falling(2000, 2.3, 0.4, 0.1) + 0.25 * np.cos(phase * math.pi / 2) * (steps(2000) > 400)
    return {
        "loss": values + 0.05 * rng.normal(size=2000),
        "learning_rate/group_0": 0.1 * (1 + np.cos(phase * math.pi)) / 2 + 1e-5,
    }


@healthy
def sawtooth_of_epochs(rng: Rng) -> Any:
    within = steps(2000) % 200 / 200
    return {"loss": falling(2000) * (1 + 0.1 * within) + 0.03 * rng.normal(size=2000)}


@healthy
def slow_drift(rng: Rng) -> Any:
    return {"loss": falling(2000) + 0.1 * drifting(rng, 2000, 0.98)}


@healthy
def likelihood_below_zero(rng: Rng) -> Any:
    return {"loss": 3 - steps(1500) / 300 + 0.2 * rng.normal(size=1500)}


@healthy
def double_descent(rng: Rng) -> Any:
    t = steps(2000)
    bump = 0.3 * np.exp(-(((t - 900) / 150) ** 2))
    return {"loss": falling(2000, 2.3, 0.3, 0.1) + bump + 0.03 * rng.normal(size=2000)}


@healthy
def rise_in_the_first_steps(rng: Rng) -> Any:
    t = steps(800)
    values = falling(800) + 2.0 * np.exp(-(((t - 8) / 5) ** 2))
    return {"loss": values + 0.03 * rng.normal(size=800)}


@healthy
def logged_every_50_steps(rng: Rng) -> Any:
    at = np.arange(49, 5000, 50)
    return {"loss": (at, falling(5000, 2.3, 1.2, 0.01)[at] + 0.02 * rng.normal(size=100))}


@healthy
def logged_once_an_epoch(rng: Rng) -> Any:
    at = np.arange(999, 40_000, 1000)
    values = falling(40, 1.6, 0.5, 0.3)
    return {
        "train_loss": (at, values + 0.02 * rng.normal(size=40)),
        "val_loss": (at, 1.05 * values + 0.1 + 0.03 * rng.normal(size=40)),
    }


@healthy
def converged_near_ln_2(rng: Rng) -> Any:
    return {"loss": falling(1500, 2.3, math.log(2), 0.05) + 0.05 * rng.normal(size=1500)}


@healthy
def gradients_that_shrink_with_the_loss(rng: Rng) -> Any:
    loss = falling(1000, 2.3, 0.01, 0.1)
    return {"loss": loss, "gradient_norm/overall": 3 * loss * np.exp(0.3 * rng.normal(size=1000))}


@healthy
def gradients_before_and_after_clipping(rng: Rng) -> Any:
    before = 5 * np.exp(0.8 * rng.normal(size=1000))
    return {
        "loss": falling(1000),
        "gradient_norm/overall": np.minimum(before, 1.0),
        "gradient_norm_before_clipping": before,
    }


SGD = {"optimizer": {"class": "SGD", "lr": 0.1}}


def clipped(rng: Rng, loss: Floats, most: float) -> Curves:
    """Return a loss, and norms around 2 that are clipped, as sampled in the first 200 steps."""
    before = 2 * np.exp(0.1 * rng.normal(size=200))
    return {
        "loss": loss,
        "gradient_norm/overall": np.minimum(before, most),
        "gradient_norm_before_clipping": before,
    }


@healthy
def large_gradients_clipped_while_the_loss_falls(rng: Rng) -> Any:
    return clipped(rng, falling(400), 0.01), SGD


@healthy
def gradients_clipped_to_almost_nothing_for_an_adaptive_optimizer(rng: Rng) -> Any:
    settings = {"optimizer": {"class": "AdamW", "lr": 0.001}}
    return clipped(rng, 2.5 - steps(50) / 500 + 0.4 * rng.normal(size=50), 1e-3), settings


@healthy
def schedule_that_ends_at_zero(rng: Rng) -> Any:
    return {"loss": falling(500), "learning_rate/group_0": 1e-3 * (1 - steps(500) / 499)}


@healthy
def one_cycle_that_ends_at_next_to_nothing(rng: Rng) -> Any:
    cosine = 0.5 * (1 + np.cos(math.pi * steps(1000) / 999))
    return {"loss": falling(1000), "learning_rate/group_0": 0.1 * cosine + 1e-10}


@healthy
def exponential_decay_sampled_now_and_then(rng: Rng) -> Any:
    at = np.arange(0, 1000, 100)
    rate = (at, 1e-3 * 10.0 ** (-4 * at / 1000))
    return {"loss": falling(1000), "learning_rate/group_0": rate}


@healthy
def one_cycle_with_recorded_settings(rng: Rng) -> Any:
    rate = 0.008 + 0.192 * np.sin(math.pi * steps(400) / 399)
    settings = {"optimizer": {"class": "SGD", "lr": 0.008}}
    return {"loss": falling(400), "learning_rate/group_0": rate}, settings


@healthy
def regularisation_that_grows(rng: Rng) -> Any:
    ramp = 0.3 * np.minimum(1, steps(2000) / 1500)
    return {"loss": falling(2000, 5.0, 0.5, 0.05) + ramp + 0.05 * rng.normal(size=2000)}


@pytest.mark.sampled(25)
@pytest.mark.parametrize("seed", range(3))
@pytest.mark.parametrize("kind", HEALTHY)
def test_healthy_curves(kind: str, seed: int) -> None:
    """Nothing is found in them."""
    check_healthy(kind, seed)


@pytest.mark.full
@pytest.mark.parametrize("kind", HEALTHY)
def test_healthy_curves_of_many_seeds(kind: str) -> None:
    """Nor in further ones of the same kinds."""
    for seed in range(3, 40):
        check_healthy(kind, seed)


def check_healthy(kind: str, seed: int) -> None:
    made = HEALTHY[kind](np.random.default_rng(seed))
    curves, config = made if isinstance(made, tuple) else (made, None)
    assert [finding.sentence for finding in judge(curves, config)] == []


# Faults

FAULTS: dict[str, tuple[str, Callable[[Rng], Any]]] = {}


def fault(rule: str) -> Callable[[Callable[[Rng], Any]], Callable[[Rng], Any]]:
    def register(make: Callable[[Rng], Any]) -> Callable[[Rng], Any]:
        FAULTS[make.__name__] = rule, make
        return make

    return register


@fault("diverged")
def explodes(rng: Rng) -> Any:
    return {"loss": 1.4 * np.exp(steps(300) / 7)}


@fault("diverged")
def explodes_within_20_steps(rng: Rng) -> Any:
    return {"loss": 1.4 * 3.0 ** steps(20)}


@fault("diverged")
def explodes_slowly(rng: Rng) -> Any:
    return {"loss": 2.3 * np.exp(steps(2000) / 300) * np.exp(0.2 * rng.normal(size=2000))}


@fault("diverged")
def gone_after_the_first_step(rng: Rng) -> Any:
    values = 3e4 * np.exp(-steps(400) / 150) * np.exp(0.2 * rng.normal(size=400))
    values[0] = 2.3
    return {"loss": values}


@fault("diverged")
def falls_then_explodes_at_the_end(rng: Rng) -> Any:
    values = falling(500) + 0.05 * rng.normal(size=500)
    values[-6:] = [3, 40, 900, 5e4, 1e7, 1e9]
    return {"loss": values}


@fault("diverged")
def explodes_with_its_gradients(rng: Rng) -> Any:
    return {
        "loss": 1.4 * np.exp(steps(200) / 9),
        "gradient_norm/overall": 0.5 * np.exp(steps(200) / 9),
    }


@fault("diverged")
def one_of_two_adversaries_explodes(rng: Rng) -> Any:
    return {
        "loss/generator": 0.7 * np.exp(steps(500) / 30),
        "loss/discriminator": 0.69 + 0.02 * rng.normal(size=500),
    }


@fault("rising-loss")
def rises(rng: Rng) -> Any:
    return {"loss": 2.3 + steps(2000) / 1000 + 0.2 * rng.normal(size=2000)}


@fault("rising-loss")
def rises_with_much_noise(rng: Rng) -> Any:
    return {"loss": (2.3 + steps(2000) / 800) * np.exp(0.4 * rng.normal(size=2000))}


@fault("rising-loss")
def comes_back(rng: Rng) -> Any:
    t = steps(2000)
    values = np.where(t < 800, 0.4 + 1.9 * np.exp(-t / 150), 0.4 + (t - 800) / 800)
    return {"loss": values + 0.05 * rng.normal(size=2000)}


@fault("flat-loss")
def flat_over_2000_steps(rng: Rng) -> Any:
    return {"loss": 2.5 + 0.15 * rng.normal(size=2000)}


@fault("flat-loss")
def exactly_constant(rng: Rng) -> Any:
    return {"loss": np.full(200, 0.97)}


@fault("flat-loss")
def flat_after_a_warm_up(rng: Rng) -> Any:
    rate = 1e-6 * np.minimum(1, (steps(2000) + 1) / 100)
    return {"loss": 2.5 + 0.15 * rng.normal(size=2000), "learning_rate/group_0": rate}


@fault("at-chance")
def flat_at_ln_4(rng: Rng) -> Any:
    return {"loss": math.log(4) + 0.03 * rng.normal(size=300)}


@fault("at-chance")
def collapsed_to_ln_10(rng: Rng) -> Any:
    return {"loss": falling(1000, 3.5, math.log(10), 0.03) + 0.004 * rng.normal(size=1000)}


@fault("at-chance")
def at_chance_for_the_configured_classes(rng: Rng) -> Any:
    values = falling(1000, 6.5, math.log(120), 0.03) + 0.1 * rng.normal(size=1000)
    return {"loss": values}, {"num_classes": 120}


@fault("loss-jump")
def jumps_and_stays(rng: Rng) -> Any:
    values = falling(1000) + 0.03 * rng.normal(size=1000)
    values[600:] += 3
    return {"loss": values}


@fault("loss-jump")
def jumps_late(rng: Rng) -> Any:
    values = falling(1000) + 0.03 * rng.normal(size=1000)
    values[985:] += 3
    return {"loss": values}


@fault("loss-spikes")
def spikes(rng: Rng) -> Any:
    values = falling(1000) + 0.03 * rng.normal(size=1000)
    values[[400, 401, 700]] += 4
    return {"loss": values}


@fault("zero-learning-rate")
def learning_rate_of_zero(rng: Rng) -> Any:
    return {
        "loss": math.log(4) + 0.03 * rng.normal(size=200),
        "learning_rate/group_0": np.zeros(200),
    }


@fault("zero-learning-rate")
def schedule_that_is_too_short(rng: Rng) -> Any:
    rate = 1e-3 * np.maximum(0, 1 - steps(1000) / 600)
    return {"loss": falling(1000) + 0.03 * rng.normal(size=1000), "learning_rate/group_0": rate}


@fault("zero-learning-rate")
def schedule_that_is_stepped_too_often(rng: Rng) -> Any:
    rate = 1e-3 * 0.5 ** (steps(600) // 5)
    at = np.append(np.arange(200), [200, 400])
    loss = 3.2 + 1.3 * np.exp(-steps(600) / 10) + 0.05 * rng.normal(size=600)
    return {"loss": loss, "learning_rate/group_0": (at, rate[at])}


@fault("not-finite")
def explodes_to_nan(rng: Rng) -> Any:
    values = 1.4 * np.exp(steps(200) / 2)
    values[150:] = math.nan
    return {"loss": values}


@fault("learning-rate")
def scheduler_that_is_never_stepped(rng: Rng) -> Any:
    return {
        "loss": falling(300) + 0.03 * rng.normal(size=300),
        "learning_rate/group_0": np.full(300, 0.1),
        "scheduler_steps": (np.array([299]), np.zeros(1)),
    }


@fault("clipping")
def clipped_to_almost_nothing(rng: Rng) -> Any:
    return clipped(rng, 2.5 + 0.3 * rng.normal(size=400), 1e-6), SGD


@fault("clipping")
def flat_because_of_clipping(rng: Rng) -> Any:
    return clipped(rng, 2.5 + 0.01 * rng.normal(size=400), 1e-6), SGD


@pytest.mark.sampled(15)
@pytest.mark.parametrize("seed", range(3))
@pytest.mark.parametrize("kind", FAULTS)
def test_faults(kind: str, seed: int) -> None:
    """Each is the one finding, and of the right rule."""
    check_fault(kind, seed)


@pytest.mark.full
@pytest.mark.parametrize("kind", FAULTS)
def test_faults_of_many_seeds(kind: str) -> None:
    """Also with other noise."""
    for seed in range(3, 40):
        check_fault(kind, seed)


def check_fault(kind: str, seed: int) -> None:
    rule, make = FAULTS[kind]
    made = make(np.random.default_rng(seed))
    curves, config = made if isinstance(made, tuple) else (made, None)
    found = judge(curves, config)
    assert [finding.rule for finding in found] == [rule], [f.sentence for f in found]


def test_sentences() -> None:
    """They have the numbers that show what is wrong."""
    (found,) = judge({"loss": np.where(steps(200) < 100, 1.0, 4.0) + 0.01 * np.sin(steps(200))})
    assert found.sentence == "loss jumps from 1 to 4 at step 100 and stays there until step 199."
    (found,) = judge({"loss": np.full(60, math.log(4))})
    assert found.sentence == (
        "The loss stays at 1.386 = ln 4, chance level for 4 classes (loss, steps 30 to 59)."
    )
    (found,) = judge({"loss": 1.5 * 2.0 ** steps(41)})
    # 3 times the 1.5 to 6 (median 3) of the first three is passed by 1.5 * 8.
    assert found.sentence == (
        "The loss diverges from step 3 on: loss rises from 3 to 1.65e+12 at step 40."
    )
    (found,) = judge({"train_loss": 2 + steps(101) / 50})
    assert found.sentence == (
        "The loss rises: train_loss is 2.09 in the first tenth of the steps and 3.91 in the last tenth "
        "(steps 0 to 100)."
    )
    (found,) = judge({"loss": np.full(150, 3.0), "learning_rate/group_0": np.zeros(150)})
    assert found.sentence == (
        "The learning rate is 0 in all steps from 0 to 149: the weights do not change."
    )
    halved = 1e-3 * 0.5 ** (steps(600) // 5)
    (found,) = judge(
        {
            "loss": 3 + np.exp(-steps(600)),
            "learning_rate/group_0": halved,
            "val/loss": np.full(600, 3.0),
        }
    )
    # 0.5 ** 20 is the first power below a millionth.
    assert found.sentence == (
        "The learning rate falls from 0.001 at step 0 to 9.54e-10 at step 100 and 1.5e-39 at step 599: the "
        "weights hardly change, and loss and val/loss have not changed since."
    )
    assert (found.severity, found.steps) == ("critical", (100, 599))
    norms = {
        "gradient_norm/overall": np.full(200, 1e-6),
        "gradient_norm_before_clipping": np.full(200, 1.72),
    }
    (found,) = judge({"loss": np.full(200, 2.48), **norms}, SGD)
    assert found.sentence == (
        "Clipping cuts the gradient norm from 1.72 to 1e-06 in 200 of 200 sampled steps: each update is "
        "1,720,000 times smaller than without clipping, and loss does not fall (2.48 at the start, 2.48 at "
        "the end)."
    )


def test_a_loss_in_flat_runs_of_the_logarithm_of_classes_that_are_not_configured() -> None:
    """With another number of classes in the configuration it is flat, and not at chance."""
    values = np.full(200, math.log(4))
    (found,) = judge({"loss": values}, {"num_classes": 50})
    assert found.rule == "flat-loss"
