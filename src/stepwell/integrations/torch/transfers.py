"""Copies between host and device: ``to``, ``cuda`` and ``cpu`` of tensors and modules.

Only calls that change the device are recorded, with size and direction. Moving a module is one record for
all of its tensors.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from functools import partial, update_wrapper, wraps
from types import MethodType
from typing import Any

import torch

from stepwell._core.errors import report
from stepwell.annotations.tree import ai
from stepwell.integrations.torch.patches import Patch, Patches
from stepwell.integrations.torch.recording import WHERE, here, record_outermost
from stepwell.journal.state import state

TRANSFER = "transfer"
HOST = "cpu"
NOWHERE = "meta"
"""Tensors there have no data."""


class TensorMethod:
    """A replaced tensor method that compares and hashes equal to the original.

    ``__torch_function__`` of tensor subclasses gets the function that is called, and looks it up by equality.
    """

    def __init__(self, name: str, original: Any) -> None:
        self._original = original
        self._target = _TARGETS[name]
        update_wrapper(self, original)

    def __get__(self, tensor: Any, kind: Any = None) -> Any:
        return self if tensor is None else MethodType(self, tensor)

    def __call__(self, *args: Any, **kwargs: Any) -> Any:
        if not state.enabled or not TRANSFERS.active or TRANSFER in here.inside:
            return self._original(*args, **kwargs)
        node_args = self._describe(args, kwargs)
        if node_args is None:
            return self._original(*args, **kwargs)
        node = ai.device.transfer
        return record_outermost(TRANSFER, node, node_args, self._original, args, kwargs)

    def _describe(self, args: tuple[Any, ...], kwargs: dict[str, Any]) -> dict[str, Any] | None:
        try:
            target = self._target(args, kwargs)
            if target is None or torch.compiler.is_compiling():
                return None
            tensor: torch.Tensor = args[0]
            if not changes(tensor.device, target):
                return None
            return _describe(tensor.nbytes, tensor.device, target, kwargs)
        except Exception as error:
            report(WHERE, error)
            return None

    def __eq__(self, other: object) -> bool:
        return other is self or other == self._original

    def __hash__(self) -> int:
        return hash(self._original)

    def __reduce__(self) -> Any:
        return getattr, (torch.Tensor, self._original.__name__)


def _target_of_to(args: tuple[Any, ...], kwargs: dict[str, Any]) -> torch.device | None:
    """Return the device of a call ``to(…)``, None if the call is about something else."""
    where = kwargs.get("device")
    if where is None:
        where = args[1] if len(args) > 1 else kwargs.get("other")
    if isinstance(where, torch.device):
        return where
    if isinstance(where, torch.Tensor):
        return where.device
    return _device(where) if isinstance(where, str | int) else None


def _target_of_cuda(args: tuple[Any, ...], kwargs: dict[str, Any]) -> torch.device | None:
    where = args[1] if len(args) > 1 else kwargs.get("device")
    return _device("cuda" if where is None else where)


def _target_of_cpu(args: tuple[Any, ...], kwargs: dict[str, Any]) -> torch.device:
    return torch.device(HOST)


def _device(where: Any) -> torch.device | None:
    try:
        return torch.device(where)
    except (RuntimeError, TypeError):
        # The call itself raises the error.
        return None


_TARGETS: dict[str, Callable[[tuple[Any, ...], dict[str, Any]], torch.device | None]] = {
    "to": _target_of_to,
    "cuda": _target_of_cuda,
    "cpu": _target_of_cpu,
}


def changes(source: torch.device, target: torch.device) -> bool:
    """Return whether data moves from one device to another."""
    if NOWHERE in (source.type, target.type):
        return False
    if source.type != target.type:
        return True
    if source.type == HOST or source.index is None:
        return False
    index = target.index
    if index is None:
        index = torch.cuda.current_device() if source.type == "cuda" else source.index
    return bool(source.index != index)


def _describe(
    size: int, source: torch.device, target: torch.device, kwargs: dict[str, Any]
) -> dict[str, Any]:
    if source.type == HOST:
        direction = "host_to_device"
    else:
        direction = "device_to_host" if target.type == HOST else "device_to_device"
    node_args = {"bytes": size, "direction": direction}
    if kwargs.get("non_blocking") is True:
        # The span then measures the request, not the copy.
        node_args["non_blocking"] = True
    return node_args


def _module_method(name: str) -> Callable[[Callable[..., Any]], Callable[..., Any]]:
    target_of = _TARGETS[name]

    def around(original: Callable[..., Any]) -> Callable[..., Any]:
        @wraps(original)
        def move(self: torch.nn.Module, *args: Any, **kwargs: Any) -> Any:
            node_args = None
            if state.enabled and TRANSFERS.active and TRANSFER not in here.inside:
                node_args = _describe_module(self, target_of, (self, *args), kwargs)
            if node_args is None:
                return original(self, *args, **kwargs)
            node = ai.device.transfer
            return record_outermost(TRANSFER, node, node_args, original, (self, *args), kwargs)

        return move

    return around


def _describe_module(
    module: torch.nn.Module, target_of: Any, args: tuple[Any, ...], kwargs: dict[str, Any]
) -> dict[str, Any] | None:
    try:
        target = target_of(args, kwargs)
        if target is None:
            return None
        tensors = [*module.parameters(), *module.buffers()]
        moved = [tensor for tensor in tensors if changes(tensor.device, target)]
        if not moved:
            return None
        return _describe(sum(t.nbytes for t in moved), moved[0].device, target, kwargs)
    except Exception as error:
        report(WHERE, error)
        return None


def _find() -> Iterator[Patch]:
    for name in _TARGETS:
        yield Patch(torch.Tensor, name, partial(TensorMethod, name))
        yield Patch(torch.nn.Module, name, _module_method(name))


TRANSFERS = Patches(_find)
