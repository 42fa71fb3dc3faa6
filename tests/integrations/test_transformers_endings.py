"""Checkpoints, resuming, and trainings that fail or are interrupted."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
from transformers import Trainer, TrainerCallback

import stepwell
from stepwell import Run
from stepwell.integrations.transformers import StepwellCallback
from tests.harness.marks import others_in_full
from tests.integrations.trainers import (
    attributes_of,
    counts,
    curve,
    errors_of,
    finished,
    make_data,
    make_trainer,
    told,
)

pytestmark = pytest.mark.torch


def size_of(folder: Path) -> int:
    return sum(path.stat().st_size for path in folder.rglob("*") if path.is_file())


def test_checkpoints_have_their_path_and_size(recorded: Run, tmp_path: Path) -> None:
    """Those that the Trainer saves, and the model that the user does."""
    trainer = make_trainer(
        tmp_path, [StepwellCallback()], max_steps=4, save_strategy="steps", save_steps=2
    )
    trainer.train()
    trainer.save_model(str(tmp_path / "final"))
    run, spans = finished(recorded.path)
    assert counts(spans)["checkpoint_save_sync", "training_loop"] == 2
    assert counts(spans)["checkpoint_save_sync", "application"] == 1
    saved = told(run, "save_checkpoint_success")
    folders = [tmp_path / "out" / "checkpoint-2", tmp_path / "out" / "checkpoint-4"]
    assert [one["current_iteration"] for one in saved] == [2, 4, 4]
    assert [one["checkpoint_directory"] for one in saved[:2]] == [str(path) for path in folders]
    assert [one["checkpoint_size"] for one in saved[:2]] == [size_of(path) for path in folders]
    assert [one["productive_train_samples"] for one in saved] == [8, 16, 16]
    paths = [one["checkpoint_path"] for one in attributes_of(spans, "checkpoint_save_sync")]
    assert paths == [*map(str, folders), str(tmp_path / "final")]


@pytest.mark.full
def test_a_checkpoint_that_cannot_be_saved_is_a_failure(recorded: Run, tmp_path: Path) -> None:
    """There is a file where its folder should be; the Trainer raises that, and all is closed."""
    trainer = make_trainer(
        tmp_path, [StepwellCallback()], max_steps=4, save_strategy="steps", save_steps=2
    )
    (tmp_path / "out" / "checkpoint-4").write_text("in the way")
    with pytest.raises(OSError, match="checkpoint-4") as raised:
        trainer.train()
    run, spans = finished(recorded.path)
    assert [one["current_iteration"] for one in told(run, "save_checkpoint_success")] == [2]
    (failed,) = told(run, "save_checkpoint_failure")
    assert failed["current_iteration"] == 4
    assert failed["exception_type"] == type(raised.value).__name__
    assert errors_of(spans) == ["checkpoint_save_sync", "training_loop"]
    (update,) = told(run, "training_metrics_update")
    assert update["num_iterations"] == 4


@pytest.mark.full
@pytest.mark.parametrize("is_same_process", [True, False])
def test_resuming_goes_on_counting(recorded: Run, tmp_path: Path, is_same_process: bool) -> None:
    """7 steps make up an epoch of 26 samples: after 9 steps, 26 + 2 · 4 have been seen."""
    trainer = make_trainer(
        tmp_path, [StepwellCallback()], max_steps=9, save_strategy="steps", save_steps=9
    )
    trainer.train()
    if not is_same_process:
        _, spans = finished(recorded.path)
        assert counts(spans)["training_single_iteration", "training_loop"] == 9
        recorded = stepwell.init("again", dir=tmp_path / "runs")
    trainer = make_trainer(tmp_path, [StepwellCallback()], max_steps=14)
    trainer.train(resume_from_checkpoint=True)
    assert trainer.state.global_step == 14
    run, spans = finished(recorded.path)
    assert attributes_of(spans, "training_loop")[-1] == {
        "train_iterations_start": 9,
        "train_samples_start": 34,
        "train_iterations_target": 14,
        "train_samples_target": 52,
        "trainable_parameters": 16,
        "optimized_parameters": 16,
    }
    update = told(run, "training_metrics_update")[-1]
    assert (update["num_iterations"], update["current_iteration"]) == (5, 13)
    assert update["num_train_samples"] == 52 - 34
    loads = attributes_of(spans, "checkpoint_load")
    path = str(tmp_path / "out" / "checkpoint-9")
    assert [(one["checkpoint_path"], one["part"]) for one in loads] == [
        (path, "model"),
        (path, "optimizer"),
    ]
    history = [(one["step"] - 1, one["loss"]) for one in trainer.state.log_history if "loss" in one]
    assert curve(run, "loss")[-5:] == history[-5:]


class _Failing(Trainer):  # type: ignore[misc]
    """Fails in its sixth pass, the second of the second step."""

    error: BaseException = RuntimeError("out of luck")
    passes = 0

    def training_step(self, *args: Any, **kwargs: Any) -> Any:
        self.passes += 1
        if self.passes == 6:
            raise self.error
        return super().training_step(*args, **kwargs)


@pytest.mark.parametrize("error", [RuntimeError("out of luck"), KeyboardInterrupt()])
@pytest.mark.parametrize("is_late", others_in_full([False, True], [True]))
def test_an_exception_in_training(
    recorded: Run, tmp_path: Path, error: BaseException, is_late: bool
) -> None:
    """It is raised unchanged. Its step is recorded but not counted; all spans are closed."""
    callback = StepwellCallback()
    trainer = make_trainer(
        tmp_path, [] if is_late else [callback], cls=_Failing, gradient_accumulation_steps=4
    )
    if is_late:
        # Then the callback hears of the trainer when it trains already.
        trainer.add_callback(callback)
    trainer.error = error
    with pytest.raises(type(error)) as raised:
        trainer.train()
    assert raised.value is error
    assert stepwell.active_run() is recorded
    with stepwell.span("afterwards"):
        pass
    run, spans = finished(recorded.path)
    # The run counts as interrupted, and with it the application.
    above = ["application"] if isinstance(error, KeyboardInterrupt) else []
    assert errors_of(spans) == [*above, "training_loop", "training_single_iteration"]
    assert counts(spans)["training_single_iteration", "training_loop"] == 2
    assert counts(spans)["afterwards", "application"] == 1
    (update,) = told(run, "training_metrics_update")
    assert update["num_iterations"] == trainer.state.global_step == 1
    assert update["num_train_samples"] == 16


class _BadOptimizer(TrainerCallback):  # type: ignore[misc]
    """Makes the second optimizer step fail."""

    def on_pre_optimizer_step(
        self, args: Any, state: Any, control: Any, optimizer: Any = None, **kwargs: Any
    ) -> None:
        if state.global_step == 1:
            raise ValueError("no step")


def test_an_exception_before_the_optimizer_steps(recorded: Run, tmp_path: Path) -> None:
    """Open spans end with it."""
    trainer = make_trainer(tmp_path, [StepwellCallback(), _BadOptimizer()], max_steps=3)
    with pytest.raises(ValueError, match="no step"):
        trainer.train()
    run, spans = finished(recorded.path)
    failed = ["optimizer_update", "training_loop", "training_single_iteration"]
    assert errors_of(spans) == failed
    assert [update["num_iterations"] for update in told(run, "training_metrics_update")] == [1]


class _BadEvaluation(Trainer):  # type: ignore[misc]
    def prediction_step(self, *args: Any, **kwargs: Any) -> Any:
        raise ValueError("no prediction")


@pytest.mark.full
def test_an_exception_in_an_evaluation(recorded: Run, tmp_path: Path) -> None:
    """In training it ends that too; outside of it only the evaluation."""
    trainer = make_trainer(
        tmp_path,
        [StepwellCallback()],
        cls=_BadEvaluation,
        eval_dataset=make_data(6),
        max_steps=2,
        eval_strategy="steps",
        eval_steps=1,
    )
    for call in (trainer.evaluate, trainer.train):
        with pytest.raises(ValueError, match="no prediction"):
            call()
    _, spans = finished(recorded.path)
    evaluation = ["validation_loop", "validation_single_iteration"]
    assert errors_of(spans) == sorted([*evaluation, *evaluation, "training_loop"])


class _TooLarge(Trainer):  # type: ignore[misc]
    """Has room for batches of two."""

    def training_step(self, model: Any, inputs: Any, *args: Any, **kwargs: Any) -> Any:
        if len(inputs["input_ids"]) > 2 and self.state.global_step == 1:
            raise RuntimeError("CUDA out of memory.")
        return super().training_step(model, inputs, *args, **kwargs)


@pytest.mark.full
def test_a_training_that_begins_anew_with_smaller_batches(recorded: Run, tmp_path: Path) -> None:
    """The one that failed has its loop, the one that did not has its own."""
    trainer = make_trainer(
        tmp_path,
        [StepwellCallback()],
        cls=_TooLarge,
        max_steps=3,
        auto_find_batch_size=True,
    )
    trainer.train()
    run, spans = finished(recorded.path)
    updates = told(run, "training_metrics_update")
    sizes = [(one["num_iterations"], one["num_train_samples"]) for one in updates]
    assert sizes[-1][0] == trainer.state.global_step == 3
    assert sizes[0] == (1, 4)
    assert counts(spans)["training_loop", "application"] == len(updates)
    assert errors_of(spans).count("training_loop") == len(updates) - 1
