"""Backward passes: a patch of the one function through which the autograd engine is called."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import nullcontext
from functools import wraps
from typing import Any

import torch

from stepwell.annotations.tree import ai
from stepwell.integrations.torch.device_time import Timer, devices, is_any_on_device
from stepwell.integrations.torch.fast_path import fast_path
from stepwell.integrations.torch.observer import active
from stepwell.integrations.torch.patches import Patch, Patches
from stepwell.integrations.torch.recording import abandon_interrupted, here, leave, record
from stepwell.journal.state import state

KIND = "backward"
_tracing: Any = getattr(getattr(torch._guards, "TracingContext", None), "try_get", None)
"""Returns a context while a compiler traces a pass instead of computing it."""
ENGINE = "_engine_run_backward"
"""``Tensor.backward``, ``autograd.backward`` and ``autograd.grad`` look up this name at each call, so it
does not matter how or when they were imported."""


def _around(original: Callable[..., Any]) -> Callable[..., Any]:
    node = ai.compute.backward
    tensor = torch.Tensor

    @wraps(original)
    def run_backward(outputs: Any, *args: Any, **kwargs: Any) -> Any:
        observer = active.observer
        # While a compiler traces a pass, the tensors have other types.
        if (
            not state.enabled
            or not BACKWARD.active
            or devices.possible
            or type(outputs[0]) is not tensor
            or (observer is not None and observer.is_counting)
            or not fast_path.begin(KIND, node)
        ):
            return _run_slowly(original, outputs, args, kwargs)
        looked = None
        try:
            if observer is not None and kwargs.get("accumulate_grad"):
                looked = observer.backward_begins(outputs)
            result = original(outputs, *args, **kwargs)
        except BaseException as error:
            fast_path.drop(KIND)
            leave(node, error)
            raise
        if not fast_path.end(KIND):
            fast_path.drop(KIND)
            leave(node)
        if looked is not None and observer is not None:
            observer.backward_ends(looked)
        return result

    return run_backward


def _run_slowly(
    original: Callable[..., Any], outputs: Any, args: tuple[Any, ...], kwargs: dict[str, Any]
) -> Any:
    inside = here.inside
    is_traced = _tracing is not None and _tracing() is not None
    # Of nested passes, as with activation checkpointing, only the outer one is recorded.
    is_inside = KIND in inside or (fast_path.site == KIND and fast_path.is_own)
    if not state.enabled or not BACKWARD.active or is_inside or is_traced:
        return original(outputs, *args, **kwargs)
    inside.add(KIND)
    fast_path.slow_calls.append(KIND)
    try:
        if here.calls or fast_path.entry:
            abandon_interrupted()
        observer = active.observer
        looked = counting = None
        if observer is not None and kwargs.get("accumulate_grad"):
            looked = observer.backward_begins(outputs)
            counting = observer.count_backward()
        with counting or nullcontext():
            result = record(ai.compute.backward, None, _timed(original), (outputs, *args), kwargs)
        if looked is not None and observer is not None:
            observer.backward_ends(looked)
        return result
    finally:
        inside.discard(KIND)
        # In a process that was forked inside the pass, the list is empty.
        if KIND in fast_path.slow_calls:
            fast_path.slow_calls.remove(KIND)


def _timed(original: Callable[..., Any]) -> Callable[..., Any]:
    """Return the function, with its time on a device recorded if there can be one."""
    if not devices.possible:
        return original

    def timed(outputs: Any, *args: Any, **kwargs: Any) -> Any:
        timer = Timer.start(KIND) if _is_on_device(outputs) else None
        result = original(outputs, *args, **kwargs)
        if timer is not None:
            timer.stop()
        return result

    return timed


def _is_on_device(outputs: Any) -> bool:
    return is_any_on_device(each for each in outputs if isinstance(each, torch.Tensor))


def _find() -> Iterator[Patch]:
    if hasattr(torch.autograd, ENGINE):
        yield Patch(torch.autograd, ENGINE, _around)
    else:
        yield Patch(torch.autograd, "backward", _around)
        yield Patch(torch.autograd, "grad", _around)


BACKWARD = Patches(_find)
