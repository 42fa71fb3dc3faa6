"""Evaluation of a model in the middle of training, without side effects.

Everything that a forward pass may change is restored, also if it raises: the training mode of modules,
buffers (running statistics, also of modules that update them in evaluation mode), attributes that modules set
on themselves, which parameters are frozen, and the state of all random number generators.
"""

from __future__ import annotations

import contextlib
import random
import sys
from collections.abc import Callable, Iterator
from typing import TYPE_CHECKING, Any

import torch

if TYPE_CHECKING:
    from torch import nn


@contextlib.contextmanager
def isolated_eval(
    model: nn.Module, device: torch.device, dtype: str | None = None
) -> Iterator[None]:
    """Context manager: the model is in evaluation mode and can be called without side effects.

    Gradients are off. Autocast is unchanged, or on with this ``dtype``; its cache of weights is not used.
    """
    with contextlib.ExitStack() as stack:
        stack.enter_context(preserved_rng())
        stack.enter_context(torch.no_grad())
        stack.enter_context(_autocast(device, dtype))
        stack.callback(_save_requires_grad(model))
        for module in model.modules():
            stack.callback(_save_module(module))
        _swap_buffers(model)
        for module in model.modules():
            # Not eval(): some modules override it, for example to merge weights.
            module.training = False
        yield


@contextlib.contextmanager
def preserved_rng() -> Iterator[None]:
    """Context manager: restore the state of all random number generators at the end."""
    python = random.getstate()
    numpy = sys.modules.get("numpy")
    of_numpy = numpy.random.get_state() if numpy is not None else None
    of_torch = torch.get_rng_state()
    cuda: Any = torch.cuda
    of_cuda = cuda.get_rng_state_all() if cuda.is_initialized() else None
    of_mps = torch.mps.get_rng_state() if torch.backends.mps.is_available() else None
    others = _other_accelerator()
    of_others = None if others is None else others.get_rng_state_all()
    try:
        yield
    finally:
        random.setstate(python)
        if numpy is not None:
            numpy.random.set_state(of_numpy)
        torch.set_rng_state(of_torch)
        if of_cuda is not None:
            cuda.set_rng_state_all(of_cuda)
        if of_mps is not None:
            torch.mps.set_rng_state(of_mps)
        if others is not None:
            others.set_rng_state_all(of_others)


def _other_accelerator() -> Any:
    """Return the module of an initialized accelerator other than CUDA and MPS, such as ``torch.xpu``."""
    for kind in ("xpu", torch._C._get_privateuse1_backend_name()):
        module: Any = getattr(torch, kind, None)
        is_initialized = getattr(module, "is_initialized", None)
        if is_initialized is not None and is_initialized():
            return module if hasattr(module, "get_rng_state_all") else None
    return None


def unwrapped(model: Any) -> Any:
    """Return the model without wrappers that would communicate with other ranks, or compile again."""
    wrappers = (torch.nn.parallel.DistributedDataParallel, torch.nn.DataParallel)
    while True:
        if isinstance(model, wrappers):
            model = model.module
        elif hasattr(model, "_orig_mod"):
            model = model._orig_mod
        else:
            return model


def _autocast(device: torch.device, dtype: str | None) -> contextlib.AbstractContextManager[Any]:
    kind = device.type
    if not torch.amp.is_autocast_available(kind):
        return contextlib.nullcontext()
    if dtype is None:
        enabled = torch.is_autocast_enabled(kind)
        chosen = torch.get_autocast_dtype(kind)
    else:
        enabled = dtype != "float32"
        chosen = getattr(torch, dtype) if enabled else torch.get_autocast_dtype(kind)
    return torch.autocast(kind, dtype=chosen, enabled=enabled, cache_enabled=False)


def _save_requires_grad(model: nn.Module) -> Callable[[], None]:
    """Return a function that restores which parameters are trained."""
    learns = [(parameter, parameter.requires_grad) for parameter in model.parameters()]

    def restore() -> None:
        for parameter, before in learns:
            if parameter.requires_grad is not before:
                parameter.requires_grad_(before)

    return restore


def _save_module(module: nn.Module) -> Callable[[], None]:
    """Return a function that restores a module's own attributes and buffers."""
    if isinstance(module, torch.jit.ScriptModule):
        return _save_scripted(module)
    attributes = dict(module.__dict__)
    buffers = dict(module._buffers)

    def restore() -> None:
        own = module.__dict__
        for name in own.keys() - attributes.keys():
            del own[name]
        for name, value in attributes.items():
            if own.get(name, own) is not value:
                own[name] = value
        module._buffers.clear()
        module._buffers.update(buffers)

    return restore


def _save_scripted(module: Any) -> Callable[[], None]:
    training = module.training
    buffers = [(tensor, tensor.clone()) for tensor in module.buffers(recurse=False)]

    def restore() -> None:
        module.training = training
        for tensor, before in buffers:
            if not torch.equal(tensor, before):
                tensor.copy_(before)

    return restore


def _swap_buffers(model: nn.Module) -> None:
    """Replace the buffers by copies: the autograd graph of training may need the originals unchanged."""
    copies: dict[int, torch.Tensor] = {}
    for module in model.modules():
        if isinstance(module, torch.jit.ScriptModule):
            continue
        for name, tensor in module._buffers.items():
            if tensor is not None:
                copies.setdefault(id(tensor), tensor.clone())
                module._buffers[name] = copies[id(tensor)]
