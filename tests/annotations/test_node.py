"""Settings of nodes: arguments belong to their node, and equal names give the same node."""

from __future__ import annotations

import threading
from collections.abc import Iterator
from typing import Any

import numpy
import pytest

from stepwell import Run, ai
from stepwell.annotations.node import Node
from stepwell.annotations.tree import walk
from tests.nesting.tree import attributes, finished


@pytest.fixture(autouse=True)
def _as_it_was() -> Iterator[None]:
    """No test changes the tree for others."""
    yield
    ai.enable()
    for node in walk():
        node.update(dict.fromkeys(node.attributes))


def test_a_dict_that_changes_later(recorded: Run) -> None:
    """The decorator of a function is unchanged."""
    args = {"size": 1}

    @ai.data(args=args)
    def load() -> None:
        pass

    args["size"] = 2
    load()
    assert attributes(finished(recorded), "data") == [{"size": 1}]


def test_any_name_can_be_updated(recorded: Run) -> None:
    """Also one that is a parameter's."""
    ai.data.update(self=1, iterable=2)
    with ai.data(self=3):
        pass
    assert attributes(finished(recorded), "data") == [{"self": 3, "iterable": 2}]


def test_derived_once(monkeypatch: Any) -> None:
    """``init`` is what a child of that name would be; of two threads, both get the same child."""
    assert ai.checkpoint.derive("init") is ai.checkpoint.init
    found: list[Node] = []
    make = Node.__init__

    def slowly(self: Node, *args: Any) -> None:
        make(self, *args)
        both.wait(10)

    both = threading.Barrier(2)
    monkeypatch.setattr(Node, "__init__", slowly)
    node = ai.checkpoint
    threads = [threading.Thread(target=lambda: found.append(node.derive("race"))) for _ in "ab"]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert found[0] is found[1] is node.derive("race")


def test_an_update_while_another_thread_enters(recorded: Run, monkeypatch: Any) -> None:
    """Encoded old arguments are not used for the new ones."""
    from stepwell.annotations import node as module

    encode = module.encode

    def encode_slowly(attributes: Any) -> bytes:
        data = encode(attributes)
        if attributes == {"step": 1}:
            node.update(step=2)
        return data

    node = ai.data.item.derive("iter")
    monkeypatch.setattr(module, "encode", encode_slowly)
    node.update(step=1)
    for _ in ai.data.item.iter(range(2), include_block=False):
        pass
    expected = [{"step": 1, "count": 1}, {"step": 2, "count": 2}]
    assert attributes(finished(recorded), "item.iter") == expected


def test_a_value_that_compares_in_its_own_way(recorded: Run) -> None:
    """Arrays compare element by element: whether one is None is not a question to ask with ==."""
    numbers = numpy.array([1, 2])
    ai.data.item.update(numbers=numbers)
    ai.data.item.update(args={"others": numbers})
    with ai.data.item:
        pass
    ai.data.item.update(numbers=None, others=None)
    (found,) = attributes(finished(recorded), "item")
    assert set(found) == {"numbers", "others"}
