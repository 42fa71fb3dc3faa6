"""The time that the Lightning callback adds to a training step."""

from __future__ import annotations

import logging
import os
import tempfile
import warnings
from collections.abc import Iterator
from typing import Any

from benchmarks import turns
from benchmarks.floor import Measured
from benchmarks.row import Effort
from benchmarks.watching import layers, usual_width

BATCH = 48


def hooked(effort: Effort) -> Measured:
    """A hooked Trainer with all that it does by default, next to Lightning's own."""
    import torch
    from lightning.pytorch import Trainer

    import stepwell
    from stepwell.integrations.lightning import hook_trainer_cls

    warnings.simplefilter("ignore")
    logging.getLogger("lightning.pytorch").setLevel(logging.ERROR)
    torch.set_num_threads(1)
    width = usual_width()
    with tempfile.TemporaryDirectory(prefix="stepwell-bench-") as folder:
        os.environ["STEPWELL_DIR"] = folder
        measured = turns.compare(
            _training(Trainer, width), _training(hook_trainer_cls(Trainer), width), effort.rounds
        )
        stepwell.finish()
    return measured


def _training(trainer_class: Any, width: int) -> turns.Training:
    def train(tick: turns.Tick, steps: int) -> None:
        trainer = trainer_class(
            max_steps=steps,
            accelerator="cpu",
            logger=False,
            enable_progress_bar=False,
            enable_checkpointing=False,
            enable_model_summary=False,
        )
        trainer.fit(_model(width, tick), _Batches(width, steps))

    return train


class _Batches:
    """A loader with as little to do as possible."""

    def __init__(self, width: int, steps: int) -> None:
        import torch

        self._batch = torch.rand(BATCH, width), torch.randint(0, 10, (BATCH,))
        self._steps = steps

    def __len__(self) -> int:
        return self._steps

    def __iter__(self) -> Iterator[Any]:
        for _ in range(self._steps):
            yield self._batch


def _model(width: int, tick: turns.Tick) -> Any:
    from lightning.pytorch import LightningModule
    from torch import nn, optim

    class Model(LightningModule):
        def __init__(self) -> None:
            super().__init__()
            self.layers = layers(width)

        def on_train_batch_start(self, batch: Any, batch_idx: int) -> None:
            tick()

        def training_step(self, batch: Any, batch_idx: int) -> Any:
            x, y = batch
            return nn.functional.cross_entropy(self.layers(x), y)

        def configure_optimizers(self) -> Any:
            return optim.SGD(self.parameters(), lr=0.001)

    return Model()
