"""The families of numbers: each is one function, registered by one decorator.

    @family("my_metric")
    def my_metric(context):
        return {"value": 42}

From then on every collection has a field ``my_metric``, and the run a metric ``my_metric/value``.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, TypeVar, overload

from stepwell.diagnostics.config import TelemetryConfig
from stepwell.journal.errors import StepwellError
from stepwell.journal.values import shown

if TYPE_CHECKING:
    from stepwell.diagnostics.context import Context

RESERVED = ("batch_idx", "epoch", "timestamp", "step", "attempt", "model", "nonfinite")
"""Fields that every record has for itself."""
BUILT_IN = (
    "gradient_norm",
    "weight_delta",
    "learning_rates",
    "holdout_logits",
    "batch_stats",
    "update_ratio",
    "weight_stats",
    "activations",
    "dead_units",
    "embeddings",
    "gradient_noise",
    "class_balance",
    "snapshot",
)
"""Families that come with stepwell, in the order of their fields."""

F = TypeVar("F", bound="Callable[[Context], Any]")


@dataclass(frozen=True)
class Family:
    """A named function that looks at a moment of training and gives numbers.

    Attributes:
        name: the field of the record.
        function: gives a dict, a number, or None for nothing this time. Scalar tensors are fetched
            together with those of the other families.
        switch: the field of the configuration that turns it on; None: it is always on.
        metrics: what the names of its metrics begin with.
    """

    name: str
    function: Callable[[Context], Any]
    switch: str | None
    metrics: str

    @property
    def is_own(self) -> bool:
        """Whether it comes with stepwell."""
        return self.name in BUILT_IN


_families: dict[str, Family] = {}
_OWN = "stepwell.diagnostics."


@overload
def family(name: F) -> F: ...
@overload
def family(
    name: str, *, switch: str | None = None, metrics: str | None = None
) -> Callable[[F], F]: ...
def family(
    name: str | F, *, switch: str | None = None, metrics: str | None = None
) -> F | Callable[[F], F]:
    """Decorator: let every collection have what this function of a ``Context`` gives.

    Args:
        name: the field of the record; else the function's own name.
        switch: the field of ``TelemetryConfig`` that turns it on; without it, it is on.
        metrics: what the names of its metrics begin with; else the name.
    """
    if not isinstance(name, str):
        return family(name.__name__)(name)

    def register(function: F) -> F:
        _check(name, function)
        if switch is not None and switch not in TelemetryConfig.__dataclass_fields__:
            raise StepwellError(f"family {name!r}: {switch!r} is no field of TelemetryConfig")
        _families[name] = Family(name, function, switch, metrics or name)
        return function

    return register


def families() -> tuple[Family, ...]:
    """All families, in the order of the fields of a record: your own come last."""
    ours = [_families[name] for name in BUILT_IN if name in _families]
    return (*ours, *(it for name, it in _families.items() if name not in BUILT_IN))


def remove_family(name: str) -> None:
    """Leave a family out from now on."""
    if _families.pop(name, None) is None:
        raise StepwellError(f"there is no family {name!r}; there are: {', '.join(_families)}")


def _check(name: str, function: Any) -> None:
    if not callable(function):
        raise StepwellError(f"family {name!r}: {shown(function)} is no function")
    if not name or "/" in name or "." in name or name in RESERVED:
        raise StepwellError(
            f"a family cannot be called {name!r}: its name is a field of the record, without "
            f"slashes or dots, and none of {', '.join(RESERVED)}"
        )
    there = _families.get(name)
    is_taken = there is not None and _home(there.function) != _home(function)
    if is_taken or (name in BUILT_IN and not _home(function)[0].startswith(_OWN)):
        raise StepwellError(f"there is a family {name!r} already: choose another name")


def _home(function: Any) -> tuple[str, Any]:
    """Where a function is defined: running a notebook's cell again replaces its family."""
    return str(function.__module__), getattr(function, "__qualname__", function)
