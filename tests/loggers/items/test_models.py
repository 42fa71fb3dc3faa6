"""Models, datasets, statistics of models, and their floating point operations."""

from __future__ import annotations

import gc
import io
import json
import math
import pickle
import random
import sys
import threading
import weakref
import zipfile
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from stepwell import Run
from stepwell._core import errors
from tests.loggers.items.reading import logged
from tests.loggers.items.things import Thing, net
from tests.loggers.lines_backend import LinesBackend
from tests.loggers.logged import Own, content, items, metrics

torch = pytest.importorskip("torch")


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


def test_the_module_is_in_the_file_of_its_weights(recorded: Run, logger: Own) -> None:
    """Its tensors are stored once, including tied ones and those that are not weights."""
    model = torch.nn.Sequential(torch.nn.Linear(400, 400, bias=False), torch.nn.Linear(400, 400))
    model[1].weight = model[0].weight
    model.register_buffer("cache", torch.ones(1000), persistent=False)
    logger.log(model, "net", kind="model")
    (one,) = logged(recorded, "model")
    data = content(recorded, one)
    weights = torch.load(io.BytesIO(data), weights_only=True)
    assert weights.keys() == model.state_dict().keys()
    parts = zipfile.ZipFile(io.BytesIO(data))
    sizes = sorted(info.file_size for info in parts.infolist() if "/data/" in info.filename)
    assert sizes == [400 * 4, 1000 * 4, 400 * 400 * 4]
    assert {"archive/module.pkl", "archive/module.json"} <= {*parts.namelist()}


def test_without_cloudpickle_plain_pickle_is_used(
    recorded: Run, logger: Own, monkeypatch: pytest.MonkeyPatch
) -> None:
    """And the file says so, for MLflow to load it the same way."""
    monkeypatch.setitem(sys.modules, "cloudpickle", None)
    logger.log(net(), "net", kind="model")
    (one,) = logged(recorded, "model")
    parts = zipfile.ZipFile(io.BytesIO(content(recorded, one)))
    assert json.loads(parts.read("archive/module.json"))["pickle_module"] == "pickle"
    assert b"torch.nn.modules.container" in parts.read("archive/module.pkl")


class NamedMLflow(LinesBackend):
    """Another backend, in this process."""

    name = "mlflow"
    out_of_process = False


def test_a_module_that_cannot_be_pickled_is_its_weights(
    recorded: Run, logger: Own, caplog: pytest.LogCaptureFixture, tmp_path: Path
) -> None:
    """With an MLflow logger there is a warning with the reason; others miss nothing."""
    model = net()
    model.lock = threading.Lock()
    logger.log(model, "net", kind="model")
    assert not caplog.records
    recorded.add_exporter(NamedMLflow(path=str(tmp_path / "lines")))
    for _ in range(2):
        logger.log(model, "net", kind="model")
    (warning,) = [record.getMessage() for record in caplog.records]
    assert (
        "Sequential cannot be pickled (TypeError: cannot pickle '_thread.lock' object)" in warning
    )
    assert "__getstate__" in warning
    for one in logged(recorded, "model"):
        data = content(recorded, one)
        assert torch.load(io.BytesIO(data), weights_only=True).keys() == model.state_dict().keys()
        assert "archive/module.pkl" not in zipfile.ZipFile(io.BytesIO(data)).namelist()


def test_an_exporter_without_a_name_does_not_lose_a_module_that_cannot_be_pickled(
    recorded: Run, logger: Own
) -> None:
    """The weights are logged, whatever else is attached to the run."""

    class Nameless:
        def export(self, records: Any) -> None:
            """Take nothing."""

    recorded.add_exporter(Nameless())
    model = net()
    model.lock = threading.Lock()
    logger.log(model, "net", kind="model")
    (one,) = logged(recorded, "model")
    assert torch.load(io.BytesIO(content(recorded, one)), weights_only=True).keys()


def test_a_model_that_is_spread_over_ranks_is_not_called(
    recorded: Run, logger: Own, monkeypatch: pytest.MonkeyPatch
) -> None:
    """To call it, every rank would have to be here: the one that logs would wait for the others."""

    class Spread(torch.nn.Linear):
        def forward(self, inputs: Any) -> Any:
            raise AssertionError("it was called")

    monkeypatch.setattr("stepwell.diagnostics.sharding.is_sharded", lambda model: True)
    logger.log(Spread(4, 3), "net", kind="model", input_example=torch.ones(2, 4), metadata={"a": 1})
    (one,) = logged(recorded, "model")
    assert one.attributes["sharded"] is True
    assert one.attributes["metadata"] == {"a": 1}
    assert "input_example" not in one.attributes
    assert not [e for e in errors.counts if "input example" in e]


def test_to_log_a_model_leaves_no_trace_in_it(recorded: Run, logger: Own) -> None:
    """Random numbers, statistics and mode are as before, and nothing holds on to it."""
    model = torch.nn.Sequential(torch.nn.Linear(4, 3), torch.nn.BatchNorm1d(3), torch.nn.Dropout())
    before = {name: value.clone() for name, value in model.state_dict().items()}
    torch.manual_seed(3)
    logger.log(model, "net", kind="model", input_example=torch.rand(5, 4))
    after = torch.rand(1)
    torch.manual_seed(3)
    torch.rand(5, 4)
    assert torch.equal(after, torch.rand(1))
    assert model.training
    assert all(torch.equal(before[name], value) for name, value in model.state_dict().items())
    gone = weakref.ref(model)
    gc.disable()
    try:
        del model
        assert gone() is None
    finally:
        gc.enable()
    (one,) = logged(recorded, "model")
    facts = json.loads(
        zipfile.ZipFile(io.BytesIO(content(recorded, one))).read("archive/module.json")
    )
    assert facts["output"] == {"dtype": "float32", "shape": [5, 3]}
    assert len(facts["example"]["data"]) == 5
    assert f"torch=={torch.__version__.partition('+')[0]}" in facts["requirements"]


@pytest.mark.parametrize(
    ("options", "says"),
    [
        ({"input_example": object()}, "input_example=…): the argument is left out"),
        ({"input_example": torch.ones(2, 9)}, "the model fails with its input_example"),
        ({"signature": 3}, "must be a result of mlflow.models.infer_signature(), got int"),
        ({"code_paths": ["no/such.py"]}, "'no/such.py' does not exist"),
        ({"pip_requirements": "no/such.txt"}, "No such file"),
    ],
)
def test_a_wrong_argument_is_a_warning(
    recorded: Run,
    logger: Own,
    caplog: pytest.LogCaptureFixture,
    options: dict[str, Any],
    says: str,
) -> None:
    """The model is kept all the same."""
    logger.log(net(), "net", kind="model", **options)
    (warning,) = [record.getMessage() for record in caplog.records]
    assert says in warning
    (one,) = logged(recorded, "model")
    assert "archive/module.pkl" in zipfile.ZipFile(io.BytesIO(content(recorded, one))).namelist()


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
    """Weights at the call; from then on both norms in exactly every n-th step."""
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


def test_a_watched_model_that_is_gone(recorded: Run, logger: Own) -> None:
    """Its optimizer continues, and so do other watched models."""
    gone, model = net(), net()
    parameters = [*gone.parameters()]
    optimizer = torch.optim.SGD([*parameters, *model.parameters()], lr=0.1)
    logger.log(gone, "gone", kind="watch", every=1)
    logger.log(model, "net", kind="watch", every=1)
    del gone
    for i in range(3):
        recorded.set_step(i)
        optimizer.step()
    logger.destroy_logger_context()
    recorded.finish()
    names = [m.name for m in metrics(recorded) if m.name.endswith("weight_norm/overall")]
    # Each at its call; the one that is there in each step too.
    assert names == ["gone/weight_norm/overall", *["net/weight_norm/overall"] * 4]


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
