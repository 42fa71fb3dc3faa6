"""``dft_fn``: records functions, blocks and loops under a category."""

from __future__ import annotations

import inspect
import sys
from collections.abc import Callable, Iterable, Mapping
from types import MemberDescriptorType
from typing import Any, TypeVar

from stepwell._core import clock
from stepwell._core.errors import StepwellError, never_raises, report
from stepwell._core.values import encode, number, shown
from stepwell.annotations.loop import annotated
from stepwell.compat.dftracer.log import (
    DFTRACER_ENABLE,
    EntityRelation,
    EntityStore,
    plain_values,
    write_metadata,
    write_span,
)
from stepwell.journal.decorator import Entry, decorate
from stepwell.journal.span import AttributedSpan, NamedSpan, withdraw
from stepwell.journal.state import current_lane, state
from stepwell.telemetry.events import name_of

F = TypeVar("F", bound=Callable[..., Any])
T = TypeVar("T")

RECORDED_ARGUMENTS = ("epoch", "step", "image_idx", "image_size")
"""Arguments of decorated calls that are recorded."""
KEYWORD_ONLY = sys.maxsize
"""Stands for the position of an argument that can only be given by name."""


class dft_fn:
    """A category and a name under which functions, blocks and loops are recorded.

    Use it in a ``with`` statement, as a decorator (``log``) or around a loop (``iter``). The default name is
    that of the function that creates it. Arguments set here are recorded with every span; arguments of a
    decorated call are recorded with that call.
    """

    def __init__(
        self,
        cat: str,
        name: str | None = None,
        epoch: int | None = None,
        step: int | None = None,
        image_idx: int | None = None,
        image_size: float | None = None,
        enable: bool = True,
    ) -> None:
        self._category = name_of(cat)
        self.is_enabled = bool(enable) and DFTRACER_ENABLE
        self._spans: dict[int, _Named] = {}
        self._attributes: dict[str, Any] = {}
        self._own = self._named(name or sys._getframe(1).f_code.co_name)
        self._began = clock.now()
        self._is_reset = False
        self.update(epoch, step, image_idx, image_size)

    def _named(self, name: str) -> _Named:
        span = _Named(name_of(name), self._category)
        span.owner = self
        return self._spans.setdefault(span.name_word, span)

    # Blocks

    def __enter__(self) -> dft_fn:
        if self.is_enabled:
            self._is_reset = False
            use = AttributedSpan() if self._attributes else self._own
            if isinstance(use, AttributedSpan):
                use.name_word, use.attributes = self._own.name_word, self._attributes
            use.__enter__()
        return self

    def __exit__(self, *exception: Any) -> None:
        if self._is_open():
            self._own.__exit__(*exception)
        elif self._is_reset:
            self.flush()

    def flush(self) -> dft_fn:
        """End the open block. If none is open, record the time since ``reset`` or since creation."""
        self._is_reset = False
        if self._is_open():
            self._own.__exit__(None, None, None)
        elif self.is_enabled:
            write_span(self._own.name_word, self._began, clock.now(), self._attributes)
        return self

    def reset(self) -> dft_fn:
        """Restart the measurement; the time until now is not recorded."""
        if self._is_open():
            withdraw(self._own)
        self._began = clock.now()
        self._is_reset = True
        return self

    def _is_open(self) -> bool:
        lane = current_lane() if self.is_enabled and state.enabled else None
        return lane is not None and bool(lane.innermost((self._own.name_word,)))

    # Arguments

    def update(
        self,
        epoch: int | None = None,
        step: int | None = None,
        image_idx: int | None = None,
        image_size: float | None = None,
        args: Mapping[str, Any] | None = None,
        **more: Any,
    ) -> dft_fn:
        """Set arguments for later records and for the innermost open span."""
        if args is not None and not isinstance(args, Mapping):
            raise StepwellError(f'args must be a dict such as {{"size": 4}}, got {shown(args)}')
        given = {"epoch": epoch, "step": step, "image_idx": image_idx, "image_size": image_size}
        changes = {k: v for k, v in plain_values(given, args, more).items() if v is not None}
        if changes and self.is_enabled:
            # A new dict: another thread may be reading the old one.
            self._attributes = self._attributes | changes
            self._set_on_open(changes)
        return self

    @never_raises
    def _set_on_open(self, changes: dict[str, Any]) -> None:
        lane = current_lane() if state.enabled else None
        word = 0 if lane is None else lane.innermost(self._spans)
        if word:
            self._spans[word].set(**changes)

    # Functions

    def log(self, func: F | None = None, name: str | None = None) -> Any:
        """Record calls of a function under ``name`` (default: its qualified name). A decorator.

        The arguments ``epoch``, ``step``, ``image_idx`` and ``image_size`` of the call, or the attributes of
        ``self`` with these names, are recorded if they are numbers.
        """
        if func is None:
            return lambda function: self.log(function, name)
        inner = getattr(func, "__func__", func)
        qualified = str(getattr(inner, "__qualname__", type(inner).__name__))
        span = self._named(name or qualified)
        if not self.is_enabled:
            return func
        return decorate(span, func, _entry_of(self, span, inner))

    log_init = log
    log_static = log

    # Loops

    def iter(self, func: Iterable[T], name: str = "loop", iter_name: str = "step") -> Iterable[T]:
        """Iterate over ``func`` and record ``<name>.iter`` (the fetch) and ``<name>.yield`` (the body).

        Both have the number of the item, starting at 1, as the argument ``iter_name``.
        """
        around: Any = self._named(f"{name}.iter")
        inside: Any = self._named(f"{name}.yield")
        around.counter = inside.counter = iter_name
        return annotated(func, around, inside, iter_name)

    # Other methods of the original

    def log_metadata(self, key: str, value: Any) -> None:
        """Record a key and a value as an event."""
        if self.is_enabled:
            write_metadata(key, value)

    def relate(self, relation: EntityRelation, entity: int) -> dft_fn:
        """Do nothing: entities are not recorded."""
        return self

    def relate_entity(
        self,
        relation: EntityRelation,
        type: str,
        key: Any,
        store: EntityStore = EntityStore.MEMORY,
        uri: str = "",
    ) -> int:
        """Return 0, as the published library does: entities are not recorded."""
        return 0

    def uses(
        self, type: str, key: Any, store: EntityStore = EntityStore.MEMORY, uri: str = ""
    ) -> int:
        """Return 0, like ``relate_entity``."""
        return 0

    generates = uses

    def __reduce__(self) -> tuple[Any, ...]:
        return _restored, (self._category, self._own.name, self._attributes, self.is_enabled)


class _Named(NamedSpan):
    """A span of a ``dft_fn``. In a loop it has the arguments of the ``dft_fn``, except the item number."""

    __slots__ = ("counter", "owner")

    owner: dft_fn
    counter: str

    @property
    def is_enabled(self) -> bool:
        return self.owner.is_enabled

    @property
    def attributes(self) -> dict[str, Any]:
        """The arguments of the ``dft_fn``, without the item number of a loop."""
        return {k: v for k, v in self.owner._attributes.items() if k != self.counter}

    def _encoded(self) -> bytes:
        return encode(self.attributes)


def _restored(cat: str, name: str, attributes: dict[str, Any], enable: bool) -> dft_fn:
    """Return an unpickled copy."""
    return dft_fn(cat, name, enable=enable).update(args=attributes)


def _entry_of(fn: dft_fn, span: NamedSpan, function: Callable[..., Any]) -> Entry:
    """Return a function that returns the span to enter for a call, with its recorded arguments.

    It runs on every call, so helper calls are inlined.
    """
    word = span.name_word
    has_self, places = _places(function)
    others = [name for name in RECORDED_ARGUMENTS if name not in [place[0] for place in places]]
    in_classes: dict[type, tuple[str, ...]] = {}

    def use_with(args: tuple[Any, ...], kwargs: dict[str, Any]) -> NamedSpan:
        if not state.enabled:
            return span
        values: dict[str, Any] = {}
        attributes: dict[str, Any] = values
        try:
            if has_self:
                owner = args[0]
                try:
                    attributes = owner.__dict__
                    names = in_classes[owner.__class__]
                except (AttributeError, KeyError):
                    names = in_classes[owner.__class__] = _names_in_class(owner.__class__)
                for name in names:
                    _add(values, name, getattr(owner, name, None))
                for name in others:
                    if name in attributes:
                        value = attributes[name]
                        if type(value) is int:
                            values[name] = value
                        else:
                            _add(values, name, value)
            for name, position, default in places:
                value = args[position] if position < len(args) else kwargs.get(name, default)
                if type(value) is int:
                    values[name] = value
                else:
                    _add(values, name, attributes.get(name) if value is None else value)
        except IndexError:
            return span  # The call itself will raise: ``self`` is missing.
        except Exception as error:
            report("dft_fn", error)
        if fn._attributes:
            values = fn._attributes | values
        elif not values:
            return span
        use: AttributedSpan = AttributedSpan()
        use.name_word = word
        use.attributes = values
        return use

    def entry(args: tuple[Any, ...], kwargs: dict[str, Any]) -> NamedSpan:
        return use_with(args, kwargs) if fn._attributes else span

    def entry_of_method(args: tuple[Any, ...], kwargs: dict[str, Any]) -> NamedSpan:
        try:
            owner = args[0]
            attributes = owner.__dict__
            # The common case: the object has none of these attributes.
            if (
                in_classes[owner.__class__]
                or "step" in attributes
                or "epoch" in attributes
                or "image_idx" in attributes
                or "image_size" in attributes
                or fn._attributes
            ):
                return use_with(args, kwargs)
        except (AttributeError, KeyError, IndexError):
            return use_with(args, kwargs)
        return span

    if places:
        return use_with
    return entry_of_method if has_self else entry


def _places(function: Callable[..., Any]) -> tuple[bool, list[tuple[str, int, Any]]]:
    """Return whether a function has ``self``, and name, position and default of the recorded arguments."""
    try:
        parameters = list(inspect.signature(function).parameters.values())
    except (TypeError, ValueError):  # written in C
        return False, []
    places: list[tuple[str, int, Any]] = []
    for position, parameter in enumerate(parameters):
        if parameter.kind is parameter.VAR_KEYWORD:
            named = [name for name, _, _ in places]
            places += [
                (name, KEYWORD_ONLY, None) for name in RECORDED_ARGUMENTS if name not in named
            ]
        elif (
            parameter.name in RECORDED_ARGUMENTS and parameter.kind is not parameter.VAR_POSITIONAL
        ):
            default = None if parameter.default is parameter.empty else parameter.default
            at = KEYWORD_ONLY if parameter.kind is parameter.KEYWORD_ONLY else position
            places.append((parameter.name, at, default))
    return bool(parameters) and parameters[0].name == "self", places


def _names_in_class(kind: type) -> tuple[str, ...]:
    """Return the recorded names that a class defines as properties, slots or numbers."""
    kinds = (property, MemberDescriptorType, int, float)
    return tuple(
        name for name in RECORDED_ARGUMENTS if isinstance(getattr(kind, name, None), kinds)
    )


def _add(values: dict[str, Any], name: str, value: Any) -> None:
    """Add a value if it is a number; whole numbers as int."""
    plain = value if value is None or type(value) is int else number(value)
    if plain is not None:
        values[name] = int(plain) if isinstance(plain, float) and plain.is_integer() else plain
