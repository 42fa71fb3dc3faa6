"""The parameters of requests, checked. Every number has a smallest and a largest value."""

from __future__ import annotations

import math
from collections.abc import Sequence

from starlette.datastructures import QueryParams

from stepwell._core.errors import StepwellError

LONGEST = 500
MOST = 64
"""Longest text, and largest number of values of one parameter."""
FURTHEST = float(1 << 62)


class Parameters:
    """The query of one request."""

    def __init__(self, query: QueryParams) -> None:
        self._query = query

    def text(self, name: str, default: str | None = None) -> str | None:
        """Return a text, the default if it is not given."""
        value = self._query.get(name)
        if value is None or value == "":
            return default
        if len(value) > LONGEST:
            raise StepwellError(f"{name} must have at most {LONGEST} characters, got {len(value)}")
        return value

    def texts(self, name: str, most: int = MOST) -> list[str]:
        """Return all values of a parameter that may be repeated."""
        values = self._query.getlist(name)
        if len(values) > most:
            raise StepwellError(f"{name} may be given {most} times at most, got {len(values)}")
        if any(len(value) > LONGEST for value in values):
            raise StepwellError(f"{name} must have at most {LONGEST} characters")
        return values

    def choice(self, name: str, choices: Sequence[str]) -> str:
        """Return one of the choices, by default the first."""
        value = self.text(name) or choices[0]
        if value not in choices:
            raise StepwellError(f"{name} must be one of {', '.join(choices)}, got {value!r}")
        return value

    def count(self, name: str, default: int, least: int, most: int) -> int:
        """Return a whole number, brought into its range."""
        value = self.number(name)
        return default if value is None else round(max(least, min(most, value)))

    def whole(self, name: str) -> int | None:
        """Return a whole number, None if it is not given."""
        value = self.number(name)
        return None if value is None else round(value)

    def number(self, name: str) -> float | None:
        """Return a number, None if it is not given."""
        text = self.text(name)
        if text is None:
            return None
        try:
            value = float(text)
        except ValueError:
            raise StepwellError(f"{name} must be a number, got {text[:80]!r}") from None
        if not math.isfinite(value) or abs(value) > FURTHEST:
            raise StepwellError(f"{name} must be a number below 2**62, got {text[:80]!r}")
        return value

    def wholes(self, name: str) -> list[int] | None:
        """Return several whole numbers, None if none is given."""
        values = self.texts(name, most=4096)
        try:
            return [int(value) for value in values if abs(int(value)) < 1 << 31] or None
        except ValueError:
            raise StepwellError(f"{name} must be whole numbers, got {values[:3]!r}") from None
