"""Spans as decorators: a call of the function is one span, whatever kind of function it is."""

from __future__ import annotations

import functools
import inspect
from collections.abc import AsyncIterator, Callable, Generator
from typing import Any, Protocol, TypeVar, cast

F = TypeVar("F", bound=Callable[..., Any])


class Named(Protocol):
    """A context manager with a name that can be entered again, also recursively."""

    @property
    def name(self) -> str: ...

    def __enter__(self) -> Any: ...

    def __exit__(self, *error: Any) -> None: ...


def decorate(span: Named, function: F) -> F:
    """The function, its calls recorded as ``span``.

    A coroutine is timed until it has finished, a generator from its first item to its last one
    or to being closed.
    """
    if isinstance(function, type):
        # Of a class it is the making of an object that takes time; it stays the same class.
        function.__init__ = functools.wraps(function.__init__)(_wrapper(span, function.__init__))  # type: ignore[misc]
        return function
    if isinstance(function, staticmethod | classmethod):
        return cast(F, type(function)(decorate(span, function.__func__)))
    if not callable(function):
        raise TypeError(
            f"a span decorates a function, not {type(function).__name__}: write "
            f'@run.span("{span.name}") above a def, or `with run.span("{span.name}"):`'
        )
    return cast(F, functools.wraps(function)(_wrapper(span, function)))


def _wrapper(span: Named, function: Callable[..., Any]) -> Callable[..., Any]:
    if inspect.iscoroutinefunction(function):

        async def call_async(*args: Any, **kwargs: Any) -> Any:
            with span:
                return await function(*args, **kwargs)

        return call_async
    if inspect.isasyncgenfunction(function):

        async def iterate_async(*args: Any, **kwargs: Any) -> AsyncIterator[Any]:
            with span:
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
            with span:
                return (yield from function(*args, **kwargs))

        return iterate

    def call(*args: Any, **kwargs: Any) -> Any:
        with span:
            return function(*args, **kwargs)

    return call


def _closing(items: Any) -> Any:
    from contextlib import aclosing

    return aclosing(items)
