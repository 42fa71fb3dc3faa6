"""Batches of an annotated loader: one record each, for any kind of loader."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import pytest

torch = pytest.importorskip("torch")

from torch.utils.data import DataLoader, IterableDataset  # noqa: E402

from stepwell import Run, ai  # noqa: E402
from stepwell.integrations.torch import annotate  # noqa: E402
from tests.integrations.torch.loops import BATCHES, counts, make_loader  # noqa: E402
from tests.nesting.tree import edges, events, finished, statuses  # noqa: E402

pytestmark = pytest.mark.torch


def test_epochs_break_and_two_iterators(recorded: Run) -> None:
    """Fetched batches count: in whole epochs, up to a break, and from two iterators in turn."""
    loader = make_loader()
    with annotate(loader=loader):
        for _ in range(2):
            assert len(list(loader)) == BATCHES
        for _ in loader:
            break
        one, two = iter(loader), iter(loader)
        assert torch.equal(next(one)[0], next(two)[0])
        next(one)
        assert next(iter(make_loader())) is not None  # not this one
    assert counts(finished(recorded)) == {"fetch": 2 * BATCHES + 1 + 3}


def test_the_loader_stays_what_it_is(recorded: Run) -> None:
    """Its class, its length and its attributes, and those of the iterator; removed, nothing is left."""
    loader, original = make_loader(), DataLoader.__iter__
    plain = type(iter(loader))
    handle = annotate(loader=loader)
    assert type(loader) is DataLoader
    assert len(loader) == len(iter(loader)) == BATCHES
    assert loader.batch_size == 4
    items = iter(loader)
    assert iter(items) is items
    assert items._num_yielded == 0
    next(items)
    assert items._num_yielded == 1
    handle.remove()
    assert DataLoader.__iter__ is original
    assert type(iter(loader)) is plain
    next(items)  # begun before, and no longer recorded
    assert counts(finished(recorded)) == {"fetch": 1}


@pytest.mark.parametrize("persistent", [False, True])
def test_workers(recorded: Run, persistent: bool) -> None:
    """Batches of workers are fetched once each, in every epoch; their start and end are data loading, too."""
    loader = make_loader(num_workers=2, persistent_workers=persistent)
    with annotate(loader=loader):
        for _ in range(3):
            assert len(list(loader)) == BATCHES
    del loader
    ends = 0 if persistent else 3
    assert counts(finished(recorded)) == {"dataloader": 3, "fetch": 3 * BATCHES + ends}


def test_a_loader_that_fails(recorded: Run) -> None:
    """The exception is raised unchanged, and recorded on its fetch."""

    class Bad(IterableDataset):  # type: ignore[misc]
        def __iter__(self) -> Iterator[int]:
            yield 1
            raise ValueError("unreadable")

    loader = DataLoader(Bad(), batch_size=1)
    with annotate(loader=loader), pytest.raises(ValueError, match="unreadable"):
        list(loader)
    assert statuses(finished(recorded)) == {("fetch", "ok"): 1, ("fetch", "error"): 1}
    assert [(name, span) for name, span, _ in events(recorded)] == [("error", "fetch")]


def test_loaders_of_other_classes(recorded: Run) -> None:
    """Subclasses with an ``__iter__`` of their own, generators, and classes that are no DataLoader."""

    class Endless(DataLoader):  # type: ignore[misc]
        def __iter__(self) -> Iterator[Any]:
            while True:
                yield from super().__iter__()

    class Mine:
        __hash__ = None  # type: ignore[assignment]

        def __iter__(self) -> Iterator[int]:
            return iter([1, 2, 3])

        def __eq__(self, other: object) -> bool:
            raise RuntimeError("not to be asked")

    endless, mine = Endless([1, 2], batch_size=1), Mine()
    with annotate(loader=[endless, mine]):
        assert [int(x) for x, _ in zip(endless, range(5), strict=False)] == [1, 2, 1, 2, 1]
        assert list(mine) == [1, 2, 3]
        assert list(Mine()) == [1, 2, 3]
    # Of the endless one zip asked for one more than it used. What its base class gives is not
    # recorded again.
    assert "__iter__" in vars(Mine)
    assert counts(finished(recorded)) == {"fetch": 6 + 3}


def test_inside_the_tree_of_the_user(recorded: Run) -> None:
    """Gone through with ``ai`` as well, the fetch lies in the item's span, and the end in neither."""
    loader = make_loader()
    with annotate(loader=loader):
        for _ in ai.dataloader.fetch.iter(loader):
            pass
        with ai.dataloader.fetch:
            ai.dataloader.disable()
            list(loader)
            ai.enable()
    assert edges(finished(recorded)) == {
        ("fetch.iter", None): BATCHES,
        ("fetch.block", None): BATCHES,
        ("fetch", "fetch.iter"): BATCHES,
        ("fetch", None): 1,
    }
