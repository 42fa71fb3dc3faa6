"""``run.config`` and ``run.summary``: mappings whose changes are recorded in run.json."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, MutableMapping
from typing import Any


class RunValues(MutableMapping[str, Any]):
    """A mapping that calls ``changed`` with its content after every change.

    An ``update`` is one change. Changes inside a nested value are not noticed: set the value again.
    """

    def __init__(
        self, values: Mapping[str, Any], changed: Callable[[dict[str, Any]], object]
    ) -> None:
        self._values = dict(values)
        self._changed = changed

    def __getitem__(self, name: str) -> Any:
        return self._values[name]

    def __setitem__(self, name: str, value: Any) -> None:
        self._values[name] = value
        self._changed(dict(self._values))

    def __delitem__(self, name: str) -> None:
        del self._values[name]
        self._changed(dict(self._values))

    def __iter__(self) -> Iterator[str]:
        return iter(dict(self._values))

    def __len__(self) -> int:
        return len(self._values)

    def update(self, *values: Any, **more: Any) -> None:
        """Set values from a mapping, pairs or keywords, and record them once."""
        self._values.update(*values, **more)
        self._changed(dict(self._values))

    def __repr__(self) -> str:
        return repr(dict(self))


class RunSummary(RunValues):
    """The final values of a run: the values that were set, otherwise the last value of each metric.

    ``last`` returns the last value of a metric, None without one; ``last_of_all`` those of all metrics.
    """

    def __init__(
        self,
        changed: Callable[[dict[str, Any]], object],
        last: Callable[[str], float | None],
        last_of_all: Callable[[], Mapping[str, float]],
    ) -> None:
        super().__init__({}, changed)
        self._last = last
        self._last_of_all = last_of_all

    def __getitem__(self, name: str) -> Any:
        if name in self._values:
            return self._values[name]
        value = self._last(name)
        return self._last_of_all()[name] if value is None else value

    def __iter__(self) -> Iterator[str]:
        return iter({**self._last_of_all(), **self._values})

    def __len__(self) -> int:
        return len({**self._last_of_all(), **self._values})
