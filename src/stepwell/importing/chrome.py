"""Chrome traces, including those of the torch profiler (Kineto).

Reads complete events, begin and end pairs, instants, counters and names. Parents follow from nesting in time,
per thread. A torch profiler trace becomes one process: its further processes are GPUs, whose streams become
threads.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Hashable
from typing import Any

from stepwell.importing.rows import (
    FAILED,
    NO_END,
    UNFINISHED,
    TraceLane,
    TraceProcess,
    TraceRows,
    as_count,
)
from stepwell.importing.sources import (
    TraceObjects,
    TraceSource,
    as_number,
    exact_number,
    nanoseconds,
    text,
)

KIND = "chrome"
MICROSECOND = 1000
MAX_OPEN = 10_000
MAX_ID = 200
FLOWS = frozenset("stf")
PROFILER_STEP = "ProfilerStep#"
KEPT_FIELDS = (
    "schemaVersion",
    "traceName",
    "trace_id",
    "host_name",
    "displayTimeUnit",
    "deviceProperties",
    "distributedInfo",
    "cuda_runtime_version",
    "cuda_driver_version",
    "otherData",
)
"""Fields of the document that are kept in run.json."""

OWN_TOOL = "stepwell"
STATUSES = {"error": FAILED, "unfinished": UNFINISHED, "open": 0}
"""The status of spans in traces that stepwell exported."""

USERS_STATUS = "args.status"
"""Name of a user's attribute ``status`` in such a trace."""

Record = dict[str, Any]
Times = tuple[int, int]
"""Start and end of a record, in ns."""
_OWN_NAME = re.compile(r"rank (\d{1,9})( worker(?: (\d{1,9}))?)?(?: \(attempt (\d{1,9})\))?")
_OWN_LABEL = re.compile(r"(.*) pid (\d{1,9})", re.DOTALL)
_RANK = re.compile(r"\brank[ _:#-]?(\d{1,9})\b", re.IGNORECASE)


class ChromeReader:
    """Reads one file into rows."""

    unit = MICROSECOND

    def __init__(self, rows: TraceRows, source: TraceSource, number: int) -> None:
        self.rows = rows
        self.source = source
        self.number = number
        self.objects = TraceObjects(source, rows.left_out)
        self.is_own = False
        self._lanes: dict[tuple[Hashable, Hashable], TraceLane] = {}
        self._process_names: dict[Hashable, str] = {}
        self._labels: dict[Hashable, str] = {}
        self._thread_names: dict[tuple[Hashable, Hashable], str] = {}
        self._takers: dict[Any, Callable[[Record, TraceLane, Times], None]] = {
            "X": self._complete,
            "B": self._begin,
            "E": self._end,
            "i": self._instant,
            "I": self._instant,
            "R": self._instant,
            "C": self._counter,
        }
        self._metadata_phases: set[Any] = {"M"}

    def read(self, progress: Callable[[], None]) -> None:
        """Read the whole file; ``progress`` is called now and then."""
        for count, record in enumerate(self.objects):
            if not count:
                other = self.objects.document.get("otherData")
                self.is_own = isinstance(other, dict) and other.get("tool") == OWN_TOOL
            self.take(record)
            if not count & 0x3FFF:
                progress()
        self._finish()

    def take(self, record: Record) -> None:
        """Add one record, or count the reason why not."""
        phase = record.get("ph")
        taker = self._takers.get(phase) if isinstance(phase, str | int) else None
        if taker is not None:
            times = self.times(record)
            lane = self.lane(record)
            if times is not None and lane is not None:
                taker(record, lane, times)
        elif isinstance(phase, str | int) and phase in self._metadata_phases:
            self._metadata(record)
        elif isinstance(phase, str) and phase in FLOWS:
            self.rows.left_out["flow arrow"] += 1
        else:
            self.rows.left_out[f"unknown phase {text(phase, 'missing')[:20]!r}"] += 1

    # Processes and threads

    @property
    def is_kineto(self) -> bool:
        """Whether the torch profiler wrote the file."""
        return "schemaVersion" in self.objects.document

    def process(self, record: Record, pid: Hashable) -> TraceProcess | None:
        key = (self.number, "" if self.is_kineto else pid)
        is_new = key not in self.rows.processes
        process = self.rows.process(key, pid)
        if process is not None and is_new:
            process.origin_ns = self._origin()
        return process

    def lane(self, record: Record) -> TraceLane | None:
        pid, tid = record.get("pid"), record.get("tid")
        if type(pid) is not int or type(tid) is not int:
            pid, tid = file_id(pid), file_id(tid)
        lane = self._lanes.get((pid, tid))
        if lane is None:
            process = self.process(record, pid)
            lane = None if process is None else self.rows.lane(process, (pid, tid))
            if lane is not None:
                self._lanes[pid, tid] = lane
        return lane

    def _origin(self) -> int:
        document = self.objects.document
        value = document.get("baseTimeNanoseconds")
        if self.is_own and "otherData" in document:
            value = document["otherData"].get("base_ns")
        base = exact_number(value)
        return int(base) if base is not None and 0 <= base < NO_END else 0

    # Records

    def args(self, record: Record) -> Record:
        args = record.get("args")
        if type(args) is dict:
            return args
        return {} if args is None else {"args": args}

    def times(self, record: Record) -> Times | None:
        """Return start and end of a record in ns, None without a timestamp."""
        start, length = exact_number(record.get("ts")), exact_number(record.get("dur", 0))
        if start is None or length is None:
            self.rows.left_out["no timestamp"] += 1
            return None
        # The end is rounded, not the duration: spans that nest in the file still nest afterwards.
        return nanoseconds(start, self.unit), nanoseconds(start + length, self.unit)

    def nesting(self, record: Record, args: Record) -> dict[str, int]:
        """Return what the file says about nesting, besides times, as arguments of ``rows.span``."""
        return {"begun" if self.is_own else "order": self.rows.next()}

    def _complete(self, record: Record, lane: TraceLane, times: Times) -> None:
        name = text(record.get("name"))
        args = self.args(record)
        if name.startswith(PROFILER_STEP) and name[len(PROFILER_STEP) :].isdecimal():
            args["step"] = int(name[len(PROFILER_STEP) :][:18])
        start, end = times
        nesting = self.nesting(record, args)
        if self.is_own:
            end = self._own_end(args, nesting, end)
        self.rows.span(lane, text(record.get("cat")), name, start, end, args, **nesting)

    def _own_end(self, args: Record, nesting: dict[str, int], end: int) -> int:
        """Return the end of a span that stepwell exported; its arguments contain the status."""
        status = args.get("status")
        if isinstance(status, str) and status in STATUSES:
            del args["status"]
            nesting["flags"] = nesting.get("flags", 0) | STATUSES[status]
            end = NO_END if status == "open" else end
        if USERS_STATUS in args:
            args["status"] = args.pop(USERS_STATUS)
        return end

    def _begin(self, record: Record, lane: TraceLane, times: Times) -> None:
        if len(lane.open) >= MAX_OPEN:
            self.rows.left_out[f"more than {MAX_OPEN} open spans in its thread"] += 1
            return
        args = self.args(record)
        nesting = self.nesting(record, args)
        lane.open.append([record.get("name"), text(record.get("cat")), times[0], args, nesting])

    def _end(self, record: Record, lane: TraceLane, times: Times) -> None:
        name = record.get("name")
        for at in range(len(lane.open) - 1, -1, -1):
            if name is None or lane.open[at][0] == name:
                began = lane.open.pop(at)
                began[3] = {**began[3], **self.args(record)}
                self._close(lane, began, times[0])
                return
        self.rows.left_out["end without a begin"] += 1

    def _close(self, lane: TraceLane, began: list[Any], end: int) -> None:
        name, category, start, args, nesting = began
        if self.is_own:
            self._own_end(args, nesting, end)
        self.rows.span(lane, category, text(name), start, end, args, **nesting)

    def _instant(self, record: Record, lane: TraceLane, times: Times) -> None:
        name, args = text(record.get("name")), self.args(record)
        number = as_number(args.get("value")) if record.get("cat") == "metric" else None
        if self.is_own and number is not None:
            self.rows.metric(lane, name, times[0], number, None)
        else:
            flags = FAILED if self.is_own and name == "error" else 0
            self.rows.event(lane, name, times[0], args, flags=flags)

    def _counter(self, record: Record, lane: TraceLane, times: Times) -> None:
        name = text(record.get("name"))
        is_added = False
        for series, value in self.args(record).items():
            number = as_number(value)
            if number is not None:
                full = name if series in ("value", name) else f"{name}/{series}"
                is_added |= self.rows.metric(lane, full, times[0], number, None)
        if not is_added:
            self.rows.left_out["counter without a number"] += 1

    def _metadata(self, record: Record) -> None:
        args = self.args(record)
        pid, tid = file_id(record.get("pid")), file_id(record.get("tid"))
        name = record.get("name")
        if len(self._thread_names) + len(self._process_names) > 1 << 18:
            self.rows.left_out["too many names of threads"] += 1
            return
        if name == "process_name":
            self._process_names[pid] = text(args.get("name"))[:1000]
        elif name == "process_labels":
            self._labels[pid] = text(args.get("labels"))[:1000]
        elif name == "thread_name":
            self._thread_names[pid, tid] = text(args.get("name"))[:1000]
        self.rows.taken["metadata"] += 1

    # The end of the file

    def _finish(self) -> None:
        for lane in list(self._lanes.values()):
            for began in lane.open:
                self._close(lane, began, NO_END)
            lane.open.clear()
        kept = {
            key: self.objects.document[key] for key in KEPT_FIELDS if key in self.objects.document
        }
        main = self._main_pid()
        for (pid, tid), lane in self._lanes.items():
            self._name_lane(lane, pid, tid, main)
            process = lane.process
            process.info.update(kept)
            process.origin_ns = process.origin_ns or self._origin()
            process.host = process.host or text(kept.get("host_name"))
            self._identify(process, main if self.is_kineto else pid)

    def _main_pid(self) -> Hashable:
        """Return the pid of the CPU process in a torch profiler trace; its threads are real threads."""
        pids = [pid for pid, _ in self._lanes]
        marked = [pid for pid in pids if self._labels.get(pid, "").startswith("CPU")]
        numbers = [pid for pid in pids if isinstance(pid, int)]
        return next(iter([*marked, *numbers]), "")

    def _name_lane(self, lane: TraceLane, pid: Hashable, tid: Hashable, main: Hashable) -> None:
        name = self._thread_names.get((pid, tid), "").strip()
        if not name:
            name = (tid or "counters") if isinstance(tid, str) else f"thread {tid}"
        if self.is_kineto and pid != main:
            device = self._labels.get(pid, "") or (pid if isinstance(pid, str) else f"GPU {pid}")
            name = f"{device} {name}".strip()
        lane.name = name

    def _identify(self, process: TraceProcess, pid: Hashable) -> None:
        process.name = process.name or self._process_names.get(pid, "")
        own = _OWN_NAME.fullmatch(process.name) if self.is_own else None
        if own:
            self._identify_own(process, own, self._labels.get(pid, ""))
            return
        if isinstance(pid, int):
            process.pid = as_count(pid) or 0
        distributed = self.objects.document.get("distributedInfo")
        if isinstance(distributed, dict):
            process.rank = as_count(distributed.get("rank"))
            process.world_size = as_count(distributed.get("world_size"))
        match = _RANK.search(process.name) or _RANK.search(self._labels.get(pid, ""))
        if process.rank is None and match:
            process.rank = int(match[1])

    def _identify_own(self, process: TraceProcess, name: re.Match[str], label: str) -> None:
        process.rank = int(name[1])
        process.is_worker = name[2] is not None
        process.worker = int(name[3]) if name[3] else None
        process.attempt = int(name[4] or 0)
        where = _OWN_LABEL.fullmatch(label)
        if where:
            process.host, process.pid = where[1], int(where[2])


def file_id(value: Any) -> Hashable:
    """Return the id of a process or thread in the file, of bounded size."""
    if type(value) is int and abs(value) < 1 << 63:
        return value
    return text(value)[:MAX_ID]
