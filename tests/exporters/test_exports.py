"""Exporters of real runs: every record arrives, and none of them can disturb training or another."""

from __future__ import annotations

import logging
import os
import subprocess
import sys
import threading
import time
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import pytest

import stepwell
from stepwell import Run, StepwellError
from stepwell._core import errors
from stepwell.exporters import (
    ExportCustomizationMode,
    ExportFilter,
    FileExporter,
    Record,
    SpanRecord,
)
from stepwell.telemetry import deliveries, feed
from tests.durability.helpers import PRELUDE
from tests.exporters.reading_back import (
    Keeps,
    exported_events,
    exported_spans,
    lines_of,
    numbers,
    recorded_events,
    recorded_spans,
    train,
)
from tests.harness import environment, wait_until
from tests.harness.marks import others_in_full


@pytest.fixture
def run(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Run:
    """A run that is being recorded; exporters that fail are tried again soon."""
    errors.counts.clear()
    monkeypatch.setattr(errors, "_quiet", False)
    monkeypatch.setattr(feed, "FIRST_DELAY", 0.01)
    monkeypatch.setattr(feed, "QUARANTINE_DELAY", 0.5)
    return stepwell.init("test", dir=tmp_path / "runs")


def test_every_record_arrives(run: Run) -> None:
    """Spans and events are what the run's tables say, in the order of their times."""
    exporter = Keeps()
    run.add_exporter(exporter)
    train(0, 30, pause=lambda: time.sleep(0.03))
    with pytest.raises(ZeroDivisionError), stepwell.span("fails"):
        print(1 / 0)
    run.finish()
    assert exported_spans(exporter.records) == recorded_spans(run)
    assert len(recorded_spans(run)) == 91
    assert exported_events(exporter.records) == recorded_events(run)
    assert len(recorded_events(run)) == 31
    (delivery,) = run.exporters
    assert (delivery.name, delivery.failures, delivery.last_error) == ("Keeps", 0, None)
    assert delivery.sent == len(exporter.records)
    assert exporter.calls[0] == "open"
    assert exporter.calls[-2:] == ["flush", "close"]
    assert set(exporter.calls[1:-2]) <= {"export", "flush"}


def test_whose_records_they_are(run: Run) -> None:
    """``open`` is called before the first record."""
    run.label(team="blue")
    exporter = Keeps()
    run.add_exporter(exporter)
    run.finish()
    (source,) = exporter.sources
    (process,) = stepwell.open_run(run.path).processes().collect().to_dicts()
    assert (source.run, source.attempt, source.rank, source.world_size) == (run.id, 0, 0, 1)
    assert (source.application, source.labels) == ("test", {"team": "blue"})
    assert (source.process, source.host, source.pid) == (
        process["process"],
        process["host"],
        os.getpid(),
    )
    assert source.started_ns == process["started_ns"]


def test_what_was_recorded_before_it_was_added(run: Run) -> None:
    """An exporter that comes late gets all from the beginning."""
    train(0, 10)
    early = Keeps()
    run.add_exporter(early)
    assert run.flush()
    late = Keeps()
    run.add_exporter(late)
    train(10, 10)
    run.finish()
    assert numbers(early.records) == numbers(late.records) == list(range(20))


def test_a_span_is_there_while_it_is_open(run: Run) -> None:
    """A long span is given out when it begins and again when it ends."""
    exporter = Keeps()
    run.add_exporter(exporter)
    with stepwell.span("long"):
        assert run.flush()
        (start,) = [r for r in exporter.records if r.name == "long"]
    run.finish()
    start, stop = (r for r in exporter.records if r.name == "long")
    assert isinstance(start, SpanRecord)
    assert isinstance(stop, SpanRecord)
    assert (start.type, start.status, start.end_ns) == ("start", "open", None)
    assert (stop.type, stop.status) == ("stop", "ok")
    assert (start.id, start.start_ns) == (stop.id, stop.start_ns)


def test_flush_waits_for_the_exporters(run: Run) -> None:
    """After it they have all that was recorded before it."""
    exporter = Keeps()
    run.add_exporter(exporter)
    for i in range(20):
        train(i, 1)
        assert run.flush()
        assert numbers(exporter.records) == list(range(i + 1))


def test_flush_does_not_wait_for_what_comes_later(run: Run) -> None:
    """A thread that records without a pause does not hold it up."""
    exporter = Keeps()
    run.add_exporter(exporter)
    stop = threading.Event()

    def work() -> None:
        while not stop.is_set():
            with stepwell.span("busy"):
                time.sleep(0.0001)

    thread = threading.Thread(target=work)
    thread.start()
    try:
        for i in range(3):
            train(i, 1)
            assert run.flush(timeout=60)
            assert numbers(exporter.records) == list(range(i + 1))
    finally:
        stop.set()
        thread.join()


def test_flush_after_an_error(run: Run) -> None:
    """Also the spans that an exception has just gone through are there."""
    exporter = Keeps()
    run.add_exporter(exporter)
    for i in range(10):
        with pytest.raises(ValueError, match="no"), stepwell.span("item", i=i), stepwell.span("in"):
            raise ValueError("no")
        assert run.flush()
        assert numbers(exporter.records) == list(range(i + 1))
        assert exporter.records[-1].name == "item"


def test_filters(run: Run) -> None:
    """Each exporter has its own; children hang on the nearest ancestor that is exported."""
    only = ExportFilter(ExportCustomizationMode.WHITELIST_SPANS, ["a", "c"])
    everything = ExportFilter(ExportCustomizationMode.EXPORT_ALL_SPANS)
    default, some, whole = Keeps(), Keeps(), Keeps()
    run.add_exporter(default)
    run.add_exporter(some, only)
    run.add_exporter(whole, everything)
    with stepwell.span("a"), stepwell.span("model_forward"), stepwell.span("c"):
        pass
    run.finish()

    def parents(exporter: Keeps) -> dict[str, str | None]:
        spans = {r.id: r for r in exporter.records if isinstance(r, SpanRecord)}
        return {r.name: None if r.parent is None else spans[r.parent].name for r in spans.values()}

    assert parents(default) == parents(some) == {"a": None, "c": "a"}
    assert parents(whole) == {"a": None, "model_forward": "a", "c": "model_forward"}


class Fails(Keeps):
    """Raises until it is mended."""

    broken = True

    def export(self, records: Sequence[Record]) -> None:
        if self.broken:
            raise OSError(28, "No space left on device")
        super().export(records)


@pytest.mark.full
def test_a_failing_exporter(run: Run, caplog: pytest.LogCaptureFixture) -> None:
    """There is one warning, others are not affected, and it gets all records when it works again."""
    failing, working = Fails(), Keeps()
    run.add_exporter(failing)
    run.add_exporter(working)
    train(0, 5)
    wait_until(lambda: run.exporters[0].failures > 5)
    train(5, 5)
    wait_until(lambda: numbers(working.records) == list(range(10)))
    (said,) = [message for message in caplog.messages if "Fails" in message]
    assert "failed 5 times in a row (OSError: [Errno 28] No space left on device)" in said
    assert (run.exporters[0].sent, run.exporters[1].failures) == (0, 0)
    failing.broken = False
    wait_until(lambda: numbers(failing.records) == list(range(10)))
    train(10, 5)
    run.finish()
    assert exported_spans(failing.records) == exported_spans(working.records) == recorded_spans(run)
    assert len([message for message in caplog.messages if "Fails" in message]) == 1


@pytest.mark.full
def test_an_exporter_that_fails_to_the_end(
    run: Run, caplog: pytest.LogCaptureFixture, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Finishing does not wait for it for long, and says what is missing."""
    monkeypatch.setenv("STEPWELL_FINISH_TIMEOUT", "600")
    run.add_exporter(Fails())
    (delivery,) = run.exporters
    train(0, 5)
    wait_until(lambda: delivery.failures > 5)
    assert not run.flush()
    failures = delivery.failures
    run.finish()
    assert delivery.failures < failures + 100, "it was not tried until the time was up"
    assert "Exporter Fails is missing records (OSError: [Errno 28]" in caplog.messages[-1]
    assert "The run folder has all of them" in caplog.messages[-1]


class Hangs(Keeps):
    """Does not return from ``export`` until it is let go."""

    def __init__(self) -> None:
        super().__init__()
        self.go = threading.Event()
        self.inside = threading.Event()

    def export(self, records: Sequence[Record]) -> None:
        self.inside.set()
        assert self.go.wait(60)
        super().export(records)


def test_an_exporter_that_hangs(
    run: Run, caplog: pytest.LogCaptureFixture, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Training, the other exporters and the end of the run do not wait for it."""
    monkeypatch.setenv("STEPWELL_FINISH_TIMEOUT", "0.7")
    hanging, working = Hangs(), Keeps()
    run.add_exporter(hanging)
    run.add_exporter(working)
    train(0, 5)
    assert hanging.inside.wait(30)
    assert not run.flush(timeout=0.3)
    train(5, 5)
    wait_until(lambda: numbers(working.records) == list(range(10)))
    began = time.monotonic()
    run.finish()
    assert time.monotonic() - began > 0.6
    assert not hanging.go.is_set()
    wait_until(lambda: working.calls[-1] == "close")
    (said,) = [message for message in caplog.messages if "Hangs" in message]
    assert "is missing records (not done after 0.7 s)" in said
    hanging.go.set()
    wait_until(lambda: hanging.calls[-1:] == ["close"])


def test_the_time_for_the_end_is_five_minutes(
    monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    """Unless the environment says otherwise, in a number."""
    assert deliveries.finish_timeout() == 300.0
    monkeypatch.setenv("STEPWELL_FINISH_TIMEOUT", "soon")
    assert deliveries.finish_timeout() == 300.0
    assert "write a number of seconds" in caplog.text


def test_a_slow_exporter_gets_everything_in_time(run: Run) -> None:
    """Slowness costs training nothing: records wait in the journal."""
    exporter = Hangs()
    run.add_exporter(exporter)
    train(0, 100)
    assert exporter.inside.wait(30)
    train(100, 100)
    exporter.go.set()
    run.finish()
    assert numbers(exporter.records) == list(range(200))


def test_no_work_in_the_training_thread(run: Run) -> None:
    """Every call comes from a daemon thread with a descriptive name."""
    threads: set[threading.Thread] = set()

    class Looks(Keeps):
        def __getattribute__(self, name: str) -> Any:
            if name in ("open", "export", "flush", "close"):
                threads.add(threading.current_thread())
            return super().__getattribute__(name)

    run.add_exporter(Looks())
    threads.clear()
    train(0, 5)
    run.finish()
    (thread,) = threads
    assert thread.daemon
    assert thread.name == "stepwell-export-Looks"
    assert not thread.is_alive()


def test_added_twice(run: Run, tmp_path: Path) -> None:
    """The same exporter, or one that equals it, is not fed twice."""
    exporter = Keeps()
    for _ in range(2):
        run.add_exporter(exporter)
        run.add_exporter(FileExporter(tmp_path / "x.json"))
    assert len(run.exporters) == 2
    train(0, 5)
    run.finish()
    assert numbers(exporter.records) == list(range(5))


def test_used_for_one_run_after_another(tmp_path: Path) -> None:
    """An exporter is opened again for each."""
    exporter = Keeps()
    for i in range(2):
        with stepwell.init(f"run {i}", dir=tmp_path) as run:
            run.add_exporter(exporter)
            train(i, 1)
    assert numbers(exporter.records) == [0, 1]
    assert [source.application for source in exporter.sources] == ["run 0", "run 1"]
    assert exporter.calls.count("close") == 2


def test_an_exporter_that_records_is_not_fed_with_that(run: Run) -> None:
    """Its own records are in the run, but are not exported again."""

    class Records(Keeps):
        def export(self, records: Sequence[Record]) -> None:
            with stepwell.span("exporting"):
                stepwell.event("exported", count=len(records))
            super().export(records)

    exporter = Records()
    run.add_exporter(exporter)
    train(0, 3)
    for _ in range(5):
        assert run.flush()
    run.finish()
    assert numbers(exporter.records) == [0, 1, 2]
    assert {r.name for r in exporter.records} == {"outer", "item", "plain", "tick"}
    found = [span[0] for span in recorded_spans(run).values()]
    assert 1 <= found.count("exporting") == exporter.calls.count("export") <= 3


def test_what_is_no_exporter_is_refused(run: Run) -> None:
    """With what to write instead."""
    with pytest.raises(StepwellError, match=r"got the class Keeps: write Keeps\(…\)"):
        run.add_exporter(Keeps)
    with pytest.raises(StepwellError, match=r"must have a method export\(records\).*got 3"):
        run.add_exporter(3)
    assert run.exporters == []


def test_too_late(run: Run, caplog: pytest.LogCaptureFixture) -> None:
    """A finished run takes no exporter; that is a warning."""
    run.finish()
    run.add_exporter(Keeps())
    assert run.exporters == []
    assert "no exporter was added" in caplog.text


@pytest.mark.full
def test_a_recovery_is_told_quietly(run: Run, caplog: pytest.LogCaptureFixture) -> None:
    """Whoever reads the details learns that it works again."""
    failing = Fails()
    with caplog.at_level(logging.INFO, "stepwell"):
        run.add_exporter(failing)
        train(0, 1)
        wait_until(lambda: run.exporters[0].failures > 5)
        failing.broken = False
        wait_until(lambda: failing.records)
        run.finish()
    assert "Exporter Fails works again." in caplog.messages


def test_an_exporter_that_flushes_the_run(run: Run) -> None:
    """It does not wait for itself."""

    class Flushes(Keeps):
        def export(self, records: Sequence[Record]) -> None:
            run.flush(timeout=600)
            super().export(records)

    exporter = Flushes()
    run.add_exporter(exporter)
    train(0, 1)
    wait_until(lambda: numbers(exporter.records) == [0])
    train(1, 1)
    run.finish()
    assert numbers(exporter.records) == [0, 1]


def run_interpreter(code: str, folder: Path) -> subprocess.CompletedProcess[str]:
    """Run a program in an interpreter that has imported nothing yet, and that really ends."""
    command = [sys.executable, "-c", PRELUDE + code]
    return subprocess.run(
        command, cwd=folder, env=environment(), capture_output=True, text=True, timeout=120
    )


@pytest.mark.parametrize(
    "ending",
    others_in_full(["", "raise ValueError('no')", "sys.exit(3)", "1 / 0"], ["sys.exit(3)"]),
)
def test_the_end_of_a_program(tmp_path: Path, ending: str) -> None:
    """A program that never finishes its run exports all of it all the same."""
    code = (
        "from stepwell.exporters import FileExporter\n"
        "run = init('end', dir='runs')\n"
        "run.add_exporter(FileExporter('t.json'))\n"
        "for i in range(3000):\n"
        "    with span('item', i=i): pass\n"
    )
    run_interpreter(code + ending, tmp_path)
    ended = [x for x in lines_of(tmp_path / "t.json") if x["type"] in ("stop", "complete")]
    assert [x["attributes"]["i"] for x in ended] == list(range(3000))


IMPORTS = """
import builtins, io, threading
import stepwell.follower.trace
from stepwell.exporters import *

run = init("imports", dir="runs")
found = []
original = builtins.__import__

def watched(*arguments, **options):
    before = set(sys.modules)
    module = original(*arguments, **options)
    if threading.current_thread().name.startswith("stepwell-export"):
        found.extend(set(sys.modules) - before)
    return module

class Fails(Exporter):
    def export(self, records):
        raise OSError("no")

for exporter in (FileExporter("t.json"), LoggingExporter(), ConsoleExporter(io.StringIO()), Fails()):
    run.add_exporter(exporter)
builtins.__import__ = watched
for i in range(20_000):
    with span("item", i=i, odd="\\ud800" if i == 5 else ""):
        if i < 50:
            event("tick", value=float("nan"))
run.flush()
run.finish()
print(found, [delivery.sent for delivery in run.exporters])
"""


@pytest.mark.full
def test_nothing_is_imported_in_an_export_thread(tmp_path: Path) -> None:
    """A process forked meanwhile would find the module half made and its lock held for ever."""
    done = run_interpreter(IMPORTS, tmp_path)
    assert done.stdout.strip() == "[] [40050, 40050, 40050, 0]", done.stderr
