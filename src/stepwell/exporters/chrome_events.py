"""Events of the Chrome trace format, as the text of JSON objects.

The format is described in "Trace Event Format" (Google, 2016); chrome://tracing and Perfetto read it.
"""

from __future__ import annotations

import math
from typing import Any

from stepwell.exporters.trace_json import members, micros, parsed, quoted, with_status
from stepwell.telemetry.exporter import SpanRecord
from stepwell.vocabulary import word_of

CACHED = 4096
LINE_BITS = 10
"""Threads are numbered with room for this many lines between them: viewers order them by number."""
MANY_LINES = 1 << 28


def category_of(name: str, category: str | None) -> str:
    """The category of a span: its own, else the one that the vocabulary has for its name."""
    if category:
        return category
    word = word_of(name)
    return word.category if word is not None else ""


class ChromeEvents:
    """Makes events whose times are counted from ``base``; texts that occur again are made once."""

    def __init__(self, base: int) -> None:
        self.base = base
        self._heads: dict[tuple[str, str], str] = {}
        self._args: dict[Any, str] = {}

    def complete(self, row: Any, pid: int, tid: int) -> str:
        """A span with a begin and an end, or just the begin while it is open."""
        _, _, start, duration, status, name, category, step, epoch, attributes = row[:10]
        head = self.head(name, category)
        if isinstance(attributes, dict):
            args: str | None = span_args(attributes, step, epoch, status)
        else:
            key = (attributes, step, epoch, status)
            args = self._args.get(key)
            if args is None:
                args = self._cached(key, span_args(parsed(attributes), step, epoch, status))
        color = ',"cname":"terrible"' if status == "error" else ""
        where = f'"pid":{pid},"tid":{tid},"ts":{micros(start - self.base)}'
        if duration is None:
            return f'{{"ph":"B",{head},{where}{color},"args":{{{args}}}}}'
        return f'{{"ph":"X",{head},{where},"dur":{micros(duration)}{color},"args":{{{args}}}}}'

    def whole(self, span: SpanRecord, pid: int, tid: int) -> str:
        """The same of a record."""
        duration = None if span.end_ns is None else span.end_ns - span.start_ns
        where = (0, None, span.start_ns, duration, span.status, span.name, span.category)
        return self.complete((*where, None, None, span.attributes), pid, tid)

    def begin(self, name: str, category: str | None, pid: int, tid: int, ns: int, args: str) -> str:
        """The beginning of a span; ``end`` tells its end."""
        where = f'"pid":{pid},"tid":{tid},"ts":{micros(ns - self.base)}'
        return f'{{"ph":"B",{self.head(name, category)},{where},"args":{{{args}}}}}'

    def end(self, name: str, category: str | None, pid: int, tid: int, ns: int, args: str) -> str:
        """The end of the innermost span that was begun on this line."""
        where = f'"pid":{pid},"tid":{tid},"ts":{micros(ns - self.base)}'
        return f'{{"ph":"E",{self.head(name, category)},{where},"args":{{{args}}}}}'

    def instant(self, name: str, category: str, pid: int, tid: int, ns: int, args: str) -> str:
        """Something that happened at an instant, on a thread."""
        where = f'"s":"t","pid":{pid},"tid":{tid},"ts":{micros(ns - self.base)}'
        color = ',"cname":"terrible"' if category == "error" else ""
        return f'{{"ph":"i",{self.head(name, category)},{where}{color},"args":{{{args}}}}}'

    def value(self, name: str, pid: int, tid: int, ns: int, value: float) -> str:
        """A value of a counter. What is no number cannot be drawn as one: it becomes an instant."""
        if not math.isfinite(value):
            return self.instant(name, "metric", pid, tid, ns, members({"value": str(value)}))
        where = f'"pid":{pid},"ts":{micros(ns - self.base)}'
        return f'{{"ph":"C",{self.head(name, "metric")},{where},"args":{{"value":{value!r}}}}}'

    def head(self, name: str, category: str | None) -> str:
        """Name and category."""
        key = (name, category or "")
        found = self._heads.get(key)
        if found is None:
            cat = category_of(name, category)
            found = f'"name":{quoted(name)}' + (f',"cat":{quoted(cat)}' if cat else "")
            if len(self._heads) > CACHED:
                self._heads.clear()
            self._heads[key] = found
        return found

    def _cached(self, key: Any, text: str) -> str:
        if len(self._args) > CACHED:
            self._args.clear()
        self._args[key] = text
        return text


def span_args(
    attributes: dict[str, Any], step: int | None, epoch: int | None, status: str | None = None
) -> str:
    """Attributes with step, epoch and, where there is more to tell than that all was well, the status."""
    args = dict(attributes)
    for key, value in (("step", step), ("epoch", epoch)):
        if value is not None:
            args.setdefault(key, value)
    if status is not None:
        args = with_status(args, status)
    return members(args) if args else ""


def tid_of(lane: int, line: int = 0) -> int:
    """The number of a thread, or of one of its further lines, in a trace."""
    if line >> LINE_BITS:
        return MANY_LINES + (lane << 2 * LINE_BITS) + line
    return (lane << LINE_BITS) + line + 1


def line_name(thread: str, line: int) -> str:
    """What a line is called: the thread, or what overlaps on it."""
    return thread if line == 0 else f"{thread} (overlapping {line})"


def process_metadata(pid: int, name: str, label: str, order: int) -> list[str]:
    """Events that name a process and say where it stands."""
    return [
        _metadata("process_name", pid, 0, {"name": name}),
        _metadata("process_labels", pid, 0, {"labels": label}),
        _metadata("process_sort_index", pid, 0, {"sort_index": order}),
    ]


def thread_metadata(pid: int, tid: int, name: str) -> list[str]:
    """Events that name a thread and say where it stands."""
    return [
        _metadata("thread_name", pid, tid, {"name": name}),
        _metadata("thread_sort_index", pid, tid, {"sort_index": tid}),
    ]


def _metadata(name: str, pid: int, tid: int, args: dict[str, Any]) -> str:
    return f'{{"ph":"M","name":"{name}","pid":{pid},"tid":{tid},"args":{{{members(args)}}}}}'
