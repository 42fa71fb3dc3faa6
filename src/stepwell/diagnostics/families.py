"""Families of metrics: functions that are registered with a decorator.

    @family("my_metric")
    def my_metric(context):
        return {"value": 42}

Every collection then has a field ``my_metric``, and the run has a metric ``my_metric/value``.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, TypeVar, overload

from stepwell._core.errors import StepwellError
from stepwell._core.values import shown
from stepwell.diagnostics.config import TelemetryConfig

if TYPE_CHECKING:
    from stepwell.diagnostics.context import CollectionContext

RESERVED = ("batch_idx", "epoch", "timestamp", "step", "attempt", "model", "nonfinite")
"""Fields that every record has."""
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

F = TypeVar("F", bound="Callable[[CollectionContext], Any]")


@dataclass(frozen=True)
class MetricFamily:
    """A named function that measures something at each collection.

    Attributes:
        name: the field of the record.
        function: returns a dict, a number, or None for no result. Scalar tensors are fetched together with
            those of the other families.
        switch: the field of the configuration that enables it; None: it is always on.
        metrics: prefix of the names of its metrics.
    """

    name: str
    function: Callable[[CollectionContext], Any]
    switch: str | None
    metrics: str

    @property
    def is_own(self) -> bool:
        """Whether it comes with stepwell."""
        return self.name in BUILT_IN


_families: dict[str, MetricFamily] = {}
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
    """Decorator: call this function of a ``CollectionContext`` at every collection, and record the result.

    Args:
        name: the field of the record; by default the name of the function.
        switch: the field of ``TelemetryConfig`` that enables it; by default it is always on.
        metrics: prefix of the names of its metrics; by default the name.
    """
    if not isinstance(name, str):
        return family(name.__name__)(name)

    def register(function: F) -> F:
        _check(name, function)
        if switch is not None and switch not in TelemetryConfig.__dataclass_fields__:
            raise StepwellError(
                f"family {name!r}: switch must be a field of TelemetryConfig, got {switch!r}"
            )
        _families[name] = MetricFamily(name, function, switch, metrics or name)
        return function

    return register


def families() -> tuple[MetricFamily, ...]:
    """Return all families, in the order of the fields of a record. Your own come last."""
    ours = [_families[name] for name in BUILT_IN if name in _families]
    return (*ours, *(it for name, it in _families.items() if name not in BUILT_IN))


def remove_family(name: str) -> None:
    """Remove a family from all further collections."""
    if _families.pop(name, None) is None:
        raise StepwellError(f"no family {name!r}; valid names: {', '.join(_families)}")


def _check(name: str, function: Any) -> None:
    if not callable(function):
        raise StepwellError(f"family {name!r} must be a function, got {shown(function)}")
    if not name or "/" in name or "." in name or name in RESERVED:
        raise StepwellError(
            "the name of a family must be a string without slashes and dots, and none of "
            f"{', '.join(RESERVED)}; got {name!r}"
        )
    there = _families.get(name)
    is_taken = there is not None and _home(there.function) != _home(function)
    if is_taken or (name in BUILT_IN and not _home(function)[0].startswith(_OWN)):
        raise StepwellError(f"there is already a family {name!r}: choose another name")


def _home(function: Any) -> tuple[str, Any]:
    """Return where a function is defined, so that running a notebook cell again replaces its family."""
    return str(function.__module__), getattr(function, "__qualname__", function)
