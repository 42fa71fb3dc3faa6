"""Estimates the noise of the gradient: the simple noise scale.

The batch is split, and the gradient is computed for each part. Their mean is the gradient of the batch; the
more noise, the shorter it is than the gradients of the parts. Batches larger than the ratio of noise to
signal help little.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import torch
from torch import Tensor, nn

from stepwell.diagnostics import norms
from stepwell.diagnostics.batches import Parts, UnknownBatchError, mapped, parts_of, size_of
from stepwell.diagnostics.holdout import run
from stepwell.diagnostics.isolation import isolated_eval, unwrapped
from stepwell.diagnostics.sharding import note_flat_shards, shard

if TYPE_CHECKING:
    from stepwell.diagnostics.context import CollectionContext

PARTS = 4


def estimate(context: CollectionContext) -> dict[str, Any] | None:
    """Return noise, signal and their ratio, averaged over the collections so far; None without a batch."""
    if context.batch is None:
        return None
    model = unwrapped(context.model)
    batch = parts_of(context.batch, model, context.config).to(context.device)
    parts = _split(batch)
    parameters = [p for p in model.parameters() if p.requires_grad]
    note_flat_shards(model)
    if any(shard(p).groups for p in parameters):
        raise UnknownBatchError("gradient noise is not supported for sharded parameters")
    small, big = _squared_norms(model, parts, parameters, context)
    few, many = parts[0][1], sum(count for _, count in parts)
    # Both are unbiased: the expected square of a mean over B examples is signal + noise / B.
    signal = (many * big - few * small) / (many - few)
    noise = (small - big) / (1 / few - 1 / many)
    sums = context.memory
    sums["signal"] = sums.get("signal", 0.0) + float(signal)
    sums["noise"] = sums.get("noise", 0.0) + float(noise)
    sums["count"] = sums.get("count", 0) + 1
    scale = sums["noise"] / sums["signal"] if sums["signal"] > 0 else None
    return {
        "scale": scale,
        "signal": sums["signal"] / sums["count"],
        "noise": sums["noise"] / sums["count"],
        "examples": many,
    }


def _split(batch: Parts) -> list[tuple[Parts, int]]:
    """Split the batch into equal parts, each with the number of its examples."""
    size = size_of([batch.args, batch.kwargs])
    if size is None or batch.labels is None or size < 2:
        raise UnknownBatchError(
            "gradient noise needs a batch with labels and at least two examples"
        )
    each = size // min(PARTS, size)
    return [(_part(batch, i, each, size), each) for i in range(0, size - each + 1, each)]


def _part(batch: Parts, start: int, count: int, size: int) -> Parts:
    def cut(tensor: Any) -> Any:
        return tensor[start : start + count] if tensor.ndim and tensor.shape[0] == size else tensor

    return Parts(mapped(batch.args, cut), mapped(batch.kwargs, cut), mapped(batch.labels, cut))


def _squared_norms(
    model: nn.Module,
    parts: list[tuple[Parts, int]],
    parameters: list[Any],
    context: CollectionContext,
) -> tuple[Tensor, Tensor]:
    """Return the mean squared norm of the parts' gradients, and the squared norm of their mean."""
    loss = context.config.loss or _default_loss(context.config.task)
    total: list[Tensor | None] = [None] * len(parameters)
    small = []
    with isolated_eval(model, context.device, context.config.holdout_dtype), torch.enable_grad():
        for part, _ in parts:
            value = loss(run(model, part), part.labels)
            gradients = torch.autograd.grad(value, parameters, allow_unused=True)
            small.append(norms.l2(gradients).square())
            total = [_sum(a, b) for a, b in zip(total, gradients, strict=True)]
    big = (norms.l2(total) / len(parts)).square()
    return torch.stack(small).mean(), big


def _sum(a: Tensor | None, b: Tensor | None) -> Tensor | None:
    if a is None or b is None:
        return b if a is None else a
    return a + b


def _default_loss(task: str) -> Any:
    if task == "regression":
        return lambda outputs, labels: nn.functional.mse_loss(
            outputs.reshape(labels.shape), labels.to(outputs.dtype)
        )
    return _cross_entropy


def _cross_entropy(outputs: Tensor, labels: Any) -> Tensor:
    if outputs.ndim == 1 or outputs.shape[1] == 1:
        flat = outputs.reshape(-1)
        return nn.functional.binary_cross_entropy_with_logits(
            flat, labels.reshape(-1).to(flat.dtype)
        )
    return nn.functional.cross_entropy(outputs, labels)
