"""Backward: the one function that everything goes through which runs the autograd engine."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from typing import Any

import torch

from stepwell.annotations.tree import ai
from stepwell.integrations.torch.device_time import Timer, devices, is_any_on_device
from stepwell.integrations.torch.following import following
from stepwell.integrations.torch.patches import Patch, Patches, looks_like
from stepwell.integrations.torch.recording import drop_interrupted, enter, here, leave
from stepwell.journal.state import state

BACKWARD_KIND = "backward"
_tracing: Any = getattr(getattr(torch._guards, "TracingContext", None), "try_get", None)
ENGINE = "_engine_run_backward"
"""``Tensor.backward``, ``autograd.backward`` and ``autograd.grad`` call it by this name, so that it does not
matter how, or when, these were imported."""


def _around(original: Callable[..., Any]) -> Callable[..., Any]:
    node = ai.compute.backward

    @looks_like(original)
    def run_backward(outputs: Any, *args: Any, **kwargs: Any) -> Any:
        inside = here.inside
        # Of a pass inside a pass, as checkpointing has them, the outer one counts.
        if not state.enabled or not BACKWARD.active or BACKWARD_KIND in inside or _is_traced():
            return original(outputs, *args, **kwargs)
        inside.add(BACKWARD_KIND)
        try:
            if here.calls:
                drop_interrupted()
            follower = following.follower
            counting = None
            if follower is not None and kwargs.get("accumulate_grad"):
                counting = follower.backward_begins(outputs)
            entered = enter(node)
            timer = None
            if entered and devices.possible and _is_on_device(outputs):
                timer = Timer.start(BACKWARD_KIND)
            try:
                if counting is None:
                    result = original(outputs, *args, **kwargs)
                else:
                    with counting:
                        result = original(outputs, *args, **kwargs)
            except BaseException as error:
                if entered:
                    leave(node, error)
                raise
            if timer is not None:
                timer.stop()
            if entered:
                leave(node)
            return result
        finally:
            inside.discard(BACKWARD_KIND)

    return run_backward


def _is_traced() -> bool:
    """Whether a compiler is looking at this pass, rather than anybody computing it."""
    return _tracing is not None and _tracing() is not None


def _is_on_device(outputs: Any) -> bool:
    return is_any_on_device(each for each in outputs if isinstance(each, torch.Tensor))


def _find(patches: Patches) -> Iterator[Patch]:
    if hasattr(torch.autograd, ENGINE):
        yield Patch(torch.autograd, ENGINE, _around)
    else:
        yield Patch(torch.autograd, "backward", _around)
        yield Patch(torch.autograd, "grad", _around)


BACKWARD = Patches(_find)
