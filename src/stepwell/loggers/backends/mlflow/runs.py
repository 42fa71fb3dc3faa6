"""Finds the MLflow run of a log: the server or database, the experiment, and the run itself."""

from __future__ import annotations

import getpass
import hashlib
import os
import socket
import sys
import time
from collections.abc import Mapping
from pathlib import Path
from typing import TYPE_CHECKING, Any
from urllib.parse import urlsplit

from stepwell._core.errors import StepwellError
from stepwell._core.files import locked, read_json
from stepwell._core.masking import without_password
from stepwell.loggers.backends.mlflow.names import LONGEST_TAG, cut, key_of
from stepwell.loggers.delivery.backend import Backend, NotYet, Source
from stepwell.telemetry.run_document import RUN

if TYPE_CHECKING:
    from mlflow import MlflowClient
    from mlflow.entities import Run

VARIABLE = "MLFLOW_TRACKING_URI"
DEFAULT_EXPERIMENT = "unnamed-experiment"
DEFAULT_SAVEDIR = "mllogs/mlflow"
DATABASE = "mlflow.db"
SQL = ("sqlite", "postgresql", "mysql", "mssql")
RUN_TAG = "stepwell.run"
"""Tag of an MLflow run: the run, and the rank, that it contains the log of."""
PATIENCE = 120.0
"""Seconds after its start until a rank creates the main run itself, if the first rank has not."""
CONNECT_TIMEOUT = 5.0
PROXIES = ("http_proxy", "https_proxy", "all_proxy")
IN_THIS_PROCESS = {
    # One attempt is enough, because the batch comes again, and no request may hang for long.
    "MLFLOW_HTTP_REQUEST_TIMEOUT": "30",
    "MLFLOW_HTTP_REQUEST_MAX_RETRIES": "0",
    "MLFLOW_DISABLE_TELEMETRY": "true",
    "MLFLOW_ENABLE_ARTIFACTS_PROGRESS_BAR": "false",
    "MLFLOW_SUPPRESS_PRINTING_URL_TO_STDOUT": "true",
}


def set_timeouts() -> None:
    """Set MLflow's timeouts in the process of a backend. Variables that the user has set stay."""
    for name, value in IN_THIS_PROCESS.items():
        os.environ.setdefault(name, value)


def connect(uri: str) -> MlflowClient:
    """Return a client for this server or database. Raise OSError if the server does not answer."""
    _reach(uri)
    try:
        from mlflow import MlflowClient
    except ImportError as error:
        raise StepwellError(
            f"MLflow is needed here ({error}): pip install 'stepwell[mlflow]'"
        ) from None
    if not uri.startswith("sqlite:///"):
        return MlflowClient(tracking_uri=uri)
    database = database_path(uri)
    database.parent.mkdir(parents=True, exist_ok=True)
    # A client creates the tables of a new database. Two clients at once would damage it.
    lock = database.with_name(f".{database.name}.lock")
    with locked(lock, wait=False, required=False) as is_mine:
        if not is_mine:
            raise NotYet(f"another process is preparing {database.parent}")
        return MlflowClient(tracking_uri=uri)


def _reach(uri: str) -> None:
    """Try to connect to the server before MLflow is imported, which takes seconds."""
    parts = urlsplit(uri)
    has_proxy = any(name.lower() in PROXIES for name in os.environ)
    if parts.scheme not in ("http", "https") or "mlflow" in sys.modules or has_proxy:
        return
    port = parts.port or (443 if parts.scheme == "https" else 80)
    try:
        socket.create_connection((parts.hostname or "", port), timeout=CONNECT_TIMEOUT).close()
    except OSError as error:
        raise ConnectionError(f"{without_password(uri)} does not answer: {error}") from None


# Server or database


def tracking_uri(options: Mapping[str, Any], before: Mapping[str, Any]) -> str:
    """Return the address: from the options, else from the environment, else a database in ``savedir``.

    ``before`` is an earlier result of ``saved_address``: a log must not continue in another place.
    """
    given = str(options.get("tracking_uri") or os.environ.get(VARIABLE) or "")
    uri = _usable(
        given or str(before.get("uri") or "") or f"sqlite:///{_savedir(options) / DATABASE}"
    )
    earlier, place = before.get("place"), without_password(uri)
    if earlier is not None and earlier != place:
        raise StepwellError(
            f"the log of this run went to {earlier} before, not to {place}: set {VARIABLE} to that address"
        )
    return uri


def saved_address(uri: str) -> dict[str, Any]:
    """Return the address for the saved state, without a password."""
    return {
        "place": without_password(uri),
        **({"uri": uri} if without_password(uri) == uri else {}),
    }


def _savedir(options: Mapping[str, Any]) -> Path:
    return Path(str(options.get("savedir") or DEFAULT_SAVEDIR)).expanduser().absolute()


def _usable(uri: str) -> str:
    """Replace a folder by a database in that folder: MLflow refuses to store runs in plain folders."""
    parts = urlsplit(uri)
    is_folder = parts.scheme == "file" or (not parts.scheme and ("/" in uri or uri.startswith(".")))
    if is_folder and os.environ.get("MLFLOW_ALLOW_FILE_STORE", "").lower() not in ("true", "1"):
        folder = parts.path if parts.scheme == "file" else uri
        return f"sqlite:///{Path(folder).expanduser().absolute() / DATABASE}"
    if parts.scheme == "sqlite" and uri.startswith("sqlite:///"):
        return f"sqlite:///{database_path(uri)}"
    return uri


def database_path(uri: str) -> Path:
    """Return the file of an SQLite address."""
    return Path(uri.removeprefix("sqlite:///").partition("?")[0]).absolute()


def is_sql(uri: str) -> bool:
    """Return whether the address is a database, not a server."""
    return urlsplit(uri).scheme.partition("+")[0] in SQL


def keeps_metrics_once(uri: str) -> bool:
    """Return whether the store drops a metric that comes again, by the primary key of its SQL table."""
    return is_sql(uri) or urlsplit(uri).scheme in ("http", "https")


# Run


class RunLocator:
    """Finds the MLflow run for the log of a process, or creates it."""

    def __init__(self, backend: Backend, uri: str, source: Source) -> None:
        self.backend = backend
        self.uri = uri
        self.source = source
        self.options = backend.options
        destination = "\0".join(
            str(part)
            for part in (
                without_password(uri),
                self.options.get("experiment_id"),
                self._experiment_name(),
                self.options.get("run_id"),
                self.options.get("parent_run_id"),
                backend.run_name,
            )
        )
        # Not the number of the logger: ranks with different loggers number them differently.
        self.key = f"mlflow-{hashlib.sha256(destination.encode()).hexdigest()[:12]}"

    def find(self) -> dict[str, str]:
        """Return ``experiment_id`` and ``run_id``; for ranks after the first also ``parent_run_id``.

        Raise NotYet before connecting if the first rank has not created the run: only one rank creates a
        database.
        """
        late = time.time() - self.source.started_ns / 1e9 > PATIENCE
        if not self.backend.is_first and not late and self.backend.shared(self.key) is None:
            raise NotYet("the first rank that logs has not created the MLflow run yet")
        self.client = connect(self.uri)
        main = self._main()
        if self.backend.is_first:
            return main
        return self._shared_run(
            f"{self.key}-rank-{self.backend.rank}", main["experiment_id"], main["run_id"]
        )

    def _main(self) -> dict[str, str]:
        shared = self.backend.shared(self.key)
        if shared is not None:
            return shared
        if self.options.get("run_id"):
            return self.backend.publish(self.key, self._given(str(self.options["run_id"])))
        parent = self.options.get("parent_run_id")
        return self._shared_run(self.key, self._experiment(), str(parent) if parent else None)

    def _given(self, run_id: str) -> dict[str, str]:
        run = self.client.get_run(run_id)
        return {"experiment_id": run.info.experiment_id, "run_id": run_id}

    def _shared_run(self, key: str, experiment_id: str, parent: str | None) -> dict[str, str]:
        shared = self.backend.shared(key)
        if shared is not None:
            return shared
        run = self._unpublished(key, experiment_id) or self._create(key, experiment_id, parent)
        ids = {"experiment_id": experiment_id, "run_id": run.info.run_id}
        if parent:
            ids["parent_run_id"] = parent
        first = self.backend.publish(key, ids)
        if first["run_id"] != run.info.run_id:
            # Another process has published its run before.
            self.client.delete_run(run.info.run_id)
        return first

    def _unpublished(self, key: str, experiment_id: str) -> Run | None:
        """Return a run that was created by a process that ended before it published it."""
        tag = self._tag(key).replace("'", "")
        runs = self.client.search_runs(
            [experiment_id], f"tags.`{RUN_TAG}` = '{tag}'", max_results=1
        )
        return runs[0] if runs else None

    def _tag(self, key: str) -> str:
        return f"{self.source.run}/{key}"

    def _create(self, key: str, experiment_id: str, parent: str | None) -> Run:
        name = self.backend.run_name or self.source.application
        if not self.backend.is_first:
            name = (
                f"{name} rank {self.backend.rank}"
                if key == self.key
                else f"rank {self.backend.rank}"
            )
        tags = {**self._labels(), RUN_TAG: self._tag(key).replace("'", "")}
        if parent:
            tags["mlflow.parentRunId"] = parent
        return self.client.create_run(
            experiment_id,
            start_time=self.source.started_ns // 1_000_000,
            tags={key: cut(text, LONGEST_TAG) for key, text in tags.items()},
            run_name=name,
        )

    def _labels(self) -> dict[str, str]:
        """Return facts about the run as tags, with the names that MLflow displays."""
        document = read_json(self.backend.run_folder / RUN) or {}
        attempt = next(iter(reversed(document.get("attempts") or [])), None) or {}
        code = attempt.get("code") or {}
        tags = {
            "mlflow.note.content": self.options.get("run_description"),
            "mlflow.user": _user(),
            "mlflow.source.name": next(iter(attempt.get("argv") or []), None),
            "mlflow.source.type": "LOCAL",
            "mlflow.source.git.commit": code.get("commit"),
            "stepwell.host": self.source.host,
            "stepwell.tags": ", ".join(map(str, document.get("tags") or ())),
        }
        labels = {key_of(str(name)): str(value) for name, value in self.source.labels.items()}
        return {**labels, **{name: str(value) for name, value in tags.items() if value}}

    # Experiment

    def _experiment_name(self) -> str:
        return str(self.options.get("experiment_name") or DEFAULT_EXPERIMENT)

    def _experiment(self) -> str:
        given = self.options.get("experiment_id")
        if given is not None:
            return str(given)
        name = self._experiment_name()
        experiment = self.client.get_experiment_by_name(name)
        if experiment is None:
            experiment = self._create_experiment(name)
        if experiment.lifecycle_stage != "active":
            raise StepwellError(
                f"the MLflow experiment {name!r} was deleted: restore it, or choose another name"
            )
        return str(experiment.experiment_id)

    def _create_experiment(self, name: str) -> Any:
        from mlflow.exceptions import MlflowException

        try:
            self.client.create_experiment(name, artifact_location=self._artifacts())
        except MlflowException as error:
            if error.error_code != "RESOURCE_ALREADY_EXISTS":
                raise
        return self.client.get_experiment_by_name(name)

    def _artifacts(self) -> str | None:
        """Return the location of artifacts; None for a server, which has its own.

        MLflow's default for a database would be the current folder.
        """
        if not is_sql(self.uri):
            return None
        if self.uri.startswith("sqlite:///"):
            return (database_path(self.uri).parent / "artifacts").as_uri()
        return (_savedir(self.options) / "artifacts").as_uri()


def _user() -> str:
    try:
        return getpass.getuser()
    except Exception:  # no name for this user id, as in some containers
        return ""
