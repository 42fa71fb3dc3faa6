"""Forward: a pair of hooks on the model."""

from __future__ import annotations

from collections.abc import Callable
from contextlib import nullcontext
from typing import Any

import torch

from stepwell.annotations.tree import ai
from stepwell.diagnostics.hooks import remove_hook
from stepwell.integrations.torch.device_time import Timer, devices, is_any_on_device
from stepwell.integrations.torch.following import following
from stepwell.integrations.torch.marks import Marks
from stepwell.integrations.torch.quick import quick
from stepwell.integrations.torch.recording import WHERE, Site, begin_call, end_call
from stepwell.journal.errors import report
from stepwell.journal.state import state

FORWARD = "forward"
_compiler: Any = torch.compiler
_is_traced = torch.compiler.is_dynamo_compiling
MODELS = Marks()


def unwrapped(model: torch.nn.Module) -> torch.nn.Module:
    """Return the module that ``torch.compile``, ``DistributedDataParallel`` or the like has wrapped."""
    while True:
        inner = getattr(model, "_orig_mod", None)
        if inner is None and type(model).__module__.startswith("torch.nn.parallel"):
            inner = getattr(model, "module", None)
        if not isinstance(inner, torch.nn.Module):
            return model
        model = inner


def annotate_model(model: torch.nn.Module) -> Callable[[], None]:
    """Record the forward of this model; what is returned ends that."""
    return MODELS.add(model, _hook)


def _hook(model: torch.nn.Module) -> Callable[[Any], None]:
    from stepwell.integrations.torch.compilation import wrap_compiled_call

    site = Site(FORWARD, ai.compute.forward, model)
    # Around what other hooks do.
    before = model.register_forward_pre_hook(Before(site), prepend=True)
    after = model.register_forward_hook(After(site), always_call=True)
    unwrap = wrap_compiled_call(model)

    def unhook(model: Any) -> None:
        remove_hook(before)
        remove_hook(after)
        if model is not None:
            unwrap(model)

    return unhook


class _Hook:
    """A hook that becomes one that does nothing wherever the model is copied or pickled to.

    There it needs no stepwell to be loaded. Traced by a compiler it does nothing either: what
    compiled the model is recorded around it.
    """

    def __init__(self, site: Site) -> None:
        self.site = site

    def __reduce__(self) -> tuple[Any, ...]:
        return getattr, (nullcontext(), "__exit__")


class Before(_Hook):
    """Is called when a forward begins."""

    def __call__(self, module: torch.nn.Module, args: Any) -> None:
        if _is_traced() or not state.enabled or _compiler._is_compiling_flag:
            return
        site = self.site
        try:
            follower = following.follower
            if (
                follower is not None
                and (follower.minds_forward or not module.training)
                and follower.forward_begins(module, args) is False
            ):
                return
            if not quick.begin(site, site.node):
                begin_call(site, devices.possible and is_any_on_device(module.parameters()))
            elif devices.possible and is_any_on_device(module.parameters()):
                quick.timer = Timer.start(FORWARD)
        except Exception as error:
            report(WHERE, error)


class After(_Hook):
    """Is called when a forward has ended, well or not."""

    def __call__(self, module: torch.nn.Module, args: Any, output: Any) -> None:
        if _is_traced() or _compiler._is_compiling_flag:
            return
        try:
            # Of one that has failed there is no output.
            if output is None or not quick.end(self.site):
                end_call(self.site)
            follower = following.follower
            if follower is not None and follower.minds_forward:
                follower.forward_ends(module)
        except Exception as error:
            report(WHERE, error)
