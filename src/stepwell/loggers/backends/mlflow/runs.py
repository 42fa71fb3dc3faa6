"""Where an MLflow run is: which server or database, which experiment, and the run itself."""

from __future__ import annotations

import getpass
import hashlib
import os
import socket
import sys
import time
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from pathlib import Path
from typing import TYPE_CHECKING, Any
from urllib.parse import urlsplit

from stepwell.journal.document import read_json
from stepwell.journal.errors import StepwellError
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
"""Tag of an MLflow run: which run, and which rank of it, it has the log of."""
PATIENCE = 120.0
"""So many seconds after its start a rank makes the main run itself if the first rank has not."""
CONNECT_TIMEOUT = 5.0
PROXIES = ("http_proxy", "https_proxy", "all_proxy")
IN_THIS_PROCESS = {
    # The batch comes again anyway, so one try is enough, and none may hang for long.
    "MLFLOW_HTTP_REQUEST_TIMEOUT": "30",
    "MLFLOW_HTTP_REQUEST_MAX_RETRIES": "0",
    "MLFLOW_DISABLE_TELEMETRY": "true",
    "MLFLOW_ENABLE_ARTIFACTS_PROGRESS_BAR": "false",
    "MLFLOW_SUPPRESS_PRINTING_URL_TO_STDOUT": "true",
}


def let_no_call_hang() -> None:
    """In the process of a backend: what the user has set counts all the same."""
    for name, value in IN_THIS_PROCESS.items():
        os.environ.setdefault(name, value)


def connect(uri: str) -> MlflowClient:
    """A client for this server or database; OSError for a server that does not answer."""
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
    # A client makes the tables of a new database; two that do it at once spoil it.
    with _alone(database.with_name(f".{database.name}.lock")):
        return MlflowClient(tracking_uri=uri)


def _reach(uri: str) -> None:
    """Connect to a server before MLflow is imported, which takes long and is of no use without one."""
    parts = urlsplit(uri)
    has_proxy = any(name.lower() in PROXIES for name in os.environ)
    if parts.scheme not in ("http", "https") or "mlflow" in sys.modules or has_proxy:
        return
    port = parts.port or (443 if parts.scheme == "https" else 80)
    try:
        socket.create_connection((parts.hostname or "", port), timeout=CONNECT_TIMEOUT).close()
    except OSError as error:
        raise ConnectionError(f"{shown(uri)} does not answer: {error}") from None


@contextmanager
def _alone(lock: Path) -> Iterator[None]:
    """One process of this machine at a time, where the system can do that."""
    try:
        import fcntl
    except ImportError:
        yield
        return
    with lock.open("a") as file:
        try:
            fcntl.flock(file, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except BlockingIOError:
            raise NotYet(f"another process is making {lock.parent} ready") from None
        except OSError:
            pass  # this file system has no locks
        yield


# Which server or database


def tracking_uri(options: Mapping[str, Any], before: Mapping[str, Any]) -> str:
    """Where to: what was asked for, else what the environment says, else a database in ``savedir``.

    ``before`` is what ``remembered`` gave earlier: a log is not continued in another place.
    """
    asked = str(options.get("tracking_uri") or os.environ.get(VARIABLE) or "")
    uri = _usable(asked or str(before.get("uri") or "") or _default(options))
    place = before.get("place")
    if place is not None and place != shown(uri):
        raise StepwellError(
            f"the log of this run went to {place}, not to {shown(uri)}: set {VARIABLE} as it was then"
        )
    return uri


def remembered(uri: str) -> dict[str, Any]:
    """What is written down about it: no password."""
    return {"place": shown(uri), **({"uri": uri} if shown(uri) == uri else {})}


def shown(uri: str) -> str:
    """An address without the name, password and query that may be in it."""
    parts = urlsplit(uri)
    if "@" not in parts.netloc and not parts.query:
        return uri
    return parts._replace(netloc=parts.netloc.rpartition("@")[2], query="").geturl()


def _default(options: Mapping[str, Any]) -> str:
    return f"sqlite:///{_savedir(options) / DATABASE}"


def _savedir(options: Mapping[str, Any]) -> Path:
    return Path(str(options.get("savedir") or DEFAULT_SAVEDIR)).expanduser().absolute()


def _usable(uri: str) -> str:
    """MLflow refuses to keep runs in plain folders: then in a database in that folder."""
    parts = urlsplit(uri)
    is_folder = parts.scheme == "file" or (not parts.scheme and ("/" in uri or uri.startswith(".")))
    if is_folder and os.environ.get("MLFLOW_ALLOW_FILE_STORE", "").lower() not in ("true", "1"):
        folder = parts.path if parts.scheme == "file" else uri
        return f"sqlite:///{Path(folder).expanduser().absolute() / DATABASE}"
    if parts.scheme == "sqlite" and uri.startswith("sqlite:///"):
        return f"sqlite:///{database_path(uri)}"
    return uri


def database_path(uri: str) -> Path:
    """The file of an SQLite address."""
    return Path(uri.removeprefix("sqlite:///").partition("?")[0]).absolute()


def is_sql(uri: str) -> bool:
    """Whether it is a database itself, not a server in front of one."""
    return urlsplit(uri).scheme.partition("+")[0] in SQL


def keeps_metrics_once(uri: str) -> bool:
    """Whether a metric that comes again is dropped there: by the primary key of an SQL table."""
    return is_sql(uri) or urlsplit(uri).scheme in ("http", "https")


# Which run


class Place:
    """Finds the run that the log of a process goes to, and makes it when there is none."""

    def __init__(self, backend: Backend, uri: str, source: Source) -> None:
        self.backend = backend
        self.uri = uri
        self.source = source
        self.options = backend.options
        told = "\0".join(
            str(part)
            for part in (
                shown(uri),
                self.options.get("experiment_id"),
                self._experiment_name(),
                self.options.get("run_id"),
                self.options.get("parent_run_id"),
                backend.run_name,
            )
        )
        # Not the number of the logger: ranks that log to other places need not count alike.
        self.key = f"mlflow-{hashlib.sha256(told.encode()).hexdigest()[:12]}"

    def find(self) -> dict[str, str]:
        """``{"experiment_id", "run_id"}``, also ``"parent_run_id"`` for ranks after the first.

        Raises ``NotYet`` before anything is connected to: a database is made by one rank only.
        """
        late = time.time() - self.source.started_ns / 1e9 > PATIENCE
        if not self.backend.is_first and not late and self.backend.shared(self.key) is None:
            raise NotYet("the first rank that logs has not made the MLflow run yet")
        self.client = connect(self.uri)
        main = self._main()
        if self.backend.is_first:
            return main
        return self._shared_run(
            f"{self.key}-rank-{self.backend.rank}", main["experiment_id"], main["run_id"]
        )

    def _main(self) -> dict[str, str]:
        found = self.backend.shared(self.key)
        if found is not None:
            return found
        if self.options.get("run_id"):
            return self.backend.publish(self.key, self._given(str(self.options["run_id"])))
        parent = self.options.get("parent_run_id")
        return self._shared_run(self.key, self._experiment(), str(parent) if parent else None)

    def _given(self, run_id: str) -> dict[str, str]:
        run = self.client.get_run(run_id)
        return {"experiment_id": run.info.experiment_id, "run_id": run_id}

    def _shared_run(self, key: str, experiment_id: str, parent: str | None) -> dict[str, str]:
        found = self.backend.shared(key)
        if found is not None:
            return found
        run = self._left_behind(key, experiment_id) or self._create(key, experiment_id, parent)
        about = {"experiment_id": experiment_id, "run_id": run.info.run_id}
        if parent:
            about["parent_run_id"] = parent
        counts = self.backend.publish(key, about)
        if counts["run_id"] != run.info.run_id:
            self.client.delete_run(run.info.run_id)
        return counts

    def _left_behind(self, key: str, experiment_id: str) -> Run | None:
        """One that was made by a process that ended before it could say so."""
        tag = self._tag(key).replace("'", "")
        found = self.client.search_runs(
            [experiment_id], f"tags.`{RUN_TAG}` = '{tag}'", max_results=1
        )
        return found[0] if found else None

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
        """What is known of the run, under the names that MLflow shows."""
        about = read_json(self.backend.run_folder / RUN) or {}
        attempt = next(iter(reversed(about.get("attempts") or [])), None) or {}
        code = attempt.get("code") or {}
        found = {
            "mlflow.note.content": self.options.get("run_description"),
            "mlflow.user": _user(),
            "mlflow.source.name": next(iter(attempt.get("argv") or []), None),
            "mlflow.source.type": "LOCAL",
            "mlflow.source.git.commit": code.get("commit"),
            "stepwell.host": self.source.host,
            "stepwell.tags": ", ".join(map(str, about.get("tags") or ())),
        }
        labels = {key_of(str(name)): str(value) for name, value in self.source.labels.items()}
        return {**labels, **{name: str(value) for name, value in found.items() if value}}

    # Which experiment

    def _experiment_name(self) -> str:
        return str(self.options.get("experiment_name") or DEFAULT_EXPERIMENT)

    def _experiment(self) -> str:
        given = self.options.get("experiment_id")
        if given is not None:
            return str(given)
        name = self._experiment_name()
        found = self.client.get_experiment_by_name(name)
        if found is None:
            found = self._create_experiment(name)
        if found.lifecycle_stage != "active":
            raise StepwellError(
                f"the MLflow experiment {name!r} was deleted: restore it, or give another name"
            )
        return str(found.experiment_id)

    def _create_experiment(self, name: str) -> Any:
        from mlflow.exceptions import MlflowException

        try:
            self.client.create_experiment(name, artifact_location=self._artifacts())
        except MlflowException as error:
            if error.error_code != "RESOURCE_ALREADY_EXISTS":
                raise
        return self.client.get_experiment_by_name(name)

    def _artifacts(self) -> str | None:
        """A server knows where to keep files; without one it would be the current folder."""
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
