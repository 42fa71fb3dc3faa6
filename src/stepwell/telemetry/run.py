"""Runs: the object that ``stepwell.init`` returns, and the functions on the active one."""

from __future__ import annotations

import atexit
import os
import sys
import time
from collections.abc import Iterable, Mapping, MutableMapping
from types import TracebackType
from typing import TYPE_CHECKING, Any

from stepwell.journal import clock
from stepwell.journal.errors import StepwellError, misuse, quietly, say, warn_once
from stepwell.journal.metrics import context, latest, set_context
from stepwell.journal.metrics import log as log
from stepwell.journal.span import AttributedSpan, IdleSpan, Span
from stepwell.journal.state import current_journal, state
from stepwell.journal.values import shown
from stepwell.telemetry.run_values import RunSummary, RunValues

if TYPE_CHECKING:
    from collections.abc import Callable
    from pathlib import Path

    from stepwell.telemetry.deliveries import Delivery
    from stepwell.telemetry.ending import Ending, ExitWatch
    from stepwell.telemetry.export_filter import ExportFilter
    from stepwell.telemetry.exports import Exports
    from stepwell.telemetry.recorder import Recorder
    from stepwell.telemetry.run_document import RunDocument

FINISH_TIMEOUT = 30.0
KEEP_RUNNING_EVERY = 3.0
"""Seconds after which exporters whose process was killed are started again."""

_spans: dict[str, Span] = {}
MAX_CACHED_SPANS = 10_000


def span(name: str, /, **attributes: Any) -> Span:
    """Give a name to a stretch of time, in a ``with`` statement or above a function.

    It can be kept and entered as often as you like, also recursively and from several threads.
    Attributes are recorded each time it is entered.
    """
    try:
        found = _spans[name]
    except (KeyError, TypeError):
        found = _new_span(name)
    if attributes:
        made: AttributedSpan = AttributedSpan()
        made._word = found._word
        made.attributes = attributes
        return made
    return found


def _new_span(name: str) -> Span:
    made = Span(name if isinstance(name, str) else str(getattr(name, "value", name)))
    if isinstance(name, str) and len(_spans) < MAX_CACHED_SPANS:
        _spans[name] = made
    return made


@quietly
def event(name: str, /, **attributes: Any) -> None:
    """Record that something happened now, inside the innermost open span."""
    journal = current_journal() if state.enabled else None
    if journal is not None:
        journal.write_event("event", str(name), attributes)


def set_step(step: int | None, epoch: int | None = None) -> None:
    """Say which optimizer step (from 0) and epoch it is now; what follows belongs to it."""
    if state.enabled:
        set_context(step, epoch)


class Run:
    """A run that is being recorded. Also a context manager that finishes it.

    Attributes:
        id: the run id.
        name: the name given to ``init``, or that of the script, or the id given.
        path: the run folder.
        attempt: 0 for the first launch of this run, one more for each restart.
        rank: rank of this process.
        world_size: number of ranks.
        config: what the training was configured with, a mapping. Changes are recorded, secrets masked.
        summary: the final values, a mapping: the last value of each metric, unless another one is set.
        tags: words to find the run by; assign another tuple to change them.
        labels: what ``label`` was told.
        disabled: whether nothing is recorded (``STEPWELL_MODE=off``).
        quiet: whether it prints no lines at its start and end.
    """

    _exports: Exports | None = None

    def __init__(
        self,
        *,
        id: str,
        name: str,
        path: Path,
        attempt: int,
        rank: int,
        recorder: Recorder | None,
        world_size: int = 1,
        document: RunDocument | None = None,
        disabled: bool = False,
        quiet: bool = True,
        config: Mapping[str, Any] | None = None,
        tags: Iterable[str] = (),
    ) -> None:
        self.id = id
        self.name = name
        self.path = path
        self.attempt = attempt
        self.rank = rank
        self.world_size = world_size
        self.labels: dict[str, Any] = {}
        self.disabled = disabled
        self.quiet = quiet
        self.status = "running"
        self._recorder = recorder
        self._document = document
        self._before_finish: list[Callable[[str], None]] = []
        self._began = clock.now()
        self._fill(config or {}, tags)

    def _fill(self, config: Mapping[str, Any], tags: Iterable[str]) -> None:
        self.config: MutableMapping[str, Any] = RunValues(config, self._record_config)
        self.summary: MutableMapping[str, Any] = RunSummary(
            self._record_summary, self._last_value, self._last_values
        )
        self._tags = tuple(tags)
        self._derived_config: set[str] = set()

    # Recording

    log = staticmethod(log)
    span = staticmethod(span)

    def event(self, name: str, /, **attributes: Any) -> None:
        """Record that something happened now, inside the innermost open span."""
        event(name, **attributes)

    def set_step(self, step: int | None, epoch: int | None = None) -> None:
        """Say which optimizer step (from 0) and epoch it is now; what follows belongs to it."""
        set_step(step, epoch)

    def artifact(
        self,
        path_or_bytes: str | os.PathLike[str] | bytes,
        name: str | None = None,
        **attributes: Any,
    ) -> None:
        """Keep a copy of a file, of each file of a folder, or of bytes with the run.

        The content is copied before the call returns, so the original may change afterwards.
        """
        if state.enabled:
            self._keep(path_or_bytes, name, attributes)

    @quietly
    def _keep(self, source: str | os.PathLike[str] | bytes, name: str | None, more: Any) -> None:
        from stepwell.telemetry import artifacts

        journal = current_journal()
        if journal is None:
            return
        for content, called in artifacts.contents(source, name):
            try:
                sha256, size = artifacts.store(self.path, content)
            except OSError as error:
                journal.count_drop("artifacts")
                if journal.failing is None:
                    warn_once(f"artifact {error.errno}", "an artifact was not kept: %s", error)
                continue
            journal.write_event("artifact", called, more, sha256=sha256, size=size)

    # What it is

    @property
    def url(self) -> str:
        """Where to look at the run: its folder."""
        return str(self.path)

    @property
    def tags(self) -> tuple[str, ...]:
        """Words to find the run by."""
        return self._tags

    @tags.setter
    def tags(self, tags: Iterable[str]) -> None:
        words = tuple(tags) if isinstance(tags, Iterable) and not isinstance(tags, str) else (tags,)
        if isinstance(tags, str) or not all(isinstance(word, str) for word in words):
            misuse("tags", f"run.tags must be a list of strings, got {shown(tags)}: not changed")
            return
        self._tags = words
        self._record_about("tags", list(words))

    @quietly
    def label(self, **labels: Any) -> None:
        """Keep facts that runs are told apart by, such as a session tag, in run.json."""
        from stepwell.journal.careful import plain_mapping

        self.labels.update(labels)
        if self._exports is not None:
            self._exports.label(self.labels)
        self._record_about("labels", plain_mapping(self.labels))

    @quietly
    def add_config(self, config: Any, *, replace: bool = True) -> None:
        """Add to what the training was configured with: a dict, Namespace, dataclass or the like.

        What has a value already takes the new one. With ``replace=False`` it does so only where the value
        was added in this way, too: keys that the author of the training gave stay.
        """
        from stepwell.telemetry.identity import config_to_dict

        added = config_to_dict(config)
        if replace:
            self._derived_config.difference_update(added)
        else:
            given = self.config.keys() - self._derived_config
            added = {key: value for key, value in added.items() if key not in given}
            self._derived_config.update(added)
        self.config.update(added)

    @quietly
    def _record_config(self, config: dict[str, Any]) -> None:
        from stepwell.journal.careful import plain_mapping
        from stepwell.telemetry.identity import config_to_dict, mask

        masked = mask(plain_mapping(config_to_dict(config)))
        if self._document is not None:
            self._document.attempt["config"] = masked
        self._record_about("config", masked)

    @quietly
    def _record_summary(self, values: dict[str, Any]) -> None:
        from stepwell.journal.careful import plain_mapping

        fetched = {name: _fetched(value) for name, value in values.items()}
        self._record_about("summary", plain_mapping(fetched))

    def _record_about(self, key: str, value: Any) -> None:
        """Have a part of run.json replaced, in the background."""
        recorder, document = self._recorder, self._document
        if recorder is None or recorder.pid != os.getpid() or document is None:
            return
        document.about[key] = value
        if not document.is_due:
            document.is_due = True
            recorder.pump.run_soon(document.write)

    def _last_value(self, name: str) -> float | None:
        recorder = self._recorder
        return None if recorder is None else latest(name, recorder.journal.lanes)

    def _last_values(self) -> dict[str, Any]:
        """Read from the run folder: what was sealed is no longer in memory."""
        from stepwell.reading import open_run

        try:
            return open_run(self.path).summary
        except (StepwellError, OSError):
            return {}

    # Exporting

    def add_exporter(self, exporter: Any, filter: ExportFilter | None = None) -> None:
        """Let an exporter have this run's records, from the first one on, in the background.

        Without a filter it gets all spans but the short ones of every iteration (traces get these
        too). An exporter that is there already is not added again.
        """
        from stepwell.telemetry.exporter import check_exporter
        from stepwell.telemetry.exports import Exports

        check_exporter(exporter)
        recorder = self._recorder
        if self.disabled:
            return
        if recorder is None or recorder.pid != os.getpid():
            warn_once(
                f"exporter {self.id}",
                "run %s is finished, or was started by another process: it takes no exporter here",
                self.id,
            )
            return
        if self._exports is None:
            self._exports = Exports.of(recorder.folder, recorder.about, self.name, self.labels)
            recorder.pump.every(KEEP_RUNNING_EVERY, self._exports.keep_running)
        self._exports.add(exporter, filter)

    @property
    def exporters(self) -> list[Delivery]:
        """The exporters of this run: name, how many records each took, and what went wrong."""
        return [] if self._exports is None else list(self._exports.deliveries)

    # Ending

    def before_finish(self, hook: Callable[[str], None]) -> None:
        """Have something done, with the status that it ends with, just before recording stops."""
        self._before_finish.append(hook)

    def flush(self, timeout: float = 10.0) -> bool:
        """Wait until what was recorded so far is in the run folder and with the exporters.

        Returns whether it was in time.
        """
        recorder, exports = self._recorder, self._exports
        if recorder is None or recorder.pid != os.getpid():
            return True
        deadline = time.monotonic() + timeout
        in_folder = recorder.pump.flush(timeout)
        if exports is None:
            return in_folder
        return exports.drain(max(0.0, deadline - time.monotonic())) and in_folder

    def finish(self, status: str | None = None, *, timeout: float = FINISH_TIMEOUT) -> None:
        """End the run: seal its files, record how it ended, and wait for its exporters.

        It waits as long as they make progress, ``STEPWELL_FINISH_TIMEOUT`` at most (5 minutes by default).
        Ctrl-C leaves the rest to the background.

        Args:
            status: finished, failed, interrupted or killed. Default: finished, or interrupted if
                Ctrl-C ended the training and the program caught it.
            timeout: seconds to wait for the run folder.
        """
        from stepwell.journal.liveness import ENDINGS
        from stepwell.telemetry.ending import Ending

        if status is not None and status not in ENDINGS:
            raise StepwellError(f"status is {status!r}: write one of {', '.join(ENDINGS)}")
        self._end(self._ended() if status is None else Ending(status), timeout)

    def _ended(self) -> Ending:
        """How a run ended that no exception left."""
        from stepwell.telemetry.ending import FINISHED

        exits = _active.exits if _active.run is self else None
        return FINISHED if exits is None else exits.unraised()

    def _end(self, ending: Ending, timeout: float) -> None:
        try:
            if self._recorder is not None and self._recorder.pid == os.getpid():
                for hook in self._before_finish:
                    _call(hook, ending.status)
        finally:
            # Also when a hook raises, as it may where problems are raised: nobody would end it later.
            self._end_recording(ending, timeout)

    def _end_recording(self, ending: Ending, timeout: float) -> None:
        recorder, self._recorder = self._recorder, None
        if recorder is None or recorder.pid != os.getpid():
            return
        from stepwell.telemetry.children import release_children

        self.status = ending.status
        losses = "" if self.quiet else _last_losses(recorder)
        self._stop_recording()
        if _active.run is self:
            _active.run = None
            _active.stop_watching()
            release_children()
        _close(recorder, ending, timeout)
        if self._exports is not None:
            _finish_exports(self._exports, ending.status, self.quiet)
        if not self.quiet and recorder.journal.failing is None:
            of = f" on rank {self.rank}" if losses and self.world_size > 1 else ""
            self._print_end(ending, f"{losses or ''}{of}")

    @quietly
    def _print_end(self, ending: Ending, losses: str) -> None:
        from stepwell.telemetry.notices import print_end

        print_end(self.path, ending, clock.now() - self._began, context.step, losses)

    def _stop_recording(self) -> None:
        """Make this object do nothing: another run may be active when it is used again."""
        own = self.__dict__
        own["log"] = own["event"] = own["set_step"] = own["artifact"] = self._too_late
        own["span"] = self._idle_span

    def _too_late(self, *args: object, **kwargs: object) -> None:
        warn_once(f"late {self.id}", "run %s is finished: it records nothing more", self.id)

    def _idle_span(self, name: str, /, **attributes: Any) -> Span:
        self._too_late()
        return IdleSpan(name)

    def __enter__(self) -> Run:
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        trace: TracebackType | None,
    ) -> None:
        from stepwell.telemetry.ending import ending_of

        self._end(self._ended() if error is None else ending_of(error), FINISH_TIMEOUT)

    def __getstate__(self) -> dict[str, Any]:
        # In another process it can still record, as that process's journal lets it.
        kept = [
            "id",
            "name",
            "path",
            "attempt",
            "rank",
            "world_size",
            "labels",
            "disabled",
            "quiet",
            "status",
            "_began",
            "_tags",
        ]
        here: dict[str, Any] = {"_recorder": None, "_document": None, "_before_finish": []}
        return {**{key: self.__dict__[key] for key in kept}, **here, "_config": dict(self.config)}

    def __setstate__(self, state: dict[str, Any]) -> None:
        config = state.pop("_config")
        self.__dict__.update(state)
        self._fill(config, state["_tags"])

    def __repr__(self) -> str:
        return f"<stepwell run {self.id}, attempt {self.attempt}, rank {self.rank}, {self.status}>"


@quietly
def _call(hook: Callable[[str], None], status: str) -> None:
    try:
        hook(status)
    except StepwellError as error:
        misuse("end of the run", str(error))


@quietly
def _close(recorder: Recorder, ending: Ending, timeout: float) -> None:
    recorder.close(ending, timeout)


def _fetched(value: Any) -> Any:
    """Return a scalar on an accelerator as a number; anything else as it is."""
    if hasattr(value, "item") and getattr(value, "numel", lambda: 0)() == 1:
        return value.item()
    return value


@quietly
def _last_losses(recorder: Recorder) -> str:
    from stepwell.telemetry.notices import last_losses

    if recorder.journal.scalars.pending:
        # Those on an accelerator: most are ready, and none is waited for.
        recorder.pump.flush(0.5)
    return last_losses(recorder.journal.lanes)


@quietly
def _finish_exports(exports: Exports, status: str, quiet: bool) -> None:
    exports.finish(status, quiet)


class _Active:
    run: Run | None = None
    at_exit = False
    error_before: BaseException | None = None
    exits: ExitWatch | None = None

    def stop_watching(self) -> None:
        """Note no more exits."""
        if self.exits is not None:
            self.exits.stop()
            self.exits = None


_active = _Active()


def active_run() -> Run | None:
    """The run that is being recorded, or None."""
    return _active.run


def activate(run: Run, recorder: Recorder) -> None:
    """Make this the active run; an earlier one is finished first."""
    from stepwell.telemetry.children import adopt_children
    from stepwell.telemetry.ending import ExitWatch

    _active.run = run
    _active.error_before = getattr(sys, "last_value", None)
    _active.stop_watching()
    _active.exits = ExitWatch(sys._getframe())
    _active.exits.start()
    recorder.journal.on_exit = _active.exits.note
    recorder.open()
    adopt_children(recorder.journal.folder, recorder.about, run)
    if not _active.at_exit:
        _active.at_exit = True
        atexit.register(_finish_at_exit)


def adopt_run(run: Run) -> None:
    """In a spawned child: make its parent's run the active one."""
    _active.run = run


def finish_active() -> None:
    """Finish the active run, if there is one, because another begins."""
    if _active.run is not None:
        say("run %s was still active: it is finished, and another begins", _active.run.id)
        _active.run.finish()


def _finish_at_exit() -> None:
    from stepwell.telemetry.ending import ending_of

    run = _active.run
    if run is None:
        return
    error = getattr(sys, "last_value", None)
    if error is _active.error_before:
        # A notebook keeps the error of a cell that ran before the run began.
        error = None
    exits = _active.exits
    ending = ending_of(error) if error is not None or exits is None else exits.ending()
    run._end(ending, FINISH_TIMEOUT)


def artifact(
    path_or_bytes: str | os.PathLike[str] | bytes, name: str | None = None, **attributes: Any
) -> None:
    """Keep a copy of a file, of each file of a folder, or of bytes with the active run."""
    if _active.run is not None:
        _active.run.artifact(path_or_bytes, name, **attributes)


def flush(timeout: float = 10.0) -> bool:
    """Wait until what the active run recorded so far is in its folder; whether it was in time."""
    return _active.run is None or _active.run.flush(timeout)


def finish(status: str | None = None) -> None:
    """Finish the active run; ``status`` as for ``Run.finish``."""
    if _active.run is not None:
        _active.run.finish(status)
