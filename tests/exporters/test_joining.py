"""Short spans as one record."""

from __future__ import annotations

from stepwell.exporters import EventRecord, Record, SpanRecord
from stepwell.exporters.record_format import join_short


def start(id: int, thread: str = "T") -> SpanRecord:
    return SpanRecord("start", id, None, f"s{id}", None, thread, id, None, "open", {})


def stop(id: int, thread: str = "T") -> SpanRecord:
    return SpanRecord("stop", id, None, f"s{id}", None, thread, id, id + 9, "ok", {"end": id})


def event(span: int, thread: str = "T") -> EventRecord:
    return EventRecord("event", "e", span, thread, span, {})


def summary(records: list[Record]) -> str:
    return " ".join(f"{r.type}:{getattr(r, 'id', '')}" for r in join_short(records))


def test_a_span_with_nothing_inside() -> None:
    """Its one record is its stop under another name."""
    (joined,) = join_short([start(1), stop(1)])
    assert joined == SpanRecord("complete", 1, None, "s1", None, "T", 1, 10, "ok", {"end": 1})


def test_what_is_inside_comes_behind_the_start() -> None:
    """A span around others, or around an event, keeps its two records."""
    spans = [start(1), start(2), stop(2), start(3), event(3), stop(3), stop(1)]
    assert summary(spans) == "start:1 complete:2 start:3 event: stop:3 stop:1"


def test_threads_do_not_matter_to_each_other() -> None:
    """Records of another thread do not keep a start and a stop apart."""
    spans = [start(1, "A"), start(2, "B"), event(9, "C"), stop(1, "A"), stop(2, "B")]
    assert summary(spans) == "event: complete:1 complete:2"


def test_halves() -> None:
    """A start or a stop whose other half is not among the records stays what it is."""
    assert summary([stop(1), start(2)]) == "stop:1 start:2"
    assert summary([start(1), stop(2)]) == "start:1 stop:2"
    assert summary([]) == ""
