"""MLflow: the log of a run as an MLflow run, in a database or on a server.

Metrics and parameters are MLflow's own, pictures with a step and models too, datasets are inputs; everything
else is a file among the artifacts. Each rank that logs besides the first one has a child run.
"""

from __future__ import annotations

import os
import time
from typing import TYPE_CHECKING, Any, ClassVar

from stepwell.journal.errors import warn_once
from stepwell.loggers.backends.mlflow.runs import (
    VARIABLE,
    Place,
    connect,
    keeps_metrics_once,
    let_no_call_hang,
    remembered,
    shown,
    tracking_uri,
)
from stepwell.loggers.backends.mlflow.sending import Sending, in_milliseconds
from stepwell.loggers.delivery.backend import Backend, LogRecord, Source

if TYPE_CHECKING:
    from mlflow import MlflowClient

STATUS = {"finished": "FINISHED", "failed": "FAILED", "interrupted": "KILLED", "killed": "KILLED"}
RECENT_NS = 60_000_000_000


class MLFlowBackend(Backend):
    """Delivers to MLflow.

    Options: ``tracking_uri`` (else ``MLFLOW_TRACKING_URI``, else a database in ``savedir``),
    ``experiment_name`` or ``experiment_id``, ``run_id`` to go on with a run, ``parent_run_id``,
    ``run_description``, ``savedir``.
    """

    name: ClassVar[str] = "mlflow"
    address_option: ClassVar[str | None] = "tracking_uri"

    def open(self, source: Source, state: dict[str, Any]) -> None:
        """Find or make the run."""
        let_no_call_hang()
        self.state = state
        self.source = source
        self.uri = tracking_uri(self.options, state)
        self._client: MlflowClient | None = None
        self._params: dict[str, str] | None = None
        if "run_id" not in state:
            found = Place(self, self.uri, source).find()
            # It may be that of an earlier attempt, which has ended.
            self._connected().update_run(found["run_id"], status="RUNNING")
            state.update(remembered(self.uri), **found)
            state.update(files={}, notes={}, last_ns=source.started_ns)

    def deliver(self, records: list[LogRecord], again: bool) -> None:
        """Send the records; in SQL stores, one that is there already is not there twice."""
        client, run_id = self._ready()
        if self._params is None:
            self._params = dict(client.get_run(run_id).data.params)
        sending = Sending(
            client,
            run_id,
            self.content_path,
            self._params,
            self.state["files"],
            self.state.setdefault("models", {}),
            self._say,
        )
        sending.take(records)
        sending.send(again, only_new=again and not keeps_metrics_once(self.uri))
        self._params = sending.params
        self.state["files"] = sending.paths.taken
        times = (record.time_ns for record in records)
        self.state["last_ns"] = max(self.state["last_ns"], *times)

    def finish(self, status: str) -> None:
        """Say how it ended, and when, as far as it is known."""
        client, run_id = self._ready()
        last, now = int(self.state["last_ns"]), time.time_ns()
        ended = now if now - last < RECENT_NS else last
        client.set_terminated(run_id, STATUS.get(status, "FAILED"), in_milliseconds(ended))

    def close(self) -> None:
        """Let go of the connection."""
        self._client = None

    def places(self, state: dict[str, Any]) -> dict[str, str]:
        """The server or database; none where the environment says which."""
        stored, own = str(self.options.get("tracking_uri") or ""), os.environ.get(VARIABLE, "")
        if stored or own:
            is_own = stored.rstrip("/") == own.rstrip("/")
            return {"tracking_uri": stored} if stored and not is_own else {}
        kept = {"tracking_uri": state.get("uri"), "savedir": self.options.get("savedir")}
        found = {name: str(place) for name, place in kept.items() if place}
        return dict(list(found.items())[:1])

    @property
    def shown_options(self) -> dict[str, str]:
        """The options that may be written down: an address without secrets."""
        uri = str(self.options.get("tracking_uri") or os.environ.get(VARIABLE) or "")
        return {"tracking_uri": uri} if uri and shown(uri) == uri else {}

    def _ready(self) -> tuple[MlflowClient, str]:
        return self._connected(), str(self.state["run_id"])

    def _connected(self) -> MlflowClient:
        if self._client is None:
            self._client = connect(self.uri)
        return self._client

    def _say(self, key: str, message: str) -> None:
        """Once for each logger; ``state`` keeps it, since a sidecar has nobody to talk to."""
        if key not in self.state["notes"]:
            self.state["notes"][key] = message
            warn_once(f"mlflow {self.state['run_id']} {key}", "%s", message)
