"""The tables of a run: their columns, and how they are filled process by process."""

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

from stepwell.journal.follow_items import OWN_KEYS
from stepwell.journal.format import CONTEXT_NAME, IMPLICIT_STEP, OWNER_SHIFT, STEP_BIAS
from stepwell.journal.journal import ITEM, LOGGER, VALUE
from stepwell.journal.open_span import ATTRIBUTES as LATE
from stepwell.reading.context import ContextLog
from stepwell.reading.process import Name, Process
from stepwell.reading.segments import Segment
from stepwell.reading.spans import OPEN, STATUSES, SpanReader, SpanRows, may_be_open
from stepwell.reading.window import ALWAYS, Window, may_touch

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
"""Stands for a name that a full disk took."""
Frames = Callable[[set[str]], Iterator[pl.DataFrame]]
PROCESS_BITS = 32
ITEM_KEYS = (*OWN_KEYS, "caption")
"""Attributes of items that have columns of their own, or are for delivery."""


class ProcessTables:
    """Turns one process's records into rows. ``number`` makes span ids unique within the run."""

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
        """Rows of SPANS, one frame a segment."""
        reader = SpanReader(self.process)
        texts = {s.seq: s for s in self.process.of_kind("attributes")}
        for segment in reader.segments:
            if not only_open or may_be_open(segment):
                rows = reader.rows(segment)
                frame = self.span_frame(segment, rows, texts.get(segment.seq), wanted)
                yield frame.filter(pl.Series(rows.status == OPEN)) if only_open else frame

    def span_frame(
        self, segment: Segment, rows: SpanRows, texts: Segment | None, wanted: set[str]
    ) -> pl.DataFrame:
        """These rows of a segment as rows of SPANS."""
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
        """Attributes with those that were added from elsewhere, or after the end."""
        late = self._late
        found = np.flatnonzero(np.isin(ids, list(late))).tolist() if late else []
        for row in found:
            texts[row] = _json(_merged(texts[row], late[int(ids[row])]))
        return texts

    def attributes_of(self, identity: int, offset: int, texts: Segment | None) -> dict[str, Any]:
        """The same of a single span: quicker than a table where few spans are wanted."""
        text = None if texts is None else texts.texts.get(offset)
        return _merged(text, self._late.get(identity, {}))

    @cached_property
    def _late(self) -> dict[int, dict[str, Any]]:
        """By span the attributes that were added from elsewhere, or after the end."""
        found: dict[int, dict[str, Any]] = {}
        for event in self.process.events():
            if event.get("kind") == LATE and event.get("span") is not None:
                found.setdefault(int(event["span"]), {}).update(event["attributes"])
        return found

    # Metrics

    def metrics(self, wanted: set[str], window: Window | None = None) -> Iterator[pl.DataFrame]:
        """Rows of METRICS, one frame a segment; of segments outside of the window nothing is read."""
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
        known = np.where(implicit, np.where(step >= 0, step, counted), explicit)
        return {"step": known, "epoch": _nullable(epoch, epoch >= 0)}

    # Events and artifacts

    def events(
        self, wanted: set[str], artifacts: bool = False, window: Window = ALWAYS
    ) -> Iterator[pl.DataFrame]:
        """Rows of EVENTS, or of ARTIFACTS."""
        events = [e for e in self.process.events() if window[0] <= e["time"] < window[1]]
        found = [e for e in map(_kept, events) if e is not None]
        found = [e for e in found if (e.get("kind") == "artifact") is artifacts]
        if not found:
            return
        clock = np.array([e["time"] for e in found], np.int64)
        spans = [e.get("span") for e in found]
        columns = self._place(0, len(found), wanted)
        columns["thread"] = [self._thread(e) for e in found]
        columns |= self._context(clock, wanted | {"step", "epoch"})
        columns["name"] = [e["name"] for e in found]
        columns["time_ns"] = clock + self.offset
        columns["span"] = [None if s is None else int(s) + self.base for s in spans]
        if artifacts:
            columns["sha256"] = [_sha256(e["sha256"]) for e in found]
            columns["size"] = [e["size"] for e in found]
        columns["attributes"] = [_json(e["attributes"]) for e in found]
        yield _frame(columns, ARTIFACTS if artifacts else EVENTS, wanted)

    def items(self, wanted: set[str]) -> Iterator[pl.DataFrame]:
        """Rows of ITEMS: logged values that are no numbers."""
        found = [e for e in self.process.events() if e.get("kind") in (ITEM, VALUE)]
        if not found:
            return
        about = [event["attributes"] for event in found]
        clock = np.array([e["time"] for e in found], np.int64)
        columns = self._place(0, len(found), wanted)
        columns["thread"] = [self._thread(e) for e in found]
        columns |= self._context(clock, {"step", "epoch"})
        own = pl.Series([_integer(a.get("step")) for a in about], dtype=pl.Int64)
        columns["step"] = own.fill_null(columns["step"])
        columns["name"] = [_text(e["name"]) for e in found]
        columns["time_ns"] = clock + self.offset
        columns["kind"] = [_text(a.get("item") or VALUE) for a in about]
        columns["value"] = [_json_text(a["value"]) if "value" in a else None for a in about]
        columns["sha256"] = [_sha256(str(a.get("content") or "")) for a in about]
        columns["size"] = [_integer(a.get("size")) for a in about]
        for key in ("file", "media", "caption"):
            columns[key] = [None if a.get(key) is None else _text(a[key]) for a in about]
        columns["attributes"] = [
            _json({key: value for key, value in a.items() if key not in ITEM_KEYS}) for a in about
        ]
        yield _frame(columns, ITEMS, wanted)

    @property
    def threads(self) -> dict[int, str]:
        """Names of the threads by the number of their lane, no two alike."""
        return dict(self._threads)

    # Columns

    def _thread(self, event: dict[str, Any]) -> str:
        return self._threads.get(event.get("lane", -1)) or str(event.get("thread"))

    def _place(self, lane: int, count: int, wanted: set[str]) -> dict[str, Any]:
        about = self.process.about
        values = {
            "run": self.run,
            "attempt": about["attempt"],
            "rank": about["rank"],
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
        known = np.minimum(ids, self._lost)
        return {key: words.gather(known) for key, words in self._words.items() if key in wanted}


def scan(schema: pl.Schema, frames: Frames) -> pl.LazyFrame:
    """A lazy table that reads segment by segment, and only the columns that are asked for."""

    def source(
        with_columns: list[str] | None,
        predicate: pl.Expr | None,
        n_rows: int | None,
        batch_size: int | None,
    ) -> Iterator[pl.DataFrame]:
        names = list(schema) if with_columns is None else with_columns
        # Where only the number of rows matters, they are the rows of some column.
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


def _nullable(values: NDArray[Any], known: NDArray[Any]) -> pl.Series:
    return pl.Series(values).set(pl.Series(~known), None)


def _own_context(columns: dict[str, Any], attributes: pl.Series) -> dict[str, pl.Series]:
    """Step and epoch as a span's own attributes say, where they do."""
    found: dict[str, pl.Series] = {}
    for name in ("step", "epoch"):
        if name in columns and attributes.str.contains(f'"{name}":', literal=True).any():
            own = attributes.str.json_path_match(f"$.{name}").cast(pl.Int64, strict=False)
            mentioned = attributes.str.contains(f'"{name}":', literal=True).fill_null(False)
            for row in (own.is_null() & mentioned).arg_true().to_list():
                own[row] = _whole(attributes[row], name)
            own = own.set(own.fill_null(-1) < 0, None)
            found[name] = own.fill_null(pl.Series(columns[name]))
    return found


@lru_cache(1024)
def _whole(text: str, name: str) -> int | None:
    """A whole number where Polars finds none: 7.0, and beside halves of characters or huge numbers."""
    try:
        value = json.loads(text)[name]
        found = int(value) if type(value) in (int, float) and value == int(value) else None
    except (ValueError, KeyError, TypeError, OverflowError, RecursionError):
        return None
    return found if found is not None and 0 <= found < 1 << 63 else None


def _texts(offsets: NDArray[Any], segment: Segment | None) -> pl.Series:
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
    """Names and categories by id; an id past the table has lost its name to a full disk."""
    entries = [names.get(i, LOST) for i in range(lost + 1)]
    return {
        "name": pl.Series("name", [entry[2] for entry in entries], dtype=pl.String),
        "category": pl.Series("category", [entry[1] for entry in entries], dtype=pl.String),
    }


def _text(value: Any) -> str:
    return str(value).encode("utf-8", "replace").decode()


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
    """An event as it is shown: what was logged with a file is an artifact, the rest is elsewhere."""
    kind, about = event.get("kind"), event["attributes"]
    if kind in (LATE, LOGGER):
        return None
    if kind != ITEM:
        return event
    if not isinstance(about.get("content"), str):
        return None
    size = about.get("size")
    size = size if isinstance(size, int) else None
    rest = {key: value for key, value in about.items() if key not in ("content", "size")}
    inside = f"/{about.get('file')}" if about.get("folder") else ""
    return {
        **event,
        "kind": "artifact",
        "name": event["name"] + inside,
        "sha256": about["content"],
        "size": size,
        "attributes": rest,
    }


def _sha256(text: str) -> str | None:
    """It is joined into a path: nothing else passes."""
    return text if re.fullmatch("[0-9a-f]{64}", text) else None


def _thread_names(process: Process) -> dict[int, str]:
    """Thread names by lane; threads of one name are told apart by a number."""
    lanes = {s.lane: s.thread for s in process.segments}
    lanes |= {
        e["lane"]: str(e.get("thread")) for e in process.events() if isinstance(e.get("lane"), int)
    }
    names: dict[int, str] = {}
    used: dict[str, int] = {}
    for lane in sorted(lanes):
        name = lanes[lane].encode("utf-8", "replace").decode()
        used[name] = used.get(name, 0) + 1
        names[lane] = name if used[name] == 1 else f"{name} #{used[name]}"
    return names
