"""The loggers with a backend: console, TensorBoard, Weights & Biases, MLflow and provenance.

Their backends are in ``loggers/backends`` and ``loggers/prov``, and run in other processes.
"""

from __future__ import annotations

import os
from collections.abc import Sequence
from typing import TYPE_CHECKING, Any
from urllib.parse import urlsplit

from stepwell._core.checks import FLAG, POSITIVE
from stepwell._core.errors import StepwellError
from stepwell._core.masking import mask
from stepwell._core.values import shown
from stepwell.loggers.base import UNNAMED, Logger
from stepwell.loggers.checks import FOLDER, NAME, TAGS
from stepwell.loggers.collection import LoggersCollection
from stepwell.loggers.delivery.backend import wait_for_run
from stepwell.loggers.targets import LogFreq, Workers

if TYPE_CHECKING:
    from mlflow.entities import Run

ACTIVE_RUN_TIMEOUT = 60.0
DEFAULT_EXPERIMENT = "experiment_name"


class ConsoleLogger(Logger):
    """Prints records through Python's ``logging`` and copies files to ``savedir/simple-logger``.

    Args:
        savedir: the parent folder of ``simple-logger``.
        log_freq: which batches count; see ``Logger``.
        log_on_workers: which workers log; see ``Logger``.
    """

    to = "console"
    backend_class = "stepwell.loggers.backends.console.ConsoleBackend"
    subfolder = "simple-logger"

    def __init__(
        self,
        savedir: str | os.PathLike[str] = "mllogs",
        log_freq: LogFreq | None = None,
        log_on_workers: Workers = 0,
    ) -> None:
        super().__init__(savedir, log_freq, log_on_workers)

    def backend_options(self) -> dict[str, Any]:
        return {"savedir": str(self.savedir.absolute())}


class TensorBoardLogger(Logger):
    """Writes event files to ``savedir/tensorboard``, one folder per run. Show them with ``tensorboard
    --logdir …``.

    Neither TensorBoard nor TensorFlow is needed to write them.

    Args:
        savedir: the parent folder of ``tensorboard``.
        log_freq: which batches count; see ``Logger``.
        log_on_workers: which workers log. If there are several, each one after the first has a subfolder.
        run_name: prefix of the folder's name.
    """

    to = "tensorboard"
    backend_class = "stepwell.loggers.backends.tensorboard.backend.TensorBoardBackend"
    subfolder = "tensorboard"
    context_options = ("run_name",)

    def __init__(
        self,
        savedir: str | os.PathLike[str] = "mllogs",
        log_freq: LogFreq | None = None,
        log_on_workers: Workers = 0,
        run_name: str | None = None,
    ) -> None:
        super().__init__(savedir, log_freq, log_on_workers)

        self.run_name = NAME.or_none("run_name", run_name)

    def backend_options(self) -> dict[str, Any]:
        return {"savedir": str(self.savedir.absolute()), "run_name": self.run_name}


class WandBLogger(Logger):
    """Logs to Weights & Biases, or offline if ``WANDB_MODE`` says so or there is no API key. Never prompts.

    An active W&B run of yours is not touched. The API key stays in the environment or in ``~/.netrc``.

    Args:
        savedir: the parent folder of ``wandb``, for W&B's local files.
        project_name: the project.
        log_freq: which batches count; see ``Logger``.
        log_on_workers: which workers log. If there are several, each has its own run, all in one group.
        offline_mode: write to disk only; upload later with ``wandb sync``.
        run_id: W&B's id of a run to continue.
        run_name: the name of the run.
        entity: the user or team.
        group: the group of the run.
        job_type: the type of job.
        tags: tags of the run.
        notes: a description, shown with the run.
    """

    to = "wandb"
    backend_class = "stepwell.loggers.backends.wandb.backend.WandBBackend"
    subfolder = "wandb"
    context_options = ("run_id", "run_name")

    def __init__(
        self,
        savedir: str | os.PathLike[str] = "mllogs",
        project_name: str = UNNAMED,
        log_freq: LogFreq | None = None,
        log_on_workers: Workers = 0,
        offline_mode: bool = False,
        run_id: str | None = None,
        run_name: str | None = None,
        entity: str | None = None,
        group: str | None = None,
        job_type: str | None = None,
        tags: Sequence[str] | None = None,
        notes: str | None = None,
    ) -> None:
        super().__init__(savedir, log_freq, log_on_workers, run_id=run_id)
        self.project_name = NAME.or_none("project_name", project_name) or UNNAMED
        self.offline_mode = FLAG.check("offline_mode", offline_mode)
        self.run_name = NAME.or_none("run_name", run_name)
        self.entity = NAME.or_none("entity", entity)
        self.group = NAME.or_none("group", group)
        self.job_type = NAME.or_none("job_type", job_type)
        self.tags = TAGS.or_none("tags", tags)
        self.notes = NAME.or_none("notes", notes)

    def backend_options(self) -> dict[str, Any]:
        return {
            "savedir": str(self.savedir.absolute()),
            "project_name": self.project_name,
            "offline_mode": self.offline_mode,
            "run_name": self.run_name,
            "run_id": self._run_id,
            "entity": self.entity,
            "group": self.group,
            "job_type": self.job_type,
            "tags": self.tags,
            "notes": self.notes,
        }


class MLFlowLogger(Logger):
    """Logs to MLflow: to a server, to a database, or by default to a database in ``savedir/mlflow``.

    An active MLflow run of yours is not touched.

    Args:
        savedir: folder of the database and its files, if there is no tracking URI.
        experiment_name: the experiment. It is created if it does not exist.
        tracking_uri: the server or database; by default ``MLFLOW_TRACKING_URI``. Set a user name and password
            with ``MLFLOW_TRACKING_USERNAME`` and ``MLFLOW_TRACKING_PASSWORD``.
        run_description: a description, shown with the run.
        run_name: the name of the run.
        log_freq: which batches count; see ``Logger``.
        log_on_workers: which workers log. If there are several, each one after the first has a child run.
        experiment_id: MLflow's id of the experiment, instead of its name.
        run_id: MLflow's id of a run to continue.
        parent_run_id: MLflow's id of the run that becomes the parent.
    """

    to = "mlflow"
    backend_class = "stepwell.loggers.backends.mlflow.backend.MLFlowBackend"
    subfolder = "mlflow"
    context_options = ("run_id", "run_name", "parent_run_id")

    def __init__(
        self,
        savedir: str | os.PathLike[str] = "mllogs",
        experiment_name: str = UNNAMED,
        tracking_uri: str | None = None,
        run_description: str | None = None,
        run_name: str | None = None,
        log_freq: LogFreq | None = None,
        log_on_workers: Workers = 0,
        experiment_id: str | None = None,
        run_id: str | None = None,
        parent_run_id: str | None = None,
    ) -> None:
        super().__init__(savedir, log_freq, log_on_workers, experiment_id, run_id)
        self.experiment_name = NAME.or_none("experiment_name", experiment_name) or UNNAMED
        self._tracking_uri = _checked_uri(tracking_uri)
        self.run_description = NAME.or_none("run_description", run_description)
        self.run_name = NAME.or_none("run_name", run_name)
        self.parent_run_id = NAME.or_none("parent_run_id", parent_run_id)

    @property
    def tracking_uri(self) -> str:
        """The server or database: as given, else ``MLFLOW_TRACKING_URI``, else a database in ``savedir``."""
        from stepwell.loggers.backends.mlflow.runs import tracking_uri

        return tracking_uri(self.backend_options(), {})

    @tracking_uri.setter
    def tracking_uri(self, uri: str | None) -> None:
        self._tracking_uri = _checked_uri(uri)

    @property
    def active_run(self) -> Run | None:
        """The MLflow run; None without a context, and on workers that do not log.

        Waits until the run exists, for a minute at most.
        """
        delivery = None if self._context is None else self._context.delivery
        return wait_for_run(delivery, ACTIVE_RUN_TIMEOUT, self._as_backend_run)

    def backend_options(self) -> dict[str, Any]:
        return {
            "savedir": str(self.savedir.absolute()),
            "experiment_name": self.experiment_name,
            "experiment_id": self._experiment_id,
            "tracking_uri": self._tracking_uri,
            "run_description": self.run_description,
            "run_name": self.run_name,
            "run_id": self._run_id,
            "parent_run_id": self.parent_run_id,
        }

    def _as_backend_run(self, state: dict[str, Any]) -> Run | None:
        from stepwell.loggers.backends.mlflow.runs import connect, tracking_uri

        uri = tracking_uri(self.backend_options(), state)
        run: Run = connect(uri).get_run(str(state["run_id"]))
        return run


class Prov4MLLogger(Logger):
    """Writes the provenance of the run as a PROV-JSON document, with a graph. Also importable as ``Prov4ML``.

    Args:
        prov_user_namespace: the namespace of your names, such as your domain.
        experiment_name: the name of the run in the document.
        provenance_save_dir: the folder of the documents.
        save_after_n_logs: rewrite the document after this number of records. It is always written at the end.
        create_graph: whether to write the graph as DOT and Mermaid.
        create_svg: whether to write the graph as SVG.
        log_freq: which batches count; see ``Logger``.
        log_on_workers: which workers log; see ``Logger``.
    """

    to = "prov"
    backend_class = "stepwell.loggers.prov.backend.ProvBackend"
    context_options = ("run_name",)

    def __init__(
        self,
        prov_user_namespace: str = "www.example.org",
        experiment_name: str = DEFAULT_EXPERIMENT,
        provenance_save_dir: str | os.PathLike[str] = "mllogs/prov_logs",
        save_after_n_logs: int = 100,
        create_graph: bool = True,
        create_svg: bool = True,
        log_freq: LogFreq | None = None,
        log_on_workers: Workers = 0,
    ) -> None:
        super().__init__(
            FOLDER.check("provenance_save_dir", provenance_save_dir), log_freq, log_on_workers
        )
        self.prov_user_namespace = NAME.or_none("prov_user_namespace", prov_user_namespace)
        self.experiment_name = NAME.or_none("experiment_name", experiment_name)
        self.save_after_n_logs = POSITIVE.check("save_after_n_logs", save_after_n_logs)
        self.create_graph = FLAG.check("create_graph", create_graph)
        self.create_svg = FLAG.check("create_svg", create_svg)

    @property
    def provenance_save_dir(self) -> str:
        """The folder of the documents."""
        return str(self.savedir)

    def backend_options(self) -> dict[str, Any]:
        return {
            "prov_user_namespace": self.prov_user_namespace,
            "experiment_name": self.experiment_name,
            "provenance_save_dir": str(self.savedir.absolute()),
            "save_after_n_logs": self.save_after_n_logs,
            "create_graph": self.create_graph,
            "create_svg": self.create_svg,
        }


def get_mlflow_logger(logger: Logger | None) -> MLFlowLogger | None:
    """Return the logger, or the first member of a collection, that logs to MLflow; None if there is none."""
    loggers = logger.loggers if isinstance(logger, LoggersCollection) else [logger]
    return next((each for each in loggers if isinstance(each, MLFlowLogger)), None)


def _checked_uri(uri: str | None) -> str | None:
    text = NAME.or_none("tracking_uri", uri)
    if text is None:
        return None
    try:
        parts = urlsplit(text)
    except ValueError as error:
        raise StepwellError(
            f"tracking_uri must be an address, got {shown(text)}: {error}"
        ) from None
    # A user name without a password, in front of a server's host, is a token.
    is_token = bool(parts.username) and parts.scheme in ("http", "https")
    if parts.password or is_token or mask(text) != text:
        raise StepwellError(
            "tracking_uri contains a password or token, which would be written into the run. Remove it, "
            "and set MLFLOW_TRACKING_USERNAME and MLFLOW_TRACKING_PASSWORD, or MLFLOW_TRACKING_TOKEN, or "
            "put the whole address into MLFLOW_TRACKING_URI"
        )
    return text
