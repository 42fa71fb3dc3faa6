"""Converts models and tensors to files that ``torch.load(…, weights_only=True)`` opens.

The file of a module has its weights, and for MLflow also the pickled module, which refers to the same
tensors: they are stored once. MLflow's backend builds the file of the whole module from these parts, without
unpickling anything.
"""

from __future__ import annotations

import io
import json
import os
import pickle
import platform
import sys
import zipfile
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass, field
from functools import partial
from importlib import metadata
from pathlib import Path
from typing import IO, Any

from stepwell._core.errors import warn_once
from stepwell._core.text import size
from stepwell._core.values import text_of
from stepwell.loggers.items.converters import (
    CannotKeep,
    ConvertedItem,
    as_json,
    file_name,
    host_tensor,
)
from stepwell.telemetry.run import active_run

SUFFIXES = (".pt", ".pth", ".ckpt", ".bin")


def anything(item: Any, identifier: str, options: dict[str, Any]) -> Iterator[ConvertedItem]:
    """Convert anything that torch.save accepts: tensors, dicts of tensors, the weights of a module."""
    import torch

    if isinstance(item, torch.utils.data.DataLoader | torch.utils.data.Dataset):
        # Its pickle would be a copy of the data.
        from stepwell.loggers.items.datasets import dataset

        yield from dataset(item, identifier, options)
        return
    meta: dict[str, Any] = {}
    if isinstance(item, torch.nn.Module):
        item, meta = _weights(item)
    elif isinstance(item, torch.optim.Optimizer):
        item = item.state_dict()
    file = file_name(identifier, ".pt", SUFFIXES)
    yield ConvertedItem(identifier, content=partial(_save, item), file=file, meta=meta)


def model(item: Any, identifier: str, options: dict[str, Any]) -> Iterator[ConvertedItem]:
    """Convert a model: the weights, and the module for MLflow; a model of another library is pickled.

    Accepts these arguments of ``mlflow.pytorch.log_model``: ``signature``, ``input_example``, ``code_paths``,
    ``pip_requirements`` and ``extra_pip_requirements``.
    """
    if isinstance(item, str | os.PathLike):
        path = Path(item)
        if not path.is_file():
            raise CannotKeep(f"{str(path)!r} is not a file")
        yield ConvertedItem(identifier, content=path, file=file_name(identifier, path.suffix))
        return
    torch = sys.modules.get("torch")
    if torch is not None and isinstance(item, torch.nn.Module):
        from stepwell.diagnostics.isolation import unwrapped

        weights, meta = _weights(item)
        if meta.get("sharded"):
            # No rank has the whole model, and only all ranks together could call it.
            drop_extras(options)
            write = partial(_save, weights)
        else:
            inner = unwrapped(item)
            write = partial(save, weights, inner, take_extras(inner, options))
        file = file_name(identifier, ".pt", SUFFIXES)
        yield ConvertedItem(identifier, content=write, file=file, meta=meta)
    elif torch is not None and isinstance(item, Mapping):
        meta = {"format": "state_dict", "parameters": _count(item.values())}
        file = file_name(identifier, ".pt", SUFFIXES)
        yield ConvertedItem(identifier, content=partial(_save, dict(item)), file=file, meta=meta)
    else:
        meta = {"format": "pickle", "model": type(item).__qualname__}
        file = file_name(identifier, ".pkl")
        yield ConvertedItem(identifier, content=pickle.dumps(item), file=file, meta=meta)


def _weights(module: Any) -> tuple[dict[str, Any], dict[str, Any]]:
    """Return the state_dict of the unwrapped model, and a description of it."""
    from stepwell.diagnostics.isolation import unwrapped
    from stepwell.diagnostics.sharding import is_sharded

    inner = unwrapped(module)
    meta: dict[str, Any] = {"format": "state_dict", "model": type(inner).__qualname__}
    if is_sharded(inner):
        # Gathering the weights would need all ranks here, so each rank stores its own part.
        warn_once(
            "sharded model",
            "%s is sharded over several workers. Each worker that logs stores its own part of the weights. "
            "To store all weights, gather the state_dict first and log that with kind='model'",
            meta["model"],
        )
        meta["sharded"] = True
        weights = {
            name: value.to_local() if hasattr(value, "to_local") else value
            for name, value in [*inner.named_parameters(), *inner.named_buffers()]
        }
    else:
        weights = dict(inner.state_dict())
    meta["parameters"] = _count(parameter for parameter in inner.parameters())
    return weights, meta


def _count(tensors: Any) -> int:
    return sum(int(each.numel()) for each in tensors if hasattr(each, "numel"))


def _save(item: Any, file: IO[bytes]) -> None:
    import torch

    torch.save(item, file)


MODULE = "module.pkl"
"""The pickled module, without its tensors."""
SCRIPT = "module.ts"
"""The file of a TorchScript module, in place of ``MODULE``."""
FACTS = "module.json"
"""Further facts for an MLflow Model: versions, requirements, signature, input example."""
CODE = "code/"
"""The files of ``code_paths``."""
TAKEN = ("signature", "input_example", "pip_requirements", "extra_pip_requirements", "code_paths")
"""Arguments of ``mlflow.pytorch.log_model`` that are not JSON values."""
PROTOCOL = 4
LARGEST = 256 << 20
"""The largest size of a pickled module without its tensors, in bytes."""


@dataclass(frozen=True)
class Extras:
    """The arguments of ``log(model, …, kind="model")`` for MLflow, as JSON and files."""

    facts: dict[str, Any] = field(default_factory=dict)
    code: Mapping[str, Path] = field(default_factory=dict)


def take_extras(module: Any, options: dict[str, Any]) -> Extras:
    """Remove MLflow's arguments that are not JSON values from the options, and convert them.

    A wrong argument gives a warning, and the model is stored without it.
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
            _warn_left_out(name, error)
    if "example" in facts and "signature" not in facts:
        facts["output"] = _output(module, given["input_example"])
    return Extras({key: value for key, value in facts.items() if value is not None}, code)


def drop_extras(options: dict[str, Any]) -> None:
    """Remove MLflow's arguments from the options, for a model of which MLflow gets the weights only."""
    for name in TAKEN:
        options.pop(name, None)


def save(weights: dict[str, Any], module: Any, extras: Extras, file: IO[bytes]) -> None:
    """Write the weights, and the module. If the module cannot be pickled, warn once and leave it out."""
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
            # Without a time, so that the same module gives the same file.
            archive.writestr(zipfile.ZipInfo(f"{folder}/{name}"), content)


class _Pickling:
    """A ``pickle_module`` for ``torch.save`` whose pickler also pickles the module.

    PyTorch's ``persistent_id`` gets the tensors of both, and so writes each of them once.
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
        """Return the pickled module, and drop it: the classes above stay alive until garbage collection."""
        if not self._pickled:
            _warn_weights_only(self._module, self._reason)
        pickled, self._pickled, self._module = self._pickled, b"", None
        return pickled


class _Bounded(io.BytesIO):
    def write(self, data: Any) -> int:
        if self.tell() + memoryview(data).nbytes > LARGEST:
            raise CannotKeep(f"it is larger than {size(LARGEST)} without its tensors")
        return super().write(data)


def _scripted(module: Any) -> bytes:
    import torch

    target = io.BytesIO()
    try:
        torch.jit.save(module, target)
    except Exception as error:
        _warn_weights_only(module, text_of(error))
        return b""
    return target.getvalue()


def _warn_weights_only(module: Any, reason: str) -> None:
    run = active_run()
    if run is None or not any(delivery.name == "mlflow" for delivery in run.exporters):
        # Other backends get the weights only anyway.
        return
    warn_once(
        f"weights alone {type(module).__qualname__}",
        "%s cannot be pickled (%s). MLflow gets its weights as a file, not an MLflow Model that can be "
        "loaded and registered. Remove objects such as locks, open files and loggers from the module, or "
        "leave them out in __getstate__",
        type(module).__qualname__,
        reason[:300],
    )


def _warn_left_out(name: str, error: Exception) -> None:
    warn_once(
        f"model argument {name}",
        "log(…, kind='model', %s=…): the argument is left out: %s",
        name,
        text_of(error)[:300],
    )


# Signature and input example


def _signature(signature: Any) -> dict[str, Any]:
    described = signature.to_dict() if hasattr(signature, "to_dict") else signature
    if not isinstance(described, Mapping):
        name = type(signature).__name__
        raise CannotKeep(f"it must be a result of mlflow.models.infer_signature(), got {name}")
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
        array = host_tensor(example).numpy() if hasattr(example, "detach") else example
        described = {"type": "ndarray", "dtype": str(array.dtype), "data": array.tolist()}
    else:
        described = {"type": "json_object", "data": example}
    json.dumps(described)
    return described


def _output(module: Any, example: Any) -> dict[str, Any] | None:
    """Return dtype and shape of the model's output for an example. The model is unchanged afterwards."""
    import torch

    from stepwell.diagnostics.isolation import isolated_eval

    first = next(module.parameters(), None)
    device = torch.device("cpu") if first is None else first.device
    try:
        if hasattr(example, "to_numpy"):
            example = example.to_numpy().astype("float32")
        with isolated_eval(module, device):
            # Without hooks, which would record a forward pass of training or validation.
            output = module.forward(torch.as_tensor(example).to(device))
            return {"dtype": str(output.dtype).removeprefix("torch."), "shape": [*output.shape]}
    except Exception as error:
        reason = f"{type(error).__name__}: {text_of(error)}"
        warn_once(
            "input example output",
            "the model fails with its input_example (%s): the signature has no outputs",
            reason[:300],
        )
        return None


# Requirements and code


def _requirements(module: Any) -> list[str]:
    """Return the packages that loading the model needs, as lines of a requirements file."""
    classes = {base for part in module.modules() for base in type(part).__mro__}
    roots = {kind.__module__.partition(".")[0] for kind in classes}
    packages = sorted({"torch", "cloudpickle", *roots} - {*sys.stdlib_module_names, "__main__"})
    return [*filter(None, map(_pinned, packages))]


def _pinned(package: str) -> str | None:
    try:
        return f"{package}=={metadata.version(package).partition('+')[0]}"
    except metadata.PackageNotFoundError:
        # A module of the project, or a module whose package has another name.
        return None


def _listed(requirements: Any) -> list[str]:
    """Return requirements as a list. A text is the path of a requirements file."""
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
