"""A small model to fit, and helpers to read the run of a fit."""

from __future__ import annotations

import json
from collections import Counter
from importlib import import_module
from typing import Any

import polars as pl
import pytest
import torch
from torch.utils.data import DataLoader, TensorDataset

import stepwell
from stepwell.integrations.lightning import hook_trainer_cls
from stepwell.training import TrainingTelemetryConfig, TrainingTelemetryProvider
from tests.nesting.tree import check_tree, edges

SAMPLES, BATCH = 24, 4
BATCHES = SAMPLES // BATCH


def loader(samples: int = SAMPLES, batch: int = BATCH) -> DataLoader[Any]:
    generator = torch.Generator().manual_seed(1)
    x = torch.randn(samples, 3, generator=generator)
    y = torch.randn(samples, 1, generator=generator)
    return DataLoader(TensorDataset(x, y), batch_size=batch)


def model_class(package: str = "lightning.pytorch") -> Any:
    """A LightningModule that keeps the losses that it saw; ``fail_at`` raises in that training step."""
    base = import_module(package).LightningModule

    class Model(base):
        def __init__(self, fail_at: int | None = None, error: Any = ValueError) -> None:
            super().__init__()
            torch.manual_seed(0)
            self.layer = torch.nn.Linear(3, 1)
            self.fail_at, self.error = fail_at, error
            self.losses: list[float] = []
            self.calls: list[str] = []

        def training_step(self, batch: Any, batch_idx: int) -> Any:
            if self.fail_at is not None and len(self.losses) == self.fail_at:
                raise self.error("as asked")
            loss = torch.nn.functional.mse_loss(self.layer(batch[0]), batch[1])
            self.losses.append(loss.item())
            self.log("train_loss", loss)
            return loss

        def validation_step(self, batch: Any, batch_idx: int) -> None:
            loss = torch.nn.functional.mse_loss(self.layer(batch[0]), batch[1])
            self.log("val_loss", loss)

        def test_step(self, batch: Any, batch_idx: int) -> None:
            self.log("test_loss", torch.nn.functional.mse_loss(self.layer(batch[0]), batch[1]))

        def configure_optimizers(self) -> Any:
            return torch.optim.SGD(self.parameters(), lr=0.1)

    return Model


def options(**more: Any) -> dict[str, Any]:
    """A Trainer that is quiet and writes nothing but what a test asks for."""
    quiet = {
        "accelerator": "cpu",
        "devices": 1,
        "enable_progress_bar": False,
        "enable_model_summary": False,
        "enable_checkpointing": False,
        "logger": False,
        "log_every_n_steps": 1,
    }
    return {**quiet, **more}


def hooked(package: str = "lightning.pytorch", **config: Any) -> Any:
    """A hooked Trainer class, in a run that is configured so."""
    provider = TrainingTelemetryProvider.instance()
    provider.configure(TrainingTelemetryConfig(application_name="fits", **config))
    return hook_trainer_cls(import_module(package).Trainer, provider)


def steps(losses: list[float], start: int = 0) -> list[tuple[int, float]]:
    """What a metric is to be that is logged in every step from this one on."""
    return [(start + i, pytest.approx(loss)) for i, loss in enumerate(losses)]


def assert_untouched(trainer: Any) -> None:
    """Nothing of the trainer's own objects is replaced any more."""
    loops = [trainer.fit_loop, trainer.fit_loop.epoch_loop, trainer.fit_loop.epoch_loop.val_loop]
    loops += [trainer.validate_loop, trainer.test_loop, trainer.predict_loop]
    for owner in (trainer, trainer.strategy, trainer._checkpoint_connector, *loops):
        assert [
            n for n, v in vars(owner).items() if callable(v) and hasattr(v, "__wrapped__")
        ] == []
    assert "_stepwell_recording" not in vars(trainer)


class Recorded:
    """The content of the run so far."""

    def __init__(self, run: Any = None, finish: bool = False) -> None:
        run = run or stepwell.active_run()
        assert run is not None
        if finish:
            run.finish()
        elif isinstance(run, stepwell.Run):
            run.flush()
        recorded = stepwell.open_run(run.path)
        self.spans = recorded.spans().collect().sort("start_ns", "id")
        check_tree(self.spans)
        self.events = recorded.events().collect().sort("time_ns")
        self.metrics = recorded.metrics().collect().sort("step")

    @property
    def edges(self) -> Counter[tuple[str, str | None]]:
        return edges(self.spans)

    def count(self, name: str, above: str | None) -> int:
        return self.edges[name, above]

    def attributes_of(self, event: str) -> list[dict[str, Any]]:
        found = self.events.filter(pl.col("name") == event)
        return [json.loads(text) for text in found["attributes"]]

    def attributes(self, name: str) -> list[dict[str, Any]]:
        texts = self.spans.filter(pl.col("name") == name)["attributes"]
        return [json.loads(text) if text else {} for text in texts]

    def metric(self, name: str) -> list[tuple[int, float]]:
        found = self.metrics.filter(pl.col("name") == name)
        return list(found.select("step", "value").iter_rows())

    def order(self, *names: str) -> list[str]:
        """The names of these spans in the order in which they began."""
        return self.spans.filter(pl.col("name").is_in(names))["name"].to_list()

    def open(self) -> list[str]:
        """The names of the spans that have no end."""
        return self.spans.filter(pl.col("status") == "open")["name"].to_list()

    def failed(self) -> list[str]:
        """The names of the spans that an exception went through."""
        return self.spans.filter(pl.col("status") == "error")["name"].to_list()

    def check_fit(self, iterations: int, above: str = "training_loop") -> None:
        """Each iteration has its parts, in order, and each batch was fetched before its iteration."""
        assert self.count("training_single_iteration", above) == iterations
        for part in ("model_forward", "model_backward", "optimizer_update"):
            assert self.count(part, "training_single_iteration") == iterations, part
        assert self.count("data_loading", above) == iterations
        one = ["data_loading", "training_single_iteration", "model_forward"]
        one += ["model_backward", "optimizer_update"]
        inside = self._below(above)
        assert [name for name in inside if name in one] == one * iterations
        assert self.attributes_of("telemetry_data_error") == []

    def check_iterations(self, iterations: int) -> None:
        """So many iterations are recorded and counted."""
        assert self.count("training_single_iteration", "training_loop") == iterations
        assert self.attributes_of("training_metrics_update")[-1]["num_iterations"] == iterations
        assert self.attributes_of("telemetry_data_error") == []

    def _below(self, above: str) -> list[str]:
        loops = self.spans.filter(pl.col("name") == above)["id"]
        first = self.spans.filter(pl.col("parent").is_in(loops.implode()))
        second = self.spans.filter(pl.col("parent").is_in(first["id"].implode()))
        evaluation = ("validation_loop", "validation_single_iteration")
        second = second.join(
            first.filter(pl.col("name").is_in(evaluation)),
            left_on="parent",
            right_on="id",
            how="anti",
        )
        return pl.concat([first, second]).sort("start_ns", "id")["name"].to_list()
