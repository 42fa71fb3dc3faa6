"""The holdout: a fixed set of examples, and the outputs of the model for them."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass
from typing import Any

import torch

from stepwell._core.errors import warn_once
from stepwell.diagnostics.batches import (
    IGNORED,
    Parts,
    UnknownBatchError,
    first,
    parts_of,
    size_of,
)
from stepwell.diagnostics.config import TelemetryConfig
from stepwell.diagnostics.isolation import isolated_eval, preserved_rng, unwrapped

MAX_LOGITS = 65_536
"""The largest number of values in a record."""


@dataclass(frozen=True)
class Piece:
    """A batch of the holdout, and the number of its examples that are used."""

    batch: Any
    count: int


def keep_first(data: Iterable[Any], config: TelemetryConfig) -> list[Piece]:
    """Return the batches with the first ``holdout_size`` examples. Further batches are not read."""
    pieces: list[Piece] = []
    left = config.holdout_size
    # A DataLoader draws a seed when it is iterated.
    with preserved_rng():
        for batch in data:
            size = _examples(batch, config)
            if not size:
                continue
            count = min(size, left)
            if count < size and config.batch_adapter is None:
                batch = first(batch, count, size)
            pieces.append(Piece(batch, count))
            left -= count
            if not left:
                break
    return pieces


def evaluate(
    model: Any, pieces: list[Piece], device: torch.device, config: TelemetryConfig
) -> dict[str, Any]:
    """Return the outputs of the model for the holdout, without side effects on training."""
    inner = unwrapped(model)
    outputs, labels = [], []
    with isolated_eval(inner, device, config.holdout_dtype):
        for piece in pieces:
            parts = parts_of(piece.batch, inner, config).to(device)
            outputs.append(_wide(run(inner, parts)[: piece.count]))
            if parts.labels is not None:
                labels.append(torch.as_tensor(parts.labels, device=device)[: piece.count])
        if not outputs:
            return {}
        output = torch.cat(outputs)
        targets = torch.cat(labels) if len(labels) == len(outputs) else None
        if config.task == "regression":
            return _regression(output, targets)
        return _classification(output, targets)


def run(model: Any, parts: Parts) -> torch.Tensor:
    """Call the model and return its logits."""
    output = model(*parts.args, **parts.kwargs)
    if isinstance(output, dict) and "logits" in output:
        output = output["logits"]
    output = getattr(output, "logits", output)
    if isinstance(output, list | tuple) and output:
        output = output[0]
    if not isinstance(output, torch.Tensor) or not output.ndim:
        raise UnknownBatchError(
            "the model must return a tensor of logits, a tuple whose first item is one, or an object with "
            f"'logits', got {type(output).__name__}"
        )
    return output


def _wide(output: torch.Tensor) -> torch.Tensor:
    """Return half precision as float32. The record has the same numbers, but metrics are more precise."""
    return output if output.dtype in (torch.float32, torch.float64) else output.float()


def _classification(logits: torch.Tensor, labels: torch.Tensor | None) -> dict[str, Any]:
    if logits.ndim == 1:
        logits = logits[:, None]
    axis = _class_axis(logits, labels)
    if logits.shape[axis] == 1:
        predictions = (logits > 0).squeeze(axis).long()
    else:
        predictions = logits.argmax(axis)
    result: dict[str, Any] = {}
    if logits.numel() <= MAX_LOGITS:
        result["logits"] = logits
    else:
        warn_once(
            "holdout logits",
            "the holdout has %d logits, too many for a record: they are left out",
            logits.numel(),
        )
    if labels is not None:
        labels = _as_classes(labels, logits, predictions)
        result["labels"] = labels if labels.numel() <= MAX_LOGITS else None
    result["predictions"] = predictions if predictions.numel() <= MAX_LOGITS else None
    if labels is not None:
        counted = labels != IGNORED
        # The result of argmax for NaN is not a prediction.
        unknown = logits.isnan().any(axis).reshape(labels.shape)
        right = (predictions == labels) & counted & ~unknown
        result["accuracy"] = right.sum().double() / counted.sum()
    return {name: value for name, value in result.items() if value is not None}


def _class_axis(logits: torch.Tensor, labels: torch.Tensor | None) -> int:
    """Return the axis of the classes in the logits: the second, or for sequences the last."""
    if labels is not None and logits.ndim > 2 and labels.shape == logits.shape[:-1]:
        return -1
    return 1


def _as_classes(
    labels: torch.Tensor, logits: torch.Tensor, predictions: torch.Tensor
) -> torch.Tensor:
    if labels.shape == logits.shape and logits.shape[-1] > 1:
        if not bool((labels.sum(-1) == 1).all()):
            raise UnknownBatchError("labels must be class numbers or one-hot rows")
        labels = labels.argmax(-1)
    if labels.numel() != predictions.numel():
        raise UnknownBatchError(
            f"labels of shape {tuple(labels.shape)} do not fit outputs of {tuple(logits.shape)}"
        )
    return labels.reshape(predictions.shape).long()


def _regression(outputs: torch.Tensor, targets: torch.Tensor | None) -> dict[str, Any]:
    if targets is None:
        return {"predictions": outputs}
    if outputs.numel() != targets.numel():
        raise UnknownBatchError(
            f"targets of shape {tuple(targets.shape)} do not fit outputs of {tuple(outputs.shape)}"
        )
    targets = targets.float()
    outputs = outputs.reshape(targets.shape)
    off = (outputs - targets).double()
    errors = {"mse": off.square().mean(), "mae": off.abs().mean()}
    if outputs.numel() > MAX_LOGITS:
        return errors
    return {"predictions": outputs, "targets": targets, **errors}


def _examples(batch: Any, config: TelemetryConfig) -> int:
    if config.batch_adapter is None:
        return size_of(batch) or 0
    inputs, labels = config.batch_adapter(batch)
    return size_of(labels) or size_of(inputs) or 0
