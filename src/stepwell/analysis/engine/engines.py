"""Engines: who does the tasks."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from typing import Protocol

from stepwell.analysis.engine.part import Part
from stepwell.analysis.engine.task import Task
from stepwell.analysis.memory import give_back
from stepwell.journal.errors import StepwellError

NAMES = ("local", "dask")
OFTEN = 4 << 20
"""Bytes of archives after which memory is given back."""


class Engine(Protocol):
    """Does tasks, in any order and anywhere."""

    def map(self, do: Callable[[Task], Part], tasks: Sequence[Task]) -> Iterator[tuple[int, Part]]:
        """The number of each task and what it gave, as they get done."""


class LocalEngine:
    """Does one task after the other, in this process."""

    def map(self, do: Callable[[Task], Part], tasks: Sequence[Task]) -> Iterator[tuple[int, Part]]:
        """In the order of the tasks."""
        done = 0
        for number, task in enumerate(tasks):
            yield number, do(task)
            done += task.size
            if done >= OFTEN:
                give_back()
                done = 0


def choose_engine(engine: str | Engine | None = None, scheduler: str | None = None) -> Engine:
    """The engine of this name: ``local``, or ``dask`` with the address of its scheduler.

    Without an address Dask starts a cluster of its own on this machine.
    """
    if engine is not None and not isinstance(engine, str):
        return engine
    if engine == "dask":
        from stepwell.analysis.engine.cluster import DaskEngine

        return DaskEngine(scheduler)
    if engine not in (None, "local"):
        raise StepwellError(f"there is no engine {engine!r}: write one of {', '.join(NAMES)}")
    if scheduler is not None:
        raise StepwellError(
            f"the scheduler {scheduler!r} needs an engine: write --engine dask with it"
        )
    return LocalEngine()
