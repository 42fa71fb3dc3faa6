"""What a family sees: the moment of training at which a collection is made."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from functools import cached_property
from pathlib import Path
from typing import TYPE_CHECKING, Any

import torch

from stepwell.diagnostics import norms
from stepwell.diagnostics.batches import Parts, joined, parts_of
from stepwell.diagnostics.flat_shards import note_flat_shards
from stepwell.diagnostics.groups import OVERALL, grouped
from stepwell.diagnostics.no_trace import bare, no_trace
from stepwell.diagnostics.sharding import is_alike, shard

if TYPE_CHECKING:
    from stepwell.diagnostics.config import TelemetryConfig
    from stepwell.diagnostics.groups import Parameters
    from stepwell.diagnostics.holdout import Piece
    from stepwell.diagnostics.model_watch import ModelWatch


class Context:
    """One collection. What is costly is computed when a family first asks for it, and then once.

    Attributes:
        model: as given to ``on_batch_end``.
        optimizer: likewise.
        batch: likewise; None when none was given.
        batch_idx: likewise.
        epoch: likewise.
        device: where the model is.
        config: the configuration.
        step: the step at which the numbers are logged.
        holdout: the holdout's batches; empty when there are none.
        folder: the folder of the records; None when there is none.
        memory: a dict of the family's own, kept from one collection to the next.
        shared: a dict for what families of one collection share.
        notes: fields beside the family's own, by name.
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
        """The model's parameters by group, each with its name; ``overall`` has all of them."""
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
        """L2 norms of the change since the collection before; None at the first."""
        return self.watch.weight_delta(self)

    @cached_property
    def weights(self) -> dict[str, torch.Tensor]:
        """L2 norms of the weights: overall, and of each group."""
        return norms.l2_by_group({name: [p for _, p in own] for name, own in self.groups.items()})

    @cached_property
    def examples(self) -> Parts | None:
        """Inputs and labels on the device: of the holdout, else of this batch; None without both."""
        chosen = [piece.batch for piece in self.holdout] or [self.batch]
        if chosen[0] is None:
            return None
        model = bare(self.model)
        return joined([parts_of(batch, model, self.config) for batch in chosen]).to(self.device)

    @contextmanager
    def no_trace(self) -> Iterator[Any]:
        """The model, unwrapped, to be called in here without consequences for training.

        It is in evaluation mode and without gradients; buffers and random numbers are put back.
        """
        model = bare(self.model)
        with no_trace(model, self.device, self.config.holdout_dtype):
            yield model

    def is_alike(self, number: int) -> bool:
        """Whether all ranks have the same number; True where the model is not sharded.

        Of a sharded model every rank has to ask.
        """
        note_flat_shards(self.model)
        return is_alike([shard(parameter) for parameter in self.model.parameters()], number)


def device_of(model: Any, given: Any) -> torch.device:
    """The device that was given, else that of the model's first parameter."""
    if given is not None:
        return torch.device(given)
    parameter = next(iter(model.parameters()), None)
    return torch.device("cpu") if parameter is None else parameter.device
