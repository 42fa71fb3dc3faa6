"""Each rule finds what it is there for, with the right steps, and nothing in a healthy run."""

from __future__ import annotations

import json
import math
import statistics
from collections.abc import Callable
from pathlib import Path
from types import SimpleNamespace
from typing import Any, cast

import numpy as np
import pytest

import stepwell
from stepwell.analysis.findings import RULES, Facts, Finding, findings
from stepwell.analysis.findings.stragglers import _medians
from stepwell.analysis.report import report
from stepwell.analysis.timeline.lanes import Loop
from stepwell.analysis.timeline.step_phases import NEVER
from stepwell.reading import RecordedRun
from stepwell.testing import FakeClock
from stepwell.testing.simulate import (
    HangFault,
    PlannedDurations,
    Restart,
    RunPlan,
    Stall,
    StragglerFault,
    make_plan,
    simulate,
)
from stepwell.testing.simulate.plan import MS, SECOND
from tests.analysis.findings.training import collect_garbage, healthy_values, noise, train


@pytest.fixture(autouse=True)
def _strict(monkeypatch: pytest.MonkeyPatch) -> None:
    """A rule that fails is raised."""
    monkeypatch.setenv("STEPWELL_STRICT", "1")


def only(run: RecordedRun, rule: str) -> Finding:
    """The one finding of a run, which is of this rule."""
    found = findings(run)
    assert [finding.rule for finding in found] == [rule], [f.sentence for f in found]
    return found[0]


def nothing(run: RecordedRun) -> None:
    """Nothing is found."""
    assert [finding.sentence for finding in findings(run)] == []


def test_a_healthy_run_has_no_finding(tmp_path: Path) -> None:
    """Nor with validation and checkpoints at intended intervals."""
    nothing(train(tmp_path))
    often = {49: {"validate": 0.3, "save checkpoint": 0.05}}
    nothing(train(tmp_path, times=lambda step: often.get(step % 50, {})))


def test_an_empty_run_has_no_finding(tmp_path: Path) -> None:
    """There is nothing to look at."""
    with stepwell.init("empty", dir=tmp_path) as run:
        pass
    nothing(stepwell.open_run(run.path))


def test_every_rule_has_a_test() -> None:
    """The table of rules grows with this file."""
    text = Path(__file__).read_text()
    assert [name for name in RULES if f"def test_{name}" not in text] == []


def test_died(tmp_path: Path) -> None:
    """The error, the step and the span that it was raised in."""
    with pytest.raises(ValueError, match="bad batch"):
        _die(tmp_path)
    (recorded,) = stepwell.list_runs(tmp_path)
    found = only(recorded, "died")
    line = _die.__code__.co_firstlineno + 7
    assert found.sentence == (
        "The process failed at step 25 inside train step › forward: ValueError: bad batch "
        f"(test_rules.py:{line} in _die)."
    )
    assert found.lines[-1] == '    raise ValueError("bad batch")'
    assert (found.severity, found.steps, found.ranks) == ("critical", (25,), (0,))


def _die(folder: Path) -> None:
    with FakeClock() as clock, stepwell.init("dies", dir=folder) as run:
        for step in range(30):
            run.set_step(step)
            with run.span("train step"), run.span("forward"):
                clock.advance(0.01)
                if step == 25:
                    raise ValueError("bad batch")


def test_died_when_it_was_killed(tmp_path: Path) -> None:
    """Its open spans, because there is no exception."""
    simulate(tmp_path / "run", RunPlan(2, 50, (HangFault(1, 40, ns=2 * SECOND),)))
    found = {f.rule: f for f in findings(stepwell.open_run(tmp_path / "run"))}
    assert found["died"].sentence.startswith(
        "Ranks 0 and 1 were killed at step 40, at about the same time and without an exception: "
        "rank 1 inside "
    )
    assert "hang" not in found


def test_hanging(tmp_path: Path) -> None:
    """The rank that never arrived is named, with what the others wait in."""
    simulate(tmp_path / "run", RunPlan(3, 50, (HangFault(1, 40),)))
    found = {f.rule: f for f in findings(stepwell.open_run(tmp_path / "run"))}
    assert found["hang"].ranks == (1,)
    assert found["hang"].steps == (40,)
    assert "rank 1 never arrived" in found["hang"].sentence


def test_hanging_is_not_what_takes_long_the_first_time(tmp_path: Path) -> None:
    """Nobody knows yet how long an epoch takes."""
    with FakeClock() as clock, stepwell.init("long", dir=tmp_path) as run:
        run.set_step(0)
        with run.span("epoch"):
            clock.advance(120)
            run.flush()
            nothing(stepwell.open_run(run.path))


@pytest.mark.parametrize("value", [math.nan, math.inf])
def test_nonfinite(tmp_path: Path, value: float) -> None:
    """A loss that is lost: since when, after which gradients."""

    def values(step: int) -> dict[str, float]:
        made = {**healthy_values(step), "gradient_norm/stem": 1.0, "gradient_norm/head": 1.0}
        made["gradient_norm/neck"] = value if step >= 70 else 1.0
        return {**made, "train/loss": value if step >= 72 else made["train/loss"]}

    found = only(train(tmp_path, values=values), "not-finite")
    kind = "NaN" if math.isnan(value) else "infinite"
    assert found.sentence == (
        f"train/loss is {kind} from step 72 on; gradients were already {kind} at step 70, "
        "first in layer neck."
    )
    assert (found.severity, found.steps) == ("critical", (70,))


def test_nonfinite_gradients_that_are_sampled(tmp_path: Path) -> None:
    """The step of a sample is not the step at which they broke: the last finite one is named, too."""

    def values(step: int) -> dict[str, float]:
        made = {**healthy_values(step), "train/loss": math.inf if step >= 72 else 1.0}
        if step % 20 == 0:
            made["gradient_norm/overall"] = math.nan if step >= 73 else 1.0
        return made

    found = only(train(tmp_path, values=values), "not-finite")
    assert found.sentence == (
        "train/loss is infinite from step 72 on; gradients are NaN at step 80 (last finite at step 60)."
    )


def test_nonfinite_gradients_of_a_scaler(tmp_path: Path) -> None:
    """One that overflows now and then looks for its scale, and is fine."""

    def values(step: int) -> dict[str, float]:
        norm = math.inf if step in (3, 60) else 1.0
        return {**healthy_values(step), "gradient_norm/overall": norm}

    nothing(train(tmp_path, values=values))


def test_overfitting(tmp_path: Path) -> None:
    """Since which step, and what validation was at best."""

    def values(step: int) -> dict[str, float]:
        turned = 0.006 * max(0, step - 60) + 0.7 * math.exp(-60 / 30)
        val = 1.0 + (0.7 * math.exp(-step / 30) if step < 60 else turned)
        return {**healthy_values(step), "val/loss": val + 0.01 * noise(step)}

    found = only(train(tmp_path, values=values), "overfitting")
    assert found.steps[0] == pytest.approx(60, abs=6)
    assert found.evidence["best"] == pytest.approx(1.09, abs=0.02)
    assert found.sentence.startswith(
        f"The model overfits after step {found.steps[0]}: val/loss is best"
    )


def test_overfitting_of_accuracy(tmp_path: Path) -> None:
    """Where higher is better it falls; few values will do."""

    def values(step: int) -> dict[str, float]:
        val = 0.5 + 0.3 * min(step, 50) / 50 - 0.2 * max(0, step - 50) / 70
        return {"train_acc": 0.5 + 0.5 * min(step, 110) / 110, "val_acc": val}

    found = only(train(tmp_path, values=values, every=10), "overfitting")
    assert found.steps[0] == 50
    assert "falls to" in found.sentence


def test_overfitting_is_not_a_plateau(tmp_path: Path) -> None:
    """Validation that stays where it is best is fine, and so is one that wavers."""

    def values(step: int) -> dict[str, float]:
        return {
            "train/loss": 0.2 + 2 * math.exp(-step / 60),
            "val/loss": 0.5 + 1.7 * math.exp(-step / 15) + 0.05 * noise(step),
        }

    nothing(train(tmp_path, values=values))


def test_stuck_at_chance(tmp_path: Path) -> None:
    """Training learns by heart, and validation guesses."""

    def values(step: int) -> dict[str, float]:
        return {
            "train/loss": 0.05 + 0.65 * math.exp(-step / 30),
            "holdout/accuracy": 0.5 + 0.03 * noise(step),
        }

    found = only(train(tmp_path, values=values, config={"num_classes": 2}), "at-chance")
    assert (
        "no better than guessing: holdout/accuracy stays at 49 % with 2 classes" in found.sentence
    )
    better = train(
        tmp_path,
        values=lambda step: {**values(step), "holdout/accuracy": 0.5 + 0.4 * min(1, step / 60)},
        config={"num_classes": 2},
    )
    nothing(better)


def test_stuck_without_knowing_the_classes(tmp_path: Path) -> None:
    """Training improves, validation stays."""

    def values(step: int) -> dict[str, float]:
        return {
            "train/loss": 0.1 + 2.2 * math.exp(-step / 30),
            "val/loss": 2.3 + 0.02 * noise(step),
        }

    found = only(train(tmp_path, values=values), "not-generalising")
    assert "train/loss goes from 2.3 to" in found.sentence
    assert "val/loss stays at 2.3" in found.sentence


def test_gradients_explode(tmp_path: Path) -> None:
    """Since which step, and in which layer most."""

    def values(step: int) -> dict[str, float]:
        grown = math.exp(max(0, step - 60) / 8)
        return {
            **healthy_values(step),
            "gradient_norm/overall": 1 + grown + 0.1 * noise(step),
            "gradient_norm/stem": 0.5,
            "gradient_norm/head": 0.5 + grown,
        }

    found = only(train(tmp_path, values=values), "exploding-gradients")
    assert 60 < found.steps[0] < 90
    assert "most in layer head" in found.sentence


def test_gradients_vanish(tmp_path: Path) -> None:
    """While the loss stays; where the model has learnt, small ones are fine."""

    def values(step: int) -> dict[str, float]:
        norm = max(1e-6, math.exp(-step / 5)) * (1 + 0.1 * noise(step))
        return {"train/loss": 2.3 + 0.01 * noise(step), "gradient_norm/overall": norm}

    found = only(train(tmp_path, values=values), "vanishing-gradients")
    assert found.steps[0] < 40
    nothing(train(tmp_path, values=lambda step: {**values(step), **healthy_values(step)}))


def test_gradients_vanish_towards_a_layer(tmp_path: Path) -> None:
    """The first layer that gets next to nothing is named."""

    def values(step: int) -> dict[str, float]:
        layers = {"stem": 1e-9, "middle": 1e-7, "late": 0.1, "head": 1.0}
        norms = {f"gradient_norm/{name}": norm for name, norm in layers.items()}
        return {**healthy_values(step), **norms}

    found = only(train(tmp_path, values=values), "vanishing-gradients")
    assert "on the way to layer stem and 1 more layer:" in found.sentence


def test_frozen(tmp_path: Path) -> None:
    """Weights that do not move although they have gradients."""

    def values(step: int) -> dict[str, float]:
        return {
            **healthy_values(step),
            "weight_delta/backbone": 0.0,
            "weight_delta/head": 0.1,
            "gradient_norm/backbone": 1.0,
            "gradient_norm/head": 1.0,
        }

    found = only(train(tmp_path, values=values, every=20), "frozen-layers")
    assert found.evidence["layers"] == ["backbone"]
    assert (found.severity, found.steps) == ("warning", (0, 100))
    nothing(train(tmp_path, values=lambda step: {**values(step), "weight_delta/backbone": 0.01}))


def rates(one: float, ten: float) -> dict[str, float]:
    return {
        "learning_rate/group_0": one,
        "learning_rate/group_1": ten,
        "learning_rate/backbone": one,
        "learning_rate/head": ten,
    }


def test_learning_rate_ratio(tmp_path: Path) -> None:
    """Two groups that should be 1 : 10 and are not."""
    config = {"lr_ratio": {"backbone": 1, "head": 10}}

    def wrong(step: int) -> dict[str, float]:
        return {**healthy_values(step), **rates(1e-4, 1e-3 if step < 40 else 1e-4)}

    found = only(train(tmp_path, values=wrong, config=config), "learning-rate")
    assert "is 1 : 1 from step 40 on, not 1 : 10 as configured" in found.sentence

    def right(step: int) -> dict[str, float]:
        rate = 1e-4 * (1 - step / 200)
        return {**healthy_values(step), **rates(rate, 10 * rate)}

    nothing(train(tmp_path, values=right, config=config))


def test_learning_rate_value(tmp_path: Path) -> None:
    """Against the number in the configuration; a warm-up stays below it."""

    def values(step: int, top: float) -> dict[str, float]:
        return {**healthy_values(step), "train/lr": top * min(1, (step + 1) / 30)}

    config = {"lr": 0.01}
    found = only(train(tmp_path, values=lambda s: values(s, 0.1), config=config), "learning-rate")
    assert "is 0.1 at step 29, not 0.01 as configured" in found.sentence
    nothing(train(tmp_path, values=lambda s: values(s, 0.01), config=config))


def test_learning_rate_schedule(tmp_path: Path) -> None:
    """One that does not reach a group, and one that is never stepped."""

    def one_stays(step: int) -> dict[str, float]:
        return {**healthy_values(step), **rates(1e-4, 1e-3 * (1 - step / 200))}

    found = only(train(tmp_path, values=one_stays), "learning-rate")
    assert "of group_0 stays at 0.0001" in found.sentence

    def all_stay(step: int) -> dict[str, float]:
        return {**healthy_values(step), **rates(1e-4, 1e-3)}

    config = {"scheduler": "CosineAnnealingLR"}
    found = only(train(tmp_path, values=all_stay, config=config), "learning-rate")
    assert "scheduler.step() is not called" in found.sentence
    nothing(train(tmp_path, values=all_stay))


def test_loss(tmp_path: Path) -> None:
    """One that explodes; all its kinds are in test_learning."""
    run = train(tmp_path, values=lambda step: {"loss": 1.4 * 1.3**step})
    found = only(run, "diverged")
    assert found.severity == "critical"
    # 1.4 * 1.3 ** 119.
    assert found.evidence["last"] == pytest.approx(5.05e13, rel=0.01)


def in_loops(folder: Path, training: dict[str, Any], *validations: dict[str, Any]) -> RecordedRun:
    """A training whose loops have these attributes."""
    with (
        FakeClock() as clock,
        stepwell.init("loops", dir=folder) as run,
        run.span("training_loop", **training),
    ):
        for step in range(60):
            run.set_step(step)
            with run.span("forward"):
                clock.advance(0.01)
            run.log({"loss": math.log(4) + 0.01 * noise(step)})
            if validations and step % 20 == 19:
                with run.span("validation_loop", **validations[step // 20]):
                    clock.advance(0.001)
    return stepwell.open_run(run.path)


def test_optimizer(tmp_path: Path) -> None:
    """It has none of the model's parameters, which explains the flat loss; or not all of them."""
    run = in_loops(tmp_path, {"trainable_parameters": 12, "optimized_parameters": 0})
    found = only(run, "optimizer-parameters")
    assert found.severity == "critical"
    assert found.sentence.startswith(
        "The optimizer updates none of the model's 12 trainable parameter tensors"
    )
    run = in_loops(tmp_path, {"trainable_parameters": 12, "optimized_parameters": 2})
    found = findings(run)[-1]
    assert (found.rule, found.severity) == ("optimizer-parameters", "warning")
    assert "updates 2 of the model's 12 trainable parameter tensors; 10 are never" in found.sentence
    which = {"not_optimized": ["head.weight", "head.bias"], "not_optimized_numbers": 5140}
    run = in_loops(tmp_path, {"trainable_parameters": 4, "optimized_parameters": 2, **which})
    assert (
        "2 are never updated: head.weight, head.bias (5,140 values)." in findings(run)[-1].sentence
    )
    run = in_loops(tmp_path, {"trainable_parameters": 12, "optimized_parameters": 2, **which})
    assert "never updated: head.weight, head.bias and others (" in findings(run)[-1].sentence
    only(in_loops(tmp_path, {"trainable_parameters": 12, "optimized_parameters": 12}), "at-chance")


def test_passes(tmp_path: Path) -> None:
    """Passes that are stopped at once: always the same batch, or a new one if the loader shuffles."""
    facts = {
        "batches_per_epoch": 25,
        "stopped_passes": 400,
        "complete_passes": 0,
        "batches_of_stopped_passes": 400,
    }
    found = only(in_loops(tmp_path, {**facts, "shuffle": False}), "stopped-passes")
    assert found.severity == "critical"
    assert found.sentence == (
        "Passes over the loader stop after 1 of 25 batches (400 times): the loader does not shuffle, so "
        "training always gets its first batch."
    )
    found = findings(in_loops(tmp_path, {**facts, "shuffle": True}))[-1]
    assert (found.rule, found.severity) == ("stopped-passes", "note")
    for fine in (
        {"complete_passes": 50},
        {"stopped_passes": 9, "batches_of_stopped_passes": 9},
        {"batches_per_epoch": 10},
        {"batches_per_epoch": 0},
        {"batches_per_epoch": 1000, "batches_of_stopped_passes": 400 * 20, "shuffle": True},
    ):
        only(in_loops(tmp_path, {**facts, "shuffle": False, **fine}), "at-chance")


def test_generalising(tmp_path: Path) -> None:
    """Validation is worse than at the start, although its loss falls slowly."""

    def values(step: int) -> dict[str, float]:
        loss = {"loss": 2.1 if step == 0 else 0.4}
        return {**loss, "val/loss": 5 - step / 200} if step % 40 == 39 else loss

    found = only(train(tmp_path, values=values), "not-generalising")
    assert found.sentence == (
        "The model does not generalise: val/loss is 4.41 at step 119, higher than loss at the start (2.1), "
        "while loss is 0.4 on average since step 79."
    )
    better = train(tmp_path, values=lambda s: {k: min(v, 2.0) for k, v in values(s).items()})
    nothing(better)


def test_clipping(tmp_path: Path) -> None:
    """Next to nothing is left of the gradients, which explains the loss at chance level."""

    def values(step: int) -> dict[str, float]:
        return {
            "loss": math.log(4),
            "gradient_norm/overall": 1e-4,
            "gradient_norm_before_clipping": 2.0,
        }

    run = train(tmp_path, values=values, config={"optimizer": {"class": "SGD"}})
    found = only(run, "clipping")
    assert found.sentence == (
        "Clipping cuts the gradient norm from 2 to 0.0001 in 120 of 120 sampled steps: each update is 20,000 "
        "times smaller than without clipping, and loss does not fall (1.39 at the start, 1.39 at the end)."
    )
    only(train(tmp_path, values=values, config={"optimizer": {"class": "Adam"}}), "at-chance")


def test_validation_mode(tmp_path: Path) -> None:
    """How many validations ran in training mode, and when."""
    full = {"trainable_parameters": 2, "optimized_parameters": 2}
    run = in_loops(tmp_path, full, {}, {"model_mode": "train"}, {"model_mode": "train"})
    (found,) = (f for f in findings(run) if f.rule == "validation-mode")
    assert found.steps == (39, 59)
    assert found.sentence.startswith(
        "2 of 3 validation loops run with the model in training mode (after steps 39 and 59): dropout"
    )
    only(in_loops(tmp_path, full, {}, {}, {}), "at-chance")


def test_validation_mode_of_several_ranks() -> None:
    """A validation of all ranks counts once."""

    def sentence(*steps: int) -> str:
        loops = [
            Loop("validation_loop", rank, 0, step, step, {"model_mode": "train"})
            for rank in (0, 1)
            for step in steps
        ]
        facts = cast(Facts, SimpleNamespace(loops=lambda name: loops))
        return next(RULES["validation_mode"](facts)).sentence

    assert sentence(9).startswith(
        "The validation loop runs with the model in training mode (after step 9): "
    )
    assert sentence(9, 19).startswith("All 2 validation loops run with the model in training mode ")


def test_batches_out_of_balance(tmp_path: Path) -> None:
    """Far more of one class than of the other."""

    def values(step: int, share: float) -> dict[str, float]:
        part = share + 3 * noise(step)
        shares = {"batch/label_0_pct": part, "batch/label_1_pct": 100 - part}
        return {**healthy_values(step), **shares, "batch/batch_size": 64.0}

    found = only(train(tmp_path, values=lambda s: values(s, 92), every=5), "imbalanced-batches")
    assert "92 % of the samples in batches are class 0" in found.sentence
    nothing(train(tmp_path, values=lambda s: values(s, 55), every=5))


def test_batches_that_are_not_shuffled(tmp_path: Path) -> None:
    """One class after the other."""

    def values(step: int) -> dict[str, float]:
        part = 100.0 if step // 30 % 2 else 0.0
        shares = {"batch/label_0_pct": part, "batch/label_1_pct": 100 - part}
        return {**healthy_values(step), **shares, "batch/batch_size": 64.0}

    found = only(train(tmp_path, values=values, every=5), "unshuffled-batches")
    assert "varies between 0 % and 100 %" in found.sentence


def at_places(folder: Path, *shares: float, **loop: Any) -> RecordedRun:
    """A training of 40 collections that come upon batches with these shares of class 0, in turn."""
    with (
        FakeClock() as clock,
        stepwell.init("places", dir=folder) as run,
        run.span("training_loop", **loop),
    ):
        for step in range(40):
            run.set_step(step)
            share = shares[step % len(shares)]
            balance = {"batch/label_0_pct": share, "batch/label_1_pct": 100 - share}
            run.log({**healthy_values(step), **balance, "batch/batch_size": 64.0})
            clock.advance(0.01)
    return stepwell.open_run(run.path)


@pytest.mark.parametrize(
    ("shares", "labels"),
    [([100.0], "the same batch ("), ([100.0, 100.0, 96.875], "the same 3 batches, in turn (")],
)
def test_batches_that_are_the_same_in_every_epoch(
    tmp_path: Path, shares: list[float], labels: str
) -> None:
    """Every 200th batch of an epoch of 200 or 600: how the others are is not known.

    A loader that shuffles would not come upon the same ones.
    """
    run = at_places(tmp_path, *shares)
    found = only(run, "repeated-batches")
    assert found.severity == "note"
    assert f"the 40 sampled batches have the labels of {labels}" in found.sentence
    only(at_places(tmp_path, *shares, shuffle=False), "repeated-batches")
    only(at_places(tmp_path, *shares, shuffle=True), "imbalanced-batches")


def test_many_batches_of_every_epoch_show_the_balance(tmp_path: Path) -> None:
    """Eight different ones do, though they come again in every epoch."""
    shares = [96.875, 95.3125, 100.0, 92.1875, 93.75, 100.0, 96.875, 90.625]
    assert (
        "96 % of the samples in batches are class 0"
        in only(at_places(tmp_path, *shares), "imbalanced-batches").sentence
    )


def test_spikes(tmp_path: Path) -> None:
    """At which steps, and how high."""

    def values(step: int) -> dict[str, float]:
        spike = 4.0 if step in (50, 51, 90) else 0.0
        return {"train/loss": healthy_values(step)["train/loss"] + spike}

    found = only(train(tmp_path, values=values), "loss-spikes")
    assert found.steps == (50, 90)
    assert found.sentence.startswith("train/loss spikes at steps 50 and 90: it jumps from ")
    noisy = train(
        tmp_path, values=lambda s: {"loss": healthy_values(s)["train/loss"] * (1 + 0.4 * noise(s))}
    )
    nothing(noisy)


def test_rank_divergence(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Replicas that part, since which step; losses differ as the data do."""
    monkeypatch.setenv("WORLD_SIZE", "2")

    def two_ranks(name: str, since: int) -> RecordedRun:
        for rank in (0, 1):
            monkeypatch.setenv("RANK", str(rank))
            monkeypatch.setenv("LOCAL_RANK", str(rank))
            with stepwell.init(name, dir=tmp_path, run_id=name) as run:
                for step in range(60):
                    off = 0.1 if rank == 1 and step >= since else 0.0
                    loss = healthy_values(step)["train/loss"] + 0.05 * noise(step + 77 * rank)
                    run.log({"gradient_norm/overall": 1.0 + off, "train/loss": loss}, step=step)
        for document in run.path.glob("*/process.json"):
            text = document.read_text()
            # Two ranks of one launch, although they were recorded one after the other.
            document.write_text(text.replace('"attempt": 1', '"attempt": 0'))
        return stepwell.open_run(run.path)

    found = only(two_ranks("apart", 40), "rank-divergence")
    assert found.steps == (40, 59)
    # Which of the two is right nobody can say.
    assert found.sentence == (
        "Ranks 0 and 1 differ from step 40 on: gradient_norm/overall is 1 and 1.1 there."
    )
    assert found.ranks == (0, 1)
    nothing(two_ranks("together", 100))


def test_straggling(tmp_path: Path) -> None:
    """The rank, the phase and how much slower it is; no other rank is named."""
    fault = StragglerFault(2, "forward", range(300), 15 * MS)
    simulate(tmp_path / "slow", RunPlan(4, 300, (fault,)))
    found = only(stepwell.open_run(tmp_path / "slow"), "straggler")
    assert (found.ranks, found.evidence["phase"]) == ((2,), "forward")
    assert (
        "Rank 2 is slower than the others in nearly all steps: the forward pass takes "
        in found.sentence
    )
    simulate(tmp_path / "even", RunPlan(4, 300, pace=PlannedDurations(checkpoint=200 * MS)))
    nothing(stepwell.open_run(tmp_path / "even"))


def test_median_of_the_ranks_that_have_a_step() -> None:
    """-1 is a step that a rank does not have. Against the statistics module."""
    ns = np.array([[5, -1, 7, -1], [1, 4, -1, -1], [3, 8, -1, -1]])
    here = [[n for n in column if n >= 0] for column in ns.T.tolist()]
    expected = [statistics.median(own or [float(NEVER)]) for own in here]
    assert _medians(ns).tolist() == expected == [3, 6, 7, float(NEVER)]
    assert _medians(ns[:, :1]).tolist() == [3]


def test_straggling_once(tmp_path: Path) -> None:
    """One rank holds the others up a single time."""
    simulate(tmp_path / "run", RunPlan(4, 300, (Stall(150, "data", 8 * SECOND, rank=1),)))
    found = only(stepwell.open_run(tmp_path / "run"), "straggler")
    assert (found.ranks, found.steps) == ((1,), (150,))


def test_data_bound(tmp_path: Path) -> None:
    """How much of the time, and of a step."""
    found = only(train(tmp_path, times=lambda step: {"wait for data": 0.05}), "data-bound")
    assert found.evidence["share"] == pytest.approx(50 / 82, abs=0.01)
    assert found.sentence.startswith(
        "Waiting for data takes 57 % of the wall time (49.7 ms of each 81.6"
    )


def test_data_bound_by_one_batch_in_20(tmp_path: Path) -> None:
    """Which batches, and how slow they are."""
    run = train(tmp_path, times=lambda step: {"wait for data": 0.3} if step % 20 == 7 else {})
    found = only(run, "data-bound")
    assert found.steps == (7, 27, 47, 67, 87, 107)
    assert "mostly for every 20th batch: it takes " in found.sentence
    assert found.evidence["slow_ns"] == pytest.approx(0.3e9, rel=0.05)


def test_data_bound_for_a_while(tmp_path: Path) -> None:
    """Some steps in a row, in a run that does not wait on the whole."""
    run = train(
        tmp_path, steps=400, times=lambda s: {"wait for data": 0.06} if 100 <= s < 140 else {}
    )
    found = only(run, "data-bound")
    assert found.steps == (100, 139)
    assert found.evidence["ns"] == pytest.approx(40 * 0.059e9, rel=0.02)


def test_what_is_planted_is_found(tmp_path: Path) -> None:
    """A straggler, a stall, a stretch that waits for data and a restart, with ranks, steps and amounts."""
    truth = simulate(tmp_path / "run", make_plan(4, 1000))
    found = {
        f.rule: f for f in findings(stepwell.open_run(tmp_path / "run")) if f.rule != "straggler"
    }
    late = [f for f in findings(stepwell.open_run(tmp_path / "run")) if f.rule == "straggler"]
    assert found.keys() == {"data-bound", "restarts"}
    assert found["data-bound"].steps == (300, 399)
    assert found["data-bound"].evidence["ns"] == pytest.approx(6e9, rel=0.02)
    assert found["restarts"].evidence["redone_steps"] == 50
    planted = {s["rank"]: s for s in truth["stragglers"]}
    (stall,), (slow,) = (
        [f for f in late if f.evidence["kind"] == k] for k in ("one-off", "chronic")
    )
    assert (stall.ranks, stall.steps) == ((2,), (450,))
    assert slow.ranks == (3,)
    assert list(slow.steps) == planted[3]["steps"]
    assert slow.evidence["ns"] == pytest.approx(planted[3]["ns"], rel=0.01)


def test_pauses(tmp_path: Path) -> None:
    """After which steps, for how long."""
    run = train(tmp_path, times=lambda step: {"pause": 0.2} if step % 10 == 9 else {})
    found = only(run, "pauses")
    assert found.steps[:3] == (9, 19, 29)
    assert found.sentence.startswith(
        "A pause of 200 ms outside any span follows every 10th step (steps 9, 19, 29, …)."
    )
    assert found.evidence["share"] == pytest.approx(20 / 53, abs=0.02)
    nothing(train(tmp_path, times=lambda step: {"pause": 0.002}))


def test_code_that_no_span_covers(tmp_path: Path) -> None:
    """100 ms after each optimizer step of 33 ms steps: a finding in place of the hint."""

    def times(step: int) -> dict[str, float]:
        return {"pause": 0.1}

    run = train(tmp_path, times=times)
    found = only(run, "uncovered-time")
    # 12 of 16.7 s: 120 steps of 133 ms, 0.7 s around them.
    assert found.sentence.startswith("Code outside any span takes 72 % of the wall time: 100 ms")
    assert found.sentence.endswith(" step, mostly after the optimizer step.")
    assert found.severity == "warning"
    assert report(run).hints == []

    def gpu(step: int) -> dict[str, float]:
        return {**healthy_values(step), "system/gpu_0/utilization_percent": 90.0}

    # Passes only start the work of a GPU; waiting for it is in no span.
    nothing(train(tmp_path, times=times, values=gpu))


def test_code_that_no_span_covers_before_the_forward_pass(tmp_path: Path) -> None:
    """Without a span around the wait for data it may be that."""
    with FakeClock() as clock, stepwell.init("spans", dir=tmp_path) as run:
        for step in range(60):
            run.set_step(step)
            clock.advance(0.1)
            for name in ("forward", "backward", "optimizer"):
                with run.span(name):
                    clock.advance(0.01)
    found = only(stepwell.open_run(run.path), "uncovered-time")
    assert found.sentence.endswith(
        " 100 ms of each 130 ms step, mostly between the optimizer step and the forward pass."
    )


def test_slow_steps(tmp_path: Path) -> None:
    """Every tenth takes four times as long, in the forward pass."""
    run = train(tmp_path, times=lambda step: {"forward": 0.11} if step % 10 == 3 else {})
    found = only(run, "slow-steps")
    assert found.steps[:3] == (3, 13, 23)
    assert found.sentence.startswith("Every 10th step takes 134 ms, the others 32.9 ms")
    nothing(train(tmp_path, times=lambda step: {"forward": 0.015} if step % 10 == 3 else {}))
    assert "the forward pass takes 111 ms there instead of 9.92 ms" in found.sentence


def test_throughput(tmp_path: Path) -> None:
    """Gradually or suddenly, from which step on, in which phase."""
    grows = train(tmp_path, times=lambda step: {"backward": 0.02 + 0.0005 * step})
    found = only(grows, "throughput-drop")
    assert "gradually" in found.sentence
    assert found.evidence["phase"] == "backward"
    jumps = train(tmp_path, times=lambda step: {"backward": 0.02 if step < 60 else 0.06})
    found = only(jumps, "throughput-drop")
    assert "suddenly" in found.sentence
    assert found.steps[0] <= 60 <= found.steps[1]
    nothing(train(tmp_path, times=lambda step: {"backward": 0.02 + 0.008 * noise(step)}))


def test_throughput_of_a_machine_that_is_shared(tmp_path: Path) -> None:
    """Full processors, of which the run gets less and less: a note that names other processes."""

    def run(node: float, end: float) -> Finding:
        def values(step: int) -> dict[str, float]:
            own = 80 + (end - 80) * step / 119
            return {
                **healthy_values(step),
                "system/node_cpu_percent": node,
                "system/cpu_percent": own,
            }

        times = {"times": lambda step: {"backward": 0.02 + 0.0005 * step}}
        return only(train(tmp_path, values=values, **times), "throughput-drop")

    shared = run(100.0, 40.0)
    assert shared.severity == "note"
    assert "used 80 % of one CPU at the start, 40 % at the end: other processes" in shared.sentence
    for node, end in ((100.0, 80.0), (50.0, 40.0)):
        own = run(node, end)
        assert own.severity != "note"
        assert (own.advice or "").endswith("a hot device, or other processes on this machine.")


def test_throughput_of_batches_that_grow(tmp_path: Path) -> None:
    """Not slower, but larger: a note with the time of a sample; a slowdown beyond that is still found."""

    def recorded(seconds: float, last: int) -> RecordedRun:
        with FakeClock() as clock, stepwell.init("grows", dir=tmp_path) as run:
            samples = 0
            for step in range(120):
                run.set_step(step)
                is_late = step >= 60
                for name, share in (("forward", 0.3), ("backward", 0.7)):
                    with run.span(name):
                        late = share * seconds * (1 + 0.05 * noise(step))
                        clock.advance(late if is_late else share * 0.032)
                samples += last if is_late else 32
                if step % 20 == 19:
                    run.event(
                        "training_metrics_update",
                        num_iterations=step + 1,
                        num_train_samples=samples,
                    )
        return stepwell.open_run(run.path)

    found = only(recorded(0.16, 128), "larger-batches")
    assert (found.severity, found.evidence["last_samples"]) == ("note", 128)
    assert found.evidence["to_ns"] == pytest.approx(160 * MS, rel=0.03)
    assert "from 32 ms to 159 ms because batches grow from 32 to 128 samples" in found.sentence
    # 160 ms / 128
    assert "(1 ms per sample at the start, 1.2" in found.sentence
    only(recorded(0.16, 32), "throughput-drop")
    only(recorded(0.16, 48), "throughput-drop")


def test_machine_load(tmp_path: Path) -> None:
    """On a machine that others use, pauses without a rhythm are theirs; those with one are still found."""

    def values(step: int) -> dict[str, float]:
        load = {"system/node_cpu_percent": 100.0, "system/cpu_percent": 8.0}
        return {**healthy_values(step), **(load if step % 20 == 0 else {})}

    def held_up(step: int) -> dict[str, float]:
        return {"pause": 0.08} if noise(step) > 0.4 else {}

    assert only(train(tmp_path, times=held_up), "pauses").evidence["period"] is None
    found = only(train(tmp_path, times=held_up, values=values), "busy-machine")
    assert found.sentence == (
        "Other programs use the machine: its CPUs are 100 % busy, and this process gets 8.0 % of one CPU on "
        "average. Irregular pauses and slow steps are probably caused by this."
    )
    assert found.severity == "note"

    def slow_forward(step: int) -> dict[str, float]:
        return {"forward": 0.09} if noise(step) > 0.4 else {}

    assert only(train(tmp_path, times=slow_forward), "slow-steps").evidence["period"] is None
    only(train(tmp_path, times=slow_forward, values=values), "busy-machine")

    def tenth(step: int) -> dict[str, float]:
        return {"pause": 0.3} if step % 10 == 9 else {}

    both = findings(train(tmp_path, times=tenth, values=values))
    assert sorted(f.rule for f in both) == ["busy-machine", "pauses"]


def test_stalls(tmp_path: Path) -> None:
    """A single step that took very long, and where."""
    run = train(tmp_path, times=lambda step: {"optimizer": 3.0} if step == 77 else {})
    found = only(run, "stall")
    assert found.steps == (77,)
    nothing(train(tmp_path, times=lambda step: {"optimizer": 0.2} if step == 77 else {}))
    assert "the optimizer took" in found.sentence


def test_checkpoints(tmp_path: Path) -> None:
    """How much of the time they take; few short ones are fine."""
    run = train(tmp_path, times=lambda step: {"save checkpoint": 0.5} if step % 20 == 19 else {})
    found = only(run, "checkpoint-stall")
    assert found.steps == (19, 39, 59, 79, 99, 119)
    assert "ms every 20 steps (6 times)" in found.sentence
    nothing(train(tmp_path, times=lambda step: {"save checkpoint": 0.1} if step % 50 == 49 else {}))


def test_garbage(tmp_path: Path) -> None:
    """Collections that take a good part of the time."""
    with FakeClock() as clock, stepwell.init("collects", dir=tmp_path) as run:
        for step in range(60):
            run.set_step(step)
            with run.span("train step"), run.span("forward"):
                clock.advance(0.05)
                if step % 5 == 0:
                    collect_garbage(clock, 0.1)
    found = only(stepwell.open_run(run.path), "gc-pauses")
    assert found.evidence["share"] == pytest.approx(0.1 / 0.35, abs=0.03)


def test_memory(tmp_path: Path) -> None:
    """Growth that does not end; what settles is fine."""

    def values(step: int, bytes: float) -> dict[str, float]:
        return {**healthy_values(step), "system/memory_rss_bytes": bytes}

    grows = train(tmp_path, values=lambda step: values(step, 1e9 + 1e7 * step))
    found = only(grows, "memory-growth")
    assert found.ranks == (0,)
    assert found.evidence["bytes"] == pytest.approx(0.75e9, rel=0.1)
    settles = 1.5e9
    nothing(train(tmp_path, values=lambda step: values(step, min(settles, 1e9 + 5e7 * step))))


def test_memory_of_a_short_run(tmp_path: Path) -> None:
    """A leak of 1.4 GB in 51 s, read every 5 s, is one; memory that settles is none."""

    def record(name: str, bytes_at: Callable[[float], float]) -> RecordedRun:
        with FakeClock() as clock, stepwell.init(name, dir=tmp_path) as run:
            for step in range(51):
                run.set_step(step)
                with run.span("forward"):
                    clock.advance(1.0)
                if step % 5 == 0:
                    run.log({"system/memory_rss_bytes": bytes_at(float(step))})
        return stepwell.open_run(run.path)

    found = only(record("leak", lambda s: 4e8 + 1.4e9 * s / 51), "memory-growth")
    # The first quarter of the 11 readings is left out: from 10 s to 50 s.
    assert found.evidence["bytes"] == pytest.approx(1.4e9 * 40 / 51)
    nothing(record("settles", lambda s: 4e8 + 1.4e9 * (1 - math.exp(-s / 12))))
    nothing(record("steps", lambda s: 4e8 + (1.4e9 if s > 30 else 0.0)))


def test_goodput_of_restarts(tmp_path: Path) -> None:
    """Repeated steps and waiting time. The advice is about the larger of them."""
    fault = Restart(650, gap_ns=5 * SECOND)
    plan = RunPlan(2, 1000, (fault,), pace=PlannedDurations(checkpoint=200 * MS))
    simulate(tmp_path / "run", plan)
    found = {f.rule: f for f in findings(stepwell.open_run(tmp_path / "run"))}
    assert found.keys() == {"restarts"}
    assert found["restarts"].evidence["redone_steps"] == pytest.approx(50, abs=1)
    assert found["restarts"].advice.endswith("the queue or the launcher.")


def test_goodput_of_restarts_that_repeat_many_steps(tmp_path: Path) -> None:
    """Checkpoints would have saved most of the loss."""
    plan = RunPlan(2, 1000, (Restart(790, gap_ns=1 * SECOND),), checkpoint_every=400)
    simulate(tmp_path / "run", plan)
    found = {f.rule: f for f in findings(stepwell.open_run(tmp_path / "run"))}
    assert found["restarts"].evidence["redone_steps"] == pytest.approx(390, abs=1)
    assert found["restarts"].advice.startswith("Save checkpoints more often")


def test_goodput_that_is_low_because_of_a_restart(tmp_path: Path) -> None:
    """The restart is the finding: without its cost more than half of the time makes progress."""
    plan = RunPlan(
        2, 600, (Restart(450, gap_ns=60 * SECOND),), pace=PlannedDurations(checkpoint=100 * MS)
    )
    simulate(tmp_path / "run", plan)
    run = stepwell.open_run(tmp_path / "run")
    assert Facts(run).goodput.share < 0.5
    only(run, "restarts")


def test_goodput_that_is_low_for_more_than_a_restart(tmp_path: Path) -> None:
    """The restart is named once, the other losses beside it."""
    plan = RunPlan(
        2, 300, (Restart(200),), pace=PlannedDurations(checkpoint=100 * MS, validation=10 * SECOND)
    )
    simulate(tmp_path / "run", plan)
    found = {f.rule: f for f in findings(stepwell.open_run(tmp_path / "run"))}
    assert "between attempts" in found["restarts"].sentence
    assert "The largest losses apart from restarts: " in found["low-goodput"].sentence
    assert "between attempts" not in found["low-goodput"].sentence
    assert found["low-goodput"].advice == "Start with the largest: validation."


def test_checkpoints_of_a_run_with_a_gap(tmp_path: Path) -> None:
    """The limit is a share of the time that it ran, the sentence has the share of the wall time."""
    plan = RunPlan(
        2, 600, (Restart(450, gap_ns=100 * SECOND),), pace=PlannedDurations(checkpoint=1500 * MS)
    )
    simulate(tmp_path / "run", plan)
    found = {f.rule: f for f in findings(stepwell.open_run(tmp_path / "run"))}["checkpoint-stall"]
    assert found.evidence["share"] < 0.1
    wall_ns = Facts(stepwell.open_run(tmp_path / "run")).wall_ns
    assert found.evidence["share"] == pytest.approx(found.cost_ns / wall_ns)


def test_goodput_that_is_low(tmp_path: Path) -> None:
    """A long job of which 41 % is training."""
    run = train(
        tmp_path,
        steps=60,
        times=lambda s: {"forward": 1.4, "validate": 40.0 if s % 20 == 10 else 0.0},
    )
    found = only(run, "low-goodput")
    assert "validation" in found.sentence


def test_validation_time(tmp_path: Path) -> None:
    """Every 10 steps of 33 ms: 2 s are a finding, 0.45 s (54 % of the time) are none."""
    run = train(tmp_path, times=lambda s: {"validate": 2.0} if s % 10 == 9 else {})
    found = only(run, "validation-time")
    # 12 validations of 2 s, 120 steps of 33 ms, 0.7 s around them.
    assert found.evidence["share"] == pytest.approx(24 / 28.7, abs=0.01)
    assert found.sentence.startswith("Validation takes 84 % of the wall time: 12 times ")
    assert found.sentence.endswith(" s, every 10 steps.")
    assert (found.severity, found.steps) == ("warning", tuple(range(9, 120, 10)))
    nothing(train(tmp_path, times=lambda s: {"validate": 0.45} if s % 10 == 9 else {}))
    # The reason for a low goodput, too: one finding.
    only(
        train(tmp_path, steps=60, times=lambda s: {"validate": 40.0} if s % 20 == 10 else {}),
        "validation-time",
    )


def test_first_steps(tmp_path: Path) -> None:
    """The first one took much longer than all others."""
    run = train(tmp_path, times=lambda step: {"forward": 8.0} if step == 0 else {})
    found = only(run, "slow-first-steps")
    assert found.sentence.startswith("Step 0 took ")
    assert (found.severity, found.steps) == ("note", (0,))
    nothing(train(tmp_path, times=lambda step: {"forward": 0.4} if step == 0 else {}))


def test_dropped(tmp_path: Path) -> None:
    """Lost records are reported."""
    run = train(tmp_path)
    (document,) = run.path.glob("*/process.json")
    about = json.loads(document.read_text())
    document.write_text(json.dumps({**about, "drops": {"spans": 12}}))
    found = only(stepwell.open_run(run.path), "dropped-records")
    assert found.sentence.startswith("12 records were dropped")


def test_a_rule_that_fails_does_not_take_the_others_away(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """It is a separate note."""
    monkeypatch.delenv("STEPWELL_STRICT")

    def broken(facts: Facts) -> list[Finding]:
        raise KeyError("x")

    monkeypatch.setitem(RULES, "spikes", broken)  # type: ignore[arg-type]
    run = train(tmp_path, times=lambda step: {"wait for data": 0.05})
    assert [f.rule for f in findings(run)] == ["data-bound", "rule-failed"]


def test_a_hang_is_told_once(tmp_path: Path) -> None:
    """The step that it hung in is neither a stall, nor does it make others slow again and again."""
    simulate(tmp_path / "run", RunPlan(2, 60, (HangFault(1, 40),)))
    found = [f.rule for f in findings(stepwell.open_run(tmp_path / "run"))]
    assert sorted(set(found) - {"low-goodput"}) == ["died", "hang"]


def test_one_endless_step_makes_no_burst(tmp_path: Path) -> None:
    """One step in five takes 10 ms longer, and one of these took 30 s: that one is a stall."""

    def times(step: int) -> dict[str, float]:
        return {"forward": 30.0 if step == 60 else 0.02 if noise(step) > 0.6 else 0.005}

    found = findings(train(tmp_path, times=times))
    assert "slow-steps" not in [f.rule for f in found]
    assert [f.steps for f in found if f.rule == "stall"] == [(60,)]


def test_a_busy_machine_is_no_finding(tmp_path: Path) -> None:
    """Every part of the step is held up for 30 ms now and then, the pauses as well, by other programs."""

    def times(step: int) -> dict[str, float]:
        parts = {"wait for data": 0.004, "forward": 0.01, "backward": 0.01, "pause": 0.006}
        for number, name in enumerate(parts):
            share = parts[name] / 0.03
            if noise(5 * step + 700 * number) > 1 - share:
                parts[name] += 0.03
        return parts

    nothing(train(tmp_path, steps=400, times=times))
    alone = train(
        tmp_path / "alone", times=lambda step: {"pause": 0.2 if noise(step) > 0.5 else 0.006}
    )
    assert "pauses" in {f.rule for f in findings(alone)}
