"""OTLP with a third-party receiver: the MLflow server."""

from __future__ import annotations

import base64
import json
import urllib.error
import urllib.request
from collections import Counter
from pathlib import Path
from typing import Any

import pytest

import stepwell
from tests.exporters.programs import TREE, training
from tests.harness import has_ended, run_stepwell, wait_until
from tests.loggers.mlflow_server import Server
from tests.loggers.needs import needs

pytestmark = needs("mlflow")

HEADERS = {"x-mlflow-experiment-id": "0"}
EVERYTHING = """
from stepwell.exporters import ExportCustomizationMode, ExportFilter, OTLPExporter
run = init("all", dir=runs)
run.add_exporter(
    OTLPExporter(url, headers), ExportFilter(ExportCustomizationMode.EXPORT_ALL_SPANS)
)
answer = [str(run.path), run.exporters[0].process_id]
"""


class Traces:
    """The traces that a server has."""

    def __init__(self, server: Server) -> None:
        self.url = server.url

    def get(self, path: str) -> Any:
        """An answer, None when there is none."""
        try:
            with urllib.request.urlopen(self.url + path, timeout=30) as answer:
                body = answer.read()
        except (urllib.error.URLError, OSError):
            return None
        return json.loads(body) if body[:1] == b"{" else body

    def one(self, id: str) -> tuple[dict[str, Any], dict[str, dict[str, Any]]]:
        """Return the info of a trace, and its spans by id."""
        path = f"/api/3.0/mlflow/traces/get?trace_id={id}&allow_partial=true"
        trace = (self.get(path) or {}).get("trace", {})
        return trace.get("trace_info", {}), {s["span_id"]: s for s in trace.get("spans", [])}

    def all(self) -> list[str]:
        """The ids of all traces of the first experiment."""
        request = urllib.request.Request(
            self.url + "/api/3.0/mlflow/traces/search",
            json.dumps(
                {"locations": [{"type": 1, "mlflow_experiment": {"experiment_id": "0"}}]}
            ).encode(),
            {"content-type": "application/json"},
        )
        with urllib.request.urlopen(request, timeout=30) as answer:
            return [trace["trace_id"] for trace in json.load(answer).get("traces", [])]


@pytest.fixture
def traces(server: Server) -> Traces:
    return Traces(server)


def paths_in_mlflow(spans: dict[str, dict[str, Any]]) -> Counter[tuple[str, ...]]:
    """How often each path of names from the root down was received; placeholders left out."""

    def path(span: dict[str, Any]) -> tuple[str, ...]:
        parent = span.get("parent_span_id")
        return (*(path(spans[parent]) if parent else ()), span["name"])

    real = [s for s in spans.values() if "stepwell.open" not in attributes_of(s)]
    return Counter(map(path, real))


def paths_in_journal(path: Path) -> Counter[tuple[str, ...]]:
    """The same of the journal, as the reader gives it."""
    rows = {row["id"]: row for row in stepwell.open_run(path).spans().collect().to_dicts()}

    def path_of(row: dict[str, Any]) -> tuple[str, ...]:
        parent = rows.get(row["parent"])
        return (*(path_of(parent) if parent else ()), row["name"])

    return Counter(map(path_of, rows.values()))


def attributes_of(thing: dict[str, Any]) -> dict[str, Any]:
    pairs = {a["key"]: a.get("value", {}) for a in thing.get("attributes", [])}
    return {key: next(iter(value.values()), None) for key, value in pairs.items()}


@pytest.mark.full
def test_the_whole_tree_is_in_mlflow(traces: Traces, tmp_path: Path) -> None:
    """Names, parents, times, attributes, errors and events, as they are in the journal."""
    known = set(traces.all())
    with training(tmp_path, traces.url, headers=HEADERS) as trainer:
        trainer.do("run.finish()")
        path, sidecar = trainer.do(
            EVERYTHING, runs=str(tmp_path / "all"), url=traces.url, headers=HEADERS
        )
        trainer.do(
            TREE + "\ndef work():\n    with span('loader'):\n        with span('fetch'): pass\n"
            "thread = threading.Thread(target=work)\nthread.start()\nthread.join()\n"
            "answer = run.flush(60)\nrun.finish()"
        )
        wait_until(lambda: has_ended(sidecar))
    (id,) = set(traces.all()) - known
    about, spans = traces.one(id)
    expected = paths_in_journal(Path(path))
    assert expected.total() == 14
    assert paths_in_mlflow(spans) == expected
    rows = stepwell.open_run(path).spans().collect().to_dicts()
    durations = Counter((r["name"], r["duration_ns"]) for r in rows)
    times = [
        (s["name"], s["end_time_unix_nano"] - s["start_time_unix_nano"]) for s in spans.values()
    ]
    assert Counter(times) == durations
    named = {span["name"]: span for span in spans.values()}
    assert int(attributes_of(named["training_loop"])["epochs"]) == 2
    save = named["checkpoint_save"]
    assert save["status"] == {"code": "STATUS_CODE_ERROR", "message": "disk full"}
    (error,) = save["events"]
    assert (error["name"], attributes_of(error)["exception.type"]) == ("exception", "ValueError")
    assert named["application"]["events"][0]["name"] == "configured"
    assert about["tags"]["service.name"] == "all"
    assert about["tags"]["stepwell.rank"] == "0"


@pytest.mark.full
def test_mlflow_shows_a_training_that_still_runs(traces: Traces, tmp_path: Path) -> None:
    """In progress while it is open, done when it is; sent twice it is there once."""
    known = set(traces.all())
    with training(tmp_path, traces.url, headers=HEADERS, announce_after=0.3) as trainer:
        trainer.do("outer = span('application')\nouter.__enter__()")
        (id,) = wait_until(lambda: set(traces.all()) - known)
        about, spans = traces.one(id)
        (announced,) = spans.values()
        assert (about["state"], announced["name"]) == ("IN_PROGRESS", "application")
        assert attributes_of(announced)["stepwell.open"] is True
        trainer.do(TREE + "\nouter.__exit__(None, None, None)\nrun.finish()")
        wait_until(lambda: has_ended(trainer.sidecar))
        about, spans = traces.one(id)
        assert about["state"] == "OK"
        assert base64.b64decode(announced["parent_span_id"]) in map(base64.b64decode, spans)
        command = ["forward", str(trainer.path), "--option", f"endpoint={traces.url}"]
        command += ["--option", "headers=x-mlflow-experiment-id=0"]
        run_stepwell(*command, cwd=tmp_path, check=True)
        assert traces.one(id)[1].keys() == spans.keys()
        assert len(set(traces.all()) - known) == 1
