"""Engines: tasks run one after the other in this process, or on a Dask cluster."""

from __future__ import annotations

import os
import pickle
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from typing import Any, Protocol

from stepwell._core.checks import one_of
from stepwell._core.errors import StepwellError
from stepwell._core.system import trim_malloc
from stepwell.analysis.engine.tasks import Task, TaskResult

NAME = one_of("local", "dask")
OFTEN = 4 << 20
"""Bytes of archives after which memory is returned to the system."""
BATCHES = 8
"""Batches of tasks per worker: few enough to be cheap, enough to keep all workers busy to the end."""
PATIENCE = 30.0
"""Seconds to wait for a scheduler to answer, and for its first worker."""


class Engine(Protocol):
    """Runs tasks, in any order and anywhere."""

    def map(
        self, do: Callable[[Task], TaskResult], tasks: Sequence[Task]
    ) -> Iterator[tuple[int, TaskResult]]:
        """Yield the index and the result of each task, as they finish."""


class LocalEngine:
    """Runs one task after the other in this process."""

    def map(
        self, do: Callable[[Task], TaskResult], tasks: Sequence[Task]
    ) -> Iterator[tuple[int, TaskResult]]:
        """Yield the results in the order of the tasks."""
        done = 0
        for number, task in enumerate(tasks):
            yield number, do(task)
            done += task.size
            if done >= OFTEN:
                trim_malloc()
                done = 0


class DaskEngine:
    """Runs tasks on the workers of a Dask cluster. Needs ``stepwell[dask]``, here and on the workers.

    A worker reads the files itself, so it must have the run folder under the same path, or access to its
    address on object storage. It returns results of tasks, never spans.

    Args:
        scheduler: the address of the scheduler. Without it, a cluster is started on this machine.
    """

    def __init__(self, scheduler: str | None = None) -> None:
        self._scheduler = scheduler
        self._dask = _import()

    def map(
        self, do: Callable[[Task], TaskResult], tasks: Sequence[Task]
    ) -> Iterator[tuple[int, TaskResult]]:
        """Yield the results as they finish."""
        with _client(self._dask, self._scheduler) as client:
            batches = _batches(tasks, BATCHES * _count_workers(client, self._scheduler))
            work = [[tasks[number] for number in batch] for batch in batches]
            # Not pure: a run that is read again may have new records.
            futures = client.map(_do_batch, [do] * len(work), work, pure=False)
            numbers = {f.key: batch for f, batch in zip(futures, batches, strict=True)}
            done = self._dask.as_completed(futures, loop=client.loop, with_results=True)
            # A worker frees a result when its last future is dropped here.
            del futures, work
            for future, packed in done:
                for number, part in zip(numbers[future.key], packed, strict=True):
                    yield number, pickle.loads(part)
                del future, packed


def _do_batch(do: Callable[[Task], TaskResult], tasks: list[Task]) -> list[bytes]:
    # Pickled here: Dask would inspect and send each of the many small arrays separately.
    return [pickle.dumps(do(task), pickle.HIGHEST_PROTOCOL) for task in tasks]


def _batches(tasks: Sequence[Task], most: int) -> list[list[int]]:
    """Divide the tasks into batches of about the same size, the largest tasks first; return their indices."""
    order = sorted(range(len(tasks)), key=lambda number: -tasks[number].size)
    batches: list[list[int]] = [[] for _ in range(min(most, len(tasks)))]
    sizes = [0] * len(batches)
    for number in order:
        smallest = sizes.index(min(sizes))
        batches[smallest].append(number)
        sizes[smallest] += tasks[number].size + 1
    return batches


@contextmanager
def _client(dask: Any, scheduler: str | None) -> Iterator[Any]:
    if scheduler is None:
        with (
            dask.LocalCluster(
                n_workers=os.cpu_count() or 1,
                threads_per_worker=1,
                host="127.0.0.1",
                dashboard_address="127.0.0.1:0",
            ) as cluster,
            dask.Client(cluster, set_as_default=False) as client,
        ):
            yield client
        return
    try:
        client = dask.Client(scheduler, timeout=PATIENCE, set_as_default=False)
    except (OSError, ValueError) as error:
        raise StepwellError(
            f"no Dask scheduler answers at {scheduler!r} ({error}). Pass the address that "
            "`dask scheduler` prints, such as tcp://10.0.0.1:8786."
        ) from None
    with client:
        yield client


def _count_workers(client: Any, scheduler: str | None) -> int:
    try:
        client.wait_for_workers(1, timeout=PATIENCE)
    except TimeoutError:
        raise StepwellError(
            f"the Dask cluster at {scheduler or 'this machine'} has no workers. Start some with "
            f"`dask worker {scheduler or 'ADDRESS'}`."
        ) from None
    return sum(client.nthreads().values())


def _import() -> Any:
    try:
        import distributed
    except ImportError as error:
        raise StepwellError(
            f"engine 'dask' needs {error.name}: pip install 'stepwell[dask]'"
        ) from None
    return distributed


def choose_engine(engine: str | Engine | None = None, scheduler: str | None = None) -> Engine:
    """Return the engine of this name: ``local`` (the default), or ``dask`` with the address of its scheduler.

    Without an address, Dask starts a cluster on this machine. An engine is returned as it is.
    """
    if engine is not None and not isinstance(engine, str):
        return engine
    if NAME.or_none("engine", engine) == "dask":
        return DaskEngine(scheduler)
    if scheduler is not None:
        raise StepwellError(f"scheduler {scheduler!r} needs the engine 'dask' (--engine dask)")
    return LocalEngine()
