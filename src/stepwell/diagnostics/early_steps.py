"""Records the learning rates and the gradient norm of each of the first steps of a training, as metrics.

Problems often start early, and short runs need curves too. A step costs some microseconds: one norm over all
gradients, without groups, records or a span. A budget limits the time for large models on the CPU. On an
accelerator nothing waits: the numbers are fetched in the background.
"""

from __future__ import annotations

import math
from time import perf_counter_ns, thread_time_ns
from typing import TYPE_CHECKING, Any

import torch

from stepwell._core.errors import report
from stepwell.diagnostics.gradients import innermost
from stepwell.diagnostics.hooks import add_step_hook, remove_hook
from stepwell.diagnostics.norms import l2, precision, single_threaded
from stepwell.diagnostics.sharding import note_flat_shards, shard
from stepwell.journal import metrics

if TYPE_CHECKING:
    from torch import Tensor
    from torch.nn import Module

    from stepwell.diagnostics.config import TelemetryConfig

DENSE = 200
"""Steps at the start of a training that are recorded one by one."""
ALLOWANCE_NS = 20_000_000
SHARE = 0.02
"""The budget for norms: ``ALLOWANCE_NS``, plus this share of the time since the start."""
MANY_GROUPS = 16
"""With more parameter groups, learning rates are not recorded in every step."""
SHARED_OUT = 1 << 15
"""Number of elements from which torch uses several threads for a tensor."""
CHECKSUM_STEPS = (9, 19, 49, 99)
"""Steps since the start at which weights are compared between ranks."""
CHECKSUM = "weight_checksum/overall"
EXACT = (torch.float32, torch.float64)
SINGLE_PRECISION = ("cpu", "mps")
"""Devices on which sums in float64 are slow or impossible."""


class EarlySteps:
    """Records the first steps of one model and its optimizer. A failure is reported once and ends it."""

    def __init__(self, model: Any, optimizer: Any, config: TelemetryConfig) -> None:
        self._model = model
        self._optimizer = innermost(optimizer)
        self._has_norms = config.track_gradients
        self._has_rates = config.track_learning_rates
        self._has_weights = config.track_gradients
        self._began = perf_counter_ns()
        self._spent = 0
        self._steps = 0
        self._count = -1
        self._parameters: list[Tensor] = []
        self._rates: list[tuple[str, Any]] = []
        self._is_large = False
        # The dtype for norms (None: that of the gradients), and the device that they are moved to (None: all
        # are on one device).
        self._dtype: torch.dtype | None = None
        self._home: torch.device | None = None
        self._hook: Any = None
        self._taken: float | Tensor | None = None
        self._ids: set[int] = set()

    def norm_of_own(self, first: int, norm: Any) -> Any:
        """Return the norm if the optimizer uses the gradient with this id; else None."""
        if type(norm) is not torch.Tensor:
            return None
        self._refresh()
        is_own = first in self._ids or any(id(p.grad) == first for p in self._parameters)
        return norm if is_own else None

    def record(self, step: int, before_clipping: Any) -> None:
        """Record a step, before its gradients are dropped."""
        self._steps += 1
        try:
            self._refresh()
            values: dict[str, Any] = {}
            if self._has_rates:
                values.update((name, _number(group["lr"])) for name, group in self._rates)
            if before_clipping is not None:
                values["gradient_norm_before_clipping"] = _number(before_clipping)
            budget = ALLOWANCE_NS + SHARE * (perf_counter_ns() - self._began)
            if self._has_norms and self._spent <= budget:
                norm = self._taken if self._hook is not None else self._norm()
                if norm is not None:
                    values["gradient_norm/overall"] = norm
                elif self._hook is None and all(p.grad is None for p in self._parameters):
                    # They are dropped right after the step: measure them when a step begins.
                    self._hook = add_step_hook(self._optimizer, self._before_step)
            self._taken = None
            if values:
                _log(values, step)
            if self._steps in CHECKSUM_STEPS:
                self.record_weights(step)
        except Exception as error:
            self._has_norms = self._has_rates = False
            report("diagnostics of the first steps", error)

    def _before_step(self, *args: Any) -> None:
        if not self._has_norms:
            return
        try:
            self._ids = {id(p.grad) for p in self._parameters}
            if self._spent <= ALLOWANCE_NS + SHARE * (perf_counter_ns() - self._began):
                self._taken = self._norm()
        except Exception as error:
            self._has_norms = False
            report("diagnostics of the first steps", error)

    def close(self) -> None:
        """Remove the hook from the optimizer."""
        hook, self._hook = self._hook, None
        self._ids = set()
        if hook is not None:
            remove_hook(hook)

    def record_weights(self, step: int) -> None:
        """Record a checksum of the weights, with several ranks."""
        try:
            checksum = weight_checksum(self._model) if self._has_weights else None
            if checksum is not None:
                _log({CHECKSUM: _number(checksum)}, step)
        except Exception as error:
            self._has_weights = False
            report("checksum of the weights", error)

    def _refresh(self) -> None:
        """Look up parameters and groups, if their number has changed."""
        groups = self._optimizer.param_groups
        count = sum(len(group["params"]) for group in groups)
        if count == self._count:
            return
        self._count = count
        note_flat_shards(self._model)
        own = {id(parameter) for parameter in self._model.parameters()}
        self._parameters = [p for group in groups for p in group["params"] if id(p) in own]
        if any(shard(parameter).groups for parameter in self._parameters):
            # Their norm needs all ranks at once.
            self._has_norms = False
        self._is_large = any(p.numel() >= SHARED_OUT for p in self._parameters)
        types = {p.dtype for p in self._parameters}
        if not types.issubset(EXACT):
            self._dtype = torch.float64 if torch.float64 in types else torch.float32
        devices = list(dict.fromkeys(p.device for p in self._parameters))
        if not any(device.type in SINGLE_PRECISION for device in devices):
            # Squares of float32 may overflow, which cannot be seen without waiting for the device.
            self._dtype = torch.float64
        self._home = devices[0] if len(devices) > 1 else None
        few = groups if len(groups) <= MANY_GROUPS else ()
        self._rates = [(f"learning_rate/group_{i}", group) for i, group in enumerate(few)]
        names = [(group.get("name"), group) for group in few]
        taken = {name for name, _ in self._rates}
        self._rates += [
            (f"learning_rate/{name}", group)
            for name, group in names
            if isinstance(name, str) and f"learning_rate/{name}" not in taken
        ]

    def _norm(self) -> float | Tensor | None:
        """Return the norm of the gradients that the optimizer uses; None if it is not known at once."""
        # CPU time, because wall time includes that of other programs.
        began = thread_time_ns()
        try:
            return self._measure()
        finally:
            self._spent += thread_time_ns() - began

    def _measure(self) -> float | Tensor | None:
        scale = getattr(self._optimizer, "grad_scale", None)
        skipped = getattr(self._optimizer, "found_inf", None)
        if isinstance(skipped, torch.Tensor) and (skipped.device.type != "cpu" or bool(skipped)):
            return None
        gradients = [p.grad for p in self._parameters if p.grad is not None]
        if not gradients or any(each.is_sparse for each in gradients):
            return None
        with torch.no_grad():
            if self._is_large and gradients[0].device.type == "cpu":
                with single_threaded():
                    norm = self._l2(gradients)
            else:
                norm = self._l2(gradients)
            value = _number(_unscaled(norm, scale))
            if isinstance(value, float) and not math.isfinite(value):
                # Possibly only the squares are too large for float32.
                value = _number(_unscaled(l2(gradients), scale))
        return value

    def _l2(self, tensors: list[Tensor]) -> Tensor:
        norms = torch._foreach_norm(tensors, 2, self._dtype)
        if self._home is not None:
            norms = tuple(each.to(self._home, non_blocking=True) for each in norms)
        norm: Tensor = torch.linalg.vector_norm(torch.stack(norms))
        return norm


def _unscaled(norm: Tensor, scale: Any) -> Tensor:
    return norm / scale.to(norm.device) if isinstance(scale, torch.Tensor) else norm


def _number(value: Any) -> float | Tensor:
    """Return a float, or a copy of a tensor on a device, which is fetched in the background."""
    if not isinstance(value, torch.Tensor):
        return float(value)
    return float(value.item()) if value.device.type == "cpu" else value.detach().clone()


def _log(values: dict[str, Any], step: int) -> None:
    metrics.log(values, step if metrics.context.step is None else metrics.context.step)


@torch.no_grad()
def weight_checksum(model: Module) -> Tensor | None:
    """Return the sum of all weights divided by their norm; None for one rank, or if weights are sharded.

    Identical replicas have identical checksums, to the last digit. If replicas differ, their norms are still
    similar, but their sums are not.
    """
    distributed = torch.distributed
    if not (distributed.is_available() and distributed.is_initialized()):
        return None
    note_flat_shards(model)
    weights = [
        w for w in model.parameters() if w.numel() and w.is_floating_point() and not w.is_meta
    ]
    if distributed.get_world_size() < 2 or not weights or any(shard(w).groups for w in weights):
        return None
    home = weights[0].device
    sums = [weight.detach().sum(dtype=precision(weight.device)).to(home) for weight in weights]
    checksum: Tensor = torch.stack(sums).sum() / l2(weights).to(home).clamp(min=1e-30)
    return checksum
