"""The folder of a checkpoint: ``state.pt``, ``model.pt`` and ``config.yaml``, in the layout of itwinai."""

from __future__ import annotations

import json
from collections.abc import Callable
from pathlib import Path
from typing import Any

import torch

from stepwell._core.files import replacing
from stepwell.integrations.torch.trainer.configuration import TrainingConfiguration

STATE, MODEL, CONFIG = "state.pt", "model.pt", "config.yaml"
DDP_PREFIX = "module."


def write_checkpoint(
    folder: Path, state: dict[str, Any], model: dict[str, Any], config: TrainingConfiguration
) -> list[Path]:
    """Write a checkpoint, replacing each earlier file atomically. Return the files."""
    folder.mkdir(parents=True, exist_ok=True)
    return [
        _replace(folder / STATE, lambda path: torch.save(state, path)),
        _replace(folder / MODEL, lambda path: torch.save(model, path)),
        _replace(folder / CONFIG, lambda path: path.write_text(_as_yaml(config))),
    ]


def is_checkpoint(folder: Path) -> bool:
    """Return whether a folder contains the files of a checkpoint."""
    return (folder / STATE).is_file() and (folder / MODEL).is_file()


def read_checkpoint(folder: Path, device: str) -> tuple[dict[str, Any], dict[str, Any]]:
    """Return the state and the state dict of the model."""
    state = torch.load(folder / STATE, map_location=device, weights_only=True)
    model = torch.load(folder / MODEL, map_location=device, weights_only=True)
    return state, model


def load_values(model: torch.nn.Module, values: dict[str, Any]) -> None:
    """Load a state dict into a model. The prefix of names saved by itwinai's DDP is removed if needed."""
    if values.keys() != model.state_dict().keys():
        values = {name.removeprefix(DDP_PREFIX): value for name, value in values.items()}
    model.load_state_dict(values)


def _replace(path: Path, write: Callable[[Path], Any]) -> Path:
    with replacing(path) as beside:
        write(beside)
    return path


def _as_yaml(config: TrainingConfiguration) -> str:
    import yaml

    text: str = yaml.safe_dump(json.loads(json.dumps(config.model_dump(), default=str)))
    return text
