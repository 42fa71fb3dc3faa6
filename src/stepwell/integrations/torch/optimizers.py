"""Optimizer steps: a pair of hooks on the optimizer."""

from __future__ import annotations

from collections.abc import Callable
from contextlib import nullcontext
from typing import Any

import torch

from stepwell.annotations.tree import ai
from stepwell.diagnostics.hooks import add_step_hook, remove_hook
from stepwell.integrations.torch import steps
from stepwell.integrations.torch.device_time import Timer, devices, is_any_on_device
from stepwell.integrations.torch.following import following
from stepwell.integrations.torch.quick import quick
from stepwell.integrations.torch.recording import WHERE, Site, begin_call, end_call
from stepwell.integrations.torch.steps import OPTIMIZERS, CountedStep
from stepwell.journal.errors import StepwellError, report
from stepwell.journal.metrics import context
from stepwell.journal.state import state

STEP = "step"
_compiler: Any = torch.compiler
_is_traced = torch.compiler.is_dynamo_compiling


def unwrapped_optimizer(given: Any) -> Any:
    """Return the optimizer that makes the steps: the one inside, for one that takes no hooks itself.

    Accelerate's is such a wrapper. It is called for every batch, the one inside only to make a step.
    """
    while not hasattr(given, "_optimizer_step_pre_hooks"):
        inner = getattr(given, "optimizer", None)
        if not isinstance(inner, torch.optim.Optimizer):
            break
        given = inner
    return given


def annotate_optimizer(optimizer: torch.optim.Optimizer) -> Callable[[], None]:
    """Record the steps of this optimizer; what is returned ends that."""
    return OPTIMIZERS.add(unwrapped_optimizer(optimizer), _hook)


def _hook(optimizer: torch.optim.Optimizer) -> Callable[[Any], None]:
    site = Site(STEP, ai.compute.step, optimizer)
    before = add_step_hook(optimizer, _Before(site))
    after = add_step_hook(optimizer, _After(site), after=True)

    def unhook(optimizer: Any) -> None:
        for hook in (before, after):
            if hook is not None:
                remove_hook(hook)

    if before is None or after is None:
        unhook(optimizer)
        raise StepwellError(
            f"{type(optimizer).__name__} makes a step just now: annotate it, or watch it, outside its step"
        )

    return unhook


class _Hook:
    """A hook that becomes one that does nothing wherever the optimizer is copied or pickled to."""

    def __init__(self, site: Site) -> None:
        self.site = site

    def __reduce__(self) -> tuple[Any, ...]:
        return getattr, (nullcontext(), "__exit__")


class _Before(_Hook):
    def __call__(self, optimizer: torch.optim.Optimizer, args: Any, kwargs: Any) -> None:
        if _is_traced() or not state.enabled or _compiler._is_compiling_flag:
            return
        try:
            follower = following.follower
            if follower is not None:
                follower.step_begins(optimizer)
            site = self.site
            on_device = devices.possible and is_any_on_device(optimizer.param_groups[0]["params"])
            if not quick.begin(site, site.node):
                begin_call(site, on_device)
            elif on_device:
                quick.timer = Timer.start(STEP)
        except Exception as error:
            report(WHERE, error)


class _After(_Hook):
    def __call__(self, optimizer: torch.optim.Optimizer, args: Any, kwargs: Any) -> None:
        if _is_traced() or _compiler._is_compiling_flag:
            return
        try:
            if not quick.end(self.site) and not end_call(self.site):
                return
            if type(context.step) is CountedStep and OPTIMIZERS.is_first(optimizer):
                steps.advance()
            follower = following.follower
            if follower is not None:
                follower.step_ends(optimizer)
        except Exception as error:
            report(WHERE, error)
