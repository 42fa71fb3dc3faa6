"""Recorded runs: a folder in, tables out."""

from __future__ import annotations

import os
import re
from collections.abc import Iterator
from pathlib import Path
from typing import TYPE_CHECKING, Any

import polars as pl

from stepwell.journal.document import PROCESS, read_json
from stepwell.journal.errors import StepwellError
from stepwell.journal.liveness import status_of, worst_of
from stepwell.journal.system import boot_id
from stepwell.reading.documents import clean
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
from stepwell.reading.version import check_format

if TYPE_CHECKING:
    import pandas as pd

RUN = "run.json"
SYSTEM = "system/"
"""How the names of metrics begin that describe the machine."""
TABLES = ("spans", "metrics", "events", "processes", "open_spans", "artifacts")
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
    "open_spans": OPEN_SPANS,
    "metrics": METRICS,
    "events": EVENTS,
    "artifacts": ARTIFACTS,
    "processes": PROCESSES,
}
_LATER = pl.col("attempt") < pl.col("attempt").max().over("rank", "name", "step")
"""Whether a later attempt logged the same metric at the same step."""


def without_overwritten(metrics: pl.DataFrame) -> pl.DataFrame:
    """The rows but those that a later attempt logged again at the same step."""
    return metrics.filter(~_LATER)


def open_run(path: str | os.PathLike[str]) -> RecordedRun:
    """The run in this folder, while it is being written or afterwards.

    It may be on object storage: ``s3://bucket/run``, or whatever fsspec knows.
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
    check_format(run.id, run.about)
    return run


def _open_remote(address: str) -> RecordedRun:
    mirror = Mirror(address)
    size = mirror.fetch(wanted=is_document)
    if not (mirror.folder / RUN).is_file() and not process_folders(mirror.folder):
        inside = [name for name in mirror.children() if (mirror.folder / name / RUN).is_file()]
        hint = f": it holds the runs {', '.join(inside[:5])}" if inside else ""
        raise StepwellError(f"there is no run at {address}{hint}")
    run = RecordedRun(mirror.folder, mirror, size)
    check_format(run.id, run.about)
    return run


def runs_dir(dir: str | os.PathLike[str] | None = None) -> Path:
    """Where runs are looked for: the argument, else ``STEPWELL_DIR``, else ``./runs``."""
    return Path(dir or os.environ.get("STEPWELL_DIR") or "runs").expanduser()


def list_runs(dir: str | os.PathLike[str] | None = None) -> list[RecordedRun]:
    """The runs below a folder (else ``STEPWELL_DIR``, else ``./runs``), newest first."""
    address = address_of(dir or os.environ.get("STEPWELL_DIR"))
    if address is not None:
        return _list_remote(address)
    root = runs_dir(dir)
    if not root.is_dir():
        return []
    found = [
        RecordedRun(path)
        for path in root.iterdir()
        if path.is_dir() and ((path / RUN).is_file() or process_folders(path))
    ]
    return _newest_first(found)


def _newest_first(runs: list[RecordedRun]) -> list[RecordedRun]:
    return sorted(runs, key=lambda run: (run.created_ns, run.id), reverse=True)


def _list_remote(address: str) -> list[RecordedRun]:
    found = []
    for name in Mirror(address).children():
        mirror = Mirror(f"{address.rstrip('/')}/{name}")
        size = mirror.fetch(wanted=is_document)
        if (mirror.folder / RUN).is_file() or process_folders(mirror.folder):
            found.append(RecordedRun(mirror.folder, mirror, size))
    return _newest_first(found)


class RecordedRun:
    """A run folder to read. Each table is read anew whenever it is collected.

    Attributes:
        folder: where its files are; of a run on object storage, those that were needed so far.
        mirror: what brings more of them; None for a run that is here.
        stored_bytes: what it takes on object storage; None for a run that is here.
    """

    def __init__(
        self, path: Path, mirror: Mirror | None = None, stored_bytes: int | None = None
    ) -> None:
        self.folder = path
        self.mirror = mirror
        self.stored_bytes = stored_bytes
        self.about: dict[str, Any] = read_json(path / RUN) or {}

    @property
    def path(self) -> Path:
        """The folder with all of its files; of a run on object storage they are brought here first."""
        if self.mirror is not None:
            self.mirror.fetch()
        return self.folder

    @property
    def place(self) -> str:
        """Its path or address, to be shown."""
        return str(self.folder) if self.mirror is None else self.mirror.url

    @property
    def id(self) -> str:
        """The run id."""
        found = str(self.about.get("id") or "")
        # It may become part of a path: a stranger's folder has no say in which.
        return found if re.fullmatch(r"\w[\w.+=@-]{0,127}", found) else clean(self.folder.name)

    @property
    def name(self) -> str:
        """What the run was called."""
        return clean(str(self.about.get("name") or self.id))

    @property
    def config(self) -> dict[str, Any]:
        """What the training was configured with."""
        config = self.about.get("config")
        return config if isinstance(config, dict) else {}

    @property
    def tags(self) -> list[str]:
        """Words to find the run by."""
        tags = self.about.get("tags")
        return [clean(str(tag)) for tag in tags] if isinstance(tags, list) else []

    @property
    def summary(self) -> dict[str, Any]:
        """The final values: the last value of each metric, and those set through ``run.summary``.

        Of several ranks the lowest one that logged a metric counts. System metrics are left out.
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
        own = self.about.get("summary")
        return dict(values.iter_rows()) | (own if isinstance(own, dict) else {})

    @property
    def labels(self) -> dict[str, Any]:
        """What the run is told apart by, such as its session and perf tag."""
        labels = self.about.get("labels")
        return labels if isinstance(labels, dict) else {}

    @property
    def created_ns(self) -> int:
        """When the run was first started."""
        created = self.about.get("created")
        return created if isinstance(created, int) else 0

    @property
    def status(self) -> str:
        """running, finished, failed, interrupted, killed or empty, as in the latest attempt."""
        all_documents = map(read_document, process_folders(self.folder))
        return joint_status([document for document in all_documents if document is not None])

    # Tables

    def spans(self) -> pl.LazyFrame:
        """Spans: one row for each time a span was entered."""
        return self.table("spans")

    def open_spans(self) -> pl.LazyFrame:
        """What every thread is inside of now, or was when it died."""
        return self.table("open_spans")

    def metrics(self, overwritten: bool = False) -> pl.LazyFrame:
        """Metrics: one row for each number logged.

        Where a later attempt logged the same metric at the same step, its value is the one shown.
        ``overwritten=True`` shows all, with a column ``overwritten`` that tells which are not.
        """
        return (
            self._metrics(None).with_columns(overwritten=_LATER)
            if overwritten
            else self.table("metrics")
        )

    def events(self) -> pl.LazyFrame:
        """Events: one row for each, exceptions and logged values that are no numbers included."""
        return self.table("events")

    def artifacts(self) -> pl.LazyFrame:
        """Artifacts: one row for each file kept; its content is ``artifacts/<sha256>``."""
        return self.table("artifacts")

    def items(self) -> pl.LazyFrame:
        """Logged values that are no numbers: images, histograms, tables, texts, parameters and so on.

        ``value`` is a small one as JSON; else ``artifacts/<sha256>`` in the run folder has its content.
        """
        return scan(ITEMS, lambda wanted: self._each("items", wanted, None))

    def processes(self) -> pl.LazyFrame:
        """Processes: ranks and their workers, with state, host and what they could not keep."""
        return self.table("processes")

    def to_pandas(self, table: str) -> pd.DataFrame:
        """One of the tables as a pandas DataFrame (needs pandas and pyarrow)."""
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
        """A table by its name, of one rank or of all."""
        if name not in TABLES:
            raise StepwellError(f"there is no table {name!r}: write one of {', '.join(TABLES)}")
        if name == "processes":
            return scan(PROCESSES, lambda wanted: iter([self._process_frame(rank)]))
        if name == "metrics":
            return scan(METRICS, lambda wanted: self._latest_metrics(wanted, rank))
        return scan(SCHEMAS[name], lambda wanted: self._each(name, wanted, rank))

    def ranks(self) -> list[int]:
        """The ranks that recorded."""
        return sorted({int(d["rank"]) for d in self._documents()})

    def by_process(self, rank: int | None = None, partial: bool = False) -> Iterator[ProcessTables]:
        """The records of each process by itself, for those who write a run out piece by piece.

        With ``partial`` the steps are read where they are asked for: for a look at a small part.
        """
        layout = Layout.of(self.id, self._documents())
        for folder in self._folders(rank):
            self.bring(folder)
            yield from layout.read(folder, partial)

    def documents(self) -> list[dict[str, Any]]:
        """What is known of each process, workers included, without reading its records."""
        return self._documents()

    def __repr__(self) -> str:
        return f"<recorded run {self.id} in {self.place}>"

    # Reading

    def bring(self, folder: Path) -> None:
        """Have all files of a process here, wherever the run is."""
        if self.mirror is not None:
            self.mirror.fetch(folder.name)

    def _metrics(self, rank: int | None) -> pl.LazyFrame:
        return scan(METRICS, lambda wanted: self._each("metrics", wanted, rank))

    def _latest_metrics(self, wanted: set[str], rank: int | None) -> Iterator[pl.DataFrame]:
        """Metrics, without those that a later attempt logged again at the same step."""
        if len({d["attempt"] for d in self._documents()}) < 2:
            yield from self._each("metrics", wanted, rank)
            return
        keys = {"attempt", "rank", "name", "step"}
        found = list(self._each("metrics", wanted | keys, rank))
        if found:
            yield without_overwritten(pl.concat(found))

    def _folders(self, rank: int | None) -> list[Path]:
        folders = process_folders(self.folder)
        if rank is None:
            return folders
        return [f for f in folders if (read_json(f / PROCESS) or {}).get("rank") == rank]

    def _documents(self) -> list[dict[str, Any]]:
        return [d for folder in process_folders(self.folder) for d in read_documents(folder)]

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
            rows += process_rows(self.id, [process.about for process in processes], latest)
        return process_table(rows)


def joint_status(documents: list[dict[str, Any]]) -> str:
    """How a run with these main processes is: those of the latest attempt decide."""
    latest = max((d["attempt"] for d in documents), default=0)
    return worst_of(status_of(d) for d in documents if d["attempt"] == latest)


Step = tuple[int | None, int | None]
"""A step and an epoch."""


def process_rows(
    run: str, documents: list[dict[str, Any]], latest: list[Step]
) -> list[dict[str, Any]]:
    """Rows of PROCESSES for a process and its workers, from what they last set as step and epoch."""
    rows = []
    for about, step in zip(documents, latest, strict=True):
        row = _process_row(about, run, step)
        parent = status_of(documents[0])
        distant = about["boot"] != boot_id()
        if about["role"] == "worker" and (distant or parent == "finished"):
            # It renews no heartbeat of its own, and may outlive the run by a moment.
            row["status"] = parent
        rows.append(row)
    return rows


def process_table(rows: list[dict[str, Any]]) -> pl.DataFrame:
    """These rows as a table."""
    return pl.DataFrame(rows, schema=PROCESSES, orient="row", strict=False)


def _process_row(about: dict[str, Any], run: str, context: Step) -> dict[str, Any]:
    worker = about["worker"]
    return {
        **{key: about.get(key) for key in PROCESSES},
        "run": run,
        "thread": None,
        "step": context[0],
        "epoch": context[1],
        "name": about.get("role") if worker is None else f"worker-{worker}",
        "status": status_of(about),
        "started_ns": about.get("started"),
        "heartbeat_ns": about.get("heartbeat"),
    }
