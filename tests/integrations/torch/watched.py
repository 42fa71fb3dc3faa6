"""Helpers for tests of ``stepwell.watch``: trainings, and reading their runs."""

from __future__ import annotations

import json
from typing import Any

import polars as pl

import stepwell
from stepwell import Run
from stepwell.reading import RecordedRun
from tests.integrations.torch.loops import make_loader, make_model, make_optimizer
from tests.nesting.tree import check_tree


def parts() -> tuple[Any, Any, Any]:
    """A model, its optimizer and a loader."""
    model = make_model()
    return model, make_optimizer(model), make_loader()


def read(run: Run | None) -> tuple[RecordedRun, pl.DataFrame]:
    """A run and its spans, which are a tree."""
    assert run is not None
    found = stepwell.open_run(run.path)
    spans = found.spans().collect().sort("start_ns")
    check_tree(spans)
    return found, spans


def updates(run: RecordedRun) -> list[dict[str, Any]]:
    """The attributes of the updates of the training loop."""
    events = run.events().collect().sort("time_ns")
    found = events.filter(pl.col("name") == "training_metrics_update")
    return [json.loads(text) for text in found["attributes"]]


def curve(run: RecordedRun, name: str = "loss") -> list[tuple[int, float]]:
    """Steps and values of a metric."""
    found = run.metrics().collect().filter(pl.col("name") == name).sort("step")
    return found.select("step", "value").rows()


def outliving(spans: pl.DataFrame) -> list[str]:
    """The spans that end after the one that they are in."""
    end = pl.col("start_ns") + pl.col("duration_ns")
    above = spans.select(parent="id", above_end=end)
    inner = spans.join(above, on="parent")
    return inner.filter(end > pl.col("above_end"))["name"].to_list()


def evaluate(model: Any, loader: Any = None) -> None:
    """Look at some batches in evaluation mode, as between two epochs."""
    import torch

    model.eval()
    with torch.no_grad():
        for x, _ in make_loader() if loader is None else loader:
            model(x)
    model.train()
