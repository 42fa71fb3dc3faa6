"""Models that are compiled: hooks are traced away inside, so they are recorded from the outside.

A compiled copy (``torch.compile(model)``) takes hooks of its own; a model compiled in place
(``model.compile()``) is called through an attribute, which is wrapped.
"""

from __future__ import annotations

import functools
from collections.abc import Callable, Iterator
from typing import Any

import torch

from stepwell.annotations.tree import ai
from stepwell.integrations.torch.patches import Patch, Patches, looks_like
from stepwell.journal.state import state

ATTRIBUTE = "_compiled_call_impl"


def _compile(original: Callable[..., Any]) -> Callable[..., Any]:
    """``torch.compile``: what it makes of an annotated model is annotated for as long as it lives."""

    @looks_like(original)
    def compile(model: Any = None, *args: Any, **kwargs: Any) -> Any:
        made = original(model, *args, **kwargs)
        if COMPILATION.active and isinstance(made, torch.nn.Module) and made is not model:
            from stepwell.integrations.torch.models import MODELS, annotate_model

            if model in MODELS:
                annotate_model(made)
        return made

    return compile


def _compile_in_place(original: Callable[..., Any]) -> Callable[..., Any]:
    """``Module.compile``."""

    @looks_like(original)
    def compile(self: torch.nn.Module, *args: Any, **kwargs: Any) -> Any:
        result = original(self, *args, **kwargs)
        from stepwell.integrations.torch.models import MODELS

        if COMPILATION.active and self in MODELS:
            wrap_compiled_call(self)
        return result

    return compile


def wrap_compiled_call(model: torch.nn.Module) -> Callable[[Any], None]:
    """Record the forward of a model that is compiled in place; what is returned ends that."""
    call = vars(model).get(ATTRIBUTE)
    if call is not None and not hasattr(call, "recorded"):
        setattr(model, ATTRIBUTE, _recorded(model, call))
    return _unwrap


def _unwrap(model: torch.nn.Module) -> None:
    call: Any = vars(model).get(ATTRIBUTE)
    if hasattr(call, "recorded"):
        setattr(model, ATTRIBUTE, call.recorded)


def _recorded(model: torch.nn.Module, call: Callable[..., Any]) -> Callable[..., Any]:
    from stepwell.integrations.torch.models import FORWARD, After, Before
    from stepwell.integrations.torch.recording import Site

    site = Site(FORWARD, ai.compute.forward, model)
    before, after = Before(site), After(site)

    @functools.wraps(call)
    def recorded(*args: Any, **kwargs: Any) -> Any:
        if not state.enabled:
            return call(*args, **kwargs)
        # The compiled call holds on to the model as well.
        before(model, args)
        output = None
        try:
            output = call(*args, **kwargs)
        finally:
            after(model, args, output)
        return output

    recorded.recorded = call  # type: ignore[attr-defined]
    return recorded


def _find(patches: Patches) -> Iterator[Patch]:
    yield Patch(torch, "compile", _compile)
    yield Patch(torch.nn.Module, "compile", _compile_in_place)


COMPILATION = Patches(_find)
