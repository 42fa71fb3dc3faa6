"""Provenance: where a model comes from, as a W3C PROV document."""

from __future__ import annotations

import os
from typing import Any

from stepwell.loggers.base import Logger
from stepwell.loggers.checks import flag, folder, optional_text, positive
from stepwell.loggers.frequency import LogFreq, Workers

DEFAULT_EXPERIMENT = "experiment_name"


class Prov4MLLogger(Logger):
    """Writes a PROV-JSON document for the run, with a graph of it. Also importable as ``Prov4ML``.

    Args:
        prov_user_namespace: the address that your own names are below, such as a domain of yours.
        experiment_name: what the run is called in the document.
        provenance_save_dir: the folder of the documents.
        save_after_n_logs: the document on disk is renewed after so many records, besides at the end.
        create_graph: also write the graph, as DOT and Mermaid.
        create_svg: also draw the graph.
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
            folder("provenance_save_dir", provenance_save_dir), log_freq, log_on_workers
        )
        self.prov_user_namespace = optional_text("prov_user_namespace", prov_user_namespace)
        self.experiment_name = optional_text("experiment_name", experiment_name)
        self.save_after_n_logs = positive("save_after_n_logs", save_after_n_logs)
        self.create_graph = flag("create_graph", create_graph)
        self.create_svg = flag("create_svg", create_svg)

    @property
    def provenance_save_dir(self) -> str:
        """The folder of the documents."""
        return str(self.savedir)

    def backend_options(self) -> dict[str, Any]:
        """What the constructor was given."""
        return {
            "prov_user_namespace": self.prov_user_namespace,
            "experiment_name": self.experiment_name,
            "provenance_save_dir": str(self.savedir.absolute()),
            "save_after_n_logs": self.save_after_n_logs,
            "create_graph": self.create_graph,
            "create_svg": self.create_svg,
        }
