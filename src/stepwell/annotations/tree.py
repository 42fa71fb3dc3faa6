"""The `ai` tree: all nodes of the vocabulary, as attributes of their parents."""

from __future__ import annotations

import os
from collections.abc import Iterator
from typing import TYPE_CHECKING

from stepwell.annotations.node import COLUMNS, Node
from stepwell.vocabulary import AI_NODES

if TYPE_CHECKING:

    class InputOutput(Node):
        """Application-level input and output."""

        open: Node
        read: Node
        write: Node
        close: Node

    class Compute(Node):
        """Computation of a step."""

        forward: Node
        backward: Node
        step: Node

    class Data(Node):
        """Work on data."""

        preprocess: Node
        item: Node
        io: InputOutput

    class DataLoader(Node):
        """Work of a data loader."""

        fetch: Node

    class Comm(Node):
        """Communication between ranks."""

        send: Node
        receive: Node
        barrier: Node
        bcast: Node
        reduce: Node
        all_reduce: Node
        gather: Node
        all_gather: Node
        scatter: Node
        reduce_scatter: Node
        all_to_all: Node

    class Device(Node):
        """Work with a device."""

        transfer: Node

    class Checkpoint(Node):
        """Work on checkpoints."""

        capture: Node
        restart: Node
        io: InputOutput

    class Pipeline(Node):
        """Phases of the whole job."""

        epoch: Node
        train: Node
        evaluate: Node
        test: Node

    class Other(Node):
        """Anything else."""

        log: Node
        io: InputOutput

    class Root(Node):
        """The whole tree."""

        compute: Compute
        data: Data
        dataloader: DataLoader
        comm: Comm
        device: Device
        checkpoint: Checkpoint
        pipeline: Pipeline
        other: Other


def grow() -> Root:
    """Return a new tree with all nodes of the vocabulary."""
    nodes: dict[str, Node] = {}
    for word in AI_NODES:
        path = word.ai or ""
        above, _, key = path.rpartition(".")
        parent = nodes.get(above)
        node = Node(word.trace_name, word.category, parent)
        if parent is not None:
            parent._children[key] = parent.__dict__[key] = node
        nodes[path] = node
    root: Root = nodes["ai"]  # type: ignore[assignment]
    return root


ai = grow()


def walk(node: Node = ai) -> Iterator[Node]:
    """Yield a node and all nodes below it, including derived ones."""
    return node._subtree()


def find(name: str, category: str) -> Node:
    """Return the node with this name; derive it if another process has derived it."""
    best: Node = ai
    for node in walk():
        if node.category != category:
            continue
        if node.name == name:
            return node
        if name.startswith(f"{node.name}.") and (best is ai or len(node.name) > len(best.name)):
            best = node
    return best.derive(name[len(best.name) + 1 :] if best is not ai else name)


def _forget_columns() -> None:
    """Reset step and epoch in a forked child, which does not see the updates of its parent."""
    for node in walk():
        if any(column in node._own for column in COLUMNS):
            node._change(dict.fromkeys(COLUMNS))


if hasattr(os, "register_at_fork"):
    os.register_at_fork(after_in_child=_forget_columns)
