"""Backward: the one function that everything goes through which runs the autograd engine."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import nullcontext
from typing import Any

import torch

from stepwell.annotations.tree import ai
from stepwell.integrations.torch.device_time import Timer, devices, is_any_on_device
from stepwell.integrations.torch.following import following
from stepwell.integrations.torch.patches import Patch, Patches, looks_like
from stepwell.integrations.torch.quick import quick
from stepwell.integrations.torch.recording import drop_interrupted, here, leave, record
from stepwell.journal.state import state

BACKWARD_KIND = "backward"
_tracing: Any = getattr(getattr(torch._guards, "TracingContext", None), "try_get", None)
"""Tells whether a compiler is looking at a pass, rather than anybody computing it."""
ENGINE = "_engine_run_backward"
"""``Tensor.backward``, ``autograd.backward`` and ``autograd.grad`` call it by this name, so that it does not
matter how, or when, these were imported."""


def _around(original: Callable[..., Any]) -> Callable[..., Any]:
    node = ai.compute.backward
    tensor = torch.Tensor

    @looks_like(original)
    def run_backward(outputs: Any, *args: Any, **kwargs: Any) -> Any:
        follower = following.follower
        # A compiler that looks at a pass, rather than computing it, has tensors of other types.
        if (
            not state.enabled
            or not BACKWARD.active
            or devices.possible
            or type(outputs[0]) is not tensor
            or (follower is not None and follower.is_counting)
            or not quick.begin(BACKWARD_KIND, node)
        ):
            return _run_slowly(original, outputs, args, kwargs)
        looked = None
        try:
            if follower is not None and kwargs.get("accumulate_grad"):
                looked = follower.backward_begins(outputs)
            result = original(outputs, *args, **kwargs)
        except BaseException as error:
            quick.drop(BACKWARD_KIND)
            leave(node, error)
            raise
        if not quick.end(BACKWARD_KIND):
            quick.drop(BACKWARD_KIND)
            leave(node)
        if looked is not None and follower is not None:
            follower.backward_ends(looked)
        return result

    return run_backward


def _run_slowly(
    original: Callable[..., Any], outputs: Any, args: tuple[Any, ...], kwargs: dict[str, Any]
) -> Any:
    inside = here.inside
    is_traced = _tracing is not None and _tracing() is not None
    # Of a pass inside a pass, as checkpointing has them, the outer one counts.
    is_inside = BACKWARD_KIND in inside or (quick.site == BACKWARD_KIND and quick.is_own)
    if not state.enabled or not BACKWARD.active or is_inside or is_traced:
        return original(outputs, *args, **kwargs)
    inside.add(BACKWARD_KIND)
    quick.others.append(BACKWARD_KIND)
    try:
        if here.calls or quick.entry:
            drop_interrupted()
        follower = following.follower
        looked = counting = None
        if follower is not None and kwargs.get("accumulate_grad"):
            looked = follower.backward_begins(outputs)
            counting = follower.count_backward()
        with counting or nullcontext():
            result = record(ai.compute.backward, None, _timed(original), (outputs, *args), kwargs)
        if looked is not None and follower is not None:
            follower.backward_ends(looked)
        return result
    finally:
        inside.discard(BACKWARD_KIND)
        # In a process that was forked meanwhile it is not.
        if BACKWARD_KIND in quick.others:
            quick.others.remove(BACKWARD_KIND)


def _timed(original: Callable[..., Any]) -> Callable[..., Any]:
    """The same, with the time that it takes on a device."""
    if not devices.possible:
        return original

    def timed(outputs: Any, *args: Any, **kwargs: Any) -> Any:
        timer = Timer.start(BACKWARD_KIND) if _is_on_device(outputs) else None
        result = original(outputs, *args, **kwargs)
        if timer is not None:
            timer.stop()
        return result

    return timed


def _is_on_device(outputs: Any) -> bool:
    return is_any_on_device(each for each in outputs if isinstance(each, torch.Tensor))


def _find(patches: Patches) -> Iterator[Patch]:
    if hasattr(torch.autograd, ENGINE):
        yield Patch(torch.autograd, ENGINE, _around)
    else:
        yield Patch(torch.autograd, "backward", _around)
        yield Patch(torch.autograd, "grad", _around)


BACKWARD = Patches(_find)
