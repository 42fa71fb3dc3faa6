"""A whole module in the file of its weights, from which MLflow can have a model that loads.

``torch.load(file, weights_only=True)`` returns the weights, as of any file of ``torch.save``. The file also
has the pickled module, which refers to the same tensors: they are on disk once. A reader builds the file of
the whole module from these parts, and unpickles nothing.
"""

from __future__ import annotations

import io
import json
import pickle
import platform
import sys
import zipfile
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass, field
from importlib import metadata
from pathlib import Path
from typing import IO, Any

from stepwell.journal.errors import warn_once
from stepwell.journal.values import text_of
from stepwell.loggers.items.making import CannotKeep, as_json
from stepwell.telemetry.run import active_run

MODULE = "module.pkl"
"""The pickled module, without its tensors."""
SCRIPT = "module.ts"
"""In its place, a module of TorchScript as a file of its own."""
FACTS = "module.json"
"""What a model of MLflow needs to know besides: versions, requirements, signature, input example."""
CODE = "code/"
"""The files of ``code_paths``."""
TAKEN = ("signature", "input_example", "pip_requirements", "extra_pip_requirements", "code_paths")
"""Arguments of ``mlflow.pytorch.log_model`` that are not plain values."""
PROTOCOL = 4
LARGEST = 256 << 20
"""Bytes that a module may have besides its tensors."""


@dataclass(frozen=True)
class Extras:
    """What ``log(model, …, kind="model")`` was given for MLflow, as plain JSON and files."""

    facts: dict[str, Any] = field(default_factory=dict)
    code: Mapping[str, Path] = field(default_factory=dict)


def take_extras(module: Any, options: dict[str, Any]) -> Extras:
    """Take the arguments of ``mlflow.pytorch.log_model`` that are not plain values out of the options.

    A wrong argument is a warning: the model is kept without it.
    """
    given = {name: options.pop(name, None) for name in TAKEN}
    facts: dict[str, Any] = {"requirements": _requirements(module)}
    code: dict[str, Path] = {}
    makers: dict[str, Callable[[Any], object]] = {
        "signature": lambda value: facts.update(signature=_signature(value)),
        "input_example": lambda value: facts.update(example=_example(value)),
        "pip_requirements": lambda value: facts.update(requirements=_listed(value)),
        "extra_pip_requirements": lambda value: facts["requirements"].extend(_listed(value)),
        "code_paths": lambda value: code.update(_code_files(value)),
    }
    for name, make in makers.items():
        try:
            if given[name] is not None and given[name] is not False:
                make(given[name])
        except Exception as error:
            _say_left_out(name, error)
    if "example" in facts and "signature" not in facts:
        facts["output"] = _output(module, given["input_example"])
    return Extras({key: value for key, value in facts.items() if value is not None}, code)


def drop_extras(options: dict[str, Any]) -> None:
    """Take the same arguments out of the options, for a model that MLflow gets as a file of weights."""
    for name in TAKEN:
        options.pop(name, None)


def save(weights: dict[str, Any], module: Any, extras: Extras, file: IO[bytes]) -> None:
    """Write the weights, and the module if it can be pickled; else one warning says why it cannot."""
    import torch

    if isinstance(module, torch.jit.ScriptModule):
        torch.save(weights, file)
        parts = {SCRIPT: _scripted(module)}
        pickle_module = "pickle"
    else:
        pickling = _Pickling(module)
        torch.save(weights, file, pickle_module=pickling)
        parts = {MODULE: pickling.take()}
        pickle_module = pickling.pickle_module
    if not all(parts.values()):
        return
    facts = {
        "pickle_module": pickle_module,
        "python": platform.python_version(),
        "torch": str(torch.__version__),
        **extras.facts,
    }
    parts[FACTS] = as_json(facts) or b"{}"
    parts |= {CODE + name: path.read_bytes() for name, path in extras.code.items()}
    file.flush()
    with open(file.name, "r+b") as again, zipfile.ZipFile(again, "a") as archive:
        folder = archive.namelist()[0].partition("/")[0]
        for name, content in parts.items():
            # Without a time: the same module is the same file.
            archive.writestr(zipfile.ZipInfo(f"{folder}/{name}"), content)


class _Pickling:
    """Stands for the ``pickle_module`` of ``torch.save``: its pickler also pickles the module.

    PyTorch's own ``persistent_id`` sees the tensors of both, and so writes each of them once.
    """

    __name__ = "pickle"

    def __init__(self, module: Any) -> None:
        try:
            from cloudpickle import CloudPickler as Base
        except ImportError:
            Base, self.pickle_module = pickle.Pickler, "pickle"
        else:
            # Classes of ``__main__``, local ones and lambdas are pickled by value.
            self.pickle_module = "mlflow.pytorch.pickle_module"
        self._module = module
        self._pickled = b""
        self._reason = ""
        ours = self

        class Pickler(pickle.Pickler):
            def dump(self, weights: Any) -> None:
                super().dump(weights)
                target = _Bounded()
                try:
                    ModulePickler(target, self.persistent_id).dump(ours._module)
                    ours._pickled = target.getvalue()
                except Exception as error:
                    ours._reason = f"{type(error).__name__}: {text_of(error)}"

        class ModulePickler(Base):  # type: ignore[misc]
            def __init__(self, target: IO[bytes], find: Any) -> None:
                super().__init__(target, protocol=PROTOCOL)
                self._find = find

            def persistent_id(self, value: Any) -> Any:
                key = self._find(value)
                # On the CPU, so that it loads where there is no such device.
                return key and (*key[:3], "cpu", *key[4:])

        self.Pickler = Pickler

    def take(self) -> bytes:
        """Return the pickled module, and let go of it: these classes stay until they are collected."""
        if not self._pickled:
            _say_weights_alone(self._module, self._reason)
        pickled, self._pickled, self._module = self._pickled, b"", None
        return pickled


class _Bounded(io.BytesIO):
    def write(self, data: Any) -> int:
        if self.tell() + memoryview(data).nbytes > LARGEST:
            raise CannotKeep(f"it has more than {LARGEST >> 20} MiB besides its tensors")
        return super().write(data)


def _scripted(module: Any) -> bytes:
    import torch

    target = io.BytesIO()
    try:
        torch.jit.save(module, target)
    except Exception as error:
        _say_weights_alone(module, text_of(error))
        return b""
    return target.getvalue()


def _say_weights_alone(module: Any, reason: str) -> None:
    run = active_run()
    if run is None or not any(delivery.name == "mlflow" for delivery in run.exporters):
        # For others the weights are all that they get.
        return
    warn_once(
        f"weights alone {type(module).__qualname__}",
        "%s cannot be pickled (%s): MLflow gets its weights as a file, not an MLflow Model that can be "
        "loaded and registered. Remove from the module what cannot be pickled, such as locks, open files "
        "and loggers, or leave it out in __getstate__",
        type(module).__qualname__,
        reason[:300],
    )


def _say_left_out(name: str, error: Exception) -> None:
    warn_once(
        f"model argument {name}",
        "log(…, kind='model', %s=…) keeps the model without it: %s",
        name,
        text_of(error)[:300],
    )


# Signature and input example


def _signature(signature: Any) -> dict[str, Any]:
    described = signature.to_dict() if hasattr(signature, "to_dict") else signature
    if not isinstance(described, Mapping):
        name = type(signature).__name__
        raise CannotKeep(f"it is {name}, not what mlflow.models.infer_signature() returns")
    return dict(json.loads(json.dumps(dict(described))))


def _example(example: Any) -> dict[str, Any]:
    """Return an input example as JSON: an array, a tensor, a DataFrame, or plain values."""
    if hasattr(example, "columns") and hasattr(example, "to_numpy"):
        described = {
            "type": "dataframe",
            "columns": [text_of(name) for name in example.columns],
            "dtypes": [text_of(kind) for kind in example.dtypes],
            "data": example.to_numpy().tolist(),
        }
    elif hasattr(example, "dtype") and hasattr(example, "tolist"):
        array = _array(example)
        described = {"type": "ndarray", "dtype": str(array.dtype), "data": array.tolist()}
    else:
        described = {"type": "json_object", "data": example}
    json.dumps(described)
    return described


def _array(example: Any) -> Any:
    if not hasattr(example, "detach"):
        return example
    tensor = example.detach().cpu()
    # Numpy has no bfloat16.
    return (tensor.float() if tensor.is_floating_point() else tensor).numpy()


def _output(module: Any, example: Any) -> dict[str, Any] | None:
    """Return dtype and shape of what the model returns for an example; the model is left as it was."""
    import torch

    from stepwell.diagnostics.no_trace import no_trace

    first = next(module.parameters(), None)
    device = torch.device("cpu") if first is None else first.device
    try:
        if hasattr(example, "to_numpy"):
            example = example.to_numpy().astype("float32")
        with no_trace(module, device):
            # Past the hooks, which would record a forward pass of training or validation.
            output = module.forward(torch.as_tensor(example).to(device))
            return {"dtype": str(output.dtype).removeprefix("torch."), "shape": [*output.shape]}
    except Exception as error:
        reason = f"{type(error).__name__}: {text_of(error)}"
        warn_once(
            "input example output",
            "the model does not take its input_example (%s): the signature says nothing about outputs",
            reason[:300],
        )
        return None


# Requirements and code


def _requirements(module: Any) -> list[str]:
    """Return what has to be installed where the model is loaded, as a requirements file says it."""
    classes = {base for part in module.modules() for base in type(part).__mro__}
    roots = {kind.__module__.partition(".")[0] for kind in classes}
    packages = sorted({"torch", "cloudpickle", *roots} - {*sys.stdlib_module_names, "__main__"})
    return [*filter(None, map(_pinned, packages))]


def _pinned(package: str) -> str | None:
    try:
        return f"{package}=={metadata.version(package).partition('+')[0]}"
    except metadata.PackageNotFoundError:
        # A module of the project, or one that is called otherwise than what is installed.
        return None


def _listed(requirements: Any) -> list[str]:
    """Return requirements as a list; one text is the path of a file with them."""
    if isinstance(requirements, str | Path):
        requirements = Path(requirements).read_text(encoding="utf-8").splitlines()
    return [line for line in map(str, requirements) if line.strip() and not line.startswith("#")]


def _code_files(paths: Any) -> Iterator[tuple[str, Path]]:
    for path in map(Path, [paths] if isinstance(paths, str | Path) else paths):
        if not path.exists():
            raise CannotKeep(f"{str(path)!r} does not exist")
        files = [path] if path.is_file() else sorted(path.rglob("*"))
        for file in files:
            if file.is_file() and "__pycache__" not in file.parts:
                yield file.relative_to(path.parent).as_posix(), file
