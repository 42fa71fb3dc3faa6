"""MLflow."""

from __future__ import annotations

import os
from typing import TYPE_CHECKING, Any
from urllib.parse import urlsplit

from stepwell.journal.errors import StepwellError
from stepwell.journal.masking import mask
from stepwell.journal.values import shown
from stepwell.loggers.base import UNNAMED, Logger
from stepwell.loggers.checks import optional_text
from stepwell.loggers.collection import LoggersCollection
from stepwell.loggers.delivery.runs import wait_for_run
from stepwell.loggers.frequency import LogFreq, Workers

if TYPE_CHECKING:
    from mlflow.entities import Run

ACTIVE_RUN_TIMEOUT = 60.0


class MLFlowLogger(Logger):
    """Logs to MLflow: a server, a database, or without either a database in ``savedir/mlflow``.

    MLflow's own active run, if you have one, is left alone.

    Args:
        savedir: folder of the database and its files where no tracking URI says otherwise.
        experiment_name: the experiment; made when there is none of that name.
        tracking_uri: the server or database; else ``MLFLOW_TRACKING_URI``. A user name and password belong
            into ``MLFLOW_TRACKING_USERNAME`` and ``MLFLOW_TRACKING_PASSWORD``.
        run_description: shown with the run.
        run_name: what the run is called.
        log_freq: which batches count; see ``Logger``.
        log_on_workers: which workers log; with several, each one after the first has a child run.
        experiment_id: MLflow's id of the experiment, in place of its name.
        run_id: MLflow's id of a run to go on with.
        parent_run_id: MLflow's id of a run that this one becomes a child of.
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
        self.experiment_name = optional_text("experiment_name", experiment_name) or UNNAMED
        self._tracking_uri = _checked_uri(tracking_uri)
        self.run_description = optional_text("run_description", run_description)
        self.run_name = optional_text("run_name", run_name)
        self.parent_run_id = optional_text("parent_run_id", parent_run_id)

    @property
    def tracking_uri(self) -> str:
        """The server or database: as given, else ``MLFLOW_TRACKING_URI``, else one in ``savedir``."""
        from stepwell.loggers.backends.mlflow.runs import tracking_uri

        return tracking_uri(self.backend_options(), {})

    @tracking_uri.setter
    def tracking_uri(self, uri: str | None) -> None:
        self._tracking_uri = _checked_uri(uri)

    @property
    def active_run(self) -> Run | None:
        """The MLflow run that is logged to; None without a context, and on workers that do not log.

        It waits until the run is there, for a minute at most.
        """
        delivery = None if self._context is None else self._context.delivery
        return wait_for_run(delivery, ACTIVE_RUN_TIMEOUT, self._as_backend_run)

    def backend_options(self) -> dict[str, Any]:
        """What the constructor was given."""
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


def get_mlflow_logger(logger: Logger | None) -> MLFlowLogger | None:
    """The logger itself, or the first member of a collection, that logs to MLflow; else None."""
    found = logger.loggers if isinstance(logger, LoggersCollection) else [logger]
    return next((one for one in found if isinstance(one, MLFlowLogger)), None)


def _checked_uri(uri: str | None) -> str | None:
    text = optional_text("tracking_uri", uri)
    if text is None:
        return None
    try:
        parts = urlsplit(text)
    except ValueError as error:
        raise StepwellError(f"tracking_uri is {shown(text)}: {error}") from None
    # In front of the host of a server, a name alone is a token.
    is_token = bool(parts.username) and parts.scheme in ("http", "https")
    if parts.password or is_token or mask(text) != text:
        raise StepwellError(
            "tracking_uri has a password or token in it, which would be written into the run: leave it "
            "out, and set MLFLOW_TRACKING_USERNAME and MLFLOW_TRACKING_PASSWORD, or "
            "MLFLOW_TRACKING_TOKEN, or set the whole of it as MLFLOW_TRACKING_URI"
        )
    return text
