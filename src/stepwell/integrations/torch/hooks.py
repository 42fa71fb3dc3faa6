"""Forward passes and optimizer steps: pairs of hooks on models and optimizers.

Hooks of a compiled model are traced away by the compiler, so these models are recorded from outside. A
compiled copy (``torch.compile(model)``) takes hooks of its own. A model compiled in place
(``model.compile()``) is called through an attribute, which is wrapped.
"""

from __future__ import annotations

from collections.abc import Callable
from contextlib import nullcontext
from functools import wraps
from typing import Any

import torch

from stepwell._core.errors import StepwellError, report
from stepwell.annotations.tree import ai
from stepwell.diagnostics.hooks import add_step_hook, remove_hook
from stepwell.integrations.torch import instrumentation
from stepwell.integrations.torch.device_time import Timer, devices, is_any_on_device
from stepwell.integrations.torch.fast_path import fast_path
from stepwell.integrations.torch.instrumentation import OPTIMIZERS, CountedStep, InstrumentedObjects
from stepwell.integrations.torch.observer import active
from stepwell.integrations.torch.patches import Patch, Patches
from stepwell.integrations.torch.recording import WHERE, Site, begin_call, end_call
from stepwell.journal.metrics import context
from stepwell.journal.state import state

FORWARD = "forward"
STEP = "step"
COMPILED_CALL = "_compiled_call_impl"
_compiler: Any = torch.compiler
_is_traced = torch.compiler.is_dynamo_compiling
MODELS = InstrumentedObjects()


class _Hook:
    """A hook that does nothing in a copied or unpickled model or optimizer.

    The copy does not need stepwell. The hook also does nothing while a compiler traces it: the compiled
    model is recorded from outside.
    """

    def __init__(self, site: Site) -> None:
        self.site = site

    def __reduce__(self) -> tuple[Any, ...]:
        return getattr, (nullcontext(), "__exit__")


# Models


def annotate_model(model: torch.nn.Module) -> Callable[[], None]:
    """Record the forward passes of this model. Return a function that stops it."""
    return MODELS.add(model, _hook_model)


def _hook_model(model: torch.nn.Module) -> Callable[[Any], None]:
    site = Site(FORWARD, ai.compute.forward, model)
    # The outermost hooks: the span includes the work of other hooks.
    before = model.register_forward_pre_hook(BeforeForward(site), prepend=True)
    after = model.register_forward_hook(AfterForward(site), always_call=True)
    unwrap = wrap_compiled_call(model)

    def unhook(model: Any) -> None:
        remove_hook(before)
        remove_hook(after)
        if model is not None:
            unwrap(model)

    return unhook


class BeforeForward(_Hook):
    """Called when a forward pass begins."""

    def __call__(self, module: torch.nn.Module, args: Any) -> None:
        if _is_traced() or not state.enabled or _compiler._is_compiling_flag:
            return
        site = self.site
        try:
            observer = active.observer
            if (
                observer is not None
                and (observer.wants_forward or not module.training)
                and observer.forward_begins(module, args) is False
            ):
                return
            if not fast_path.begin(site, site.node):
                begin_call(site, devices.possible and is_any_on_device(module.parameters()))
            elif devices.possible and is_any_on_device(module.parameters()):
                fast_path.timer = Timer.start(FORWARD)
        except Exception as error:
            report(WHERE, error)


class AfterForward(_Hook):
    """Called when a forward pass has ended, also with an exception."""

    def __call__(self, module: torch.nn.Module, args: Any, output: Any) -> None:
        if _is_traced() or _compiler._is_compiling_flag:
            return
        try:
            # A pass that failed has no output.
            if output is None or not fast_path.end(self.site):
                end_call(self.site)
            observer = active.observer
            if observer is not None and observer.wants_forward:
                observer.forward_ends(module)
        except Exception as error:
            report(WHERE, error)


# Optimizers


def unwrapped_optimizer(given: Any) -> Any:
    """Return the optimizer that makes the steps, without wrappers that take no hooks.

    Accelerate's wrapper, for example, is called for every batch, the optimizer inside only to make a step.
    """
    while not hasattr(given, "_optimizer_step_pre_hooks"):
        inner = getattr(given, "optimizer", None)
        if not isinstance(inner, torch.optim.Optimizer):
            break
        given = inner
    return given


def annotate_optimizer(optimizer: torch.optim.Optimizer) -> Callable[[], None]:
    """Record the steps of this optimizer. Return a function that stops it."""
    return OPTIMIZERS.add(unwrapped_optimizer(optimizer), _hook_optimizer)


def _hook_optimizer(optimizer: torch.optim.Optimizer) -> Callable[[Any], None]:
    site = Site(STEP, ai.compute.step, optimizer)
    before = add_step_hook(optimizer, BeforeStep(site))
    after = add_step_hook(optimizer, AfterStep(site), after=True)

    def unhook(optimizer: Any) -> None:
        for hook in (before, after):
            if hook is not None:
                remove_hook(hook)

    if before is None or after is None:
        unhook(optimizer)
        raise StepwellError(
            f"{type(optimizer).__name__} is in the middle of a step: "
            "call annotate() or watch() outside its step()"
        )

    return unhook


class BeforeStep(_Hook):
    """Called when an optimizer step begins."""

    def __call__(self, optimizer: torch.optim.Optimizer, args: Any, kwargs: Any) -> None:
        if _is_traced() or not state.enabled or _compiler._is_compiling_flag:
            return
        try:
            observer = active.observer
            if observer is not None:
                observer.step_begins(optimizer)
            site = self.site
            on_device = devices.possible and is_any_on_device(optimizer.param_groups[0]["params"])
            if not fast_path.begin(site, site.node):
                begin_call(site, on_device)
            elif on_device:
                fast_path.timer = Timer.start(STEP)
        except Exception as error:
            report(WHERE, error)


class AfterStep(_Hook):
    """Called when an optimizer step has ended without an exception."""

    def __call__(self, optimizer: torch.optim.Optimizer, args: Any, kwargs: Any) -> None:
        if _is_traced() or _compiler._is_compiling_flag:
            return
        try:
            if not fast_path.end(self.site) and not end_call(self.site):
                return
            if type(context.step) is CountedStep and OPTIMIZERS.is_first(optimizer):
                instrumentation.advance_step()
            observer = active.observer
            if observer is not None:
                observer.step_ends(optimizer)
        except Exception as error:
            report(WHERE, error)


# Compiled models


def _compile(original: Callable[..., Any]) -> Callable[..., Any]:
    """Replace ``torch.compile``: the compiled copy of an annotated model is annotated while it lives."""

    @wraps(original)
    def compile(model: Any = None, *args: Any, **kwargs: Any) -> Any:
        compiled = original(model, *args, **kwargs)
        is_copy = isinstance(compiled, torch.nn.Module) and compiled is not model
        if COMPILATION.active and is_copy and model in MODELS:
            annotate_model(compiled)
        return compiled

    return compile


def _compile_in_place(original: Callable[..., Any]) -> Callable[..., Any]:
    """Replace ``Module.compile``."""

    @wraps(original)
    def compile(self: torch.nn.Module, *args: Any, **kwargs: Any) -> Any:
        result = original(self, *args, **kwargs)
        if COMPILATION.active and self in MODELS:
            wrap_compiled_call(self)
        return result

    return compile


def wrap_compiled_call(model: torch.nn.Module) -> Callable[[Any], None]:
    """Record the forward passes of a model compiled in place. Return a function that stops it."""
    call = vars(model).get(COMPILED_CALL)
    if call is not None and not hasattr(call, "recorded"):
        setattr(model, COMPILED_CALL, _recorded(model, call))
    return _unwrap


def _unwrap(model: torch.nn.Module) -> None:
    call: Any = vars(model).get(COMPILED_CALL)
    if hasattr(call, "recorded"):
        setattr(model, COMPILED_CALL, call.recorded)


def _recorded(model: torch.nn.Module, call: Callable[..., Any]) -> Callable[..., Any]:
    site = Site(FORWARD, ai.compute.forward, model)
    before, after = BeforeForward(site), AfterForward(site)

    @wraps(call)
    def recorded(*args: Any, **kwargs: Any) -> Any:
        if not state.enabled:
            return call(*args, **kwargs)
        # This closure keeps the model alive; so does the compiled call.
        before(model, args)
        output = None
        try:
            output = call(*args, **kwargs)
        finally:
            after(model, args, output)
        return output

    recorded.recorded = call  # type: ignore[attr-defined]
    return recorded


COMPILATION = Patches(
    lambda: [
        Patch(torch, "compile", _compile),
        Patch(torch.nn.Module, "compile", _compile_in_place),
    ]
)
