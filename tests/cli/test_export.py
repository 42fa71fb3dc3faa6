"""``stepwell export``: every format, read back with a third-party reader if there is one."""

from __future__ import annotations

import base64
import gzip
import json
import math
import subprocess
import sys
from dataclasses import replace
from pathlib import Path
from typing import Any

import polars as pl
import pytest
from google.protobuf import json_format
from opentelemetry.proto.collector.trace.v1.trace_service_pb2 import ExportTraceServiceRequest
from opentelemetry.proto.metrics.v1.metrics_pb2 import MetricsData

import stepwell
from stepwell.exporters.otlp.file import export_otlp
from stepwell.telemetry.exporter import ExportCustomizationMode, ExportFilter
from stepwell.telemetry.forward import forward
from tests.exporters.otlp_receiver import Receiver, Span, decode
from tests.harness import CLI, environment, run_stepwell


@pytest.fixture
def run(tmp_path: Path) -> Path:
    """Seven spans (one failed), three events (one of no span), values of which one is not finite."""
    with stepwell.init("t", dir=tmp_path / "runs", run_id="t") as run:
        run.set_step(3, epoch=1)
        with run.span("outer", size=3, ratio=0.5, ok=True, text="größer", many=[1, 2], huge=2**70):
            run.event("hello", to="world")
            for _ in range(5):
                with run.span("inner"):
                    pass
        with pytest.raises(ValueError, match="boom"), run.span("failing"):
            raise ValueError("boom")
        run.event("alone")
        run.log({"loss": 1.5, "grad": math.inf, "odd": math.nan})
    return run.path


def request_of(line: str) -> Any:
    """A line as OpenTelemetry's own classes have it; ids are hexadecimal in OTLP, else base64."""

    def as_base64(value: Any) -> Any:
        if isinstance(value, list):
            return [as_base64(item) for item in value]
        if not isinstance(value, dict):
            return value
        ids = ("traceId", "spanId", "parentSpanId")
        return {
            key: base64.b64encode(bytes.fromhex(item)).decode() if key in ids else as_base64(item)
            for key, item in value.items()
        }

    return as_base64(json.loads(line))


def spans_in(path: Path) -> list[Span]:
    text = gzip.open(path, "rt") if path.suffix == ".gz" else path.open()
    with text:
        requests = [request_of(line) for line in text]
    parsed = [json_format.ParseDict(r, ExportTraceServiceRequest()) for r in requests]
    return [span for request in parsed for span in decode(request.SerializeToString())]


def without_sdk(spans: list[Span]) -> list[Span]:
    """In the order of their ids, without what the SDK says of itself."""
    return sorted(
        (
            replace(
                s, resource={k: v for k, v in s.resource.items() if not k.startswith("telemetry.")}
            )
            for s in spans
        ),
        key=lambda span: span.id,
    )


def test_otlp_is_what_would_be_sent(run: Path, tmp_path: Path) -> None:
    """Read with OpenTelemetry's classes, the file has exactly what a receiver gets: ids, times and all."""
    done = run_stepwell("export", "t", "--to", "otlp", "-o", "out.jsonl", cwd=tmp_path)
    assert done.returncode == 0, done.stderr
    assert done.stdout.splitlines()[:2] == ["out.jsonl", "out.metrics.jsonl"]
    with Receiver() as receiver:
        everything = ExportFilter(ExportCustomizationMode.EXPORT_ALL_SPANS)
        forward(run, "otlp", {"endpoint": receiver.url}, filter=everything)
        sent = without_sdk(receiver.spans)
    assert len(sent) == 8
    assert without_sdk(spans_in(tmp_path / "out.jsonl")) == sent


def test_otlp_metrics_are_gauges(run: Path, tmp_path: Path) -> None:
    """In a file of their own, each value with its time and step; what is not finite as JSON for it."""
    export_otlp(run, tmp_path / "out.jsonl.gz")
    with gzip.open(tmp_path / "out.metrics.jsonl.gz", "rt") as file:
        found = [json_format.ParseDict(json.loads(line), MetricsData()) for line in file]
    metrics = [
        m for d in found for r in d.resource_metrics for s in r.scope_metrics for m in s.metrics
    ]
    values = {metric.name: metric.gauge.data_points[0].as_double for metric in metrics}
    assert values["loss"] == 1.5
    assert values["grad"] == math.inf
    assert math.isnan(values["odd"])
    point = metrics[0].gauge.data_points[0]
    assert {a.key: a.value.int_value for a in point.attributes} == {
        "stepwell.step": 3,
        "stepwell.epoch": 1,
    }
    (time_ns,) = stepwell.open_run(run).metrics().filter(name="loss").collect()["time_ns"]
    assert {p.time_unix_nano for m in metrics if m.name == "loss" for p in m.gauge.data_points} == {
        time_ns
    }


def test_otlp_of_a_run_that_goes_on_announces_what_is_open(tmp_path: Path) -> None:
    """As a placeholder of no length, below the id that the span will have."""
    with stepwell.init("t", dir=tmp_path / "runs", run_id="t") as run, run.span("outer"):
        with run.span("inner"):
            pass
        export_otlp(run.path, tmp_path / "now.jsonl")
    export_otlp(run.path, tmp_path / "then.jsonl")
    now = {span.name: span for span in spans_in(tmp_path / "now.jsonl")}
    then = {span.name: span for span in spans_in(tmp_path / "then.jsonl")}
    assert now["outer"].attributes["stepwell.open"] is True
    assert now["outer"].parent == then["outer"].id == now["inner"].parent
    assert "stepwell.open" not in then["outer"].attributes
    assert list(tmp_path.glob("*.metrics.jsonl")) == []


@pytest.mark.sampled(2)
@pytest.mark.parametrize(
    ("to", "read"),
    [("parquet", pl.read_parquet), ("csv", pl.read_csv), ("jsonl", pl.read_ndjson)],
)
def test_tables_have_all_rows(run: Path, tmp_path: Path, to: str, read: Any) -> None:
    """A file for each table and rank."""
    done = run_stepwell("export", "t", "--to", to, "-o", "out", "--json", cwd=tmp_path)
    files = {Path(f).parts[1]: tmp_path / f for f in json.loads(done.stdout)["files"]}
    assert read(files["spans"])["name"].value_counts().sort("name").rows() == [
        ("failing", 1),
        ("inner", 5),
        ("outer", 1),
    ]
    values = dict(read(files["metrics"]).select("name", "value").iter_rows())
    assert values["loss"] == 1.5
    assert sorted(read(files["events"])["name"]) == ["alone", "error", "hello"]


def test_traces_have_all_spans(run: Path, tmp_path: Path) -> None:
    """Chrome's in one file, dftracer's in one for each process."""
    for to in ("chrome", "dftracer"):
        done = json.loads(run_stepwell("export", "t", "--to", to, "--json", cwd=tmp_path).stdout)
        assert (done["spans"], done["events"], len(done["files"])) == (7, 3, 1)
        with gzip.open(tmp_path / done["files"][0], "rt") as file:
            assert file.read().count('"inner"') == 5


@pytest.mark.sampled(3)
@pytest.mark.parametrize(
    ("words", "message"),
    [
        (("--to", "otlp", "--steps", "1:2"), "--steps needs --to chrome or dftracer"),
        (("--to", "csv", "--ranks", "0"), "--ranks needs a trace"),
        (("--to", "otlp", "-o", "x.json"), "-o must end in .jsonl or .jsonl.gz"),
        (("--to", "excel"), "--to must be one of parquet, csv, jsonl, chrome, dftracer, otlp, got"),
    ],
)
def test_what_does_not_go_together(run: Path, tmp_path: Path, words: Any, message: str) -> None:
    """Exit code 2, and nothing is written."""
    done = run_stepwell("export", "t", *words, cwd=tmp_path)
    assert (done.returncode, message in done.stderr) == (2, True)
    assert [p.name for p in tmp_path.iterdir()] == ["runs"]


@pytest.fixture
def stepwell_on_path(tmp_path: Path) -> Path:
    """A folder with a program ``stepwell`` in it."""
    folder = tmp_path / "bin"
    folder.mkdir()
    (folder / "stepwell").write_text(f"#!{sys.executable}\n{CLI}\n")
    (folder / "stepwell").chmod(0o755)
    return folder


@pytest.mark.full
def test_bash_completes_commands_options_and_runs(
    run: Path, tmp_path: Path, stepwell_on_path: Path
) -> None:
    """With the script that --show-completion gives, in a real bash."""
    script = """
    source <(stepwell --show-completion bash)
    ask() {
        COMP_WORDS=("$@"); COMP_CWORD=$(($# - 1)); COMPREPLY=()
        _stepwell_completion stepwell; echo "${COMPREPLY[*]}"
    }
    ask stepwell qu; ask stepwell show ""; ask stepwell query '"SELECT 1"' t
    ask stepwell gc --larg; ask stepwell show --dir nowhere ""; ask stepwell ls ru
    """
    path = f"{stepwell_on_path}:{environment()['PATH']}"
    done = subprocess.run(
        ["bash", "--norc", "-c", script],
        cwd=tmp_path,
        env=environment(PATH=path),
        capture_output=True,
        text=True,
        timeout=120,
        check=True,
    )
    assert done.stdout.splitlines() == ["query", "t", "t", "--larger-than", "", "runs"]
    assert done.stderr == ""
