"""The OTLP exporter by itself: records in, OTLP at a receiver out."""

from __future__ import annotations

import dataclasses
import subprocess
import sys
from collections.abc import Iterator

import pytest

from stepwell._core.errors import StepwellError
from stepwell.exporters import OTLPExporter
from stepwell.exporters.otlp.spans import MOST_EVENTS
from stepwell.follower.records import EventRecord, SpanRecord
from stepwell.telemetry.exporter import Source
from tests.exporters.otlp_receiver import Receiver, Span

T0 = 1_700_000_000_000_000_000
SOURCE = Source(
    run="run-1",
    attempt=2,
    rank=3,
    world_size=8,
    process="rank-00003.attempt-2.pid-77",
    host="node7",
    pid=77,
    application="pretraining",
    labels={"session_tag": "s1", "nested": {"a": [1]}, "nothing": None},
    started_ns=T0,
)


def start(id: int, name: str, parent: int | None = None, at: int = 0, **attributes) -> SpanRecord:
    return SpanRecord("start", id, parent, name, None, "main", T0 + at, None, "open", attributes)


def stop(
    id: int,
    name: str,
    parent: int | None = None,
    at: int = 0,
    until: int = 10,
    status: str = "ok",
    kind: str = "stop",
    **attributes,
) -> SpanRecord:
    return SpanRecord(
        kind, id, parent, name, "compute", "main", T0 + at, T0 + until, status, attributes
    )


def event(name: str, span: int | None, at: int = 5, type: str = "event", **more) -> EventRecord:
    return EventRecord(type, name, span, "main", T0 + at, more)


@pytest.fixture
def receiver() -> Iterator[Receiver]:
    with Receiver() as listening:
        yield listening


def exporter_for(receiver: Receiver, source: Source = SOURCE, **options) -> OTLPExporter:
    exporter = OTLPExporter(receiver.url, **{"timeout": 1.0, **options})
    exporter.open(source)
    return exporter


def send(receiver: Receiver, *batches, **options) -> dict[str, Span]:
    """Export batches; returns what arrived, by name."""
    exporter = exporter_for(receiver, **options)
    for batch in batches:
        exporter.export(batch)
    exporter.close()
    return {span.name: span for span in receiver.spans}


def test_a_span_arrives_with_its_parent_times_and_attributes(receiver: Receiver) -> None:
    """Names, parent links, nanoseconds and attributes are those of the records."""
    found = send(
        receiver,
        [start(1, "application"), start(2, "training_loop", 1, at=100)],
        [stop(2, "training_loop", 1, at=100, until=900, lr=0.1, steps=7, ok=True, kind_of="a")],
        [stop(1, "application", at=0, until=1000)],
    )
    loop, app = found["training_loop"], found["application"]
    assert (app.parent, loop.parent) == ("", app.id)
    assert app.trace == loop.trace
    assert (loop.start - T0, loop.end - T0) == (100, 900)
    assert loop.attributes == {
        "lr": 0.1,
        "steps": 7,
        "ok": True,
        "kind_of": "a",
        "stepwell.category": "compute",
        "thread.name": "main",
    }
    assert (loop.status, loop.scope[0]) == ("ok", "stepwell")


def test_the_resource_says_who_sends(receiver: Receiver) -> None:
    """Application, host, process, run, attempt, rank, labels, and the SDK's own entries."""
    resource = send(receiver, [stop(1, "a", kind="complete")])["a"].resource
    assert resource["service.name"] == "pretraining"
    assert resource["host.name"] == "node7"
    assert resource["process.pid"] == 77
    assert resource["stepwell.run.id"] == "run-1"
    assert resource["stepwell.attempt"] == 2
    assert resource["stepwell.rank"] == 3
    assert resource["stepwell.world_size"] == 8
    assert resource["stepwell.session_tag"] == "s1"
    assert resource["stepwell.nested"] == '{"a": [1]}'
    assert "stepwell.nothing" not in resource
    assert resource["telemetry.sdk.language"] == "python"


def test_values_that_otlp_does_not_know_are_made_into_ones_that_it_does(
    receiver: Receiver,
) -> None:
    """Nested values are JSON text, None is left out, an integer past 64 bits is text."""
    odd = {"list": [1, "b"], "dict": {"x": None}, "none": None, "big": 1 << 70, "half": "\ud800"}
    span = send(receiver, [stop(1, "a", kind="complete", **odd)])["a"]
    assert span.attributes["list"] == '[1, "b"]'
    assert span.attributes["dict"] == '{"x": null}'
    assert span.attributes["big"] == str(1 << 70)
    assert span.attributes["half"] == "?"
    assert "none" not in span.attributes


def test_events_go_out_with_their_span(receiver: Receiver) -> None:
    """Events wait for the end of their span, over several batches, and keep their times."""
    found = send(
        receiver,
        [start(1, "save"), event("begun", 1, at=3, size=5)],
        [event("done", 1, at=4)],
        [stop(1, "save")],
    )
    assert list(found) == ["save"]
    assert found["save"].events == [("begun", T0 + 3, {"size": 5}), ("done", T0 + 4, {})]


def test_an_error_is_an_exception_event_and_an_error_status(receiver: Receiver) -> None:
    """As OpenTelemetry writes exceptions: name, type, message, and the status of the span."""
    error = event("error", 1, type="error", exception_type="ValueError", exception_message="no")
    span = send(receiver, [start(1, "a"), error, stop(1, "a", status="error")])["a"]
    assert (span.status, span.message) == ("error", "no")
    assert span.events == [
        ("exception", T0 + 5, {"exception.type": "ValueError", "exception.message": "no"})
    ]


def test_a_span_that_caught_an_error_is_no_failure(receiver: Receiver) -> None:
    """The exception of a span that is not exported is an event of the one around it."""
    error = event("error", 1, type="error", exception_type="KeyError", exception_message="k")
    span = send(receiver, [start(1, "a"), error, stop(1, "a", status="ok")])["a"]
    assert (span.status, len(span.events)) == ("ok", 1)


def test_a_span_that_its_process_left_open_is_an_error(receiver: Receiver) -> None:
    """A span interrupted by a kill ends with an error status."""
    span = send(receiver, [start(1, "a")], [stop(1, "a", status="unfinished")])["a"]
    assert (span.status, span.message) == ("error", "the process ended before the span")


def test_a_late_event_is_a_span_of_no_length_below_its_own(receiver: Receiver) -> None:
    """An async checkpoint that succeeds after its span has ended is not lost."""
    found = send(
        receiver,
        [stop(1, "save_async", kind="complete")],
        [event("save_success", 1, at=500, path="/ckpt")],
    )
    late = found["save_success"]
    assert late.parent == found["save_async"].id
    assert (late.start - T0, late.end - T0) == (500, 500)
    assert late.attributes == {"path": "/ckpt", "stepwell.event": True}


def test_late_attributes_join_their_span_while_it_is_open(receiver: Receiver) -> None:
    """Attributes added from elsewhere are the span's; after its end they follow as an event."""
    more = EventRecord("attributes", "", 1, "other", T0 + 6, {"size": 9})
    found = send(receiver, [start(1, "a", x=1), more, stop(1, "a", x=1)], [more])
    assert found["a"].attributes["size"] == 9
    assert found["attributes"].parent == found["a"].id
    assert found["attributes"].attributes["size"] == 9


def test_an_event_without_a_span_stands_alone(receiver: Receiver) -> None:
    """It is a root span of no length."""
    found = send(receiver, [event("hello", None, at=7)])
    assert (found["hello"].parent, found["hello"].end - found["hello"].start) == ("", 0)


def test_a_span_takes_only_so_many_events_along(receiver: Receiver) -> None:
    """A loop that is open for days sends its further events at once, and memory stays flat."""
    many = [event(f"update {i}", 1, at=i) for i in range(MOST_EVENTS + 2)]
    found = send(receiver, [start(1, "loop"), *many], [stop(1, "loop")])
    assert len(found["loop"].events) == MOST_EVENTS
    assert found[f"update {MOST_EVENTS + 1}"].parent == found["loop"].id
    assert len(found) == 3


def test_a_long_span_is_announced_once_while_it_is_open(receiver: Receiver) -> None:
    """A placeholder of no length hangs below the span that is still to come."""
    exporter = exporter_for(receiver, announce_after=5.0)
    exporter.export([start(1, "application", model="big"), start(2, "loop", 1)])
    exporter.tick()
    exporter.tick()
    announced = list(receiver.spans)
    assert sorted(span.name for span in announced) == ["application", "loop"]
    assert all(span.attributes["stepwell.open"] is True for span in announced)
    assert all(span.start == span.end for span in announced)
    exporter.export([stop(2, "loop", 1), stop(1, "application")])
    exporter.close()
    known = receiver.by_id()
    assert len(known) == 4
    for span in announced:
        real = known[span.parent]
        assert (real.name, "stepwell.open" in real.attributes) == (span.name, False)
        assert real.id != span.id


def test_a_short_span_is_not_announced(receiver: Receiver) -> None:
    """Nothing goes out for a span that has been open for less than announce_after."""
    exporter = exporter_for(receiver, announce_after=1e9)
    exporter.export([start(1, "a")])
    exporter.tick()
    exporter.close()
    assert receiver.requests == 0


@pytest.mark.parametrize(
    ("mode", "reason"),
    [
        ("overloaded", "HTTP 503"),
        ("refusing", "HTTP 400 Bad Request no such experiment"),
        ("page", "text/html: not an OTLP receiver"),
        ("noise", "its response is not OTLP"),
        ("moved", "HTTP 302"),
        ("no http", "BadStatusLine"),
        ("down", "Connection refused"),
    ],
)
def test_what_was_not_taken_is_sent_again_as_it_was(
    receiver: Receiver, mode: str, reason: str
) -> None:
    """Whatever the receiver answers but a yes: it raises, says why, and nothing is lost or changed."""
    exporter = exporter_for(receiver)
    exporter.export([start(1, "a"), event("first", 1, at=1)])
    batch = [event("second", 1, at=2), stop(1, "a"), event("late", 1, at=20)]
    if mode == "down":
        receiver.down()
    receiver.mode = mode
    for _ in range(2):
        with pytest.raises(ConnectionError, match="did not accept 2 spans") as caught:
            exporter.export(batch)
        assert reason in str(caught.value)
    receiver.mode = "ok"
    if mode == "down":
        receiver.up()
    exporter.export(batch)
    exporter.close()
    found = receiver.by_id()
    assert sorted(span.name for span in found.values()) == ["a", "late"]
    (a,) = receiver.named("a")
    assert [name for name, _, _ in a.events] == ["first", "second"]


def test_sending_twice_gives_the_same_ids(receiver: Receiver) -> None:
    """Ids follow from the run: a second delivery overwrites the first, and another run does not."""
    records = [start(1, "a"), event("e", None), stop(1, "a"), event("late", 1, at=20)]
    records.append(event("late", 1, at=20))
    send(receiver, records)
    once = set(receiver.by_id())
    assert len(once) == 4
    shifted = [dataclasses.replace(r, time_ns=r.time_ns + 1) for r in records[3:]]
    send(receiver, records[:3], shifted)
    assert len(receiver.spans) == 8
    assert set(receiver.by_id()) == once
    traces = {span.trace for span in receiver.spans}
    other = dataclasses.replace(SOURCE, attempt=3, process="rank-00003.attempt-3.pid-78")
    exporter = exporter_for(receiver, other)
    exporter.export(records)
    exporter.close()
    assert len({span.trace for span in receiver.spans} - traces) == 1
    assert len(receiver.by_id()) == 2 * len(once)


def test_many_spans_go_out_in_several_requests(receiver: Receiver) -> None:
    """Receivers limit the size of a request."""
    send(receiver, [stop(i, f"s{i}", kind="complete") for i in range(1, 1101)])
    assert len(receiver.by_id()) == 1100
    assert receiver.requests == 3


def test_spans_that_the_receiver_rejects_for_good_are_said(
    receiver: Receiver, caplog: pytest.LogCaptureFixture
) -> None:
    """A partial success gives a warning, and is not sent again."""
    receiver.mode = "partly"
    send(receiver, [stop(1, "a", kind="complete")])
    assert receiver.requests == 1
    assert "permanently rejected 1 spans: too old" in caplog.text


def test_headers_and_compression_reach_the_receiver(receiver: Receiver) -> None:
    """Headers as a dict; a number is as good as its text."""
    headers = {"x-mlflow-experiment-id": 12, "authorization": "Bearer s3cret"}
    send(receiver, [stop(1, "a", kind="complete")], headers=headers, compression="gzip")
    assert receiver.headers[0]["x-mlflow-experiment-id"] == "12"
    assert receiver.headers[0]["authorization"] == "Bearer s3cret"
    assert receiver.headers[0]["content-encoding"] == "gzip"


def test_the_standard_variables_are_the_default(
    receiver: Receiver, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Without arguments it sends where OTEL_EXPORTER_OTLP_ENDPOINT says, with those headers."""
    monkeypatch.setenv("OTEL_EXPORTER_OTLP_ENDPOINT", receiver.url)
    monkeypatch.setenv("OTEL_EXPORTER_OTLP_HEADERS", "x-team=blue%20one")
    exporter = OTLPExporter()
    exporter.open(SOURCE)
    exporter.export([stop(1, "a", kind="complete")])
    exporter.close()
    assert receiver.headers[0]["x-team"] == "blue one"


@pytest.mark.parametrize(
    ("options", "message"),
    [
        (
            {"endpoint": "localhost:4318"},
            "endpoint must be a URL such as 'http://localhost:4318/v1/traces', got 'localhost:4318'",
        ),
        ({"endpoint": "ftp://host/x"}, "got 'ftp://host/x'"),
        ({"endpoint": "http://"}, "got 'http://'"),
        ({"endpoint": "http://host:99999"}, "Port out of range"),
        ({"endpoint": 4318}, "got 4318"),
        ({"headers": ["a"]}, "got a list"),
        ({"headers": "token"}, "header 1 has no '='"),
        ({"headers": {"bad name": "x"}}, "got 'bad name'"),
        ({"headers": {"a": "secret\r\nb: c"}}, "header 'a' contains a line break"),
        ({"headers": {"a": None}}, "header 'a' must be a string, got a NoneType"),
        ({"headers": {"a": "sécret€"}}, "header 'a' contains characters that HTTP does not allow"),
        ({"timeout": 0}, "timeout must be a number of seconds, more than 0, got 0"),
        ({"announce_after": -1}, "announce_after must be a number of seconds, 0 or more, got -1"),
        ({"linger": float("nan")}, "linger must be a number of seconds"),
        ({"compression": "zip"}, "compression must be 'none', 'gzip' or 'deflate', got 'zip'"),
    ],
)
def test_wrong_options_are_refused_at_once(options: dict, message: str) -> None:
    """The message names the option and what to write, and shows no value of a header."""
    with pytest.raises(StepwellError) as caught:
        OTLPExporter(**options)
    assert message in str(caught.value)
    assert "secret" not in str(caught.value)


@pytest.mark.parametrize(
    ("given", "used"),
    [
        ("http://host:4318", "http://host:4318/v1/traces"),
        ("https://host/", "https://host/v1/traces"),
        ("http://host/otlp/v1/traces?key=1", "http://host/otlp/v1/traces?key=1"),
    ],
)
def test_a_bare_host_gets_the_standard_path(given: str, used: str) -> None:
    """A given path is unchanged."""
    assert OTLPExporter(given).endpoint == used


def test_a_description_makes_the_same_exporter_again() -> None:
    """Exporters of the same options are equal, and secrets are not in what is printed."""
    one = OTLPExporter("http://user:pw@host/x?k=s3cret", "authorization=Bearer%20s3cret", timeout=3)
    described = one.description()
    assert described["class"] == "stepwell.exporters.otlp.OTLPExporter"
    two = OTLPExporter(**described["options"])
    assert one == two
    assert hash(one) == hash(two)
    assert one != OTLPExporter("http://host/x")
    assert two.headers == {"authorization": "Bearer s3cret"}
    assert "s3cret" not in repr(one)
    assert "pw" not in repr(one)
    assert one.shown_options == {"endpoint": "http://host/x"}


def test_making_one_imports_no_opentelemetry() -> None:
    """The training process never pays for it."""
    code = (
        "import sys\nfrom stepwell.exporters import OTLPExporter\n"
        "OTLPExporter('http://localhost:1').description()\n"
        "bad = [m for m in sys.modules if m.split('.')[0] in ('opentelemetry', 'requests', 'numpy')]\n"
        "assert not bad, bad"
    )
    subprocess.run([sys.executable, "-c", code], check=True)


def test_a_missing_package_is_said_with_the_way_to_install_it() -> None:
    """Where OpenTelemetry is not installed, the constructor says what to type."""
    code = (
        "import sys\nsys.modules['opentelemetry'] = None\n"
        "from stepwell.exporters import OTLPExporter\n"
        "OTLPExporter('http://localhost:1')"
    )
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True)
    assert "StepwellError" in done.stderr
    assert "pip install 'stepwell[otlp]'" in done.stderr
