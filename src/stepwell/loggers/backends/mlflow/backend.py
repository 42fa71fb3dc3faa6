"""The MLflow backend: the log of a run as an MLflow run, in a database or on a server.

Metrics, parameters, images with a step and models become MLflow's own; datasets become inputs; everything
else is an artifact file. Each rank that logs, after the first, has a child run.
"""

from __future__ import annotations

import os
import time
from typing import TYPE_CHECKING, Any, ClassVar

from stepwell._core.masking import without_password
from stepwell.loggers.backends.mlflow.batch import MLflowBatch, in_milliseconds
from stepwell.loggers.backends.mlflow.runs import (
    VARIABLE,
    RunLocator,
    connect,
    keeps_metrics_once,
    saved_address,
    set_timeouts,
    tracking_uri,
)
from stepwell.loggers.delivery.backend import Backend, LogRecord, Source

if TYPE_CHECKING:
    from mlflow import MlflowClient

STATUS = {"finished": "FINISHED", "failed": "FAILED", "interrupted": "KILLED", "killed": "KILLED"}
RECENT_NS = 60_000_000_000


class MLFlowBackend(Backend):
    """Delivers to MLflow.

    Options: ``tracking_uri`` (by default ``MLFLOW_TRACKING_URI``, else a database in ``savedir``),
    ``experiment_name`` or ``experiment_id``, ``run_id`` of a run to continue, ``parent_run_id``,
    ``run_description``, ``savedir``.
    """

    name: ClassVar[str] = "mlflow"
    address_option: ClassVar[str | None] = "tracking_uri"

    def open(self, source: Source, state: dict[str, Any]) -> None:
        """Find or create the run."""
        set_timeouts()
        self.state = state
        self.source = source
        self.uri = tracking_uri(self.options, state)
        self._client: MlflowClient | None = None
        self._params: dict[str, str] | None = None
        if "run_id" not in state:
            ids = RunLocator(self, self.uri, source).find()
            # It may be the run of an earlier attempt, which has ended.
            self._connected().update_run(ids["run_id"], status="RUNNING")
            state.update(saved_address(self.uri), **ids)
            state.update(files={}, notes={}, last_ns=source.started_ns)

    def deliver(self, records: list[LogRecord], again: bool) -> None:
        """Send the records. SQL stores drop metrics that are there already."""
        client, run_id = self._ready()
        if self._params is None:
            self._params = dict(client.get_run(run_id).data.params)
        batch = MLflowBatch(self, client, self._params)
        batch.take(records)
        batch.send(again, only_new=again and not keeps_metrics_once(self.uri))
        self._params = batch.params
        self.state["files"] = batch.paths.taken
        times = (record.time_ns for record in records)
        self.state["last_ns"] = max(self.state["last_ns"], *times)

    def finish(self, status: str) -> None:
        """Set the status and the end time."""
        client, run_id = self._ready()
        last, now = int(self.state["last_ns"]), time.time_ns()
        ended = now if now - last < RECENT_NS else last
        client.set_terminated(run_id, STATUS.get(status, "FAILED"), in_milliseconds(ended))

    def close(self) -> None:
        self._client = None

    def places(self, state: dict[str, Any]) -> dict[str, str]:
        """Return the server or database; nothing if the environment sets it."""
        stored, own = str(self.options.get("tracking_uri") or ""), os.environ.get(VARIABLE, "")
        if stored or own:
            is_own = stored.rstrip("/") == own.rstrip("/")
            return {"tracking_uri": stored} if stored and not is_own else {}
        saved = {"tracking_uri": state.get("uri"), "savedir": self.options.get("savedir")}
        places = {name: str(place) for name, place in saved.items() if place}
        return dict(list(places.items())[:1])

    @property
    def shown_options(self) -> dict[str, str]:
        """The options that may be displayed: an address without secrets."""
        uri = str(self.options.get("tracking_uri") or os.environ.get(VARIABLE) or "")
        return {"tracking_uri": uri} if uri and without_password(uri) == uri else {}

    def _ready(self) -> tuple[MlflowClient, str]:
        return self._connected(), str(self.state["run_id"])

    def _connected(self) -> MlflowClient:
        if self._client is None:
            self._client = connect(self.uri)
        return self._client
