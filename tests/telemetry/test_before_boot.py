"""Spans that started before the machine did, which is when the journal's clock begins."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

import stepwell
from stepwell.telemetry import SpanRecorder
from stepwell.testing import FakeClock
from stepwell.training import on_app_end, on_app_start, on_train_end, on_train_start


def test_they_are_kept_with_their_true_start(tmp_path: Path) -> None:
    """A minute after boot, of what began an hour ago and ended half a minute ago; callbacks and recorder."""
    with FakeClock(uptime=60) as clock, stepwell.init("young", dir=tmp_path) as run:
        began, ended = clock.time - 3600, clock.time - 30
        recorder = SpanRecorder()
        span = recorder.start("image pull", {"size": 7}, start_time=began)
        recorder.stop(span, stop_time=ended)
        before = recorder.start("power on", start_time=began)
        recorder.stop(before, stop_time=began + 60)
        on_app_start(began * 1e3)
        on_train_start(0, start_time_msec=ended * 1e3)
        on_train_end()
        on_app_end()
    table = stepwell.open_run(run.path).spans().collect()
    rows = {row["name"]: row for row in table.to_dicts()}
    pulled = json.loads(rows["image pull"]["attributes"])
    assert pulled["size"] == 7
    assert pulled["start_time_sec"] == pytest.approx(began)
    # From the start of the machine on.
    assert rows["image pull"]["duration_ns"] == pytest.approx(30e9, rel=1e-6)
    assert rows["power on"]["duration_ns"] == 0
    assert json.loads(rows["application"]["attributes"])["start_time_sec"] == pytest.approx(began)
    assert rows["training_loop"]["start_ns"] == pytest.approx(ended * 1e9)
    assert "start_time_sec" not in (rows["training_loop"]["attributes"] or "")
