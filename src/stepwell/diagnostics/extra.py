"""Families that are off unless the configuration turns them on."""

from __future__ import annotations

import math
from typing import Any

import torch
from torch import Tensor, nn

from stepwell.diagnostics import activations, batches, noise, snapshots
from stepwell.diagnostics.context import Context
from stepwell.diagnostics.families import family
from stepwell.diagnostics.sharding import whole


@family("update_ratio", switch="track_update_ratio")
def update_ratio(context: Context) -> dict[str, Any] | None:
    """Change of the weights since the collection before, relative to their norm."""
    delta, weights = context.weight_delta, context.weights
    if delta is None:
        return dict.fromkeys(weights)
    return {name: change / weights[name] for name, change in delta.items() if name in weights}


@family("weight_stats", switch="track_weight_stats")
def weight_stats(context: Context) -> dict[str, Any]:
    """Norm, mean, standard deviation and largest magnitude of the weights of each group."""
    with torch.no_grad():
        return {
            name: _weights([p for _, p in own], context.weights[name])
            for name, own in context.groups.items()
        }


def _weights(parameters: list[nn.Parameter], norm: Tensor) -> dict[str, Any]:
    count = sum(p.numel() for p in parameters)
    if not count:
        return {"count": 0}
    full = [p for p in parameters if p.numel()]
    home = norm.device
    total = torch.stack([whole(p.sum(dtype=norm.dtype)).to(home) for p in full]).sum()
    largest = torch.stack([whole(p.abs().max()).to(home, norm.dtype) for p in full]).max()
    mean = total / count
    spread = (norm.square() / count - mean.square()).clamp(min=0).sqrt()
    return {"norm": norm, "mean": mean, "std": spread, "abs_max": largest, "count": count}


@family("activations", switch="track_activations")
def layer_activations(context: Context) -> dict[str, Any] | None:
    """Mean, spread, largest magnitude and share of zeros of what each layer gives out."""
    return {name: seen.statistics for name, seen in _layers(context).items()} or None


@family("dead_units", switch="track_dead_units")
def dead_units(context: Context) -> dict[str, Any] | None:
    """Percentage of units of each rectifying layer that are zero for every example."""
    shares = {name: seen.dead for name, seen in _layers(context).items()}
    return {name: share for name, share in shares.items() if share is not None} or None


@family("embeddings", switch="track_embeddings")
def embeddings(context: Context) -> dict[str, Any] | None:
    """Norms of the embeddings of the examples, and how much these are alike."""
    if context.examples is None:
        return None
    vectors = activations.vectors_of(
        context.model, context.examples, context.device, context.config
    )
    return None if vectors is None else activations.likeness(vectors)


def _layers(context: Context) -> dict[str, activations.Seen]:
    """What the layers give out, from one pass for all families."""
    if context.examples is None:
        return {}
    if "layers" not in context.shared:
        context.shared["layers"] = activations.look_at(
            context.model,
            context.examples,
            context.device,
            context.config,
            context.config.activation_layers,
        )
    found: dict[str, activations.Seen] = context.shared["layers"]
    return found


@family("gradient_noise", switch="track_gradient_noise")
def gradient_noise(context: Context) -> dict[str, Any] | None:
    """The batch size at which noise and signal of the gradient are alike, an estimate."""
    return noise.estimate(context)


@family("class_balance", switch="track_class_balance")
def class_balance(context: Context) -> dict[str, Any] | None:
    """How often each class came in all batches that were collected so far."""
    if context.batch is None:
        return None
    _, labels = batches.labels_of(context.batch, context.config)
    if labels is None:
        return None
    counts: dict[int, int] = context.memory.setdefault("counts", {})
    for label, count in batches.class_counts(torch.as_tensor(labels)).items():
        counts[label] = counts.get(label, 0) + count
    total = sum(counts.values())
    if not total:
        return None
    shares = {label: count / total for label, count in sorted(counts.items())}
    entropy = -sum(share * math.log(share) for share in shares.values())
    return {
        "classes": len(counts),
        "largest_to_smallest": max(counts.values()) / min(counts.values()),
        # 1 when all classes are equally frequent.
        "evenness": entropy / math.log(len(counts)) if len(counts) > 1 else 0.0,
        "pct": {str(label): 100.0 * share for label, share in shares.items()},
    }


@family("snapshot", switch="track_snapshots")
def snapshot(context: Context) -> dict[str, Any] | None:
    """Keep the weights in a file of their own, to compare runs; its name is in the record."""
    taken = context.memory.setdefault("taken", 0)
    context.memory["taken"] = taken + 1
    if taken % context.config.snapshot_every or context.folder is None:
        return None
    path = snapshots.keep(context)
    return None if path is None else {"file": path.relative_to(context.folder).as_posix()}
