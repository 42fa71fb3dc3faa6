"""Hooks of PyTorch that are added and removed only while PyTorch does not iterate over them.

An optimizer iterates over the very dict that its step hooks are registered in. If one is added or removed
meanwhile, by a hook or by another thread, ``step()`` raises "OrderedDict mutated during iteration". A module
iterates over a copy of its hooks, but not when it has raised. Replacing a hook in the dict is harmless at any
time: a hook that cannot be removed yet is replaced by one that does nothing, and removed the next time that a
hook is added or removed here.

The frames of this thread show whether PyTorch iterates. Frames of other threads change while they are read,
and are not used: an optimizer's hook is removed by the thread that added it, and only replaced by others.
"""

from __future__ import annotations

import sys
import threading
from collections import deque
from collections.abc import Callable, Iterator
from contextlib import nullcontext
from types import FrameType
from typing import Any

from torch.nn.modules import module as _module
from torch.optim import optimizer as _optimizer

CALLING = (_module.__file__, _optimizer.__file__)
CALLERS = ("_wrapped_call_impl", "_call_impl", "wrapper")
"""The functions that call a model or an optimizer, each with that as its ``self``, and their files."""
MODULE_CALL, OPTIMIZER_STEP = CALLERS[1:]

do_nothing: Callable[..., None] = nullcontext().__exit__
"""A hook that can be pickled along with its model or optimizer, and loaded without stepwell."""
_replaced: deque[Any] = deque()
"""Handles of the hooks that were replaced and are to be removed."""


def add_step_hook(optimizer: Any, hook: Callable[..., Any], *, after: bool = False) -> Any:
    """Have a hook called before each step of an optimizer, or after it; None stands for all optimizers.

    Returns the handle for ``remove_hook``; None inside such a step or hook: then nothing is added.
    """
    when = "post" if after else "pre"
    if optimizer is None:
        hooks = getattr(_optimizer, f"_global_optimizer_{when}_hooks")
        register = getattr(_optimizer, f"register_optimizer_step_{when}_hook")
    else:
        hooks = getattr(optimizer, f"_optimizer_step_{when}_hooks", optimizer)
        register = getattr(optimizer, f"register_step_{when}_hook")
    in_use = _hooks_in_use()
    _remove_replaced(in_use)
    if any(hooks is each for each in in_use):
        return None
    handle = register(hook)
    handle.stepwell_thread = threading.get_ident()
    return handle


def remove_hook(handle: Any) -> None:
    """Have a hook called no more.

    Its entry goes at once, or the next time that the thread which added it changes hooks outside a step.
    """
    hooks = handle.hooks_dict_ref()
    if hooks is not None and handle.id in hooks:
        hooks[handle.id] = do_nothing
        _replaced.append(handle)
    _remove_replaced(_hooks_in_use())


def calls_around(frame: FrameType | None) -> Iterator[tuple[FrameType, FrameType | None]]:
    """Return the calls of models and optimizers that a frame is inside, innermost first.

    Each is the frame of one of ``CALLERS``, with the frame that it called.
    """
    called = None
    while frame is not None:
        code = frame.f_code
        if code.co_name in CALLERS and code.co_filename in CALLING:
            yield frame, called
        called, frame = frame, frame.f_back


def _hooks_in_use() -> list[Any]:
    """The dicts of hooks that PyTorch is iterating over in this thread."""
    around = calls_around(sys._getframe(1))
    return [hooks for call, called in around for hooks in _hooks_of(call, called)]


def _hooks_of(call: FrameType, called: FrameType | None) -> tuple[Any, ...]:
    caller = call.f_code.co_name
    variables = call.f_locals
    owner = variables.get("self")
    if caller == MODULE_CALL and (called is None or called.f_code.co_name != "inner"):
        # It has raised, and hooks that are always called are called.
        return getattr(owner, "_forward_hooks", None), _module._global_forward_hooks
    step = getattr(variables.get("func"), "__code__", None)
    if caller != OPTIMIZER_STEP or (called is not None and called.f_code is step):
        return ()
    when = "post" if "post_hook" in variables else "pre"
    return (
        getattr(owner, f"_optimizer_step_{when}_hooks", None),
        getattr(_optimizer, f"_global_optimizer_{when}_hooks"),
    )


def _remove_replaced(in_use: list[Any]) -> None:
    for _ in range(len(_replaced)):
        try:
            handle = _replaced.popleft()
        except IndexError:
            # Another thread was faster.
            return
        hooks = handle.hooks_dict_ref()
        here = threading.get_ident()
        # Hooks of modules have no such thread: PyTorch iterates over a copy of them.
        is_foreign = getattr(handle, "stepwell_thread", here) != here
        if hooks is not None and (is_foreign or any(hooks is each for each in in_use)):
            _replaced.append(handle)
        else:
            handle.remove()
