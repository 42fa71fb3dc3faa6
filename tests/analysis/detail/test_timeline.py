"""Timelines: every span is in exactly one box, as wide as the screen can show it."""

from __future__ import annotations

import shutil
from collections import defaultdict
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import numpy as np
import pytest

import stepwell
from stepwell import Run, open_run
from stepwell._core.files import write_json
from stepwell.analysis.cache import memory
from stepwell.analysis.detail import LaneBoxes, TimelineWindow, timeline_at
from stepwell.analysis.detail import timeline as timeline_module
from stepwell.analysis.detail.boxes import MAX_ROWS
from stepwell.journal.archive import Block
from stepwell.journal.process_writer import ProcessWriter
from stepwell.journal.state import local
from stepwell.reading import RecordedRun
from tests.analysis.detail.runs import BEGAN, CLOCK, Written, random_spans

Box = tuple[int, int, int, str, int, int]
"""Row, start, end, name, count, flags."""


def boxes_of(window: TimelineWindow, lane: LaneBoxes) -> list[Box]:
    columns = (lane.row, lane.start, lane.end, lane.name, lane.count, lane.flags)
    rows = zip(*(column.tolist() for column in columns), strict=True)
    return [(r, s, e, window.names[n].name, c, f) for r, s, e, n, c, f in rows]


def spans_of(run: RecordedRun, lane: LaneBoxes, last: int) -> list[dict[str, Any]]:
    """The spans of a lane by brute force; open ones end at ``last``."""
    spans = []
    for row in run.spans().collect().iter_rows(named=True):
        if (row["process"], row["thread"]) == (lane.process, lane.thread):
            start = row["start_ns"] - BEGAN
            end = last if row["duration_ns"] is None else start + row["duration_ns"]
            flags = {"open": 1, "unfinished": 1, "error": 2}.get(row["status"], 0)
            row_number = min(row["depth"], MAX_ROWS - 1)
            spans.append({**row, "start": start, "end": end, "flags": flags, "row": row_number})
    return spans


def merged(spans: list[dict[str, Any]], start: int, end: int, width: int) -> list[Box]:
    """Boxes by brute force: short spans that begin in the same bucket of a row are one."""
    size = 1
    while size * width < end - start:
        size *= 2
    groups: dict[Any, list[dict[str, Any]]] = defaultdict(list)
    first, after = (start + CLOCK) // size, -(-(end + CLOCK) // size)
    for span in spans:
        is_short = span["end"] - span["start"] < size
        bucket = (span["start"] + CLOCK) // size
        is_begun = not is_short and span["end"] + CLOCK >= first * size
        if bucket < after and (bucket >= first or is_begun):
            groups[span["row"], is_short, bucket].append(span)
    boxes = []
    for (row, _, _), members in groups.items():
        times: dict[str, int] = defaultdict(int)
        for span in members:
            times[span["name"], span["category"]] += span["end"] - span["start"]
        flags = 0
        for span in members:
            flags |= span["flags"]
        boxes.append(
            (
                row,
                min(span["start"] for span in members),
                max(span["end"] for span in members),
                max(times.values()),
                len(members),
                flags,
                times,
            )
        )
    return sorted(boxes, key=lambda box: (box[0], box[1], box[2]))


def assert_same(run: RecordedRun, window: TimelineWindow, width: int, last: int) -> None:
    for lane in window.lanes:
        spans = spans_of(run, lane, last)
        expected = merged(spans, window.start, window.end, width)
        boxes = sorted(boxes_of(window, lane), key=lambda box: box[:3])
        assert [box[:3] + box[4:] for box in boxes] == [e[:3] + e[4:6] for e in expected]
        for box, (*_, most, _, _, times) in zip(boxes, expected, strict=True):
            assert max(ns for (name, _), ns in times.items() if name == box[3]) == most


@pytest.fixture
def written(tmp_path: Path) -> Written:
    return Written(tmp_path / "run")


@pytest.mark.parametrize("seed", range(4))
@pytest.mark.parametrize("width", [1, 30, 700])
def test_boxes_are_those_of_brute_force(written: Written, seed: int, width: int) -> None:
    """From the segments themselves, while the cache is made, and from the cache."""
    written.add(random_spans(seed, 300, lanes=2))
    written.add(random_spans(seed + 100, 200), rank=1)
    run = written.open()
    for start, end in [(None, None), (10**6, 3 * 10**6), (5 * 10**6, 5 * 10**6 + 50_000)]:
        for _ in range(2):
            window = timeline_at(run, start, end, width)
            assert_same(run, window, width, 10**9)
            memory.clear()


@pytest.mark.parametrize("seed", range(3))
def test_zooming_after_the_cache_was_made_gives_the_same(written: Written, seed: int) -> None:
    written.add(random_spans(seed, 400))
    run = written.open()
    timeline_at(run, width=10)
    for exponent in range(2, 30, 3):
        start = 2 * 10**6
        window = timeline_at(run, start, start + 2**exponent * 100, 100)
        assert_same(run, window, 100, 10**9)


def test_of_very_many_names_the_longest_ones_name_the_boxes(written: Written) -> None:
    """Of 40 names in a bucket, one has a tenth of the time, and all spans are counted."""

    def write(writer: ProcessWriter) -> None:
        for number in range(2000):
            clock = CLOCK + number * 1000
            name, length = (f"{number % 40}", 200) if number % 40 else ("long", 900)
            writer.span(name, "", clock, clock + length)

    written.add(write)
    run = written.open()
    for _ in range(2):
        window = timeline_at(run, 0, 2_000_000, 10)
        (lane,) = window.lanes
        assert {window.names[n].name for n in lane.name.tolist()} == {"long"}
        assert lane.count.sum() == 2000
        assert (lane.start.min(), lane.end.max()) == (0, 1_999_200)
        memory.clear()


def test_every_span_is_counted_once(written: Written) -> None:
    written.add(random_spans(7, 500))
    run = written.open()
    total = run.spans().collect().height
    for width in (1, 10, 100, 1000, 8000):
        window = timeline_at(run, width=width)
        assert sum(int(lane.count.sum()) for lane in window.lanes) == total


def test_a_single_span_has_its_id_and_a_merged_box_has_none(written: Written) -> None:
    written.add(random_spans(3, 300))
    window = timeline_at(written.open(), width=50)
    (lane,) = window.lanes
    assert ((lane.id >= 0) == (lane.count == 1)).all()
    assert (lane.count > 1).any()
    assert len(set(lane.id[lane.id >= 0].tolist())) == int((lane.id >= 0).sum())
    assert int(lane.id.max()) < 2**53


def test_there_are_at_most_two_boxes_for_each_pixel_of_a_row(written: Written) -> None:
    written.add(random_spans(5, 3000))
    run = written.open()
    for width in (3, 40):
        (lane,) = timeline_at(run, width=width).lanes
        assert np.bincount(lane.row).max() <= 2 * width + 2


def test_boxes_are_merged_further_if_there_are_too_many(
    written: Written, monkeypatch: pytest.MonkeyPatch
) -> None:
    written.add(random_spans(5, 1000, lanes=3))
    run = written.open()
    monkeypatch.setattr(timeline_module, "MAX_BOXES", 60)
    window = timeline_at(run, width=1000)
    assert sum(len(lane.row) for lane in window.lanes) <= 60
    counted = sum(int(lane.count.sum()) for lane in window.lanes)
    assert counted == run.spans().collect().height


def test_deep_nesting_ends_in_a_last_row(written: Written) -> None:
    def write(writer: ProcessWriter) -> None:
        parent = None
        for depth in range(MAX_ROWS + 30):
            parent = writer.span(f"{depth}", "", CLOCK + depth, CLOCK + 10**6 - depth, parent)

    written.add(write)
    (lane,) = timeline_at(written.open(), 0, 10**6, 1000).lanes
    assert lane.row.max() == MAX_ROWS - 1
    assert lane.count.sum() == MAX_ROWS + 30


def test_spans_of_a_killed_process_end_with_its_last_sign_of_life(written: Written) -> None:
    """They were carried through many segments, and one of them began before all others."""
    written.add(random_spans(1, 300, open_at_end=3), status="running", lasted=10**9)
    run = written.open()
    assert run.status == "killed"
    for start, end in [(None, None), (10**6, 2 * 10**6)]:
        window = timeline_at(run, start, end, 200)
        assert window.full == (0, 10**9)
        assert_same(run, window, 200, 10**9)
        (lane,) = window.lanes
        opened = lane.flags & 1 == 1
        assert lane.end[opened].tolist() == [10**9] * 4


def test_a_window_reads_only_the_segments_that_touch_it(
    written: Written, unpacked: list[Block]
) -> None:
    written.add(random_spans(2, 600))
    run = written.open()
    timeline_at(run, 10**6, 10**6 + 1000, 100)
    sealed = {block.key for block in unpacked if block.header["kind"] == "spans"}
    segments = [s for tables in run.by_process() for s in tables.process.of_kind("spans")]
    assert len(segments) > 20
    assert len(sealed) < 6


def test_the_second_call_unpacks_no_segment(written: Written, unpacked: list[Block]) -> None:
    written.add(random_spans(2, 600))
    run = written.open()
    first = timeline_at(run, width=20)
    assert unpacked
    unpacked.clear()
    # As in another process.
    memory.clear()
    second = timeline_at(run, width=20)
    assert unpacked == []
    assert boxes_of(first, first.lanes[0]) == boxes_of(second, second.lanes[0])


def test_without_time_segments_are_left_out_and_counted(written: Written) -> None:
    written.add(random_spans(2, 600))
    run = written.open()
    window = timeline_at(run, width=20, budget_s=-1.0)
    assert window.missing > 10
    assert timeline_at(run, width=20).missing == 0
    assert timeline_at(run, width=20, budget_s=-1.0).missing == 0


@pytest.mark.parametrize("damage", ["cut", "flip", "empty", "text"])
def test_a_damaged_cache_is_made_again(written: Written, cache: Path, damage: str) -> None:
    written.add(random_spans(4, 500))
    run = written.open()
    expected = timeline_at(run, width=20)
    files = list(cache.rglob("*.shelf"))
    assert files
    for path in files:
        data = bytearray(path.read_bytes())
        if damage == "cut":
            del data[len(data) // 2 :]
        elif damage == "flip":
            for at in range(len(data) // 2, len(data), 7):
                data[at] ^= 0x55
        path.write_bytes({"empty": b"", "text": b"{}"}.get(damage, bytes(data)))
    memory.clear()
    window = timeline_at(run, width=20)
    assert boxes_of(window, window.lanes[0]) == boxes_of(expected, expected.lanes[0])
    assert_same(run, window, 20, 10**9)


def test_without_a_cache_folder_everything_is_there(
    written: Written, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, unpacked: list[Block]
) -> None:
    """A file is in its place: nobody can write there, not even root."""
    (tmp_path / "file").write_text("")
    monkeypatch.setenv("STEPWELL_CACHE", str(tmp_path / "file"))
    written.add(random_spans(4, 500))
    run = written.open()
    assert_same(run, timeline_at(run, width=20), 20, 10**9)
    unpacked.clear()
    window = timeline_at(run, width=20)
    assert [block for block in unpacked if block.header["kind"] == "spans"] == []
    assert_same(run, window, 20, 10**9)


def test_another_run_in_the_same_place_has_its_own_spans(written: Written) -> None:
    written.add(random_spans(4, 500))
    timeline_at(written.open(), width=20)
    shutil.rmtree(written.folder)
    again = Written(written.folder)
    again.add(random_spans(5, 500))
    run = again.open()
    assert_same(run, timeline_at(run, width=20), 20, 10**9)


def test_cached_files_are_private(written: Written, cache: Path) -> None:
    written.add(random_spans(4, 500))
    timeline_at(written.open(), width=20)
    assert {path.stat().st_mode & 0o777 for path in cache.rglob("*.shelf")} == {0o600}


def test_a_run_without_spans_has_no_lanes(written: Written) -> None:
    written.add(lambda writer: writer.metric("x", CLOCK, 1.0))
    window = timeline_at(written.open())
    assert (window.lanes, window.lane_count, window.names) == ([], 0, [])
    assert window.full == (0, 10**9)


def test_a_run_without_processes_is_empty(tmp_path: Path) -> None:
    (tmp_path / "run").mkdir()
    write_json(tmp_path / "run" / "run.json", {"stepwell": 1, "id": "run"})
    window = timeline_at(open_run(tmp_path / "run"))
    assert (window.full, window.lanes, window.steps) == ((0, 1), [], [])


def test_lanes_are_sorted_by_rank_and_can_be_paged(written: Written) -> None:
    for rank in (2, 0, 1):
        written.add(random_spans(rank, 20, lanes=2), rank=rank)
    run = written.open()
    labels = [lane.label for lane in timeline_at(run).lanes]
    assert labels[:3] == ["rank 0 · MainThread", "rank 0 · thread 1", "rank 1 · MainThread"]
    page = timeline_at(run, offset=2, lanes=3)
    assert [lane.label for lane in page.lanes] == labels[2:5]
    assert (page.lane_count, page.offset, page.ranks) == (6, 2, [0, 1, 2])
    one = timeline_at(run, ranks=[1])
    assert [lane.label for lane in one.lanes] == labels[2:4]
    assert one.lane_count == 2


def test_attempts_are_lanes_of_their_own(written: Written) -> None:
    written.add(random_spans(1, 20), attempt=0)
    written.add(random_spans(2, 20), attempt=1, started=10**9)
    window = timeline_at(written.open())
    assert [lane.label for lane in window.lanes] == [
        "rank 0 · attempt 0 · MainThread",
        "rank 0 · attempt 1 · MainThread",
    ]
    assert window.full == (0, 2 * 10**9)


def test_names_have_their_category_and_phase(written: Written) -> None:
    written.add(random_spans(1, 200))
    names = {(n.name, n.category): n.phase for n in timeline_at(written.open(), width=8000).names}
    assert names["forward", ""] == "forward"
    assert names["all_reduce", ""] == "communication"
    assert names["my own", ""] is None


def test_steps_of_the_lowest_rank_are_at_least_forty_pixels_apart(written: Written) -> None:
    def write(writer: ProcessWriter) -> None:
        for step in range(100):
            writer.context(CLOCK + step * 10**6, step, 0)
            writer.span("step", "", CLOCK + step * 10**6, CLOCK + (step + 1) * 10**6)

    written.add(write, rank=1)
    written.add(lambda writer: writer.span("other", "", CLOCK, CLOCK + 1) and None, rank=3)
    run = written.open()
    whole = timeline_at(run, 0, 10**8, 400)
    assert [(mark.step, mark.start) for mark in whole.steps] == [
        (step, step * 10**6) for step in range(0, 100, 10)
    ]
    part = timeline_at(run, 5 * 10**6, 9 * 10**6, 400)
    assert [mark.step for mark in part.steps] == [5, 6, 7, 8]


@pytest.fixture
def live(recorded: Run) -> Iterator[Run]:
    """A run that records, with sealed segments and a live one."""
    recorded.set_step(0)
    with recorded.span("outer"):
        for _ in range(6):
            for _ in range(30):
                with recorded.span("inner"):
                    pass
            assert local.lane.roll()
            recorded.flush()
        yield recorded


def test_a_live_run_shows_what_came_since(live: Run, unpacked: list[Block]) -> None:
    run = stepwell.open_run(live.path)
    before = timeline_at(run, width=50)
    (lane,) = before.lanes
    assert int(lane.count.sum()) == 181
    (opened,) = np.flatnonzero(lane.flags == 1).tolist()
    assert before.names[lane.name[opened]].name == "outer"
    assert lane.end[opened] == pytest.approx(before.full[1], abs=10**9)
    with live.span("later"):
        unpacked.clear()
        after = timeline_at(run, width=50)
    assert {n.name for n in after.names} >= {"outer", "later"}
    assert int(after.lanes[0].count.sum()) == 182
    assert after.full[1] > before.full[1]
    # Only the sealed segments in which a span is open at their end are looked at again.
    assert len([block for block in unpacked if block.header["kind"] == "spans"]) <= 1


def test_a_span_that_went_through_many_segments_is_one_box_with_its_end(recorded: Run) -> None:
    """Seen live, when the last of them is sealed, and in windows in the middle of it."""
    run = stepwell.open_run(recorded.path)
    with recorded.span("outer"), recorded.span("middle"):
        for number in range(6):
            with recorded.span(f"inner {number}"):
                assert local.lane.roll()
            recorded.flush()
        assert int(timeline_at(run, width=50).lanes[0].count.sum()) == 8
    for _ in range(2):
        spans = {row["name"]: row for row in run.spans().collect().iter_rows(named=True)}
        began = min(document["started"] for document in run.documents())
        third = spans["inner 3"]["start_ns"] - began
        for start, end in [(None, None), (third, third + 1000)]:
            window = timeline_at(run, start, end, 8000)
            boxes = {box[3]: box for box in boxes_of(window, window.lanes[0])}
            for name in ("outer", "middle", "inner 3"):
                first = spans[name]["start_ns"] - began
                until = first + spans[name]["duration_ns"]
                assert boxes[name][1:3] + boxes[name][4:] == (first, until, 1, 0)
        assert len(window.lanes[0].row) < 8
        stepwell.finish()
    assert run.status == "finished"
