"""``stepwell.watch`` in a notebook, where every cell is a separate asyncio task."""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from typing import Any

import polars as pl
import pytest

torch = pytest.importorskip("torch")

import stepwell  # noqa: E402
from tests.integrations.torch.loops import BATCHES, train  # noqa: E402
from tests.integrations.torch.watched import (  # noqa: E402
    evaluate,
    outliving,
    parts,
    read,
    updates,
)
from tests.nesting.tree import edges  # noqa: E402

pytestmark = [pytest.mark.torch, pytest.mark.usefixtures("watching")]


def cell(function: Callable[[], Any]) -> Any:
    """Do this in a task, as a cell does."""

    async def task() -> Any:
        return function()

    return asyncio.run(task())


def test_one_cell() -> None:
    """Iterations belong to their own steps there too."""
    model, optimizer, loader = parts()

    def all_of_it() -> Any:
        with stepwell.watch(model, optimizer, loader) as watch:
            train(model, optimizer, loader)
            return watch.run

    _, spans = read(cell(all_of_it))
    for name in ("training_single_iteration", "forward", "backward"):
        found = spans.filter(pl.col("name") == name)["step"].to_list()
        assert found == list(range(BATCHES)), name


def test_several_cells() -> None:
    """What later ones do is in the training loop that the first one began."""
    model, optimizer, loader = parts()

    def save() -> None:
        evaluate(model)
        with stepwell.span("save"):
            pass

    watch = cell(lambda: stepwell.watch(model, optimizer, loader))
    cell(lambda: train(model, optimizer, loader))
    cell(save)
    cell(lambda: train(model, optimizer, loader))
    cell(lambda: [train(model, optimizer, loader), save()])
    cell(watch.close)
    found, spans = read(watch.run)
    tree = edges(spans)
    assert updates(found)[-1]["num_iterations"] == 3 * BATCHES
    assert tree["fetch", "training_loop"] == tree["fetch", None] + 3 * BATCHES == 3 * BATCHES
    assert tree["training_single_iteration", "training_loop"] == 3 * BATCHES
    assert tree["validation_loop", "training_loop"] == 2
    assert tree["forward", "validation_loop"] == 2 * BATCHES
    assert tree["save", "training_loop"] == 1
    assert outliving(spans) == []
