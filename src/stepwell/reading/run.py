"""Recorded runs: opening and listing them, and their tables."""

from __future__ import annotations

import os
import re
from collections.abc import Iterator
from pathlib import Path
from typing import TYPE_CHECKING, Any, TypeAlias

import polars as pl

from stepwell._core.checks import COUNT
from stepwell._core.errors import StepwellError, log_warning
from stepwell._core.files import read_json
from stepwell._core.system import boot_id
from stepwell.journal.document import status_of, worst_of
from stepwell.journal.format import PROCESS
from stepwell.reading.documents import check_format, clean
from stepwell.reading.layout import Layout, contexts
from stepwell.reading.process import (
    process_folders,
    read_document,
    read_documents,
    read_processes,
)
from stepwell.reading.remote import Mirror, address_of, is_document, path_of
from stepwell.reading.tables import (
    ARTIFACTS,
    EVENTS,
    ITEMS,
    METRICS,
    OPEN_SPANS,
    PLACE,
    SPANS,
    ProcessTables,
    scan,
)

if TYPE_CHECKING:
    import pandas as pd

RUN = "run.json"
SYSTEM = "system/"
"""Prefix of the names of metrics of the machine."""
PROCESSES = pl.Schema(
    {
        **PLACE,
        "role": pl.String,
        "parent": pl.String,
        "worker": pl.Int32,
        "status": pl.String,
        "host": pl.String,
        "pid": pl.Int64,
        "local_rank": pl.Int32,
        "world_size": pl.Int32,
        "started_ns": pl.Int64,
        "heartbeat_ns": pl.Int64,
        "dropped": pl.Int64,
        "error": pl.String,
        "spool": pl.String,
    }
)


SCHEMAS = {
    "spans": SPANS,
    "metrics": METRICS,
    "events": EVENTS,
    "processes": PROCESSES,
    "open_spans": OPEN_SPANS,
    "artifacts": ARTIFACTS,
}
TABLES = tuple(SCHEMAS)
_LATER = pl.col("attempt") < pl.col("attempt").max().over("rank", "name", "step")
"""True for rows for which a later attempt logged the same metric at the same step."""


def without_overwritten(metrics: pl.DataFrame) -> pl.DataFrame:
    """Return the metrics without those that a later attempt logged again at the same step."""
    return metrics.filter(~_LATER)


def open_run(path: str | os.PathLike[str]) -> RecordedRun:
    """Open the run in this folder, during recording or afterwards.

    It may be on object storage: ``s3://bucket/run``, or any address that fsspec supports.
    """
    address = address_of(path)
    if address is not None:
        return _open_remote(address)
    folder = path_of(path)
    if not folder.is_dir():
        raise StepwellError(f"there is no run folder {str(folder)!r}")
    if not (folder / RUN).is_file() and not process_folders(folder):
        inside = [run.id for run in list_runs(folder)]
        hint = (
            f"it holds the runs {', '.join(inside[:5])}"
            if inside
            else "`stepwell ls DIR` lists those in a folder"
        )
        raise StepwellError(f"{str(folder)!r} is not a run folder: {hint}")
    run = RecordedRun(folder)
    check_format(run.id, run.document)
    return run


def _open_remote(address: str) -> RecordedRun:
    mirror = Mirror(address)
    size = mirror.fetch(wanted=is_document)
    if not (mirror.folder / RUN).is_file() and not process_folders(mirror.folder):
        inside = [name for name in mirror.children() if (mirror.folder / name / RUN).is_file()]
        hint = f": it holds the runs {', '.join(inside[:5])}" if inside else ""
        raise StepwellError(f"there is no run at {address}{hint}")
    run = RecordedRun(mirror.folder, mirror, size)
    check_format(run.id, run.document)
    return run


def runs_dir(dir: str | os.PathLike[str] | None = None) -> Path:
    """Return the folder of runs: the argument, else ``STEPWELL_DIR``, else ``./runs``."""
    return Path(dir or os.environ.get("STEPWELL_DIR") or "runs").expanduser()


def list_runs(dir: str | os.PathLike[str] | None = None) -> list[RecordedRun]:
    """Return the runs in a folder (else ``STEPWELL_DIR``, else ``./runs``), newest first."""
    address = address_of(dir or os.environ.get("STEPWELL_DIR"))
    if address is not None:
        return _list_remote(address)
    root = runs_dir(dir)
    if not root.is_dir():
        return []
    runs = [
        RecordedRun(path)
        for path in root.iterdir()
        if path.is_dir() and ((path / RUN).is_file() or process_folders(path))
    ]
    return _newest_first(runs)


def _newest_first(runs: list[RecordedRun]) -> list[RecordedRun]:
    return sorted(runs, key=lambda run: (run.created_ns, run.id), reverse=True)


def _list_remote(address: str) -> list[RecordedRun]:
    runs = []
    for name in Mirror(address).children():
        mirror = Mirror(f"{address.rstrip('/')}/{name}")
        size = mirror.fetch(wanted=is_document)
        if (mirror.folder / RUN).is_file() or process_folders(mirror.folder):
            runs.append(RecordedRun(mirror.folder, mirror, size))
    return _newest_first(runs)


Stamp: TypeAlias = tuple[int | None, ...]


def stamp_of(run: RecordedRun) -> Stamp:
    """Return a value that changes when the documents of a run do, or its files on object storage."""
    if run.mirror is not None:
        return (run.stored_bytes,)
    paths = [run.folder / RUN, *(folder / PROCESS for folder in process_folders(run.folder))]
    return tuple(map(_changed_ns, paths))


def _changed_ns(path: Path) -> int:
    try:
        return path.stat().st_mtime_ns
    except OSError:
        return -1


class RecordedRun:
    """A run folder. A table is read again whenever it is collected.

    Attributes:
        folder: the folder of its files; for a run on object storage, of the copies made so far.
        mirror: copies files of a run on object storage; None for a local run.
        stored_bytes: its size on object storage; None for a local run.
        document: the content of run.json.
    """

    def __init__(
        self, path: Path, mirror: Mirror | None = None, stored_bytes: int | None = None
    ) -> None:
        self.folder = path
        self.mirror = mirror
        self.stored_bytes = stored_bytes
        self.document: dict[str, Any] = read_json(path / RUN) or {}

    @property
    def path(self) -> Path:
        """The folder with all of its files; those of a run on object storage are copied first."""
        if self.mirror is not None:
            self.mirror.fetch()
        return self.folder

    @property
    def place(self) -> str:
        """The path or address of the run, for display."""
        return str(self.folder) if self.mirror is None else self.mirror.url

    @property
    def id(self) -> str:
        """The run id."""
        run_id = str(self.document.get("id") or "")
        # Untrusted, and it may become part of a path.
        return run_id if re.fullmatch(r"\w[\w.+=@-]{0,127}", run_id) else clean(self.folder.name)

    @property
    def name(self) -> str:
        """The name of the run."""
        return clean(str(self.document.get("name") or self.id))

    @property
    def config(self) -> dict[str, Any]:
        """The configuration of the training."""
        return self._mapping("config")

    @property
    def tags(self) -> list[str]:
        """The tags of the run."""
        tags = self.document.get("tags")
        return [clean(str(tag)) for tag in tags] if isinstance(tags, list) else []

    @property
    def summary(self) -> dict[str, Any]:
        """The last value of each metric, and the values set through ``run.summary``.

        For a metric of several ranks, the lowest rank counts. System metrics are left out.
        """
        values = (
            self.metrics()
            .filter(~pl.col("name").str.starts_with(SYSTEM))
            .select("name", "rank", "step", "time_ns", "value")
            .collect()
            .filter(pl.col("rank") == pl.col("rank").min().over("name"))
            .sort("step", "time_ns")
            .group_by("name", maintain_order=True)
            .agg(pl.col("value").last())
        )
        return dict(values.iter_rows()) | self._mapping("summary")

    @property
    def labels(self) -> dict[str, Any]:
        """The labels of the run, such as its session and perf tag."""
        return self._mapping("labels")

    def _mapping(self, key: str) -> dict[str, Any]:
        value = self.document.get(key)
        return value if isinstance(value, dict) else {}

    @property
    def created_ns(self) -> int:
        """When the run was first started, in nanoseconds since the epoch."""
        created = self.document.get("created")
        return created if isinstance(created, int) else 0

    @property
    def status(self) -> str:
        """The status of the latest attempt: running, finished, failed, interrupted, killed or empty."""
        all_documents = map(read_document, process_folders(self.folder))
        return joint_status([document for document in all_documents if document is not None])

    # Tables

    def spans(self) -> pl.LazyFrame:
        """Return the spans: one row for each time a span was entered."""
        return self.table("spans")

    def open_spans(self) -> pl.LazyFrame:
        """Return the open spans of every thread, now or when its process died."""
        return self.table("open_spans")

    def metrics(self, overwritten: bool = False) -> pl.LazyFrame:
        """Return the metrics: one row for each logged number.

        Values that a later attempt logged again at the same step are left out. With ``overwritten=True`` they
        are included and marked in a column ``overwritten``.
        """
        if not overwritten:
            return self.table("metrics")
        every = scan(METRICS, lambda wanted: self._each("metrics", wanted, None))
        return every.with_columns(overwritten=_LATER)

    def events(self) -> pl.LazyFrame:
        """Return the events, including exceptions and logged values that are not numbers."""
        return self.table("events")

    def artifacts(self) -> pl.LazyFrame:
        """Return the artifacts: one row for each stored file, whose content is ``artifacts/<sha256>``."""
        return self.table("artifacts")

    def items(self) -> pl.LazyFrame:
        """Return logged values that are not numbers: images, histograms, tables, texts, parameters, ….

        ``value`` is a small value as JSON; the content of others is ``artifacts/<sha256>`` in the run folder.
        """
        return scan(ITEMS, lambda wanted: self._each("items", wanted, None))

    def processes(self) -> pl.LazyFrame:
        """Return the processes: ranks and their workers, with status, host and number of dropped records."""
        return self.table("processes")

    def to_pandas(self, table: str) -> pd.DataFrame:
        """Return a table as a pandas DataFrame (needs pandas and pyarrow)."""
        lazy = self.table(table)
        try:
            import pandas  # noqa: F401
            import pyarrow  # noqa: F401
        except ImportError as error:
            raise StepwellError(
                f"{error.name} is missing: pip install 'stepwell[pandas]'"
            ) from None
        return lazy.collect().to_pandas()

    def table(self, name: str, rank: int | None = None) -> pl.LazyFrame:
        """Return a table by its name, of one rank or of all."""
        if name not in TABLES:
            raise StepwellError(f"there is no table {name!r}: use one of {', '.join(TABLES)}")
        if name == "processes":
            return scan(PROCESSES, lambda wanted: iter([self._process_frame(rank)]))
        if name == "metrics":
            return scan(METRICS, lambda wanted: self._latest_metrics(wanted, rank))
        return scan(SCHEMAS[name], lambda wanted: self._each(name, wanted, rank))

    def ranks(self) -> list[int]:
        """Return the ranks that recorded."""
        return sorted({int(d["rank"]) for d in self.documents()})

    def by_process(self, rank: int | None = None, partial: bool = False) -> Iterator[ProcessTables]:
        """Yield the records of each process separately, for exports in pieces.

        With ``partial``, steps are read only when needed: for a small part of a run.
        """
        layout = Layout.of(self.id, self.documents())
        for folder in self._folders(rank):
            self.bring(folder)
            yield from layout.read(folder, partial)

    def documents(self) -> list[dict[str, Any]]:
        """Return the checked process.json of each process and worker."""
        return [d for folder in process_folders(self.folder) for d in read_documents(folder)]

    def show(self, height: int = 720) -> Notebook:
        """Return the page of the run, as a notebook shows it; see also ``stepwell ui``.

        Args:
            height: height of the page in pixels.
        """
        return Notebook(self, height)

    def _repr_html_(self) -> str | None:
        """Return the page of the run for notebooks."""
        return self.show()._repr_html_()

    def __repr__(self) -> str:
        return f"<recorded run {self.id} in {self.place}>"

    # Reading

    def bring(self, folder: Path) -> None:
        """Copy all files of a process if the run is on object storage."""
        if self.mirror is not None:
            self.mirror.fetch(folder.name)

    def _latest_metrics(self, wanted: set[str], rank: int | None) -> Iterator[pl.DataFrame]:
        """Yield metrics without those that a later attempt logged again at the same step."""
        if len({d["attempt"] for d in self.documents()}) < 2:
            yield from self._each("metrics", wanted, rank)
            return
        keys = {"attempt", "rank", "name", "step"}
        frames = list(self._each("metrics", wanted | keys, rank))
        if frames:
            yield without_overwritten(pl.concat(frames))

    def _folders(self, rank: int | None) -> list[Path]:
        folders = process_folders(self.folder)
        if rank is None:
            return folders
        return [f for f in folders if (read_json(f / PROCESS) or {}).get("rank") == rank]

    def _each(self, table: str, wanted: set[str], rank: int | None) -> Iterator[pl.DataFrame]:
        for tables in self.by_process(rank):
            if table in ("spans", "open_spans"):
                yield from tables.spans(wanted, only_open=table == "open_spans")
            elif table == "metrics":
                yield from tables.metrics(wanted)
            elif table == "items":
                yield from tables.items(wanted)
            else:
                yield from tables.events(wanted, artifacts=table == "artifacts")

    def _process_frame(self, rank: int | None) -> pl.DataFrame:
        rows = []
        for folder in self._folders(rank):
            self.bring(folder)
            processes = read_processes(folder)
            latest = [context.latest() for context in contexts(processes)]
            rows += process_rows(self.id, [process.document for process in processes], latest)
        return process_table(rows)


class Notebook:
    """The page of a run in a notebook: the one-file report in a frame of its own."""

    def __init__(self, run: RecordedRun, height: int) -> None:
        self._run = run
        self._height = COUNT.check("height", height)

    def _repr_html_(self) -> str | None:
        from stepwell.dashboard.html import notebook_html

        try:
            return notebook_html(self._run, self._height)
        except (StepwellError, OSError) as error:
            log_warning(f"The page of {self._run.id} cannot be shown: {error}")
            return None

    def __repr__(self) -> str:
        return f"<page of {self._run.id}; outside a notebook: stepwell ui {self._run.place}>"


def joint_status(documents: list[dict[str, Any]]) -> str:
    """Return the status of a run from the documents of its ranks in the latest attempt."""
    latest = max((d["attempt"] for d in documents), default=0)
    return worst_of(status_of(d) for d in documents if d["attempt"] == latest)


Step = tuple[int | None, int | None]
"""(step, epoch)"""


def process_rows(
    run: str, documents: list[dict[str, Any]], latest: list[Step]
) -> list[dict[str, Any]]:
    """Return rows of PROCESSES for a process and its workers. ``latest`` has their last step and epoch."""
    rows = []
    for document, step in zip(documents, latest, strict=True):
        row = _process_row(document, run, step)
        parent = status_of(documents[0])
        distant = document["boot"] != boot_id()
        if document["role"] == "worker" and (distant or parent == "finished"):
            # A worker writes no heartbeats, and may outlive the run for a moment.
            row["status"] = parent
        rows.append(row)
    return rows


def process_table(rows: list[dict[str, Any]]) -> pl.DataFrame:
    """Return these rows as a table."""
    return pl.DataFrame(rows, schema=PROCESSES, orient="row", strict=False)


def _process_row(document: dict[str, Any], run: str, context: Step) -> dict[str, Any]:
    worker = document["worker"]
    return {
        **{key: document.get(key) for key in PROCESSES},
        "run": run,
        "thread": None,
        "step": context[0],
        "epoch": context[1],
        "name": document.get("role") if worker is None else f"worker-{worker}",
        "status": status_of(document),
        "started_ns": document.get("started"),
        "heartbeat_ns": document.get("heartbeat"),
    }
