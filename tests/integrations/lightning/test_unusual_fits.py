"""Unusual fits: manual optimization, odd loaders, phases declared by the user."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path
from typing import Any

import lightning.pytorch as pl
import polars as pl_frames
import pytest
import torch

import stepwell
from tests.integrations.lightning.fits import (
    BATCHES,
    Recorded,
    hooked,
    loader,
    model_class,
    options,
)

pytestmark = [pytest.mark.torch, pytest.mark.filterwarnings("ignore")]
Model = model_class()


def test_manual_optimization() -> None:
    """Two optimizers in a batch are one iteration; each forward ends where its backward begins."""

    class Manual(Model):  # type: ignore[misc, valid-type]
        def __init__(self) -> None:
            super().__init__()
            self.automatic_optimization = False

        def training_step(self, batch: Any, batch_idx: int) -> None:
            for optimizer in self.optimizers():
                loss = torch.nn.functional.mse_loss(self.layer(batch[0]), batch[1])
                optimizer.zero_grad()
                self.manual_backward(loss)
                optimizer.step()

        def configure_optimizers(self) -> Any:
            return [torch.optim.SGD(self.parameters(), lr=0.1) for _ in range(2)]

    trainer = hooked()(**options(max_epochs=1))
    trainer.fit(Manual(), loader())
    assert trainer.global_step == 2 * BATCHES
    recorded = Recorded()
    assert recorded.count("training_single_iteration", "training_loop") == BATCHES
    for part in ("model_forward", "model_backward", "optimizer_update"):
        assert recorded.count(part, "training_single_iteration") == 2 * BATCHES
    (update,) = recorded.attributes_of("training_metrics_update")
    assert update["num_iterations"] == BATCHES
    one = ["model_forward", "model_backward", "optimizer_update"]
    assert recorded.order(*one) == one * 2 * BATCHES


def test_the_rest_of_an_epoch_left_out() -> None:
    """A batch that the model rejects is not an iteration."""

    class Refusing(Model):  # type: ignore[misc, valid-type]
        def on_train_batch_start(self, batch: Any, batch_idx: int) -> Any:
            return -1 if batch_idx == 3 else None

    trainer = hooked()(**options(max_epochs=2))
    trainer.fit(Refusing(), loader())
    recorded = Recorded()
    assert trainer.global_step == 6
    assert recorded.count("training_single_iteration", "training_loop") == 6
    assert recorded.attributes_of("training_metrics_update")[-1]["num_iterations"] == 6


def test_a_loader_without_length() -> None:
    """Its target is not known; every batch is counted, with its own number of samples."""

    class Stream(torch.utils.data.IterableDataset[Any]):
        def __iter__(self) -> Iterator[Any]:
            for _ in range(10):
                yield torch.ones(3), torch.ones(1)

    trainer = hooked()(**options(max_epochs=2))
    trainer.fit(Model(), torch.utils.data.DataLoader(Stream(), batch_size=4))
    recorded = Recorded()
    (loop,) = recorded.attributes("training_loop")
    assert "train_iterations_target" not in loop
    (update,) = recorded.attributes_of("training_metrics_update")
    assert update["num_iterations"] == trainer.global_step == 6
    assert update["num_train_samples"] == 20


def test_explicit_calls_never_count_twice(tmp_path: Path) -> None:
    """Work that the user reports is recorded once, whether Lightning reports it too or not."""
    Hooked, callback = hooked()

    class Telling(Model):  # type: ignore[misc, valid-type]
        def configure_optimizers(self) -> Any:
            callback.on_optimizer_init_start()
            optimizer = super().configure_optimizers()
            callback.on_optimizer_init_end()
            return optimizer

        def on_test_start(self) -> None:
            callback.on_testing_start()

        def on_test_end(self) -> None:
            callback.on_testing_end()

    trainer = Hooked(**options(max_epochs=1))
    callback.on_model_init_start()
    model = Telling()
    callback.on_model_init_end()
    callback.on_dataloader_init_start()
    batches = loader()
    callback.on_dataloader_init_end()
    callback.on_app_start()
    trainer.fit(model, batches)
    trainer.save_checkpoint(tmp_path / "one.ckpt")
    callback.on_save_checkpoint_success(trainer.global_step)
    callback.on_save_checkpoint_end()
    callback.on_save_checkpoint_start(trainer.global_step)
    trainer.save_checkpoint(tmp_path / "two.ckpt")
    callback.on_save_checkpoint_success(trainer.global_step, path=tmp_path / "two.ckpt")
    callback.on_save_checkpoint_end()
    trainer.test(model, batches, verbose=False)
    callback.on_testing_start()
    trainer.test(model, batches, verbose=False)
    callback.on_testing_end()
    recorded = Recorded()
    for name in ("model", "optimizer"):
        assert recorded.count(f"{name}_initialization", "application") == 1
    assert recorded.count("testing_loop", "application") == 2
    assert recorded.count("testing_single_iteration", "testing_loop") == 2 * BATCHES
    assert recorded.count("checkpoint_save_sync", "application") == 2
    assert len(recorded.attributes_of("save_checkpoint_success")) == 2
    stages = [about.get("stage") for about in recorded.attributes("data_loader_initialization")]
    assert stages == [None, "test", "test"]


def test_model_made_inside_of_lightning() -> None:
    """A model that is made by configure_model or in init_module has its initialisation there."""

    class Late(Model):  # type: ignore[misc, valid-type]
        def configure_model(self) -> None:
            with stepwell.span("made"):
                pass

    Hooked = hooked()
    Hooked(**options(max_steps=1)).fit(Late(), loader())
    assert Recorded().count("made", "model_initialization") == 1
    trainer = Hooked(**options(max_steps=1))
    with trainer.init_module():
        model = Model()
    trainer.fit(model, loader())
    assert Recorded().count("model_initialization", "application") == 2


def test_weights_are_the_same_with_and_without() -> None:
    """Bit by bit, also with validation and accumulation; random numbers are left alone."""
    found = []
    for cls in (pl.Trainer, hooked()):
        pl.seed_everything(3)
        model = Model()
        trainer = cls(**options(max_epochs=2, accumulate_grad_batches=2))
        batches = torch.utils.data.DataLoader(loader().dataset, batch_size=4, shuffle=True)
        trainer.fit(model, batches, loader())
        found.append([*model.state_dict().values(), torch.rand(3)])
    assert all(torch.equal(a, b) for a, b in zip(*found, strict=True))


def test_nothing_recorded(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    """With STEPWELL_MODE=off, or on a rank that is switched off, all works and nothing is wrapped."""
    trainer = hooked(enable_for_current_rank=False)(**options(max_steps=2))
    trainer.fit(Model(), loader())
    trainer.save_checkpoint(tmp_path / "one.ckpt")
    assert trainer.global_step == 2
    assert not (tmp_path / "runs").exists()


class Sizes:
    """A loader that says nothing of itself, with batches of these sizes."""

    def __init__(self, *sizes: int) -> None:
        self.sizes = sizes

    def __iter__(self) -> Iterator[Any]:
        for size in self.sizes:
            yield torch.ones(size, 3), torch.ones(size, 1)


def test_samples_of_a_loader_that_does_not_tell_its_size() -> None:
    """The first batch is taken for the usual one; those of other sizes are counted as they are."""
    trainer = hooked()(**options(max_epochs=1))
    trainer.fit(Model(), Sizes(4, 4, 2, 5, 4))
    update = Recorded(finish=True).attributes_of("training_metrics_update")[-1]
    assert (update["num_iterations"], update["num_train_samples"]) == (5, 19)


def test_more_spans_in_a_step_than_a_segment_has_room_for() -> None:
    """The parts of the step continue in the next one, and their time is counted."""

    class Busy(Model):
        def training_step(self, batch: Any, batch_idx: int) -> Any:
            if batch_idx == 2:
                for _ in range(20_000):
                    with inside:
                        pass
            return super().training_step(batch, batch_idx)

    inside = stepwell.span("inside")
    hooked()(**options(max_steps=5)).fit(Busy(), loader())
    recorded = Recorded(finish=True)
    recorded.check_fit(5)
    assert recorded.count("inside", "model_forward") == 20_000
    assert recorded.open() == []
    update = recorded.attributes_of("training_metrics_update")[-1]
    forward = recorded.spans.filter(pl_frames.col("name") == "model_forward")["duration_ns"].sum()
    assert update["avg_forward_time_sec"] * 5e9 >= forward * (1 - 1e-6)


def test_a_run_that_ends_in_the_middle_of_a_fit() -> None:
    """It has all records until then, all of them closed; the fit continues without recording."""

    class Ends(Model):
        def training_step(self, batch: Any, batch_idx: int) -> Any:
            if batch_idx == 2:
                stepwell.finish()
            return super().training_step(batch, batch_idx)

    trainer = hooked()(**options(max_steps=5))
    run = stepwell.active_run()
    model = Ends()
    trainer.fit(model, loader())
    assert trainer.global_step == len(model.losses) == 5
    recorded = Recorded(run)
    assert recorded.count("optimizer_update", "training_single_iteration") == 2
    assert recorded.open() == []
