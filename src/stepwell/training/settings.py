"""How configurations are declared: each field with its default, its kind and its meaning.

Plain values are checked when a configuration is made; what a function gives, each time it is asked.
"""

from __future__ import annotations

import functools
from collections.abc import Callable, Iterable, Mapping
from dataclasses import MISSING, dataclass, field, fields
from typing import Any, Generic, TypeVar, overload

from stepwell.journal.errors import StepwellError
from stepwell.journal.values import shown, text_of
from stepwell.training.values import Kind, nearest, refuse

T = TypeVar("T")
C = TypeVar("C")

OR_FN = "_or_fn"


@dataclass(frozen=True)
class Setting:
    """What a field of a configuration may hold."""

    kind: Kind[Any]
    meaning: str
    takes_function: bool = False
    is_optional: bool = False

    def take(self, value: Any) -> Any:
        """The value as it is kept; ValueError says what is wrong with it."""
        if self.takes_function and callable(value):
            return value
        try:
            return self.kind.take(value)
        except ValueError as error:
            hint = ", or a function that gives one" if self.takes_function else ""
            raise ValueError(f"{error}{hint}") from None

    def accept(self, given: Any) -> Any:
        """What a function gave, as it is kept; ValueError says what is wrong with it."""
        return None if given is None and self.is_optional else self.kind.take(given)


def setting(
    default: T,
    kind: Kind[Any],
    meaning: str,
    *,
    takes_function: bool = False,
    factory: Callable[[], T] | None = None,
) -> T:
    """Declare a field of a configuration."""
    about = Setting(kind, meaning, takes_function, is_optional=default is None)
    metadata = {"setting": about}
    declared: Any
    if factory is not None:
        declared = field(default_factory=factory, metadata=metadata)
    else:
        declared = field(default=default, metadata=metadata)
    given: T = declared
    return given


def value_or_fn(default: T, kind: Kind[Any], meaning: str) -> T:
    """Declare a field that takes a value or a function without arguments that gives one."""
    return setting(default, kind, meaning, takes_function=True)


class Evaluated(Generic[T]):
    """The value of a field that may hold a function, which is then called at each access."""

    def __init__(self, of: str = "") -> None:
        self.field = of

    def __set_name__(self, owner: type, name: str) -> None:
        self.field = self.field or name + OR_FN

    @overload
    def __get__(self, instance: None, owner: type) -> Evaluated[T]: ...
    @overload
    def __get__(self, instance: object, owner: type) -> T: ...
    def __get__(self, instance: object | None, owner: type) -> Evaluated[T] | T:
        if instance is None:
            return self
        value: Any = getattr(instance, self.field)
        if not callable(value):
            plain: T = value
            return plain
        found: T = evaluate(self.field, settings_of(owner)[self.field], value)
        return found


def evaluate(name: str, about: Setting, value: Any) -> Any:
    """What a field holds, or what the function in it gives now. StepwellError says what went wrong."""
    if not callable(value):
        return value
    try:
        given = value()
    except Exception as error:
        raise StepwellError(f"{name}() raised {type(error).__name__}: {text_of(error)}") from error
    try:
        return about.accept(given)
    except ValueError as error:
        raise StepwellError(f"{name}() {error}") from None


def settings_of(config: Any) -> dict[str, Setting]:
    """The declared fields of a configuration class."""
    found = _settings.get(config)
    if found is None:
        declared = [it for it in fields(config) if "setting" in it.metadata]
        found = _settings[config] = {it.name: it.metadata["setting"] for it in declared}
    return found


_settings: dict[Any, dict[str, Setting]] = {}


def spoken(config: Any) -> dict[str, Any]:
    """The fields of a configuration that say something: those that differ from their default."""
    found: dict[str, Any] = {}
    for it in fields(config):
        default = it.default if it.default_factory is MISSING else it.default_factory()
        value = getattr(config, it.name)
        if "setting" in it.metadata and differ(value, default):
            found[it.name] = value
    return found


def differ(first: Any, second: Any) -> bool:
    """Whether two values differ; arrays, which cannot tell, do unless they are one object."""
    try:
        return bool(first != second)
    except Exception:
        return first is not second


def check(
    names: Mapping[str, Setting], given: Mapping[str, Any]
) -> tuple[dict[str, Any], list[str]]:
    """The values as they are kept, without those that are None, and what is wrong with the others."""
    kept: dict[str, Any] = {}
    problems: list[str] = []
    for name, value in given.items():
        about = names.get(name)
        if about is None:
            problems.append(f"{name} is no field of it; {nearest(name, names)}")
        elif value is not None:
            try:
                kept[name] = about.take(value)
            except ValueError as error:
                problems.append(f"{name} {error}")
    return kept, problems


def checked(config: type[C]) -> type[C]:
    """Decorator of a dataclass: one StepwellError names all fields that are unknown or wrong."""
    plain_init: Any = config.__init__

    @functools.wraps(plain_init)
    def init(self: Any, *positional: Any, **given: Any) -> None:
        kept, problems = check(settings_of(config), given)
        if positional:
            shown_ones = ", ".join(map(shown, positional))
            problems.insert(0, f"{shown_ones} has no name: write its fields as name=value")
        refuse(problems, config.__name__)
        plain_init(self, **kept)

    config.__init__ = init  # type: ignore[method-assign]
    return config


def as_json(config: Any, names: Iterable[str]) -> dict[str, Any]:
    """These fields as JSON has them, under their names without ``_or_fn``; absent ones are left out."""
    from stepwell.journal.careful import plain_mapping

    known = settings_of(type(config))
    found: dict[str, Any] = {}
    for name in names:
        value = getattr(config, name)
        try:
            value = evaluate(name, known[name], value)
        except StepwellError:
            value = f"<{getattr(value, '__name__', type(value).__name__)}>"
        if value is not None:
            found[name.removesuffix(OR_FN)] = value
    return plain_mapping(found)
