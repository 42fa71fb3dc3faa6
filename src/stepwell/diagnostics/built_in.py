"""The families that come with stepwell."""

from __future__ import annotations

import math
from collections.abc import Callable
from pathlib import Path
from typing import Any

import torch
from torch import Tensor

from stepwell._core.errors import StepwellError, warn_once
from stepwell._core.files import replacing
from stepwell.diagnostics import activations, batches, holdout, noise
from stepwell.diagnostics.context import CollectionContext
from stepwell.diagnostics.families import family
from stepwell.diagnostics.groups import OVERALL
from stepwell.diagnostics.norms import precision
from stepwell.diagnostics.sharding import flat_shard, over_ranks, shard, whole

SNAPSHOTS = "snapshots"
"""The folder of the files with weights, beside the records."""


@family("gradient_norm", switch="track_gradients")
def gradient_norm(context: CollectionContext) -> dict[str, Any] | None:
    """Return the L2 norm of the gradients that the optimizer used, overall and of each group."""
    return context.gradients


@family("weight_delta", switch="track_weight_delta")
def weight_delta(context: CollectionContext) -> dict[str, Any]:
    """Return the L2 norm of the change of the weights since the last collection; None at the first one."""
    delta = context.weight_delta
    return dict.fromkeys(context.groups) if delta is None else dict(delta)


@family("learning_rates", switch="track_learning_rates", metrics="learning_rate")
def learning_rates(context: CollectionContext) -> dict[str, Any]:
    """Return the learning rate of each parameter group, by number, by name and by our groups."""
    rates: dict[str, Any] = {}
    named: dict[str, Any] = {}
    owner: dict[int, int] = {}
    for i, group in enumerate(context.optimizer.param_groups):
        rates[f"group_{i}"] = group["lr"]
        if isinstance(group.get("name"), str):
            named[group["name"]] = group["lr"]
        owner.update((id(parameter), i) for parameter in group["params"])
    if context.config.groups not in ("layers", "param_groups"):
        for name, parameters in context.groups.items():
            # A group of ours has a rate if it is part of a single group of the optimizer.
            numbers = {owner[id(p)] for _, p in parameters if id(p) in owner}
            if len(numbers) == 1 and name != OVERALL:
                named.setdefault(name, rates[f"group_{numbers.pop()}"])
    # If another group has a name such as group_0, the number takes precedence.
    return {**rates, **{name: rate for name, rate in named.items() if name not in rates}}


@family("holdout_logits", switch="track_holdout_logits", metrics="holdout")
def holdout_logits(context: CollectionContext) -> dict[str, Any] | None:
    """Return the outputs of the model for the holdout, and its accuracy."""
    if not context.is_alike(len(context.holdout)):
        warn_once(
            "diagnostics: holdout of a sharded model",
            "the holdout is not evaluated: the ranks have different numbers of holdout batches, and only "
            "all ranks together can call a sharded model",
        )
        return None
    if not context.holdout:
        return None
    return holdout.evaluate(context.model, context.holdout, context.device, context.config) or None


@family("batch_stats", switch="track_batch_stats", metrics="batch")
def batch_stats(context: CollectionContext) -> dict[str, Any] | None:
    """Return the share of each class among the labels of the batch, and the size of the batch."""
    if context.batch is None:
        return None
    classes = context.memory.setdefault("classes", set())
    return batches.statistics(context.batch, context.config, classes) or None


# Off by default


@family("update_ratio", switch="track_update_ratio")
def update_ratio(context: CollectionContext) -> dict[str, Any] | None:
    """Return the change of the weights since the last collection, relative to their norm."""
    delta, weights = context.weight_delta, context.weights
    if delta is None:
        return dict.fromkeys(weights)
    return {name: change / weights[name] for name, change in delta.items() if name in weights}


@family("weight_stats", switch="track_weight_stats")
def weight_stats(context: CollectionContext) -> dict[str, Any]:
    """Return norm, mean, standard deviation and largest magnitude of the weights of each group."""
    weights = context.weights
    shards = [shard(parameter) for _, parameter in context.parameters]
    # A rank may have no part of a sharded parameter. Sums and maxima are combined over the ranks.
    parts = [each.local for each in shards]
    sums = over_ranks(shards, lambda: _of_each(parts, lambda p: p.sum(dtype=precision(p.device))))
    largest = over_ranks(shards, lambda: _of_each(parts, lambda p: p.abs().max()), largest=True)
    sizes = torch.tensor([0.0 if p is None else p.numel() for p in parts], dtype=torch.float64)
    counts = over_ranks(shards, lambda: sizes).tolist()
    places = {id(parameter): i for i, (_, parameter) in enumerate(context.parameters)}
    result: dict[str, Any] = {}
    for name, own in context.groups.items():
        members = [places[id(parameter)] for _, parameter in own]
        count = int(sum(counts[i] for i in members))
        if not count:
            result[name] = {"count": 0}
            continue
        norm = weights[name]
        mean = (sums[members].sum() / count).to(norm.device)
        result[name] = {
            "norm": norm,
            "mean": mean,
            "std": (norm.square() / count - mean.square()).clamp(min=0).sqrt(),
            "abs_max": largest[members].max(),
            "count": count,
        }
    return result


@torch.no_grad()
def _of_each(parts: list[Tensor | None], number: Callable[[Tensor], Tensor]) -> Tensor:
    """Return one number per tensor, in one row; zero for empty tensors."""
    home = next((p.device for p in parts if p is not None), torch.device("cpu"))
    nothing = torch.zeros((), dtype=precision(home), device=home)
    return torch.stack(
        [number(p).to(nothing) if p is not None and p.numel() else nothing for p in parts]
    )


@family("activations", switch="track_activations")
def layer_activations(context: CollectionContext) -> dict[str, Any] | None:
    """Return mean, standard deviation, largest magnitude and percentage of zeros of each layer's output."""
    return {name: output.statistics for name, output in _layers(context).items()} or None


@family("dead_units", switch="track_dead_units")
def dead_units(context: CollectionContext) -> dict[str, Any] | None:
    """Return the percentage of units that are zero for every example, for layers such as nn.ReLU."""
    layers = _layers(context)
    dead = {name: output.dead for name, output in layers.items() if output.dead is not None}
    if layers and not dead:
        warn_once(
            "diagnostics: dead units",
            "track_dead_units has no effect: the model has no layer such as nn.ReLU (a function such as "
            "torch.relu cannot be observed)",
        )
    return dead or None


@family("embeddings", switch="track_embeddings")
def embeddings(context: CollectionContext) -> dict[str, Any] | None:
    """Return the norms of the embeddings of the examples, and their similarity."""
    if not _has_examples(context) or context.examples is None:
        return None
    vectors = activations.vectors_of(
        context.model, context.examples, context.device, context.config
    )
    return None if vectors is None else activations.embedding_statistics(vectors)


def _layers(context: CollectionContext) -> dict[str, activations.LayerOutput]:
    """Return the outputs of the layers, from one forward pass for all families."""
    if "layers" not in context.shared:
        context.shared["layers"] = {}
        if not _has_examples(context) or context.examples is None:
            return {}
        context.shared["layers"] = activations.layer_outputs(
            context.model,
            context.examples,
            context.device,
            context.config,
            context.config.activation_layers,
        )
    outputs: dict[str, activations.LayerOutput] = context.shared["layers"]
    return outputs


def _has_examples(context: CollectionContext) -> bool:
    """Return whether there are examples: on all ranks, if only all ranks together can call the model."""
    try:
        has = context.examples is not None
    except Exception:
        context.is_alike(0)
        raise
    return context.is_alike(int(has)) and has


@family("gradient_noise", switch="track_gradient_noise")
def gradient_noise(context: CollectionContext) -> dict[str, Any] | None:
    """Return an estimate of the batch size at which the noise of the gradient equals the signal."""
    return noise.estimate(context)


@family("class_balance", switch="track_class_balance")
def class_balance(context: CollectionContext) -> dict[str, Any] | None:
    """Return the share of each class in all collected batches so far."""
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
def snapshot(context: CollectionContext) -> dict[str, Any] | None:
    """Store the weights in a file, to compare runs. Return its name."""
    taken = context.memory.setdefault("taken", 0)
    context.memory["taken"] = taken + 1
    if taken % context.config.snapshot_every or context.folder is None:
        return None
    path = _save_weights(context)
    return None if path is None else {"file": path.relative_to(context.folder).as_posix()}


def _save_weights(context: CollectionContext) -> Path | None:
    """Write the model's weights on rank 0. Return the path; None on other ranks."""
    # Every rank gathers sharded weights, since all ranks have to take part.
    is_written = context.rank == 0 and context.folder is not None
    weights: dict[str, Any] = {}
    for name, parameter in context.parameters:
        if flat_shard(parameter) is not None:
            raise StepwellError(
                "snapshots are not supported for FullyShardedDataParallel (FSDP1); use fully_shard (FSDP2)"
            )
        full = whole(parameter)
        if is_written:
            weights[name] = full.cpu()
    if not is_written or context.folder is None:
        return None
    number = context.watch.number
    model = f".model-{number}" if number else ""
    name = f"epoch-{int(context.epoch):05d}.batch-{int(context.batch_idx):08d}{model}.pt"
    path = context.folder / SNAPSHOTS / name
    path.parent.mkdir(parents=True, exist_ok=True)
    with replacing(path) as new:
        torch.save(weights, new)
    return path
