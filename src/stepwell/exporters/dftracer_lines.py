"""Lines of dftracer traces, in the two dialects that there are.

``old`` is what versions up to 2.0 write: brackets around, ``"ph":"X"``, and in ``args`` the id of the event
around (``p_idx``) and the depth (``level``). ``new`` is what versions from 2.2 on write: no brackets,
numbers for ``ph``, and the layer as ``type``. A line is one JSON object in both, with no comma behind.
"""

from __future__ import annotations

import hashlib
import json
from typing import Any

from stepwell.exporters.chrome_events import category_of
from stepwell.exporters.trace_json import members, quoted
from stepwell.journal.errors import StepwellError
from stepwell.telemetry.events import METADATA

DIALECTS = ("new", "old")
PHASES = {"X": 1, "C": 2, "M": 4}
OURS, PYTHON = 1, 6
"""Layers: the tracer itself, and Python code."""
TRACER = "dftracer"
OTHER = "other"
"""The category of what has none, as the `ai` tree calls it."""
START_ID = 1
FIRST_ID = 2
EVENT_IDS = 1 << 52
"""Spans have their own ids, which are smaller; events and values are counted from here."""
TOP_LEVEL = 2
"""The level of spans that are in no other: below the ``start`` event, which has 1."""
RESERVED = ("hhash", "p_idx", "level")


def check_dialect(dialect: str) -> str:
    """Refuse a dialect that there is not."""
    if dialect not in DIALECTS:
        raise StepwellError(f"dialect is {dialect!r}: write one of {', '.join(DIALECTS)}")
    return dialect


class DFTracerLines:
    """Makes the lines of one process."""

    def __init__(self, dialect: str, pid: int, host: str) -> None:
        self.is_old = check_dialect(dialect) == "old"
        self.pid = pid
        self.host = host
        self.hash = hashlib.md5(host.encode("utf-8", "replace"), usedforsecurity=False).hexdigest()
        self.hash = self.hash[:16]
        self._extra = 0

    def head(self, rank: int, start_ns: int, about: dict[str, Any]) -> list[str]:
        """What every trace begins with: the host, the rank, and the event ``start``."""
        lines = ["["] if self.is_old else []
        lines.append(self.metadata("HH", self.pid, self.host, self.hash))
        lines.append(self.metadata("CM", self.pid, "time_metric", "US"))
        lines.append(self.metadata("PR", self.pid, "rank", str(rank)))
        lines.append(self.metadata("process_name", self.pid, f"Rank {rank}"))
        args = self._args(-1, 1, about)
        lines.append(self._event(START_ID, "start", TRACER, OURS, self.pid, start_ns, 0, args))
        return lines

    def tail(self, end_ns: int, count: int) -> list[str]:
        """What a trace that was written to its end ends with."""
        args = self._args(START_ID, TOP_LEVEL, {"num_events": count})
        number = self._next_id()
        line = self._event(number, "end", TRACER, OURS, self.pid, end_ns, end_ns, args)
        return [line, "]"] if self.is_old else [line]

    def span(
        self,
        id: int,
        parent: int | None,
        level: int,
        name: str,
        category: str | None,
        tid: int,
        start_ns: int,
        end_ns: int,
        attributes: dict[str, Any],
    ) -> str:
        """A span. Its level counts from 0 for one that is in no other."""
        above = START_ID if parent is None else parent + FIRST_ID
        args = self._args(above, level + TOP_LEVEL, attributes)
        cat = category_of(name, category) or OTHER
        return self._event(id + FIRST_ID, name, cat, PYTHON, tid, start_ns, end_ns, args)

    def event(self, name: str, tid: int, time_ns: int, attributes: dict[str, Any]) -> str:
        """Something that happened: a metadata record where it is one, else an event of no length."""
        value = metadata_value(name, attributes, time_ns)
        if value is not None:
            return self.metadata("CM", tid, name, value)
        args = self._args(START_ID, TOP_LEVEL, attributes)
        number = self._next_id()
        return self._event(number, name, "event", PYTHON, tid, time_ns, time_ns, args)

    def value(self, name: str, time_ns: int, value: float) -> str:
        """A value of a counter."""
        args = self._args(START_ID, TOP_LEVEL, {"value": value})
        text = f'{{"id":{self._next_id()},"name":{quoted(name)},"cat":"metric",'
        text += self._layer(PYTHON) + f'"pid":{self.pid},"tid":{self.pid},"ts":{time_ns // 1000},'
        return f'{text}{self._phase("C")},"args":{{{args}}}}}'

    def metadata(self, kind: str, tid: int, name: str, value: str | None = None) -> str:
        """A metadata record."""
        args = {"hhash": self.hash, "name": name, **({} if value is None else {"value": value})}
        number = '"id":1,' if self.is_old else ""
        text = f'{{{number}"name":"{kind}","cat":"{TRACER}",{self._layer(OURS)}'
        return f'{text}"pid":{self.pid},"tid":{tid},{self._phase("M")},"args":{{{members(args)}}}}}'

    def _event(
        self, id: int, name: str, cat: str, layer: int, tid: int, start: int, end: int, args: str
    ) -> str:
        # Both ends are rounded down, so that what is inside of an event stays inside of it.
        begin, duration = start // 1000, max(end // 1000 - start // 1000, 0)
        text = f'{{"id":{id},"name":{quoted(name)},"cat":{quoted(cat)},{self._layer(layer)}'
        text += f'"pid":{self.pid},"tid":{tid},"ts":{begin},"dur":{duration},'
        return f'{text}{self._phase("X")},"args":{{{args}}}}}'

    def _args(self, parent: int, level: int, attributes: dict[str, Any]) -> str:
        args: dict[str, Any] = {"hhash": self.hash}
        if self.is_old:
            args |= {"p_idx": parent, "level": level}
        nonfinite = attributes.get("nonfinite")
        words = nonfinite if isinstance(nonfinite, dict) else {}
        for key, value in attributes.items():
            if key == "nonfinite" and words:
                continue
            place = f"args.{key}" if key in RESERVED else key
            args[place] = words.get(key, "None") if value is None else _plain(value)
        return members(args)

    def _layer(self, layer: int) -> str:
        return "" if self.is_old else f'"type":{layer},'

    def _phase(self, phase: str) -> str:
        return f'"ph":"{phase}"' if self.is_old else f'"ph":{PHASES[phase]}'

    def _next_id(self) -> int:
        self._extra += 1
        return EVENT_IDS + self._extra


def metadata_value(name: str, attributes: dict[str, Any], time_ns: int) -> str | None:
    """The value of an event that is a metadata record; None for others.

    These are a pair of texts, and what ``start(metadata=True)`` or ``stop(metadata=True)`` of a node left.
    """
    if attributes.get("category") == METADATA:
        return str(attributes.get("value"))
    if name.endswith((".start", ".end")) and "category" in attributes:
        return str(time_ns // 1000)
    return None


def _plain(value: Any) -> Any:
    """The kinds of values that these traces have: numbers and texts."""
    if isinstance(value, bool):
        return int(value)
    if isinstance(value, float) and (value != value or value in (float("inf"), float("-inf"))):
        return str(value)
    if isinstance(value, int | float | str):
        return value
    return json.dumps(value)
