"""Delivered records are in MLflow: in a database, and on a real server over HTTP."""

from __future__ import annotations

import json
import math
import os
import shutil
import sys
from pathlib import Path

import pytest

from stepwell.loggers.backends.mlflow.runs import IN_THIS_PROCESS
from tests.loggers.delivering import PNG, STARTED, Log, metric
from tests.loggers.mlflow_backend.finding import ON_BOTH, Found, backend, delivered
from tests.loggers.needs import needs

pytestmark = [
    pytest.mark.filterwarnings("ignore"),
    needs("mlflow"),
]


@ON_BOTH
def test_a_curve_is_found_with_its_steps_times_and_values(uri: str, log: Log) -> None:
    """Unicode and slashes in a name are MLflow's own; a NaN stays one."""
    records = [metric("train/löss é", 1 / (i + 1), i * 10, at=i * 2_000_000) for i in range(50)]
    records.append(metric("odd", math.nan, 3))
    found = delivered(log, backend(uri), *records)
    assert found.history("train/löss é") == [(i * 10, 1 / (i + 1)) for i in range(50)]
    [point] = found.client.get_metric_history(log.state["run_id"], "odd")
    assert math.isnan(point.value)
    assert point.step == 3
    assert point.timestamp == STARTED // 1_000_000


def test_an_infinity_is_the_largest_number_there(uri: str, log: Log) -> None:
    """A property of MLflow's SQL store; the journal has the exact value."""
    found = delivered(log, backend(uri), metric("up", math.inf), metric("down", -math.inf))
    assert found.history("up") == [(0, sys.float_info.max)]
    assert found.history("down") == [(0, -sys.float_info.max)]


@pytest.mark.full
def test_ten_thousand_metrics_arrive(uri: str, log: Log) -> None:
    """In batches as delivery makes them, of which each takes several requests."""
    to = backend(uri)
    log.open(to)
    records = [metric(f"m{i % 10}", float(i), i // 10, at=i * 100_000) for i in range(10_000)]
    for start in range(0, len(records), to.batch):
        to.deliver(records[start : start + to.batch], again=False)
    found = Found(to.uri, log.state["run_id"])
    for number in range(10):
        expected = [(step, float(step * 10 + number)) for step in range(1000)]
        assert found.history(f"m{number}") == expected


def test_a_thousand_and_one_metrics_with_a_parameter_are_taken(uri: str, log: Log) -> None:
    """One request may hold a thousand things, of which a hundred parameters."""
    params = [log.item("param", f"p.{i}", i) for i in range(250)]
    metrics = [metric("loss", float(i), i) for i in range(1001)]
    found = delivered(log, backend(uri), *params, *metrics)
    assert len(found.history("loss")) == 1001
    assert found.run.data.params == {f"p.{i}": str(i) for i in range(250)}


@ON_BOTH
def test_a_batch_that_comes_again_is_there_once(uri: str, log: Log) -> None:
    """Also one of which a part had got through, NaN, equal values and files included."""
    records = [metric("loss", 0.5, i % 7, at=i) for i in range(1200)]
    records += [metric("nan", math.nan, 1), metric("nan", math.nan, 1), metric("inf", math.inf, 1)]
    records += [log.item("param", "lr", 0.1), log.item("text", "note", "first", file="note.txt")]
    records += [log.item("image", "pic", data=PNG, file="pic.png", media="image/png", step=4)]
    records += [log.item("dataset", "data", {"type": "file", "path": "/data/x", "sha256": "ab"})]
    to = backend(uri)
    log.open(to)
    left = log.killed()
    to.deliver(records[:700], again=False)
    log.state = left
    log.open(to)
    to.deliver(records, again=True)
    log.state = {**left}
    log.open(to)
    to.deliver(records, again=True)
    found = Found(to.uri, log.state["run_id"])
    assert len(found.history("loss")) == 1200
    assert len(found.history("nan")) == 2
    assert len(found.history("inf")) == 1
    assert len(found.files()) == 4  # the note, the dataset, and the picture in two sizes
    assert len(found.run.inputs.dataset_inputs) == 1


def test_names_that_mlflow_refuses_are_mapped_and_can_be_told(uri: str, log: Log) -> None:
    """Said once; what had to be cut is whole in a tag."""
    odd = ["acc{top 5}!", "/lead", "a//b", "end/", "..", "", "a\nb", "x_x7B_", "l" * 300, "😀"]
    found = delivered(log, backend(uri), *[metric(name, float(i)) for i, name in enumerate(odd)])
    keys = {value: key for key, value in found.run.data.metrics.items()}
    assert len(keys) == len(odd)
    assert keys[0.0] == "acc_x7B_top 5_x7D__x21_"
    assert keys[7.0] == "x_x5F_x7B_"
    assert "l" * 300 in found.run.data.tags.values()
    assert list(log.state["notes"]) == ["name"]


def test_a_parameter_that_changes_is_kept_as_a_tag(uri: str, log: Log) -> None:
    """MLflow refuses the whole batch otherwise."""
    to = backend(uri)
    found = delivered(log, to, log.item("param", "lr", 0.1), log.item("param", "lr", 0.2))
    to.deliver([log.item("param", "lr", 0.3), metric("loss", 1.0)], again=False)
    # Another process goes on.
    other = backend(uri)
    log.open(other)
    other.deliver([log.item("param", "lr", 0.4), log.item("param", "wd", None)], again=False)
    found = Found(to.uri, log.state["run_id"])
    assert found.run.data.params == {"lr": "0.1", "wd": "None"}
    assert found.run.data.tags["stepwell.changed.lr"] == "0.4"
    assert found.run.data.metrics == {"loss": 1.0}
    assert list(log.state["notes"]) == ["changed param"]


def test_a_parameter_that_somebody_else_logged_meanwhile_loses_no_batch(uri: str, log: Log) -> None:
    to = backend(uri)
    found = delivered(log, to, metric("loss", 1.0, 0))
    found.client.log_param(log.state["run_id"], "lr", 9)
    params = [log.item("param", f"p{i}", i) for i in range(20)]
    to.deliver([*params, log.item("param", "lr", 0.1), metric("loss", 2.0, 1)], again=False)
    found = Found(to.uri, log.state["run_id"])
    assert found.run.data.params == {"lr": "9", **{f"p{i}": str(i) for i in range(20)}}
    assert found.run.data.tags["stepwell.changed.lr"] == "0.1"
    assert found.history("loss") == [(0, 1.0), (1, 2.0)]
    assert list(log.state["notes"]) == ["refused"]


def test_a_store_of_plain_files_has_each_value_once_too(
    tmp_path: Path, log: Log, empty_database: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """It would add a duplicate; MLflow refuses such a store by default."""
    (tmp_path / "a").mkdir()
    shutil.copy(empty_database, tmp_path / "a" / "mlflow.db")
    plain = backend((tmp_path / "a").as_uri())
    log.open(plain)
    assert plain.uri == f"sqlite:///{tmp_path}/a/mlflow.db"
    monkeypatch.setenv("MLFLOW_ALLOW_FILE_STORE", "true")
    to = backend((tmp_path / "b").as_uri())
    records = [metric("loss", float(i), i) for i in range(20)] + [metric("nan", math.nan)]
    other = Log(log.folder)
    delivered(other, to, *records[:10])
    to.deliver(records, again=True)
    to.deliver(records, again=True)
    found = Found(to.uri, other.state["run_id"])
    assert found.history("loss") == [(i, float(i)) for i in range(20)]
    assert len(found.history("nan")) == 1


def test_what_it_sets_for_its_own_process_is_not_set_by_a_client(
    database: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Loggers make one in the process that trains, to show MLflow's own run."""
    from stepwell.loggers.backends.mlflow.runs import connect

    for name in IN_THIS_PROCESS:
        monkeypatch.delenv(name)
    connect(database)
    assert not {*IN_THIS_PROCESS} & {*os.environ}


def test_a_file_that_is_gone_holds_nothing_up(uri: str, log: Log) -> None:
    gone = log.item("artifact", "gone", data=b"gone", file="gone")
    for file in (log.folder / "artifacts").iterdir():
        file.unlink()
    found = delivered(log, backend(uri), gone, metric("loss", 1.0))
    assert found.history("loss") == [(0, 1.0)]
    assert list(log.state["notes"]) == ["content"]


def test_a_parameter_that_is_too_long_is_cut_and_whole_among_the_artifacts(
    uri: str, log: Log
) -> None:
    """Many long ones in letters that JSON writes as six bytes are more than one request takes."""
    text = "ä" * 7000
    params = [log.item("param", f"long.{i}", text) for i in range(60)]
    found = delivered(log, backend(uri), *params, log.item("param", "list", [1, {"a": "é"}]))
    kept = found.run.data.params["long.3"]
    assert len(kept) == 6000
    assert kept.endswith("… (cut: 7000 characters)")
    assert found.read("params/long.3.txt") == text.encode()
    assert found.run.data.params["list"] == '[1, {"a": "é"}]'


@ON_BOTH
def test_every_kind_is_found(uri: str, log: Log) -> None:
    """Native where MLflow has it, else a file among the artifacts."""
    found = delivered(
        log,
        backend(uri),
        log.item("text", "notes/day 1", "grüß", file="notes/day 1.txt", media="text/plain"),
        log.item("dict", "conf", {"a": [1, None]}, file="conf.json", media="application/json"),
        log.item("figure", "plot", data=PNG, file="plot.png", media="image/png"),
        log.item(
            "image", "val/sample", data=PNG, file="val/sample.png", media="image/png", step=20
        ),
        log.item("figure", "page", data=b"<html>", file="page.html", media="text/html", step=2),
        log.item("artifact", "data", data=b"1,2", file="sub/a.csv", folder=True),
        log.item("artifact", "log file", data=b"x", file="out#1%.log"),
        log.item("torch", "tensor", data=b"pt", file="tensor.pt"),
        log.item("model", "net", data=b"weights", file="net.pt", step=5),
        log.item("best_model", "net", data=b"better", file="net.pt", step=9),
        log.item("dataset", "cifar", {"type": "folder", "path": "/data/cifar", "files": 3}),
        log.item("system", "system", {"cpu": 12.5, "gpu": {"0": 50}}, step=3),
        log.item("carbon", "carbon", {"energy_kwh": None, "source": "unknown"}),
        log.item("flops_pb", "flops", 1e9),
        log.item("execution_time", "epoch_time", 3.5, step=1),
        log.item("prov_documents", "prov", data=b"{}", file="prov.json"),
        log.item("watch", "net", {"layers": 3}),
    )
    assert found.read("notes/day 1.txt").decode() == "grüß"
    assert json.loads(found.read("conf.json")) == {"a": [1, None]}
    assert found.read("plot.png") == PNG
    [picture, small] = found.files("images")[::-1]
    assert picture.startswith("images/val~sample+step+20+timestamp+")
    assert found.read(picture) == PNG
    assert small.endswith("+compressed.webp")
    assert found.run.data.tags["mlflow.loggedImages"] == "True"
    assert found.read("page.html") == b"<html>"
    assert found.read("data/sub/a.csv") == b"1,2"
    assert found.read("log file/out_x23_1_x25_.log") == b"x"
    assert found.read("tensor.pt") == b"pt"
    assert found.read("net.pt") == b"weights"
    assert found.read("net.step-9.pt") == b"better"
    [data] = found.run.inputs.dataset_inputs
    assert (data.dataset.name, data.dataset.source_type) == ("cifar", "folder")
    assert json.loads(data.dataset.source) == {"uri": "/data/cifar"}
    assert json.loads(found.read("cifar.json"))["files"] == 3
    assert found.history("system/cpu") == [(3, 12.5)]
    assert found.history("system/gpu/0") == [(3, 50.0)]
    assert json.loads(found.read("carbon.json")) == {"energy_kwh": None, "source": "unknown"}
    assert found.history("flops") == [(0, 1e9)]
    assert found.history("epoch_time") == [(1, 3.5)]
    assert found.read("prov.json") == b"{}"
    assert found.history("net/layers") == [(0, 3.0)]


@pytest.mark.parametrize(
    ("status", "there"), [("finished", "FINISHED"), ("failed", "FAILED"), ("killed", "KILLED")]
)
def test_how_it_ended_is_carried_over(uri: str, log: Log, status: str, there: str) -> None:
    to = backend(uri, run_name="a name", run_description="what it is for")
    log.open(to)
    to.finish(status)
    to.close()
    info = Found(to.uri, log.state["run_id"]).run
    assert (info.info.status, info.info.run_name) == (there, "a name")
    assert info.info.start_time == STARTED // 1_000_000
    assert info.data.tags["mlflow.note.content"] == "what it is for"
    assert info.data.tags["team"] == "vision"
