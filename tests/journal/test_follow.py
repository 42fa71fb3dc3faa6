"""The follower: what a process records, piece by piece, from its files."""

from __future__ import annotations

import time
from pathlib import Path
from typing import Any

import pytest

from stepwell import Run
from stepwell.follower import rows
from stepwell.follower.trace import Follower
from stepwell.journal.format import NAME_SHIFT, SPAN
from stepwell.journal.journal import Journal
from stepwell.journal.names import names
from stepwell.journal.state import current_journal, current_lane
from stepwell.telemetry.span_handle import intern_name, open_span
from tests.journal.following import Following, process_folder


def error_in(run: Run, name: str) -> None:
    """A span that an exception goes through."""
    with pytest.raises(ValueError, match="no"), run.span(name):
        raise ValueError("no")


def test_start_and_stop(recorded: Run) -> None:
    """The start of a span is returned at once, and its stop after it has ended."""
    following = Following(recorded.path)
    with recorded.span("outer", a=1) as outer:
        (start,) = following.poll()
        assert (start.type, start.name, start.status, start.attributes) == (
            "start",
            "outer",
            "open",
            {"a": 1},
        )
        assert abs(start.start_ns - time.time_ns()) < 10e9
        assert start.end_ns is None
        outer.set(b=2)
        assert following.poll() == []
    (stop,) = following.poll()
    assert (stop.type, stop.id, stop.start_ns) == ("stop", start.id, start.start_ns)
    assert (stop.status, stop.attributes) == ("ok", {"a": 1, "b": 2})
    following.check()


def test_order(recorded: Run) -> None:
    """Records are ordered by time: a start, its events and children, its stop."""
    following = Following(recorded.path)
    with recorded.span("outer"):
        recorded.event("one")
        with recorded.span("inner"):
            recorded.event("two")
    recorded.event("three")
    seen = [(r.type, r.name) for r in following.poll()]
    assert seen == [
        ("start", "outer"),
        ("event", "one"),
        ("start", "inner"),
        ("event", "two"),
        ("stop", "inner"),
        ("stop", "outer"),
        ("event", "three"),
    ]
    following.check()


def test_finished_run(recorded: Run) -> None:
    """A first look after the run was finished gives all of it, and then it is over."""
    with recorded.span("outer"), recorded.span("inner", i=1):
        recorded.event("here", x="y")
    following = Following(recorded.path)
    assert not following.follower.over
    recorded.finish()
    following.to_end()
    assert len(following.records) == 5
    assert following.follower.document["status"] == "finished"
    following.check()
    assert following.poll() == []
    assert following.follower.over


def test_left_open_at_finish(recorded: Run) -> None:
    """A span that is open when the run is finished stops as unfinished."""
    following = Following(recorded.path)
    span = recorded.span("outer")
    span.__enter__()
    following.poll()
    recorded.finish()
    following.to_end()
    (stop,) = following.of("stop")
    assert stop.status == "unfinished"
    following.check()


def test_kept_names(recorded: Run) -> None:
    """Of spans that are not kept, only errors are returned, on an ancestor."""
    following = Following(recorded.path, keep=lambda name: name.startswith("kept"))
    with recorded.span("kept a"), recorded.span("filtered"), recorded.span("filtered too"):
        recorded.event("inside")
        error_in(recorded, "filtered")
        with recorded.span("kept b"):
            recorded.event("inside b")
        following.poll()
    with recorded.span("filtered"):
        with recorded.span("kept c"):
            pass
        error_in(recorded, "filtered")
    recorded.event("alone")
    recorded.finish()
    following.to_end()
    ids = {r.name: r.id for r in following.of("start")}
    assert list(ids) == ["kept a", "kept b", "kept c"]
    parents = {r.name: r.parent for r in following.of("start")}
    assert parents == {"kept a": None, "kept b": ids["kept a"], "kept c": None}
    assert [(r.name, r.span) for r in following.of("event")] == [
        ("inside b", ids["kept b"]),
        ("alone", None),
    ]
    assert [r.span for r in following.of("error")] == [ids["kept a"], None]
    following.check()


def test_error(recorded: Run) -> None:
    """The error of a span comes before its stop."""
    following = Following(recorded.path)
    error_in(recorded, "failing")
    recorded.finish()
    following.to_end()
    assert [(r.type, r.name) for r in following.records] == [
        ("start", "failing"),
        ("error", "error"),
        ("stop", "failing"),
    ]
    assert following.records[1].attributes["exception_message"] == "no"
    assert following.of("stop")[0].status == "error"
    following.check()


def test_error_that_is_just_being_written(recorded: Run, monkeypatch: pytest.MonkeyPatch) -> None:
    """Also looks before and after it is written, and before the span has ended, give the error first."""
    following = Following(recorded.path)
    write_error = Journal.write_error

    def look(*arguments: Any) -> None:
        following.poll()
        write_error(*arguments)
        following.poll()

    monkeypatch.setattr(Journal, "write_error", look)
    error_in(recorded, "failing")
    following.poll()
    assert [r.type for r in following.records] == ["start", "error", "stop"]


@pytest.mark.parametrize("is_known", [False, True])
def test_ended_while_it_is_read(
    recorded: Run, monkeypatch: pytest.MonkeyPatch, is_known: bool
) -> None:
    """A span that changes and ends in the midst of a look stops with what it changed to."""
    following = Following(recorded.path)
    outer = recorded.span("outer", a=1)
    outer.__enter__()
    if is_known:
        following.poll()
    read = rows._column
    changes = [{"b": 2}]

    def change_first(fd: int, column: int, begin: int, end: int) -> bytes:
        if column == rows.START and changes:
            outer.set(**changes.pop())
            outer.__exit__(None, None, None)
        return read(fd, column, begin, end)

    with monkeypatch.context() as patch:
        patch.setattr(rows, "_column", change_first)
        following.poll()
    following.poll()
    following.check()


def test_written_late(recorded: Run) -> None:
    """A row that was reserved, and is written after later ones (a signal handler's), is not missed."""
    for i in range(600):
        names.intern(SPAN, f"filtered {i}")
    following = Following(recorded.path, keep=lambda name: not name.startswith("filtered"))
    with recorded.span("first"):
        pass
    lane = current_lane()
    assert lane is not None
    slot = lane.reserve()
    with recorded.span("second"):
        following.poll()
    lane.metas[slot] = names.intern(SPAN, "reserved") << NAME_SHIFT
    following.poll()
    lane.starts[slot] = time.perf_counter_ns()
    following.poll()
    lane.ends[slot] = time.perf_counter_ns()
    following.poll()
    assert [r.name for r in following.of("stop")] == ["first", "second", "reserved"]
    following.check()


def test_error_from_outside(recorded: Run) -> None:
    """An event named error is an error, also if the user records it."""
    following = Following(recorded.path)
    recorded.event("error", exception_message="mine")
    (record,) = following.poll()
    assert (record.type, record.attributes) == ("error", {"exception_message": "mine"})


def test_artifacts_and_values(recorded: Run) -> None:
    """An artifact and a logged value that is not a number are events."""
    following = Following(recorded.path)
    recorded.artifact(b"content", "weights", epoch=3)
    recorded.log({"note": "text"}, step=7)
    recorded.flush()
    artifact, value = sorted(following.poll(), key=lambda record: record.name)
    assert (artifact.type, artifact.name) == ("event", "artifact")
    file_fields = artifact.attributes
    assert (file_fields["name"], file_fields["size"], file_fields["epoch"]) == ("weights", 7, 3)
    assert len(file_fields["sha256"]) == 64
    assert (value.name, value.attributes) == ("note", {"value": "text", "step": 7})


def test_late_attributes(recorded: Run) -> None:
    """Attributes from elsewhere are in the stop; those that come after it are a record."""
    journal = current_journal()
    assert journal is not None
    following = Following(recorded.path)
    with recorded.span("outer", a=1):
        (start,) = following.poll()
        journal.write_event("attributes", "", {"b": 2}, span=start.id)
        assert following.poll() == []
    (stop,) = following.poll()
    assert stop.attributes == {"a": 1, "b": 2}
    journal.write_event("attributes", "", {"c": 3}, span=start.id)
    (late,) = following.poll()
    assert (late.type, late.span, late.attributes) == ("attributes", start.id, {"c": 3})


def test_attributes_of_filtered_spans(recorded: Run) -> None:
    """Late attributes of a span that is not kept are not returned."""
    journal = current_journal()
    assert journal is not None
    following = Following(recorded.path, keep=lambda name: name == "outer")
    with recorded.span("outer"), recorded.span("inner"):
        inner = following.poll()[0].id + 1
        journal.write_event("attributes", "", {"b": 2}, span=inner)
    (stop,) = following.poll()
    assert (stop.name, stop.attributes) == ("outer", {})


def test_before_anything(tmp_path: Path) -> None:
    """A folder without a process gives nothing, and is not over."""
    follower = Follower(tmp_path / "nothing")
    assert follower.poll() == []
    assert not follower.over
    assert follower.document == {}


def test_new_names(recorded: Run) -> None:
    """Names that come up while it is followed are found."""
    following = Following(recorded.path, keep=lambda name: name.isdecimal() and int(name) % 3 == 0)
    for i in range(300):
        with recorded.span(str(i)):
            pass
        if i % 7 == 0:
            following.poll()
    following.poll()
    assert [r.name for r in following.of("stop")] == [str(i) for i in range(0, 300, 3)]
    following.check()


def test_given_times(recorded: Run) -> None:
    """Spans and events with times of their own come in order, whatever these are."""
    following = Following(recorded.path)
    now = time.perf_counter_ns()
    hour = 3600 * 10**9
    late = open_span(intern_name("late"), start=now + hour)
    inside = open_span(intern_name("inside"), start=now - hour)
    recorded.event("here")
    following.poll()
    with recorded.span("quick"):
        pass
    following.poll()
    assert {r.name for r in following.of("start")} == {"late", "inside", "quick"}
    inside._stop(now - hour // 2)
    late._stop(now + hour)
    following.poll()
    assert [r.name for r in following.of("stop")] == ["quick", "inside"]
    recorded.finish()
    following.to_end()
    following.check()


def test_one_offset(recorded: Run) -> None:
    """Wall clock times of a process all come from its clock by the same difference."""
    following = Following(recorded.path)
    with recorded.span("outer"):
        following.poll()
        for _ in range(3):
            recorded.flush()
    recorded.finish()
    following.to_end()
    assert process_folder(recorded.path) == following.follower.folder
    following.check()
