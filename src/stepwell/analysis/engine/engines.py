"""Engines run the tasks of a run, in this process or on a Dask cluster; a summary combines the results."""

from __future__ import annotations

import os
import pickle
from collections.abc import Callable, Iterator, Sequence
from concurrent.futures import Future, ThreadPoolExecutor
from contextlib import contextmanager
from functools import cached_property
from typing import Any, Protocol

import polars as pl

from stepwell._core.checks import one_of
from stepwell._core.errors import StepwellError
from stepwell._core.system import trim_malloc
from stepwell.analysis.engine.tasks import EMPTY, WANTED, Task, TaskResult, make_tasks, read_task
from stepwell.analysis.ranks.grid import Grid, make_grids
from stepwell.analysis.ranks.stacks import in_order
from stepwell.analysis.throughput import Joules, Update
from stepwell.analysis.timeline.timeline import sort_timelines
from stepwell.reading import RecordedRun
from stepwell.reading.run import process_rows, process_table, without_overwritten
from stepwell.reading.tables import OPEN_SPANS

NAME = one_of("local", "dask")
LARGE = 2 << 20
"""Average bytes of a task from which on two threads are faster than one."""
OFTEN = 32 << 20
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
    """Runs the tasks in this process: large ones two at a time, small ones one after the other."""

    def map(
        self, do: Callable[[Task], TaskResult], tasks: Sequence[Task]
    ) -> Iterator[tuple[int, TaskResult]]:
        """Yield the results in the order of the tasks."""
        if sum(task.size for task in tasks) < LARGE * max(2, len(tasks)):
            # With small arrays two threads mostly wait for each other.
            yield from _tidily(tasks, map(do, tasks))
            return
        with ThreadPoolExecutor(2) as threads:
            yield from _tidily(tasks, threads.map(do, tasks))


def _tidily(
    tasks: Sequence[Task], results: Iterator[TaskResult]
) -> Iterator[tuple[int, TaskResult]]:
    """Yield numbered results, and now and then return freed memory to the system."""
    done = 0
    for number, (task, result) in enumerate(zip(tasks, results, strict=True)):
        yield number, result
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


class Summary:
    """Everything that rules and the report need of a run's records.

    Attributes:
        run: the run.
        documents: the document of each process, workers included.
        timelines: the time of each rank and attempt.
        loops: training and validation loops of all ranks.
        history: the spans of each process so far, for a run that has not finished.
        stacks: the open spans of every thread of its latest attempt, now or when it died.
    """

    def __init__(
        self, run: RecordedRun, documents: list[dict[str, Any]], parts: list[TaskResult]
    ) -> None:
        self.run = run
        self.documents = documents
        self._notes = [notes for part in parts for notes in part.folders]
        self._metrics = [frame for part in parts for frame in part.metrics]
        self._open = [frame for part in parts for frame in part.open_spans if frame.height]
        self.timelines = sort_timelines(each for part in parts for each in part.timelines)
        self.loops = [loop for part in parts for loop in part.loops]
        self.history = [history for part in parts for history in part.history]
        self.stacks = in_order(stack for part in parts for stack in part.stacks)

    @cached_property
    def processes(self) -> pl.DataFrame:
        """The table of processes."""
        rows = []
        for notes in self._notes:
            documents, latest = [n.document for n in notes], [n.latest for n in notes]
            rows += process_rows(self.run.id, documents, latest)
        return process_table(rows)

    @cached_property
    def metrics(self) -> pl.DataFrame:
        """Logged values: name, rank, attempt, step, time_ns, value. The latest attempt of a step counts."""
        table = pl.concat([EMPTY, *(frame.select(WANTED) for frame in self._metrics)])
        self._metrics = []
        is_single = len({d["attempt"] for d in self.documents}) < 2
        return table if is_single else without_overwritten(table)

    @cached_property
    def open_spans(self) -> pl.DataFrame:
        """The open spans of every thread of the latest attempt, now or when it died."""
        last = max((d["attempt"] for d in self.documents if d["role"] != "worker"), default=0)
        table = pl.concat([pl.DataFrame(schema=OPEN_SPANS), *self._open])
        return table.filter(pl.col("attempt") == last)

    @property
    def joules(self) -> list[Joules]:
        """The recorded energy of each process."""
        return [note.joules for notes in self._notes for note in notes]

    @property
    def updates(self) -> list[Update | None]:
        """The latest update of the training loop of each process."""
        return [note.update for notes in self._notes for note in notes]

    @property
    def spans(self) -> tuple[int, int]:
        """Number of spans of all processes, and of main processes alone."""
        notes = [note for notes in self._notes for note in notes]
        own = sum(note.spans for note in notes if note.document["role"] != "worker")
        return sum(note.spans for note in notes), own


def summarise(run: RecordedRun, engine: Engine | None = None) -> Summary:
    """Read a run once, with this engine or in this process."""
    tasks, documents = make_tasks(run)
    results: dict[int, TaskResult] = {}
    for number, part in (engine or LocalEngine()).map(read_task, tasks):
        results[number] = part
    parts = [results.pop(number) for number in sorted(results)]
    summary = Summary(run, documents, parts)
    if sum(task.size for task in tasks) >= OFTEN:
        trim_malloc()
    return summary


LARGE_GRIDS = 100_000
"""Ranks times steps of grids from which on their memory is returned to the system."""
OfGrids = Callable[[Summary, list[Grid]], Any]
"""A function of a summary and the grids of all attempts."""


def summarise_with_grids(
    run: RecordedRun, functions: list[OfGrids], engine: Engine | None = None
) -> tuple[Summary, list[Future[Any]]]:
    """Read a run once and apply functions to the grids of its attempts; return their results, or exceptions.

    Grids take as much memory as all the rest. So they are made once and dropped after the last function. The
    timelines of this summary are without ``phases_by_step``.
    """
    summary = summarise(run, engine)
    results: list[Future[Any]] = [Future() for _ in functions]
    try:
        grids = make_grids(summary.timelines, consume=True)
    except Exception as error:
        for result in results:
            result.set_exception(error)
        return summary, results
    for function, result in zip(functions, results, strict=True):
        try:
            result.set_result(function(summary, grids))
        except Exception as error:
            result.set_exception(error)
    if sum(grid.begin.size for grid in grids) >= LARGE_GRIDS:
        del grids
        trim_malloc()
    return summary, results
