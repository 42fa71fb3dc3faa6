"""``Logger``: one ``log()`` for everything there is to log. It writes to the run and returns.

Another process reads the run and delivers the records to the backend. A logger without a backend is useful
too: everything it logs is in the run folder.
"""

from __future__ import annotations

import contextlib
import os
from collections.abc import Callable, Iterator, Mapping, Sequence
from time import perf_counter_ns as _now
from typing import Any, ClassVar, TypeVar

from stepwell._core import clock
from stepwell._core.checks import one_of
from stepwell._core.errors import StepwellError, report, report_misuse, warn_once
from stepwell._core.values import shown, text_of
from stepwell.journal import metrics
from stepwell.journal.document import ENDINGS
from stepwell.journal.format import IMPLICIT_STEP, ROW_BYTES, STEP_BIAS, WHOLE_ROW
from stepwell.journal.lane import Lane
from stepwell.journal.metrics import MAX_COUNT
from stepwell.journal.metrics import context as current
from stepwell.journal.state import local, state
from stepwell.loggers.checks import (
    FOLDER,
    ID,
    LOG_FREQ,
    RANK,
    TIMEOUT,
    WORKERS,
    check_options,
)
from stepwell.loggers.context import (
    LoggerContext,
    find_run,
    finish_contexts,
    load_backend,
    place_rank,
)
from stepwell.loggers.delivery.backend import BackendRun, wait_for_run
from stepwell.loggers.items import converters as items
from stepwell.loggers.kinds import KINDS, METRIC, WITHOUT_ITEM, check_kind, context_name
from stepwell.loggers.targets import (
    DEFAULT,
    LogFreq,
    NameIds,
    Target,
    Targets,
    Workers,
    current_batch,
    every,
)
from stepwell.loggers.writer import keep, keep_documents, keep_params, write_metric
from stepwell.telemetry.outcome import outcome_of

Self = TypeVar("Self", bound="Logger")

_pack = WHOLE_ROW.pack_into
_words = metrics._words
_counts = metrics._counts
UNNAMED = "unnamed-experiment"
PLACEHOLDERS = (UNNAMED, "experiment_name")
"""Documented defaults of experiment names. They are not used as names of runs."""
EARLIER_CONTEXT = {
    "": "",
    "destroyed": ". (Its earlier context was destroyed.)",
    "elsewhere": ". (A logger that is sent to another process needs a new context there.)",
}
"""End of the message about a missing context, by what became of an earlier one."""


class Logger:
    """Base class of all loggers. By itself it has no backend and logs to the run only.

    To log to another place, write a ``stepwell.loggers.Backend`` and a subclass of ``Logger`` that names it
    in ``backend_class``; ``backend_options`` returns the arguments of its constructor.

    Args:
        savedir: folder for the backend's files on this machine.
        log_freq: which batches count: a number n (batches 0, n, 2 n, …), ``"batch"`` (all batches), or
            ``"epoch"`` (none: only calls without ``batch_idx``, outside of a training iteration). The default
            is ``"epoch"``; in a Lightning trainer it is ``"batch"``.
        log_on_workers: the global ranks that log: one rank, several, or -1 for all.
        experiment_id: the backend's own id of the experiment to log to.
        run_id: the backend's own id of a run to continue.
    """

    to: ClassVar[str] = "run"
    """Its name in the run, in a collection, and in ``stepwell forward RUN --to …``."""
    backend_class: ClassVar[str] = ""
    """Dotted name of the ``Backend``. Without one, nothing is delivered."""
    subfolder: ClassVar[str] = ""
    """The folder below ``savedir`` for this type of logger."""
    context_options: ClassVar[tuple[str, ...]] = ()
    """Arguments that ``create_logger_context`` takes besides the rank. They override the constructor's."""
    supported_kinds: ClassVar[tuple[str, ...]] = tuple(KINDS)
    """All kinds: a backend stores kinds that it does not know as files."""

    def __init__(
        self,
        savedir: str | os.PathLike[str] = "mllogs",
        log_freq: LogFreq | None = None,
        log_on_workers: Workers = 0,
        experiment_id: str | None = None,
        run_id: str | None = None,
    ) -> None:
        self.savedir = FOLDER.check("savedir", savedir) / self.subfolder
        self._log_freq = None if log_freq is None else LOG_FREQ.check("log_freq", log_freq)
        self.log_on_workers = log_on_workers
        self.worker_rank = 0
        self._experiment_id = ID.or_none("experiment_id", experiment_id)
        self._run_id = ID.or_none("run_id", run_id)
        self._context: LoggerContext | None = None
        self._is_set_initialized = False
        # For the fast path of log(); None sends every call to _log_slowly().
        self._fast_targets: Targets | None = None
        self._targets: Targets | None = None
        self._collections: list[Any] = []
        self._earlier = ""

    # Properties

    @property
    def log_freq(self) -> LogFreq:
        """Which batches count."""
        return self._log_freq or DEFAULT

    @log_freq.setter
    def log_freq(self, log_freq: LogFreq) -> None:
        self._log_freq = LOG_FREQ.check("log_freq", log_freq)
        self._targets_changed()

    def set_default_log_freq(self, log_freq: LogFreq) -> None:
        """Set the log_freq, unless the user has set it."""
        if self._log_freq is None:
            self.log_freq = log_freq

    @property
    def log_on_workers(self) -> Workers:
        """The global ranks that log. A change applies from the next context on."""
        return self._log_on_workers

    @log_on_workers.setter
    def log_on_workers(self, log_on_workers: Workers) -> None:
        self._workers = WORKERS.check("log_on_workers", log_on_workers)
        self._log_on_workers = log_on_workers

    @property
    def name(self) -> str:
        """Its name in messages and in a collection."""
        return self.to

    @property
    def is_initialized(self) -> bool:
        """Whether it has a context. A subclass that creates contexts in its own way sets it."""
        return self._context is not None or self._is_set_initialized

    @is_initialized.setter
    def is_initialized(self, is_initialized: bool) -> None:
        self._is_set_initialized = bool(is_initialized)

    @property
    def experiment_id(self) -> str | None:
        """The backend's own id of the experiment; None while it is not known."""
        return self._experiment_id or self._from_backend("experiment_id")

    @property
    def run_id(self) -> str | None:
        """The backend's own id of the run; None while it is not known."""
        return self._run_id or self._from_backend("run_id")

    def should_log(self, batch_idx: int | None = None) -> bool:
        """Return whether a call of ``log`` with this ``batch_idx`` counts on this worker."""
        if not self._logs_on(self.worker_rank):
            return False
        index = current_batch() if batch_idx is None else batch_idx
        batches = every(self._log_freq)
        return index is None or (batches > 0 and index % batches == 0)

    # Life cycle

    def create_logger_context(self: Self, rank: int | None = None, **options: Any) -> Self:
        """Start logging, without waiting for the backend. Return the logger itself.

        A run is started if none is active.

        Args:
            rank: the global rank of this worker; by default the one that the launcher set (torchrun, Slurm,
                MPI).
            options: any of ``context_options``. They override the arguments of the constructor.
        """
        self._check_options(options)
        rank = place_rank() if rank is None else RANK.check("rank", rank)
        if self._context is not None and self._context.is_here:
            warn_once(
                f"twice {self.name}",
                "%s has a context already: the second create_logger_context() does nothing",
                type(self).__name__,
            )
            return self
        self.worker_rank = rank
        logs = self._logs_on(rank)
        run, is_new = find_run(self._application(options), logs)
        self._begin(LoggerContext(run, is_new, rank, logs), options)
        return self

    def destroy_logger_context(
        self, timeout: float | None = None, *, status: str = "finished"
    ) -> None:
        """Stop logging. Wait until the backend has all records, as long as delivery makes progress.

        If this logger started the run, the run is finished too. The logger can be used again with a new
        context. A second call does nothing.

        Args:
            timeout: seconds to wait at most; by default ``STEPWELL_FINISH_TIMEOUT``, or 300. The records that
                are left are delivered in the background, or later by ``stepwell forward``.
            status: how it ended: finished, failed, interrupted or killed.
        """
        TIMEOUT.or_none("timeout", timeout)
        if self._has_ended:
            return
        contexts = self._end_contexts(status)
        finish_contexts(contexts, status, timeout)
        for context in contexts:
            self._finish_run(context, status)

    @contextlib.contextmanager
    def start_logging(self: Self, rank: int | None = None, **options: Any) -> Iterator[Self]:
        """Context manager: log inside the block. An exception sets the status to failed or interrupted."""
        begin_logging(self, rank, **options)
        status = "finished"
        try:
            yield self
        except BaseException as error:
            status = outcome_of(error).status
            raise
        finally:
            end_logging(self, status)

    def flush(self, timeout: float = 10.0) -> bool:
        """Wait until the backend has all records. Return False after ``timeout`` seconds."""
        return self._require_context("flush").flush(TIMEOUT.check("timeout", timeout))

    def backend_run(self, timeout: float = 10.0) -> BackendRun | Any | None:
        """Wait for the backend's own run and return it; None if there is none within ``timeout`` seconds.

        For MLflow it is a ``mlflow.entities.Run``, for others a ``BackendRun`` with id, name, URL and folder.
        """
        context = self._require_context("backend_run")
        return wait_for_run(
            context.delivery, TIMEOUT.check("timeout", timeout), self._as_backend_run
        )

    # Logging

    def log(
        self,
        item: Any,
        identifier: Any,
        kind: str = METRIC,
        step: int | None = None,
        batch_idx: int | None = None,
        **kwargs: Any,
    ) -> None:
        """Log a value or an object.

        Args:
            item: the value or object; or a list of them, with a list of identifiers.
            identifier: its name. Slashes make groups, such as ``"train/loss"``.
            kind: the kind of item: one of ``supported_kinds``.
            step: its step; by default the run's current step, else the number of values logged before.
            batch_idx: index of the batch, for calls in the loop over batches. Inside a training iteration of
                stepwell it is known.
            kwargs: stored with items other than metrics. A metric with ``context="validation"`` becomes the
                series ``validation/NAME``.
        """
        targets = self._fast_targets
        if (
            kind != METRIC
            or type(item) is not float
            or targets is None
            or kwargs
            or not state.enabled
            or type(identifier) is not str
            or not identifier
        ):
            self._log_slowly(item, identifier, kind, step, batch_idx, kwargs)
            return
        if targets.takes_all:
            ids: NameIds | None = targets.all_ids
        else:
            ids = self._select(targets, identifier, batch_idx)
        context = self._context
        if ids is None or context is None:
            if identifier not in targets.left_out:
                targets.note_left_out(identifier, item)
            return
        try:
            lane: Lane = local.lane
            name_id = ids[identifier]
            is_usual = step is None or (type(step) is int and -MAX_COUNT < step < MAX_COUNT)
            if lane.journal is targets.journal and is_usual:
                # No calls until the row is reserved: a signal handler might log in between.
                row = lane.row_next
                if row + ROW_BYTES <= lane.row_limit:
                    lane.row_next = row + ROW_BYTES
                    if step is not None:
                        step_word = step + STEP_BIAS
                    else:
                        step_word = current.step_word
                        if not step_word:
                            count = _counts[_words.get(identifier) or metrics.word_of(identifier)]
                            step_word = IMPLICIT_STEP | next(count)
                    _pack(lane.rows, row, _now(), step_word, item, name_id)
                    return
        except AttributeError:
            # This thread has no lane yet.
            pass
        except Exception as error:
            report("log", error)
            return
        write_metric(context, ids, identifier, item, step)

    def save_hyperparameters(self, params: Any) -> None:
        """Log parameters: a dict, a Namespace, a dataclass, or any object that converts to a dict.

        Parameters in nested dicts get names such as ``optimizer.lr``. Secrets are masked.
        """
        context = self._require_context("save_hyperparameters")
        targets = self._targets
        if not context.logs or targets is None or not state.enabled:
            return
        from stepwell._core.masking import mask
        from stepwell.telemetry.identity import config_to_dict

        try:
            flat = items.flattened(mask(config_to_dict(params)))
        except Exception as error:
            report_misuse(
                "save_hyperparameters", f"save_hyperparameters() stored nothing: {text_of(error)}"
            )
            return
        keep_params(context, targets.all_ids, flat)

    def serialize(self, obj: Any, identifier: str) -> str:
        """Pickle an object to a file in ``savedir``. Return its path."""
        import pickle

        path = self.savedir / items.file_name(identifier)
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_bytes(pickle.dumps(obj))
        return str(path)

    # For subclasses

    def backend_options(self) -> dict[str, Any]:
        """Return the arguments of the backend, as plain values. They are written into the run: no secrets."""
        return {}

    # Logging, the slow path

    def _select(self, targets: Targets, identifier: str, batch_idx: int | None) -> NameIds | None:
        try:
            return targets.select(identifier, batch_idx)
        except Exception:
            report_misuse(
                "batch_idx",
                f"batch_idx must be the index of the batch, got {shown(batch_idx)}; the value is logged as "
                "if it had none",
            )
            return targets.all_ids

    def _log_slowly(
        self,
        item: Any,
        identifier: Any,
        kind: str,
        step: int | None,
        batch_idx: int | None,
        more: Mapping[str, Any],
    ) -> None:
        check_kind(kind)
        context = self._require_context("log")
        targets = self._targets
        if targets is None or not context.logs or not state.enabled:
            return
        if isinstance(identifier, list | tuple):
            self._log_each(item, identifier, kind, step, batch_idx, more)
            return
        name = _name_of(identifier, kind)
        if name is None:
            return
        if kind == METRIC and more.get("context") is not None:
            name = _in_context(name, more["context"])
        if self._has_own_should_log and not self.should_log(batch_idx):
            return
        ids = self._select(targets, name, batch_idx)
        if ids is None:
            if kind == METRIC:
                targets.note_left_out(name, item)
            return
        if kind == METRIC:
            write_metric(context, ids, name, item, step)
            _warn_unused(name, more)
        elif kind == "prov_documents":
            namespace = getattr(self, "prov_user_namespace", None)
            keep_documents(context, ids, name, step, namespace)
        else:
            keep(context, ids, name, kind, item, step, more)

    def _log_each(
        self,
        item: Any,
        identifiers: Sequence[Any],
        kind: str,
        step: int | None,
        batch_idx: int | None,
        more: Mapping[str, Any],
    ) -> None:
        values = list(item) if isinstance(item, list | tuple) else [item]
        if len(values) != len(identifiers):
            report_misuse(
                "lists",
                f"log() got {len(values)} items and {len(identifiers)} identifiers. Their numbers must be "
                "equal; the rest is not logged",
            )
        for value, identifier in zip(values, identifiers, strict=False):
            self.log(value, identifier, kind, step, batch_idx, **more)

    # Life cycle, internals

    def _logs_on(self, rank: int) -> bool:
        return self._workers is None or rank in self._workers

    def _begin(self, context: LoggerContext, options: Mapping[str, Any]) -> None:
        self._context = context
        try:
            if context.logs:
                context.register(self.to)
                backend = self._make_backend(context, options)
                context.announce(self.to, backend)
                if backend is not None:
                    context.deliver(backend)
        except BaseException:
            # A user's backend that cannot be created: the logger stays without a context.
            self._context = None
            self._finish_run(context, "failed")
            raise
        self._targets_changed()

    def _make_backend(self, context: LoggerContext, options: Mapping[str, Any]) -> Any:
        if not self.backend_class:
            return None
        given = {**self.backend_options(), **options}
        run_name = given.pop("run_name", None)
        ranks = None if self._workers is None else sorted(self._workers)
        make = load_backend(self.backend_class)
        return make(
            number=context.number, rank=context.rank, ranks=ranks, run_name=run_name, **given
        )

    @property
    def _has_own_should_log(self) -> bool:
        return type(self).should_log is not Logger.should_log

    def _targets_changed(self) -> None:
        """Compute the targets again, here and in the collections that this logger is in."""
        self._update_targets()
        for collection in self._collections:
            collection._update_targets()

    def _update_targets(self) -> None:
        context = self._context
        if context is None or not context.logs:
            self._fast_targets = self._targets = None
            return
        # A should_log() of a subclass is called for each value.
        freq = "batch" if self._has_own_should_log else self._log_freq
        target = Target(context.number, freq, type(self).__name__)
        self._targets = context.targets = Targets(context.journal, [target], self._targets)
        self._fast_targets = None if self._has_own_should_log else self._targets

    @property
    def _has_ended(self) -> bool:
        return self._context is None and self._earlier == "destroyed"

    def _end_contexts(self, status: str) -> list[LoggerContext]:
        """Record the end, and return the contexts whose deliveries and runs are to be finished."""
        context = self._detach_context(status)
        context.end(status)
        return [context]

    def _detach_context(self, status: str) -> LoggerContext:
        """Return the context, and leave the logger without one."""
        one_of(*ENDINGS).check("status", status)
        context = self._require_context("destroy_logger_context")
        self._context = None
        self._is_set_initialized = False
        self._earlier = "destroyed"
        self._targets_changed()
        return context

    def _finish_run(self, context: LoggerContext, status: str) -> None:
        run = context.run
        if not context.owns_run or run is None or not context.is_here or run.status != "running":
            return
        # Other loggers may have joined the run that was started for this one.
        if not context.hand_over_run():
            run.finish(status)

    def _require_context(self, call: str) -> LoggerContext:
        if self._context is None:
            raise StepwellError(
                f"{type(self).__name__}.{call}() needs a context: call logger.create_logger_context() first, "
                f"or use `with logger.start_logging():`{EARLIER_CONTEXT[self._earlier]}"
            )
        return self._context

    def _check_options(self, options: Mapping[str, Any]) -> None:
        for name in options:
            if name not in self.context_options:
                accepted = ", ".join(("rank", *self.context_options))
                raise StepwellError(
                    f"{type(self).__name__}.create_logger_context() has no argument {name!r}; it has "
                    f"{accepted}"
                )
        check_options(options.items())

    def _application(self, options: Mapping[str, Any]) -> str | None:
        """Return the name of a run that is started for this logger."""
        given = {**self.backend_options(), **options}
        for key in ("run_name", "experiment_name", "project_name"):
            name = given.get(key)
            if isinstance(name, str) and name and name not in PLACEHOLDERS:
                return name
        return None

    def _from_backend(self, key: str) -> str | None:
        """Return a value that the backend has stored about its run."""
        delivery = None if self._context is None else self._context.delivery
        value = None if delivery is None else delivery.state().get(key)
        return None if value is None else str(value)

    def _as_backend_run(self, state: dict[str, Any]) -> Any:
        return BackendRun.of(state)

    def __getstate__(self) -> dict[str, Any]:
        # The context belongs to this process; another process creates its own.
        empty = dict.fromkeys(("_context", "_fast_targets", "_targets"))
        earlier = self._earlier if self._context is None else "elsewhere"
        return {**self.__dict__, **empty, "_earlier": earlier, "_is_set_initialized": False}

    def __repr__(self) -> str:
        state = "logging" if self._context is not None else "no context"
        return f"<{type(self).__name__} {self.name}, log_freq={self.log_freq!r}, {state}>"


clock.follow(globals())


def begin_logging(logger: Logger, rank: int | None = None, **options: Any) -> None:
    """Create the context of a logger, which may be a user's class with its own ``create_logger_context``."""
    given = options if rank is None else {"rank": rank, **options}
    logger.create_logger_context(**given)
    if not logger.is_initialized:
        _set_initialized(logger, True)


def end_logging(logger: Logger, status: str = "finished", timeout: float | None = None) -> None:
    """Destroy the context of a logger, which may be a user's class whose method takes no arguments."""
    call_with(logger.destroy_logger_context, timeout=timeout, status=status)
    if logger.is_initialized:
        _set_initialized(logger, False)


def call_with(function: Callable[..., Any], **offered: Any) -> Any:
    """Call a function with those arguments that it takes: a user's override may take fewer."""
    from inspect import Parameter, signature

    parameters = signature(function).parameters
    takes_all = any(each.kind is Parameter.VAR_KEYWORD for each in parameters.values())
    return function(
        **{name: value for name, value in offered.items() if takes_all or name in parameters}
    )


def _set_initialized(logger: Logger, is_initialized: bool) -> None:
    # A class may have a read-only property of this name.
    with contextlib.suppress(AttributeError):
        logger.is_initialized = is_initialized


def _name_of(identifier: Any, kind: str) -> str | None:
    if isinstance(identifier, str) and identifier:
        return identifier
    if identifier is None and kind in WITHOUT_ITEM:
        return kind
    if identifier is None or identifier == "":
        report_misuse(
            "identifier",
            f"log(…, identifier={shown(identifier)}, kind={kind!r}) has no name: nothing is logged",
        )
        return None
    return text_of(getattr(identifier, "value", identifier))


def _in_context(name: str, context: Any) -> str:
    """Return the name of a metric in a context, as a prefix: backends group metrics by prefix."""
    prefix = f"{context_name(context)}/"
    return name if prefix == "/" or name.startswith(prefix) else prefix + name


def _warn_unused(identifier: str, more: Mapping[str, Any]) -> None:
    unused = [str(name) for name in more if name != "context"]
    if unused:
        warn_once(
            "metric arguments",
            "log(…, %r) of a metric ignores further arguments: %s",
            identifier[:200],
            ", ".join(unused)[:200],
        )
