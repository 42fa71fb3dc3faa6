"""The tables of a run: their columns, and their rows process by process."""

from __future__ import annotations

import json
import re
from collections.abc import Callable, Iterator
from functools import cached_property, lru_cache
from typing import Any

import numpy as np
import polars as pl
from numpy.typing import NDArray
from polars.io.plugins import register_io_source

from stepwell.follower.log import OWN_KEYS
from stepwell.journal.format import (
    CONTEXT_NAME,
    IMPLICIT_STEP,
    ITEM,
    LOGGER,
    OWNER_SHIFT,
    STEP_BIAS,
    VALUE,
)
from stepwell.journal.format import LATE_ATTRIBUTES as LATE
from stepwell.reading.context import ContextLog
from stepwell.reading.documents import clean
from stepwell.reading.process import Name, Process
from stepwell.reading.segments import ALWAYS, RecordedSegment, Window, may_touch
from stepwell.reading.spans import OPEN, STATUSES, SpanReader, SpanRows, may_be_open

PLACE: dict[str, Any] = {
    "run": pl.String,
    "attempt": pl.Int32,
    "rank": pl.Int32,
    "process": pl.String,
    "thread": pl.String,
    "step": pl.Int64,
    "epoch": pl.Int64,
    "name": pl.String,
}
"""Columns that every table has."""

SPANS = pl.Schema(
    {
        **PLACE,
        "category": pl.String,
        "id": pl.Int64,
        "parent": pl.Int64,
        "depth": pl.Int32,
        "start_ns": pl.Int64,
        "duration_ns": pl.Int64,
        "status": pl.String,
        "attributes": pl.String,
    }
)
OPEN_SPANS = pl.Schema({key: SPANS[key] for key in SPANS if key not in ("duration_ns", "status")})
METRICS = pl.Schema({**PLACE, "time_ns": pl.Int64, "value": pl.Float64})
EVENTS = pl.Schema({**PLACE, "time_ns": pl.Int64, "span": pl.Int64, "attributes": pl.String})
ARTIFACTS = pl.Schema(
    {
        **PLACE,
        "time_ns": pl.Int64,
        "span": pl.Int64,
        "sha256": pl.String,
        "size": pl.Int64,
        "attributes": pl.String,
    }
)

ITEMS = pl.Schema(
    {
        **PLACE,
        "time_ns": pl.Int64,
        "kind": pl.String,
        "value": pl.String,
        "sha256": pl.String,
        "size": pl.Int64,
        "file": pl.String,
        "media": pl.String,
        "caption": pl.String,
        "attributes": pl.String,
    }
)

LOST: Name = ("", "", "(name was lost)")
"""In place of a name that a full disk prevented from being written."""
Frames = Callable[[set[str]], Iterator[pl.DataFrame]]
PROCESS_BITS = 32
ITEM_KEYS = (*OWN_KEYS, "caption")
"""Attributes of items that have their own columns, or are only for delivery."""


class ProcessTables:
    """The rows of one process. ``number`` makes its span ids unique in the run."""

    def __init__(
        self, process: Process, context: ContextLog, offset: int, number: int, run: str
    ) -> None:
        self.process = process
        self.context = context
        self.offset = offset
        self.base = number << PROCESS_BITS
        self.run = run
        self._threads = _thread_names(process)
        self._lost = max(process.names, default=0) + 1
        self._words = _name_columns(process.names, self._lost)

    # Spans

    def spans(self, wanted: set[str], only_open: bool = False) -> Iterator[pl.DataFrame]:
        """Yield rows of SPANS, one frame per segment."""
        reader = SpanReader(self.process)
        texts = {s.seq: s for s in self.process.of_kind("attributes")}
        for segment in reader.segments:
            if not only_open or may_be_open(segment):
                rows = reader.rows(segment)
                frame = self.span_frame(segment, rows, texts.get(segment.seq), wanted)
                yield frame.filter(pl.Series(rows.status == OPEN)) if only_open else frame

    def span_frame(
        self,
        segment: RecordedSegment,
        rows: SpanRows,
        texts: RecordedSegment | None,
        wanted: set[str],
    ) -> pl.DataFrame:
        """Return these rows of a segment as rows of SPANS."""
        count = len(rows.id)
        columns = self._place(segment.lane, count, wanted)
        columns |= self._context(rows.start, wanted)
        columns |= self._names(rows.name, wanted)
        columns["id"] = rows.id + self.base
        columns["parent"] = _nullable(rows.parent + self.base, rows.parent >= 0)
        columns["depth"] = rows.depth
        columns["start_ns"] = rows.start.astype(np.int64) + self.offset
        duration = rows.end.astype(np.int64) - rows.start.astype(np.int64)
        columns["duration_ns"] = _nullable(duration, rows.end != 0)
        if "status" in wanted:
            columns["status"] = pl.Series(STATUSES, dtype=pl.String).gather(rows.status)
        if wanted & {"attributes", "step", "epoch"}:
            attributes = self._with_late(rows.id, _texts(rows.attributes, texts))
            columns["attributes"] = attributes
            columns |= _own_context(columns, attributes)
        return _frame(columns, SPANS, wanted)

    def _with_late(self, ids: NDArray[Any], texts: pl.Series) -> pl.Series:
        """Return attributes with those that were added from another thread or after the end."""
        late = self._late
        rows = np.flatnonzero(np.isin(ids, list(late))).tolist() if late else []
        for row in rows:
            texts[row] = _json(_merged(texts[row], late[int(ids[row])]))
        return texts

    def attributes_of(
        self, identity: int, offset: int, texts: RecordedSegment | None
    ) -> dict[str, Any]:
        """Return the attributes of a single span: faster than a table for few spans."""
        text = None if texts is None else texts.texts.get(offset)
        return _merged(text, self._late.get(identity, {}))

    @cached_property
    def _late(self) -> dict[int, dict[str, Any]]:
        """By span id, the attributes that were added from another thread or after the end."""
        late: dict[int, dict[str, Any]] = {}
        for event in self.process.events():
            if event.get("kind") == LATE and event.get("span") is not None:
                late.setdefault(int(event["span"]), {}).update(event["attributes"])
        return late

    # Metrics

    def metrics(self, wanted: set[str], window: Window | None = None) -> Iterator[pl.DataFrame]:
        """Yield rows of METRICS, one frame per segment; segments outside of the window are not read."""
        for segment in self.process.of_kind("metrics"):
            if window is not None and not may_touch(segment, window):
                continue
            if (segment.process, segment.seq) in self.context.bare:
                continue
            clock, step_word, value, name_word = segment.columns
            keep = (name_word != CONTEXT_NAME) & (name_word != 0)
            if window is not None:
                keep &= (clock >= window[0]) & (clock < window[1])
            clock, value, step_word = clock[keep], value[keep], step_word[keep]
            name_word = name_word[keep].astype(np.int64)
            columns = self._place(segment.lane, len(clock), wanted)
            owner = (name_word >> OWNER_SHIFT) - 1
            if "thread" in wanted and (owner >= 0).any():
                columns["thread"] = [
                    self._threads.get(o if o >= 0 else segment.lane, "") for o in owner.tolist()
                ]
            columns |= self._names(name_word & 0xFFFFFF, wanted)
            columns |= self._metric_steps(clock, step_word)
            columns["time_ns"] = clock.astype(np.int64) + self.offset
            columns["value"] = np.ascontiguousarray(value).view(np.float64)
            yield _frame(columns, METRICS, wanted)

    def _metric_steps(self, clock: NDArray[Any], word: NDArray[Any]) -> dict[str, Any]:
        step, epoch = self.context.at(clock)
        implicit = word & IMPLICIT_STEP != 0
        counted = (word & (IMPLICIT_STEP - 1)).astype(np.int64)
        explicit = counted - STEP_BIAS
        steps = np.where(implicit, np.where(step >= 0, step, counted), explicit)
        return {"step": steps, "epoch": _nullable(epoch, epoch >= 0)}

    # Events and artifacts

    def events(
        self, wanted: set[str], artifacts: bool = False, window: Window = ALWAYS
    ) -> Iterator[pl.DataFrame]:
        """Yield rows of EVENTS, or of ARTIFACTS."""
        events = [e for e in self.process.events() if window[0] <= e["time"] < window[1]]
        shown = [e for e in map(_kept, events) if e is not None]
        shown = [e for e in shown if (e.get("kind") == "artifact") is artifacts]
        if not shown:
            return
        clock = np.array([e["time"] for e in shown], np.int64)
        spans = [e.get("span") for e in shown]
        columns = self._place(0, len(shown), wanted)
        columns["thread"] = [self._thread(e) for e in shown]
        columns |= self._context(clock, wanted | {"step", "epoch"})
        columns["name"] = [e["name"] for e in shown]
        columns["time_ns"] = clock + self.offset
        columns["span"] = [None if s is None else int(s) + self.base for s in spans]
        if artifacts:
            columns["sha256"] = [_sha256(e["sha256"]) for e in shown]
            columns["size"] = [e["size"] for e in shown]
        columns["attributes"] = [_json(e["attributes"]) for e in shown]
        yield _frame(columns, ARTIFACTS if artifacts else EVENTS, wanted)

    def items(self, wanted: set[str]) -> Iterator[pl.DataFrame]:
        """Yield rows of ITEMS: logged values that are not numbers."""
        events = [e for e in self.process.events() if e.get("kind") in (ITEM, VALUE)]
        if not events:
            return
        attributes = [event["attributes"] for event in events]
        clock = np.array([e["time"] for e in events], np.int64)
        columns = self._place(0, len(events), wanted)
        columns["thread"] = [self._thread(e) for e in events]
        columns |= self._context(clock, {"step", "epoch"})
        own = pl.Series([_integer(a.get("step")) for a in attributes], dtype=pl.Int64)
        columns["step"] = own.fill_null(columns["step"])
        columns["name"] = [clean(str(e["name"])) for e in events]
        columns["time_ns"] = clock + self.offset
        columns["kind"] = [clean(str(a.get("item") or VALUE)) for a in attributes]
        columns["value"] = [_json_text(a["value"]) if "value" in a else None for a in attributes]
        columns["sha256"] = [_sha256(str(a.get("content") or "")) for a in attributes]
        columns["size"] = [_integer(a.get("size")) for a in attributes]
        for key in ("file", "media", "caption"):
            columns[key] = [None if a.get(key) is None else clean(str(a[key])) for a in attributes]
        columns["attributes"] = [
            _json({key: value for key, value in a.items() if key not in ITEM_KEYS})
            for a in attributes
        ]
        yield _frame(columns, ITEMS, wanted)

    @property
    def threads(self) -> dict[int, str]:
        """Unique names of the threads by the numbers of their lanes."""
        return dict(self._threads)

    # Columns

    def _thread(self, event: dict[str, Any]) -> str:
        return self._threads.get(event.get("lane", -1)) or str(event.get("thread"))

    def _place(self, lane: int, count: int, wanted: set[str]) -> dict[str, Any]:
        document = self.process.document
        values = {
            "run": self.run,
            "attempt": document["attempt"],
            "rank": document["rank"],
            "process": self.process.name,
            "thread": self._threads.get(lane, ""),
        }
        return {
            key: pl.Series(key, [value], dtype=PLACE[key]).new_from_index(0, count)
            for key, value in values.items()
            if key in wanted
        }

    def _context(self, clock: NDArray[Any], wanted: set[str]) -> dict[str, Any]:
        if not wanted & {"step", "epoch"}:
            return {}
        step, epoch = self.context.at(clock)
        return {"step": _nullable(step, step >= 0), "epoch": _nullable(epoch, epoch >= 0)}

    def _names(self, ids: NDArray[Any], wanted: set[str]) -> dict[str, Any]:
        rows = np.minimum(ids, self._lost)
        return {key: words.gather(rows) for key, words in self._words.items() if key in wanted}


def scan(schema: pl.Schema, frames: Frames) -> pl.LazyFrame:
    """Return a lazy table that reads segment by segment, and only the columns that are needed."""

    def source(
        with_columns: list[str] | None,
        predicate: pl.Expr | None,
        n_rows: int | None,
        batch_size: int | None,
    ) -> Iterator[pl.DataFrame]:
        names = list(schema) if with_columns is None else with_columns
        # If only the number of rows is needed, read one column.
        counted = list(names) or list(schema)[:1]
        left = n_rows
        for frame in frames(set(counted)):
            part = frame.select(counted)
            if predicate is not None:
                part = part.filter(predicate)
            if left is not None:
                part = part.head(left)
                left -= part.height
            yield part if names else part.drop(counted)
            if left == 0:
                return

    return register_io_source(source, schema=schema)


def _frame(columns: dict[str, Any], schema: pl.Schema, wanted: set[str]) -> pl.DataFrame:
    series = [
        pl.Series(name, columns[name], dtype=schema[name], strict=False)
        for name in schema
        if name in wanted
    ]
    return pl.DataFrame(series)


def _nullable(values: NDArray[Any], valid: NDArray[Any]) -> pl.Series:
    return pl.Series(values).set(pl.Series(~valid), None)


def _own_context(columns: dict[str, Any], attributes: pl.Series) -> dict[str, pl.Series]:
    """Return step and epoch from the attributes of spans, where they have them."""
    own_columns: dict[str, pl.Series] = {}
    for name in ("step", "epoch"):
        if name in columns and attributes.str.contains(f'"{name}":', literal=True).any():
            own = attributes.str.json_path_match(f"$.{name}").cast(pl.Int64, strict=False)
            mentioned = attributes.str.contains(f'"{name}":', literal=True).fill_null(False)
            for row in (own.is_null() & mentioned).arg_true().to_list():
                own[row] = _whole(attributes[row], name)
            own = own.set(own.fill_null(-1) < 0, None)
            own_columns[name] = own.fill_null(pl.Series(columns[name]))
    return own_columns


@lru_cache(1024)
def _whole(text: str, name: str) -> int | None:
    """Return a whole number that Polars cannot parse: 7.0, or next to lone surrogates or huge numbers."""
    try:
        value = json.loads(text)[name]
        whole = int(value) if type(value) in (int, float) and value == int(value) else None
    except (ValueError, KeyError, TypeError, OverflowError, RecursionError):
        return None
    return whole if whole is not None and 0 <= whole < 1 << 63 else None


def _texts(offsets: NDArray[Any], segment: RecordedSegment | None) -> pl.Series:
    texts = segment.texts if segment is not None else {}
    unique, inverse = np.unique(offsets, return_inverse=True)
    return pl.Series([texts.get(int(o)) for o in unique], dtype=pl.String).gather(inverse)


def _merged(text: str | None, late: dict[str, Any]) -> dict[str, Any]:
    try:
        before = json.loads(text) if text else {}
    except (ValueError, RecursionError):
        before = {}
    return {**before, **late} if isinstance(before, dict) else late


def _name_columns(names: dict[int, Name], lost: int) -> dict[str, pl.Series]:
    """Return names and categories by id; the last row is for ids without a name."""
    entries = [names.get(i, LOST) for i in range(lost + 1)]
    return {
        "name": pl.Series("name", [entry[2] for entry in entries], dtype=pl.String),
        "category": pl.Series("category", [entry[1] for entry in entries], dtype=pl.String),
    }


def _integer(value: Any) -> int | None:
    return value if type(value) is int and abs(value) < 1 << 63 else None


def _json_text(value: Any) -> str | None:
    try:
        return json.dumps(value)
    except RecursionError:
        return None


def _json(attributes: dict[str, Any]) -> str | None:
    try:
        return json.dumps(attributes) if attributes else None
    except RecursionError:
        return None


def _kept(event: dict[str, Any]) -> dict[str, Any] | None:
    """Return an event for EVENTS or ARTIFACTS: an item with a file is an artifact; others are left out."""
    kind, attributes = event.get("kind"), event["attributes"]
    if kind in (LATE, LOGGER):
        return None
    if kind != ITEM:
        return event
    if not isinstance(attributes.get("content"), str):
        return None
    size = attributes.get("size")
    size = size if isinstance(size, int) else None
    rest = {key: value for key, value in attributes.items() if key not in ("content", "size")}
    inside = f"/{attributes.get('file')}" if attributes.get("folder") else ""
    return {
        **event,
        "kind": "artifact",
        "name": event["name"] + inside,
        "sha256": attributes["content"],
        "size": size,
        "attributes": rest,
    }


def _sha256(text: str) -> str | None:
    """Return a valid sha256, else None: it becomes part of a path."""
    return text if re.fullmatch("[0-9a-f]{64}", text) else None


def _thread_names(process: Process) -> dict[int, str]:
    """Return thread names by lane; equal names get a number."""
    lanes = {s.lane: s.thread for s in process.segments}
    lanes |= {
        e["lane"]: str(e.get("thread")) for e in process.events() if isinstance(e.get("lane"), int)
    }
    names: dict[int, str] = {}
    used: dict[str, int] = {}
    for lane in sorted(lanes):
        name = clean(lanes[lane])
        used[name] = used.get(name, 0) + 1
        names[lane] = name if used[name] == 1 else f"{name} #{used[name]}"
    return names
