"""Several loggers as one: a call is one record of the run, whoever hears of it."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence
from functools import partial
from typing import Any

from stepwell.journal.errors import StepwellError, warn_once
from stepwell.journal.threads import start_thread
from stepwell.journal.values import shown, text_of
from stepwell.loggers.audience import Audience, Hearer
from stepwell.loggers.base import (
    Logger,
    begin_logging,
    check_texts,
    check_timeout,
    end_logging,
)
from stepwell.loggers.checks import seconds
from stepwell.loggers.context import Context, find_run, finish_contexts, place_rank
from stepwell.loggers.empty import EmptyLogger
from stepwell.loggers.frequency import LogFreq, check_rank
from stepwell.loggers.kinds import check_kind
from stepwell.telemetry.identity import config_to_dict


class LoggersCollection(Logger):
    """Logs to all of its members, each with its own ``log_freq`` and ``log_on_workers``.

    One that fails does not disturb the others. ``collection["mlflow"]`` is a member, to log to it alone: by
    its name, which for a second one of the same type is ``mlflow-2``, or by the one it is given in a dict.

    Args:
        loggers: the members: a list, or a dict of names.
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
            known = ", ".join(map(repr, self.members))
            raise StepwellError(f"there is no logger {shown(name)} here: it has {known}") from None

    def __iter__(self) -> Iterator[Logger]:
        return iter(self.loggers)

    def __len__(self) -> int:
        return len(self.members)

    def should_log(self, batch_idx: int | None = None) -> bool:
        """Whether a call of ``log`` with this batch would count for any member."""
        return any(member.should_log(batch_idx) for member in self.loggers)

    def set_default_log_freq(self, log_freq: LogFreq) -> None:
        """Set the log_freq of the members that were given none."""
        for member in self.loggers:
            member.set_default_log_freq(log_freq)

    # Life cycle

    def create_logger_context(self, rank: int | None = None, **options: Any) -> LoggersCollection:
        """Create the contexts of all members; an option goes to those that take it."""
        self._check_options(options)
        found = place_rank() if rank is None else check_rank(rank)
        if self._context is not None and self._context.is_here:
            warn_once(
                "twice collection",
                "the collection has a context already: the second create_logger_context() does nothing",
            )
            return self
        self.worker_rank = found
        logs = any(one._workers is None or found in one._workers for one in self.loggers)
        run, is_new = find_run(self._application(options), logs)
        self._context = Context(run, is_new, found, logs)
        if run is not None:
            # Before the members', which tell how they ended.
            run.before_finish(self._context.complete)
        for name, member in self.members.items():
            known = {key: value for key, value in options.items() if key in member.context_options}
            if not member.is_initialized:
                _guarded(
                    name, "create_logger_context", partial(begin_logging, member, found, **known)
                )
        self._renew_audience()
        return self

    def destroy_logger_context(
        self, timeout: float | None = None, *, status: str = "finished"
    ) -> None:
        """End logging for all members, within this time together."""
        check_timeout(timeout)
        if self._has_ended:
            return
        own = self._ends(status)
        own.complete()
        contexts: dict[str, Context] = {}
        for name, member in self.members.items():
            if not member.is_initialized:
                continue
            if _is_ours(member, "destroy_logger_context"):
                contexts[name] = member._ends(status)
                contexts[name].end(status)
            else:
                _guarded(name, "destroy_logger_context", end_logging, member, status)
        finish_contexts([*contexts.values()], status, timeout)
        for context in contexts.values():
            self._finish_run(context, status)
        self._finish_run(own, status)

    def flush(self, timeout: float = 10.0) -> bool:
        """Wait until what was logged is with all backends; whether it was in time."""
        self._created("flush")
        seconds("timeout", timeout)
        calls = {
            name: partial(member.flush, timeout)
            for name, member in self.members.items()
            if member.is_initialized
        }
        return all(_together(calls).values())

    def backend_run(self, timeout: float = 10.0) -> dict[str, Any]:
        """The run of each backend by the name of its logger, None for one that is not in time."""
        self._created("backend_run")
        calls = {
            name: partial(member.backend_run, seconds("timeout", timeout))
            for name, member in self.members.items()
            if member.is_initialized
        }
        return _together(calls)

    def save_hyperparameters(self, params: Any) -> None:
        """Log parameters to all members."""
        super().save_hyperparameters(params)
        for member in self._others:
            # A user's own logger counts on a dict.
            _guarded(member.name, "save_hyperparameters", _save, member, params)

    # Behind it

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
        if self._others and self._hearers is not None and isinstance(identifier, list | tuple):
            # They had the whole list; the rest of it is one by one.
            for one, name in zip(item, identifier, strict=False):
                super()._log_slowly(one, name, kind, step, batch_idx, more)
            return
        super()._log_slowly(item, identifier, kind, step, batch_idx, more)

    @property
    def prov_user_namespace(self) -> str | None:
        """That of a member that writes provenance documents."""
        found = (getattr(member, "prov_user_namespace", None) for member in self.loggers)
        return next((namespace for namespace in found if namespace), None)

    @property
    def _decides_itself(self) -> bool:
        return False

    def _renew_audience(self) -> None:
        context = self._context
        active = [one for one in self.loggers if one.is_initialized]
        ours = [one for one in active if _is_ours(one, "log") and not one._decides_itself]
        self._others = [
            one for one in active if one not in ours and not isinstance(one, EmptyLogger)
        ]
        heard = [
            Hearer(one._context.number, one._log_freq, type(one).__name__)
            for one in ours
            if one._context is not None and one._context.logs
        ]
        if context is None or not context.logs or not heard:
            self._hearers = self._audience = None
            return
        self._hearers = context.audience = Audience(context.journal, heard, self._hearers)
        self._audience = None if self._others else self._hearers

    def _check_options(self, options: Mapping[str, Any]) -> None:
        taken = {name for member in self.loggers for name in member.context_options}
        for name in options:
            if name not in taken:
                raise StepwellError(
                    f"no logger of this collection takes {name!r} in create_logger_context(): "
                    f"they take {', '.join(['rank', *sorted(taken)])}"
                )
        check_texts(options)

    def _application(self, options: Mapping[str, Any]) -> str | None:
        names = (member._application({}) for member in self.loggers)
        return next((name for name in names if name is not None), None)

    def __repr__(self) -> str:
        return f"<LoggersCollection of {', '.join(self.members)}>"


def _named(loggers: Any) -> dict[str, Logger]:
    """The members by name, collections among them taken apart."""
    found: dict[str, Logger] = {}
    pairs = loggers.items() if isinstance(loggers, Mapping) else _listed(loggers)
    for name, logger in pairs:
        if not isinstance(logger, Logger):
            raise StepwellError(
                f"a LoggersCollection is made of loggers, not of {shown(logger)}: write "
                "LoggersCollection([MLFlowLogger(…), TensorBoardLogger(…)])"
            )
        inner = logger.members if isinstance(logger, LoggersCollection) else {name: logger}
        for own, member in inner.items():
            if any(member is known for known in found.values()):
                raise StepwellError(f"{member!r} is in the collection twice")
            called = own or member.name
            number = 2
            while called in found:
                called, number = f"{own or member.name}-{number}", number + 1
            found[called] = member
    return found


def _listed(loggers: Any) -> list[tuple[str, Any]]:
    if isinstance(loggers, Logger) or not isinstance(loggers, Sequence) or isinstance(loggers, str):
        raise StepwellError(
            f"loggers is {shown(loggers)}: write a list of loggers, or a dict of names and loggers"
        )
    return [("", logger) for logger in loggers]


def _is_ours(member: Logger, method: str) -> bool:
    """Whether a member has this method from us: what others wrote is called as it is."""
    return getattr(type(member), method) is getattr(Logger, method)


def _save(member: Logger, params: Any) -> None:
    member.save_hyperparameters(config_to_dict(params))


def _guarded(name: str, call: str, function: Callable[..., Any], *args: Any, **more: Any) -> Any:
    """What a member's own method gives; what it raises is said once, and the others go on."""
    try:
        return function(*args, **more)
    except Exception as error:
        warn_once(
            f"member {name} {call} {type(error).__name__}",
            "logger %s failed in %s (%s: %s): training and the other loggers go on without it",
            name,
            call,
            type(error).__name__,
            text_of(error)[:500],
        )
        return None


def _together(calls: Mapping[str, Callable[[], Any]]) -> dict[str, Any]:
    """What all of them give, at the same time: one that waits must not take the time of the others."""
    found: dict[str, Any] = {}

    def run(name: str) -> None:
        found[name] = _guarded(name, "delivery", calls[name])

    threads = {name: start_thread(f"stepwell-logger-{name}", run, name) for name in calls}
    for name, thread in threads.items():
        if thread is None:
            run(name)
    for thread in threads.values():
        if thread is not None:
            thread.join()
    return {name: found.get(name) for name in calls}
