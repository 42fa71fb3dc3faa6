"""Forward: a pair of hooks on the model."""

from __future__ import annotations

from collections.abc import Callable
from contextlib import nullcontext
from typing import Any

import torch

from stepwell.annotations.tree import ai
from stepwell.integrations.torch.device_time import is_any_on_device
from stepwell.integrations.torch.marks import Marks
from stepwell.integrations.torch.recording import WHERE, begin_call, end_call
from stepwell.journal.errors import report
from stepwell.journal.state import state

FORWARD = "forward"
MODELS = Marks()


def annotate_model(model: torch.nn.Module) -> Callable[[], None]:
    """Record the forward of this model; what is returned ends that."""
    return MODELS.add(model, _hook)


def _hook(model: torch.nn.Module) -> Callable[[Any], None]:
    from stepwell.integrations.torch.compilation import wrap_compiled_call

    # Around what other hooks do.
    before = model.register_forward_pre_hook(_before, prepend=True)
    after = model.register_forward_hook(_after, always_call=True)
    unwrap = wrap_compiled_call(model)

    def unhook(model: Any) -> None:
        before.remove()
        after.remove()
        if model is not None:
            unwrap(model)

    return unhook


class _Hook:
    """A hook that becomes one that does nothing wherever the model is copied or pickled to.

    There it needs no stepwell to be loaded. Traced by a compiler it does nothing either: what
    compiled the model is recorded around it.
    """

    def __reduce__(self) -> tuple[Any, ...]:
        return getattr, (nullcontext(), "__exit__")


class _Before(_Hook):
    def __call__(self, module: torch.nn.Module, args: Any) -> None:
        if torch.compiler.is_compiling() or not state.enabled:
            return
        begin_forward(module)


class _After(_Hook):
    def __call__(self, module: torch.nn.Module, args: Any, output: Any) -> None:
        if torch.compiler.is_compiling():
            return
        end_forward(module)


def begin_forward(module: torch.nn.Module) -> None:
    """This model's forward begins."""
    try:
        device = is_any_on_device(module.parameters())
        begin_call(FORWARD, ai.compute.forward, module, device)
    except Exception as error:
        report(WHERE, error)


def end_forward(module: torch.nn.Module) -> None:
    """This model's forward has ended, well or not."""
    try:
        end_call(FORWARD, module)
    except Exception as error:
        report(WHERE, error)


_before = _Before()
_after = _After()
