"""The training examples run unchanged, and their runs and exported files are complete."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import polars as pl
import pytest

from stepwell.reading import RecordedRun
from tests.examples.programs import run_example, run_of
from tests.nesting.tree import check_tree, edges

pytestmark = pytest.mark.torch
pytest.importorskip("torch")

ITERATIONS = 36


def _run(name: str, folder: Path) -> tuple[RecordedRun, pl.DataFrame, list[dict[str, Any]]]:
    """Run an example in a folder; return its run, its spans and the lines that it exported."""
    done = run_example(name, folder)
    assert done.stderr == ""
    run = run_of(done, folder)
    spans = run.spans().collect()
    check_tree(spans)
    assert set(spans["status"]) == {"ok"}
    lines = (folder / "training_telemetry.json").read_text().splitlines()
    return run, spans, [json.loads(line) for line in lines]


def _attributes(run: RecordedRun, event: str) -> list[dict[str, Any]]:
    events = run.events().collect().sort("time_ns").filter(pl.col("name") == event)
    return [json.loads(text) for text in events["attributes"]]


def _exported_spans(lines: list[dict[str, Any]]) -> dict[int, dict[str, Any]]:
    """Return the ended spans of an exported file by id."""
    return {line["id"]: line for line in lines if line["type"] in ("stop", "complete")}


def test_context_managers(tmp_path: Path) -> None:
    """The run has the whole tree of spans; the exported file leaves out the short ones."""
    run, spans, lines = _run("training_context.py", tmp_path)
    assert edges(spans) == {
        ("application", None): 1,
        ("data_loader_initialization", "application"): 1,
        ("model_initialization", "application"): 1,
        ("optimizer_initialization", "application"): 1,
        ("training_loop", "application"): 1,
        ("training_single_iteration", "training_loop"): ITERATIONS,
        ("validation_loop", "training_loop"): 3,
        ("validation_single_iteration", "validation_loop"): 6,
        ("checkpoint_save_sync", "training_loop"): 3,
    }
    assert run.labels == {
        "application_name": "plane",
        "session_tag": "example",
        "perf_tag": "two-layers",
    }
    updates = _attributes(run, "training_metrics_update")
    assert [update["current_iteration"] for update in updates] == [9, 19, 29, 35]
    assert updates[-1]["num_train_samples"] == 32 * ITERATIONS
    assert updates[-1]["total_flops"] == 32 * ITERATIONS * 1000
    losses = run.metrics().collect().filter(pl.col("name") == "loss").sort("step")
    assert losses["step"].to_list() == list(range(ITERATIONS))
    assert updates[-1]["latest_loss"] == losses["value"][-1]
    saves = _attributes(run, "save_checkpoint_success")
    assert [save["current_iteration"] for save in saves] == [12, 24, 36]
    sizes = [(tmp_path / f"checkpoint-{i}.pt").stat().st_size for i in range(3)]
    assert [save["checkpoint_size"] for save in saves] == sizes
    exported = _exported_spans(lines)
    names = [span["name"] for span in exported.values()]
    assert sorted(names) == sorted(
        ["application", "data_loader_initialization", "model_initialization"]
        + ["optimizer_initialization", "training_loop"]
        + 3 * ["validation_loop", "checkpoint_save_sync"]
    )
    for span in exported.values():
        if span["name"] in ("validation_loop", "checkpoint_save_sync"):
            assert exported[span["parent"]]["name"] == "training_loop"
    assert {line["run"] for line in lines} == {run.id}


def test_callbacks(tmp_path: Path) -> None:
    """Without on_train_end the end of the application ends the loop, after a last update."""
    run, spans, lines = _run("training_callbacks.py", tmp_path)
    assert edges(spans) == {
        ("application", None): 1,
        ("model_initialization", "application"): 1,
        ("training_loop", "application"): 1,
        ("training_single_iteration", "training_loop"): ITERATIONS,
    }
    ends = {
        name: start + took
        for name, start, took in spans.select("name", "start_ns", "duration_ns").iter_rows()
    }
    assert ends["training_loop"] == ends["application"]
    updates = _attributes(run, "training_metrics_update")
    assert [update["is_final"] for update in updates] == [False, False, False, True]
    assert [update["interval"] for update in updates] == [10, 10, 10, 6]
    exported = [line for line in lines if line.get("name") == "training_metrics_update"]
    assert [line["attributes"]["current_iteration"] for line in exported] == [9, 19, 29, 35]
    assert sorted(span["name"] for span in _exported_spans(lines).values()) == [
        "application",
        "model_initialization",
        "training_loop",
    ]


def test_custom_spans(tmp_path: Path) -> None:
    """The run has the custom spans, attributes and events; the file has the selected spans."""
    run, spans, lines = _run("custom_spans.py", tmp_path)
    assert edges(spans) == {
        ("application", None): 1,
        ("training_loop", "application"): 1,
        ("training_single_iteration", "training_loop"): 12,
        ("my_custom_span", "training_loop"): 1,
    }
    (event,) = _attributes(run, "weights_measured")
    attributes = {name: json.loads(text or "{}") for name, text in _columns(spans)}
    assert attributes["training_loop"]["my_custom_attribute"] == "my_custom_value"
    assert attributes["my_custom_span"] == {"kind": "norm", "norm": event["norm"]}
    exported = _exported_spans(lines)
    by_name = {span["name"]: span for span in exported.values()}
    assert set(by_name) == {"training_loop", "my_custom_span"}
    assert by_name["my_custom_span"]["parent"] == by_name["training_loop"]["id"]
    assert by_name["my_custom_span"]["attributes"]["norm"] == event["norm"]
    (line,) = [line for line in lines if line.get("name") == "weights_measured"]
    assert line["span"] == by_name["my_custom_span"]["id"]


def _columns(spans: pl.DataFrame) -> Any:
    return spans.select("name", "attributes").iter_rows()
