"""Setting up: seen by itself, or told by the user; the same thing is never recorded twice."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

from stepwell.telemetry.live import NO_SPAN, Span, find_open
from stepwell.training import calls
from stepwell.training.standard_spans import WORDS
from stepwell.vocabulary import StandardTrainingJobSpanName as Name


class Told:
    """What the user tells about setting up.

    What was told before a run of the trainer is not recorded again in that run. What is told while it is
    being recorded already is that.
    """

    def __init__(self) -> None:
        self._told: set[Name] = set()
        self._seen: dict[Name, Span] = {}

    def start(self, name: Name, msec: float | None = None) -> Span:
        """The user says that it starts."""
        self._told.add(name)
        seen = self._seen.get(name, NO_SPAN)
        return seen if seen.active else calls.start(name, msec)

    def end(self, name: Name, msec: float | None = None) -> None:
        """The user says that it ends."""
        seen = self._seen.get(name)
        if seen is None or find_open(WORDS[name]) not in (None, seen):
            calls.end(name, msec)

    def is_told(self, name: Name) -> bool:
        """Whether the user has told of it since the last run of the trainer, or is telling now."""
        return name in self._told or find_open(WORDS[name]) is not None

    @contextmanager
    def seen(self, name: Name, **attributes: Any) -> Iterator[None]:
        """Record what is seen, unless the user tells of it."""
        if self.is_told(name):
            yield
            return
        span = self._seen[name] = calls.start(name)
        if attributes:
            span.add_attributes(attributes)
        try:
            yield
        except BaseException as error:
            calls.end(name, None, error)
            raise
        if span.active:
            calls.end(name)

    def note(self, name: Name) -> None:
        """Take it as told."""
        self._told.add(name)

    def drop(self, name: Name) -> None:
        """Take it as not told: another one is not the same."""
        self._told.discard(name)

    def forget(self) -> None:
        """A run of the trainer is over: what was told belonged to it."""
        self._told.clear()
        self._seen.clear()
