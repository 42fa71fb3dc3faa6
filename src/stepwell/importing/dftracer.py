"""dftracer traces, in the old dialect with brackets and in the new one with numbers for phases.

Parents follow from nesting in time. ``p_idx`` and ``level`` are wrong for threads and loops, so the level
only decides where times are equal. Hashes of hosts and files are replaced by their names.
"""

from __future__ import annotations

import json
from collections.abc import Hashable
from typing import Any

from stepwell.importing.chrome import OWN_TOOL, USERS_STATUS, ChromeReader, Record, Times, file_id
from stepwell.importing.rows import (
    CLOSED_IN_ORDER,
    UNRESOLVED,
    TraceLane,
    TraceProcess,
    TraceRows,
    as_count,
)
from stepwell.importing.sources import (
    TraceSource,
    encode_attributes,
    exact_number,
    nanoseconds,
    text,
)

KIND = "dftracer"
PHASES = {1: "X", 2: "C", 3: "A"}
METADATA = 4
UNITS = {"NS": 1, "US": 1000, "MS": 1_000_000, "SEC": 1_000_000_000}
OWN = "dftracer"
FORKED = "-fork.pfw"
MAX_HASHES = 1_000_000
MAX_LEVEL = 1 << 20
LEVEL_SHIFT = 40
OWN_EVENTS = 1 << 52
"""In traces that stepwell exported, events are spans without duration with ids from here on."""
NAMED = {"fhash": "fname", "hhash": "host", "fname": "fname", "cwd": "cwd"}
"""Arguments that contain a hash, and their names when it is resolved."""


class Hashes:
    """Names by hash, for all files of an import: a file may contain the names of another."""

    def __init__(self) -> None:
        self.names: dict[str, str] = {}
        self.hosts: dict[str, str] = {}

    def add(self, kind: str, args: Record) -> bool:
        """Add the name in a record; return False if there are too many."""
        names = self.hosts if kind == "HH" else self.names
        if len(names) >= MAX_HASHES:
            return False
        names[text(args.get("value"))[:200]] = text(args.get("name"))[:4000]
        return True

    def resolve(self, args: Record) -> bool:
        """Replace hashes by names; return False if a name is still missing."""
        is_complete = True
        for key in [key for key in args if key in NAMED or key.endswith("_hash")]:
            value = args[key]
            names = self.hosts if key == "hhash" else self.names
            name = names.get(text(value)[:200]) if isinstance(value, str | int) else None
            if name is None:
                is_complete &= key in ("cwd", "fname")
            else:
                del args[key]
                args[NAMED.get(key) or key[: -len("_hash")]] = name
        return is_complete

    def resolve_encoded(self, data: bytes) -> bytes:
        """Resolve attributes that were encoded before all names were read."""
        args = json.loads(data)
        self.resolve(args)
        args.pop("host", None)
        return encode_attributes(args) if args else b""


class DftracerReader(ChromeReader):
    """Reads one file into rows."""

    def __init__(self, rows: TraceRows, source: TraceSource, number: int, hashes: Hashes) -> None:
        super().__init__(rows, source, number)
        self._hashes = hashes
        self._hosts: dict[Hashable, str] = {}
        self._resolved = True
        self._level: Any = None
        self._takers["A"] = self._instant
        self._takers |= {digit: self._takers[phase] for digit, phase in PHASES.items()}
        self._metadata_phases.add(METADATA)

    def process(self, record: Record, pid: Hashable) -> TraceProcess | None:
        """Return the process with this pid on its host; several files may contain parts of it."""
        args = record.get("args")
        host_hash = args.get("hhash") if isinstance(args, dict) else None
        host = text(host_hash)[:200] if host_hash is not None else self._hosts.get(pid, "")
        self._hosts.setdefault(pid, host)
        process = self.rows.process((host, pid), pid)
        if process is not None and host and not process.host:
            process.host = self._hashes.hosts.get(host, "")
            process.info["hhash"] = host
        return process

    def args(self, record: Record) -> Record:
        """Return the arguments with names instead of hashes, without those of the process."""
        args = super().args(record)
        self._resolved = not args or self._hashes.resolve(args)
        args.pop("host", None)
        args.pop("p_idx", None)
        self._level = args.pop("level", None)
        if self.is_own:
            for key in [k for k in args if k.startswith("args.") and k != USERS_STATUS]:
                args[key[len("args.") :]] = args.pop(key)
        return args

    def nesting(self, record: Record, args: Record) -> dict[str, int]:
        """Return the level if the file has it.

        Otherwise inner spans come first: spans are written at their end.
        """
        level = self._level
        flags = 0 if self._resolved else UNRESOLVED
        number = self.rows.next()
        if type(level) is not int or not 0 <= level < MAX_LEVEL:
            level = -1
        if self.is_own:
            # Traces that stepwell exported are in the order in which spans began.
            return {"begun": number, "depth": level, "flags": flags}
        if level >= 0:
            return {"order": (level << LEVEL_SHIFT) + number, "depth": level, "flags": flags}
        return {"order": -number, "flags": flags | CLOSED_IN_ORDER}

    def _complete(self, record: Record, lane: TraceLane, times: Times) -> None:
        if record.get("cat") == OWN and record.get("name") in ("start", "end"):
            self._take_own(record, lane, times)
        elif self.is_own and self._is_event(record):
            self._instant(record, lane, times)
        else:
            super()._complete(record, lane, times)

    def _is_event(self, record: Record) -> bool:
        number = record.get("id")
        return record.get("cat") == "event" and type(number) is int and number >= OWN_EVENTS

    def _take_own(self, record: Record, lane: TraceLane, times: Times) -> None:
        """Add the records that the tracer writes when the process starts and ends."""
        args = self.args(record)
        if record["name"] == "start":
            self._read_start(lane.process, args)
        parent = args.get("ppid")
        if type(parent) is int:
            lane.process.parent_pid = parent
        flags = 0 if self._resolved else UNRESOLVED
        self.rows.event(lane, f"{OWN}.{record['name']}", times[0], args, flags=flags)

    def _read_start(self, process: TraceProcess, args: Record) -> None:
        process.is_worker = FORKED in self.source.path.name
        if "version" in args:
            process.info["version"] = text(args["version"])
        if args.get("tool") == OWN_TOOL:
            self.is_own = True
            process.attempt = as_count(args.get("attempt")) or 0

    def _metadata(self, record: Record) -> None:
        name = record.get("name")
        args = record.get("args")
        args = args if isinstance(args, dict) else {}
        if name in ("HH", "FH", "SH"):
            if not self._hashes.add(text(name), args):
                self.rows.left_out[f"more than {MAX_HASHES} names of files"] += 1
                return
            if name == "HH":
                self._hosts[file_id(record.get("pid"))] = text(args.get("value"))[:200]
            self.rows.taken["metadata"] += 1
        elif name == "CM":
            self._custom(record, text(args.get("name")), args.get("value"))
        elif name == "PR":
            lane = self.lane(record)
            if lane is not None:
                self._take_rank(lane, args)
            self.rows.taken["metadata"] += 1
        elif name == "thread_name" and args.get("value") == "thread_name":
            # The record contains the thread id instead of a name.
            self.rows.taken["metadata"] += 1
        else:
            super()._metadata(record)

    def _take_rank(self, lane: TraceLane, args: Record) -> None:
        values = [args.get("rank"), args.get("value") if args.get("name") == "rank" else None]
        for value in values:
            number = exact_number(value)
            if number is not None and 0 <= number < 1 << 31:
                lane.process.rank = int(number)

    def _custom(self, record: Record, name: str, value: Any) -> None:
        """Add custom metadata of the program: a start or end time, or any pair of texts."""
        lane = self.lane(record)
        if lane is None:
            return
        if name == "time_metric" and value in UNITS:
            self.unit = UNITS[value]
        time = exact_number(value) if name.endswith((".start", ".end")) else None
        if time is not None:
            self.rows.event(lane, name, nanoseconds(time, self.unit), None)
            return
        if len(lane.process.info) < 1000:
            lane.process.info[name[:200]] = text(value)[:4000]
        self.rows.taken["metadata"] += 1
