"""The provenance backend: writes the document of a run from time to time, and at the end.

A document is created from the run folder. So the records that are delivered are not stored: they only show
that there is something new. The first rank that logs writes the document; the other ranks write it once when
they end.
"""

from __future__ import annotations

import time
from pathlib import Path
from typing import Any, ClassVar

from stepwell._core.files import locked, read_json, replacing, write_json
from stepwell.loggers.delivery.backend import BACKENDS, Backend, ItemRecord, LogRecord, Source
from stepwell.loggers.delivery.files import as_one_part, run_folder_name
from stepwell.loggers.prov.graph_files import DOCUMENT, documents_of

DEFAULT_FOLDER = "mllogs/prov_logs"
PLACEHOLDER = "experiment_name"
"""The documented default of ``experiment_name``. The name of the run is used instead."""
SAVE_AFTER = 100
SHORTEST_PAUSE = 1.0
"""The shortest time between two documents, in seconds."""
PATIENCE = 20
"""The time between two documents, in multiples of the time that the last one took."""


class ProvBackend(Backend):
    """Writes ``<provenance_save_dir>/<experiment>-<run id>/provenance.json`` and its graph.

    Options: ``prov_user_namespace``, ``experiment_name``, ``provenance_save_dir``,
    ``save_after_n_logs``, ``create_graph``, ``create_svg``.
    """

    name: ClassVar[str] = "prov"

    _pending = 0
    _not_before = 0.0
    _is_whole = False
    _status: str | None = None

    def open(self, source: Source, state: dict[str, Any]) -> None:
        """Choose the folder, if no earlier process has."""
        self.source = source
        self.state = state
        if "folder" not in state:
            folder = Path(str(self.options.get("provenance_save_dir") or DEFAULT_FOLDER))
            name = run_folder_name(source.run, self._experiment() or source.application)
            state["folder"] = str(folder.expanduser().absolute() / name)
            state["document"] = str(Path(state["folder"], DOCUMENT))
        self.folder = Path(state["folder"])

    def deliver(self, records: list[LogRecord], again: bool) -> None:
        """Write the document if it was requested or is due."""
        is_requested = any(
            isinstance(record, ItemRecord) and record.kind == "prov_documents" for record in records
        )
        self._pending += len(records)
        self._is_whole = False
        if is_requested:
            self._write(graphs=True)
        elif self.is_first and not Path(self.state["document"]).exists():
            self._write()
        else:
            self.tick()

    def tick(self) -> None:
        """Write the document if there are enough new records and the last document is old enough."""
        enough = self._pending >= int(self.options.get("save_after_n_logs") or SAVE_AFTER)
        if self.is_first and enough and time.monotonic() >= self._not_before:
            self._write()

    def flush(self) -> None:
        """Write the document if there are new records."""
        if self.is_first and self._pending:
            self._write()

    def finish(self, status: str) -> None:
        """Write the final document and its graph."""
        self._status = status
        self._write(graphs=True)
        self.state["status"] = status

    def close(self) -> None:
        """Write the document again if the process was still running when it was written."""
        if self._status is not None and not self._is_whole:
            self._write(graphs=True)

    # Writing

    def _experiment(self) -> str | None:
        given = self.run_name or self.options.get("experiment_name")
        return None if given == PLACEHOLDER else given

    def _write(self, graphs: bool = False) -> None:
        from stepwell.loggers.prov.document import USER_NAMESPACE, Document
        from stepwell.loggers.prov.history import read_history

        began = time.monotonic()
        pending = self._pending
        self.folder.mkdir(parents=True, exist_ok=True)
        # The process still runs while its last records are delivered, but they contain its final status.
        now = time.time_ns()
        ended = {} if self._status is None else {self.source.process: (self._status, now)}
        # Of two ranks that write at the same time, the one that read earlier might write later. Without the
        # lock, the rank that ends last writes last in most cases.
        with locked(self.folder / ".lock", required=False):
            history = read_history(self.run_folder, ended)
            if self._status is not None and self.is_first:
                # The other processes end at about the same time. The document does not wait for them.
                history.decided.add(self.source.attempt)
            self._sum_checkpoints(history)
            namespace = self.options.get("prov_user_namespace") or USER_NAMESPACE
            document = Document(history, namespace, self._experiment() or history.name).to_json()
            graph = graphs and bool(self.options.get("create_graph", True))
            svg = graphs and bool(self.options.get("create_svg", True))
            for name, text in documents_of(document, graph, svg).items():
                with replacing(self.folder / name, durable=True) as new:
                    new.write_text(text, encoding="utf-8")
        self._is_whole = history.status != "running" and self._has_ended()
        self._pending -= pending
        took = time.monotonic() - began
        self._not_before = time.monotonic() + max(SHORTEST_PAUSE, PATIENCE * took)

    def _sum_checkpoints(self, history: Any) -> None:
        """Compute the checksums of new checkpoints before their files change."""
        from stepwell.loggers.prov.products import CHECKPOINT_SUMS, checkpoint_sums

        process = as_one_part(self.source.process)
        path = self.run_folder / BACKENDS / f"{CHECKPOINT_SUMS}-{process}.json"
        before = read_json(path) or {}
        sums = checkpoint_sums(history, self.source.process, before)
        if sums != before:
            path.parent.mkdir(exist_ok=True)
            write_json(path, sums)

    def _has_ended(self) -> bool:
        document = read_json(self.run_folder / self.source.process / "process.json") or {}
        return document.get("status") not in (None, "running")
