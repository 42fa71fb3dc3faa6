"""itwinai's TorchTrainer: ours, with arguments and methods that have no effect here. Imports torch."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from stepwell._core.errors import warn_once
from stepwell.integrations.torch import trainer

PROFILER = (
    "the run records the time of each phase; for more, use torch.profiler with our trace_handler"
)
RAY = "Ray is not supported; start the processes with torchrun"
WITHOUT_EFFECT: dict[str, str] = {
    **dict.fromkeys(
        (
            "enable_torch_profiling",
            "profiling_wait_epochs",
            "profiling_warmup_epochs",
            "store_torch_profiling_traces",
        ),
        PROFILER,
    ),
    **dict.fromkeys(
        (
            "ray_data_config",
            "ray_horovod_config",
            "ray_run_config",
            "ray_scaling_config",
            "ray_search_space",
            "ray_torch_config",
            "ray_tune_config",
            "time_ray",
        ),
        RAY,
    ),
    "log_all_workers": "use log_on_workers=-1 of the logger",
}
"""Arguments without effect here, with the alternative."""
ALWAYS_SO = ("disable_tqdm", "measure_epoch_time", "measure_gpu_data")
"""Arguments that are accepted silently: there is no progress bar, and these are always recorded."""


class TorchTrainer(trainer.TorchTrainer):
    """Records a training; see ``stepwell.integrations.torch.TorchTrainer``.

    Takes all arguments of itwinai's trainer. One without effect causes a warning with the alternative.
    """

    def __init__(self, *args: Any, **options: Any) -> None:
        for name in (*ALWAYS_SO, *WITHOUT_EFFECT):
            if options.pop(name, None) and name in WITHOUT_EFFECT:
                warn_once(
                    f"trainer {name}",
                    "TorchTrainer(%s=…) has no effect: %s.",
                    name,
                    WITHOUT_EFFECT[name],
                )
        self.parameters: dict[str, Any] = {}
        super().__init__(*args, **options)

    def save_parameters(self, **parameters: Any) -> None:
        """Store the arguments of a constructor in ``parameters``."""
        self.parameters.update(parameters)

    @staticmethod
    def locals2params(names: Mapping[str, Any], pop_self: bool = True) -> dict[str, Any]:
        """Return the arguments among the local variables of a constructor."""
        hidden = {"__class__", *(["self"] if pop_self else [])}
        return {name: value for name, value in names.items() if name not in hidden}

    def ray_report(self, *args: Any, **kwargs: Any) -> None:
        """Do nothing: Ray is not supported."""
