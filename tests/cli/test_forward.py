"""``stepwell forward``, with a receiver and with a file."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

import stepwell
from stepwell._core.errors import StepwellError
from stepwell.telemetry.exporter import ExportCustomizationMode, ExportFilter
from stepwell.telemetry.forward import NotTaken, forward
from tests.exporters.otlp_receiver import Receiver
from tests.harness import run_stepwell


@pytest.fixture
def path(tmp_path: Path) -> Path:
    """A finished run."""
    with stepwell.init("t", dir=tmp_path / "runs") as run, stepwell.span("outer", size=3):
        stepwell.event("hello")
        for _ in range(3):
            with stepwell.span("model_forward"), stepwell.span("inner"):
                pass
    return run.path


def test_to_a_file(path: Path, tmp_path: Path) -> None:
    """Any exporter will do; what was sent is said."""
    target = tmp_path / "out.json"
    done = run_stepwell(
        "forward", str(path), "--to", "file", "--option", f"file_path={target}", cwd=tmp_path
    )
    assert done.returncode == 0, done.stderr
    (process,) = [p.name for p in path.glob("rank-*")]
    assert done.stdout == (
        f"{process}: 4 spans, 1 event\n{path.name}: 4 spans of 1 process sent to file\n"
    )
    assert sorted(spans_in(target)) == ["inner", "inner", "inner", "outer"]


def spans_in(target: Path) -> list[str]:
    """The names of the spans that ended, one for each."""
    lines = [json.loads(line) for line in target.read_text().splitlines()]
    return [line["name"] for line in lines if line["type"] in ("stop", "complete")]


@pytest.mark.parametrize(
    ("words", "names"),
    [
        (["--all"], {"outer", "model_forward", "inner"}),
        (["--only", "inner", "--only", "outer"], {"outer", "inner"}),
        (["--skip", "inner"], {"outer", "model_forward"}),
    ],
)
def test_which_spans(path: Path, tmp_path: Path, words: list[str], names: set[str]) -> None:
    """All of them, only some, or all but some."""
    target = tmp_path / "out.json"
    done = run_stepwell(
        "forward", str(path), "--to", "file", f"--option=file_path={target}", *words, cwd=tmp_path
    )
    assert done.returncode == 0, done.stderr
    assert set(spans_in(target)) == names


@pytest.mark.sampled(3)
@pytest.mark.parametrize(
    ("words", "message"),
    [
        (["--to", "otpl"], "no exporter named 'otpl' (did you mean 'otlp'?)"),
        (
            ["--option", "endpoint"],
            "--option must be name=value, such as endpoint=http://localhost:4318, got 'endpoint'",
        ),
        (["--option", "endpont=http://x"], "did you mean 'endpoint'?"),
        (["--option", "endpoint=x"], "endpoint must be a URL such as"),
        (["--all", "--only", "a"], "--all, --only and --skip exclude each other"),
    ],
)
def test_what_is_wrong_is_said_in_one_line(path: Path, words: list[str], message: str) -> None:
    """Exit code 2, and nothing is sent."""
    done = run_stepwell("forward", str(path), *words, cwd=path)
    assert done.returncode == 2
    (line,) = done.stderr.splitlines()
    assert message in line


@pytest.mark.full
def test_the_same_from_python(path: Path) -> None:
    """``forward`` is a function too, with a count of what was sent."""
    seen: list[int] = []
    everything = ExportFilter(ExportCustomizationMode.EXPORT_ALL_SPANS)
    with Receiver() as receiver:
        options = {"endpoint": receiver.url, "timeout": 1.0}
        (done,) = forward(path, "otlp", options, filter=everything, progress=seen.append)
        assert (done.spans, done.events, done.running) == (7, 1, False)
        assert sum(seen) == 7
        assert receiver.tree() == {
            ("outer", None),
            ("model_forward", "outer"),
            ("inner", "model_forward"),
        }
        receiver.mode = "refusing"
        with pytest.raises(NotTaken, match="HTTP 400"):
            forward(path, "otlp", options)


def test_what_is_no_run_is_refused(tmp_path: Path) -> None:
    """A folder without processes, and none at all."""
    with pytest.raises(StepwellError, match="no process has recorded in it"):
        forward(tmp_path, "otlp")
    with pytest.raises(StepwellError, match="is not a run folder"):
        forward(tmp_path / "nothing", "otlp")


def test_a_run_that_still_records(tmp_path: Path) -> None:
    """The present records are sent, and a message says that the run is still running."""
    run = stepwell.init("t", dir=tmp_path / "runs")
    with Receiver() as receiver, stepwell.span("open"):
        with stepwell.span("done"):
            pass
        options = {"endpoint": receiver.url, "timeout": 1.0, "announce_after": 0.0}
        (sent,) = forward(run.path, "otlp", options)
        assert (sent.spans, sent.running) == (1, True)
        assert {span.name for span in receiver.spans} == {"open", "done"}
        assert receiver.named("open")[0].attributes["stepwell.open"] is True


def test_every_process_of_a_run(tmp_path: Path) -> None:
    """Ranks and attempts each have a trace of their own."""
    for _ in range(2):
        with (
            stepwell.init("t", dir=tmp_path / "runs", run_id="same") as run,
            stepwell.span("a"),
        ):
            pass
    with Receiver() as receiver:
        done = forward(run.path, "otlp", {"endpoint": receiver.url})
        assert len(done) == 2
        assert len({span.trace for span in receiver.spans}) == 2
        assert {span.resource["stepwell.attempt"] for span in receiver.spans} == {0, 1}
