"""``kind="watch"``: logs the norms of a model's gradients and weights, by layer, as metrics.

The norms are computed in the call, and then in every n-th step of the model's optimizer, when the gradients
are those that the optimizer uses: clipped, unscaled, not yet zeroed. If ``log`` is called again for the same
model, the caller chooses the moments, and the optimizer's steps are no longer used.
"""

from __future__ import annotations

import weakref
from collections.abc import Callable
from typing import Any

from stepwell._core.errors import report, warn_once
from stepwell.loggers.items.converters import CannotKeep, ConvertedItem

EVERY = 100
MOST_LAYERS = 40
"""A model with more layers is grouped by its top-level modules."""

Log = Callable[[dict[str, float]], None]


class ModelStatistics:
    """Watches one model until it is closed. It has only a weak reference to the model."""

    def __init__(self, model: Any, identifier: str, log: Log, every: Any, groups: Any) -> None:
        import torch

        from stepwell.diagnostics.hooks import add_step_hook
        from stepwell.diagnostics.sharding import is_sharded

        if not isinstance(model, torch.nn.Module):
            raise CannotKeep(f"the model must be a torch.nn.Module, got {type(model).__name__}")
        if is_sharded(model):
            raise CannotKeep(
                "the model is sharded over several workers. Use stepwell.diagnostics.TrainingTelemetry, "
                "which measures it on all workers together"
            )
        if isinstance(every, bool) or not isinstance(every, int) or every < 1:
            raise CannotKeep(f"every must be a positive number of optimizer steps, got {every!r}")
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
        """Return whether it watches this model with this name."""
        return self._model() is model and self.identifier == identifier

    def description(self) -> ConvertedItem:
        """Return the item that describes which norms are logged."""
        from stepwell.diagnostics.groups import grouped
        from stepwell.diagnostics.isolation import unwrapped

        model = self._model()
        names = [] if model is None else [*grouped(model, None, self._groups)]
        value = {
            "model": type(unwrapped(model)).__qualname__,
            "parameters": 0 if model is None else sum(p.numel() for p in model.parameters()),
            "every_optimizer_steps": self.every,
            "metrics": [f"{self.identifier}/gradient_norm", f"{self.identifier}/weight_norm"],
            "groups": names,
        }
        return ConvertedItem(self.identifier, value=value)

    def take(self) -> None:
        """Log the current norms; those of gradients only if there are gradients."""
        from stepwell.diagnostics.groups import OVERALL, grouped
        from stepwell.diagnostics.norms import fetch, l2_by_group

        model = self._model()
        if model is None:
            self.close()
            return
        groups = grouped(model, None, self._groups)
        parameters = {name: [each for _, each in members] for name, members in groups.items()}
        values = {
            f"{self.identifier}/weight_norm/{name}": norm
            for name, norm in l2_by_group(parameters).items()
        }
        gradients = {name: [each.grad for each in members] for name, members in parameters.items()}
        if any(gradient is not None for gradient in gradients[OVERALL]):
            values |= {
                f"{self.identifier}/gradient_norm/{name}": norm
                for name, norm in l2_by_group(gradients, parameters).items()
                if any(gradient is not None for gradient in gradients[name])
            }
        self._log(fetch(values))

    def stop_hook(self) -> None:
        """Compute norms only in ``take()`` from now on."""
        from stepwell.diagnostics.hooks import remove_hook

        hook, self._hook = self._hook, None
        if hook is not None:
            remove_hook(hook)

    close = stop_hook

    def _before_step(self, optimizer: Any, args: Any, kwargs: Any) -> None:
        try:
            is_own = self._optimizers.get(optimizer)
            if is_own is None:
                is_own = self._optimizers[optimizer] = self._updates(optimizer)
            if not is_own:
                return
            self._steps += 1
            if self._steps % self.every == 0:
                self.take()
        except Exception as error:
            self.stop_hook()
            report("watched model", error)

    def _updates(self, optimizer: Any) -> bool:
        groups = optimizer.param_groups
        return any(id(each) in self._own for group in groups for each in group["params"])


def _group_rule(model: Any) -> Any:
    """Group by layer; by the model's top-level modules if there are very many layers."""
    from stepwell.diagnostics.groups import grouped

    if len(grouped(model, None, "layers")) <= MOST_LAYERS:
        return "layers"
    return _part


def _part(name: str, parameter: object = None) -> str:
    return name.partition(".")[0]
