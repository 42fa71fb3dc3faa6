"""Watching a model: the norms of its gradients and weights, by layer, become metrics.

They are taken at the call, and from then on inside of every so many steps of the optimizer that updates
the model, where gradients are those that are used: clipped, unscaled, not yet zeroed. Who calls it
again and again for the same model chooses the moments, and no others are added.
"""

from __future__ import annotations

import weakref
from collections.abc import Callable
from typing import Any

from stepwell.journal.errors import report, warn_once
from stepwell.loggers.items.making import CannotKeep, Item

EVERY = 100
MOST_LAYERS = 40
"""A model of more layers is watched by its largest parts instead."""

Log = Callable[[dict[str, float]], None]


class ModelStatistics:
    """Watches one model until it is closed. Holds on to the model no longer than others do."""

    def __init__(self, model: Any, identifier: str, log: Log, every: Any, groups: Any) -> None:
        import torch

        from stepwell.diagnostics.hooks import add_step_hook
        from stepwell.diagnostics.sharding import is_sharded

        if not isinstance(model, torch.nn.Module):
            raise CannotKeep(f"a torch.nn.Module is needed, not {type(model).__name__}")
        if is_sharded(model):
            raise CannotKeep(
                "the model is spread over several workers: stepwell.diagnostics.TrainingTelemetry "
                "measures such ones, on all workers together"
            )
        if isinstance(every, bool) or not isinstance(every, int) or every < 1:
            raise CannotKeep(f"every is {every!r}: write a number of optimizer steps, from 1 on")
        self.identifier = identifier
        self.every = every
        self._model = weakref.ref(model)
        self._log = log
        self._groups = _group_rule(model) if groups is None else groups
        self._own = {id(parameter) for parameter in model.parameters()}
        self._optimizers: weakref.WeakKeyDictionary[Any, bool] = weakref.WeakKeyDictionary()
        self._steps = 0
        self._hook: Any = add_step_hook(None, self._before_step)
        if self._hook is None:
            warn_once(
                "watched model",
                "log(…, %r, kind='watch') was called inside a step of an optimizer: the norms are "
                "logged at this call only. Call it outside the step",
                identifier,
            )

    def watches(self, model: Any, identifier: str) -> bool:
        """Whether it is this model, by this name."""
        return self._model() is model and self.identifier == identifier

    def described(self) -> Item:
        """What is kept of the watch itself."""
        from stepwell.diagnostics.groups import grouped
        from stepwell.diagnostics.no_trace import bare

        model = self._model()
        names = [] if model is None else [*grouped(model, None, self._groups)]
        value = {
            "model": type(bare(model)).__qualname__,
            "parameters": 0 if model is None else sum(p.numel() for p in model.parameters()),
            "every_optimizer_steps": self.every,
            "metrics": [f"{self.identifier}/gradient_norm", f"{self.identifier}/weight_norm"],
            "groups": names,
        }
        return Item(self.identifier, value=value)

    def take(self) -> None:
        """Log the norms as they are now; those of gradients only where there are some."""
        from stepwell.diagnostics.groups import OVERALL, grouped
        from stepwell.diagnostics.norms import fetch, l2_by_group

        model = self._model()
        if model is None:
            self.close()
            return
        groups = grouped(model, None, self._groups)
        parameters = {name: [one for _, one in members] for name, members in groups.items()}
        found = {
            f"{self.identifier}/weight_norm/{name}": norm
            for name, norm in l2_by_group(parameters).items()
        }
        gradients = {name: [one.grad for one in members] for name, members in parameters.items()}
        if any(gradient is not None for gradient in gradients[OVERALL]):
            found |= {
                f"{self.identifier}/gradient_norm/{name}": norm
                for name, norm in l2_by_group(gradients, parameters).items()
                if any(gradient is not None for gradient in gradients[name])
            }
        self._log(fetch(found))

    def leave_to_caller(self) -> None:
        """Take nothing any more but when it is asked for."""
        from stepwell.diagnostics.hooks import remove_hook

        hook, self._hook = self._hook, None
        if hook is not None:
            remove_hook(hook)

    close = leave_to_caller

    def _before_step(self, optimizer: Any, args: Any, kwargs: Any) -> None:
        try:
            known = self._optimizers.get(optimizer)
            if known is None:
                known = self._optimizers[optimizer] = self._updates(optimizer)
            if not known:
                return
            self._steps += 1
            if self._steps % self.every == 0:
                self.take()
        except Exception as error:
            self.leave_to_caller()
            report("watched model", error)

    def _updates(self, optimizer: Any) -> bool:
        groups = optimizer.param_groups
        return any(id(one) in self._own for group in groups for one in group["params"])


def _group_rule(model: Any) -> Any:
    """By layer, unless there are very many of them; then by the model's own parts."""
    from stepwell.diagnostics.groups import grouped

    if len(grouped(model, None, "layers")) <= MOST_LAYERS:
        return "layers"
    return _part


def _part(name: str, parameter: object = None) -> str:
    return name.partition(".")[0]
