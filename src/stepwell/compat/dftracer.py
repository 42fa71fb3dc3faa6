"""The names of dftracer for what ``stepwell.annotations`` and the dftracer export have.

from stepwell.compat.dftracer import ai, dft_fn, dftracer

log = dftracer.initialize_log("trace.pfw")
...
log.finalize()
"""

from __future__ import annotations

import os
from collections.abc import Callable, Iterable
from pathlib import Path
from types import TracebackType
from typing import Any, TypeVar

from stepwell.annotations.node import Node
from stepwell.annotations.tree import ai
from stepwell.journal.errors import quietly
from stepwell.telemetry.run import Run, active_run
from stepwell.telemetry.start import init

__all__ = ["ai", "dft_fn", "dftracer"]

F = TypeVar("F", bound=Callable[..., Any])
T = TypeVar("T")
DIALECT = "old"
"""The one with brackets, ``p_idx`` and ``level``."""


class dftracer:
    """A log that was initialized: a run, and where its trace is left."""

    _current: dftracer | None = None

    def __init__(self, run: Run, own: bool, logfile: Path | None) -> None:
        self.run = run
        self._own = own
        self._logfile = logfile

    @classmethod
    def initialize_log(
        cls,
        logfile: str | os.PathLike[str] | None = None,
        data_dir: str | None = None,
        process_id: int = -1,
    ) -> dftracer:
        """Start a run, unless one is active; ``finalize`` leaves its trace at ``logfile``.

        Without a logfile ``DFTRACER_LOG_FILE`` says where; without that the run folder is all.
        System calls are not traced: ``data_dir`` and ``process_id`` are taken for compatibility.
        """
        found = logfile if logfile is not None else os.environ.get("DFTRACER_LOG_FILE")
        run = active_run()
        own = run is None
        made = cls(run or init(), own, None if found is None else Path(found))
        dftracer._current = made
        return made

    @classmethod
    def get_instance(cls) -> dftracer | None:
        """The log that was initialized last, None before and after."""
        return dftracer._current

    def finalize(self) -> None:
        """Finish the run, if it was started here, and write the trace. Only the first call counts."""
        if dftracer._current is self:
            dftracer._current = None
        if self._own:
            self.run.finish()
        else:
            self.run.flush()
        logfile, self._logfile = self._logfile, None
        if logfile is not None and not self.run.disabled:
            self._export(logfile)

    @quietly
    def _export(self, logfile: Path) -> None:
        from stepwell.exporters.dftracer_export import SUFFIXES, export_dftracer

        if not logfile.name.endswith(SUFFIXES):
            logfile = logfile.with_name(f"{logfile.name}.pfw")
        logfile.parent.mkdir(parents=True, exist_ok=True)
        ranks = [self.run.rank]
        done = export_dftracer(self.run.path, logfile, ranks=ranks, dialect=DIALECT)
        mine = f"-{os.getpid()}-app"
        for path in done.files:
            if self.run.rank == 0 and mine in path.name:
                path.replace(logfile)


class dft_fn:
    """A category and a name to record under, with arguments; for ``with``, and above functions."""

    def __init__(
        self,
        cat: str,
        name: str | None = None,
        epoch: int | None = None,
        step: int | None = None,
        image_idx: int | None = None,
        image_size: float | None = None,
        enable: bool = True,
    ) -> None:
        # Two levels: what is set at the top of a tree of nodes would hold for the whole run.
        self._group = Node(cat, cat, Node(cat, cat))
        self._name = name or cat
        self.update(epoch=epoch, step=step, image_idx=image_idx, image_size=image_size)
        if not enable:
            self._group.disable()

    def _named(self, name: str) -> Node:
        return self._group._child(name, name)

    def __enter__(self) -> dft_fn:
        self._named(self._name).__enter__()
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        trace: TracebackType | None,
    ) -> None:
        self._named(self._name).__exit__(kind, error, trace)

    def update(self, *, args: dict[str, Any] | None = None, **more: Any) -> dft_fn:
        """Set arguments of what is recorded from now on, and of what is open."""
        changes = {k: v for k, v in {**(args or {}), **more}.items() if v is not None}
        if changes:
            self._group.update(changes)
            self._named(self._name).set(**changes)
        return self

    def log(self, func: F | None = None, name: str | None = None) -> Any:
        """Decorator: calls are recorded under the function's qualified name, or under this one."""
        if func is None:
            return lambda function: self.log(function, name)
        inner = getattr(func, "__func__", func)
        return self._named(name or inner.__qualname__)(func)

    def __reduce__(self) -> tuple[Any, ...]:
        group = self._group
        return _restored, (group.category, self._name, group.attributes, group._is_enabled)

    log_init = log
    log_static = log

    def iter(self, iterable: Iterable[T], name: str = "loop") -> Iterable[T]:
        """Go through an iterable: ``<name>.iter`` for getting an item, ``<name>.yield`` for the body."""
        return self._named(name).iter(iterable, block_name="yield")


def _restored(cat: str, name: str, attributes: dict[str, Any], enable: bool) -> dft_fn:
    """A copy, perhaps in another process."""
    made = dft_fn(cat, name, enable=enable)
    made._group.update(attributes)
    return made
