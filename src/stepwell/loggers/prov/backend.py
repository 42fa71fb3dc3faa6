"""Provenance documents: written anew now and then while a run goes on, and when it ends.

A document follows from the run folder, so nothing is kept of the records that come: they only tell that there
is more to write. The first rank that logs writes it; the others write it once more when they end.
"""

from __future__ import annotations

import contextlib
import re
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any, ClassVar

from stepwell.journal.document import read_json, write_json
from stepwell.loggers.delivery.backend import BACKENDS, Backend, ItemRecord, LogRecord, Source
from stepwell.loggers.delivery.kept_files import as_one_part

DEFAULT_FOLDER = "mllogs/prov_logs"
PLACEHOLDER = "experiment_name"
"""The documented default of ``experiment_name``; the name of the run says more."""
SAVE_AFTER = 100
SHORTEST_PAUSE = 1.0
"""Seconds between two documents at least."""
PATIENCE = 20
"""Between two documents it waits so many times as long as the last one took."""
DOCUMENT = "provenance.json"


class ProvBackend(Backend):
    """Writes ``<provenance_save_dir>/<experiment>-<run id>/provenance.json`` and the graph of it.

    Options: ``prov_user_namespace``, ``experiment_name``, ``provenance_save_dir``,
    ``save_after_n_logs``, ``create_graph``, ``create_svg``.
    """

    name: ClassVar[str] = "prov"

    _pending = 0
    _not_before = 0.0
    _is_whole = False
    _status: str | None = None

    def open(self, source: Source, state: dict[str, Any]) -> None:
        """Choose the folder, if no earlier process did."""
        self.source = source
        self.state = state
        if "folder" not in state:
            folder = Path(str(self.options.get("provenance_save_dir") or DEFAULT_FOLDER))
            state["folder"] = str(folder.expanduser().absolute() / self._folder_name())
            state["document"] = str(Path(state["folder"], DOCUMENT))
        self.folder = Path(state["folder"])

    def deliver(self, records: list[LogRecord], again: bool) -> None:
        """Write the document, if it is time to."""
        asked = any(isinstance(r, ItemRecord) and r.kind == "prov_documents" for r in records)
        self._pending += len(records)
        self._is_whole = False
        if asked:
            self._write(graphs=True)
        elif self.is_first and not Path(self.state["document"]).exists():
            self._write()
        else:
            self.tick()

    def tick(self) -> None:
        """Write the document, if enough was logged and the last one is not too fresh."""
        enough = self._pending >= int(self.options.get("save_after_n_logs") or SAVE_AFTER)
        if self.is_first and enough and time.monotonic() >= self._not_before:
            self._write()

    def flush(self) -> None:
        """Write what was logged since."""
        if self.is_first and self._pending:
            self._write()

    def finish(self, status: str) -> None:
        """Write the last document and its graph."""
        self._status = status
        self._write(graphs=True)
        self.state["status"] = status

    def close(self) -> None:
        """The process may have ended since: then the document says so."""
        if self._status is not None and not self._is_whole:
            self._write(graphs=True)

    # Writing

    def _folder_name(self) -> str:
        run = as_one_part(self.source.run)
        name = re.sub(r"[^\w.+=@-]+", "_", self._experiment() or self.source.application).strip(
            "._"
        )
        return run if not name or name in run else f"{name[:100]}-{run}"

    def _experiment(self) -> str | None:
        given = self.run_name or self.options.get("experiment_name")
        return None if given == PLACEHOLDER else given

    def _write(self, graphs: bool = False) -> None:
        from stepwell.loggers.prov.document import USER_NAMESPACE, Document
        from stepwell.loggers.prov.gathering import facts_of
        from stepwell.loggers.prov.writing import documents_of, replace_text

        began = time.monotonic()
        pending = self._pending
        self.folder.mkdir(parents=True, exist_ok=True)
        # It still runs while its last records are delivered; that it is over is known from them.
        now = time.time_ns()
        ended = {} if self._status is None else {self.source.process: (self._status, now)}
        with self._alone():
            facts = facts_of(self.run_folder, ended)
            if self._status is not None and self.is_first:
                # The others end at about the same time, which nobody waits for.
                facts.decided.add(self.source.attempt)
            self._sum_checkpoints(facts)
            namespace = self.options.get("prov_user_namespace") or USER_NAMESPACE
            document = Document(facts, namespace, self._experiment() or facts.name).to_json()
            graph = graphs and bool(self.options.get("create_graph", True))
            svg = graphs and bool(self.options.get("create_svg", True))
            for name, text in documents_of(document, graph, svg).items():
                replace_text(self.folder / name, text)
        self._is_whole = facts.status != "running" and self._has_ended()
        self._pending -= pending
        took = time.monotonic() - began
        self._not_before = time.monotonic() + max(SHORTEST_PAUSE, PATIENCE * took)

    def _sum_checkpoints(self, facts: Any) -> None:
        """Take the sums of new checkpoints while their files are what they were."""
        from stepwell.loggers.prov.checkpoint_sums import checkpoint_sums
        from stepwell.loggers.prov.products import CHECKPOINT_SUMS

        process = as_one_part(self.source.process)
        path = self.run_folder / BACKENDS / f"{CHECKPOINT_SUMS}-{process}.json"
        known = read_json(path) or {}
        found = checkpoint_sums(facts, self.source.process, known)
        if found != known:
            path.parent.mkdir(exist_ok=True)
            write_json(path, found)

    def _has_ended(self) -> bool:
        about = read_json(self.run_folder / self.source.process / "process.json") or {}
        return about.get("status") not in (None, "running")

    @contextlib.contextmanager
    def _alone(self) -> Iterator[None]:
        """Keep two ranks from writing at once: the one that read earlier might write later."""
        with (self.folder / ".lock").open("a") as lock:
            try:
                import fcntl

                fcntl.flock(lock, fcntl.LOCK_EX)
            except (ImportError, OSError):
                pass  # A file system without locks: the last one to end writes last, most likely.
            yield
