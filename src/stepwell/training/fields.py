"""Attribute classes: each field declared once, with its kind and meaning.

From the declaration come validation, a typed property and the reference in the documentation.
"""

from __future__ import annotations

import math
from typing import Any, ClassVar, Generic, TypeVar, overload

from stepwell.journal.errors import StepwellError
from stepwell.telemetry.attributes import Attributes
from stepwell.training.values import Kind, nearest, refuse

T = TypeVar("T")
A = TypeVar("A", bound="TypedAttributes")


class Field(Generic[T]):
    """A declared attribute. On an instance it is the value, on the class the declaration."""

    def __init__(self, kind: Kind[Any], meaning: str, is_required: bool) -> None:
        self.kind = kind
        self.meaning = meaning
        self.is_required = is_required
        self.name = ""

    def __set_name__(self, owner: type, name: str) -> None:
        self.name = name

    @overload
    def __get__(self, instance: None, owner: type) -> Field[T]: ...
    @overload
    def __get__(self, instance: Attributes, owner: type) -> T: ...
    def __get__(self, instance: Attributes | None, owner: type) -> Field[T] | T:
        if instance is None:
            return self
        value: Any = instance.get(self.name)
        if value is None and self.is_required:
            raise StepwellError(f"{owner.__name__}.{self.name} has no value")
        found: T = value
        return found

    def __set__(self, instance: Attributes, value: T) -> None:
        instance.add(self.name, value)

    def take(self, value: Any) -> Any:
        """The value in its plain form, None when it counts as absent; ValueError when it is wrong."""
        if value is None:
            return None
        plain = self.kind.take(value)
        return None if type(plain) is float and not math.isfinite(plain) else plain


def required(kind: Kind[T], meaning: str) -> Field[T]:
    """Declare an attribute that is always there."""
    return Field(kind, meaning, is_required=True)


def optional(kind: Kind[T], meaning: str) -> Field[T | None]:
    """Declare an attribute that is absent when its source is."""
    return Field(kind, meaning, is_required=False)


class TypedAttributes(Attributes):
    """Attributes of which some are declared. Own ones can be added; declared ones are held to their kind."""

    __slots__ = ()
    FIELDS: ClassVar[dict[str, Field[Any]]] = {}
    """The declared attributes by name, in the order of declaration."""
    _REQUIRED: ClassVar[frozenset[str]] = frozenset()

    def __init_subclass__(cls) -> None:
        declared = {name: it for name, it in vars(cls).items() if isinstance(it, Field)}
        cls.FIELDS = {**cls.FIELDS, **declared}
        cls._REQUIRED = frozenset(name for name, it in cls.FIELDS.items() if it.is_required)

    @classmethod
    def create(cls: type[A], **values: Any) -> A:
        """The attributes out of these values; None means absent.

        A StepwellError names every value that is missing, wrong or unknown.
        """
        new = cls()
        kept = new._values
        problems: list[str] = []
        for name, value in values.items():
            field = cls.FIELDS.get(name)
            if field is None:
                problems.append(f"{name} is no attribute of it; {nearest(name, cls.FIELDS)}")
                continue
            try:
                plain = field.take(value)
            except ValueError as error:
                problems.append(f"{name} {error}")
                continue
            if plain is not None:
                kept[name] = plain
        problems += _missing(cls._REQUIRED, values, kept)
        if problems:
            refuse(problems, cls.__name__)
        return new

    @classmethod
    def adopt(cls: type[A], values: dict[str, Any]) -> A:
        """The attributes out of a dict that is theirs from now on, of which nothing is None or not finite."""
        new = object.__new__(cls)
        new._values = values
        return new

    def add(self, name: str, value: Any) -> Attributes:
        """Set one value; returns itself. A declared attribute is held to its kind."""
        field = self.FIELDS.get(name) if isinstance(name, str) else None
        if field is None:
            return super().add(name, value)
        try:
            plain = field.take(value)
        except ValueError as error:
            raise StepwellError(f"{type(self).__name__}: {name} {error}") from None
        if plain is None:
            self._values.pop(name, None)
        else:
            self._values[name] = plain
        return self


def _missing(names: frozenset[str], given: dict[str, Any], kept: dict[str, Any]) -> list[str]:
    if names <= kept.keys():
        return []
    # What was given but refused has been named already.
    return [f"{name} is missing" for name in sorted(names - kept.keys()) if given.get(name) is None]
