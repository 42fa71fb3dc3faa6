"""A Trainer with the callback: the run agrees with the reports of the Trainer."""

from __future__ import annotations

import copy
import gc
import weakref
from pathlib import Path
from typing import Any

import pytest
import torch
from transformers import EarlyStoppingCallback, Trainer, TrainerCallback

import stepwell
from stepwell import Run
from stepwell.integrations.transformers import StepwellCallback
from tests.integrations.trainers import (
    TOKENS,
    attributes_of,
    counts,
    curve,
    finished,
    make_data,
    make_model,
    make_trainer,
    told,
)

pytestmark = pytest.mark.torch


def logged(trainer: Trainer, name: str) -> list[tuple[int, float]]:
    """The log of the Trainer; its steps begin at 1, those of a run at 0."""
    history = [entry for entry in trainer.state.log_history if name in entry]
    return [(entry["step"] - 1, entry[name]) for entry in history]


def test_a_training_with_accumulation_evaluation_and_prediction(
    recorded: Run, tmp_path: Path
) -> None:
    """26 samples in batches of 4 are 7 batches, 4 of which make up a step: 2 steps in each of 2 epochs."""
    trainer = make_trainer(
        tmp_path,
        [StepwellCallback()],
        gradient_accumulation_steps=4,
        eval_strategy="epoch",
        eval_dataset=make_data(6),
    )
    trainer.train()
    trainer.evaluate()
    trainer.predict(make_data(3))
    run, spans = finished(recorded.path)
    assert trainer.state.global_step == 4
    assert counts(spans) == {
        ("application", None): 1,
        ("data_loader_initialization", "application"): 3,
        ("optimizer_initialization", "application"): 1,
        ("training_loop", "application"): 1,
        ("data_loading", "training_loop"): 14,
        ("training_single_iteration", "training_loop"): 4,
        ("model_forward", "training_single_iteration"): 14,
        ("model_backward", "training_single_iteration"): 14,
        ("optimizer_update", "training_single_iteration"): 4,
        ("diagnostics", "training_single_iteration"): 1,
        ("data_loader_initialization", "training_loop"): 2,
        ("validation_loop", "training_loop"): 2,
        ("validation_loop", "application"): 1,
        ("validation_single_iteration", "validation_loop"): 6,
        ("model_forward", "validation_single_iteration"): 6,
        ("testing_loop", "application"): 1,
        ("testing_single_iteration", "testing_loop"): 1,
        ("model_forward", "testing_single_iteration"): 1,
    }
    assert set(spans["status"]) == {"ok"}
    (update,) = told(run, "training_metrics_update")
    assert update["num_iterations"] == 4
    assert update["num_train_samples"] == 52
    assert update["train_tokens"] == 52 * TOKENS
    assert attributes_of(spans, "training_loop") == [
        {
            "train_iterations_start": 0,
            "train_iterations_target": 4,
            "train_samples_target": 52,
            # A layer of GPT-2 has 12 tensors; two embeddings and the last norm have 4.
            "trainable_parameters": 16,
            "optimized_parameters": 16,
        }
    ]
    assert [step for step, _ in curve(run, "loss")] == [0, 1, 2, 3]
    assert curve(run, "loss") == logged(trainer, "loss")
    for name in ("grad_norm", "learning_rate", "eval_loss", "train_loss", "epoch", "total_flos"):
        assert curve(run, name) == logged(trainer, name)
    assert [step for step, _ in curve(run, "test_loss")] == [3]
    steps = spans.filter(spans["name"] == "training_single_iteration").sort("start_ns")
    assert steps["step"].to_list() == [0, 1, 2, 3]
    assert steps["epoch"].to_list() == [0, 0, 1, 1]


def test_the_loss_of_each_step_is_there_also_where_the_trainer_logs_means(
    recorded: Run, tmp_path: Path
) -> None:
    """Its mean of every 7 steps is kept under another name, and agrees."""
    trainer = make_trainer(tmp_path, [StepwellCallback()], logging_steps=7)
    trainer.train()
    run, _ = finished(recorded.path)
    losses = [value for _, value in curve(run, "loss")]
    assert len(losses) == trainer.state.global_step == 14
    assert curve(run, "logged_loss") == logged(trainer, "loss")
    means = [sum(losses[:7]) / 7, sum(losses[7:]) / 7]
    assert [value for _, value in curve(run, "logged_loss")] == pytest.approx(means)


def test_diagnostics_are_those_of_the_trainer(recorded: Run, tmp_path: Path) -> None:
    """Norm and rate of the first step, before the Trainer logs any, and before it clips."""
    trainer = make_trainer(tmp_path, [StepwellCallback()], max_steps=2, logging_steps=1)
    trainer.train()
    run, _ = finished(recorded.path)
    norm, *_ = curve(run, "gradient_norm/overall")
    assert norm == (0, pytest.approx(logged(trainer, "grad_norm")[0][1], rel=1e-5))
    rate, *_ = curve(run, "learning_rate/group_0")
    assert rate == (0, 0.01)


@pytest.mark.full
def test_diagnostics_can_be_switched_off(recorded: Run, tmp_path: Path) -> None:
    make_trainer(tmp_path, [StepwellCallback(diagnostics=False)], max_steps=1).train()
    run, spans = finished(recorded.path)
    assert "diagnostics" not in spans["name"]
    assert curve(run, "learning_rate/group_0") == []


def test_tokens_are_as_the_trainer_counts_them_where_it_does(recorded: Run, tmp_path: Path) -> None:
    """Asked to leave padding out, it counts all of these, for there is none."""
    trainer = make_trainer(
        tmp_path, [StepwellCallback()], num_train_epochs=1, include_num_input_tokens_seen=True
    )
    trainer.train()
    run, _ = finished(recorded.path)
    (update,) = told(run, "training_metrics_update")
    assert update["train_tokens"] == trainer.state.num_input_tokens_seen == 26 * TOKENS


def test_the_arguments_and_the_model_are_in_run_json(recorded: Run, tmp_path: Path) -> None:
    """Beside what the run was configured with before; a token is not."""
    recorded.add_config({"own": 1})
    trainer = make_trainer(tmp_path, [StepwellCallback], max_steps=1, hub_token="hf_secret")
    trainer.train()
    run, _ = finished(recorded.path)
    config = run.document["config"]
    assert config["own"] == 1
    assert config["optimizer"]["class"] == "AdamW"
    # What the scheduler starts from.
    assert config["optimizer"]["lr"] == config["training_arguments"]["learning_rate"] == 0.01
    assert config["training_arguments"]["per_device_train_batch_size"] == 4
    assert config["model_config"]["n_embd"] == 8
    assert config["model_parameters"] == sum(p.numel() for p in make_model().parameters())
    assert run.labels == {"trainer": "Trainer", "model": "GPT2LMHeadModel"}
    assert "hf_secret" not in (recorded.path / "run.json").read_text()


@pytest.mark.full
def test_a_run_is_started_when_none_is_active(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Not before training; it lasts until it is finished, and then another one is started."""
    monkeypatch.setenv("STEPWELL_STRICT", "1")
    monkeypatch.setenv("STEPWELL_DIR", str(tmp_path / "runs"))
    callback = StepwellCallback()
    trainer = make_trainer(tmp_path, [callback], max_steps=2, run_name="tiny")
    assert stepwell.active_run() is None
    trainer.train()
    trainer.predict(make_data(3))
    callback.finish()
    assert stepwell.active_run() is None
    trainer.train()
    callback.finish()
    second, first = stepwell.list_runs(tmp_path / "runs")
    assert (first.name, first.status, second.status) == ("tiny", "finished", "finished")
    assert counts(first.spans().collect())["testing_loop", "application"] == 1
    assert counts(second.spans().collect())["training_single_iteration", "training_loop"] == 2


@pytest.mark.full
def test_a_run_that_was_active_is_left_active(recorded: Run, tmp_path: Path) -> None:
    """Several trainings of several trainers are in it one after the other."""
    callback = StepwellCallback()
    for steps in (1, 2):
        make_trainer(tmp_path, [callback], max_steps=steps).train()
    make_trainer(tmp_path, [StepwellCallback()], max_steps=3).train()
    callback.finish()
    assert stepwell.active_run() is recorded
    run, spans = finished(recorded.path)
    assert counts(spans)["training_loop", "application"] == 3
    assert counts(spans)["training_single_iteration", "training_loop"] == 6
    assert [update["num_iterations"] for update in told(run, "training_metrics_update")] == [
        1,
        2,
        3,
    ]


def test_nothing_is_recorded_where_that_is_switched_off(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """And training is what it is."""
    monkeypatch.setenv("STEPWELL_MODE", "off")
    monkeypatch.setenv("STEPWELL_DIR", str(tmp_path / "runs"))
    trainer = make_trainer(tmp_path, [StepwellCallback()], max_steps=2)
    assert trainer.train().global_step == 2
    assert not (tmp_path / "runs").exists()


def test_weights_are_the_same_with_and_without(recorded: Run, tmp_path: Path) -> None:
    """To the last bit, with dropout and shuffling."""
    weights = []
    for callbacks in ([], [StepwellCallback()]):
        trainer = make_trainer(
            tmp_path,
            callbacks,
            gradient_accumulation_steps=2,
            eval_strategy="epoch",
            eval_dataset=make_data(6),
        )
        trainer.train()
        weights.append(trainer.model.state_dict())
    for name, without in weights[0].items():
        assert torch.equal(without, weights[1][name])


@pytest.mark.full
def test_early_stop(recorded: Run, tmp_path: Path) -> None:
    """It ends where the Trainer ends, and the best model is loaded."""
    trainer = make_trainer(
        tmp_path,
        [EarlyStoppingCallback(1), StepwellCallback()],
        eval_strategy="steps",
        eval_steps=2,
        save_strategy="steps",
        save_steps=2,
        eval_dataset=make_data(6),
        load_best_model_at_end=True,
        metric_for_best_model="eval_worse",
        compute_metrics=_Worse(),
        greater_is_better=True,
    )
    trainer.train()
    run, spans = finished(recorded.path)
    assert trainer.state.global_step == 4
    assert counts(spans)["training_single_iteration", "training_loop"] == 4
    assert counts(spans)["checkpoint_load", "training_loop"] == 1
    (update,) = told(run, "training_metrics_update")
    assert update["num_iterations"] == 4
    assert curve(run, "eval_worse") == logged(trainer, "eval_worse")


class _Worse:
    """A metric that gets worse every time."""

    def __init__(self) -> None:
        self._value = 1.0

    def __call__(self, prediction: Any) -> dict[str, float]:
        self._value -= 0.1
        return {"worse": self._value}


class _StopEpochs(TrainerCallback):  # type: ignore[misc]
    """Ends each epoch after its fifth batch, the first one of the second step."""

    def on_substep_end(self, args: Any, state: Any, control: Any, **kwargs: Any) -> Any:
        control.should_epoch_stop = state.global_step % 2 == 1
        return control


def test_a_step_that_is_not_completed_does_not_count(recorded: Run, tmp_path: Path) -> None:
    """Epochs that end between the passes of a step leave it recorded, and the counters as the Trainer's."""
    trainer = make_trainer(
        tmp_path, [_StopEpochs(), StepwellCallback()], gradient_accumulation_steps=4
    )
    trainer.train()
    run, spans = finished(recorded.path)
    assert [update["num_iterations"] for update in told(run, "training_metrics_update")] == [
        trainer.state.global_step
    ]
    assert [step for step, _ in curve(run, "loss")] == list(range(trainer.state.global_step))
    assert set(spans["status"]) == {"ok"}


class _Endless(torch.utils.data.IterableDataset):  # type: ignore[type-arg]
    def __iter__(self) -> Any:
        return iter(make_data(10))


class _Noting(Trainer):  # type: ignore[misc]
    """Keeps the loss and the samples of each pass."""

    def training_step(self, model: Any, inputs: Any, *args: Any, **kwargs: Any) -> Any:
        loss = super().training_step(model, inputs, *args, **kwargs)
        self.__dict__.setdefault("passes", []).append((loss.item(), len(inputs["input_ids"])))
        return loss


@pytest.mark.full
def test_passes_that_an_epoch_leaves_belong_to_the_next_step(recorded: Run, tmp_path: Path) -> None:
    """Batches of 4, 4 and 2, two for a step: the Trainer keeps the gradients of the third one."""
    trainer = make_trainer(
        tmp_path,
        [StepwellCallback()],
        cls=_Noting,
        train_dataset=_Endless(),
        max_steps=3,
        gradient_accumulation_steps=2,
    )
    trainer.train()
    run, _ = finished(recorded.path)
    (update,) = told(run, "training_metrics_update")
    assert [size for _, size in trainer.passes] == [4, 4, 2, 4, 4, 2, 4, 4]
    assert update["num_iterations"] == trainer.state.global_step == 3
    assert update["num_train_samples"] == 8 + 10 + 10
    losses = [loss for loss, _ in trainer.passes]
    sums = [sum(losses[:2]), sum(losses[2:5]), sum(losses[5:])]
    assert curve(run, "loss") == [(i, pytest.approx(value)) for i, value in enumerate(sums)]


@pytest.mark.full
def test_samples_are_as_the_trainer_counts_them(recorded: Run, tmp_path: Path) -> None:
    """What it reports for each second, times the seconds: also with a last batch that is smaller."""
    trainer = make_trainer(tmp_path, [StepwellCallback()], gradient_accumulation_steps=3)
    metrics = trainer.train().metrics
    run, _ = finished(recorded.path)
    (update,) = told(run, "training_metrics_update")
    seconds = metrics["train_runtime"]
    samples = round(metrics["train_samples_per_second"] * seconds)
    assert update["num_train_samples"] == samples == 52
    assert update["num_iterations"] == round(metrics["train_steps_per_second"] * seconds)


@pytest.mark.full
def test_a_data_set_without_a_length(recorded: Run, tmp_path: Path) -> None:
    """10 samples are batches of 4, 4 and 2, gone through again and again."""
    trainer = make_trainer(tmp_path, [StepwellCallback()], train_dataset=_Endless(), max_steps=5)
    trainer.train()
    run, spans = finished(recorded.path)
    (update,) = told(run, "training_metrics_update")
    assert update["num_iterations"] == trainer.state.global_step == 5
    assert update["num_train_samples"] == 4 + 4 + 2 + 4 + 4
    assert counts(spans)["data_loading", "training_loop"] == 5


@pytest.mark.full
def test_a_model_that_the_trainer_makes(recorded: Run, tmp_path: Path) -> None:
    """Making it is recorded, each time."""
    trainer = make_trainer(tmp_path, [StepwellCallback()], model_init=make_model, max_steps=1)
    trainer.train()
    _, spans = finished(recorded.path)
    assert counts(spans)["model_initialization", "application"] == 1


@pytest.mark.full
def test_a_callback_that_is_added_later_and_taken_away(recorded: Run, tmp_path: Path) -> None:
    """It records the trainings in between, and leaves the trainer unchanged."""
    trainer = make_trainer(tmp_path, [], max_steps=2)
    trainer.add_callback(StepwellCallback)
    trainer.train()
    trainer.remove_callback(StepwellCallback)
    trainer.train()
    assert not any("stepwell" in type(value).__module__ for value in vars(trainer).values())
    _, spans = finished(recorded.path)
    assert counts(spans)["training_single_iteration", "training_loop"] == 2
    assert counts(spans)["model_forward", "training_single_iteration"] == 2


@pytest.mark.full
def test_a_trainer_is_not_kept_in_memory(recorded: Run, tmp_path: Path) -> None:
    """Not by its callback, also when that is given to another one."""
    callback = StepwellCallback()
    trainer = make_trainer(tmp_path, [callback], max_steps=1)
    trainer.train()
    gone = weakref.ref(trainer)
    del trainer
    gc.collect()
    assert gone() is None


@pytest.mark.full
def test_a_copy_of_a_trainer_trains_its_own_model(recorded: Run, tmp_path: Path) -> None:
    """And not that of the original."""
    trainer = make_trainer(tmp_path, [StepwellCallback()], max_steps=2)
    before = {name: value.clone() for name, value in trainer.model.state_dict().items()}
    other = copy.deepcopy(trainer)
    other.train()
    assert all(torch.equal(before[n], v) for n, v in trainer.model.state_dict().items())
    assert not all(torch.equal(before[n], v) for n, v in other.model.state_dict().items())
    _, spans = finished(recorded.path)
    assert counts(spans)["training_single_iteration", "training_loop"] == 2


@pytest.mark.full
def test_what_a_user_logs_through_the_trainer(recorded: Run, tmp_path: Path) -> None:
    """Also when it is not at work."""
    trainer = make_trainer(tmp_path, [StepwellCallback()], max_steps=2)
    trainer.train()
    trainer.log({"own": 3.0})
    run, _ = finished(recorded.path)
    assert curve(run, "own") == [(1, 3.0)]


def test_two_callbacks_record_once(recorded: Run, tmp_path: Path) -> None:
    """The second one leaves it to the first."""
    make_trainer(tmp_path, [StepwellCallback(), StepwellCallback()], max_steps=2).train()
    _, spans = finished(recorded.path)
    assert counts(spans)["training_loop", "application"] == 1
    assert counts(spans)["training_single_iteration", "training_loop"] == 2
