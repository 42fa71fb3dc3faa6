"""Spans by text, and one span with everything that was recorded of it."""

from __future__ import annotations

from pathlib import Path

import polars as pl
import pytest

import stepwell
from stepwell import Run
from stepwell.analysis.detail import search_spans, span_detail, timeline_at
from stepwell.journal.process_writer import ProcessWriter
from tests.analysis.detail.runs import BEGAN, CLOCK, Written, random_spans


@pytest.fixture
def written(tmp_path: Path) -> Written:
    return Written(tmp_path / "run")


def test_spans_are_found_by_name_in_any_case_and_the_earliest_come_first(written: Written) -> None:
    for rank in range(2):
        written.add(random_spans(rank, 200), rank=rank)
    run = written.open()
    search = search_spans(run, "FORW", 10)
    table = run.spans().filter(pl.col("name") == "forward").sort("start_ns").collect()
    assert [hit.start + BEGAN for hit in search.hits] == table["start_ns"].head(10).to_list()
    assert search.more
    (stats,) = search.stats
    durations = table["duration_ns"]
    assert (stats.name, stats.count) == ("forward", table.height)
    assert (stats.total_ns, stats.max_ns) == (durations.sum(), durations.max())
    assert stats.p50_ns == durations.sort()[(table.height - 1) // 2]


def test_spans_are_found_by_category_and_attributes(written: Written) -> None:
    def write(writer: ProcessWriter) -> None:
        for number in range(100):
            text = b'{"file": "batch-77.npz"}' if number == 60 else b'{"file": "other"}'
            clock = CLOCK + number * 100
            writer.span("load", "io", clock, clock + 50, attributes=text)
        writer.span("work", "", CLOCK, CLOCK + 1)

    written.add(write)
    run = written.open()
    assert len(search_spans(run, "io", 1000).hits) == 100
    (hit,) = search_spans(run, "BATCH-77").hits
    assert hit.start == 6000
    assert not search_spans(run, "batch-77").more
    assert search_spans(run, "nowhere").hits == []


def test_a_search_ends_when_the_time_is_up(written: Written) -> None:
    written.add(random_spans(0, 200))
    search = search_spans(written.open(), "forward", budget_s=-1.0)
    assert (search.hits, search.more) == ([], True)


def test_each_box_leads_to_its_span(written: Written) -> None:
    """All fields are those of the table of spans."""
    written.add(random_spans(1, 150, open_at_end=2), rank=0, status="running")
    written.add(random_spans(2, 150), rank=1)
    run = written.open()
    table = run.spans().collect()
    window = timeline_at(run, width=8000)
    checked = 0
    for lane in window.lanes:
        for identity, start in zip(lane.id.tolist(), lane.start.tolist(), strict=True):
            if identity < 0 or checked % 7:
                checked += 1
                continue
            checked += 1
            detail = span_detail(run, identity, start)
            assert detail is not None
            (row,) = table.filter(
                (pl.col("process") == lane.process)
                & (pl.col("start_ns") == start + BEGAN)
                & (pl.col("name") == detail.name)
                & (pl.col("depth") == len(detail.path))
            ).to_dicts()
            assert detail.duration_ns == row["duration_ns"]
            assert detail.status == row["status"]
            assert (detail.rank, detail.process) == (lane.rank, lane.process)
            assert detail.path[:1] in ((), ("training_loop",))
    assert checked > 100


def test_ids_that_do_not_exist_have_no_span(written: Written) -> None:
    written.add(random_spans(1, 50))
    run = written.open()
    (lane,) = timeline_at(run, width=8000).lanes
    identity = int(lane.id[lane.id >= 0][0])
    assert span_detail(run, identity) is not None
    assert span_detail(run, identity, 123) is None
    for strange in (-1, 0, 1 << 60, identity + (1 << 34), identity + 5000):
        assert span_detail(run, strange) is None


def test_a_live_span_has_its_attributes_path_and_events(recorded: Run) -> None:
    recorded.set_step(3, epoch=1)
    with recorded.span("outer"), recorded.span("inner", size=4):
        recorded.event("note", text="hello")
        run = stepwell.open_run(recorded.path)
        (hit,) = search_spans(run, "inner").hits
        detail = span_detail(run, hit.id, hit.start)
    assert detail is not None
    assert (detail.name, detail.status, detail.step, detail.epoch) == ("inner", "open", 3, 1)
    assert detail.attributes["size"] == 4
    assert detail.path == ("outer",)
    (event,) = detail.events
    assert (event.name, event.attributes) == ("note", {"text": "hello"})
    assert event.time >= detail.start
