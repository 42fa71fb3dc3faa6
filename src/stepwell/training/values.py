"""``CheckPointStrategy`` and its argument checks."""

from __future__ import annotations

from enum import Enum
from typing import Any

from stepwell._core.checks import TEXT, Kind


class CheckPointStrategy(str, Enum):
    """Whether training waits for a checkpoint to be written."""

    SYNC = "sync"
    ASYNC = "async"

    def __str__(self) -> str:
        return str(self.value)

    def __format__(self, spec: str) -> str:
        return format(str(self.value), spec)


def _strategy(value: Any) -> CheckPointStrategy:
    return CheckPointStrategy(TEXT.convert(value).lower())


STRATEGY = Kind[CheckPointStrategy](
    "CheckPointStrategy.SYNC or CheckPointStrategy.ASYNC",
    lambda value: type(value) is CheckPointStrategy,
    _strategy,
)


STRATEGY_NAME = Kind[str](
    "'sync' or 'async'",
    lambda value: type(value) is str and value in ("sync", "async"),
    lambda value: str(_strategy(value)),
)
