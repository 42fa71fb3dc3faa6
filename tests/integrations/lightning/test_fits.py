"""Real fits: the tree, the counters and the order are those that the trainer itself reports."""

from __future__ import annotations

import math
from pathlib import Path
from typing import Any

import lightning.pytorch as pl
import pytest
from lightning.pytorch.callbacks import EarlyStopping, ModelCheckpoint
from torch.utils.data import DataLoader

import stepwell
from tests.integrations.lightning.fits import (
    BATCH,
    BATCHES,
    SAMPLES,
    Recorded,
    assert_untouched,
    hooked,
    loader,
    model_class,
    options,
    steps,
)

pytestmark = [pytest.mark.torch, pytest.mark.filterwarnings("ignore")]
Model = model_class()


class Stepping(Model):  # type: ignore[misc, valid-type]
    """Keeps its weights before and after the first step."""

    def on_train_batch_start(self, batch: Any, batch_idx: int) -> None:
        if len(self.losses) == 0:
            self.first = [p.detach().clone() for p in self.parameters()]
        elif len(self.losses) == 1:
            self.second = [p.detach().clone() for p in self.parameters()]


def test_fit() -> None:
    """Every batch is an iteration with its parts, below one loop; the counters are the trainer's."""
    Hooked = hooked(log_every_n_train_iterations=4)
    trainer = Hooked(**options(max_epochs=2))
    model = Stepping()
    trainer.fit(model, loader())
    recorded = Recorded()
    recorded.check_fit(2 * BATCHES)
    assert recorded.edges == {
        ("application", None): 1,
        ("data_loader_initialization", "application"): 1,
        ("model_initialization", "application"): 1,
        ("optimizer_initialization", "application"): 1,
        ("training_loop", "application"): 1,
        ("training_single_iteration", "training_loop"): trainer.global_step,
        ("data_loading", "training_loop"): trainer.global_step,
        ("model_forward", "training_single_iteration"): trainer.global_step,
        ("model_backward", "training_single_iteration"): trainer.global_step,
        ("optimizer_update", "training_single_iteration"): trainer.global_step,
        ("diagnostics", "training_single_iteration"): 1,
    }
    (loop,) = recorded.attributes("training_loop")
    assert loop["train_iterations_start"] == 0
    assert loop["train_iterations_target"] == 2 * BATCHES == trainer.global_step
    assert loop["train_samples_target"] == 2 * SAMPLES
    updates = recorded.attributes_of("training_metrics_update")
    assert [update["current_iteration"] for update in updates] == [3, 7, 11]
    assert updates[-1]["num_train_samples"] == 2 * SAMPLES
    assert updates[-1]["latest_loss"] == pytest.approx(model.losses[-1])
    assert {"avg_forward_time_sec", "avg_backward_time_sec"} <= updates[-1].keys()
    assert updates[-1]["avg_dataloader_time_sec"] > 0
    assert recorded.metric("loss") == steps(model.losses)
    assert recorded.metric("train_loss") == steps(model.losses)
    # The norm of the first step by hand: its gradient over the learning rate is what changed the weights.
    moved = [before - after for before, after in zip(model.first, model.second, strict=True)]
    norm = math.sqrt(sum(float((part / 0.1).square().sum()) for part in moved))
    assert recorded.metric("gradient_norm/overall")[0] == (0, pytest.approx(norm, rel=1e-4))
    assert recorded.metric("learning_rate/group_0")[0] == (0, 0.1)
    assert recorded.open() == ["application"]
    assert_untouched(trainer)


def test_the_application_ends_with_the_run() -> None:
    """Who forgets on_app_end finds the application closed all the same."""
    hooked()(**options(max_steps=1)).fit(Model(), loader())
    recorded = Recorded(finish=True)
    assert recorded.open() == []
    assert recorded.failed() == []


def test_fit_validate_and_test(tmp_path: Path) -> None:
    """Validation is inside training, testing beside it; the sanity check is in no average."""
    Hooked, callback = hooked()
    trainer = Hooked(**options(max_epochs=2, enable_checkpointing=True))
    model = Model()
    trainer.fit(model, loader(), loader())
    trainer.validate(model, loader(), verbose=False)
    trainer.test(model, loader(), verbose=False)
    callback.on_app_end()
    recorded = Recorded()
    recorded.check_fit(2 * BATCHES)
    assert recorded.count("validation_loop", "training_loop") == 2
    # The sanity check, and trainer.validate().
    assert recorded.count("validation_loop", "application") == 2
    checks = [about.get("is_sanity_check") for about in recorded.attributes("validation_loop")]
    assert checks == [True, None, None, None]
    sanity = trainer.num_sanity_val_steps
    assert recorded.count("validation_single_iteration", "validation_loop") == 3 * BATCHES + sanity
    assert recorded.count("model_forward", "validation_single_iteration") == 3 * BATCHES + sanity
    assert recorded.count("testing_loop", "application") == 1
    assert recorded.count("testing_single_iteration", "testing_loop") == BATCHES
    assert recorded.count("checkpoint_save_sync", "training_loop") == 2
    updates = recorded.attributes_of("validation_metrics_update")
    assert [update["num_iterations"] for update in updates] == [BATCHES] * 3
    assert [update["current_iteration"] for update in updates] == [5, 11, 11]
    assert [
        update["num_iterations"] for update in recorded.attributes_of("testing_metrics_update")
    ] == [6]
    assert [step for step, _ in recorded.metric("val_loss")][:2] == [5, 11]
    order = recorded.order(
        "training_loop", "validation_loop", "checkpoint_save_sync", "testing_loop"
    )
    assert order == [
        "validation_loop",
        "training_loop",
        *["validation_loop", "checkpoint_save_sync"] * 2,
        "validation_loop",
        "testing_loop",
    ]
    assert recorded.open() == []


def test_a_validation_is_all_that_lightning_does_for_it(tmp_path: Path) -> None:
    """It includes creating its iterator and callbacks at its end, but not the checkpoint after it."""

    class Slow(DataLoader[Any]):
        def __iter__(self) -> Any:
            with stepwell.span("iterator"):
                return super().__iter__()

    class After(pl.Callback):
        def on_validation_end(self, trainer: Any, pl_module: Any) -> None:
            with stepwell.span("after"):
                pass

    kept = ModelCheckpoint(tmp_path, monitor="val_loss")
    trainer = hooked()(
        **options(max_epochs=2, enable_checkpointing=True, callbacks=[After(), kept])
    )
    trainer.fit(Model(), loader(), Slow(loader().dataset, batch_size=BATCH))
    recorded = Recorded()
    # Once in the sanity check, and after each epoch.
    assert recorded.count("iterator", "validation_loop") == 3
    assert recorded.count("after", "validation_loop") == 3
    assert recorded.count("validation_loop", "application") == 1
    assert recorded.count("validation_loop", "training_loop") == 2
    saves = [n for (name, above), n in recorded.edges.items() if name == "checkpoint_save_sync"]
    assert sum(saves) == recorded.count("checkpoint_save_sync", "training_loop") > 0
    assert recorded.open() == ["application"]


@pytest.mark.parametrize("is_forgotten", [False, True])
def test_a_validation_in_training_mode(is_forgotten: bool) -> None:
    """Lightning sets the mode itself, unless the module keeps it from that."""

    class Forgetful(Model):  # type: ignore[misc, valid-type]
        def on_validation_model_eval(self) -> None:
            if not is_forgotten:
                super().on_validation_model_eval()

    trainer = hooked()(**options(max_epochs=2, num_sanity_val_steps=0))
    trainer.fit(Forgetful(), loader(), loader())
    modes = [loop.get("model_mode") for loop in Recorded().attributes("validation_loop")]
    assert modes == (["train"] * 2 if is_forgotten else [None] * 2)


@pytest.mark.parametrize("every", [4, BATCHES])
def test_resume(tmp_path: Path, every: int) -> None:
    """After a resume, in the middle of an epoch or at its end, the counters continue."""
    saver = ModelCheckpoint(tmp_path / "kept", every_n_train_steps=every, filename="one")
    Hooked = hooked()
    more = {"enable_checkpointing": True, "callbacks": [saver]}
    trainer = Hooked(**options(max_steps=every, **more))
    trainer.fit(Model(), loader())
    model = Model()
    trainer = Hooked(**options(max_epochs=2))
    trainer.fit(model, loader(), ckpt_path=saver.best_model_path)
    recorded = Recorded()
    assert recorded.count("checkpoint_load", "application") == 1
    assert recorded.attributes("checkpoint_load") == [{"checkpoint_path": saver.best_model_path}]
    _, second = recorded.attributes("training_loop")
    assert second["train_iterations_start"] == every
    assert second["train_samples_start"] == every * BATCH
    assert second["train_iterations_target"] == 2 * BATCHES
    assert trainer.global_step == every + len(model.losses)
    update = recorded.attributes_of("training_metrics_update")[-1]
    assert update["current_iteration"] == trainer.global_step - 1
    assert update["num_iterations"] == len(model.losses)
    assert recorded.metric("loss")[every:] == steps(model.losses, every)
    recorded.check_fit(every + len(model.losses))


def test_resume_in_another_process(tmp_path: Path) -> None:
    """Where nothing of the first fit is remembered, samples follow from the loader."""
    saver = ModelCheckpoint(tmp_path, every_n_train_steps=4, filename="one")
    pl.Trainer(**options(max_steps=4, enable_checkpointing=True, callbacks=[saver])).fit(
        Model(), loader()
    )
    hooked()(**options(max_steps=7)).fit(Model(), loader(), ckpt_path=saver.best_model_path)
    (loop,) = Recorded().attributes("training_loop")
    assert (loop["train_iterations_start"], loop["train_samples_start"]) == (4, 16)
    assert (loop["train_iterations_target"], loop["train_samples_target"]) == (7, 28)
    (update,) = Recorded().attributes_of("training_metrics_update")
    assert update["current_iteration"] == 6


@pytest.mark.parametrize("configured", [False, True])
def test_accumulation(configured: bool) -> None:
    """Iterations are optimizer steps: the passes before one belong to it, the last may be shorter."""
    Hooked = hooked(**({"global_batch_size_or_fn": 16} if configured else {}))
    trainer = Hooked(**options(max_epochs=2, accumulate_grad_batches=4))
    model = Model()
    trainer.fit(model, loader())
    per_epoch = math.ceil(BATCHES / 4)
    assert trainer.global_step == 2 * per_epoch
    recorded = Recorded()
    assert recorded.count("training_single_iteration", "training_loop") == 2 * BATCHES
    assert recorded.count("model_backward", "training_single_iteration") == 2 * BATCHES
    assert recorded.count("optimizer_update", "training_single_iteration") == trainer.global_step
    (loop,) = recorded.attributes("training_loop")
    assert loop["train_iterations_target"] == trainer.global_step
    (update,) = recorded.attributes_of("training_metrics_update")
    assert update["num_iterations"] == trainer.global_step
    assert update["current_iteration"] == trainer.global_step - 1
    samples = 16 * trainer.global_step if configured else 2 * SAMPLES
    assert update["num_train_samples"] == samples
    losses = [model.losses[i:j] for i, j in ((0, 4), (4, 6), (6, 10), (10, 12))]
    assert recorded.metric("loss") == steps([sum(some) / len(some) for some in losses])
    assert recorded.attributes_of("telemetry_data_error") == []


def test_early_stop() -> None:
    """A fit that stops by itself ends the loop where it stopped."""
    stop = EarlyStopping("val_loss", patience=0, min_delta=100.0)
    trainer = hooked()(**options(max_epochs=9, callbacks=[stop]))
    trainer.fit(Model(), loader(), loader())
    recorded = Recorded()
    assert trainer.current_epoch == 2
    recorded.check_fit(trainer.global_step)
    (loop,) = recorded.attributes("training_loop")
    assert loop["train_iterations_target"] == 9 * BATCHES
    (update,) = recorded.attributes_of("training_metrics_update")
    assert update["current_iteration"] == trainer.global_step - 1 == 2 * BATCHES - 1
    assert recorded.open() == ["application"]


def test_several_fits_in_one_process() -> None:
    """Each has its own loop, whose counters start again; one of them continues with a trainer."""
    Hooked = hooked()
    trainer = Hooked(**options(max_epochs=1))
    trainer.fit(Model(), loader())
    Hooked(**options(max_steps=3)).fit(Model(), loader())
    trainer.fit_loop.max_epochs = 2
    model = Model()
    trainer.fit(model, loader())
    recorded = Recorded()
    loops = recorded.attributes("training_loop")
    assert [loop["train_iterations_start"] for loop in loops] == [0, 0, BATCHES]
    ends = [
        update["current_iteration"] for update in recorded.attributes_of("training_metrics_update")
    ]
    assert ends == [BATCHES - 1, 2, 2 * BATCHES - 1]
    recorded.check_fit(2 * BATCHES + 3)
    assert recorded.count("training_loop", "application") == 3


def test_an_application_after_the_first_has_ended() -> None:
    """A fit after on_app_end is a separate application."""
    Hooked, callback = hooked()
    for _ in range(2):
        Hooked(**options(max_steps=1)).fit(Model(), loader())
        callback.on_app_end()
    recorded = Recorded()
    assert recorded.count("application", None) == 2
    assert recorded.count("training_loop", "application") == 2
