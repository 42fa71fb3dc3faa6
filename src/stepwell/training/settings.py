"""Declaration of configurations: each field with its default, kind and meaning.

Plain values are checked when a configuration is created, results of functions at each call.
"""

from __future__ import annotations

import functools
from collections.abc import Callable, Iterable, Mapping
from dataclasses import MISSING, dataclass, field, fields
from typing import Any, Generic, Protocol, TypeVar, overload

from stepwell._core.checks import Kind, nearest, refuse
from stepwell._core.errors import StepwellError
from stepwell._core.values import shown, text_of

T = TypeVar("T")
C = TypeVar("C")

OR_FN = "_or_fn"


@dataclass(frozen=True)
class Setting:
    """The kind and meaning of a configuration field."""

    kind: Kind[Any]
    meaning: str
    takes_function: bool = False
    is_optional: bool = False

    def take(self, value: Any) -> Any:
        """Return the value to store. Raise ValueError if it is wrong."""
        if self.takes_function and callable(value):
            return value
        try:
            return self.kind.take(value)
        except ValueError as error:
            hint = " (a function that returns one is also allowed)" if self.takes_function else ""
            raise ValueError(f"{error}{hint}") from None

    def accept(self, given: Any) -> Any:
        """Return the checked result of a function. Raise ValueError if it is wrong."""
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
    metadata = {"setting": Setting(kind, meaning, takes_function, is_optional=default is None)}
    declared: Any
    if factory is not None:
        declared = field(default_factory=factory, metadata=metadata)
    else:
        declared = field(default=default, metadata=metadata)
    result: T = declared
    return result


def value_or_fn(default: T, kind: Kind[Any], meaning: str) -> T:
    """Declare a field that takes a value, or a function without arguments that returns one."""
    return setting(default, kind, meaning, takes_function=True)


class Evaluated(Generic[T]):
    """A property with the value of a field. If the field holds a function, it is called at each access."""

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
        result: T = evaluate(self.field, settings_of(owner)[self.field], value)
        return result


def evaluate(name: str, setting: Setting, value: Any) -> Any:
    """Return the value of a field, or the result of its function. Raise StepwellError if that fails."""
    if not callable(value):
        return value
    try:
        given = value()
    except Exception as error:
        raise StepwellError(f"{name}() raised {type(error).__name__}: {text_of(error)}") from error
    try:
        return setting.accept(given)
    except ValueError as error:
        raise StepwellError(f"{name}() {error}") from None


def settings_of(config: Any) -> dict[str, Setting]:
    """Return the declared fields of a configuration class, by name."""
    settings = _settings.get(config)
    if settings is None:
        declared = [it for it in fields(config) if "setting" in it.metadata]
        settings = _settings[config] = {it.name: it.metadata["setting"] for it in declared}
    return settings


_settings: dict[Any, dict[str, Setting]] = {}


def changed_fields(config: Any) -> dict[str, Any]:
    """Return the fields of a configuration that differ from their default."""
    changed: dict[str, Any] = {}
    for it in fields(config):
        default = it.default if it.default_factory is MISSING else it.default_factory()
        value = getattr(config, it.name)
        if "setting" in it.metadata and is_different(value, default):
            changed[it.name] = value
    return changed


def is_different(first: Any, second: Any) -> bool:
    """Return whether two values differ. Arrays, which cannot be compared, differ unless identical."""
    try:
        return bool(first != second)
    except Exception:
        return first is not second


class Taker(Protocol):
    """A declared field: its ``take`` returns the value to store, or raises ValueError."""

    def take(self, value: Any) -> Any: ...


def check(
    names: Mapping[str, Taker], given: Mapping[str, Any], noun: str = "a field"
) -> tuple[dict[str, Any], list[str]]:
    """Return the checked values without those that are None, and the problems with the others."""
    kept: dict[str, Any] = {}
    problems: list[str] = []
    for name, value in given.items():
        declared = names.get(name)
        if declared is None:
            problems.append(f"{name} is not {noun}; {nearest(name, names)}")
        elif value is not None:
            try:
                taken = declared.take(value)
            except ValueError as error:
                problems.append(f"{name} {error}")
                continue
            if taken is not None:
                kept[name] = taken
    return kept, problems


def checked(config: type[C]) -> type[C]:
    """Decorate a dataclass so that one StepwellError names all unknown or wrong fields."""
    plain_init: Any = config.__init__

    @functools.wraps(plain_init)
    def init(self: Any, *positional: Any, **given: Any) -> None:
        kept, problems = check(settings_of(config), given)
        if positional:
            values = ", ".join(map(shown, positional))
            problems.insert(0, f"fields must be given as name=value, got {values} without a name")
        refuse(problems, config.__name__)
        plain_init(self, **kept)

    config.__init__ = init  # type: ignore[method-assign]
    return config


def as_json(config: Any, names: Iterable[str]) -> dict[str, Any]:
    """Return these fields as JSON values, by their names without ``_or_fn``, without absent ones."""
    from stepwell._core.values import plain_mapping

    settings = settings_of(type(config))
    values: dict[str, Any] = {}
    for name in names:
        value = getattr(config, name)
        try:
            value = evaluate(name, settings[name], value)
        except StepwellError:
            value = f"<{getattr(value, '__name__', type(value).__name__)}>"
        if value is not None:
            values[name.removesuffix(OR_FN)] = value
    return plain_mapping(values)
