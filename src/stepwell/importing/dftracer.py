"""dftracer's traces, in the bracketed dialect and in the newer one with numbers for phases.

Parents come from nesting in time: what ``p_idx`` and ``level`` say is wrong with threads and loops, so
the level only decides where times leave it open. Hosts and files told by a hash get their names back.
"""

from __future__ import annotations

import json
from collections.abc import Hashable
from typing import Any

from stepwell.importing.chrome import OWN_TOOL, USERS_STATUS, ChromeReader, Record
from stepwell.importing.rows import CLOSED_IN_ORDER, UNRESOLVED, Lane, Process, Rows
from stepwell.importing.sources import Source
from stepwell.importing.values import encode_attributes, exact, nanoseconds, text

KIND = "dftracer"
PHASES = {1: "X", 2: "C", 3: "A", 4: "M"}
UNITS = {"NS": 1, "US": 1000, "MS": 1_000_000, "SEC": 1_000_000_000}
OWN = "dftracer"
FORKED = "-fork.pfw"
MAX_HASHES = 1_000_000
MAX_LEVEL = 1 << 20
LEVEL_SHIFT = 40
OWN_EVENTS = 1 << 52
"""Traces that were exported from a run have events as spans of no length, with ids from here on."""
NAMED = {"fhash": "fname", "hhash": "host", "fname": "fname", "cwd": "cwd"}
"""Arguments that hold a hash, and what they are called when it is resolved."""


class Hashes:
    """Names by their hash, for all files of an import: they may tell each other's."""

    def __init__(self) -> None:
        self.names: dict[str, str] = {}
        self.hosts: dict[str, str] = {}

    def add(self, kind: str, args: Record) -> bool:
        """Note what a record of names says; False when there are too many."""
        names = self.hosts if kind == "HH" else self.names
        if len(names) >= MAX_HASHES:
            return False
        names[text(args.get("value"))[:200]] = text(args.get("name"))[:4000]
        return True

    def resolve(self, args: Record) -> bool:
        """Put names in the place of hashes; False when one is not known, or not yet."""
        complete = True
        for key in [key for key in args if key in NAMED or key.endswith("_hash")]:
            value = args[key]
            names = self.hosts if key == "hhash" else self.names
            name = names.get(text(value)[:200]) if isinstance(value, str | int) else None
            if name is None:
                complete &= key in ("cwd", "fname")
            else:
                del args[key]
                args[NAMED.get(key) or key[: -len("_hash")]] = name
        return complete

    def resolve_encoded(self, data: bytes) -> bytes:
        """The same for attributes that were encoded before all names were known."""
        args = json.loads(data)
        self.resolve(args)
        args.pop("host", None)
        return encode_attributes(args) if args else b""


class DftracerReader(ChromeReader):
    """Reads one file into rows."""

    def __init__(self, rows: Rows, source: Source, number: int, hashes: Hashes) -> None:
        super().__init__(rows, source, number)
        self._hashes = hashes
        self._hosts: dict[Hashable, str] = {}
        self._resolved = True
        self._level: Any = None
        self._takers["A"] = self._instant
        for digit, phase in PHASES.items():
            self._takers[digit] = self._takers[phase]

    def process(self, record: Record, pid: Hashable) -> Process | None:
        """One for each process number of a host, in however many files it is."""
        args = record.get("args")
        told = args.get("hhash") if isinstance(args, dict) else None
        host = text(told)[:200] if told is not None else self._hosts.get(pid, "")
        self._hosts.setdefault(pid, host)
        found = self.rows.process((host, pid), pid)
        if found is not None and host and not found.host:
            found.host = self._hashes.hosts.get(host, "")
            found.about["hhash"] = host
        return found

    def args(self, record: Record) -> Record:
        """The arguments with names in the place of hashes, without what the process has."""
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
        """The level if the file has it; else a span is written when it ends, inner ones first."""
        level = self._level
        flags = 0 if self._resolved else UNRESOLVED
        number = self.rows.next()
        if type(level) is not int or not 0 <= level < MAX_LEVEL:
            level = -1
        if self.is_own:
            # Ours are written in the order in which they began.
            return {"begun": number, "depth": level, "flags": flags}
        if level >= 0:
            return {"order": (level << LEVEL_SHIFT) + number, "depth": level, "flags": flags}
        return {"order": -number, "flags": flags | CLOSED_IN_ORDER}

    def _complete(self, record: Record) -> None:
        if record.get("cat") == OWN and record.get("name") in ("start", "end"):
            self._take_own(record)
        elif self.is_own and self._is_event(record):
            self._instant(record)
        else:
            super()._complete(record)

    def _is_event(self, record: Record) -> bool:
        number = record.get("id")
        return record.get("cat") == "event" and type(number) is int and number >= OWN_EVENTS

    def _take_own(self, record: Record) -> None:
        """What the tracer says about the process when it begins and when it ends."""
        lane = self.lane(record)
        times = self.times(record)
        if lane is None or times is None:
            return
        args = self.args(record)
        if record["name"] == "start":
            self._look_at_start(lane.process, args)
        parent = args.get("ppid")
        if type(parent) is int:
            lane.process.parent_pid = parent
        flags = 0 if self._resolved else UNRESOLVED
        self.rows.event(lane, f"{OWN}.{record['name']}", times[0], args, flags=flags)

    def _look_at_start(self, process: Process, args: Record) -> None:
        process.is_worker = FORKED in self.source.path.name
        if "version" in args:
            process.about["version"] = text(args["version"])
        if args.get("tool") == OWN_TOOL:
            self.is_own = True
            attempt = args.get("attempt")
            process.attempt = attempt if type(attempt) is int and 0 <= attempt < 1 << 31 else 0

    def _metadata(self, record: Record) -> None:
        name = record.get("name")
        args = record.get("args")
        args = args if isinstance(args, dict) else {}
        if name in ("HH", "FH", "SH"):
            if not self._hashes.add(text(name), args):
                self.rows.left_out[f"there are more than {MAX_HASHES} names of files"] += 1
                return
            if name == "HH":
                self._hosts[_pid(record)] = text(args.get("value"))[:200]
            self.rows.taken["metadata"] += 1
        elif name == "CM":
            self._custom(record, text(args.get("name")), args.get("value"))
        elif name == "PR":
            lane = self.lane(record)
            if lane is not None:
                self._take_rank(lane, args)
            self.rows.taken["metadata"] += 1
        elif name == "thread_name" and args.get("value") != "thread_name":
            super()._metadata(record)
        elif name == "thread_name":
            # It says the number of the thread, which is no name.
            self.rows.taken["metadata"] += 1
        else:
            super()._metadata(record)

    def _take_rank(self, lane: Lane, args: Record) -> None:
        told = [args.get("rank"), args.get("value") if args.get("name") == "rank" else None]
        for value in told:
            number = exact(value)
            if number is not None and 0 <= number < 1 << 31:
                lane.process.rank = int(number)

    def _custom(self, record: Record, name: str, value: Any) -> None:
        """A note of the program: the beginning or the end of something, or any pair of texts."""
        lane = self.lane(record)
        if lane is None:
            return
        if name == "time_metric" and value in UNITS:
            self.unit = UNITS[value]
        time = exact(value) if name.endswith((".start", ".end")) else None
        if time is not None:
            self.rows.event(lane, name, nanoseconds(time, self.unit), None)
            return
        if len(lane.process.about) < 1000:
            lane.process.about[name[:200]] = text(value)[:4000]
        self.rows.taken["metadata"] += 1


def _pid(record: Record) -> Hashable:
    pid = record.get("pid")
    return pid if type(pid) is int else text(pid)[:200]
