"""The timeline: boxes of a time window, single spans, and spans that contain a text."""

from __future__ import annotations

from stepwell.analysis.detail import search_spans, span_detail, timeline_at
from stepwell.dashboard.answers.values import Json, plain
from stepwell.dashboard.parameters import Parameters
from stepwell.reading import RecordedRun


def timeline_answer(run: RecordedRun, given: Parameters) -> Json:
    """Return the boxes of a time window."""
    window = timeline_at(
        run,
        given.whole("start"),
        given.whole("end"),
        given.count("width", 1500, 50, 8192),
        ranks=given.wholes("rank"),
        offset=given.count("offset", 0, 0, 1 << 20),
        lanes=given.count("lanes", 40, 1, 200),
        budget_s=3.0,
    )
    answer: Json = plain(window)
    for lane in answer["lanes"]:
        lane["id"] = [None if identity < 0 else identity for identity in lane["id"]]
    return answer


def search_answer(run: RecordedRun, given: Parameters) -> Json:
    """Return the spans that contain a text."""
    text = given.text("q")
    if text is None:
        return {"hits": [], "more": False, "stats": []}
    answer: Json = plain(search_spans(run, text, given.count("limit", 200, 1, 1000)))
    return answer


def span_answer(run: RecordedRun, span: int, start: int | None) -> Json | None:
    """Return one span with its attributes and events, None if there is none with this id."""
    detail = span_detail(run, span, start)
    return None if detail is None else plain(detail)
