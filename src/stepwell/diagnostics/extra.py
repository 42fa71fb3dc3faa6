"""Families that are off unless the configuration turns them on."""

from __future__ import annotations

import math
from collections.abc import Callable
from typing import Any

import torch
from torch import Tensor

from stepwell.diagnostics import activations, batches, noise, snapshots
from stepwell.diagnostics.context import Context
from stepwell.diagnostics.families import family
from stepwell.diagnostics.norms import precision
from stepwell.diagnostics.sharding import over_ranks, shard
from stepwell.journal.errors import warn_once


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
    weights = context.weights
    shards = [shard(parameter) for _, parameter in context.parameters]
    # Of a sharded parameter a rank may have nothing: sums and the largest are put together of parts.
    parts = [one.local for one in shards]
    sums = over_ranks(shards, lambda: _of_each(parts, lambda p: p.sum(dtype=precision(p.device))))
    largest = over_ranks(shards, lambda: _of_each(parts, lambda p: p.abs().max()), largest=True)
    sizes = torch.tensor([0.0 if p is None else p.numel() for p in parts], dtype=torch.float64)
    counts = over_ranks(shards, lambda: sizes).tolist()
    places = {id(parameter): i for i, (_, parameter) in enumerate(context.parameters)}
    found: dict[str, Any] = {}
    for name, own in context.groups.items():
        members = [places[id(parameter)] for _, parameter in own]
        count = int(sum(counts[i] for i in members))
        if not count:
            found[name] = {"count": 0}
            continue
        norm = weights[name]
        mean = (sums[members].sum() / count).to(norm.device)
        found[name] = {
            "norm": norm,
            "mean": mean,
            "std": (norm.square() / count - mean.square()).clamp(min=0).sqrt(),
            "abs_max": largest[members].max(),
            "count": count,
        }
    return found


@torch.no_grad()
def _of_each(parts: list[Tensor | None], number: Callable[[Tensor], Tensor]) -> Tensor:
    """A number for each of these in one row; zero for what is empty."""
    home = next((p.device for p in parts if p is not None), torch.device("cpu"))
    nothing = torch.zeros((), dtype=precision(home), device=home)
    return torch.stack(
        [number(p).to(nothing) if p is not None and p.numel() else nothing for p in parts]
    )


@family("activations", switch="track_activations")
def layer_activations(context: Context) -> dict[str, Any] | None:
    """Mean, spread, largest magnitude and share of zeros of what each layer gives out."""
    return {name: seen.statistics for name, seen in _layers(context).items()} or None


@family("dead_units", switch="track_dead_units")
def dead_units(context: Context) -> dict[str, Any] | None:
    """Percentage of units of each rectifying layer that are zero for every example."""
    layers = _layers(context)
    found = {name: seen.dead for name, seen in layers.items() if seen.dead is not None}
    if layers and not found:
        warn_once(
            "diagnostics: dead units",
            "track_dead_units: the model has no layer such as nn.ReLU (a function such as torch.relu "
            "cannot be seen), so there are no dead units to count",
        )
    return found or None


@family("embeddings", switch="track_embeddings")
def embeddings(context: Context) -> dict[str, Any] | None:
    """Norms of the embeddings of the examples, and how much these are alike."""
    if not _has_examples(context) or context.examples is None:
        return None
    vectors = activations.vectors_of(
        context.model, context.examples, context.device, context.config
    )
    return None if vectors is None else activations.likeness(vectors)


def _layers(context: Context) -> dict[str, activations.Seen]:
    """What the layers give out, from one pass for all families."""
    if "layers" not in context.shared:
        context.shared["layers"] = {}
        if not _has_examples(context) or context.examples is None:
            return {}
        context.shared["layers"] = activations.look_at(
            context.model,
            context.examples,
            context.device,
            context.config,
            context.config.activation_layers,
        )
    found: dict[str, activations.Seen] = context.shared["layers"]
    return found


def _has_examples(context: Context) -> bool:
    """Whether there are examples, on all ranks of a model that only all of them together can ask."""
    try:
        has = context.examples is not None
    except Exception:
        context.is_alike(0)
        raise
    return context.is_alike(int(has)) and has


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
    pct = {str(label): 100.0 * share for label, share in shares.items()}
    return {
        "classes": len(counts),
        "largest_to_smallest": max(counts.values()) / min(counts.values()),
        # 1 when all classes are equally frequent.
        "evenness": entropy / math.log(len(counts)) if len(counts) > 1 else 0.0,
        **({"pct": pct} if len(counts) <= batches.MAX_CLASSES else {}),
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
