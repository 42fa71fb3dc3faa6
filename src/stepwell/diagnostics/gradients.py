"""The gradients that an optimizer used, taken inside its step.

Before and after a step the gradients may be others: zeroed, still scaled, not yet clipped, of a backward
pass that no step has used. So a hook looks at them when the step begins; when the step has a
closure, at the end of each call of it, since that is where they come from. The hook is in place only from
``take_next`` until ``close``: steps in between cost nothing.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import TYPE_CHECKING, Any

import torch

from stepwell.diagnostics.flat_shards import note_flat_shards
from stepwell.diagnostics.groups import OVERALL, grouped
from stepwell.diagnostics.hooks import add_step_hook, remove_hook
from stepwell.diagnostics.norms import l2_by_group
from stepwell.diagnostics.sharding import on_any_rank, shard, whole
from stepwell.journal.errors import StepwellError, warn_once

if TYPE_CHECKING:
    from torch import Tensor
    from torch.nn import Module

    from stepwell.diagnostics.groups import GroupRule, Parameters

MOST_STEPS = 128
"""Steps that are taken before it is known how many come before somebody asks."""
PATIENCE = 4
"""Times as many steps as usual; then nobody is going to ask (an epoch has ended, for example)."""


class Gradients:
    """Watches one optimizer; the norms count the parameters of the model that this optimizer updates.

    Steps that a ``GradScaler`` leaves out are no steps; scaled gradients are unscaled. Nothing raises inside
    the optimizer's step: what goes wrong there is raised by ``latest``.

    Attributes:
        steps: how many real steps were seen while gradients were to be taken.
    """

    def __init__(self, model: Module, optimizer: Any, groups: GroupRule = None) -> None:
        self._model = model
        self._optimizer = innermost(optimizer)
        self._groups = groups
        self._hook: Any = None
        self._is_taking = False
        self._latest: dict[str, Tensor] | None = None
        self._noted: Tensor | None = None
        self._used: Tensor | None = None
        self._error: Exception | None = None
        self._taken = False
        self._begun = 0
        self._usual: int | None = None
        self.steps = 0

    def take_next(self) -> None:
        """Take the gradients of real steps from now on, until ``latest`` has the first of them to give.

        The one that ``latest`` then gives is that of the last step before it was asked. When far more
        steps are made than usual before it is asked, none is kept and the optimizer is left alone.
        """
        self._noted = self._used = None
        if self._is_taking:
            return
        if not hasattr(self._optimizer, "register_step_pre_hook"):
            raise StepwellError(
                f"{type(self._optimizer).__name__} is no torch.optim.Optimizer: the gradients of its "
                "steps cannot be seen"
            )
        if not getattr(type(self._optimizer).step, "hooked", False):
            # Some versions of torch.compile take the calls of hooks out of the optimizers' classes.
            self._optimizer._patch_step_function()
        self._taken = False
        self._begun = self.steps
        if self._hook is None:
            # None inside another hook before a step: the next time it may be possible.
            self._hook = add_step_hook(self._optimizer, self._before_step)
        self._is_taking = self._hook is not None

    @property
    def is_taking(self) -> bool:
        """Whether the gradients of the next step will be taken."""
        return self._is_taking

    def latest(self) -> dict[str, Tensor] | None:
        """Norms of the latest step that was taken, ``overall`` and by group; None when there is none.

        It is a new dict for each step that was taken.
        """
        error, self._error = self._error, None
        if self._is_taking and (self._taken or error):
            self._usual = max(self._usual or 1, self.steps - self._begun)
            self._is_taking = False
        if error is not None:
            raise error
        return self._latest

    def present(self) -> dict[str, Tensor] | None:
        """Norms of the gradients that are there now; None when there are none at all.

        They are those of the latest step only where nothing touched them since.
        """
        groups = self._watched()
        if not groups:
            return None
        watched = [parameter for _, parameter in groups[OVERALL]]
        # Of sharded ones a rank may have no part at all, and yet the others wait for it.
        shards = [shard(parameter.grad, parameter) for parameter in watched]
        if not on_any_rank(shards, any(parameter.grad is not None for parameter in watched)):
            return None
        return _norms(groups)

    def is_on_all_ranks(self, flag: bool) -> bool:
        """Whether the flag is set on all ranks that have a part of the parameters; each has to ask."""
        note_flat_shards(self._model)
        parameters = [one for group in self._optimizer.param_groups for one in group["params"]]
        return not on_any_rank([shard(None, one) for one in parameters], not flag)

    def note_clipping(self, total_norm: Any) -> None:
        """Hand over what ``clip_grad_norm_`` returned: the norm before clipping."""
        self._noted = total_norm

    @property
    def before_clipping(self) -> Tensor | None:
        """The norm before clipping of the latest step since ``take_next``; before a step, the noted one.

        Of sharded gradients every rank has to ask for it.
        """
        norm = self._noted if self._used is None else self._used
        if norm is None:
            return None
        return whole(norm) if isinstance(norm, torch.Tensor) else torch.tensor(float(norm))

    def close(self) -> None:
        """Leave the optimizer alone, until ``take_next``."""
        self._is_taking = False
        hook, self._hook = self._hook, None
        if hook is not None:
            remove_hook(hook)

    def _before_step(
        self, optimizer: Any, args: tuple[Any, ...], kwargs: dict[str, Any]
    ) -> tuple[tuple[Any, ...], dict[str, Any]] | None:
        if not self._is_taking:
            return None
        self.steps += 1
        most = MOST_STEPS if self._usual is None else PATIENCE * self._usual
        if self.steps - self._begun > most:
            self._latest, self._taken = None, False
            self.close()
            return None
        if callable(kwargs.get("closure")):
            return args, {**kwargs, "closure": self._then_take(kwargs["closure"])}
        # The optimizer itself comes first.
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
            if self._is_left_out():
                return
            groups = self._watched()
            # A new dict for each step, also where there is nothing to measure.
            self._latest = self._unscaled(_norms(groups)) if groups else {}
            self._taken = True
            if self._noted is not None:
                self._used, self._noted = self._noted, None
        except Exception as error:
            self._error, self._latest = error, None

    def _watched(self) -> dict[str, Parameters]:
        """The groups, without what this optimizer does not update."""
        updated = {id(one) for group in self._optimizer.param_groups for one in group["params"]}
        groups = grouped(self._model, self._optimizer, self._groups)
        watched = {
            name: [(path, one) for path, one in parameters if id(one) in updated]
            for name, parameters in groups.items()
        }
        if not watched[OVERALL]:
            warn_once(
                "diagnostics: parameters of another model",
                "the optimizer updates none of the model's parameters: the model does not learn, and its "
                "gradient norm is not recorded",
            )
            return {}
        return {name: parameters for name, parameters in watched.items() if parameters}

    def _is_left_out(self) -> bool:
        """Whether a fused optimizer was told not to make this step; False where asking means waiting."""
        skipped = getattr(self._optimizer, "found_inf", None)
        return isinstance(skipped, torch.Tensor) and skipped.device.type == "cpu" and bool(skipped)

    def _unscaled(self, norms: dict[str, Tensor]) -> dict[str, Tensor]:
        """As a fused optimizer uses them: it is handed the scale, and leaves out steps by itself."""
        scale = getattr(self._optimizer, "grad_scale", None)
        if isinstance(scale, torch.Tensor):
            norms = {name: norm / scale.to(norm.device) for name, norm in norms.items()}
        skipped = getattr(self._optimizer, "found_inf", None)
        before = self._latest if self._taken else None
        if not isinstance(skipped, torch.Tensor) or before is None:
            return norms
        # The device knows whether the step is made; those of the step before stand if it is not.
        return {
            name: torch.where(skipped.to(norm.device).reshape(()) > 0, before[name], norm)
            for name, norm in norms.items()
        }


def _norms(groups: dict[str, Parameters]) -> dict[str, Tensor]:
    parameters = {name: [one for _, one in members] for name, members in groups.items()}
    present = {name: [one.grad for one in members] for name, members in parameters.items()}
    return l2_by_group(present, parameters)


def innermost(optimizer: Any) -> Any:
    """The optimizer itself, without what Accelerate or Lightning put around it."""
    inner = getattr(optimizer, "optimizer", None)
    while inner is not None and hasattr(inner, "param_groups") and inner is not optimizer:
        optimizer, inner = inner, getattr(inner, "optimizer", None)
    return optimizer
