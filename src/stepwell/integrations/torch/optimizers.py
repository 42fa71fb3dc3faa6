"""Optimizer steps: a pair of hooks on the optimizer."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import torch

from stepwell.annotations.tree import ai
from stepwell.integrations.torch import steps
from stepwell.integrations.torch.device_time import is_any_on_device
from stepwell.integrations.torch.recording import WHERE, begin_call, end_call
from stepwell.integrations.torch.steps import OPTIMIZERS
from stepwell.journal.errors import report
from stepwell.journal.state import state

STEP = "step"


def annotate_optimizer(optimizer: torch.optim.Optimizer) -> Callable[[], None]:
    """Record the steps of this optimizer; what is returned ends that."""
    return OPTIMIZERS.add(optimizer, _hook)


def _hook(optimizer: torch.optim.Optimizer) -> Callable[[Any], None]:
    before = optimizer.register_step_pre_hook(_before)
    after = optimizer.register_step_post_hook(_after)

    def unhook(optimizer: Any) -> None:
        before.remove()
        after.remove()

    return unhook


def _before(optimizer: torch.optim.Optimizer, args: Any, kwargs: Any) -> None:
    if torch.compiler.is_compiling() or not state.enabled:
        return
    try:
        device = is_any_on_device(optimizer.param_groups[0]["params"])
        begin_call(STEP, ai.compute.step, optimizer, device)
    except Exception as error:
        report(WHERE, error)


def _after(optimizer: torch.optim.Optimizer, args: Any, kwargs: Any) -> None:
    if torch.compiler.is_compiling():
        return
    try:
        if end_call(STEP, optimizer) and OPTIMIZERS.is_first(optimizer):
            steps.advance()
    except Exception as error:
        report(WHERE, error)
