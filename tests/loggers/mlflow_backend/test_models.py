"""Logged models in MLflow: they load, predict, and are registered."""

from __future__ import annotations

import json
import subprocess
import sys
import zipfile
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import numpy as np
import pytest

import stepwell
from stepwell.loggers import Logger
from stepwell.loggers.delivery.forwarder import forward_log
from stepwell.loggers.items import models
from tests.harness import environment, run_script
from tests.loggers.delivering import Log
from tests.loggers.mlflow_backend.finding import Found, backend
from tests.loggers.mlflow_server import Server
from tests.loggers.needs import needs

torch = pytest.importorskip("torch")
pytestmark = [pytest.mark.filterwarnings("ignore"), needs("mlflow", "cloudpickle")]

INPUT = [[0.0, 1.0, 2.0], [3.0, 4.0, 5.0]]
PROGRAM = """
import sys, torch
from stepwell.loggers import MLFlowLogger

class Net(torch.nn.Module):
    def __init__(self):
        super().__init__()
        self.layer = torch.nn.Linear(3, 2)
        self.scale = lambda x: x * 2
        self.register_buffer("shift", torch.full((2,), 5.0), persistent=False)

    def forward(self, x):
        return self.scale(self.layer(x)) + self.shift

torch.manual_seed(0)
net = Net()
uri, name = sys.argv[1:]
logger = MLFlowLogger(experiment_name=name, tracking_uri=uri)
with logger.start_logging():
    logger.save_hyperparameters({"lr": 0.1})
    logger.log(0.5, "loss", context="training")
    logger.log(0.75, "loss", context="validation")
    logger.log(
        net, "digits", kind="model", step=3, registered_model_name=name,
        input_example=torch.ones(4, 3), metadata={"task": "demo"}, tags={"stage": "test"},
    )
    with torch.no_grad():
        print(net(torch.arange(6.0).reshape(2, 3)).tolist())
        net.layer.weight.zero_()
        net.layer.bias.fill_(1.0)
    logger.log(net, "best/digits.pt", kind="best_model", registered_model_name=name)
    assert logger.flush(100)
    print(logger.run_id)
"""


def module_file(module: Any, path: Path, **options: Any) -> bytes:
    """Return the file that ``log(module, …, kind="model")`` keeps."""
    extras = models.take_extras(module, options)
    with path.open("wb") as file:
        models.save(dict(module.state_dict()), module, extras, file)
    return path.read_bytes()


def predicted(model: Any) -> Any:
    with torch.no_grad():
        return model(torch.tensor(INPUT))


def test_a_model_is_loaded_and_predicts_and_is_registered(
    server: Server, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A class of the program itself, with a lambda in it: MLflow's own functions find all of it elsewhere."""
    import mlflow

    monkeypatch.setenv("MLFLOW_TRACKING_URI", server.url)
    lines = run_script(PROGRAM, server.url, "digits-model", check=True).stdout.splitlines()
    expected, run_id = torch.tensor(json.loads(lines[0])), lines[1]
    uri = f"runs:/{run_id}/digits"
    assert torch.equal(predicted(mlflow.pytorch.load_model(uri)), expected)
    served = mlflow.pyfunc.load_model("models:/digits-model/1").predict(np.array(INPUT, np.float32))
    assert np.array_equal(served, expected.numpy())
    # The second one as it was when it was logged: all weights 0, the bias 1.
    best = mlflow.pytorch.load_model(f"runs:/{run_id}/best_digits_pt")
    assert predicted(best).tolist() == [[7.0, 7.0], [7.0, 7.0]]

    about = mlflow.models.get_model_info(uri)
    assert about.signature.inputs.to_dict() == [
        {"type": "tensor", "tensor-spec": {"dtype": "float32", "shape": (-1, 3)}}
    ]
    assert about.signature.outputs.to_dict()[0]["tensor-spec"]["shape"] == (-1, 2)
    assert about.metadata == {"task": "demo"}
    assert set(about.flavors) == {"pytorch", "python_function"}
    example = mlflow.models.Model.load(uri).load_input_example(uri)
    assert np.array_equal(example, np.ones((4, 3)))
    requirements = Path(mlflow.pyfunc.get_model_dependencies(uri)).read_text().splitlines()
    version = torch.__version__.partition("+")[0]
    assert {f"mlflow=={mlflow.__version__}", f"torch=={version}"} <= set(requirements)

    found = Found(server.url, run_id)
    first, second = sorted(
        found.client.search_logged_models([found.run.info.experiment_id]), key=lambda one: one.name
    )
    assert [first.name, second.name] == ["best_digits_pt", "digits"]
    assert {str(first.status), str(second.status)} == {"READY"}
    assert second.params == {"lr": "0.1"}
    assert second.tags["stage"] == "test"
    steps = {one.model_id: one.step for one in found.run.outputs.model_outputs}
    assert steps[second.model_id] == 3
    versions = found.client.search_model_versions("name = 'digits-model'")
    assert {str(one.version): one.source for one in versions} == {
        "1": f"models:/{second.model_id}",
        "2": f"models:/{first.model_id}",
    }
    assert found.files() == []
    # Series of one name from two contexts.
    assert found.history("training/loss") == [(0, 0.5)]
    assert found.history("validation/loss") == [(0, 0.75)]


def test_a_model_that_is_sent_again_is_there_once(uri: str, log: Log, tmp_path: Path) -> None:
    """Also where the process was killed after it had made it, and before it could say so."""
    data = module_file(torch.nn.Linear(3, 2), tmp_path / "file")
    name = f"again-{tmp_path.name}"
    item = log.item("model", name, data=data, file="net.pt", registered_model_name=name)
    to = backend(uri)
    log.open(to)
    left = log.killed()
    to.deliver([item], again=False)
    to.deliver([item], again=True)
    log.state = left
    log.open(to)
    to.deliver([item], again=True)
    found = Found(to.uri, log.state["run_id"])
    models = found.client.search_logged_models([found.run.info.experiment_id], f"name = '{name}'")
    assert len(models) == 1
    assert len(found.run.outputs.model_outputs) == 1
    assert len(found.client.search_model_versions(f"name = '{name}'")) == 1


def test_what_is_no_whole_model_stays_a_file(uri: str, log: Log, tmp_path: Path) -> None:
    """And it is said why nothing is registered; a file that was tampered with is one, too."""
    whole = module_file(torch.nn.Linear(3, 2), tmp_path / "file")
    compressed = tmp_path / "compressed"
    with (
        zipfile.ZipFile(tmp_path / "file") as source,
        zipfile.ZipFile(compressed, "w", zipfile.ZIP_DEFLATED) as target,
    ):
        for info in source.infolist():
            target.writestr(info.filename, source.read(info))
    to = backend(uri)
    log.open(to)
    to.deliver(
        [
            log.item("model", "weights", data=b"w", file="weights.pt", registered_model_name="x"),
            log.item("model", "bomb", data=compressed.read_bytes(), file="bomb.pt"),
            log.item("torch", "tensor", data=whole, file="tensor.pt"),
        ],
        again=False,
    )
    found = Found(to.uri, log.state["run_id"])
    assert found.files() == ["bomb.pt", "tensor.pt", "weights.pt"]
    assert found.run.outputs is None or not found.run.outputs.model_outputs
    [note] = [text for key, text in log.state["notes"].items() if key.startswith("not registered")]
    assert "Log the torch.nn.Module itself" in note


def test_a_registry_that_refuses_stops_nothing(uri: str, log: Log, tmp_path: Path) -> None:
    """A name that MLflow does not take."""
    data = module_file(torch.nn.Linear(3, 2), tmp_path / "file")
    item = log.item("model", "net", data=data, file="net.pt", registered_model_name="a/b:c")
    to = backend(uri)
    log.open(to)
    to.deliver([item], again=False)
    found = Found(to.uri, log.state["run_id"])
    assert len(found.run.outputs.model_outputs) == 1
    assert any(key.startswith("registered") for key in log.state["notes"])


@pytest.mark.full
def test_a_server_without_logged_models_has_a_folder_in_the_run(
    database: str, log: Log, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """As before MLflow 3."""
    import mlflow
    from mlflow.exceptions import MlflowException

    def refuse(*_: Any, **__: Any) -> None:
        raise MlflowException("no such endpoint", 1001)

    net = torch.nn.Linear(3, 2)
    name = f"old-{tmp_path.name}"
    data = module_file(net, tmp_path / "file")
    item = log.item("model", "net", data=data, file="net.pt", registered_model_name=name)
    to = backend(database)
    log.open(to)
    monkeypatch.setattr(mlflow.MlflowClient, "create_logged_model", refuse)
    to.deliver([item], again=False)
    to.deliver([item], again=True)
    monkeypatch.setenv("MLFLOW_TRACKING_URI", database)
    for uri in (f"runs:/{log.state['run_id']}/net", f"models:/{name}/1"):
        assert torch.equal(predicted(mlflow.pytorch.load_model(uri)), predicted(net))
    assert len(to._connected().search_model_versions(f"name = '{name}'")) == 1


MODULES = {
    "script": lambda: torch.jit.script(torch.nn.Linear(3, 2)),
    "wrapped": lambda: torch.nn.DataParallel(torch.nn.Linear(3, 2)),
    "with a hook of its own": lambda: torch.nn.utils.weight_norm(torch.nn.Linear(3, 2)),
    "watched": lambda: watched(torch.nn.Linear(3, 2)),
}


ANNOTATED: list[Any] = []


@pytest.fixture
def _left_alone() -> Iterator[None]:
    """Take stepwell's hooks away again, from PyTorch too."""
    yield
    while ANNOTATED:
        ANNOTATED.pop().remove()


def watched(net: Any) -> Any:
    """Return the module with stepwell's hooks on it, and with what a training step leaves."""
    from stepwell.integrations.torch import annotate

    ANNOTATED.append(annotate(net))
    net(torch.ones(1, 3)).sum().backward()
    return net


@pytest.mark.usefixtures("_left_alone")
@pytest.mark.parametrize("which", MODULES)
def test_a_run_that_was_recorded_without_mlflow_is_forwarded_with_its_models(
    database: str, root: Path, monkeypatch: pytest.MonkeyPatch, which: str
) -> None:
    """Whatever the module is, it predicts the same."""
    import mlflow

    experiment = f"forwarded {which}"
    logger = Logger()
    with stepwell.init("plain") as run, logger.start_logging():
        net = MODULES[which]()
        expected = predicted(net)
        logger.log(net, "net", kind="model", input_example=np.ones((1, 3), np.float32))
    forward_log(run.path, "mlflow", {"tracking_uri": database, "experiment_name": experiment})
    monkeypatch.setenv("MLFLOW_TRACKING_URI", database)
    client = mlflow.MlflowClient()
    [found] = client.search_experiments(filter_string=f"name = '{experiment}'")
    [model] = client.search_logged_models([found.experiment_id])
    loaded = mlflow.pytorch.load_model(f"runs:/{model.source_run_id}/net")
    assert torch.equal(predicted(loaded), expected)
    assert not isinstance(loaded, torch.nn.DataParallel)


LOAD = """
import sys
import mlflow.pytorch, torch
print(mlflow.pytorch.load_model(sys.argv[1])(torch.ones(1, 3)).tolist())
"""


@pytest.mark.full
def test_code_paths_are_found_where_the_model_is_loaded(
    database: str, log: Log, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """In a process that knows nothing of the project; and the model server's own command predicts."""
    project = tmp_path / "project"
    (project / "nets").mkdir(parents=True)
    (project / "nets" / "__init__.py").write_text("from nets.plain import Plain\n")
    (project / "nets" / "plain.py").write_text("import torch\nclass Plain(torch.nn.Linear): pass\n")
    monkeypatch.syspath_prepend(project)
    from nets import Plain  # type: ignore[import-not-found]

    net = Plain(3, 2)
    data = module_file(
        net, tmp_path / "file", code_paths=[project / "nets"], input_example=torch.ones(1, 3)
    )
    to = backend(database)
    log.open(to)
    to.deliver([log.item("model", "net", data=data, file="net.pt")], again=False)
    uri = f"runs:/{log.state['run_id']}/net"
    expected = net(torch.ones(1, 3)).tolist()
    variables = {**environment(), "MLFLOW_TRACKING_URI": database}
    loading = [sys.executable, "-c", LOAD, uri]
    done = subprocess.run(loading, env=variables, capture_output=True, text=True, check=True)
    assert json.loads(done.stdout) == expected
    (tmp_path / "input.json").write_text('{"inputs": [[1, 1, 1]]}')
    command = [sys.executable, "-m", "mlflow", "models", "predict", "-m", uri]
    command += ["-i", str(tmp_path / "input.json"), "--env-manager", "local"]
    done = subprocess.run(command, env=variables, capture_output=True, text=True, check=True)
    assert json.loads(done.stdout)["predictions"] == expected
