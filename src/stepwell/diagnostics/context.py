"""``CollectionContext``: the argument of families, with the state of training at a collection."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from functools import cached_property
from pathlib import Path
from typing import TYPE_CHECKING, Any

import torch

from stepwell.diagnostics import norms
from stepwell.diagnostics.batches import Parts, joined, parts_of
from stepwell.diagnostics.groups import OVERALL, grouped
from stepwell.diagnostics.isolation import isolated_eval, unwrapped
from stepwell.diagnostics.sharding import is_alike, note_flat_shards, shard

if TYPE_CHECKING:
    from stepwell.diagnostics.config import TelemetryConfig
    from stepwell.diagnostics.groups import Parameters
    from stepwell.diagnostics.holdout import Piece
    from stepwell.diagnostics.model_watch import ModelWatch


class CollectionContext:
    """One collection. Expensive values are computed once, when a family first needs them.

    Attributes:
        model: the argument of ``on_batch_end``.
        optimizer: the argument of ``on_batch_end``.
        batch: the argument of ``on_batch_end``, or None.
        batch_idx: the argument of ``on_batch_end``.
        epoch: the argument of ``on_batch_end``.
        device: the device of the model.
        config: the configuration.
        step: the step at which the numbers are logged.
        holdout: the batches of the holdout; may be empty.
        folder: the folder of the records; None if there is none.
        memory: a dict of the family, which persists from one collection to the next.
        shared: a dict for values that the families of one collection share.
        notes: further fields of the record, by name.
        rank: rank of this process.
    """

    def __init__(
        self,
        watch: ModelWatch,
        *,
        batch_idx: int,
        epoch: int,
        step: int,
        device: Any,
        batch: Any,
        holdout: list[Piece],
        folder: Path | None,
        rank: int,
    ) -> None:
        self.watch = watch
        self.model = watch.model
        self.optimizer = watch.optimizer
        self.config: TelemetryConfig = watch.config
        self.batch = batch
        self.batch_idx = batch_idx
        self.epoch = epoch
        self.step = step
        self.holdout = holdout
        self.folder = folder
        self.device = device_of(self.model, device)
        self.memory: dict[str, Any] = {}
        self.shared: dict[str, Any] = {}
        self.notes: dict[str, Any] = {}
        self.rank = rank

    @cached_property
    def groups(self) -> dict[str, Parameters]:
        """The model's parameters by group, each with its name. The group ``overall`` has all of them."""
        return grouped(self.model, self.optimizer, self.config.groups)

    @cached_property
    def parameters(self) -> Parameters:
        """All parameters of the model with their names."""
        return self.groups[OVERALL]

    @cached_property
    def gradients(self) -> dict[str, torch.Tensor] | None:
        """L2 norms of the gradients that the optimizer used: overall, and of each group."""
        return self.watch.gradient_norms(self)

    @cached_property
    def weight_delta(self) -> dict[str, torch.Tensor] | None:
        """L2 norms of the change since the last collection; None at the first one."""
        return self.watch.weight_delta(self)

    @cached_property
    def weights(self) -> dict[str, torch.Tensor]:
        """L2 norms of the weights: overall, and of each group."""
        return norms.l2_by_group({name: [p for _, p in own] for name, own in self.groups.items()})

    @cached_property
    def examples(self) -> Parts | None:
        """Inputs and labels on the device: of the holdout, else of this batch; None if there is neither."""
        chosen = [piece.batch for piece in self.holdout] or [self.batch]
        if chosen[0] is None:
            return None
        model = unwrapped(self.model)
        return joined([parts_of(batch, model, self.config) for batch in chosen]).to(self.device)

    @contextmanager
    def no_trace(self) -> Iterator[Any]:
        """Context manager: the unwrapped model, which can be called without side effects on training.

        It is in evaluation mode and without gradients; buffers and random number generators are restored.
        """
        model = unwrapped(self.model)
        with isolated_eval(model, self.device, self.config.holdout_dtype):
            yield model

    def is_alike(self, number: int) -> bool:
        """Return whether all ranks have the same number; True if the model is not sharded.

        Every rank of a sharded model must call it.
        """
        note_flat_shards(self.model)
        return is_alike([shard(parameter) for parameter in self.model.parameters()], number)


def device_of(model: Any, given: Any) -> torch.device:
    """Return the given device, or else that of the model's first parameter."""
    if given is not None:
        return torch.device(given)
    parameter = next(iter(model.parameters()), None)
    return torch.device("cpu") if parameter is None else parameter.device
