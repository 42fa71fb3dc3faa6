"""The console exporter: a short line for each span and event."""

from __future__ import annotations

import os
import shutil
import sys
from collections.abc import Sequence
from typing import Any, NamedTuple, TextIO

from stepwell._core.text import duration
from stepwell.exporters.record_format import join_short, pairs, value, word
from stepwell.telemetry.exporter import EventRecord, Exporter, Record, Source, SpanRecord

NAME_WIDTH = 44
"""Characters for indent and name. Longer names push the rest of their line to the right."""
MAX_INDENT = 12
MAX_WIDTH = 400
"""Longest line in a file. On a terminal, its width is the limit."""
SHOWN_ATTRIBUTES = 6
MAX_VALUE = 40
MAX_MESSAGE = 200
REMEMBERED = 10_000
"""Number of ended spans whose depth is kept, for events that come late."""

DIM, RED, YELLOW, BOLD, PLAIN = "\x1b[2m", "\x1b[31m", "\x1b[33m", "\x1b[1m", "\x1b[0m"
COLOURS = {"error": RED, "unfinished": YELLOW}


class Line(NamedTuple):
    """The columns of one line."""

    time_ns: int
    depth: int
    name: str
    took: str = ""
    rest: str = ""
    look: str = ""

    def text(self, started_ns: int, coloured: bool, width: int) -> str:
        """Return the line with aligned columns, cut to a width."""
        since = max(0, self.time_ns - started_ns) / 1e9
        label = f"{'  ' * min(self.depth, MAX_INDENT)}{self.name}"
        gap = " " * (NAME_WIDTH - len(label))
        front = f"{since:9.3f} s  {label}{gap} {self.took:>12}"
        room = max(0, width - len(front) - 2)
        rest = self.rest if len(self.rest) <= room else f"{self.rest[: room - 1]}…"
        if not coloured:
            return f"{front}  {rest}".rstrip()
        return f"{DIM}{since:9.3f} s{PLAIN}  {self.look}{label}{PLAIN}{gap} {self.took:>12}" + (
            f"  {DIM}{rest}{PLAIN}" if rest else ""
        )


class ConsoleExporter(Exporter):
    """Print a line when a span begins, when it ends, and for each event.

    Args:
        stream: the stream to print to. Default: standard error.
        all_ranks: whether ranks other than 0 print too.
        colour: whether to use colours. Default: only on a terminal.
    """

    name = "console"

    def __init__(
        self,
        stream: TextIO | None = None,
        *,
        all_ranks: bool = False,
        colour: bool | None = None,
    ) -> None:
        self.stream = stream
        self.all_ranks = all_ranks
        self.colour = colour
        self._source: Source | None = None
        self._open: dict[int, int] = {}
        self._ended: dict[int, int] = {}

    def __eq__(self, other: object) -> bool:
        return isinstance(other, ConsoleExporter) and other.stream is self.stream

    def __hash__(self) -> int:
        return hash(id(self.stream))

    def __repr__(self) -> str:
        return f"ConsoleExporter({'' if self.stream is None else self.stream!r})"

    def open(self, source: Source) -> None:
        self._source = source
        self._open.clear()
        self._ended.clear()

    def export(self, records: Sequence[Record]) -> None:
        """Print these records with one write, so that they do not mix with other output."""
        source = self._source
        # Looked up each time: programs and notebooks replace it.
        stream = self.stream if self.stream is not None else sys.stderr
        if source is None or stream is None or (source.rank != 0 and not self.all_ranks):
            return
        terminal = is_terminal(stream)
        coloured = terminal and wants_colours() if self.colour is None else self.colour
        width = shutil.get_terminal_size().columns if terminal else MAX_WIDTH
        lines = [self._line(record) for record in join_short(records)]
        rank = f"[{source.rank}] " if self.all_ranks else ""
        text = "".join(
            f"{rank}{line.text(source.started_ns, coloured, width)}\n"
            for line in lines
            if line is not None
        )
        encoding = getattr(stream, "encoding", None) or "utf-8"
        stream.write(text.encode(encoding, "backslashreplace").decode(encoding))
        stream.flush()

    def _line(self, record: Record) -> Line | None:
        if isinstance(record, SpanRecord):
            return self._span(record)
        return None if record.type == "attributes" else self._event(record)

    def _span(self, record: SpanRecord) -> Line:
        depth = self._depth_of(record)
        name, shown = word(record.name), shown_attributes(record.attributes)
        if record.end_ns is None:
            return Line(record.start_ns, depth, f"{name} …", rest=shown, look=BOLD)
        state = "" if record.status == "ok" else f"{record.status} "
        took = duration(record.end_ns - record.start_ns)
        return Line(
            record.end_ns, depth, name, took, f"{state}{shown}", COLOURS.get(record.status, "")
        )

    def _event(self, record: EventRecord) -> Line:
        depth = 0 if record.span is None else self._known_depth(record.span) + 1
        attributes = record.attributes
        if record.type != "error":
            name = f"· {word(record.name)}"
            return Line(record.time_ns, depth, name, rest=shown_attributes(attributes))
        kind = word(str(attributes.get("exception_type") or "error"))
        message = attributes.get("exception_message") or attributes.get("error_message") or ""
        text = str(message)[:MAX_MESSAGE]
        text = text if text.isprintable() else value(text)
        return Line(record.time_ns, depth, f"! {kind}", rest=text, look=RED)

    def _known_depth(self, span: int) -> int:
        return self._open.get(span, self._ended.get(span, -1))

    def _depth_of(self, record: SpanRecord) -> int:
        depth = self._open.pop(record.id, None)
        if depth is None:
            depth = 0 if record.parent is None else self._known_depth(record.parent) + 1
        if record.end_ns is None:
            self._open[record.id] = depth
            return depth
        self._ended[record.id] = depth
        if len(self._ended) > REMEMBERED:
            del self._ended[next(iter(self._ended))]
        return depth


def shown_attributes(attributes: dict[str, Any]) -> str:
    """Return the first attributes as ``name=value``, and the number of further ones."""
    first = dict(list(attributes.items())[:SHOWN_ATTRIBUTES])
    more = len(attributes) - len(first)
    return pairs(first, MAX_VALUE) + (f" (+{more})" if more else "")


def is_terminal(stream: TextIO) -> bool:
    """Return whether a stream is a terminal."""
    try:
        return stream.isatty()
    except (AttributeError, ValueError):  # not a file, or a closed one
        return False


def wants_colours() -> bool:
    """Return whether the environment allows colours (``NO_COLOR``, ``TERM``)."""
    return not os.environ.get("NO_COLOR") and os.environ.get("TERM") != "dumb"
