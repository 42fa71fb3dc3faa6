"""``LoggersCollection``, several loggers as one, and ``EmptyLogger``, which does nothing.

A call of ``log`` on a collection writes one record, which all its members deliver.
"""

from __future__ import annotations

import os
from collections.abc import Callable, Iterator, Mapping, Sequence
from functools import partial
from typing import Any

from stepwell._core.errors import StepwellError, warn_once
from stepwell._core.threads import start_thread
from stepwell._core.values import shown, text_of
from stepwell.loggers.base import Logger, begin_logging, end_logging
from stepwell.loggers.checks import TIMEOUT, check_options
from stepwell.loggers.context import LoggerContext
from stepwell.loggers.kinds import check_kind
from stepwell.loggers.targets import LogFreq, Target, Targets, Workers
from stepwell.telemetry.identity import config_to_dict


class LoggersCollection(Logger):
    """Logs to all its members, each with its own ``log_freq`` and ``log_on_workers``.

    A member that fails does not affect the others. ``collection["mlflow"]`` returns one member. Its name is
    the key in the dict, or the name of its type; a second logger of a type is ``mlflow-2``.

    Args:
        loggers: the members: a list of loggers, or a dict of names and loggers.
    """

    to = "collection"

    def __init__(self, loggers: Sequence[Logger] | Mapping[str, Logger]) -> None:
        super().__init__(log_freq="batch", log_on_workers=-1)
        self.members = _named(loggers)
        self._others: list[Logger] = []
        for member in self.members.values():
            member._collections.append(self)

    @property
    def loggers(self) -> list[Logger]:
        """The members, in their order."""
        return list(self.members.values())

    def __getitem__(self, name: str) -> Logger:
        try:
            return self.members[name]
        except KeyError:
            members = ", ".join(map(repr, self.members))
            raise StepwellError(
                f"no logger {shown(name)} in the collection; it has {members}"
            ) from None

    def __iter__(self) -> Iterator[Logger]:
        return iter(self.loggers)

    def __len__(self) -> int:
        return len(self.members)

    def should_log(self, batch_idx: int | None = None) -> bool:
        """Return whether a call of ``log`` with this ``batch_idx`` counts for any member."""
        return any(member.should_log(batch_idx) for member in self.loggers)

    def set_default_log_freq(self, log_freq: LogFreq) -> None:
        """Set the log_freq of the members that have none."""
        for member in self.loggers:
            member.set_default_log_freq(log_freq)

    # Life cycle

    def _logs_on(self, rank: int) -> bool:
        return any(member._logs_on(rank) for member in self.loggers)

    def _begin(self, context: LoggerContext, options: Mapping[str, Any]) -> None:
        """Create the contexts of all members. Each member gets the options that it accepts."""
        self._context = context
        if context.run is not None:
            # Before the members' contexts, which write their status when the run ends.
            context.run.before_finish(context.complete)
        for name, member in self._with_context(False):
            accepted = {key: options[key] for key in options if key in member.context_options}
            begin = partial(begin_logging, member, context.rank, **accepted)
            _guarded(name, "create_logger_context", begin)
        self._update_targets()

    def _end_contexts(self, status: str) -> list[LoggerContext]:
        own = self._detach_context(status)
        own.complete()
        contexts: list[LoggerContext] = []
        for name, member in self._with_context():
            if _is_ours(member, "destroy_logger_context"):
                contexts += member._end_contexts(status)
            else:
                _guarded(name, "destroy_logger_context", end_logging, member, status)
        return [*contexts, own]

    def _with_context(self, is_initialized: bool = True) -> list[tuple[str, Logger]]:
        """Return the members, with their names, that have a context (or have none)."""
        pairs = self.members.items()
        return [(name, each) for name, each in pairs if bool(each.is_initialized) is is_initialized]

    def flush(self, timeout: float = 10.0) -> bool:
        """Wait until all backends have all records. Return False after ``timeout`` seconds."""
        self._require_context("flush")
        TIMEOUT.check("timeout", timeout)
        calls = {name: partial(each.flush, timeout) for name, each in self._with_context()}
        return all(_together(calls).values())

    def backend_run(self, timeout: float = 10.0) -> dict[str, Any]:
        """Return each backend's run by the name of its logger; None after ``timeout`` seconds."""
        self._require_context("backend_run")
        TIMEOUT.check("timeout", timeout)
        calls = {name: partial(each.backend_run, timeout) for name, each in self._with_context()}
        return _together(calls)

    def save_hyperparameters(self, params: Any) -> None:
        super().save_hyperparameters(params)
        for member in self._others:
            # A user's own logger expects a dict.
            _guarded(member.name, "save_hyperparameters", _save, member, params)

    # Internals

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
        for member in self._others:
            _guarded(
                member.name, "log", member.log, item, identifier, kind, step, batch_idx, **more
            )
        if self._others and self._targets is not None and isinstance(identifier, list | tuple):
            # The other members got the whole list. Through self.log() they would get each value again.
            for value, name in zip(item, identifier, strict=False):
                super()._log_slowly(value, name, kind, step, batch_idx, more)
            return
        super()._log_slowly(item, identifier, kind, step, batch_idx, more)

    @property
    def prov_user_namespace(self) -> str | None:
        """The namespace of the first member that writes provenance documents."""
        namespaces = (getattr(member, "prov_user_namespace", None) for member in self.loggers)
        return next((namespace for namespace in namespaces if namespace), None)

    @property
    def _has_own_should_log(self) -> bool:
        return False

    def _update_targets(self) -> None:
        context = self._context
        active = [member for member in self.loggers if member.is_initialized]
        ours = [m for m in active if _is_ours(m, "log") and not m._has_own_should_log]
        self._others = [m for m in active if m not in ours and not isinstance(m, EmptyLogger)]
        targets = [
            Target(member._context.number, member._log_freq, type(member).__name__)
            for member in ours
            if member._context is not None and member._context.logs
        ]
        if context is None or not context.logs or not targets:
            self._targets = self._fast_targets = None
            return
        self._targets = context.targets = Targets(context.journal, targets, self._targets)
        self._fast_targets = None if self._others else self._targets

    def _check_options(self, options: Mapping[str, Any]) -> None:
        accepted = {name for member in self.loggers for name in member.context_options}
        for name in options:
            if name not in accepted:
                raise StepwellError(
                    f"no logger of this collection has an argument {name!r} of create_logger_context(); "
                    f"they have {', '.join(['rank', *sorted(accepted)])}"
                )
        check_options(options.items())

    def _application(self, options: Mapping[str, Any]) -> str | None:
        names = (member._application({}) for member in self.loggers)
        return next((name for name in names if name is not None), None)

    def __repr__(self) -> str:
        return f"<LoggersCollection of {', '.join(self.members)}>"


def _named(loggers: Any) -> dict[str, Logger]:
    """Return the members by name. The members of nested collections become members of this one."""
    members: dict[str, Logger] = {}
    pairs = loggers.items() if isinstance(loggers, Mapping) else _listed(loggers)
    for name, logger in pairs:
        if not isinstance(logger, Logger):
            raise StepwellError(
                f"the members of a LoggersCollection must be loggers, got {shown(logger)}: write "
                "LoggersCollection([MLFlowLogger(…), TensorBoardLogger(…)])"
            )
        inner = logger.members if isinstance(logger, LoggersCollection) else {name: logger}
        for own, member in inner.items():
            if any(member is other for other in members.values()):
                raise StepwellError(f"{member!r} is in the collection twice")
            unique = own or member.name
            number = 2
            while unique in members:
                unique, number = f"{own or member.name}-{number}", number + 1
            members[unique] = member
    return members


def _listed(loggers: Any) -> list[tuple[str, Any]]:
    if isinstance(loggers, Logger) or not isinstance(loggers, Sequence) or isinstance(loggers, str):
        raise StepwellError(
            f"loggers must be a list of loggers, or a dict of names and loggers, got {shown(loggers)}"
        )
    return [("", logger) for logger in loggers]


def _is_ours(member: Logger, method: str) -> bool:
    """Return whether a member inherits this method. A method that a user wrote is called as it is."""
    return getattr(type(member), method) is getattr(Logger, method)


def _save(member: Logger, params: Any) -> None:
    member.save_hyperparameters(config_to_dict(params))


def _guarded(name: str, call: str, function: Callable[..., Any], *args: Any, **more: Any) -> Any:
    """Call a member's own method. An exception gives one warning and does not affect the other members."""
    try:
        return function(*args, **more)
    except Exception as error:
        warn_once(
            f"member {name} {call} {type(error).__name__}",
            "logger %s failed in %s (%s: %s). Training and the other loggers continue without it",
            name,
            call,
            type(error).__name__,
            text_of(error)[:500],
        )
        return None


def _together(calls: Mapping[str, Callable[[], Any]]) -> dict[str, Any]:
    """Make all calls at the same time and return their results, so that all have the whole timeout."""
    results: dict[str, Any] = {}

    def run(name: str) -> None:
        results[name] = _guarded(name, "delivery", calls[name])

    threads = {name: start_thread(f"stepwell-logger-{name}", run, name) for name in calls}
    for name, thread in threads.items():
        if thread is None:
            run(name)
    for thread in threads.values():
        if thread is not None:
            thread.join()
    return {name: results.get(name) for name in calls}


class EmptyLogger(Logger):
    """Accepts every call and does nothing: no run, no files, no warnings."""

    to = "empty"

    def __init__(
        self,
        savedir: str | os.PathLike[str] = "mllogs",
        log_freq: LogFreq | None = None,
        log_on_workers: Workers = 0,
    ) -> None:
        super().__init__(savedir, log_freq, log_on_workers)

    def create_logger_context(self, rank: int | None = None, **options: Any) -> EmptyLogger:
        """Do nothing."""
        self.is_initialized = True
        return self

    def destroy_logger_context(
        self, timeout: float | None = None, *, status: str = "finished"
    ) -> None:
        """Do nothing."""
        self.is_initialized = False

    def log(
        self,
        item: Any,
        identifier: Any,
        kind: str = "metric",
        step: int | None = None,
        batch_idx: int | None = None,
        **kwargs: Any,
    ) -> None:
        """Do nothing."""

    def save_hyperparameters(self, params: Any) -> None:
        """Do nothing."""

    def flush(self, timeout: float = 10.0) -> bool:
        return True

    def backend_run(self, timeout: float = 10.0) -> None:
        return None
