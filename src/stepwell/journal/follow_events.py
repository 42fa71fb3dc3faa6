"""The events of a process as a follower gives them out."""

from __future__ import annotations

from pathlib import Path
from typing import Any

from stepwell.journal.follow_document import MAX_TIME
from stepwell.journal.follow_spans import FollowedSpans
from stepwell.journal.followed import EVENT, Given
from stepwell.journal.journal import ERROR_EVENT
from stepwell.journal.open_span import ATTRIBUTES
from stepwell.journal.records import EventRecord
from stepwell.journal.tail import Tail, parse_object

KINDS = ("event", "value", "artifact", ATTRIBUTES)


class FollowedEvents:
    """Reads events.jsonl; what lies behind the horizon waits."""

    def __init__(self, spans: FollowedSpans) -> None:
        self.latest = 0
        self._spans = spans
        self._tail = Tail()
        self._waiting: list[dict[str, Any]] = []

    @property
    def offset(self) -> int:
        """How many bytes were read."""
        return self._tail.offset

    def skip_to(self, offset: int) -> None:
        """Leave out what stands before this place of the file."""
        self._tail.skip_to(offset)

    def read(self, paths: list[Path], horizon: int) -> int:
        """Read on; returns up to when all is known, which is the horizon unless there is more."""
        for line in self._tail.read(paths):
            event = parse_object(line)
            if event is not None and event.get("kind") in KINDS and _is_time(event.get("time")):
                self._waiting.append(event)
                self.latest = max(self.latest, event["time"])
        return min(horizon, self.latest) if self._tail.more else horizon

    def take(self, horizon: int, offset: int) -> list[Given]:
        """The events up to the horizon."""
        due: list[dict[str, Any]] = []
        waiting: list[dict[str, Any]] = []
        for event in self._waiting:
            # An error comes before the end of its span, also where it was noted a moment later.
            is_due = event["time"] <= horizon or (
                event.get("name") == ERROR_EVENT
                and self._spans.has_ended(event.get("span"), horizon)
            )
            (due if is_due else waiting).append(event)
        self._waiting = waiting
        found = []
        for event in sorted(due, key=lambda event: int(event["time"])):
            record = self._record(event, offset)
            if record is not None:
                found.append(record)
        return found

    def _record(self, event: dict[str, Any], offset: int) -> Given | None:
        own = event.get("span") if _is_time(event.get("span")) else None
        type, name, attributes = _content(event)
        span = None if own is None else self._spans.nearest_to(own)
        if own != span and type != "error":
            # Of a span that is not given out.
            return None
        if type == ATTRIBUTES and (span is None or self._spans.add_late(span, attributes)):
            return None
        time: int = event["time"]
        order = time if span is None else self._spans.order_event(span, time)
        thread = str(event.get("thread"))
        record = EventRecord(type, name, span, thread, time + offset, attributes)
        return (order, EVENT, 0), record


def _content(event: dict[str, Any]) -> tuple[str, str, dict[str, Any]]:
    """Type, name and attributes of the record."""
    kind, name, attributes = event["kind"], str(event.get("name")), event.get("attributes")
    if not isinstance(attributes, dict):
        attributes = {}
    if kind == "artifact":
        about = {"name": name, "sha256": event.get("sha256"), "size": event.get("size")}
        return "event", "artifact", {**attributes, **about}
    if kind == ATTRIBUTES:
        return "attributes", name, attributes
    return "error" if name == ERROR_EVENT else "event", name, attributes


def _is_time(value: Any) -> bool:
    return type(value) is int and 0 <= value <= MAX_TIME
