"""Metrics: their list, their curves, and those of the layers of the model."""

from __future__ import annotations

import math
from collections.abc import Iterable
from typing import Any

import numpy as np
import polars as pl

from stepwell.analysis.detail import metric_list, series_at
from stepwell.analysis.detail.series import AXES, WAYS
from stepwell.analysis.diagnostics import holdout_table
from stepwell.dashboard.answers.values import Json, plain, plain_list
from stepwell.dashboard.parameters import Parameters
from stepwell.reading import RecordedRun

MOST_LAYERS = 400
MOST_COLUMNS = 600
MEASURES = {
    "gradient_norm": ("Gradient norm", ""),
    "weight_delta": ("Weight change", ""),
    "update_ratio": ("Update ratio", "of the norm of the weights"),
    "dead_units": ("Dead units", "share"),
}
OVERALL = "overall"


def metric_list_answer(run: RecordedRun) -> Json:
    """Return the metrics of a run and the axes that they can be drawn over."""
    answer: Json = plain(metric_list(run))
    return answer


def series_answer(run: RecordedRun, given: Parameters) -> Json:
    """Return the curves of some metrics."""
    axis = given.choice("x", AXES)
    series = series_at(
        run,
        given.texts("name"),
        x=axis,
        by=given.choice("by", WAYS),
        rank=given.whole("rank"),
        start=given.number("start"),
        end=given.number("end"),
        points=given.count("points", 800, 10, 10_000),
    )
    return {"x": axis, "series": plain(series)}


def model(run: RecordedRun, measure: str | None = None) -> Json:
    """Return a measure of each layer over steps, and the names of further metrics of the model."""
    names = sorted(each.name for each in metric_list(run).metrics)
    present = [key for key in MEASURES if any(name.startswith(f"{key}/") for name in names)]
    chosen = measure if measure in present else next(iter(present), "")
    layers, steps, values = _layers(run, chosen, names)
    charts = [
        ("Learning rate", [n for n in names if n.startswith("learning_rate/")]),
        ("Gradient norm", [n for n in names if n.startswith("gradient_norm") and _is_whole(n)]),
        ("Holdout accuracy", [n for n in names if n == "holdout/accuracy"]),
        ("Update ratio", [n for n in names if n == f"update_ratio/{OVERALL}"]),
    ]
    return {
        "measure": chosen,
        "measures": [
            {"key": key, "title": MEASURES[key][0], "unit": MEASURES[key][1]} for key in present
        ],
        "layers": layers,
        "steps": steps,
        "values": values,
        "charts": [{"title": title, "names": own[:12]} for title, own in charts if own],
        "holdout": _holdout(run),
    }


def _is_whole(name: str) -> bool:
    return name.endswith(f"/{OVERALL}") or "/" not in name


def _layers(
    run: RecordedRun, measure: str, names: Iterable[str]
) -> tuple[list[str], list[int], list[Any]]:
    own = [n for n in names if n.startswith(f"{measure}/") and not _is_whole(n)][:MOST_LAYERS]
    if not measure or not own:
        return [], [], []
    table = (
        run.metrics()
        .filter(pl.col("name").is_in(own) & pl.col("step").is_not_null())
        .select("name", "step", "value")
        .collect()
        .group_by("name", "step")
        .agg(pl.col("value").mean())
    )
    steps = np.unique(table["step"].to_numpy())
    shown = steps[:: max(1, math.ceil(len(steps) / MOST_COLUMNS))]
    # Merged columns keep the largest value: a spike must not vanish.
    column = np.searchsorted(shown, table["step"].to_numpy(), "right") - 1
    row = np.searchsorted(own, table["name"].to_numpy())
    cells = np.full((len(own), len(shown)), -np.inf)
    np.maximum.at(cells, (row, column), np.nan_to_num(table["value"].to_numpy(), nan=np.inf))
    cells[np.isinf(cells)] = np.nan
    layers = [name.partition("/")[2] for name in own]
    return layers, [int(step) for step in shown], plain_list(cells)


def _holdout(run: RecordedRun) -> Json | None:
    table = holdout_table(run).filter(pl.col("step").is_not_null())
    if table.is_empty():
        return None
    steps = np.unique(table["step"].to_numpy())
    shown = steps[:: max(1, math.ceil(len(steps) / MOST_COLUMNS))]
    table = table.filter(pl.col("step").is_in(shown.tolist()) & (pl.col("example") < MOST_LAYERS))
    examples = np.unique(table["example"].to_numpy())
    cells = np.full((len(examples), len(shown)), np.nan)
    row = np.searchsorted(examples, table["example"].to_numpy())
    column = np.searchsorted(shown, table["step"].to_numpy())
    cells[row, column] = table["margin"].fill_null(float("nan")).to_numpy()
    labels = dict(zip(table["example"].to_list(), table["label"].to_list(), strict=True))
    return {
        "steps": [int(step) for step in shown],
        "examples": [int(example) for example in examples],
        "labels": [labels.get(int(example)) for example in examples],
        "margin": plain_list(cells),
    }
