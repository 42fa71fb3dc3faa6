"""The time that the Hugging Face callback adds to a training step."""

from __future__ import annotations

import logging
import os
import tempfile
from collections.abc import Iterator
from typing import Any

from benchmarks import turns
from benchmarks.floor import Measured
from benchmarks.row import Effort
from benchmarks.watching import layers, usual_width

BATCH = 48


def callback(effort: Effort) -> Measured:
    """A Trainer with the callback and all that it does by default, next to one without."""
    import torch

    import stepwell

    logging.getLogger("transformers").setLevel(logging.ERROR)
    torch.set_num_threads(1)
    width = usual_width()
    with tempfile.TemporaryDirectory(prefix="stepwell-bench-") as folder:
        os.environ["STEPWELL_DIR"] = folder
        measured = turns.compare(_training(False, width), _training(True, width), effort.rounds)
        stepwell.finish()
    return measured


def _training(is_recorded: bool, width: int) -> turns.Training:
    from transformers import TrainerCallback, TrainingArguments

    from stepwell.integrations.transformers import StepwellCallback

    def train(tick: turns.Tick, steps: int) -> None:
        class Ticks(TrainerCallback):  # type: ignore[misc]
            def on_step_begin(self, *args: Any, **kwargs: Any) -> None:
                tick()

        arguments = TrainingArguments(
            output_dir="fits",
            max_steps=steps,
            use_cpu=True,
            optim="sgd",
            lr_scheduler_type="constant",
            max_grad_norm=0,
            disable_tqdm=True,
            report_to=[],
            save_strategy="no",
            logging_steps=100,
            per_device_train_batch_size=BATCH,
        )
        ours = [StepwellCallback()] if is_recorded else []
        trainer = _trainer(width, steps, args=arguments, callbacks=[*ours, Ticks()])
        trainer.train()

    return train


def _trainer(width: int, steps: int, **options: Any) -> Any:
    """With a loader that has as little to do as possible, as Lightning's."""
    import torch
    from torch import nn
    from transformers import Trainer
    from transformers.trainer_callback import PrinterCallback

    class Model(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.layers = layers(width)

        def forward(self, x: Any, labels: Any) -> Any:
            return {"loss": nn.functional.cross_entropy(self.layers(x), labels)}

    class Batches(torch.utils.data.IterableDataset[Any]):
        def __init__(self) -> None:
            self._batch = {"x": torch.rand(BATCH, width), "labels": torch.randint(0, 10, (BATCH,))}

        def __iter__(self) -> Iterator[Any]:
            for _ in range(steps):
                yield self._batch

    class Quick(Trainer):  # type: ignore[misc]
        def get_train_dataloader(self) -> Any:
            return torch.utils.data.DataLoader(Batches(), batch_size=None)

    trainer = Quick(model=Model(), train_dataset=Batches(), **options)
    trainer.remove_callback(PrinterCallback)
    return trainer
