"""``stepwell show``: spans of one name have a line for each parent."""

from __future__ import annotations

from contextlib import ExitStack
from dataclasses import replace
from pathlib import Path

import pytest

import stepwell
from stepwell.analysis.overview import SpanLine, overview
from stepwell.cli.show import show_overview
from stepwell.testing import FakeClock


def lines_of(folder: Path) -> list[SpanLine]:
    return overview(stepwell.open_run(folder)).spans


def test_forward_of_training_and_of_validation(tmp_path: Path) -> None:
    """Each is below its own parent, with its own count and time."""
    with FakeClock() as clock, stepwell.init(dir=tmp_path) as run:
        for _ in range(2):
            for name, seconds, times in (("train step", 0.3, 3), ("validate", 0.1, 2)):
                with run.span(name):
                    for _ in range(times):
                        with run.span("forward"):
                            clock.advance(seconds)
    found = [
        (line.name, line.inside, line.depth, line.count, round(line.total_s, 9))
        for line in lines_of(run.path)
    ]
    assert found == [
        ("train step", "", 0, 2, 1.8),
        ("forward", "train step", 1, 6, 1.8),
        ("validate", "", 0, 2, 0.4),
        ("forward", "validate", 1, 4, 0.4),
    ]


def test_spans_inside_of_their_own_kind(tmp_path: Path) -> None:
    """Nothing is lost or counted twice if spans of one name are nested, directly or not."""
    names = ("block", "block", "layer", "block")
    with FakeClock() as clock, stepwell.init(dir=tmp_path) as run, ExitStack() as inside:
        for name in names:
            inside.enter_context(run.span(name))
            clock.advance(1)
    found = [(line.name, line.inside, line.count) for line in lines_of(run.path)]
    assert found == [
        ("block", "", 1),
        ("block", "block", 1),
        ("layer", "block", 1),
        ("block", "layer", 1),
    ]


def test_spans_without_an_end(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    """A line below the table explains why a total is smaller than the totals inside it."""
    with FakeClock() as clock, stepwell.init(dir=tmp_path) as run:
        with run.span("epoch"):
            clock.advance(1)
        with run.span("epoch"), run.span("step"):
            clock.advance(1)
            run.flush()
            shown = overview(stepwell.open_run(run.path))
    show_overview(replace(shown, status="killed"))
    note = "Spans that never ended are counted, but their time is not included: epoch (1)."
    assert note in capsys.readouterr().out.replace("\n", " ")
