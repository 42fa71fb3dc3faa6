"""The five families that are on by default."""

from __future__ import annotations

from typing import Any

from stepwell.diagnostics import batches, holdout
from stepwell.diagnostics.context import Context
from stepwell.diagnostics.families import family
from stepwell.diagnostics.groups import OVERALL
from stepwell.journal.errors import warn_once


@family("gradient_norm", switch="track_gradients")
def gradient_norm(context: Context) -> dict[str, Any] | None:
    """L2 norm of the gradients, overall and of each group, as the optimizer used them."""
    return context.gradients


@family("weight_delta", switch="track_weight_delta")
def weight_delta(context: Context) -> dict[str, Any]:
    """L2 norm of the change of the weights since the collection before; at the first there is none."""
    found = context.weight_delta
    return dict.fromkeys(context.groups) if found is None else dict(found)


@family("learning_rates", switch="track_learning_rates", metrics="learning_rate")
def learning_rates(context: Context) -> dict[str, Any]:
    """Learning rate of each parameter group of the optimizer, by number, by name and by our groups."""
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
            # A group of ours has a rate when the optimizer treats all of it alike.
            numbers = {owner[id(p)] for _, p in parameters if id(p) in owner}
            if len(numbers) == 1 and name != OVERALL:
                named.setdefault(name, rates[f"group_{numbers.pop()}"])
    # A name such as group_0 given to another group does not hide the one of that number.
    return {**rates, **{name: rate for name, rate in named.items() if name not in rates}}


@family("holdout_logits", switch="track_holdout_logits", metrics="holdout")
def holdout_logits(context: Context) -> dict[str, Any] | None:
    """What the model says about the holdout, and how often it is right."""
    if not context.is_alike(len(context.holdout)):
        warn_once(
            "diagnostics: holdout of a sharded model",
            "the ranks have different numbers of holdout batches, and a sharded model can only be asked "
            "by all of them together: the holdout is left out",
        )
        return None
    if not context.holdout:
        return None
    return holdout.evaluate(context.model, context.holdout, context.device, context.config) or None


@family("batch_stats", switch="track_batch_stats", metrics="batch")
def batch_stats(context: Context) -> dict[str, Any] | None:
    """Share of each class among the labels of the batch, and its size."""
    if context.batch is None:
        return None
    known = context.memory.setdefault("classes", set())
    return batches.statistics(context.batch, context.config, known) or None
