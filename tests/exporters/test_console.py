"""The console exporter: a short line for each span and event."""

from __future__ import annotations

import io
import re
import sys
from typing import Any

import pytest

from stepwell import Run
from stepwell._core.text import duration
from stepwell.exporters import ConsoleExporter, EventRecord, Source, SpanRecord
from tests.exporters.reading_back import train

S = 1_000_000_000
SOURCE = Source("r-1", 0, 0, 4, "p", "node", 7, "app", {}, 100 * S)


def printed(*batches: list[Any], source: Source = SOURCE, **options: Any) -> str:
    """Return the lines of these records."""
    stream = io.StringIO()
    exporter = ConsoleExporter(stream, **options)
    exporter.open(source)
    for batch in batches:
        exporter.export(batch)
    return stream.getvalue()


def span(
    type: str,
    id: int,
    parent: int | None,
    name: str,
    start: float,
    end: float | None = None,
    **more: Any,
) -> SpanRecord:
    status = more.pop("status", "open" if end is None else "ok")
    begin, over = round((100 + start) * S), None if end is None else round((100 + end) * S)
    return SpanRecord(type, id, parent, name, None, "T", begin, over, status, more)


def test_a_page() -> None:
    """Times since the start, indented names, durations and attributes below each other."""
    tick = EventRecord("event", "metrics", 2, "T", 102 * S, {"loss": 0.25, "step": 10})
    late = EventRecord("attributes", "x", 2, "T", 102 * S, {"a": 1})
    about = {"exception_type": "ValueError", "exception_message": "no\nway"}
    error = EventRecord("error", "error", 2, "T", 103 * S, about)
    page = printed(
        [
            span("start", 1, None, "application", 0),
            span("complete", 3, 1, "model_init", 0.5, 0.7421, layers=3),
        ],
        [span("start", 2, 1, "training_loop", 1), tick, late],
        [error, span("stop", 2, 1, "training_loop", 1, 200, status="error")],
        [span("stop", 1, None, "application", 0, 7300)],
    )
    assert page.splitlines() == [
        "    0.000 s  application …",
        "    0.742 s    model_init                                       242 ms  layers=3",
        "    1.000 s    training_loop …",
        "    2.000 s      · metrics                                              loss=0.25 step=10",
        '    3.000 s      ! ValueError                                           "no\\nway"',
        "  200.000 s    training_loop                                3 min 19 s  error",
        " 7300.000 s  application                                    2 h 01 min",
    ]


@pytest.mark.parametrize(
    ("nanoseconds", "text"),
    [
        (0, "0 µs"),
        (1_500, "1.5 µs"),
        (999_400, "999 µs"),
        (999_900, "1 ms"),
        (12_345_678, "12.3 ms"),
        (999_900_000, "1 s"),
        (59_940_000_000, "59.9 s"),
        (99_960_000_000, "1 min 40 s"),
        (3_599_600_000_000, "1 h 00 min"),
        (90_061_000_000_000, "25 h 01 min"),
    ],
)
def test_durations(nanoseconds: int, text: str) -> None:
    """The unit suits the number."""
    assert duration(nanoseconds) == text


def test_many_attributes_are_cut() -> None:
    """A line stays short: six attributes, and none of them long."""
    page = printed([span("complete", 1, None, "a", 0, 1, **{f"k{i}": "x" * 99 for i in range(9)})])
    (line,) = page.splitlines()
    assert line.endswith(" (+3)")
    assert line.count("x" * 40 + "…") == 6
    assert "x" * 41 not in line


def test_colours_only_on_a_terminal(monkeypatch: pytest.MonkeyPatch) -> None:
    """A file gets none, a terminal does unless NO_COLOR is set; the texts are the same."""
    records = [span("complete", 1, None, "bad", 0, 1, status="error")]
    plain = printed(records)
    assert "\x1b" not in plain

    class Terminal(io.StringIO):
        def isatty(self) -> bool:
            return True

    monkeypatch.delenv("NO_COLOR", raising=False)
    monkeypatch.setenv("TERM", "xterm")
    pages = []
    for colour in ("", "1"):
        monkeypatch.setenv("NO_COLOR", colour)
        stream = Terminal()
        exporter = ConsoleExporter(stream)
        exporter.open(SOURCE)
        exporter.export(records)
        pages.append(stream.getvalue())
    assert "\x1b[31m" in pages[0]
    assert re.sub(r"\x1b\[\d+m", "", pages[0]).rstrip() == plain.rstrip()
    assert pages[1] == plain


def test_lines_fit_the_terminal(monkeypatch: pytest.MonkeyPatch) -> None:
    """Lines that are too long are cut, not wrapped."""

    class Terminal(io.StringIO):
        def isatty(self) -> bool:
            return True

    monkeypatch.setenv("COLUMNS", "100")
    stream = Terminal()
    exporter = ConsoleExporter(stream, colour=False)
    exporter.open(SOURCE)
    exporter.export([span("complete", 1, None, "a", 0, 1, text="x" * 30, more="y" * 30)])
    (line,) = stream.getvalue().splitlines()
    assert len(line) == 100
    assert line.endswith("x…")


def test_rank_0_speaks_for_all() -> None:
    """Unless all are asked to, each with its rank."""
    other = Source("r", 0, 2, 4, "p", "node", 7, "app", {}, 100 * S)
    records = [span("complete", 1, None, "a", 0, 1)]
    assert printed(records, source=other) == ""
    assert printed(records, source=other, all_ranks=True).startswith("[2]     1.000 s  a ")


def test_a_stream_that_knows_few_letters() -> None:
    """Characters that it cannot encode are written as escapes."""
    raw = io.BytesIO()
    exporter = ConsoleExporter(io.TextIOWrapper(raw, encoding="ascii"))
    exporter.open(SOURCE)
    exporter.export([span("start", 1, None, "größe", 0)])
    assert rb"gr\xf6\xdfe \u2026" in raw.getvalue()


def test_standard_error(recorded: Run, capsys: pytest.CaptureFixture[str]) -> None:
    """It prints to the current ``sys.stderr``, even if that is replaced."""
    recorded.add_exporter(ConsoleExporter())
    train(0, 3)
    recorded.finish()
    captured = capsys.readouterr()
    assert captured.out == ""
    names = [re.match(r" *[\d.]+ s {2,}(· )?(\w+)", line) for line in captured.err.splitlines()]
    found = [match[2] for match in names if match]
    for name in ("outer", "item", "plain", "tick"):
        assert found.count(name) >= 3


def test_no_standard_error(recorded: Run, monkeypatch: pytest.MonkeyPatch) -> None:
    """Without standard error, nothing is printed."""
    monkeypatch.setattr(sys, "stderr", None)
    recorded.add_exporter(ConsoleExporter())
    train(0, 1)
    assert recorded.flush()
    assert recorded.exporters[0].failures == 0
    recorded.finish()


def test_depths_are_not_remembered_for_ever(monkeypatch: pytest.MonkeyPatch) -> None:
    """A span that is open is known however many end meanwhile; memory stays flat."""
    monkeypatch.setattr("stepwell.exporters.console.REMEMBERED", 10)
    stream = io.StringIO()
    exporter = ConsoleExporter(stream)
    exporter.open(SOURCE)
    exporter.export([span("start", 1, None, "all", 0)])
    exporter.export([span("complete", i, 1, "one", 0, 1) for i in range(2, 100)])
    exporter.export([span("complete", 100, 1, "last", 0, 1)])
    assert "s    last" in stream.getvalue()
    assert len(exporter._ended) == 10
