"""Traces of the torch profiler on the timeline of the run."""

from __future__ import annotations

from pathlib import Path

import polars as pl
import pytest

torch = pytest.importorskip("torch")

from torch.profiler import ProfilerActivity, profile, record_function, schedule  # noqa: E402

import stepwell  # noqa: E402
from stepwell.integrations.torch import trace_handler  # noqa: E402
from tests.integrations.torch.loops import make_loader, make_model, make_optimizer  # noqa: E402
from tests.nesting.tree import check_tree  # noqa: E402

pytestmark = pytest.mark.torch


def test_operators_join_the_run(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """They lie where they happened, beside the spans of the run, with the rank of their process."""
    monkeypatch.setenv("STEPWELL_STRICT", "1")
    model = make_model()
    optimizer, loader = make_optimizer(model), make_loader()
    run = stepwell.init(dir=tmp_path)
    plan = schedule(wait=1, warmup=1, active=1, repeat=2)
    with (
        stepwell.watch(model, optimizer, loader),
        profile(
            activities=[ProfilerActivity.CPU],
            schedule=plan,
            on_trace_ready=trace_handler(),
            acc_events=True,
        ) as profiler,
    ):
        for _ in range(2):
            for x, y in loader:
                with (
                    record_function("outside"),
                    stepwell.span("between"),
                    record_function("inside"),
                ):
                    torch.nn.functional.mse_loss(model(x), y).backward()
                    optimizer.step()
                profiler.step()
    run.finish()
    assert len(list((run.path / "profiler").iterdir())) == 2
    spans = stepwell.open_run(run.path).spans().collect().sort("start_ns")
    check_tree(spans)
    assert set(spans["rank"]) == {0}
    traced = spans.filter(pl.col("process").str.contains("profiler"))
    assert traced["process"].n_unique() == 2
    assert {"aten::addmm", "aten::mse_loss"} <= set(traced["name"])
    ends = pl.col("start_ns") + pl.col("duration_ns")
    named = {
        n: spans.filter(pl.col("name") == n).with_columns(end=ends)
        for n in ("outside", "between", "inside")
    }
    assert named["outside"].height == named["inside"].height == 2
    slack = 200_000
    for outer, inner in zip(
        named["outside"].iter_rows(named=True), named["inside"].iter_rows(named=True), strict=True
    ):
        fitting = [
            row
            for row in named["between"].iter_rows(named=True)
            if outer["start_ns"] - slack <= row["start_ns"] <= inner["start_ns"] + slack
            and inner["end"] - slack <= row["end"] <= outer["end"] + slack
        ]
        assert len(fitting) == 1


def test_without_a_run(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Nothing is done, and nothing fails; nor does it when the trace cannot be written."""
    with profile(activities=[ProfilerActivity.CPU], on_trace_ready=trace_handler()):
        torch.ones(2) + 1
    assert list(tmp_path.iterdir()) == []
    run = stepwell.init(dir=tmp_path)
    (run.path / "profiler").write_text("in the way")
    with profile(activities=[ProfilerActivity.CPU], on_trace_ready=trace_handler()):
        torch.ones(2) + 1
    run.finish()
    found = stepwell.open_run(run.path).events().collect()
    assert found["name"].to_list() == ["telemetry_data_error"]
