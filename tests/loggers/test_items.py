"""Each kind of item, turned into something that a run can keep; and what cannot be, said without harm."""

from __future__ import annotations

import io
import json
import logging
import math
import pickle
import random
import struct
import time
import zlib
from datetime import timedelta
from pathlib import Path
from typing import Any

import numpy as np
import pytest

import stepwell
from stepwell import Run, StepwellError
from stepwell.journal.records import ItemRecord
from stepwell.loggers.items.making import file_name, flattened
from tests.loggers.logged import Own, content, items, metrics

torch = pytest.importorskip("torch")


@pytest.fixture
def logger(recorded: Run) -> Own:
    return Own(log_freq="batch").create_logger_context()


def logged(run: Run, kind: str | None = None) -> list[ItemRecord]:
    """The items, once the run is over."""
    run.finish()
    return items(run, kind)


def pixels(data: bytes) -> np.ndarray[Any, Any]:
    """The pixels of a PNG file, read by hand."""
    assert data[:8] == b"\x89PNG\r\n\x1a\n"
    at, parts = 8, {}
    while at < len(data):
        (size,) = struct.unpack(">I", data[at : at + 4])
        name, body = data[at + 4 : at + 8], data[at + 8 : at + 8 + size]
        (check,) = struct.unpack(">I", data[at + 8 + size : at + 12 + size])
        assert zlib.crc32(name + body) == check
        parts[name] = body
        at += 12 + size
    width, height, depth, color = struct.unpack(">IIBB", parts[b"IHDR"][:10])
    assert depth == 8
    channels = {0: 1, 2: 3, 4: 2, 6: 4}[color]
    rows = np.frombuffer(zlib.decompress(parts[b"IDAT"]), np.uint8).reshape(height, -1)
    assert (rows[:, 0] == 0).all()
    return rows[:, 1:].reshape(height, width, channels)


# What every item has


def test_an_item_knows_its_place(recorded: Run, logger: Own) -> None:
    """Step and epoch of the run, or the step that is passed; and who hears of it."""
    logger.log("a", "first", kind="text")
    recorded.set_step(4, epoch=2)
    logger.log("b", "second", kind="text")
    logger.log("c", "third", kind="text", step=9)
    found = [(i.name, i.step, i.epoch, i.audience) for i in logged(recorded)]
    assert found == [
        ("first", None, None, (1,)),
        ("second", 4, 2, (1,)),
        ("third", 9, 2, (1,)),
    ]


def test_items_are_no_events_and_files_are_artifacts(
    recorded: Run, logger: Own, tmp_path: Path
) -> None:
    """For whoever reads the run."""
    (tmp_path / "out" / "sub").mkdir(parents=True)
    (tmp_path / "out" / "sub" / "a.txt").write_text("a")
    logger.log(tmp_path / "out", "folder", kind="artifact")
    logger.log(b"data", "bytes.bin", kind="artifact")
    logger.log("words", "note", kind="text")
    recorded.finish()
    run = stepwell.open_run(recorded.path)
    assert run.events().collect().height == 0
    table = run.artifacts().collect()
    assert table["name"].to_list() == ["folder/sub/a.txt", "bytes.bin"]
    assert table["size"].to_list() == [1, 4]
    for sha256 in table["sha256"]:
        assert (recorded.path / "artifacts" / sha256).is_file()


def test_further_arguments_are_kept(recorded: Run, logger: Own) -> None:
    """Such as the context that a provenance document asks for; what is ours wins."""
    logger.log("x", "note", kind="text", context="validation", audience="all", content="spoon")
    (found,) = logged(recorded)
    assert found.attributes == {"context": "validation"}
    assert (found.kind, found.audience, found.content) == ("text", (1,), None)


# Plain kinds

DICTS: list[tuple[Any, Any]] = [
    ({"a": 1, "b": [1, 2]}, {"a": 1, "b": [1, 2]}),
    ({}, {}),
    ({"nan": math.nan}, {"nan": None}),
    ({"array": np.arange(3), "p": Path("x/y")}, {"array": [0, 1, 2], "p": "x/y"}),
    ({1: "one", None: "none"}, {"1": "one", "None": "none"}),
    ([{"a": 1}], [{"a": 1}]),
]


@pytest.mark.parametrize(("item", "found"), DICTS)
@pytest.mark.parametrize("repeat", [1, 2000])
def test_dicts_are_strict_json(
    recorded: Run, logger: Own, item: Any, found: Any, repeat: int
) -> None:
    """Small ones are values, large ones files with all that was in them."""
    big = {"rows": [item] * repeat} if repeat > 1 else item
    logger.log(big, "things/config", kind="dict")
    (one,) = logged(recorded)
    assert one.file == "things/config.json"
    if repeat == 1:
        assert one.value == found
    else:
        assert one.media == "application/json"
        rows = json.loads(content(recorded, one), parse_constant=pytest.fail)["rows"]
        assert len(rows) >= 1000
        assert rows[0] == found


@pytest.mark.parametrize(
    ("identifier", "file"),
    [
        ("config", "config.json"),
        ("config.json", "config.json"),
        ("config.yaml", "config.yaml"),
        ("a/b", "a/b.json"),
        ("../../etc/passwd", "etc/passwd.json"),
        ("/abs", "abs.json"),
        ("v1.2", "v1.2.json"),
        ("..", "item.json"),
        ("C:\\x\\y", "C:/x/y.json"),
        ("new\nline", "new_line.json"),
    ],
)
def test_names_of_files(identifier: str, file: str) -> None:
    """They stay inside, and have a suffix once."""
    assert file_name(identifier, ".json", (".json", ".yaml", ".yml")) == file


@pytest.mark.parametrize("length", [0, 10, 8192, 8193, 1_000_000])
def test_texts(recorded: Run, logger: Own, length: int) -> None:
    """Whole, as a value while they are short."""
    words = "ü" * (length // 2)
    logger.log(words, "note", kind="text")
    (one,) = logged(recorded)
    assert one.file == "note.txt"
    if length <= 8193:
        assert (one.value, one.content) == (words, None)
    else:
        assert content(recorded, one).decode() == words
        assert (one.media, one.size) == ("text/plain", length)


def test_what_is_no_text_is_taken_as_it_prints(recorded: Run, logger: Own) -> None:
    """Numbers, objects."""
    logger.log(5, "number", kind="text")
    assert [i.value for i in logged(recorded)] == ["5"]


PARAMS: list[tuple[Any, dict[str, Any]]] = [
    (0.5, {"p": 0.5}),
    ("sgd", {"p": "sgd"}),
    (None, {"p": None}),
    ({"a": {"b": 1}}, {"p.a.b": 1}),
    (torch.device("cpu"), {"p": "cpu"}),
    (torch.float32, {"p": "torch.float32"}),
    (torch.tensor(2.0), {"p": 2.0}),
    (math.inf, {"p": "inf"}),
]


@pytest.mark.parametrize(("item", "found"), PARAMS)
def test_params(recorded: Run, logger: Own, item: Any, found: dict[str, Any]) -> None:
    """As JSON has them, else as they print."""
    logger.log(item, "p", kind="param")
    assert {i.name: i.value for i in logged(recorded, "param")} == found


def test_a_param_may_be_long(recorded: Run, logger: Own) -> None:
    """It is kept whole then, in a file."""
    layers = list(range(900)) * 1
    logger.log({"layers": [f"layer {i} " * 5 for i in layers]}, "p", kind="param")
    (one,) = logged(recorded)
    assert len(json.loads(content(recorded, one))) == 900


def test_a_param_that_is_a_secret_is_masked(recorded: Run, logger: Own) -> None:
    """By its name."""
    logger.log("abc", "wandb_api_key", kind="param")
    assert [i.value for i in logged(recorded)] == ["***"]


def test_nested_params_end_somewhere() -> None:
    """A dict in itself does not."""
    cycle: dict[str, Any] = {}
    cycle["self"] = cycle
    assert len(flattened(cycle)) == 1


# Artifacts


def test_artifacts_of_files_and_folders(recorded: Run, logger: Own, tmp_path: Path) -> None:
    """Paths as texts or as Path, relative ones too; each file of a folder is one item."""
    (tmp_path / "a.bin").write_bytes(b"a")
    (tmp_path / "d" / "e").mkdir(parents=True)
    (tmp_path / "d" / "x.txt").write_text("x")
    (tmp_path / "d" / "e" / "y.txt").write_text("y")
    logger.log(str(tmp_path / "a.bin"), "weights", kind="artifact")
    logger.log(tmp_path / "d", "data", kind="artifact")
    (tmp_path / "a.bin").write_bytes(b"changed afterwards")
    found = [(i.name, i.file, content(recorded, i)) for i in logged(recorded)]
    assert found == [
        ("weights", "a.bin", b"a"),
        ("data", "e/y.txt", b"y"),
        ("data", "x.txt", b"x"),
    ]


class Thing:
    """An object that only pickle keeps."""

    def __init__(self) -> None:
        self.value = 5


def test_artifacts_of_objects(recorded: Run, logger: Own) -> None:
    """Bytes as they are, structures as JSON, tensors by torch.save, the rest pickled."""
    logger.log(b"raw", "raw.dat", kind="artifact")
    logger.log({"a": [1]}, "structure", kind="artifact")
    logger.log(torch.ones(2), "tensor", kind="artifact")
    logger.log(Thing(), "thing", kind="artifact")
    raw, structure, tensor, thing = logged(recorded)
    assert [i.file for i in (raw, structure, tensor, thing)] == [
        "raw.dat",
        "structure.json",
        "tensor.pt",
        "thing.pkl",
    ]
    assert content(recorded, raw) == b"raw"
    assert json.loads(content(recorded, structure)) == {"a": [1]}
    assert torch.load(io.BytesIO(content(recorded, tensor)), weights_only=True).sum() == 2
    assert pickle.loads(content(recorded, thing)).value == 5


# Pictures

RED = np.zeros((4, 6, 3), np.uint8)
RED[..., 0] = 255

IMAGES: list[tuple[str, Any, tuple[int, int, int], int]] = [
    # name, item, shape of the pixels, value of the first one
    ("HWC bytes", RED, (4, 6, 3), 255),
    ("CHW tensor", torch.full((3, 4, 6), 0.5), (4, 6, 3), 128),
    ("CHW bytes", torch.full((3, 4, 6), 7, dtype=torch.uint8), (4, 6, 3), 7),
    ("HW floats", np.full((4, 6), 1.0), (4, 6, 1), 255),
    ("HW to 255", np.full((4, 6), 200.0), (4, 6, 1), 200),
    ("alpha", np.full((4, 6, 4), 9, np.uint8), (4, 6, 4), 9),
    ("booleans", np.ones((4, 6), bool), (4, 6, 1), 255),
    ("integers", np.full((4, 6), 300), (4, 6, 1), 255),
    ("negative", np.full((4, 6), -1.0), (4, 6, 1), 0),
    ("NaN", np.full((4, 6), math.nan), (4, 6, 1), 0),
    ("bfloat16", torch.full((1, 4, 6), 1.0, dtype=torch.bfloat16), (4, 6, 1), 255),
    ("with gradient", torch.ones(3, 4, 6, requires_grad=True), (4, 6, 3), 255),
    ("both may be channels, torch", torch.ones(3, 5, 3), (5, 3, 3), 255),
    ("both may be channels, numpy", np.ones((3, 5, 3)), (3, 5, 3), 255),
    ("four of them", torch.ones(4, 3, 4, 6), (10, 14, 3), 255),
    ("three of them", np.ones((3, 4, 6, 1)), (10, 14, 1), 255),
]


@pytest.mark.parametrize(
    ("item", "shape", "first"), [row[1:] for row in IMAGES], ids=[row[0] for row in IMAGES]
)
def test_images(
    recorded: Run, logger: Own, item: Any, shape: tuple[int, int, int], first: int
) -> None:
    """Arrays and tensors of all usual layouts are PNG files."""
    logger.log(item, "samples/first", kind="image")
    (one,) = logged(recorded)
    found = pixels(content(recorded, one))
    assert found.shape == shape
    assert found[0, 0, 0] == first
    assert (one.file, one.media) == ("samples/first.png", "image/png")
    assert (one.attributes["width"], one.attributes["height"]) == (shape[1], shape[0])


def test_an_image_keeps_every_pixel(recorded: Run, logger: Own) -> None:
    """As another reader sees it."""
    image = np.random.default_rng(0).integers(0, 256, (7, 5, 3), np.uint8)
    logger.log(image, "noise", kind="image")
    logger.log(image.transpose(2, 0, 1), "turned", kind="image", dataformats="CHW")
    one, two = logged(recorded)
    assert (pixels(content(recorded, one)) == image).all()
    assert (pixels(content(recorded, two)) == image).all()
    assert "dataformats" not in two.attributes
    matplotlib = pytest.importorskip("matplotlib.image")
    read = matplotlib.imread(io.BytesIO(content(recorded, one)))
    assert (np.round(read * 255) == image).all()


def test_an_image_of_pillow_and_one_in_a_file(recorded: Run, logger: Own, tmp_path: Path) -> None:
    """A file is kept as it is."""
    pil = pytest.importorskip("PIL.Image")
    picture = pil.fromarray(RED)
    picture.save(tmp_path / "red.jpg")
    logger.log(picture, "pillow", kind="image")
    logger.log(tmp_path / "red.jpg", "file", kind="image")
    one, two = logged(recorded)
    assert (np.asarray(pil.open(io.BytesIO(content(recorded, one)))) == RED).all()
    assert content(recorded, two) == (tmp_path / "red.jpg").read_bytes()
    assert (two.file, two.media) == ("file.jpg", "image/jpeg")


@pytest.mark.parametrize(
    ("identifier", "file", "begins"),
    [
        ("plot", "plot.png", b"\x89PNG"),
        ("plot.svg", "plot.svg", b"<?xml"),
        ("a/plot.pdf", "a/plot.pdf", b"%PDF"),
    ],
)
def test_figures(recorded: Run, logger: Own, identifier: str, file: str, begins: bytes) -> None:
    """Of Matplotlib, in the format that the name asks for; axes stand for their figure."""
    pytest.importorskip("matplotlib")
    from matplotlib.figure import Figure

    figure = Figure()
    axes = figure.subplots()
    axes.plot([1, 2])
    logger.log(figure, identifier, kind="figure")
    logger.log(axes, identifier, kind="figure")
    for one in logged(recorded):
        assert one.file == file
        assert content(recorded, one).startswith(begins)


class PlotlyLike:
    """What Plotly's figures have."""

    def to_plotly_json(self) -> dict[str, Any]:
        return {}

    def to_html(self, include_plotlyjs: str) -> str:
        return f"<html>{include_plotlyjs}</html>"


def test_a_figure_of_plotly_is_a_page(recorded: Run, logger: Own) -> None:
    """With all that can be done with it there."""
    logger.log(PlotlyLike(), "chart", kind="figure")
    (one,) = logged(recorded)
    assert (one.file, one.media) == ("chart.html", "text/html")
    assert content(recorded, one) == b"<html>cdn</html>"


# Models


def net() -> Any:
    torch.manual_seed(0)
    return torch.nn.Sequential(torch.nn.Linear(4, 3), torch.nn.ReLU(), torch.nn.Linear(3, 2))


@pytest.mark.parametrize("kind", ["model", "best_model"])
def test_models_are_their_weights_at_the_call(recorded: Run, logger: Own, kind: str) -> None:
    """What happens to them afterwards does not count; wrapped or not, the names are the same."""
    model = net()
    before = {name: value.clone() for name, value in model.state_dict().items()}
    logger.log(model, "net", kind=kind)
    logger.log(torch.nn.DataParallel(model), "wrapped", kind=kind)
    logger.log(model.state_dict(), "weights.pth", kind=kind)
    with torch.no_grad():
        model[0].weight.zero_()
    found = logged(recorded, kind)
    assert [i.file for i in found] == ["net.pt", "wrapped.pt", "weights.pth"]
    for one in found:
        weights = torch.load(io.BytesIO(content(recorded, one)), weights_only=True)
        assert weights.keys() == before.keys()
        assert all(torch.equal(weights[name], before[name]) for name in before)
        assert one.attributes["format"] == "state_dict"
        assert one.attributes["parameters"] == 4 * 3 + 3 + 3 * 2 + 2
    assert found[0].attributes["model"] == "Sequential"
    # The same weights are on disk once.
    assert len({one.content for one in found}) <= len(found)


def test_a_model_that_is_not_torchs_is_pickled(recorded: Run, logger: Own, tmp_path: Path) -> None:
    """And one in a file is that file."""
    (tmp_path / "m.onnx").write_bytes(b"onnx")
    logger.log(Thing(), "thing", kind="model")
    logger.log(tmp_path / "m.onnx", "exported", kind="model")
    one, two = logged(recorded)
    assert pickle.loads(content(recorded, one)).value == 5
    assert (one.attributes["format"], one.attributes["model"]) == ("pickle", "Thing")
    assert (two.file, content(recorded, two)) == ("exported.onnx", b"onnx")


def test_torch_takes_what_torch_save_takes(recorded: Run, logger: Own) -> None:
    """Tensors, dicts of them, optimizers; of a module its weights, of a data loader a description."""
    model = net()
    optimizer = torch.optim.Adam(model.parameters())
    dataset = torch.utils.data.TensorDataset(torch.zeros(10, 4))
    logger.log(torch.arange(3), "tensor", kind="torch")
    logger.log({"epoch": 3, "w": torch.ones(1)}, "dict", kind="torch")
    logger.log(optimizer, "optimizer", kind="torch")
    logger.log(model, "module", kind="torch")
    logger.log(torch.utils.data.DataLoader(dataset, batch_size=4), "loader", kind="torch")
    found = {i.name: i for i in logged(recorded, "torch")}
    loaded = {
        name: torch.load(io.BytesIO(content(recorded, one)), weights_only=True)
        for name, one in found.items()
        if one.content
    }
    assert loaded["tensor"].tolist() == [0, 1, 2]
    assert loaded["dict"]["epoch"] == 3
    assert loaded["optimizer"].keys() == {"state", "param_groups"}
    assert loaded["module"].keys() == model.state_dict().keys()
    assert found["loader"].value["batch_size"] == 4
    assert found["loader"].value["dataset"]["length"] == 10


# Data


def test_datasets_are_described_not_copied(recorded: Run, logger: Own, tmp_path: Path) -> None:
    """Files by their digest, arrays by shape and digest, tables by columns, loaders by both."""
    import hashlib

    import polars

    (tmp_path / "train.csv").write_text("a,b\n1,2\n")
    (tmp_path / "many").mkdir()
    (tmp_path / "many" / "x").write_text("12345")
    array = np.arange(6, dtype=np.int64).reshape(2, 3)
    dataset = torch.utils.data.TensorDataset(torch.zeros(10, 4))
    logger.log(tmp_path / "train.csv", "file", kind="dataset")
    logger.log(str(tmp_path / "many"), "folder", kind="dataset")
    logger.log("s3://bucket/data?token=x", "elsewhere", kind="dataset")
    logger.log(array, "array", kind="dataset")
    logger.log(torch.from_numpy(array), "tensor", kind="dataset")
    logger.log(polars.DataFrame({"a": [1], "b": ["x"]}), "table", kind="dataset")
    logger.log({"train": dataset, "test": dataset}, "splits", kind="dataset")
    loader = torch.utils.data.DataLoader(dataset, batch_size=5, shuffle=True)
    logger.log(loader, "loader", kind="dataset", context="training")
    found = {i.name: i.value for i in logged(recorded, "dataset")}
    assert found["file"]["sha256"] == hashlib.sha256(b"a,b\n1,2\n").hexdigest()
    assert found["file"]["size"] == 8
    assert (found["folder"]["files"], found["folder"]["size"]) == (1, 5)
    assert found["elsewhere"]["type"] == "reference"
    assert "token=x" not in found["elsewhere"]["source"]
    assert found["array"]["shape"] == [2, 3]
    assert found["array"]["sha256"] == hashlib.sha256(array.tobytes()).hexdigest()
    assert found["tensor"]["sha256"] == found["array"]["sha256"]
    assert found["table"]["columns"] == {"a": "Int64", "b": "String"}
    assert found["splits"]["parts"]["train"]["length"] == 10
    assert found["loader"]["batch_size"] == 5
    assert found["loader"]["sampler"] == "RandomSampler"
    assert not (recorded.path / "artifacts").exists()


# Statistics of a model


def test_a_watched_model(recorded: Run, logger: Own) -> None:
    """Weights at the call; from then on both norms inside of every so many steps, exactly."""
    model = net()
    optimizer = torch.optim.SGD(model.parameters(), lr=0.0)
    other = torch.optim.SGD([torch.nn.Parameter(torch.ones(1))], lr=0.1)
    logger.log(model, "net", kind="watch", every=2)
    expected = 0.0
    for i in range(5):
        recorded.set_step(i)
        optimizer.zero_grad()
        model(torch.full((1, 4), float(i))).sum().backward()
        if i == 3:
            expected = math.sqrt(sum(float((p.grad**2).sum()) for p in model.parameters()))
        optimizer.step()
        other.step()
    weight = math.sqrt(sum(float((p.detach() ** 2).sum()) for p in model.parameters()))
    logger.destroy_logger_context()
    optimizer.step()
    recorded.finish()
    (one,) = items(recorded, "watch")
    assert one.value["model"] == "Sequential"
    assert one.value["groups"] == ["overall", "0", "2"]
    found = metrics(recorded)
    weights = [m for m in found if m.name == "net/weight_norm/overall"]
    gradients = [m for m in found if m.name == "net/gradient_norm/overall"]
    # At the call, and before the steps 1 and 3, counted from 0.
    assert len(weights) == 3
    assert [m.step for m in gradients] == [1, 3]
    assert weights[0].value == pytest.approx(weight, rel=1e-5)
    assert gradients[1].value == pytest.approx(expected, rel=1e-5)
    assert {m.name for m in found} == {
        f"net/{what}_norm/{group}"
        for what in ("weight", "gradient")
        for group in ("overall", "0", "2")
    }
    assert {m.audience for m in found} == {(1,)}


def test_watching_in_every_batch_adds_nothing_by_itself(recorded: Run, logger: Own) -> None:
    """Who calls it chooses when."""
    model = net()
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
    for i in range(4):
        recorded.set_step(i)
        model(torch.ones(1, 4)).sum().backward()
        logger.log(model, "net", kind="watch", every=1)
        if i:
            optimizer.step()
    recorded.finish()
    assert len([m for m in metrics(recorded) if m.name == "net/weight_norm/overall"]) == 4
    assert len(items(recorded, "watch")) == 1


def test_a_large_model_is_watched_by_its_parts(recorded: Run, logger: Own) -> None:
    """Else there would be more metrics than anybody looks at."""
    layers = torch.nn.Sequential(*[torch.nn.Linear(1, 1) for _ in range(60)])
    logger.log(torch.nn.ModuleDict({"body": layers}), "net", kind="watch")
    recorded.finish()
    assert {m.name for m in metrics(recorded)} == {
        "net/weight_norm/overall",
        "net/weight_norm/body",
    }


# Floating point operations


def test_flops_of_a_batch_and_of_an_epoch(recorded: Run, logger: Own) -> None:
    """Two for each weight and sample; the model, its statistics and the random numbers are untouched."""
    model = torch.nn.Sequential(
        torch.nn.Linear(8, 16), torch.nn.BatchNorm1d(16), torch.nn.Dropout(), torch.nn.Linear(16, 2)
    )
    per_sample = 2 * (8 * 16 + 16 * 2)
    data = torch.utils.data.TensorDataset(torch.ones(10, 8), torch.zeros(10))
    loader = torch.utils.data.DataLoader(data, batch_size=4, shuffle=True)
    before = {name: value.clone() for name, value in model.state_dict().items()}
    torch.manual_seed(3)
    random.seed(3)
    logger.log((model, torch.ones(5, 8)), "batch", kind="flops_pb")
    logger.log((model, (torch.ones(5, 8), torch.ones(5))), "pair", kind="flops_pb")
    logger.log((model, loader), "epoch", kind="flops_pe")
    after = torch.rand(1)
    torch.manual_seed(3)
    assert torch.equal(after, torch.rand(1))
    assert model.training
    assert all(torch.equal(before[name], value) for name, value in model.state_dict().items())
    assert all(parameter.grad is None for parameter in model.parameters())
    found = {i.name: i for i in logged(recorded)}
    assert found["batch"].value == 5 * per_sample
    assert found["pair"].value == 5 * per_sample
    assert found["epoch"].value == 10 * per_sample
    assert found["epoch"].attributes["batches"] == 3
    assert found["batch"].attributes["unit"] == "FLOP"


# Readings


def test_system(recorded: Run, logger: Own) -> None:
    """What the machine says, with numbers that make sense; neither item nor name is needed."""
    pytest.importorskip("psutil")
    until = time.process_time() + 0.2
    while time.process_time() < until:
        pass
    logger.log(None, None, kind="system")
    logger.log(None, None, kind="system")
    one, two = logged(recorded, "system")
    assert one.name == "system"
    assert one.value["cpu_percent"] > 1
    assert ("node_cpu_percent" in one.value, "node_cpu_percent" in two.value) == (False, True)
    assert one.value["memory_rss_bytes"] > 1e6
    assert one.value["memory_total_bytes"] > one.value["memory_available_bytes"] > 0
    assert all(isinstance(value, float) for value in one.value.values())


@pytest.mark.parametrize(
    ("item", "low", "high"),
    [
        (None, 0.0, 60.0),
        (12.5, 12.5, 12.5),
        (3, 3.0, 3.0),
        (timedelta(minutes=1), 60.0, 60.0),
        (torch.tensor(2.0), 2.0, 2.0),
    ],
)
def test_execution_time_is_a_duration(
    recorded: Run, logger: Own, item: Any, low: float, high: float
) -> None:
    """In seconds: the one that is given, else since the context was created."""
    logger.log(item, "training", kind="execution_time")
    (one,) = logged(recorded)
    assert low <= one.value <= high
    assert one.attributes["unit"] == "s"


def test_carbon_where_energy_is_not_known(
    recorded: Run, logger: Own, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    """It is absent, and said why; no number is made up."""
    from stepwell.loggers.items import readings

    monkeypatch.setattr(readings.Readings, "_energy", lambda self: ({}, []))
    monkeypatch.delenv("STEPWELL_STRICT")
    logger.log(None, None, kind="carbon")
    assert "STEPWELL_TDP_WATTS" in caplog.text
    assert logged(recorded) == []


def test_carbon_is_estimated_where_that_is_asked_for(
    recorded: Run, monkeypatch: pytest.MonkeyPatch
) -> None:
    """It says so; emissions only where somebody says what a kWh stands for."""
    from stepwell.loggers.items import readings

    class NoCounter:
        def __bool__(self) -> bool:
            return False

    monkeypatch.setenv("STEPWELL_TDP_WATTS", "100")
    monkeypatch.setattr(readings, "CpuEnergy", NoCounter)
    monkeypatch.setattr(readings.os.path, "exists", lambda path: False)
    seconds = iter([0.0, 10.0, 46.0, 46.0])
    monkeypatch.setattr(readings, "_cpu_seconds", lambda: next(seconds))
    monkeypatch.setattr("stepwell.telemetry.runtime.energy.os.cpu_count", lambda: 4)
    logger = Own().create_logger_context()
    logger.log(None, "a", kind="carbon")
    logger.log(None, "b", kind="carbon", carbon_intensity=400)
    monkeypatch.undo()
    one, two = logged(recorded)
    # 36 s of one of four cores that use 100 W together.
    assert one.value["energy_estimated_joules"] == pytest.approx(900)
    assert one.value["energy_estimated_kwh"] == pytest.approx(900 / 3.6e6)
    assert not any("measured" in name for name in one.value)
    assert one.attributes["source"].startswith("estimated: processor time")
    assert "emissions_kg_co2" not in one.value
    assert two.value["emissions_kg_co2"] == pytest.approx(900 / 3.6e6 * 0.4)


def test_carbon_is_measured_where_there_is_a_counter(
    recorded: Run, monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    """From when the context was created."""
    from stepwell.loggers.items import readings
    from stepwell.telemetry.runtime.energy import CpuEnergy

    package = tmp_path / "intel-rapl:0"
    package.mkdir()
    (package / "max_energy_range_uj").write_text("1000000000")
    (package / "energy_uj").write_text("5000000")
    monkeypatch.setattr(readings, "CpuEnergy", lambda: CpuEnergy(tmp_path))
    monkeypatch.setenv("STEPWELL_TDP_WATTS", "100")
    logger = Own().create_logger_context()
    (package / "energy_uj").write_text("8000000")
    logger.log(None, None, kind="carbon")
    (one,) = logged(recorded)
    assert one.value["energy_cpu_measured_joules"] == 3.0
    assert one.value["energy_measured_joules"] == 3.0
    assert not any("estimated" in name for name in one.value)
    assert one.attributes["source"] == "measured: processor packages (RAPL)"


def test_prov_documents_are_asked_for(recorded: Run, logger: Own) -> None:
    """They are made of the run as it is, in the background, and kept as files."""
    logger.save_hyperparameters({"lr": 0.125})
    begin = time.monotonic()
    logger.log(None, None, kind="prov_documents", step=3)
    assert time.monotonic() - begin < 1.0
    found = {one.file: one for one in logged(recorded, "prov_documents")}
    assert {one.name for one in found.values()} == {"prov_documents"}
    assert "provenance.json" in found
    assert found["provenance.svg"].media == "image/svg+xml"
    one = found["provenance.json"]
    assert (one.step, one.attributes) == (3, {"folder": True})
    document = json.loads(content(recorded, one))
    assert {"prefix", "entity", "activity", "agent"} <= document.keys()
    assert "0.125" in json.dumps(document)


# What cannot be kept

WRONG: list[tuple[str, Any, str]] = [
    ("artifact", "no/such/file", "is no file or folder"),
    ("artifact", lambda: None, "pickle"),
    ("dict", 5, "a dict is needed, not int"),
    ("figure", "no/such.png", "is no file with a picture"),
    ("image", np.zeros(3), "an array of 2, 3 or 4 axes"),
    ("image", np.array([["a"]]), "numbers in it"),
    ("image", np.zeros((0, 3)), "an array of 2, 3 or 4 axes"),
    ("image", np.zeros((5, 5, 5, 5)), "no axis of 1, 3 or 4 channels"),
    ("model", "no/such.pt", "is no file with a model"),
    ("model", lambda: None, "pickle"),
    ("torch", lambda: None, "pickle"),
    ("watch", 5, "a torch.nn.Module is needed, not int"),
    ("flops_pb", 5, "the item is (model, batch)"),
    ("flops_pb", (1, 2), "a torch.nn.Module is needed"),
    ("flops_pe", (1, iter([])), "does not say how many batches"),
    ("execution_time", "long", "a number of seconds is needed"),
]


@pytest.mark.parametrize(("kind", "item", "said"), WRONG)
def test_what_cannot_be_kept_is_said_and_training_goes_on(
    recorded: Run,
    logger: Own,
    monkeypatch: pytest.MonkeyPatch,
    caplog: pytest.LogCaptureFixture,
    kind: str,
    item: Any,
    said: str,
) -> None:
    """Once for each kind, with the name and the reason; in tests it is raised."""
    from stepwell.journal import errors

    with pytest.raises(StepwellError) as error:
        logger.log(item, "wrong one", kind=kind)
    assert said in str(error.value)
    monkeypatch.delenv("STEPWELL_STRICT")
    errors.counts.pop(f"log {kind}", None)
    caplog.set_level(logging.WARNING, "stepwell")
    for _ in range(3):
        logger.log(item, "wrong one", kind=kind)
    warnings = [r.getMessage() for r in caplog.records if "wrong one" in r.getMessage()]
    assert len(warnings) == 1
    assert f"kind={kind!r}" in warnings[0]
    assert logged(recorded) == []


class Hostile:
    """Whatever is asked of it fails."""

    def __getattr__(self, name: str) -> Any:
        raise RuntimeError("hostile")

    def __str__(self) -> str:
        raise RuntimeError("hostile")

    def __reduce__(self) -> Any:
        raise RuntimeError("hostile")


@pytest.mark.parametrize(
    "kind", [k for k in Own.supported_kinds if k not in ("system", "carbon", "prov_documents")]
)
def test_a_hostile_object_does_not_stop_training(
    recorded: Run, logger: Own, monkeypatch: pytest.MonkeyPatch, kind: str
) -> None:
    """Of whatever kind it is said to be."""
    monkeypatch.delenv("STEPWELL_STRICT")
    logger.log(Hostile(), "hostile", kind=kind)
    logger.log(1.0, "loss")
    recorded.finish()
    assert [m.value for m in metrics(recorded) if m.name == "loss"] == [1.0]


def test_a_full_disk_does_not_stop_training(
    recorded: Run,
    logger: Own,
    monkeypatch: pytest.MonkeyPatch,
    caplog: pytest.LogCaptureFixture,
) -> None:
    """It is said, and counted."""
    from stepwell.journal import errors
    from stepwell.telemetry import artifacts

    def full(*args: Any) -> Any:
        raise OSError(28, "No space left on device")

    monkeypatch.delenv("STEPWELL_STRICT")
    monkeypatch.setattr(artifacts, "store", full)
    monkeypatch.setattr(artifacts, "store_written", full)
    errors.counts.pop("log artifact", None)
    logger.log(b"x", "file", kind="artifact")
    logger.log(net(), "net", kind="model")
    assert "No space left" in caplog.text
    recorded.finish()
    assert items(recorded) == []
    assert stepwell.open_run(recorded.path).processes().collect()["dropped"].sum() >= 2
