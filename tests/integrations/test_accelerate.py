"""Accelerate: logged values are recorded, and with ``prepare`` the training loop too."""

from __future__ import annotations

import json
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
import torch
from accelerate import Accelerator
from accelerate.state import AcceleratorState, GradientState
from accelerate.tracking import GeneralTracker, register_tracker_class
from torch import nn
from torch.utils.data import DataLoader, TensorDataset

import stepwell
from stepwell import Run
from stepwell.integrations.accelerate import StepwellTracker, prepare
from tests.integrations.trainers import attributes_of, counts, curve, errors_of, finished, told

pytestmark = pytest.mark.torch

SAMPLES = 26
SETTINGS = {
    "mixed_precision": "no",
    "num_processes": 1,
    "distributed_type": "NO",
    "gradient_accumulation_steps": 1,
    "device": "cpu",
}


@pytest.fixture(autouse=True)
def _afresh(monkeypatch: pytest.MonkeyPatch) -> Iterator[None]:
    """Accelerate remembers in its classes how it was first used."""
    monkeypatch.setenv("STEPWELL_STRICT", "1")
    yield
    AcceleratorState._reset_state(reset_partial_state=True)
    GradientState._reset_state()


def parts() -> tuple[nn.Module, torch.optim.Optimizer, Any]:
    torch.manual_seed(1)
    inputs = torch.randn(SAMPLES, 3)
    data = TensorDataset(inputs, inputs.sum(1, keepdim=True))
    model = nn.Sequential(nn.Linear(3, 4), nn.Dropout(0.2), nn.Linear(4, 1))
    optimizer = torch.optim.SGD(model.parameters(), lr=0.05)
    return model, optimizer, DataLoader(data, batch_size=4, shuffle=True)


def train(
    accelerator: Accelerator, model: Any, optimizer: Any, loader: Any, fail_at: int = 0
) -> list[float]:
    """Two epochs; the losses of the steps, as Accelerate takes them: each divided by the accumulation."""
    losses, loss_of_step = [], 0.0
    for _ in range(2):
        for x, y in loader:
            with accelerator.accumulate(model):
                loss = nn.functional.mse_loss(model(x), y)
                accelerator.backward(loss)
                loss_of_step += loss.item() / accelerator.gradient_accumulation_steps
                optimizer.step()
                optimizer.zero_grad()
            if accelerator.sync_gradients:
                losses.append(loss_of_step)
                accelerator.log({"train/loss": loss_of_step}, step=len(losses) - 1)
                loss_of_step = 0.0
                if len(losses) == fail_at:
                    raise RuntimeError("out of luck")
    return losses


def test_it_is_a_tracker_of_accelerate(tmp_path: Path) -> None:
    """Logged values are in a run that init_trackers starts and end_training finishes."""
    tracker = StepwellTracker("tiny", dir=tmp_path)
    assert isinstance(tracker, GeneralTracker)
    accelerator = Accelerator(cpu=True, log_with=tracker)
    assert stepwell.active_run() is None
    accelerator.init_trackers("project", config={"lr": 0.1, "api_token": "secret"})
    run = accelerator.get_tracker("stepwell", unwrap=True)
    assert run is stepwell.active_run() is tracker.tracker
    accelerator.log({"loss": 0.5, "deep": {"accuracy": 1}}, step=3)
    accelerator.log({"loss": torch.tensor(0.25), "note": "halved"}, step=4)
    accelerator.end_training()
    assert stepwell.active_run() is None
    recorded = stepwell.open_run(run.path)
    assert (recorded.name, recorded.status) == ("tiny", "finished")
    assert recorded.document["config"] == {"lr": 0.1, "api_token": "***", "accelerate": SETTINGS}
    assert curve(recorded, "loss") == [(3, 0.5), (4, 0.25)]
    assert curve(recorded, "deep/accuracy") == [(3, 1.0)]


def test_it_can_be_registered_by_its_name(tmp_path: Path) -> None:
    """Then the run is called as the project, and takes its arguments from init_kwargs."""
    register_tracker_class(StepwellTracker)
    accelerator = Accelerator(cpu=True, log_with="stepwell")
    accelerator.init_trackers("project", init_kwargs={"stepwell": {"dir": tmp_path}})
    accelerator.log({"loss": 1.0})
    accelerator.end_training()
    (run,) = stepwell.list_runs(tmp_path)
    assert run.name == "project"
    assert [value for _, value in curve(run, "loss")] == [1.0]


def test_a_run_that_was_active_is_left_active(recorded: Run) -> None:
    """And has what is logged, and the configuration beside its own."""
    recorded.add_config({"own": 1})
    accelerator = Accelerator(cpu=True, log_with=[StepwellTracker()])
    accelerator.init_trackers("project", config={"lr": 0.1})
    accelerator.log({"loss": 1.0}, step=0)
    accelerator.end_training()
    assert stepwell.active_run() is recorded
    run, _ = finished(recorded.path)
    assert curve(run, "loss") == [(0, 1.0)]
    assert run.document["config"] == {"own": 1, "lr": 0.1, "accelerate": SETTINGS}


def test_pictures_are_kept(recorded: Run) -> None:
    """One under its name, several with a number behind it."""
    tracker = StepwellTracker()
    accelerator = Accelerator(cpu=True, log_with=tracker)
    accelerator.init_trackers("project")
    pictures = [torch.rand(3, 5, 4), torch.rand(5, 4, 3).numpy()]
    tracker.log_images({"several": pictures, "one": torch.rand(5, 4)}, step=2)
    accelerator.end_training()
    run, _ = finished(recorded.path)
    kept = run.artifacts().collect().sort("name")
    assert kept["name"].to_list() == ["one", "several/0", "several/1"]
    assert [json.loads(about)["step"] for about in kept["attributes"]] == [2, 2, 2]


def test_a_loop_with_accumulation(recorded: Run) -> None:
    """26 samples in batches of 4 are 7 batches, 4 of which make up a step: 2 steps in each of 2 epochs."""
    tracker = StepwellTracker()
    accelerator = Accelerator(cpu=True, log_with=tracker, gradient_accumulation_steps=4)
    accelerator.init_trackers("project")
    losses = train(accelerator, *prepare(accelerator, *parts(), diagnostics=False))
    accelerator.end_training()
    run, spans = finished(recorded.path)
    assert len(losses) == 4
    found = counts(spans)
    assert found["fetch", "training_loop"] == 14
    assert found["forward", "training_single_iteration"] == 14
    assert found["backward", "training_single_iteration"] == 14
    assert found["step", "training_single_iteration"] == 4
    assert run.config["accelerate"] == {**SETTINGS, "gradient_accumulation_steps": 4}
    (update,) = told(run, "training_metrics_update")
    assert (update["num_iterations"], update["num_train_samples"]) == (4, 2 * SAMPLES)
    assert [step for step, _ in curve(run, "loss")] == [0, 1, 2, 3]
    assert [value for _, value in curve(run, "loss")] == pytest.approx(losses)
    assert curve(run, "train/loss") == list(enumerate(losses))
    assert attributes_of(spans, "training_loop")[0]["train_iterations_start"] == 0


def test_saves_and_loads_are_checkpoints(recorded: Run, tmp_path: Path) -> None:
    """Each once, with the steps made so far; the accelerator is unchanged."""
    accelerator = Accelerator(cpu=True, log_with=StepwellTracker(), project_dir=tmp_path)
    accelerator.project_configuration.automatic_checkpoint_naming = True
    accelerator.init_trackers("project")
    model, optimizer, loader = prepare(accelerator, *parts(), diagnostics=False)
    before = vars(accelerator).keys() - {"save_state", "save_model", "save", "load_state"}
    seen = []
    accelerator.register_save_state_pre_hook(
        lambda *_: seen.append(stepwell.open_run(recorded.path).open_spans().collect()["name"])
    )
    for number, (x, y) in enumerate(loader, 1):
        accelerator.backward(nn.functional.mse_loss(model(x), y))
        optimizer.step()
        optimizer.zero_grad()
        if number == 3:
            accelerator.save_state()
    accelerator.save_model(model, tmp_path / "model")
    accelerator.save(model.state_dict(), tmp_path / "weights.pt")
    accelerator.load_state(str(tmp_path / "checkpoints" / "checkpoint_0"))
    accelerator.end_training()
    run, spans = finished(recorded.path)
    # It is a span while the state is being saved.
    assert "checkpoint_save_sync" in seen[0].to_list()
    paths = [
        tmp_path / "checkpoints" / "checkpoint_0",
        tmp_path / "model",
        tmp_path / "weights.pt",
    ]
    saves = attributes_of(spans, "checkpoint_save_sync")
    assert [one["checkpoint_path"] for one in saves] == [str(path) for path in paths]
    successes = told(run, "save_checkpoint_success")
    assert [one["current_iteration"] for one in successes] == [3, 7, 7]
    (load,) = attributes_of(spans, "checkpoint_load")
    assert load["checkpoint_path"] == str(paths[0])
    assert vars(accelerator).keys() == before


def test_weights_are_the_same_with_and_without(recorded: Run) -> None:
    """To the last bit, with dropout and shuffling."""
    weights = []
    for is_recorded in (False, True):
        accelerator = Accelerator(
            cpu=True,
            log_with=[StepwellTracker()] if is_recorded else None,
            gradient_accumulation_steps=2,
        )
        accelerator.init_trackers("project")
        objects = parts()
        ready = prepare(accelerator, *objects) if is_recorded else accelerator.prepare(*objects)
        train(accelerator, *ready)
        weights.append(objects[0].state_dict())
        accelerator.end_training()
    for name, without in weights[0].items():
        assert torch.equal(without, weights[1][name])


def test_a_loop_that_fails(tmp_path: Path) -> None:
    """The exception reaches the user; the run has the status with which it is ended."""
    tracker = StepwellTracker("tiny", dir=tmp_path)
    accelerator = Accelerator(cpu=True, log_with=tracker)
    accelerator.init_trackers("project")
    ready = prepare(accelerator, *parts(), diagnostics=False)
    run = tracker.tracker
    assert run is not None
    with pytest.raises(RuntimeError, match="out of luck"):
        train(accelerator, *ready, fail_at=3)
    accelerator.end_training()
    recorded, spans = finished(run.path)
    (update,) = told(recorded, "training_metrics_update")
    assert update["num_iterations"] == 3
    assert errors_of(spans) == []
    assert len(curve(recorded, "train/loss")) == 3


def test_nothing_is_recorded_where_that_is_switched_off(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """And the loop is what it is."""
    monkeypatch.setenv("STEPWELL_MODE", "off")
    tracker = StepwellTracker(dir=tmp_path / "runs")
    accelerator = Accelerator(cpu=True, log_with=tracker)
    accelerator.init_trackers("project", config={"lr": 1})
    assert len(train(accelerator, *prepare(accelerator, *parts()))) == 14
    tracker.log_images({"one": torch.rand(5, 4)})
    accelerator.end_training()
    assert not (tmp_path / "runs").exists()


@pytest.mark.parametrize("order", ["trackers first", "trackers last", "one by one", "watch"])
def test_the_tracker_alone_records_the_loop(order: str, tmp_path: Path) -> None:
    """With ``accelerator.prepare`` before or after ``init_trackers``; 26 samples are 7 batches of 4."""
    before = Accelerator.prepare
    tracker = StepwellTracker("tiny", dir=tmp_path)
    accelerator = Accelerator(cpu=True, log_with=tracker)
    model, optimizer, loader = parts()
    if order != "trackers last":
        accelerator.init_trackers("project", config={"lr": 0.1})
    if order == "one by one":
        ready = [accelerator.prepare(one) for one in (model, optimizer, loader)]
    else:
        ready = accelerator.prepare(model, optimizer, loader)
    accelerator.prepare(parts()[2])
    if order == "trackers last":
        accelerator.init_trackers("project", config={"lr": 0.1})
    watch = stepwell.watch(*ready) if order == "watch" else None
    run = tracker.tracker
    assert run is not None
    losses = train(accelerator, *ready)
    accelerator.end_training()
    if watch is not None:
        watch.close()
    assert Accelerator.prepare is before
    recorded, spans = finished(run.path)
    found = counts(spans)
    assert found["fetch", "training_loop"] == 14
    for part in ("forward", "backward", "step"):
        assert found[part, "training_single_iteration"] == 14
    assert told(recorded, "training_metrics_update")[-1]["num_iterations"] == 14
    assert [value for _, value in curve(recorded, "loss")] == pytest.approx(losses)
    assert recorded.config["lr"] == 0.1
    assert len(stepwell.list_runs(tmp_path)) == 1


def test_another_training_with_the_same_tracker(recorded: Run) -> None:
    """A model and an optimizer that are prepared after the first steps are recorded as well."""
    accelerator = Accelerator(cpu=True, log_with=StepwellTracker())
    accelerator.init_trackers("project")
    for _ in range(2):
        train(accelerator, *accelerator.prepare(*parts()))
    accelerator.end_training()
    _, spans = finished(recorded.path)
    assert counts(spans)["step", "training_single_iteration"] == 28


def test_a_watch_of_the_user_is_left_alone(recorded: Run) -> None:
    """A ``watch`` that is active when objects are prepared continues."""
    accelerator = Accelerator(cpu=True, log_with=StepwellTracker())
    model, optimizer, loader = parts()
    with stepwell.watch(model, optimizer) as watch:
        train(accelerator, *accelerator.prepare(model, optimizer, loader))
        assert watch.steps == 14
    accelerator.end_training()
