"""Runs: the object that ``stepwell.init`` returns, and the functions on the active run."""

from __future__ import annotations

import atexit
import os
import sys
import time
from collections.abc import Iterable, Mapping, MutableMapping
from types import TracebackType
from typing import TYPE_CHECKING, Any

from stepwell._core import clock
from stepwell._core.errors import StepwellError, log_warning, never_raises, report_misuse, warn_once
from stepwell._core.values import shown
from stepwell.journal.metrics import context, latest, set_context
from stepwell.journal.metrics import log as log
from stepwell.journal.span import AttributedSpan, IdleSpan, NamedSpan
from stepwell.journal.state import current_journal, state
from stepwell.telemetry.run_values import RunSummary, RunValues

if TYPE_CHECKING:
    from collections.abc import Callable
    from pathlib import Path

    from stepwell.telemetry.deliveries import Delivery
    from stepwell.telemetry.exporter import ExportFilter
    from stepwell.telemetry.exports import Exports
    from stepwell.telemetry.outcome import ExitWatch, Outcome
    from stepwell.telemetry.recorder import Recorder
    from stepwell.telemetry.run_document import RunDocument

FINISH_TIMEOUT = 30.0
KEEP_RUNNING_EVERY = 3.0
"""Seconds between checks for exporters whose process was killed."""

_spans: dict[str, NamedSpan] = {}
MAX_CACHED_SPANS = 10_000


def span(name: str, /, **attributes: Any) -> NamedSpan:
    """Return a span: a context manager and decorator that records a named interval.

    It can be kept and entered any number of times, also recursively and from several threads. Attributes
    are recorded each time it is entered.
    """
    try:
        plain = _spans[name]
    except (KeyError, TypeError):
        plain = _new_span(name)
    if attributes:
        attributed: AttributedSpan = AttributedSpan()
        attributed.name_word = plain.name_word
        attributed.attributes = attributes
        return attributed
    return plain


def _new_span(name: str) -> NamedSpan:
    span = NamedSpan(name if isinstance(name, str) else str(getattr(name, "value", name)))
    if isinstance(name, str) and len(_spans) < MAX_CACHED_SPANS:
        _spans[name] = span
    return span


@never_raises
def event(name: str, /, **attributes: Any) -> None:
    """Record an event now, in the innermost open span."""
    journal = current_journal() if state.enabled else None
    if journal is not None:
        journal.write_event("event", str(name), attributes)


def set_step(step: int | None, epoch: int | None = None) -> None:
    """Set the current optimizer step (from 0) and epoch of the records that follow."""
    if state.enabled:
        set_context(step, epoch)


class Run:
    """A run that records. Also a context manager that finishes it.

    Attributes:
        id: the run id.
        name: the name passed to ``init``, or that of the script, or the run id.
        path: the run folder.
        attempt: 0 for the first launch of this run, one more for each restart.
        rank: rank of this process.
        world_size: number of ranks.
        config: the configuration of the training, a mapping. Changes are recorded, secrets masked.
        summary: the final values, a mapping: the last value of each metric, unless you set another.
        tags: words to find the run by; assign another tuple to change them.
        labels: the facts passed to ``label``.
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
    event = staticmethod(event)
    set_step = staticmethod(set_step)

    def artifact(
        self,
        path_or_bytes: str | os.PathLike[str] | bytes,
        name: str | None = None,
        **attributes: Any,
    ) -> None:
        """Store a copy of a file, of each file of a folder, or of bytes with the run.

        The content is copied before the call returns, so the original may change afterwards.
        """
        if state.enabled:
            self._keep(path_or_bytes, name, attributes)

    @never_raises
    def _keep(self, source: str | os.PathLike[str] | bytes, name: str | None, more: Any) -> None:
        from stepwell.telemetry import artifacts

        journal = current_journal()
        if journal is None:
            return
        for content, artifact_name in artifacts.contents(source, name):
            try:
                sha256, size = artifacts.store(self.path, content)
            except OSError as error:
                journal.count_drop("artifacts")
                if journal.failing is None:
                    warn_once(f"artifact {error.errno}", "An artifact was not stored: %s", error)
                continue
            journal.write_event("artifact", artifact_name, more, sha256=sha256, size=size)

    # Properties

    @property
    def url(self) -> str:
        """The run folder, as text."""
        return str(self.path)

    @property
    def tags(self) -> tuple[str, ...]:
        """Words to find the run by."""
        return self._tags

    @tags.setter
    def tags(self, tags: Iterable[str]) -> None:
        words = tuple(tags) if isinstance(tags, Iterable) and not isinstance(tags, str) else (tags,)
        if isinstance(tags, str) or not all(isinstance(word, str) for word in words):
            report_misuse(
                "tags", f"run.tags must be a list of strings, got {shown(tags)}: not changed"
            )
            return
        self._tags = words
        self._record_value("tags", list(words))

    @never_raises
    def label(self, **labels: Any) -> None:
        """Record facts that distinguish runs, such as a session tag, in run.json."""
        from stepwell._core.values import plain_mapping

        self.labels.update(labels)
        if self._exports is not None:
            self._exports.label(self.labels)
        self._record_value("labels", plain_mapping(self.labels))

    @never_raises
    def add_config(self, config: Any, *, replace: bool = True) -> None:
        """Add to the configuration: a dict, Namespace, dataclass or the like.

        New values replace existing ones. With ``replace=False`` they replace only values that were added with
        ``replace=False`` too: values from the author of the training are kept.
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

    @never_raises
    def _record_config(self, config: dict[str, Any]) -> None:
        from stepwell._core.masking import mask
        from stepwell._core.values import plain_mapping
        from stepwell.telemetry.identity import config_to_dict

        masked = mask(plain_mapping(config_to_dict(config)))
        if self._document is not None:
            self._document.attempt["config"] = masked
        self._record_value("config", masked)

    @never_raises
    def _record_summary(self, values: dict[str, Any]) -> None:
        from stepwell._core.values import plain_mapping

        fetched = {name: _fetched(value) for name, value in values.items()}
        self._record_value("summary", plain_mapping(fetched))

    def _record_value(self, key: str, value: Any) -> None:
        """Replace a value in run.json, in the background."""
        recorder, document = self._own_recorder, self._document
        if recorder is None or document is None:
            return
        document.values[key] = value
        if not document.is_due:
            document.is_due = True
            recorder.pump.run_soon(document.write)

    @property
    def _own_recorder(self) -> Recorder | None:
        """The recorder; None after the end, and in a forked process."""
        recorder = self._recorder
        return None if recorder is None or recorder.pid != os.getpid() else recorder

    def _last_value(self, name: str) -> float | None:
        recorder = self._recorder
        return None if recorder is None else latest(name, recorder.journal.lanes)

    def _last_values(self) -> dict[str, Any]:
        """Read the last values from the run folder: sealed records are no longer in memory."""
        from stepwell.reading import open_run

        try:
            return open_run(self.path).summary
        except (StepwellError, OSError):
            return {}

    # Exporting

    def add_exporter(self, exporter: Any, filter: ExportFilter | None = None) -> None:
        """Add an exporter, which gets this run's records from the first one on, in the background.

        Without a filter it gets all spans but the short ones of every iteration (trace exporters get these
        too). An exporter equal to one already added is ignored.
        """
        from stepwell.telemetry.exporter import check_exporter
        from stepwell.telemetry.exports import Exports

        check_exporter(exporter)
        recorder = self._own_recorder
        if self.disabled:
            return
        if recorder is None:
            warn_once(
                f"exporter {self.id}",
                "Run %s is finished, or was started by another process: no exporter was added.",
                self.id,
            )
            return
        if self._exports is None:
            self._exports = Exports(recorder.folder, recorder.info, self.name, self.labels)
            recorder.pump.every(KEEP_RUNNING_EVERY, self._exports.keep_running)
        self._exports.add(exporter, filter)

    @property
    def exporters(self) -> list[Delivery]:
        """The exporters of this run, with name, number of records sent, failures and latest error."""
        return [] if self._exports is None else list(self._exports.deliveries)

    # Ending

    def before_finish(self, hook: Callable[[str], None]) -> None:
        """Call ``hook`` with the final status, just before recording stops."""
        self._before_finish.append(hook)

    def flush(self, timeout: float = 10.0) -> bool:
        """Wait until everything recorded so far is in the run folder and delivered by the exporters.

        Return whether that was done in time.
        """
        recorder, exports = self._own_recorder, self._exports
        if recorder is None:
            return True
        deadline = time.monotonic() + timeout
        in_folder = recorder.pump.flush(timeout)
        if exports is None:
            return in_folder
        return exports.drain(max(0.0, deadline - time.monotonic())) and in_folder

    def finish(self, status: str | None = None, *, timeout: float = FINISH_TIMEOUT) -> None:
        """End the run: seal its files, record its outcome, and wait for its exporters.

        It waits as long as they make progress, at most ``STEPWELL_FINISH_TIMEOUT`` seconds (default: 300).
        After Ctrl-C delivery continues in the background.

        Args:
            status: finished, failed, interrupted or killed. Default: finished, or interrupted if
                Ctrl-C ended the training and the program caught it.
            timeout: seconds to wait for the run folder.
        """
        from stepwell.journal.document import ENDINGS
        from stepwell.telemetry.outcome import Outcome

        if status is not None and status not in ENDINGS:
            raise StepwellError(f"status must be one of {', '.join(ENDINGS)}, got {status!r}")
        self._end(self._ended() if status is None else Outcome(status), timeout)

    def _ended(self) -> Outcome:
        """Return the outcome of a run that no exception has ended."""
        from stepwell.telemetry.outcome import FINISHED

        exits = _active.exits if _active.run is self else None
        return FINISHED if exits is None else exits.unraised()

    def _end(self, outcome: Outcome, timeout: float) -> None:
        try:
            if self._own_recorder is not None:
                for hook in self._before_finish:
                    _call(hook, outcome.status)
        finally:
            # Also if a hook raises, as it may in strict mode: nothing else would end the run.
            self._end_recording(outcome, timeout)

    def _end_recording(self, outcome: Outcome, timeout: float) -> None:
        recorder, self._recorder = self._own_recorder, None
        if recorder is None:
            return
        from stepwell.telemetry.children import release_children

        self.status = outcome.status
        losses = "" if self.quiet else _last_losses(recorder)
        self._stop_recording()
        if _active.run is self:
            _active.run = None
            _active.stop_watching()
            release_children()
        never_raises(recorder.close)(outcome, timeout)
        if self._exports is not None:
            never_raises(self._exports.finish)(outcome.status, self.quiet)
        if not self.quiet and recorder.journal.failing is None:
            of = f" on rank {self.rank}" if losses and self.world_size > 1 else ""
            self._print_end(outcome, f"{losses or ''}{of}")

    @never_raises
    def _print_end(self, outcome: Outcome, losses: str) -> None:
        from stepwell.telemetry.notices import print_end

        print_end(self.path, outcome, clock.now() - self._began, context.step, losses)

    def _stop_recording(self) -> None:
        """Make this object do nothing from now on: another run may be active when it is used."""
        own = self.__dict__
        own["log"] = own["event"] = own["set_step"] = own["artifact"] = self._too_late
        own["span"] = self._idle_span

    def _too_late(self, *args: object, **kwargs: object) -> None:
        warn_once(f"late {self.id}", "Run %s is finished and records nothing more.", self.id)

    def _idle_span(self, name: str, /, **attributes: Any) -> NamedSpan:
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
        from stepwell.telemetry.outcome import outcome_of

        self._end(self._ended() if error is None else outcome_of(error), FINISH_TIMEOUT)

    def __getstate__(self) -> dict[str, Any]:
        # In another process it can still record, into the journal of that process.
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

    def show(self, height: int = 720) -> Any:
        """Return the page of the run so far, as a notebook shows it; see also ``stepwell ui``.

        Args:
            height: height of the page in pixels.
        """
        from stepwell.reading import open_run

        return open_run(self.path).show(height)

    def __repr__(self) -> str:
        return f"<stepwell run {self.id}, attempt {self.attempt}, rank {self.rank}, {self.status}>"


@never_raises
def _call(hook: Callable[[str], None], status: str) -> None:
    try:
        hook(status)
    except StepwellError as error:
        report_misuse("end of the run", str(error))


def _fetched(value: Any) -> Any:
    """Return a scalar on an accelerator as a number; anything else as it is."""
    if hasattr(value, "item") and getattr(value, "numel", lambda: 0)() == 1:
        return value.item()
    return value


@never_raises
def _last_losses(recorder: Recorder) -> str:
    from stepwell.telemetry.notices import last_losses

    if recorder.journal.scalars.pending:
        # Values on an accelerator: most are ready, and there is no wait for the others.
        recorder.pump.flush(0.5)
    return last_losses(recorder.journal.lanes)


class _Active:
    run: Run | None = None
    at_exit = False
    error_before: BaseException | None = None
    exits: ExitWatch | None = None

    def stop_watching(self) -> None:
        if self.exits is not None:
            self.exits.stop()
            self.exits = None


_active = _Active()


def active_run() -> Run | None:
    """Return the active run, or None."""
    return _active.run


def recorder_of(run: Run | None) -> Recorder | None:
    """Return the recorder of a run in this process; None if there is no run, or it is over or disabled."""
    return None if run is None else run._recorder


def activate(run: Run, recorder: Recorder) -> None:
    """Make this the active run, and start to record."""
    from stepwell.telemetry.children import adopt_children
    from stepwell.telemetry.outcome import ExitWatch

    _active.run = run
    _active.error_before = getattr(sys, "last_value", None)
    _active.stop_watching()
    _active.exits = ExitWatch(sys._getframe())
    _active.exits.start()
    recorder.journal.on_exit = _active.exits.note
    recorder.open()
    adopt_children(recorder.journal.folder, recorder.info, run)
    if not _active.at_exit:
        _active.at_exit = True
        atexit.register(_finish_at_exit)


def adopt_run(run: Run) -> None:
    """In a spawned child, make its parent's run the active one."""
    _active.run = run


def finish_active() -> None:
    """Finish the active run, if there is one, because another starts."""
    if _active.run is not None:
        log_warning(
            "Run %s was still active. It is finished, because another run starts.", _active.run.id
        )
        _active.run.finish()


def _finish_at_exit() -> None:
    from stepwell.telemetry.outcome import outcome_of

    run = _active.run
    if run is None:
        return
    error = getattr(sys, "last_value", None)
    if error is _active.error_before:
        # A notebook keeps the error of a cell that ran before the run began.
        error = None
    exits = _active.exits
    outcome = outcome_of(error) if error is not None or exits is None else exits.outcome()
    run._end(outcome, FINISH_TIMEOUT)


def artifact(
    path_or_bytes: str | os.PathLike[str] | bytes, name: str | None = None, **attributes: Any
) -> None:
    """Store a copy of a file, of each file of a folder, or of bytes with the active run."""
    if _active.run is not None:
        _active.run.artifact(path_or_bytes, name, **attributes)


def flush(timeout: float = 10.0) -> bool:
    """Wait until everything recorded so far is in the run folder; return whether that was done in time."""
    return _active.run is None or _active.run.flush(timeout)


def finish(status: str | None = None) -> None:
    """Finish the active run; see ``Run.finish`` for ``status``."""
    if _active.run is not None:
        _active.run.finish(status)
