"""The logging exporter: readable lines that no value can break."""

from __future__ import annotations

import logging
from typing import Any

import pytest

import stepwell
from stepwell import Run
from stepwell.exporters import EventRecord, LoggingExporter, Source, SpanRecord
from tests.exporters.reading_back import train

SOURCE = Source("r-1", 2, 3, 4, "p", "node", 7, "app")


def logged(caplog: pytest.LogCaptureFixture, *records: Any, **options: Any) -> list[str]:
    """The lines of these records."""
    exporter = LoggingExporter("test.exports", **options)
    exporter.open(SOURCE)
    with caplog.at_level(1, "test.exports"):
        exporter.export(records)
    return caplog.messages


def test_the_lines(caplog: pytest.LogCaptureFixture) -> None:
    """A line has the type, name, run, duration, status and attributes."""
    attributes = {"i": 3, "note": "two words", "path": "/a/b", "none": None, "list": [1, "x"]}
    lines = logged(
        caplog,
        SpanRecord("start", 8, None, "all", None, "T", 5, None, "open", {}),
        SpanRecord("stop", 9, 8, "my fit", "c", "T", 10, 2_500_010, "error", attributes),
        EventRecord("event", "tick", 9, "T", 20, {"a b": True}),
        EventRecord("error", "error", None, "T", 20, {"exception_type": "ValueError"}),
    )
    place = "run=r-1 attempt=2 rank=3"
    assert lines == [
        f"span start all {place} id=8",
        f'span stop "my fit" {place} id=9 parent=8 took 2.5 ms status=error | '
        'i=3 note="two words" path=/a/b list=[1, "x"]',
        f'event tick {place} span=9 | "a b"=true',
        f"error error {place} | exception_type=ValueError",
    ]
    assert [record.levelname for record in caplog.records] == ["INFO", "ERROR", "INFO", "ERROR"]


@pytest.mark.parametrize(
    "text",
    [
        "two\nlines",
        "\r",
        "\x1b[31mred",
        "a=b | c",
        'quo"te',
        "%s %d",
        "\u2028",
        "\u202e",
        "\ud800",
        "",
    ],
)
def test_no_text_can_break_a_line(caplog: pytest.LogCaptureFixture, text: str) -> None:
    """As a value, as a name, as the name of an attribute and deep inside a value."""
    record = EventRecord("event", text, None, "T", 1, {text: text, "deep": [{text: text}]})
    (line,) = logged(caplog, record)
    line.encode()
    assert line.isprintable()
    # Within quotes, so that no part of it can be taken for a field.
    assert line.count('"') >= 2


def test_large_and_foreign_texts_are_kept(caplog: pytest.LogCaptureFixture) -> None:
    """Letters of any language are readable."""
    (line,) = logged(caplog, EventRecord("event", "größe", None, "T", 1, {"名前": "値" * 50}))
    assert line.startswith("event größe ")
    assert line.endswith(f"| 名前={'値' * 50}")


def test_a_run(recorded: Run, caplog: pytest.LogCaptureFixture) -> None:
    """Every span and event of a run, at the level that was chosen."""
    recorded.add_exporter(LoggingExporter(level="DEBUG"))
    with caplog.at_level(logging.DEBUG, "stepwell.export"):
        train(0, 10)
        recorded.finish()
    found = [r for r in caplog.records if r.name == "stepwell.export"]
    assert {r.levelno for r in found} == {logging.DEBUG}
    for name in ("outer", "item", "plain"):
        ended = [
            r
            for r in found
            if r.getMessage().startswith((f"span complete {name} ", f"span stop {name} "))
        ]
        assert len(ended) == 10
    assert len([r for r in found if r.getMessage().startswith("event tick ")]) == 10


def test_a_handler_that_records(recorded: Run) -> None:
    """Records of a user's log handler are not logged again."""
    lines: list[str] = []

    class Handler(logging.Handler):
        def emit(self, record: logging.LogRecord) -> None:
            lines.append(record.getMessage())
            stepwell.event("logged", line=record.getMessage())
            with stepwell.span("logging"):
                pass

    logger = logging.Logger("mine", logging.INFO)
    logger.addHandler(Handler())
    recorded.add_exporter(LoggingExporter(logger))
    train(0, 2)
    for _ in range(5):
        assert recorded.flush()
    recorded.finish()
    assert 8 <= len(lines) <= 14
    assert not [line for line in lines if "logged" in line or "logging" in line]
