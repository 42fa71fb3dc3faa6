"""Attributes: named values of a span or an event."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from typing import Any, TypeVar

from stepwell.journal.errors import StepwellError, misuse
from stepwell.journal.values import shown

T = TypeVar("T")


class Attributes(Mapping[str, Any]):
    """A set of named values. Any value is kept; those that JSON has no word for are described."""

    __slots__ = ("_values",)

    def __init__(self, values: Mapping[str, Any] | None = None) -> None:
        self._values: dict[str, Any] = {}
        for name, value in (values or {}).items():
            self.add(name, value)

    def add(self, name: str, value: Any) -> Attributes:
        """Set one value; returns itself, so that calls can be chained."""
        if not isinstance(name, str) or not name:
            misuse(
                "attribute name", f"an attribute is named {shown(name)}: write a non-empty string"
            )
            name = shown(name)
        self._values[name] = value
        return self

    def add_attributes(self, other: Mapping[str, Any]) -> Attributes:
        """Set all values of another set."""
        for name, value in other.items():
            self.add(name, value)
        return self

    def copy(self) -> Attributes:
        """The same values in a set of its own."""
        twin = object.__new__(type(self))
        twin._values = dict(self._values)
        return twin

    @classmethod
    def merge(cls, first: Mapping[str, Any], second: Mapping[str, Any]) -> Attributes:
        """The values of both; where they differ the second's."""
        return Attributes(first).add_attributes(second)

    # Values of a certain type

    def get_bool_value(self, name: str) -> bool | None:
        """The value, None when there is none; StepwellError when it is no bool."""
        return self._typed(name, bool, "a bool")

    def get_int_value(self, name: str) -> int | None:
        """The value, None when there is none; StepwellError when it is no int."""
        return self._typed(name, int, "an int")

    def get_float_value(self, name: str) -> float | None:
        """The value, None when there is none; StepwellError when it is no number."""
        value = self._values.get(name)
        if isinstance(value, int) and not isinstance(value, bool):
            return float(value)
        return self._typed(name, float, "a float")

    def get_str_value(self, name: str) -> str | None:
        """The value, None when there is none; StepwellError when it is no str."""
        return self._typed(name, str, "a str")

    def _typed(self, name: str, kind: type[T], wanted: str) -> T | None:
        value = self._values.get(name)
        # A bool is an int to Python, but not to a person.
        is_bool = isinstance(value, bool)
        if value is None or (isinstance(value, kind) and is_bool == (kind is bool)):
            return value
        raise StepwellError(f"attribute {name} is {value!r}, which is not {wanted}")

    # As a mapping, and as JSON

    def __getitem__(self, name: str) -> Any:
        return self._values[name]

    def __iter__(self) -> Iterator[str]:
        return iter(self._values)

    def __len__(self) -> int:
        return len(self._values)

    def __eq__(self, other: object) -> bool:
        if isinstance(other, Attributes):
            return self._values == other._values
        return isinstance(other, Mapping) and self._values == dict(other)

    __hash__ = None  # type: ignore[assignment]

    def to_json(self) -> dict[str, Any]:
        """The values as a plain dict."""
        return dict(self._values)

    @classmethod
    def from_json(cls, values: Mapping[str, Any]) -> Attributes:
        """The attributes that ``to_json`` gave."""
        return cls(values)

    def __repr__(self) -> str:
        return f"{type(self).__name__}({self._values!r})"
