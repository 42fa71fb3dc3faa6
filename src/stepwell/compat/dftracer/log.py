"""``dftracer``: the log of a process (a run and a trace file), and the types of its arguments."""

from __future__ import annotations

import os
from collections.abc import Mapping
from enum import Enum, IntEnum
from pathlib import Path
from typing import Any

from stepwell._core import clock
from stepwell._core.environment import read_flag
from stepwell._core.errors import never_raises, report_misuse
from stepwell._core.values import encode, shown
from stepwell.journal.state import current_journal, current_lane, state
from stepwell.telemetry.children import is_worker
from stepwell.telemetry.claims import create_claim, read_claim
from stepwell.telemetry.events import LAST_CLOCK, METADATA
from stepwell.telemetry.run import Run, active_run
from stepwell.telemetry.span_handle import intern_name
from stepwell.telemetry.start import borrow_run

DIALECT = "old"
"""The older dftracer format, with brackets, ``p_idx`` and ``level``."""
TRACES = "traces"
"""Folder of a run with one claim file per trace name that several ranks may have asked for."""
DFTRACER_ENABLE = read_flag(os.environ, "DFTRACER_ENABLE", default=True)
"""Whether this package records; True unless the environment variable disables it."""


class TagType(Enum):
    """How a trace analyzer uses an argument."""

    KEY = 0
    VALUE = 1
    IGNORE = 2

    def __int__(self) -> int:
        return self.value


class TagDType(Enum):
    """The type of an argument."""

    INT = 0
    FLOAT = 1
    STRING = 2

    def __int__(self) -> int:
        return self.value


class TagValue:
    """A value with a tag. It is itself an int, float or str and is recorded as such."""

    _tag_type: TagType
    _plain: Any

    def __new__(
        cls, value: Any, dtype: TagDType = TagDType.STRING, tag_type: TagType = TagType.KEY
    ) -> TagValue:
        """Return the value converted to ``dtype``. Raises ValueError if that is impossible."""
        kind = _KINDS[dtype] if cls is TagValue else cls
        made: TagValue = kind._plain.__new__(kind, value)
        made._tag_type = tag_type
        return made

    def value(self) -> tuple[int, int | float | str]:
        """Return the tag's number and the plain value."""
        return int(self._tag_type), plain_value(self)


class _TaggedInt(TagValue, int):
    _plain = int


class _TaggedFloat(TagValue, float):
    _plain = float


class _TaggedText(TagValue, str):
    _plain = str


_KINDS: dict[TagDType, type[TagValue]] = {
    TagDType.INT: _TaggedInt,
    TagDType.FLOAT: _TaggedFloat,
    TagDType.STRING: _TaggedText,
}


def plain_value(value: Any) -> Any:
    """Return the value of an argument given as a plain value, a TagValue or a (tag, value) pair."""
    if isinstance(value, TagValue):
        return value._plain(value)
    if type(value) is tuple and len(value) == 2:
        return value[1]
    return value


def plain_values(*groups: Mapping[str, Any] | None) -> dict[str, Any]:
    """Return the arguments of several groups as one dict."""
    return {key: plain_value(v) for group in groups if group for key, v in group.items()}


class EntityStore(IntEnum):
    """Where an entity is stored."""

    MEMORY = 0
    GPU_MEMORY = 1
    LOCAL_DISK = 2
    PARALLEL_FS = 3
    BURST_BUFFER = 4
    OBJECT_STORE = 5
    DATABASE = 6
    NETWORK = 7
    OTHER = 8


class EntityRole(IntEnum):
    """The role of an entity type."""

    UNKNOWN = 0
    INPUT = 1
    OUTPUT = 2
    INTERMEDIATE = 3
    PARAMETER = 4
    REFERENCE = 5


class EntityRelation(IntEnum):
    """How an event relates to an entity (values below 16), or an entity to another entity."""

    USED = 0
    GENERATED = 1
    INVALIDATED = 2
    UPDATED = 3
    DERIVED_FROM = 16
    REVISION_OF = 17
    CONTAINS = 18
    PART_OF = 19
    SPECIALIZATION_OF = 20
    ALTERNATE_OF = 21
    DEPENDS_ON = 22


class dftracer:
    """The log of this process. Before ``initialize_log`` and after ``finalize`` it records nothing.

    Attributes:
        run: the run that receives the records; None before ``initialize_log``.
    """

    _current: dftracer | None = None

    def __init__(self) -> None:
        self.run: Run | None = None
        self._is_own = self._is_open = False
        self._logfile: Path | None = None
        self._pid = os.getpid()

    @classmethod
    def get_instance(cls) -> dftracer:
        """Return the log of this process."""
        if dftracer._current is None:
            dftracer._current = cls()
        return dftracer._current

    @classmethod
    def initialize_log(
        cls,
        logfile: str | os.PathLike[str] | None = None,
        data_dir: str | None = None,
        process_id: int = -1,
    ) -> dftracer:
        """Start a run, unless one is active. ``finalize`` writes its trace to ``logfile``.

        The default file is ``DFTRACER_LOG_FILE``; without either, only the run folder is written. While a
        log is open, further calls return it. A worker records into its parent's run and trace. System calls
        are not traced: ``data_dir`` and ``process_id`` have no effect.
        """
        log = cls.get_instance()
        if not DFTRACER_ENABLE or log._is_active():
            return log
        in_worker = is_worker()
        log = dftracer._current = cls()
        log.run, log._is_own = borrow_run()
        log._is_open = True
        path = logfile if logfile is not None else os.environ.get("DFTRACER_LOG_FILE")
        if path is not None and not in_worker and not log.run.disabled:
            log._logfile = _trace_file(Path(path))
            _claim_name(log.run, log._logfile)
        return log

    def _is_active(self) -> bool:
        return self._is_open and self._pid == os.getpid() and active_run() is self.run

    def finalize(self) -> None:
        """Finish the run, if this log started it, and write the trace. Later calls do nothing.

        In a forked child this does nothing: the parent's trace contains the child's records.
        """
        run = self.run
        if run is None or not self._is_open or self._pid != os.getpid():
            return
        self._is_open = False
        if dftracer._current is self:
            dftracer._current = None
        if self._is_own:
            run.finish()
        else:
            run.flush()
        if self._logfile is not None:
            self._export(run, self._logfile)

    @never_raises
    def _export(self, run: Run, logfile: Path) -> None:
        from stepwell.exporters.dftracer import export_dftracer

        logfile.parent.mkdir(parents=True, exist_ok=True)
        written = export_dftracer(run.path, logfile, ranks=[run.rank], dialect=DIALECT)
        for path in written.files:
            if f"-{self._pid}-app" in path.name and _has_name(run, logfile):
                path.replace(logfile)

    # Records by explicit calls

    def get_time(self) -> int:
        """Return microseconds since the epoch, 0 while nothing is recorded."""
        return clock.wall() // 1000 if DFTRACER_ENABLE and state.enabled else 0

    def enter_event(self) -> None:
        """Do nothing: nesting follows from the times of spans."""

    def exit_event(self) -> None:
        """Do nothing, like ``enter_event``."""

    def log_event(
        self,
        name: str,
        cat: str,
        start_time: int,
        duration: int,
        int_args: Mapping[str, Any] | None = None,
        float_args: Mapping[str, Any] | None = None,
        string_args: Mapping[str, Any] | None = None,
        relations: Mapping[EntityRelation, Any] | None = None,
    ) -> None:
        """Record a finished span. Times are in microseconds, ``start_time`` as returned by ``get_time``.

        Its parent is the innermost open span that began before it. Arguments are plain values or (tag, value)
        pairs. Relations are not recorded.
        """
        if not (DFTRACER_ENABLE and state.enabled):
            return
        try:
            start_ns, length_ns = int(start_time) * 1000, int(duration) * 1000
        except (TypeError, ValueError, OverflowError):
            start_ns = length_ns = 0
        start = max(clock.from_wall(start_ns), 1)
        end = start + length_ns
        if start_ns < clock.EARLIEST_WALL or not start <= end < LAST_CLOCK:
            report_misuse(
                "log_event",
                f"log_event({shown(name)}): start_time and duration must be microseconds, start_time as "
                f"returned by get_time() after initialize_log(), got {shown(start_time)} and "
                f"{shown(duration)}. The event is not recorded",
            )
            return
        write_span(
            intern_name(name, cat), start, end, plain_values(int_args, float_args, string_args)
        )

    def log_metadata_event(self, key: str, value: Any) -> None:
        """Record a key and a value as an event."""
        write_metadata(key, value)

    # Other methods of the original

    def get_config(self, key: str) -> str:
        """Return the environment variable of this name, or ""."""
        return os.environ.get(key, "")

    def set_app_metadata_int(self, key: str, value: int) -> None:
        """Add to the labels of the run."""
        if self.run is not None:
            self.run.label(**{str(key): value})

    def set_app_metadata_string(self, key: str, value: str) -> None:
        """Add to the labels of the run."""
        if self.run is not None:
            self.run.label(**{str(key): value})

    def mark_used(self, name: str) -> None:
        """Do nothing."""

    def declare_entity(
        self, type: str, key: Any, store: EntityStore = EntityStore.MEMORY, uri: str = ""
    ) -> int:
        """Return 0, as the published library does: entities are not recorded."""
        return 0

    def declare_entity_type(
        self, type: str, role: EntityRole = EntityRole.UNKNOWN, description: str = ""
    ) -> None:
        """Do nothing: entities are not recorded."""

    def relate_entities(self, relation: EntityRelation, subject: int, object: int) -> None:
        """Do nothing: entities are not recorded."""


@never_raises
def write_span(word: int, start: int, end: int, attributes: dict[str, Any]) -> None:
    """Record a finished span; times are those of the monotonic clock."""
    lane = current_lane() if state.enabled else None
    if lane is not None:
        lane.write_finished(word, start, end, encode(attributes) if attributes else b"")


@never_raises
def write_metadata(key: str, value: Any) -> None:
    """Record a key and a value as an event."""
    journal = current_journal() if DFTRACER_ENABLE and state.enabled else None
    if journal is not None:
        journal.write_event("event", str(key), {"category": METADATA, "value": str(value)})


def _trace_file(path: Path) -> Path:
    """Return the path with a trace suffix."""
    from stepwell.exporters.dftracer import SUFFIXES

    return path if path.name.endswith(SUFFIXES) else path.with_name(f"{path.name}.pfw")


@never_raises
def _claim_name(run: Run, logfile: Path) -> None:
    """Claim a file name for this rank. Rank 0 wins, otherwise the first rank that asks."""
    if run.world_size > 1:
        path = _claim_path(run, logfile, is_main=run.rank == 0)
        path.parent.mkdir(exist_ok=True)
        create_claim(path, {"rank": run.rank})


def _has_name(run: Run, logfile: Path) -> bool:
    """Return whether the trace of this rank gets exactly the name it asked for."""
    if run.world_size == 1 or run.rank == 0:
        return True
    claim = read_claim(_claim_path(run, logfile, is_main=False))
    return claim == {"rank": run.rank} and not _claim_path(run, logfile, is_main=True).exists()


def _claim_path(run: Run, logfile: Path, is_main: bool) -> Path:
    from hashlib import sha256

    name = sha256(os.fsencode(logfile.absolute())).hexdigest()[:16]
    return run.path / TRACES / f"{name}{'.rank-0' if is_main else ''}.json"
