"""Collectives and point-to-point messages of ``torch.distributed``.

A blocking call is one span. An asynchronous call (``async_op=True``, ``isend``, ``irecv``) is a span for the
launch; ``wait()`` on its result is another span, ``<name>.wait``.
"""

from __future__ import annotations

import inspect
import weakref
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from functools import wraps
from typing import Any

import torch

from stepwell._core.errors import report
from stepwell.annotations.node import Node
from stepwell.annotations.tree import ai
from stepwell.integrations.torch.patches import Patch, Patches
from stepwell.integrations.torch.recording import WHERE, here, record, record_outermost
from stepwell.journal.state import state

COMM = "comm"

FUNCTIONS: dict[str, tuple[Node, str | None]] = {
    "all_reduce": (ai.comm.all_reduce, "tensor"),
    "all_gather": (ai.comm.all_gather, "tensor"),
    "all_gather_into_tensor": (ai.comm.all_gather, "input_tensor"),
    "all_gather_single": (ai.comm.all_gather, "input_tensor"),
    "reduce_scatter": (ai.comm.reduce_scatter, "input_list"),
    "reduce_scatter_tensor": (ai.comm.reduce_scatter, "input"),
    "reduce_scatter_single": (ai.comm.reduce_scatter, "input"),
    "broadcast": (ai.comm.bcast, "tensor"),
    "barrier": (ai.comm.barrier, None),
    "send": (ai.comm.send, "tensor"),
    "recv": (ai.comm.receive, "tensor"),
    "gather": (ai.comm.gather, "tensor"),
    "scatter": (ai.comm.scatter, "tensor"),
    "all_to_all": (ai.comm.all_to_all, "input_tensor_list"),
    "all_to_all_single": (ai.comm.all_to_all, "input"),
    "reduce": (ai.comm.reduce, "tensor"),
}
"""The functions, each with its node and the argument that holds the data of this rank."""

MESSAGES: dict[str, Node] = {
    "send": ai.comm.send,
    "recv": ai.comm.receive,
    "recv_anysource": ai.comm.receive,
}
"""Methods of a process group that ``isend`` and ``irecv`` call. These two are not patched themselves, because
``batch_isend_irecv`` compares them by identity."""


class _Waits:
    """The node and arguments of ``wait()``, for each pending operation."""

    def __init__(self) -> None:
        self._pending: weakref.WeakKeyDictionary[Any, tuple[Node, dict[str, Any]]] = (
            weakref.WeakKeyDictionary()
        )

    def expect(self, work: Any, node: Node, node_args: dict[str, Any]) -> None:
        try:
            if work is not None:
                self._pending[work] = node.derive("wait"), node_args
        except TypeError:
            # The result cannot be hashed or referenced weakly.
            pass

    def take(self, work: Any) -> tuple[Node, dict[str, Any]] | None:
        return self._pending.pop(work, None) if self._pending else None


_waits = _Waits()


@dataclass(frozen=True)
class _Arguments:
    """The positions of the parameters of a function, by name."""

    positions: dict[str, int]

    @classmethod
    def of(cls, function: Callable[..., Any]) -> _Arguments:
        return cls({name: i for i, name in enumerate(inspect.signature(function).parameters)})

    def get(self, name: str, args: tuple[Any, ...], kwargs: dict[str, Any]) -> Any:
        if name in kwargs:
            return kwargs[name]
        position = self.positions.get(name, len(args))
        return args[position] if position < len(args) else None


def _function(name: str) -> Callable[[Callable[..., Any]], Callable[..., Any]]:
    node, payload = FUNCTIONS[name]

    def around(original: Callable[..., Any]) -> Callable[..., Any]:
        arguments = _Arguments.of(original)

        @wraps(original)
        def collective(*args: Any, **kwargs: Any) -> Any:
            if torch.compiler.is_compiling() or not _records():
                return original(*args, **kwargs)
            node_args: dict[str, Any] = {}
            try:
                given = None if payload is None else arguments.get(payload, args, kwargs)
                node_args = _describe(given, arguments.get("group", args, kwargs))
                if arguments.get("async_op", args, kwargs):
                    node_args["async"] = True
            except Exception as error:
                report(WHERE, error)
            result = record_outermost(COMM, node, node_args, original, args, kwargs)
            if "async" in node_args:
                _waits.expect(result, node, node_args)
            return result

        return collective

    return around


def _message(name: str) -> Callable[[Callable[..., Any]], Callable[..., Any]]:
    node = MESSAGES[name]

    def around(original: Callable[..., Any]) -> Callable[..., Any]:
        @wraps(original)
        def message(self: Any, *args: Any, **kwargs: Any) -> Any:
            if not _records():
                return original(self, *args, **kwargs)
            node_args: dict[str, Any] = {}
            try:
                node_args = {**_describe(args[0] if args else None, self), "async": True}
            except Exception as error:
                report(WHERE, error)
            result = record_outermost(COMM, node, node_args, original, (self, *args), kwargs)
            _waits.expect(result, node, node_args)
            return result

        return message

    return around


def _wait(original: Callable[..., Any]) -> Callable[..., Any]:
    @wraps(original)
    def wait(self: Any, *args: Any, **kwargs: Any) -> Any:
        expected = _waits.take(self)
        if expected is None or not state.enabled or not COLLECTIVES.active:
            return original(self, *args, **kwargs)
        return record(*expected, original, (self, *args), kwargs)

    return wait


def _records() -> bool:
    return state.enabled and COLLECTIVES.active and COMM not in here.inside


def _describe(given: Any, group: Any) -> dict[str, Any]:
    """Return the bytes of these tensors, and the number of ranks in the group."""
    node_args: dict[str, Any] = {}
    tensors = given if isinstance(given, list | tuple) else [given]
    sizes = [tensor.nbytes for tensor in tensors if isinstance(tensor, torch.Tensor)]
    if sizes:
        node_args["bytes"] = sum(sizes)
    try:
        ranks = torch.distributed.get_world_size(group)
    except Exception:
        # An invalid group: the call itself raises the error.
        ranks = 0
    if ranks > 0:
        node_args["world_size"] = ranks
    return node_args


def _find() -> Iterator[Patch]:
    from torch.distributed import distributed_c10d

    for name in FUNCTIONS:
        if hasattr(distributed_c10d, name):
            around = _once(_function(name))
            yield Patch(distributed_c10d, name, around)
            if hasattr(torch.distributed, name):
                yield Patch(torch.distributed, name, around)
    for name in MESSAGES:
        yield Patch(torch.distributed.ProcessGroup, name, _message(name))
    yield Patch(distributed_c10d.Work, "wait", _wait)


def _once(
    around: Callable[[Callable[..., Any]], Callable[..., Any]],
) -> Callable[[Callable[..., Any]], Callable[..., Any]]:
    """Return one replacement for a function that has two names: some code compares them."""
    replacements: dict[Any, Callable[..., Any]] = {}

    def same(original: Callable[..., Any]) -> Callable[..., Any]:
        if original not in replacements:
            replacements[original] = around(original)
        return replacements[original]

    return same


COLLECTIVES = Patches(_find)
