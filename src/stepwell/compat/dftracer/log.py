"""``dftracer``: the log of a process, which is a run and the file that its trace is written to."""

from __future__ import annotations

import os
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from stepwell.compat.dftracer.tags import EntityRelation, EntityRole, EntityStore, plain_values
from stepwell.journal import clock
from stepwell.journal.errors import misuse, quietly
from stepwell.journal.settings import read_flag
from stepwell.journal.state import current_journal, current_lane, state
from stepwell.journal.values import encode, shown
from stepwell.telemetry.children import is_worker
from stepwell.telemetry.claims import create_claim, read_claim
from stepwell.telemetry.events import LAST_CLOCK, METADATA
from stepwell.telemetry.live import word_of
from stepwell.telemetry.run import Run, active_run
from stepwell.telemetry.start import init

DIALECT = "old"
"""The one with brackets, ``p_idx`` and ``level``."""
TRACES = "traces"
"""Folder of a run with a small file for each trace that several ranks may have asked for."""
DFTRACER_ENABLE = read_flag(os.environ, "DFTRACER_ENABLE", default=True)
"""Whether these names record: yes, unless the variable says no."""


class dftracer:
    """The log of this process. Before ``initialize_log`` and after ``finalize`` it records nothing.

    Attributes:
        run: the run that it records into, None before ``initialize_log``.
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
        """Start a run, unless one is active; ``finalize`` writes its trace to ``logfile``.

        Without a logfile it is ``DFTRACER_LOG_FILE``; without that there is the run folder alone. While a
        log is open, another call returns that one. A worker records into its parent's run and trace.
        System calls are not traced: ``data_dir`` and ``process_id`` have no effect.
        """
        log = cls.get_instance()
        if not DFTRACER_ENABLE or log._is_active():
            return log
        in_worker = is_worker()
        run = active_run()
        log = dftracer._current = cls()
        log._is_own, log._is_open = run is None, True
        log.run = run or init()
        path = logfile if logfile is not None else os.environ.get("DFTRACER_LOG_FILE")
        if path is not None and not in_worker and not log.run.disabled:
            log._logfile = _trace_file(Path(path))
            _claim_name(log.run, log._logfile)
        return log

    def _is_active(self) -> bool:
        return self._is_open and self._pid == os.getpid() and active_run() is self.run

    def finalize(self) -> None:
        """Finish the run, if it was started here, and write the trace. Only the first call counts.

        In a forked child nothing is to be done: what it recorded is in its parent's trace.
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

    @quietly
    def _export(self, run: Run, logfile: Path) -> None:
        from stepwell.exporters.dftracer_export import export_dftracer

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
        """Do nothing: which span lies in which follows from when they are open."""

    def exit_event(self) -> None:
        """Do nothing, as ``enter_event``."""

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
        """Record a span that is over, both times in microseconds, the first as from ``get_time``.

        Its parent is the innermost open span that began before it. Arguments are plain values, or pairs of a
        tag and a value. Relations are not recorded.
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
            misuse(
                "log_event",
                f"log_event({shown(name)}) has the start_time {shown(start_time)} and the duration "
                f"{shown(duration)}: write microseconds since the epoch, as get_time() returns them "
                "after initialize_log(). The event is not recorded",
            )
            return
        write_span(word_of(name, cat), start, end, plain_values(int_args, float_args, string_args))

    def log_metadata_event(self, key: str, value: Any) -> None:
        """Record a pair of texts at once."""
        write_metadata(key, value)

    # What else the original has

    def get_config(self, key: str) -> str:
        """Return a setting: the environment variable of this name, "" without one."""
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


@quietly
def write_span(word: int, start: int, end: int, attributes: dict[str, Any]) -> None:
    """Write a span that is over, by the monotonic clock."""
    lane = current_lane() if state.enabled else None
    if lane is not None:
        lane.write_finished(word, start, end, encode(attributes) if attributes else b"")


@quietly
def write_metadata(key: str, value: Any) -> None:
    """Record a pair of texts at once."""
    journal = current_journal() if DFTRACER_ENABLE and state.enabled else None
    if journal is not None:
        journal.write_event("event", str(key), {"category": METADATA, "value": str(value)})


def _trace_file(path: Path) -> Path:
    """The file to write; one without an ending of traces gets it."""
    from stepwell.exporters.dftracer_export import SUFFIXES

    return path if path.name.endswith(SUFFIXES) else path.with_name(f"{path.name}.pfw")


@quietly
def _claim_name(run: Run, logfile: Path) -> None:
    """Note which rank asked for a name: rank 0 has it, else the first one that asks."""
    if run.world_size > 1:
        path = _claim_path(run, logfile, is_main=run.rank == 0)
        path.parent.mkdir(exist_ok=True)
        create_claim(path, {"rank": run.rank})


def _has_name(run: Run, logfile: Path) -> bool:
    """Whether the trace of this rank has the very name that it asked for."""
    if run.world_size == 1 or run.rank == 0:
        return True
    claim = read_claim(_claim_path(run, logfile, is_main=False))
    return claim == {"rank": run.rank} and not _claim_path(run, logfile, is_main=True).exists()


def _claim_path(run: Run, logfile: Path, is_main: bool) -> Path:
    from hashlib import sha256

    name = sha256(os.fsencode(logfile.absolute())).hexdigest()[:16]
    return run.path / TRACES / f"{name}{'.rank-0' if is_main else ''}.json"
