"""Measures the gradients that an optimizer used, inside its step.

Before and after a step the gradients may be different: zeroed, still scaled, not yet clipped, or from a
backward pass that no step has used. So a hook measures them when the step starts; if the step has a closure,
after each call of the closure, which computes them. The hook exists only from ``take_next`` until ``close``:
other steps cost nothing.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import TYPE_CHECKING, Any

import torch

from stepwell._core.errors import StepwellError, warn_once
from stepwell.diagnostics.groups import OVERALL, grouped
from stepwell.diagnostics.hooks import add_step_hook, remove_hook
from stepwell.diagnostics.norms import l2_by_group
from stepwell.diagnostics.sharding import note_flat_shards, on_any_rank, shard, whole

if TYPE_CHECKING:
    from torch import Tensor
    from torch.nn import Module

    from stepwell.diagnostics.groups import GroupRule, Parameters

MOST_STEPS = 128
"""Steps that are measured while the usual number of steps between two calls of ``latest`` is unknown."""
PATIENCE = 4
"""After this multiple of the usual number, measuring stops: perhaps an epoch has ended."""


class Gradients:
    """Watches one optimizer. The norms are over the model's parameters that this optimizer updates.

    Steps that a ``GradScaler`` skips are not counted; scaled gradients are unscaled. An error inside the
    optimizer's step is not raised there, but by ``latest``.

    Attributes:
        steps: the number of real steps that were seen while gradients were measured.
        is_taking: whether the gradients of the next step will be measured.
    """

    def __init__(self, model: Module, optimizer: Any, groups: GroupRule = None) -> None:
        self._model = model
        self._optimizer = innermost(optimizer)
        self._groups = groups
        self._hook: Any = None
        self.is_taking = False
        self._latest: dict[str, Tensor] | None = None
        self._noted: Tensor | None = None
        self._used: Tensor | None = None
        self._error: Exception | None = None
        self._taken = False
        self._begun = 0
        self._usual: int | None = None
        self.steps = 0

    def take_next(self) -> None:
        """Measure the gradients of all steps from now on, until ``latest`` returns those of the last step.

        If there are far more steps than usual before ``latest`` is called, the result is dropped and
        measuring stops.
        """
        self._noted = self._used = None
        if self.is_taking:
            return
        if not hasattr(self._optimizer, "register_step_pre_hook"):
            raise StepwellError(
                f"the optimizer must be a torch.optim.Optimizer, got {type(self._optimizer).__name__}: the "
                "gradients of its steps cannot be measured"
            )
        if not getattr(type(self._optimizer).step, "hooked", False):
            # Some versions of torch.compile remove the calls of hooks from the classes of optimizers.
            self._optimizer._patch_step_function()
        self._taken = False
        self._begun = self.steps
        if self._hook is None:
            # None inside another hook before a step. It may be possible the next time.
            self._hook = add_step_hook(self._optimizer, self._before_step)
        self.is_taking = self._hook is not None

    def latest(self) -> dict[str, Tensor] | None:
        """Return the norms of the last measured step, ``overall`` and by group; None if there is none.

        It is a new dict for each step.
        """
        error, self._error = self._error, None
        if self.is_taking and (self._taken or error):
            self._usual = max(self._usual or 1, self.steps - self._begun)
            self.is_taking = False
        if error is not None:
            raise error
        return self._latest

    def present(self) -> dict[str, Tensor] | None:
        """Return the norms of the current gradients; None if there are none.

        They are those of the last step only if nothing has changed them since.
        """
        groups = self._watched()
        if not groups:
            return None
        watched = [parameter for _, parameter in groups[OVERALL]]
        # A rank may have no part of sharded gradients, and still the other ranks wait for it.
        shards = [shard(parameter.grad, parameter) for parameter in watched]
        if not on_any_rank(shards, any(parameter.grad is not None for parameter in watched)):
            return None
        return _norms(groups)

    def is_on_all_ranks(self, flag: bool) -> bool:
        """Return whether the flag is set on all ranks with a part of the parameters. All must call it."""
        note_flat_shards(self._model)
        parameters = [p for group in self._optimizer.param_groups for p in group["params"]]
        return not on_any_rank([shard(None, p) for p in parameters], not flag)

    def note_clipping(self, total_norm: Any) -> None:
        """Note the result of ``clip_grad_norm_``: the norm before clipping."""
        self._noted = total_norm

    @property
    def before_clipping(self) -> Tensor | None:
        """The norm before clipping of the last step since ``take_next``; before a step, the noted one.

        Every rank must read it if gradients are sharded.
        """
        norm = self._noted if self._used is None else self._used
        if norm is None:
            return None
        return whole(norm) if isinstance(norm, torch.Tensor) else torch.tensor(float(norm))

    def close(self) -> None:
        """Remove the hook from the optimizer, until ``take_next``."""
        self.is_taking = False
        hook, self._hook = self._hook, None
        if hook is not None:
            remove_hook(hook)

    def _before_step(
        self, optimizer: Any, args: tuple[Any, ...], kwargs: dict[str, Any]
    ) -> tuple[tuple[Any, ...], dict[str, Any]] | None:
        if not self.is_taking:
            return None
        self.steps += 1
        most = MOST_STEPS if self._usual is None else PATIENCE * self._usual
        if self.steps - self._begun > most:
            self._latest, self._taken = None, False
            self.close()
            return None
        if callable(kwargs.get("closure")):
            return args, {**kwargs, "closure": self._then_take(kwargs["closure"])}
        # The first argument is the optimizer itself.
        if len(args) > 1 and callable(args[1]):
            return (args[0], self._then_take(args[1]), *args[2:]), kwargs
        self._take()
        return None

    def _then_take(self, closure: Callable[..., Any]) -> Callable[..., Any]:
        def evaluated(*args: Any, **kwargs: Any) -> Any:
            result = closure(*args, **kwargs)
            self._take()
            return result

        return evaluated

    def _take(self) -> None:
        try:
            if self._is_skipped():
                return
            groups = self._watched()
            # A new dict for each step, even if there is nothing to measure.
            self._latest = self._unscaled(_norms(groups)) if groups else {}
            self._taken = True
            if self._noted is not None:
                self._used, self._noted = self._noted, None
        except Exception as error:
            self._error, self._latest = error, None

    def _watched(self) -> dict[str, Parameters]:
        """Return the groups, without parameters that this optimizer does not update."""
        updated = {id(p) for group in self._optimizer.param_groups for p in group["params"]}
        groups = grouped(self._model, self._optimizer, self._groups)
        watched = {
            name: [(path, p) for path, p in parameters if id(p) in updated]
            for name, parameters in groups.items()
        }
        if not watched[OVERALL]:
            warn_once(
                "diagnostics: parameters of another model",
                "the optimizer updates none of the model's parameters, so the model does not learn. Its "
                "gradient norm is not recorded",
            )
            return {}
        return {name: parameters for name, parameters in watched.items() if parameters}

    def _is_skipped(self) -> bool:
        """Return whether a fused optimizer skips this step; False if that is known on the device only."""
        skipped = getattr(self._optimizer, "found_inf", None)
        return isinstance(skipped, torch.Tensor) and skipped.device.type == "cpu" and bool(skipped)

    def _unscaled(self, norms: dict[str, Tensor]) -> dict[str, Tensor]:
        """Return the norms as a fused optimizer uses them: it unscales gradients and skips steps itself."""
        scale = getattr(self._optimizer, "grad_scale", None)
        if isinstance(scale, torch.Tensor):
            norms = {name: norm / scale.to(norm.device) for name, norm in norms.items()}
        skipped = getattr(self._optimizer, "found_inf", None)
        before = self._latest if self._taken else None
        if not isinstance(skipped, torch.Tensor) or before is None:
            return norms
        # Only the device knows whether the step is skipped. If it is, the norms of the step before remain.
        return {
            name: torch.where(skipped.to(norm.device).reshape(()) > 0, before[name], norm)
            for name, norm in norms.items()
        }


def _norms(groups: dict[str, Parameters]) -> dict[str, Tensor]:
    parameters = {name: [p for _, p in members] for name, members in groups.items()}
    present = {name: [p.grad for p in members] for name, members in parameters.items()}
    return l2_by_group(present, parameters)


def innermost(optimizer: Any) -> Any:
    """Return the optimizer without the wrappers of Accelerate or Lightning."""
    inner = getattr(optimizer, "optimizer", None)
    while inner is not None and hasattr(inner, "param_groups") and inner is not optimizer:
        optimizer, inner = inner, getattr(inner, "optimizer", None)
    return optimizer
