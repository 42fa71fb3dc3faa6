"""The files of a program, read by each backend's own reader."""

from __future__ import annotations

import json
import subprocess
from functools import cached_property
from pathlib import Path
from typing import Any

from tests.loggers.prov_checking import things, value
from tests.loggers.tensorboard_reading import scalars

WANDB_STEP = "trainer/global_step"
Curve = list[tuple[int, float]]


def wandb_records(file: Path) -> list[dict[str, Any]]:
    """Return what ``wandb leet inspect --json`` prints of a file; by the program behind that command."""
    from wandb.util import get_core_path

    command = [get_core_path(), "leet", "inspect", "--no-observability", "--json"]
    done = subprocess.run(
        [*command, "--run-file", file, file.parents[1]], capture_output=True, text=True, check=False
    )
    assert "flag provided but not defined" not in done.stderr, done.stderr
    return [json.loads(line) for line in done.stdout.splitlines() if line[:1] == "{"]


class Left:
    """The curves that all loggers left below ``mllogs``; those of one rank in one run.

    W&B's files are read once: look again with a new one.
    """

    def __init__(self, folder: Path, rank: int = 0) -> None:
        self.logs = folder / "mllogs"
        self.rank = rank

    # MLflow

    @property
    def mlflow(self) -> Any:
        """MLflow's own client on the database."""
        from mlflow import MlflowClient

        return MlflowClient(tracking_uri=f"sqlite:///{self.logs}/mlflow/mlflow.db")

    @property
    def mlflow_runs(self) -> list[Any]:
        ids = [one.experiment_id for one in self.mlflow.search_experiments()]
        return list(self.mlflow.search_runs(ids))

    def mlflow_run(self) -> Any:
        """The run of the first rank that logs, or the child run of this one."""
        found = [run for run in self.mlflow_runs if self._is_mine(run.data.tags)]
        (run,) = found
        return run

    def _is_mine(self, tags: dict[str, str]) -> bool:
        return ("mlflow.parentRunId" in tags) == (self.rank > 0)

    def mlflow_curve(self, name: str) -> Curve:
        history = self.mlflow.get_metric_history(self.mlflow_run().info.run_id, name)
        return sorted((point.step, point.value) for point in history)

    def mlflow_files(self, folder: str | None = None) -> list[str]:
        names: list[str] = []
        for file in self.mlflow.list_artifacts(self.mlflow_run().info.run_id, folder):
            names += self.mlflow_files(file.path) if file.is_dir else [file.path]
        return sorted(names)

    def mlflow_models(self) -> list[str]:
        """The names of the models that the run has logged, each of which can be loaded."""
        info = self.mlflow_run().info
        models = self.mlflow.search_logged_models([info.experiment_id])
        own = [model for model in models if model.source_run_id == info.run_id]
        assert all(str(model.status) == "READY" for model in own)
        return sorted(model.name for model in own)

    # W&B

    @cached_property
    def wandb_records(self) -> list[dict[str, Any]]:
        """The output of ``wandb leet inspect`` for all files that ``wandb sync`` would upload."""
        found: list[dict[str, Any]] = []
        for file in sorted((self.logs / "wandb").glob("*run-*/run-*.wandb")):
            found += wandb_records(file)
        return found

    def wandb_curve(self, name: str) -> Curve:
        rows = [one["history"]["item"] for one in self.wandb_records if one["type"] == "history"]
        return sorted((int(row[WANDB_STEP]), float(row[name])) for row in rows if name in row)

    # TensorBoard and provenance

    @property
    def tensorboard_folder(self) -> Path:
        (found,) = (self.logs / "tensorboard").iterdir()
        return found / f"rank-{self.rank:05d}" if self.rank else found

    def tensorboard_curve(self, name: str) -> Curve:
        return scalars(self.tensorboard_folder)[name]

    @property
    def provenance(self) -> dict[str, Any]:
        (path,) = (self.logs / "prov_logs").rglob("provenance.json")
        found: dict[str, Any] = json.loads(path.read_text())
        return found

    def provenance_series(self, name: str) -> dict[str, str]:
        """The entity of a metric's series in the document."""
        (found,) = [
            about
            for about in things(self.provenance, "stepwell:Metric").values()
            if about["prov:label"] == name
        ]
        return {key: value(one) for key, one in found.items() if key != "prov:type"}
