"""Models and tensors as files that ``torch.load(…, weights_only=True)`` opens."""

from __future__ import annotations

import os
import pickle
import sys
from collections.abc import Iterator, Mapping
from functools import partial
from pathlib import Path
from typing import IO, Any

from stepwell.journal.errors import warn_once
from stepwell.loggers.items import modules
from stepwell.loggers.items.making import CannotKeep, Item, file_name

SUFFIXES = (".pt", ".pth", ".ckpt", ".bin")


def anything(item: Any, identifier: str, options: dict[str, Any]) -> Iterator[Item]:
    """A tensor, a dict of them, an optimizer's state: what torch.save takes. Of a module, its weights."""
    import torch

    if isinstance(item, torch.utils.data.DataLoader | torch.utils.data.Dataset):
        # Its pickle would be a copy of the data.
        from stepwell.loggers.items.datasets import dataset

        yield from dataset(item, identifier, options)
        return
    about: dict[str, Any] = {}
    if isinstance(item, torch.nn.Module):
        item, about = _weights(item)
    elif isinstance(item, torch.optim.Optimizer):
        item = item.state_dict()
    file = file_name(identifier, ".pt", SUFFIXES)
    yield Item(identifier, content=partial(_save, item), file=file, meta=about)


def model(item: Any, identifier: str, options: dict[str, Any]) -> Iterator[Item]:
    """A model as it is now: its weights, and the module for MLflow; of one that is not torch's, its pickle.

    Of the arguments of ``mlflow.pytorch.log_model`` it takes ``signature``, ``input_example``,
    ``code_paths``, ``pip_requirements`` and ``extra_pip_requirements``.
    """
    if isinstance(item, str | os.PathLike):
        path = Path(item)
        if not path.is_file():
            raise CannotKeep(f"{str(path)!r} is no file with a model in it")
        yield Item(identifier, content=path, file=file_name(identifier, path.suffix))
        return
    torch = sys.modules.get("torch")
    if torch is not None and isinstance(item, torch.nn.Module):
        from stepwell.diagnostics.no_trace import bare

        weights, about = _weights(item)
        if about.get("sharded"):
            # No rank has the whole, and to call the model all ranks would have to be here.
            modules.drop_extras(options)
            write = partial(_save, weights)
        else:
            inner = bare(item)
            write = partial(modules.save, weights, inner, modules.take_extras(inner, options))
        file = file_name(identifier, ".pt", SUFFIXES)
        yield Item(identifier, content=write, file=file, meta=about)
    elif torch is not None and isinstance(item, Mapping):
        about = {"format": "state_dict", "parameters": _count(item.values())}
        file = file_name(identifier, ".pt", SUFFIXES)
        yield Item(identifier, content=partial(_save, dict(item)), file=file, meta=about)
    else:
        about = {"format": "pickle", "model": type(item).__qualname__}
        file = file_name(identifier, ".pkl")
        yield Item(identifier, content=pickle.dumps(item), file=file, meta=about)


def _weights(module: Any) -> tuple[dict[str, Any], dict[str, Any]]:
    """The state_dict without what wraps the model, and what is said about it."""
    from stepwell.diagnostics.no_trace import bare
    from stepwell.diagnostics.sharding import is_sharded

    inner = bare(module)
    about: dict[str, Any] = {"format": "state_dict", "model": type(inner).__qualname__}
    if is_sharded(inner):
        # To put it together, all ranks would have to be here: this one's part it is.
        warn_once(
            "sharded model",
            "%s is spread over several workers: each one logs its own part of the weights, if it "
            "logs. For the whole, gather the state_dict first and log that with kind='model'",
            about["model"],
        )
        about["sharded"] = True
        weights = {
            name: value.to_local() if hasattr(value, "to_local") else value
            for name, value in [*inner.named_parameters(), *inner.named_buffers()]
        }
    else:
        weights = dict(inner.state_dict())
    about["parameters"] = _count(parameter for parameter in inner.parameters())
    return weights, about


def _count(tensors: Any) -> int:
    return sum(int(one.numel()) for one in tensors if hasattr(one, "numel"))


def _save(item: Any, file: IO[bytes]) -> None:
    import torch

    torch.save(item, file)
