"""Doing tasks on a Dask cluster. Needs ``stepwell[dask]``, here and on its workers."""

from __future__ import annotations

import os
import pickle
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from typing import Any

from stepwell.analysis.engine.part import Part
from stepwell.analysis.engine.task import Task
from stepwell.journal.errors import StepwellError

BATCHES = 8
"""So many batches for each worker: few enough to be cheap, enough to keep all of them busy to the end."""
PATIENCE = 30.0
"""Seconds to wait for a scheduler to answer, and for its first worker."""


class DaskEngine:
    """Does tasks on the workers of a cluster: at its scheduler's address, else one that is started here.

    A worker reads the files itself, so it must see the run folder under the same path, or at its address on
    object storage. What comes back are summaries; no span ever does.
    """

    def __init__(self, scheduler: str | None = None) -> None:
        self._scheduler = scheduler
        self._dask = _import()

    def map(self, do: Callable[[Task], Part], tasks: Sequence[Task]) -> Iterator[tuple[int, Part]]:
        """In the order in which they get done."""
        with _client(self._dask, self._scheduler) as client:
            batches = _batches(tasks, BATCHES * _count_workers(client, self._scheduler))
            work = [[tasks[number] for number in batch] for batch in batches]
            # Not pure: a run that is read again may have gone on since.
            futures = client.map(_do_batch, [do] * len(work), work, pure=False)
            numbers = {f.key: batch for f, batch in zip(futures, batches, strict=True)}
            done = self._dask.as_completed(futures, loop=client.loop, with_results=True)
            # Who drops a result lets the worker that holds it forget it.
            del futures, work
            for future, packed in done:
                for number, part in zip(numbers[future.key], packed, strict=True):
                    yield number, pickle.loads(part)
                del future, packed


def _do_batch(do: Callable[[Task], Part], tasks: list[Task]) -> list[bytes]:
    # Packed here: Dask would look at each of the many small arrays and send it by itself.
    return [pickle.dumps(do(task), pickle.HIGHEST_PROTOCOL) for task in tasks]


def _batches(tasks: Sequence[Task], most: int) -> list[list[int]]:
    """The numbers of the tasks in batches of about the same size, the largest tasks first."""
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
            f"no Dask scheduler answers at {scheduler!r} ({error}): write its address as "
            "`dask scheduler` prints it, such as tcp://10.0.0.1:8786"
        ) from None
    with client:
        yield client


def _count_workers(client: Any, scheduler: str | None) -> int:
    try:
        client.wait_for_workers(1, timeout=PATIENCE)
    except TimeoutError:
        raise StepwellError(
            f"the Dask cluster at {scheduler or 'this machine'} has no worker: start some with "
            f"dask worker {scheduler or 'ADDRESS'}"
        ) from None
    return sum(client.nthreads().values())


def _import() -> Any:
    try:
        import distributed
    except ImportError as error:
        raise StepwellError(
            f"the engine dask needs {error.name}: pip install 'stepwell[dask]'"
        ) from None
    return distributed
