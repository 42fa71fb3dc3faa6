"""What a Trainer was configured with, as plain values."""

from __future__ import annotations

import math
from typing import Any

from stepwell.integrations.configuration import model_size
from stepwell.training.config import script_name


def name_of(args: Any) -> str:
    """What a run is called that nobody has named."""
    name = getattr(args, "run_name", None)
    # Some versions fill in the folder when the user gives no name.
    is_told = isinstance(name, str) and name and name != getattr(args, "output_dir", None)
    return str(name) if is_told else script_name()


def config_of(args: Any, model: Any) -> dict[str, Any]:
    """The arguments and the model, for run.json; tokens are masked there."""
    found: dict[str, Any] = {"training_arguments": args.to_dict()}
    config: Any = getattr(model, "config", None)
    if hasattr(config, "to_dict"):
        found["model_config"] = config.to_dict()
    if hasattr(model, "parameters"):
        size = model_size(model)
        found["model_parameters"] = size["parameters"]
        found["model_trainable_parameters"] = size["trainable_parameters"]
    return found


def labels_of(trainer: Any, model: Any) -> dict[str, Any]:
    """What runs are told apart by."""
    labels = {"trainer": "Trainer" if trainer is None else type(trainer).__name__}
    if model is not None:
        labels["model"] = type(model).__name__
    return labels


class Schedule:
    """How many samples a training has seen after so many optimizer steps, as its loader is made."""

    def __init__(self, trainer: Any, args: Any) -> None:
        self.batch_size: int | None = None
        """Samples of all ranks in an optimizer step; None when unknown."""
        self.replicas = max(1, int(getattr(args, "world_size", 1)))
        """Ranks that have batches of their own."""
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
            # It has no length.
            return
        self._steps = max(1, math.ceil(batches / accumulation))

    def samples_after(self, steps: int) -> int | None:
        """None when unknown."""
        if self.batch_size is None:
            return None
        if not self._samples or not self._steps:
            return steps * self.batch_size
        # The last batch of an epoch is often smaller.
        epochs, rest = divmod(steps, self._steps)
        return epochs * self._samples + rest * self.batch_size
