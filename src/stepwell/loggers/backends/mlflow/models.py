"""Creates MLflow Models, which MLflow can load, serve and register, from the file of a logged module.

The parts of the file are copied. Nothing in it is unpickled here.
"""

from __future__ import annotations

import json
import re
import shutil
import tempfile
import zipfile
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any

from stepwell.loggers.backends.mlflow.names import LONGEST_TAG, cut
from stepwell.loggers.backends.mlflow.runs import is_sql
from stepwell.loggers.delivery.backend import ItemRecord
from stepwell.loggers.delivery.files import renamed_message, safe_parts
from stepwell.loggers.items.models import CODE, FACTS, MODULE, SCRIPT

if TYPE_CHECKING:
    from mlflow import MlflowClient
    from mlflow.entities import LoggedModel
    from mlflow.models import Model

Warn = Callable[[str, str], None]

KINDS = ("model", "best_model")
ITEM_TAG = "stepwell.item"
"""Tag of a logged model with the key of the item, to find a model that was created before."""
KIND_TAG = "stepwell.kind"
LARGEST_FACTS = 64 << 20
DATA = "data"
WEIGHTS = "data.pkl"
NO_LOGGED_MODELS = ("ENDPOINT_NOT_FOUND", "NOT_IMPLEMENTED")
"""Errors of servers before MLflow 3."""
GONE = "RESOURCE_DOES_NOT_EXIST"
EXISTS = ("RESOURCE_ALREADY_EXISTS", "ALREADY_EXISTS")
LATER = (
    "INTERNAL_ERROR",
    "TEMPORARILY_UNAVAILABLE",
    "REQUEST_LIMIT_EXCEEDED",
    "RESOURCE_EXHAUSTED",
    "DEADLINE_EXCEEDED",
    "ABORTED",
)
"""Errors that may not occur the next time. All others are final."""


@dataclass(frozen=True)
class LoggedModule:
    """An item whose file contains a whole module."""

    item: ItemRecord
    content: Path
    facts: dict[str, Any]

    @property
    def name(self) -> str:
        """The item's name, without characters that MLflow does not accept in the name of a model."""
        return re.sub(r"[/:.%\"']+", "_", self.item.name.strip("/")) or self.item.kind

    @property
    def key(self) -> str:
        """A key of the item, the same for each attempt to send it."""
        return f"{(self.item.content or '')[:16]}-{self.item.time_ns}"


def module_of(item: ItemRecord, content_path: Callable[[str], Path]) -> LoggedModule | None:
    """Return the item as a module if it is a model and its file contains one; else None."""
    if item.kind not in KINDS or item.content is None:
        return None
    content = content_path(item.content)
    try:
        with zipfile.ZipFile(content) as archive:
            names = {_own(info): info for info in archive.infolist()}
            if not {MODULE, SCRIPT} & names.keys() or not all(map(_is_plain, names.values())):
                return None
            if FACTS not in names or names[FACTS].file_size > LARGEST_FACTS:
                return None
            facts = json.loads(archive.read(names[FACTS]))
    except (OSError, ValueError, NotImplementedError, zipfile.BadZipFile):
        return None
    return LoggedModule(item, content, facts) if isinstance(facts, dict) else None


def _is_plain(info: zipfile.ZipInfo) -> bool:
    """Return whether a part is stored as torch does it. A compressed part might fill the disk."""
    return info.compress_type == zipfile.ZIP_STORED and not info.flag_bits & 1


def _own(info: zipfile.ZipInfo) -> str:
    """Return the name of a part, without the folder that contains all parts."""
    return info.filename.partition("/")[2]


class Models:
    """Sends modules to a run as logged models, and registers them on request.

    ``sent`` (the models that were created) is saved with the state of delivery, even if sending fails.
    """

    def __init__(
        self,
        client: MlflowClient,
        run_id: str,
        params: dict[str, str],
        sent: dict[str, str],
        warn: Warn,
    ) -> None:
        self.client = client
        self.run_id = run_id
        self.params = params
        self.sent = sent
        self.warn = warn

    def send(self, module: LoggedModule, again: bool) -> None:
        """Upload a module, unless it is there. ``again``: it may be there, in whole or in part."""
        from mlflow.exceptions import MlflowException

        if module.name != module.item.name:
            self.warn("model name", renamed_message(module.item.name, module.name, "MLflow"))
        try:
            logged = self._logged_model(module, again)
        except MlflowException as error:
            if error.error_code not in NO_LOGGED_MODELS:
                raise
            self._send_to_run(module)
            return
        if str(logged.status) != "READY":
            with self._folder(module, logged.artifact_location, logged.model_id) as folder:
                self.client.log_model_artifacts(logged.model_id, str(folder))
            self._link(module, logged.model_id)
            self.client.finalize_logged_model(logged.model_id, "READY")
        # For a database, MLflow would resolve models:/ with the tracking URI of the environment.
        is_own = is_sql(self.client.tracking_uri)
        uri = logged.artifact_location if is_own else f"models:/{logged.model_id}"
        self._register(module, uri, logged.model_id, again)

    def _logged_model(self, module: LoggedModule, again: bool) -> LoggedModel:
        from mlflow.exceptions import MlflowException

        client = self.client
        model_id = self.sent.get(module.key)
        if model_id is not None:
            try:
                return client.get_logged_model(model_id)
            except MlflowException as error:
                if error.error_code != GONE:
                    raise
                # It was deleted: create it again.
        experiment = client.get_run(self.run_id).info.experiment_id
        earlier = self._unsaved(module, experiment) if again else None
        attributes = module.item.attributes
        logged = earlier or client.create_logged_model(
            experiment,
            name=module.name,
            source_run_id=self.run_id,
            tags={**_tags(attributes), ITEM_TAG: module.key, KIND_TAG: module.item.kind},
            params=dict(self.params),
            model_type=_text(attributes.get("model_type")),
        )
        self.sent[module.key] = logged.model_id
        return logged

    def _unsaved(self, module: LoggedModule, experiment: str) -> LoggedModel | None:
        """Return a model that was created by a process that ended before it saved its id."""
        token = None
        while True:
            page = self.client.search_logged_models(
                [experiment], f"name = '{module.name}'", page_token=token
            )
            for logged in page:
                is_own = logged.source_run_id == self.run_id
                if is_own and logged.tags.get(ITEM_TAG) == module.key:
                    return logged
            token = page.token
            if not token:
                return None

    def _link(self, module: LoggedModule, model_id: str) -> None:
        from mlflow.entities import LoggedModelOutput

        run = self.client.get_run(self.run_id)
        linked = run.outputs.model_outputs if run.outputs else []
        if all(output.model_id != model_id for output in linked):
            output = LoggedModelOutput(model_id, step=module.item.step or 0)
            self.client.log_outputs(self.run_id, [output])

    def _send_to_run(self, module: LoggedModule) -> None:
        """Upload a module as a folder of artifacts, for servers before MLflow 3."""
        with self._folder(module, module.name, None) as folder:
            self.client.log_artifacts(self.run_id, str(folder), module.name)
        root = self.client.get_run(self.run_id).info.artifact_uri
        self._register(module, f"{root}/{module.name}", None, True)

    @contextmanager
    def _folder(self, module: LoggedModule, location: str, model_id: str | None) -> Iterator[Path]:
        """Context manager: a temporary folder with the MLflow Model."""
        from mlflow.models import Model

        model = Model(location, self.run_id, model_id=model_id)
        model.model_uuid = model_id or model.model_uuid
        metadata = module.item.attributes.get("metadata")
        if isinstance(metadata, dict):
            model.metadata = metadata
        with tempfile.TemporaryDirectory(prefix="stepwell-") as temporary:
            folder = Path(temporary, "model")
            _write_files(model, folder, module)
            try:
                _describe(model, folder, module.facts)
            except Exception as error:
                self.warn(
                    "signature", f"{module.item.name!r} has no signature: {cut(str(error), 300)}"
                )
            files = [path for path in folder.rglob("*") if path.is_file()]
            model.model_size_bytes = sum(path.stat().st_size for path in files)
            model.save(str(folder / "MLmodel"))
            yield folder

    def _register(self, module: LoggedModule, uri: str, model_id: str | None, again: bool) -> None:
        from mlflow.exceptions import MlflowException

        name = _text(module.item.attributes.get("registered_model_name"))
        if name is None:
            return
        try:
            self._add_version(module, name, uri, model_id, again)
        except MlflowException as error:
            if error.error_code in LATER:
                raise
            self.warn(
                f"registered {name}",
                f"MLflow does not register {module.item.name!r} as {name!r}: {cut(str(error), 300)}",
            )

    def _add_version(
        self, module: LoggedModule, name: str, uri: str, model_id: str | None, again: bool
    ) -> None:
        from mlflow.exceptions import MlflowException

        client = self.client
        try:
            client.create_registered_model(name)
        except MlflowException as error:
            if error.error_code not in EXISTS:
                raise
        if again:
            quoted = name.replace("'", "\\'")
            versions = client.search_model_versions(f"name = '{quoted}'")
            if any(version.tags.get(ITEM_TAG) == module.key for version in versions):
                return
        client.create_model_version(
            name,
            uri,
            self.run_id,
            tags={**_tags(module.item.attributes), ITEM_TAG: module.key},
            await_creation_for=0,
            model_id=model_id,
        )


def _tags(attributes: dict[str, Any]) -> dict[str, str]:
    given = attributes.get("tags")
    pairs = given.items() if isinstance(given, dict) else ()
    return {str(key): cut(str(value), LONGEST_TAG) for key, value in pairs}


def _text(value: Any) -> str | None:
    return value if isinstance(value, str) and value else None


# The folder of an MLflow Model


def _write_files(model: Model, folder: Path, module: LoggedModule) -> None:
    """Write all files except ``MLmodel``, and describe to the model how it is loaded."""
    from mlflow import __version__, pyfunc

    facts = module.facts
    pickle_module, python = str(facts.get("pickle_module")), str(facts.get("python"))
    (folder / DATA).mkdir(parents=True)
    (folder / DATA / "pickle_module_info.txt").write_text(pickle_module)
    with zipfile.ZipFile(module.content) as archive:
        _write_module(archive, folder / DATA / "model.pth")
        code = _write_code(archive, folder)
    _write_environment(folder, python, [f"mlflow=={__version__}", *_requirements(facts)])
    model.add_flavor("pytorch", model_data=DATA, pytorch_version=str(facts.get("torch")), code=code)
    pyfunc.add_to_model(
        model,
        loader_module="mlflow.pytorch",
        data=DATA,
        code=code,
        conda_env="conda.yaml",
        python_env="python_env.yaml",
        model_config={"device": None},
        pickle_module_name=pickle_module,
    )
    # Not the version of this process, which may run on another machine.
    model.flavors["python_function"]["python_version"] = python


def _write_module(archive: zipfile.ZipFile, target: Path) -> None:
    """Write the file from which ``torch.load`` loads the module: the file of weights with another pickle."""
    parts = {_own(info): info for info in archive.infolist()}
    if SCRIPT in parts:
        with archive.open(parts[SCRIPT]) as source, target.open("wb") as script:
            shutil.copyfileobj(source, script)
        return
    with zipfile.ZipFile(target, "w") as whole:
        for name, info in parts.items():
            if name in (WEIGHTS, FACTS, ".storage_alignment") or name.startswith(CODE):
                continue
            copy = zipfile.ZipInfo(f"model/{WEIGHTS if name == MODULE else name}")
            copy.file_size = info.file_size
            # Torch can be configured to write no checksums, which would be read as wrong ones.
            del info.CRC
            with archive.open(info) as source, whole.open(copy, "w") as part:
                shutil.copyfileobj(source, part, 1 << 20)


def _write_code(archive: zipfile.ZipFile, folder: Path) -> str | None:
    """Write the files of ``code_paths``. Return their folder; None if there are none."""
    code = None
    for info in archive.infolist():
        if _own(info).startswith(CODE):
            code = CODE.rstrip("/")
            file = folder.joinpath(code, *safe_parts(_own(info).removeprefix(CODE)))
            file.parent.mkdir(parents=True, exist_ok=True)
            file.write_bytes(archive.read(info))
    return code


def _requirements(facts: dict[str, Any]) -> list[str]:
    given = facts.get("requirements")
    return [str(line) for line in given] if isinstance(given, list) else []


def _write_environment(folder: Path, python: str, requirements: list[str]) -> None:
    """Write the requirements in the three formats that MLflow's tools read."""
    import yaml

    conda = {
        "name": "mlflow-env",
        "channels": ["conda-forge"],
        "dependencies": [f"python={python}", "pip", {"pip": requirements}],
    }
    virtual = {
        "python": python,
        "build_dependencies": ["pip", "setuptools", "wheel"],
        "dependencies": ["-r requirements.txt"],
    }
    (folder / "conda.yaml").write_text(yaml.safe_dump(conda, sort_keys=False))
    (folder / "python_env.yaml").write_text(yaml.safe_dump(virtual, sort_keys=False))
    (folder / "requirements.txt").write_text("\n".join(requirements))


def _describe(model: Model, folder: Path, facts: dict[str, Any]) -> None:
    """Add the input example, and the signature: as given, or inferred from the example."""
    from mlflow.models import ModelSignature, infer_signature

    example = facts.get("example")
    value: Any = None
    if isinstance(example, dict):
        value = _write_example(model, folder, example)
    if isinstance(facts.get("signature"), dict):
        model.signature = ModelSignature.from_dict(facts["signature"])
    elif value is not None:
        model.signature = infer_signature(value, _empty(facts.get("output")))


def _write_example(model: Model, folder: Path, example: dict[str, Any]) -> Any:
    """Write an input example in MLflow's format. Return it as it was given."""
    import numpy as np
    import pandas as pd

    data, kind = example.get("data"), str(example.get("type"))
    info = {"artifact_path": "input_example.json", "type": kind}
    value: Any = data
    served: dict[str, Any] = {"inputs": data}
    if kind == "ndarray":
        value = np.asarray(data, dtype=str(example.get("dtype")))
    elif kind == "dataframe":
        columns = list(example.get("columns") or ())
        value = pd.DataFrame(data, columns=columns)
        kinds = dict(zip(columns, example.get("dtypes") or (), strict=False))
        value = value.astype(kinds)
        data = {"columns": columns, "data": data}
        served = {"dataframe_split": data}
        info["pandas_orient"] = "split"
    info["serving_input_path"] = "serving_input_example.json"
    (folder / info["artifact_path"]).write_text(json.dumps(data))
    (folder / info["serving_input_path"]).write_text(json.dumps(served, indent=2))
    model.saved_input_example_info = info
    return value


def _empty(output: Any) -> Any:
    """Return an empty array with the dtype and shape of an output."""
    import numpy as np

    if not isinstance(output, dict):
        return None
    dtype = str(output.get("dtype"))
    # Numpy has no bfloat16.
    dtype = "float32" if dtype == "bfloat16" else dtype
    shape = [0, *list(output.get("shape") or ())[1:]]
    return np.empty(shape, dtype=dtype)
