"""The items of a log, and how it ended, as they stand in the events of a process."""

from __future__ import annotations

from collections import deque
from pathlib import Path
from typing import Any

from stepwell.journal.follow_document import MAX_TIME
from stepwell.journal.journal import ITEM, LOGGER, VALUE
from stepwell.journal.liveness import ENDINGS
from stepwell.journal.records import ItemRecord
from stepwell.journal.tail import Tail, parse_object

OWN_KEYS = ("item", "audience", "step", "epoch", "value", "content", "file", "media", "size")

Line = dict[str, Any]


class FollowedItems:
    """Reads events.jsonl on from an offset; the lines of one logger, or of all.

    Attributes:
        ended: how and when the logger ended, once that was read.
    """

    def __init__(self, number: int | None, cursor: dict[str, Any]) -> None:
        self._number = number
        self._tail = Tail()
        self._tail.offset = int(cursor.get("events") or 0)
        self._lines: deque[tuple[int, Line]] = deque()
        ended = cursor.get("ended")
        self.ended: tuple[str, int] | None = None if ended is None else (ended[0], ended[1])

    @property
    def offset(self) -> int:
        """Where the first line begins that was not given out."""
        return self._lines[0][0] if self._lines else self._tail.offset

    def read(self, paths: list[Path], until: int | None = None) -> None:
        """Read on, if all before was given out; no further than ``until``."""
        if self._lines:
            return
        while True:
            for place, text in self._tail.read_places(paths):
                if until is None or place < until:
                    self._add(place, parse_object(text))
            if self._lines or not self._tail.more:
                return

    def _add(self, place: int, line: Line | None) -> None:
        if line is None or not _is_time(line.get("time")):
            return
        about = line.get("attributes")
        if not isinstance(about, dict):
            return
        if line.get("kind") == VALUE:
            # Logged without a logger, as a metric that is no number: for who takes all of the run.
            if self._number is None and about.get("value") is not None:
                self._lines.append((place, line))
        elif line.get("kind") == ITEM:
            if self._number is None or self._number in _audience(about):
                self._lines.append((place, line))
        elif self.ended is None and self._is_end(line, about):
            self.ended = about["status"], line["time"]

    def _is_end(self, line: Line, about: dict[str, Any]) -> bool:
        """Whether a line says that the logger has ended."""
        is_own = self._number is not None and about.get("number") == self._number
        return is_own and line.get("kind") == LOGGER and about.get("status") in ENDINGS

    @property
    def due(self) -> int | None:
        """The time of the next line; None: there is none."""
        return int(self._lines[0][1]["time"]) if self._lines else None

    def take(self) -> tuple[int, Line]:
        """The next line, behind its offset."""
        return self._lines.popleft()


def item_of(line: Line, offset: int) -> ItemRecord:
    """The record of a line; ``offset`` makes clock values times since the epoch."""
    about = line["attributes"]
    return ItemRecord(
        kind=VALUE if line.get("kind") == VALUE else str(about.get("item")),
        name=str(line.get("name")),
        audience=_audience(about),
        step=_whole(about.get("step")),
        epoch=_whole(about.get("epoch")),
        value=about.get("value"),
        content=_text(about.get("content")),
        file=_text(about.get("file")),
        media=_text(about.get("media")),
        size=_whole(about.get("size")),
        time_ns=line["time"] + offset,
        thread=str(line.get("thread")),
        attributes={key: value for key, value in about.items() if key not in OWN_KEYS},
    )


def _audience(about: dict[str, Any]) -> tuple[int, ...]:
    found = about.get("audience")
    return tuple(n for n in found if type(n) is int) if isinstance(found, list) else ()


def _whole(value: Any) -> int | None:
    return value if type(value) is int else None


def _text(value: Any) -> str | None:
    return value if isinstance(value, str) else None


def _is_time(value: Any) -> bool:
    return type(value) is int and 0 <= value <= MAX_TIME
