"""The result of `.iter` behaves like the iterable, whether it is recorded or not."""

from __future__ import annotations

import pickle
from collections.abc import Iterator
from typing import Any

import pytest

import stepwell
from stepwell import Run, ai
from stepwell.annotations.tree import walk
from tests.nesting.tree import attributes, edges, finished


@pytest.fixture(autouse=True)
def _as_it_was() -> Iterator[None]:
    """No test changes the tree for others."""
    yield
    ai.enable()
    for node in walk():
        node.update(dict.fromkeys(node.attributes))


class Countdown:
    """An iterator with a length."""

    def __init__(self) -> None:
        self.left = 2

    def __iter__(self) -> Countdown:
        return self

    def __next__(self) -> int:
        if not self.left:
            raise StopIteration
        self.left -= 1
        return self.left

    def __len__(self) -> int:
        return self.left


@pytest.mark.parametrize("is_enabled", [True, False])
def test_it_can_do_what_the_iterable_can(recorded: Run, is_enabled: bool) -> None:
    """Length, items, membership and attributes are the iterable's; no span comes of asking."""
    if not is_enabled:
        ai.data.disable()
    items: Any = ai.data.iter([5, 6])
    assert (len(items), items[1], 6 in items, 7 in items, items.count(5)) == (2, 6, True, False, 1)
    assert len(ai.data.iter(Countdown())) == 2  # type: ignore[arg-type]
    assert next(ai.data.iter(Countdown())) == 1  # type: ignore[call-overload]
    assert list(ai.data.iter(iter([1, 2]))) == [1, 2]
    for wrong in (ai.data.iter(iter([1])), ai.data.iter({1})):
        with pytest.raises(TypeError):
            wrong[0]  # type: ignore[index]
    with pytest.raises(TypeError):
        next(items)
    assert len(finished(recorded)) == (6 if is_enabled else 0)


def test_an_iterator_is_taken_further_by_a_loop(recorded: Run) -> None:
    """The first item by ``next``, the others by ``for``: one count, and one body at a time."""
    items: Any = ai.data.iter(iter("abc"))
    assert next(items) == "a"
    assert list(items) == ["b", "c"]
    spans = finished(recorded)
    assert edges(spans) == {("data.iter", None): 3, ("data.block", None): 3}
    assert attributes(spans, "data.block") == [{"count": 1}, {"count": 2}, {"count": 3}]


def test_wrapped_before_there_is_a_run(tmp_path: Any) -> None:
    """A loop records if there is a run when it begins."""
    items = ai.dataloader.fetch.iter([1, 2])
    assert list(items) == [1, 2]
    run = stepwell.init("later", dir=tmp_path)
    assert list(items) == [1, 2]
    assert edges(finished(run)) == {("fetch.iter", None): 2, ("fetch.block", None): 2}


def test_arguments_and_switch_of_a_loop_alone(recorded: Run) -> None:
    """They hold for this loop, together with those of the node, and in a copy of it too."""
    ai.data.disable()
    ai.data.update(split="train")
    items = ai.data(size=4, enable=True).iter([1])
    assert list(items) == list(pickle.loads(pickle.dumps(items))) == [1]
    ai.data.enable()
    assert list(ai.data(enable=False).iter([1])) == list(ai.data.iter([1])) == [1]
    spans = finished(recorded)
    own, bare = {"split": "train", "size": 4, "count": 1}, {"split": "train", "count": 1}
    assert attributes(spans, "data.iter") == attributes(spans, "data.block") == [own, own, bare]
