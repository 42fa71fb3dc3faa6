"""The TensorBoard backend, read back with TensorBoard."""

from __future__ import annotations

import hashlib
import json
import math
import os
import random
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from stepwell.loggers.backends.tensorboard.backend import TensorBoardBackend
from stepwell.loggers.delivery.backend import LogRecord
from stepwell.loggers.delivery.files import keep_file, safe_parts
from tests.loggers.delivering import PNG, Log, metric
from tests.loggers.tensorboard_reading import Server, accumulated, hparams, scalars, texts

pytest.importorskip("tensorboard")


def backend(savedir: Path, **options: Any) -> TensorBoardBackend:
    return TensorBoardBackend(**{"number": 1, "rank": 0, "savedir": str(savedir), **options})


@pytest.fixture
def log(tmp_path: Path) -> Log:
    return Log(tmp_path / "runs" / "run-7")


def delivered(log: Log, savedir: Path, *records: LogRecord, **options: Any) -> Path:
    """The folder after these records were delivered."""
    made = log.open(backend(savedir, **options))
    made.deliver(list(records), False)
    made.close()
    return Path(log.state["folder"])


def test_metrics_are_curves_with_their_steps(tmp_path: Path, log: Log) -> None:
    records = [metric("train/loss", 1 / (i + 1), i * 10, at=i) for i in range(500)]
    records += [metric("größe", value, i) for i, value in enumerate((math.inf, -math.inf, 1e300))]
    folder = delivered(log, tmp_path / "tb", *records, metric("lost", math.nan, 4))
    found = scalars(folder)
    assert [step for step, _ in found["train/loss"]] == [i * 10 for i in range(500)]
    assert [v for _, v in found["train/loss"]] == pytest.approx([1 / (i + 1) for i in range(500)])
    assert found["größe"] == [(0, math.inf), (1, -math.inf), (2, math.inf)]
    ((step, value),) = found["lost"]
    assert step == 4
    assert math.isnan(value)


def test_ten_thousand_metrics_have_a_curve_each(tmp_path: Path, log: Log) -> None:
    folder = delivered(log, tmp_path, *(metric(f"m/{i}", float(i), i) for i in range(10_000)))
    assert scalars(folder) == {f"m/{i}": [(i, float(i))] for i in range(10_000)}


def test_texts_and_images_are_shown_as_such(tmp_path: Path, log: Log) -> None:
    folder = delivered(
        log,
        tmp_path / "tb",
        log.item("text", "note", "**bold** ä", step=3),
        log.item("text", "long", data=b"a" * 20_000, file="long.txt", media="text/plain"),
        log.item("image", "photo", data=PNG, file="photo.png", media="image/png", step=5),
        log.item("figure", "fig/curve", data=PNG, file="fig/curve.png", media="image/png"),
        log.item("dict", "conf", {"a": [1, None]}),
    )
    assert texts(folder) == {
        "note": [(3, "**bold** ä")],
        "long": [(0, "a" * 20_000)],
        "conf": [(0, '```json\n{\n  "a": [\n    1,\n    null\n  ]\n}\n```')],
    }
    images = accumulated(folder)
    ((photo),) = images.Images("photo")
    assert (photo.step, photo.width, photo.height) == (5, 1, 1)
    assert photo.encoded_image_string == PNG
    assert images.Images("fig/curve")[0].encoded_image_string == PNG


@pytest.mark.parametrize("kind", ["artifact", "torch", "model", "best_model"])
def test_what_it_has_no_view_for_is_a_text_with_the_file_beside(
    tmp_path: Path, log: Log, kind: str
) -> None:
    about = {"parameters": 58, "odd": "a|b\nc"}
    item = log.item(kind, "net", data=b"weights", file="net.pt", media="x/y", **about)
    folder = delivered(log, tmp_path / "tb", item)
    ((_, words),) = texts(folder)["net"]
    assert (folder / "files" / "net.pt").read_bytes() == b"weights"
    for part in ("files/net.pt", hashlib.sha256(b"weights").hexdigest(), "| 7 bytes |", "a\\|b c"):
        assert part in words


@pytest.mark.parametrize("kind", ["system", "carbon", "flops_pb", "flops_pe", "execution_time"])
def test_measurements_are_curves(tmp_path: Path, log: Log, kind: str) -> None:
    folder = delivered(
        log, tmp_path, log.item(kind, "m", {"a": 1, "b": 2.5, "c": "text"}), log.item(kind, "n", 7)
    )
    assert scalars(folder) == {"m/a": [(0, 1.0)], "m/b": [(0, 2.5)], "n": [(0, 7.0)]}


def test_what_data_was_used_is_a_text(tmp_path: Path, log: Log) -> None:
    folder = delivered(log, tmp_path, log.item("dataset", "train", {"type": "file", "size": 3}))
    assert json.loads(texts(folder)["train"][0][1].strip("`json\n")) == {"type": "file", "size": 3}


def test_provenance_documents_are_kept_beside(tmp_path: Path, log: Log) -> None:
    item = log.item("prov_documents", "prov", data=b"{}", file="provenance.json", folder=True)
    folder = delivered(log, tmp_path, item)
    assert (folder / "files" / "prov" / "provenance.json").read_bytes() == b"{}"
    assert "files/prov/provenance.json" in texts(folder)["prov"][0][1]


def test_a_name_may_be_used_for_several_kinds_of_things(tmp_path: Path, log: Log) -> None:
    folder = delivered(
        log,
        tmp_path,
        metric("x", 1.0),
        log.item("text", "x", "words"),
        log.item("image", "x", data=PNG, file="x.png", media="image/png"),
        log.item("text", "y", "words"),
        metric("y", 2.0),
    )
    assert scalars(folder) == {"x": [(0, 1.0)], "y/scalar": [(0, 2.0)]}
    assert set(texts(folder)) == {"x/text", "y"}
    assert accumulated(folder).Tags()["images"] == ["x/images"]


# Hyperparameters


def test_hyperparameters_are_in_the_same_run(tmp_path: Path, log: Log) -> None:
    params = {"lr": 0.1, "epochs": 3, "name": "sgd ä", "flag": True, "none": None, "list": [1, "a"]}
    made = log.open(backend(tmp_path))
    made.deliver([log.item("param", name, value) for name, value in params.items()], False)
    made.deliver([metric("loss", 1.0)], False)
    made.finish("finished")
    folder = Path(log.state["folder"])
    expected = {**params, "epochs": 3.0, "none": "None", "list": '[1, "a"]'}
    assert hparams(folder) == (expected, "STATUS_SUCCESS")
    assert scalars(folder) == {"loss": [(0, 1.0)]}
    assert [path.name for path in tmp_path.iterdir() if path.is_dir()].count("demo-run-7") == 1


def test_parameters_that_come_late_are_among_the_others(tmp_path: Path, log: Log) -> None:
    made = log.open(backend(tmp_path))
    made.deliver([log.item("param", "a", 1), metric("loss", 1.0)], False)
    made = log.open(backend(tmp_path))
    made.deliver([log.item("param", "b", 2), log.item("param", "a", 3)], False)
    made.finish("failed")
    assert hparams(Path(log.state["folder"])) == ({"a": 3.0, "b": 2.0}, "STATUS_FAILURE")


# Exactly once


def batches(log: Log) -> list[list[LogRecord]]:
    return [
        [log.item("param", "lr", 0.1), *(metric("loss", float(i), i) for i in range(20))],
        [log.item("text", "note", "words"), metric("loss", 20.0, 20)],
        [log.item("image", "p", data=PNG, file="p.png", media="image/png", step=1)],
        [metric("loss", float(i), i) for i in range(21, 40)],
    ]


def test_a_kill_at_any_moment_leaves_each_record_once(tmp_path: Path, log: Log) -> None:
    """A partly written batch is overwritten by the same batch."""
    whole = delivered(log, tmp_path / "whole", *(r for batch in batches(log) for r in batch))
    expected = (whole / log.state["file"]).read_bytes()
    chance = random.Random(7)
    for attempt in range(30):
        log.state = {}
        savedir = tmp_path / str(attempt)
        made = log.open(backend(savedir))
        for batch in batches(log):
            kept = log.killed()
            if chance.random() < 0.5:
                made.deliver(batch, False)
                path = Path(log.state["folder"], log.state["file"])
                # It died before the state was saved, and perhaps before all was on disk.
                os.truncate(path, chance.randint(kept["length"], path.stat().st_size))
                log.state = kept
                made = log.open(backend(savedir))
                made.deliver(batch, True)
            else:
                made.deliver(batch, False)
        path = Path(log.state["folder"], log.state["file"])
        assert path.read_bytes() == expected
        assert path.stat().st_size == log.state["length"]


def test_a_torn_end_is_not_seen_by_a_reader(tmp_path: Path, log: Log) -> None:
    folder = delivered(log, tmp_path, *batches(log)[0])
    path = folder / log.state["file"]
    os.truncate(path, path.stat().st_size - 5)
    assert len(scalars(folder)["loss"]) == 19


def test_the_end_is_told_once(tmp_path: Path, log: Log) -> None:
    made = log.open(backend(tmp_path))
    made.deliver([log.item("param", "a", 1)], False)
    kept = log.killed()
    made.finish("finished")
    path = Path(log.state["folder"], log.state["file"])
    once = path.read_bytes()
    for state in (kept, log.killed()):
        log.state = state
        log.open(backend(tmp_path)).finish("finished")
        assert path.read_bytes() == once


def test_a_batch_that_failed_leaves_nothing_behind(
    tmp_path: Path, log: Log, monkeypatch: pytest.MonkeyPatch
) -> None:
    made = log.open(backend(tmp_path))
    made.deliver([metric("a", 1.0)], False)
    before = log.killed()
    with monkeypatch.context() as patched:
        patched.setattr(os, "fsync", _full)
        with pytest.raises(OSError, match="full"):
            made.deliver([metric("a", 2.0, 1)], False)
    assert log.state["length"] == before["length"]
    made.deliver([metric("a", 2.0, 1)], True)
    assert scalars(Path(log.state["folder"])) == {"a": [(0, 1.0), (1, 2.0)]}


def _full(fd: int) -> None:
    raise OSError(28, "full")


def test_a_folder_that_somebody_removed_is_begun_again(tmp_path: Path, log: Log) -> None:
    folder = delivered(log, tmp_path / "tb", metric("a", 1.0))
    (folder / log.state["file"]).unlink()
    delivered(log, tmp_path / "tb", metric("a", 2.0, 1))
    assert scalars(folder) == {"a": [(1, 2.0)]}


# Places


def test_ranks_after_the_first_have_folders_inside(tmp_path: Path) -> None:
    folders = {}
    for rank in (0, 3):
        log = Log(tmp_path / "runs" / "run-7", rank=rank, world_size=4)
        made = log.open(backend(tmp_path / "tb", rank=rank, ranks=None))
        made.deliver([metric("loss", float(rank))], False)
        folders[rank] = Path(log.state["folder"])
    assert folders[3] == folders[0] / "rank-00003"
    assert scalars(folders[0]) == {"loss": [(0, 0.0)]}
    assert scalars(folders[3]) == {"loss": [(0, 3.0)]}


def test_the_only_rank_that_logs_has_the_run(tmp_path: Path) -> None:
    log = Log(tmp_path / "runs" / "run-7", rank=2, world_size=4)
    folder = delivered(log, tmp_path / "tb", metric("a", 1.0), rank=2, ranks=[2])
    assert folder == tmp_path / "tb" / "demo-run-7"


def test_attempts_of_a_run_share_its_folder(tmp_path: Path) -> None:
    for attempt in (0, 1):
        log = Log(tmp_path / "runs" / "run-7", attempt=attempt)
        folder = delivered(log, tmp_path / "tb", metric("a", float(attempt), attempt))
    assert scalars(folder) == {"a": [(0, 0.0), (1, 1.0)]}


@pytest.mark.parametrize(
    ("name", "expected"),
    [(None, "demo-run-7"), ("mine", "mine-run-7"), ("../a b/c", "a_b_c-run-7"), ("run-7", "run-7")],
)
def test_the_folder_is_named_after_the_run(
    tmp_path: Path, log: Log, name: str | None, expected: str
) -> None:
    folder = delivered(log, tmp_path / "tb", metric("a", 1.0), run_name=name)
    assert folder == tmp_path / "tb" / expected


def test_no_name_leads_out_of_the_folder(tmp_path: Path, log: Log) -> None:
    names = ["../../x", "/etc/x", "a/../../../x", "..", "", "\\..\\..\\x", "a\0b", "ü" * 300]
    items = [
        log.item(
            "artifact", name, data=f"{i}".encode(), file=f"{other}.bin", media="x/y", folder=True
        )
        for i, (name, other) in enumerate(zip(names, reversed(names), strict=True))
    ]
    folder = delivered(log, tmp_path / "tb", *items)
    files = [path for path in tmp_path.rglob("*") if path.is_file() and "runs" not in path.parts]
    assert all(folder in path.parents for path in files)
    assert {path.read_text() for path in (folder / "files").rglob("*") if path.is_file()} >= {
        str(i) for i in range(len(names))
    }


def test_a_file_without_a_name_is_named_after_its_content(tmp_path: Path, log: Log) -> None:
    """A delivery that continues after an upgrade finds its earlier copy."""
    items = [log.item("artifact", name, data=b"weights") for name in ("model", "a/b")]
    sha256 = hashlib.sha256(b"weights").hexdigest()
    for _ in range(2):
        files = delivered(log, tmp_path / "tb", *items) / "files"
    names = {str(path.relative_to(files)) for path in files.rglob("*") if path.is_file()}
    assert names == {f"model/{sha256[:12]}", f"a/b/{sha256[:12]}"}


def test_a_kept_file_is_never_replaced_by_another(tmp_path: Path) -> None:
    places = []
    for data in (b"one", b"two", b"one", b"two"):
        source = tmp_path / data.decode()
        source.write_bytes(data)
        sha256 = hashlib.sha256(data).hexdigest()
        places.append(keep_file(source, sha256, tmp_path / "files", "a/b.txt"))
    assert places[0] == places[2] == tmp_path / "files" / "a" / "b.txt"
    assert places[1] == places[3]
    assert places[1].read_bytes() == b"two"
    assert safe_parts("../..") == ["unnamed"]


# The real thing


@pytest.fixture(scope="module", params=["slow", pytest.param("fast", marks=pytest.mark.full)])
def server(
    request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory
) -> Iterator[Any]:
    """A real TensorBoard, with both of its file readers, on a running run."""
    folder = tmp_path_factory.mktemp("tensorboard")
    log = Log(folder / "runs" / "run-7")
    made = log.open(backend(folder / "tb"))
    made.deliver([log.item("param", "lr", 0.1), metric("train/loss", 1.0, 0)], False)
    option = "--load_fast=true" if request.param == "fast" else "--load_fast=false"
    running = Server(folder / "tb", folder / "log", option)
    try:
        yield running, log, made
    finally:
        running.close()


def test_its_server_shows_what_was_logged_while_it_is_logged(server: Any) -> None:
    running, log, made = server
    run = "demo-run-7"
    running.wait_for("runs", lambda runs: runs == [run])
    running.wait_for(
        "plugin/scalars/scalars", lambda points: len(points) == 1, run=run, tag="train/loss"
    )
    records = [metric("train/loss", 1 / (i + 1), i, at=i) for i in range(1, 100)]
    records += [log.item("text", "note", "**bold**"), metric("odd", math.nan, 2)]
    records += [log.item("figure", "fig", data=PNG, file="fig.png", media="image/png", step=9)]
    made.deliver(records, False)
    made.finish("finished")
    points = running.wait_for(
        "plugin/scalars/scalars", lambda points: len(points) == 100, run=run, tag="train/loss"
    )
    assert [point[1] for point in points] == list(range(100))
    assert [point[2] for point in points] == pytest.approx([1 / (i + 1) for i in range(100)])
    ((_, step, value),) = running.get("plugin/scalars/scalars", run=run, tag="odd")
    assert (step, value) == (2, "NaN")
    running.wait_for("plugin/images/tags", lambda tags: tags.get(run))
    (words,) = running.get("plugin/text/text", run=run, tag="note")
    assert "<strong>bold</strong>" in words["text"]
    (image,) = running.get("plugin/images/images", run=run, tag="fig", sample=0)
    assert image["step"] == 9
    assert running.content(f"/data/plugin/images/individualImage?{image['query']}") == PNG


def test_its_server_has_the_hyperparameters_beside_the_metrics(server: Any) -> None:
    running, _, _ = server
    statuses = ["STATUS_SUCCESS", "STATUS_FAILURE", "STATUS_RUNNING", "STATUS_UNKNOWN"]
    column = {"metric": {"group": "", "tag": "train/loss"}}
    body = {"allowedStatuses": statuses, "colParams": [column], "startIndex": 0, "sliceSize": 9}
    answer = running.get("plugin/hparams/session_groups", {"experimentName": "", **body})
    (group,) = answer["sessionGroups"]
    assert group["hparams"] == {"lr": 0.1}
    (session,) = group["sessions"]
    assert session["name"] == "demo-run-7"
    assert "train/loss" in {value["name"]["tag"] for value in group["metricValues"]}
