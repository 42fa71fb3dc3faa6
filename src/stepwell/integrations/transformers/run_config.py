"""The configuration of a Trainer as plain values, and its samples per optimizer step."""

from __future__ import annotations

import math
from typing import Any

from stepwell.integrations.configuration import model_size
from stepwell.training.config import script_name


def name_of(args: Any) -> str:
    """Return ``run_name`` of the arguments, else the name of the script."""
    name = getattr(args, "run_name", None)
    # Some versions set ``run_name`` to the output folder if the user gives none.
    is_given = isinstance(name, str) and name and name != getattr(args, "output_dir", None)
    return str(name) if is_given else script_name()


def config_of(args: Any, model: Any) -> dict[str, Any]:
    """Return the training arguments and the model configuration, for run.json (which masks tokens)."""
    run_config: dict[str, Any] = {"training_arguments": args.to_dict()}
    config: Any = getattr(model, "config", None)
    if hasattr(config, "to_dict"):
        run_config["model_config"] = config.to_dict()
    if hasattr(model, "parameters"):
        size = model_size(model)
        run_config["model_parameters"] = size["parameters"]
        run_config["model_trainable_parameters"] = size["trainable_parameters"]
    return run_config


def labels_of(trainer: Any, model: Any) -> dict[str, Any]:
    """Return the labels of the run: the classes of trainer and model."""
    labels = {"trainer": "Trainer" if trainer is None else type(trainer).__name__}
    if model is not None:
        labels["model"] = type(model).__name__
    return labels


class Schedule:
    """The number of samples after each optimizer step, computed from the loader and the arguments."""

    def __init__(self, trainer: Any, args: Any) -> None:
        self.batch_size: int | None = None
        """Samples of all ranks in an optimizer step, None if unknown."""
        self.replicas = max(1, int(getattr(args, "world_size", 1)))
        """Number of ranks with their own batches."""
        self._steps = self._samples = 0
        if trainer is None:
            return
        size = trainer.get_total_train_batch_size(args)
        accumulation = max(1, int(args.gradient_accumulation_steps))
        self.batch_size = int(size)
        self.replicas = max(1, self.batch_size // (trainer._train_batch_size * accumulation))
        self._read_loader(trainer, accumulation)

    def _read_loader(self, trainer: Any, accumulation: int) -> None:
        loader = trainer.callback_handler.train_dataloader
        try:
            batches = len(loader)
            if self.replicas == 1 and not getattr(loader, "drop_last", True):
                self._samples = int(trainer.num_examples(loader))
        except Exception:
            # The loader has no length.
            return
        self._steps = max(1, math.ceil(batches / accumulation))

    def samples_after(self, steps: int) -> int | None:
        """Return the samples after this many steps, None if unknown."""
        if self.batch_size is None:
            return None
        if not self._samples or not self._steps:
            return steps * self.batch_size
        # The last batch of an epoch may be smaller.
        epochs, rest = divmod(steps, self._steps)
        return epochs * self._samples + rest * self.batch_size
