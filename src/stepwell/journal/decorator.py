"""Spans as decorators: each call is a span, for functions, coroutines, generators, methods and classes."""

from __future__ import annotations

import functools
import inspect
from collections.abc import AsyncIterator, Callable, Generator
from typing import Any, Protocol, TypeVar, cast

F = TypeVar("F", bound=Callable[..., Any])


class Named(Protocol):
    """A context manager with a name that can be entered repeatedly and recursively."""

    @property
    def name(self) -> str: ...

    def __enter__(self) -> Any: ...

    def __exit__(self, *error: Any) -> None: ...


Entry = Callable[[tuple[Any, ...], dict[str, Any]], Named]
"""Returns the span to enter for a call with these arguments."""


def decorate(span: Named, function: F, entry: Entry | None = None) -> F:
    """Return the function with its calls recorded as ``span``, or as the span that ``entry`` returns.

    A coroutine is timed until it has finished, a generator from its first item until its last one or until
    it is closed.
    """
    if isinstance(function, type):
        _decorate_class(span, function)
        return function
    if isinstance(function, staticmethod | classmethod):
        return cast(F, type(function)(decorate(span, function.__func__, entry)))
    if not callable(function):
        raise TypeError(
            f"a span decorates a function, not {type(function).__name__}: write "
            f'@run.span("{span.name}") above a def, or `with run.span("{span.name}"):`'
        )
    return cast(F, functools.wraps(function)(_wrapper(span, function, entry)))


def _decorate_class(span: Named, kind: type) -> None:
    """Record the creation of each object of a class; the class itself stays the same."""
    # Where only __new__ takes arguments, object.__init__ lets them pass unless somebody replaces it.
    made_by_new = _inherits(kind, "__init__") and not _inherits(kind, "__new__")
    method = "__new__" if made_by_new else "__init__"
    original = getattr(kind, method)
    made: Any = functools.wraps(original)(_wrapper(span, original))
    setattr(kind, method, staticmethod(made) if made_by_new else made)


def _inherits(kind: type, method: str) -> bool:
    """Return whether the class inherits this from ``object``."""
    return getattr(kind, method) is getattr(object, method)


def _wrapper(
    span: Named, function: Callable[..., Any], entry: Entry | None = None
) -> Callable[..., Any]:
    if inspect.iscoroutinefunction(function):

        async def call_async(*args: Any, **kwargs: Any) -> Any:
            with span if entry is None else entry(args, kwargs):
                return await function(*args, **kwargs)

        return call_async
    if inspect.isasyncgenfunction(function):

        async def iterate_async(*args: Any, **kwargs: Any) -> AsyncIterator[Any]:
            with span if entry is None else entry(args, kwargs):
                async with _closing(function(*args, **kwargs)) as items:
                    step = items.__anext__()
                    while True:
                        try:
                            item = await step
                        except StopAsyncIteration:
                            return
                        try:
                            step = items.asend((yield item))
                        except GeneratorExit:
                            raise
                        except BaseException as error:
                            step = items.athrow(error)

        return iterate_async
    if inspect.isgeneratorfunction(function):

        def iterate(*args: Any, **kwargs: Any) -> Generator[Any, Any, Any]:
            with span if entry is None else entry(args, kwargs):
                return (yield from function(*args, **kwargs))

        return iterate

    if entry is not None:

        def call_with(*args: Any, **kwargs: Any) -> Any:
            with entry(args, kwargs):
                return function(*args, **kwargs)

        return call_with

    def call(*args: Any, **kwargs: Any) -> Any:
        with span:
            return function(*args, **kwargs)

    return call


def _closing(items: Any) -> Any:
    from contextlib import aclosing

    return aclosing(items)
