"""``Logger``: one ``log()`` for whatever there is to log. It writes to the run, and returns.

What was written goes on to a backend in another process. A logger of its own needs no backend: everything
is in the run folder anyway.
"""

from __future__ import annotations

import contextlib
import os
from collections.abc import Callable, Iterator, Mapping, Sequence
from time import perf_counter_ns as _now
from typing import Any, ClassVar, TypeVar

from stepwell.journal import clock, metrics
from stepwell.journal.errors import StepwellError, misuse, report, warn_once
from stepwell.journal.format import IMPLICIT_STEP, ROW_BYTES, STEP_BIAS, WHOLE_ROW
from stepwell.journal.lane import Lane
from stepwell.journal.liveness import ENDINGS
from stepwell.journal.metrics import MAX_COUNT
from stepwell.journal.metrics import context as current
from stepwell.journal.state import local, state
from stepwell.journal.values import shown, text_of
from stepwell.loggers.audience import Audience, Hearer, Words, current_batch
from stepwell.loggers.checks import folder, optional_id, optional_text, seconds
from stepwell.loggers.context import Context, find_run, finish_contexts, load_backend, place_rank
from stepwell.loggers.delivery.runs import BackendRun, wait_for_run
from stepwell.loggers.frequency import (
    DEFAULT,
    LogFreq,
    Workers,
    check_log_freq,
    check_rank,
    check_workers,
    every,
)
from stepwell.loggers.items import making as items
from stepwell.loggers.kinds import KINDS, METRIC, WITHOUT_ITEM, check_kind, context_name
from stepwell.loggers.recording import keep, keep_documents, keep_params, write_metric
from stepwell.telemetry.ending import ending_of

Self = TypeVar("Self", bound="Logger")

_pack = WHOLE_ROW.pack_into
_words = metrics._words
_counts = metrics._counts
READINGS = ("system", "carbon", "execution_time")
UNNAMED = "unnamed-experiment"
UNSAID = (UNNAMED, "experiment_name")
"""Documented defaults of what a run is called, which say nothing."""
BECAME = {
    "": "",
    "destroyed": ". (The one that it had was destroyed.)",
    "elsewhere": ". (A logger that went to another process is created there.)",
}
"""What has become of an earlier context."""


class Logger:
    """Base class of all loggers; also one without a backend, that logs into the run alone.

    To send what is logged somewhere else, write a ``stepwell.loggers.Backend`` and a subclass that names it
    in ``backend_class``; ``backend_options`` gives the arguments to make it with.

    Args:
        savedir: folder for what the backend keeps on this machine.
        log_freq: which batches count: a number n (batches 0, n, 2 n, …), ``"batch"`` (all of them), or
            ``"epoch"`` (none: only calls that pass no ``batch_idx``, outside of a training iteration).
            The default is ``"epoch"``; in a Lightning trainer it is ``"batch"``.
        log_on_workers: the global ranks that log: one, several, or -1 for all.
        experiment_id: the backend's own id of an experiment to log to.
        run_id: the backend's own id of a run to go on with.
    """

    to: ClassVar[str] = "run"
    """What it is called: in the run, in a collection, and in ``stepwell forward RUN --to …``."""
    backend_class: ClassVar[str] = ""
    """Dotted name of the ``Backend`` that delivers; without one, nothing is delivered."""
    subfolder: ClassVar[str] = ""
    """Of ``savedir``, for this kind of logger."""
    context_options: ClassVar[tuple[str, ...]] = ()
    """Arguments that ``create_logger_context`` takes besides the rank, in place of the constructor's."""
    supported_kinds: ClassVar[tuple[str, ...]] = tuple(KINDS)
    """Every kind there is: what a backend has no place for, it keeps as a file."""

    def __init__(
        self,
        savedir: str | os.PathLike[str] = "mllogs",
        log_freq: LogFreq | None = None,
        log_on_workers: Workers = 0,
        experiment_id: str | None = None,
        run_id: str | None = None,
    ) -> None:
        self.savedir = folder("savedir", savedir) / self.subfolder
        self._log_freq = None if log_freq is None else check_log_freq(log_freq)
        self.log_on_workers = log_on_workers
        self.worker_rank = 0
        self._experiment_id = optional_id("experiment_id", experiment_id)
        self._run_id = optional_id("run_id", run_id)
        self._context: Context | None = None
        self._is_set_initialized = False
        # For the quick way through log(); None sends every call the slow way.
        self._audience: Audience | None = None
        self._hearers: Audience | None = None
        self._collections: list[Any] = []
        self._had = ""

    # What it is

    @property
    def log_freq(self) -> LogFreq:
        """Which batches count."""
        return self._log_freq or DEFAULT

    @log_freq.setter
    def log_freq(self, log_freq: LogFreq) -> None:
        self._log_freq = check_log_freq(log_freq)
        self._has_changed()

    def set_default_log_freq(self, log_freq: LogFreq) -> None:
        """Set the log_freq, unless the constructor was given one or it was set."""
        if self._log_freq is None:
            self.log_freq = log_freq

    @property
    def log_on_workers(self) -> Workers:
        """The global ranks that log. A change counts from the next context on."""
        return self._log_on_workers

    @log_on_workers.setter
    def log_on_workers(self, log_on_workers: Workers) -> None:
        self._workers = check_workers(log_on_workers)
        self._log_on_workers = log_on_workers

    @property
    def name(self) -> str:
        """What it is called in messages and in a collection."""
        return self.to

    @property
    def is_initialized(self) -> bool:
        """Whether a context was created, and not destroyed since.

        A subclass that creates contexts in its own way sets it.
        """
        return self._context is not None or self._is_set_initialized

    @is_initialized.setter
    def is_initialized(self, is_initialized: bool) -> None:
        self._is_set_initialized = bool(is_initialized)

    @property
    def experiment_id(self) -> str | None:
        """The backend's own id of the experiment: as given, else as the backend has told by now."""
        return self._experiment_id or self._told("experiment_id")

    @property
    def run_id(self) -> str | None:
        """The backend's own id of the run: as given, else as the backend has told by now."""
        return self._run_id or self._told("run_id")

    def should_log(self, batch_idx: int | None = None) -> bool:
        """Whether a call of ``log`` with this batch would count on this worker."""
        if self._workers is not None and self.worker_rank not in self._workers:
            return False
        index = current_batch() if batch_idx is None else batch_idx
        batches = every(self._log_freq)
        return index is None or (batches > 0 and index % batches == 0)

    # Life cycle

    def create_logger_context(self: Self, rank: int | None = None, **options: Any) -> Self:
        """Begin to log. Waits for no backend.

        Args:
            rank: the global rank of this worker; else as the launcher says (torchrun, Slurm, MPI).
            options: what ``context_options`` lists, in place of what the constructor was given.

        A run is started when none is active. Returns the logger itself.
        """
        self._check_options(options)
        found = place_rank() if rank is None else check_rank(rank)
        if self._context is not None and self._context.is_here:
            warn_once(
                f"twice {self.name}",
                "%s has a context already: the second create_logger_context() does nothing",
                type(self).__name__,
            )
            return self
        self.worker_rank = found
        logs = self._workers is None or found in self._workers
        run, is_new = find_run(self._application(options), logs)
        self._begin(Context(run, is_new, found, logs), options)
        return self

    def destroy_logger_context(
        self, timeout: float | None = None, *, status: str = "finished"
    ) -> None:
        """End logging, and wait until the backend has everything, for as long as delivery makes progress.

        Args:
            timeout: seconds to wait at most; else ``STEPWELL_FINISH_TIMEOUT``, or 300. What is not
                delivered by then is delivered in the background, or later by ``stepwell forward``.
            status: how it ended: finished, failed, interrupted or killed.

        The run is finished too when this logger had started it. The logger may be used again. To end
        what has ended is harmless.
        """
        check_timeout(timeout)
        if self._has_ended:
            return
        context = self._ends(status)
        context.end(status)
        finish_contexts([context], status, timeout)
        self._finish_run(context, status)

    @contextlib.contextmanager
    def start_logging(self: Self, rank: int | None = None, **options: Any) -> Iterator[Self]:
        """In here it logs; gives the logger. An exception that leaves it ends it as failed or interrupted."""
        begin_logging(self, rank, **options)
        status = "finished"
        try:
            yield self
        except BaseException as error:
            status = ending_of(error).status
            raise
        finally:
            end_logging(self, status)

    def flush(self, timeout: float = 10.0) -> bool:
        """Wait until what was logged is with the backend; whether it was in time."""
        return self._created("flush").flush(seconds("timeout", timeout))

    def backend_run(self, timeout: float = 10.0) -> BackendRun | Any | None:
        """The backend's own run, once it is there; None when it is not in time.

        Of MLflow a ``mlflow.entities.Run``, of others a ``BackendRun`` with its id, name, URL and folder.
        """
        context = self._created("backend_run")
        return wait_for_run(context.delivery, seconds("timeout", timeout), self._as_backend_run)

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
        """Log something.

        Args:
            item: what to log; a list of them with a list of identifiers.
            identifier: its name. Slashes make groups, such as ``"train/loss"``.
            kind: what it is: one of ``supported_kinds``.
            step: where it belongs; else the run's current step, else how many values it had before.
            batch_idx: the batch, where this is called in a loop over them. Inside of a training
                iteration of stepwell it is known.
            kwargs: kept with items other than metrics. A metric with ``context="validation"`` is a series of
                its own, ``validation/NAME``.
        """
        audience = self._audience
        if (
            kind != METRIC
            or type(item) is not float
            or audience is None
            or kwargs
            or not state.enabled
            or type(identifier) is not str
            or not identifier
        ):
            self._log_slowly(item, identifier, kind, step, batch_idx, kwargs)
            return
        if audience.is_always_everyone:
            words: Words | None = audience.everyone
        else:
            words = self._choose(audience, identifier, batch_idx)
        context = self._context
        if words is None or context is None:
            if identifier not in audience.left_out:
                audience.leave_out(identifier, item)
            return
        try:
            lane: Lane = local.lane
            word = words[identifier]
            is_usual = step is None or (type(step) is int and -MAX_COUNT < step < MAX_COUNT)
            if lane.journal is audience.journal and is_usual:
                # No call from here to where the row is ours: a signal handler may log in between.
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
                    _pack(lane.rows, row, _now(), step_word, item, word)
                    return
        except AttributeError:
            # This thread has no lane yet.
            pass
        except Exception as error:
            report("log", error)
            return
        write_metric(context, words, identifier, item, step)

    def save_hyperparameters(self, params: Any) -> None:
        """Log parameters: a dict, a Namespace, a dataclass, or anything that gives a dict.

        Those of nested dicts have names such as ``optimizer.lr``. Secrets are masked.
        """
        context = self._created("save_hyperparameters")
        audience = self._hearers
        if not context.logs or audience is None or not state.enabled:
            return
        from stepwell.telemetry.identity import config_to_dict, mask

        try:
            flat = items.flattened(mask(config_to_dict(params)))
        except Exception as error:
            misuse("save_hyperparameters", f"save_hyperparameters() kept nothing: {text_of(error)}")
            return
        keep_params(context, audience.everyone, flat)

    def serialize(self, obj: Any, identifier: str) -> str:
        """Pickle an object to a file in ``savedir``; returns its path."""
        import pickle

        path = self.savedir / items.file_name(identifier)
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_bytes(pickle.dumps(obj))
        return str(path)

    # For those who subclass it

    def backend_options(self) -> dict[str, Any]:
        """Plain values to make the backend with. They are written into the run: no secrets."""
        return {}

    # Behind log()

    def _choose(self, audience: Audience, identifier: str, batch_idx: int | None) -> Words | None:
        try:
            return audience.choose(identifier, batch_idx)
        except Exception:
            misuse(
                "batch_idx",
                f"log(…, batch_idx={shown(batch_idx)}): write the number of the batch; it is "
                "logged as if outside of a batch",
            )
            return audience.everyone

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
        context = self._created("log")
        audience = self._hearers
        if audience is None or not context.logs or not state.enabled:
            return
        if isinstance(identifier, list | tuple):
            self._log_each(item, identifier, kind, step, batch_idx, more)
            return
        name = _name_of(identifier, kind)
        if name is None:
            return
        if kind == METRIC and more.get("context") is not None:
            name = _in_context(name, more["context"])
        if self._decides_itself and not self.should_log(batch_idx):
            return
        words = self._choose(audience, name, batch_idx)
        if words is None:
            if kind == METRIC:
                audience.leave_out(name, item)
            return
        if kind == METRIC:
            write_metric(context, words, name, item, step)
            _say_unused(name, more)
        elif kind == "prov_documents":
            namespace = getattr(self, "prov_user_namespace", None)
            keep_documents(context, words, name, step, namespace)
        else:
            keep(context, words, name, kind, item, step, more)

    def _log_each(
        self,
        item: Any,
        identifiers: Sequence[Any],
        kind: str,
        step: int | None,
        batch_idx: int | None,
        more: Mapping[str, Any],
    ) -> None:
        given = list(item) if isinstance(item, list | tuple) else [item]
        if len(given) != len(identifiers):
            misuse(
                "lists",
                f"log() of {len(given)} items with {len(identifiers)} identifiers: write as many of "
                "both; those without a partner are left out",
            )
        for one, identifier in zip(given, identifiers, strict=False):
            self.log(one, identifier, kind, step, batch_idx, **more)

    # Behind the life cycle

    def _begin(self, context: Context, options: Mapping[str, Any]) -> None:
        self._context = context
        try:
            if context.logs:
                context.register(self.to)
                backend = self._make_backend(context, options)
                context.announce(self.to, backend)
                if backend is not None:
                    context.deliver(backend)
        except BaseException:
            # Somebody's own backend that cannot be made: as if it had never begun.
            self._context = None
            self._finish_run(context, "failed")
            raise
        self._has_changed()

    def _make_backend(self, context: Context, options: Mapping[str, Any]) -> Any:
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
    def _decides_itself(self) -> bool:
        """Whether a subclass has its own idea of which calls count."""
        return type(self).should_log is not Logger.should_log

    def _has_changed(self) -> None:
        """Look up anew who hears of what, here and in the collections that this is in."""
        self._renew_audience()
        for collection in self._collections:
            collection._renew_audience()

    def _renew_audience(self) -> None:
        context = self._context
        if context is None or not context.logs:
            self._audience = self._hearers = None
            return
        # Who decides by itself is asked each time.
        freq = "batch" if self._decides_itself else self._log_freq
        hearers = [Hearer(context.number, freq, type(self).__name__)]
        self._hearers = context.audience = Audience(context.journal, hearers, self._hearers)
        self._audience = None if self._decides_itself else self._hearers

    @property
    def _has_ended(self) -> bool:
        return self._context is None and self._had == "destroyed"

    def _ends(self, status: str) -> Context:
        """Take leave of the context."""
        if status not in ENDINGS:
            raise StepwellError(f"status is {shown(status)}: write one of {', '.join(ENDINGS)}")
        context = self._created("destroy_logger_context")
        self._context = None
        self._is_set_initialized = False
        self._had = "destroyed"
        self._has_changed()
        return context

    def _finish_run(self, context: Context, status: str) -> None:
        run = context.run
        if not context.owns_run or run is None or not context.is_here or run.status != "running":
            return
        # Other loggers may have joined the run that was started for this one.
        if not context.pass_run_on():
            run.finish(status)

    def _created(self, call: str) -> Context:
        if self._context is None:
            own = type(self).__name__
            raise StepwellError(
                f"{own}.{call}() comes before its context: call logger.create_logger_context() "
                f"first, or use it inside of `with logger.start_logging():`{BECAME[self._had]}"
            )
        return self._context

    def _check_options(self, options: Mapping[str, Any]) -> None:
        for name in options:
            if name not in self.context_options:
                known = ", ".join(("rank", *self.context_options))
                raise StepwellError(
                    f"{type(self).__name__}.create_logger_context() takes no {name!r}: "
                    f"it takes {known}"
                )
        check_texts(options)

    def _application(self, options: Mapping[str, Any]) -> str | None:
        """What a run that is started for this logger is called."""
        given = {**self.backend_options(), **options}
        for key in ("run_name", "experiment_name", "project_name"):
            name = given.get(key)
            if isinstance(name, str) and name and name not in UNSAID:
                return name
        return None

    def _told(self, key: str) -> str | None:
        """What the backend has said about its run."""
        delivery = None if self._context is None else self._context.delivery
        found = None if delivery is None else delivery.state().get(key)
        return None if found is None else str(found)

    def _as_backend_run(self, state: dict[str, Any]) -> Any:
        return BackendRun.of(state)

    def __getstate__(self) -> dict[str, Any]:
        # The context belongs to this process: another one creates its own.
        nothing = dict.fromkeys(("_context", "_audience", "_hearers"))
        had = self._had if self._context is None else "elsewhere"
        return {**self.__dict__, **nothing, "_had": had, "_is_set_initialized": False}

    def __repr__(self) -> str:
        state = "logging" if self._context is not None else "no context"
        return f"<{type(self).__name__} {self.name}, log_freq={self.log_freq!r}, {state}>"


clock.follow(globals())


def begin_logging(logger: Logger, rank: int | None = None, **options: Any) -> None:
    """Create a logger's context, also of a user's class that has its own way to."""
    given = options if rank is None else {"rank": rank, **options}
    logger.create_logger_context(**given)
    if not logger.is_initialized:
        _set_initialized(logger, True)


def end_logging(logger: Logger, status: str = "finished", timeout: float | None = None) -> None:
    """Destroy a logger's context, also of a user's class whose method takes no arguments."""
    call_with(logger.destroy_logger_context, timeout=timeout, status=status)
    if logger.is_initialized:
        _set_initialized(logger, False)


def call_with(function: Callable[..., Any], **offered: Any) -> Any:
    """Call a function with those of the arguments that it takes: a user's override may take fewer."""
    from inspect import Parameter, signature

    parameters = signature(function).parameters
    takes_all = any(one.kind is Parameter.VAR_KEYWORD for one in parameters.values())
    return function(
        **{name: value for name, value in offered.items() if takes_all or name in parameters}
    )


def _set_initialized(logger: Logger, is_initialized: bool) -> None:
    # A class that has this as a property of its own keeps it itself.
    with contextlib.suppress(AttributeError):
        logger.is_initialized = is_initialized


def check_timeout(timeout: Any) -> None:
    """How long to wait; StepwellError for what is no time."""
    if timeout is not None:
        seconds("timeout", timeout)


def check_texts(options: Mapping[str, Any]) -> None:
    """Names and ids that a context is created with; StepwellError for what is none."""
    for name, value in options.items():
        (optional_id if name.endswith("_id") else optional_text)(name, value)


def _name_of(identifier: Any, kind: str) -> str | None:
    if isinstance(identifier, str) and identifier:
        return identifier
    if identifier is None and kind in WITHOUT_ITEM:
        return kind
    if identifier is None or identifier == "":
        misuse(
            "identifier",
            f"log(…, identifier={shown(identifier)}, kind={kind!r}) says no name: nothing is logged",
        )
        return None
    return text_of(getattr(identifier, "value", identifier))


def _in_context(name: str, context: Any) -> str:
    """Return the name of a metric in a context: backends show the names with the same prefix together."""
    prefix = f"{context_name(context)}/"
    return name if prefix == "/" or name.startswith(prefix) else prefix + name


def _say_unused(identifier: str, more: Mapping[str, Any]) -> None:
    unused = [str(name) for name in more if name != "context"]
    if unused:
        warn_once(
            "metric arguments",
            "log(…, %r) of a metric keeps no further arguments: %s",
            identifier[:200],
            ", ".join(unused)[:200],
        )
