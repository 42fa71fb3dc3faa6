"""Floating point operations of one forward and backward pass, by PyTorch's own formulas.

They are counted once, on a pass that training makes anyway, by watching which operators run: nothing is
computed again, and no number changes. What is compiled is left alone, since looking at it would make it run
uncompiled.
"""

from __future__ import annotations

import os
import sys
from typing import Any

import torch
from torch.utils._python_dispatch import TorchDispatchMode, _get_current_dispatch_mode
from torch.utils.flop_counter import flop_registry

from stepwell.integrations.torch.peaks import find_peak
from stepwell.journal.errors import warn_once
from stepwell.journal.settings import warn_setting

_cuda: Any = torch.cuda

PEAK = "STEPWELL_PEAK_FLOPS"


class Counter(TorchDispatchMode):  # type: ignore[no-untyped-call]
    """While entered, adds up the operations of all operators that PyTorch has a formula for."""

    def __init__(self) -> None:
        super().__init__()  # type: ignore[no-untyped-call]
        self.total = 0

    def __torch_dispatch__(
        self, func: Any, types: Any, args: tuple[Any, ...] = (), kwargs: Any = None
    ) -> Any:
        kwargs = kwargs or {}
        # Of a tensor that is spread over ranks this is the whole, as its shape says.
        result = func(*args, **kwargs)
        formula = flop_registry.get(getattr(func, "_overloadpacket", None))
        if formula is not None:
            try:
                self.total += int(formula(*args, **kwargs, out_val=result))
            except Exception as error:
                warn_once("flops", "operations of %s are not counted: %s", func, error)
        return result


class PassCount:
    """Counts one pass: its forward calls from hook to hook, its backward passes as a whole."""

    def __init__(self) -> None:
        self._counter = Counter()
        self._depth = 0

    @property
    def total(self) -> int:
        """What was counted so far."""
        return self._counter.total

    @property
    def counter(self) -> Counter:
        """What is entered around a backward pass."""
        return self._counter

    def begin_forward(self) -> None:
        """A forward call begins, perhaps inside of another."""
        self._depth += 1
        if self._depth == 1:
            self._counter.__enter__()  # type: ignore[no-untyped-call]

    def end_forward(self) -> None:
        """A forward call has ended."""
        if self._depth:
            self._depth -= 1
            if not self._depth:
                self._leave()

    def abort(self) -> None:
        """Leave, wherever it is: an interrupt passes no hook."""
        if self._depth:
            self._depth = 0
            self._leave()

    def _leave(self) -> None:
        if _get_current_dispatch_mode() is self._counter:
            self._counter.__exit__(None, None, None)  # type: ignore[no-untyped-call]


def can_count(model: torch.nn.Module) -> bool:
    """Whether a pass of this model can be counted without changing what it does."""
    if _get_current_dispatch_mode() is not None or torch._C._get_tracing_state():
        return False
    if _cuda.is_initialized() and _cuda.is_current_stream_capturing():
        return False
    return not is_compiled(model)


def is_compiled(model: torch.nn.Module) -> bool:
    """Whether the model, a part of it, or anything else in this process has been compiled."""
    for part in model.modules():
        if hasattr(part, "_orig_mod") or part._compiled_call_impl is not None:
            # The attribute may be ours, or what compiles: either way it is compiled.
            return True
    return was_anything_compiled()


def was_anything_compiled() -> bool:
    """Whether a function was compiled in this process, which a model may call."""
    dynamo: Any = sys.modules.get("torch._dynamo.utils")
    return dynamo is not None and bool(dynamo.counters.get("frames"))


def peak_flops(given: float | None, model: torch.nn.Module | None) -> float | None:
    """Floating point operations a second that the model's device can do; None when not known.

    As given, else from ``STEPWELL_PEAK_FLOPS``, else by the name of the GPU.
    """
    if given is not None:
        return given
    text = os.environ.get(PEAK, "").strip()
    if text:
        try:
            told = float(text)
            if 0 < told < float("inf"):
                return told
        except ValueError:
            pass
        warn_setting(PEAK, text, "operations a second, such as 989e12")
    if model is None or not _cuda.is_initialized():
        return None
    parameter = next(model.parameters(), None)
    if parameter is None or not parameter.is_cuda:
        return None
    return find_peak(_cuda.get_device_name(parameter.device))
