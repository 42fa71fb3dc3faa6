"""The fast path for recording a call, and all cases that must fall back to the slow path."""

from __future__ import annotations

import asyncio
import os
import sys
import threading
from collections.abc import Iterator
from typing import Any

import pytest

torch = pytest.importorskip("torch")

import stepwell  # noqa: E402
from stepwell import Run  # noqa: E402
from stepwell.integrations.torch import annotate  # noqa: E402
from stepwell.integrations.torch.fast_path import fast_path  # noqa: E402
from tests.integrations.torch.loops import make_model, make_optimizer  # noqa: E402
from tests.nesting.tree import finished  # noqa: E402

pytestmark = pytest.mark.torch
ONES = torch.ones(2, 4)


class Calling(torch.nn.Module):  # type: ignore[misc, name-defined]
    """A model that does something while it is called."""

    def __init__(self) -> None:
        super().__init__()
        self.below = make_model()
        self.act: Any = lambda: None

    def forward(self, x: Any) -> Any:
        """Do it, then compute."""
        self.act()
        return self.below(x)


@pytest.fixture
def model(recorded: Run) -> Iterator[Calling]:
    """An annotated one, in a thread that is known already."""
    recorded.set_step(0)
    model = Calling()
    handle = annotate(model)
    with stepwell.span("first"):
        model(ONES)
    assert fast_path.thread == threading.get_ident()
    assert not fast_path.entry
    assert not fast_path.slow_calls
    yield model
    handle.remove()
    assert not fast_path.entry
    assert not fast_path.slow_calls


def rows(run: Run) -> list[tuple[str, str | None, str]]:
    """Name, parent's name and status of each span but the first two, in their order."""
    table = finished(run)
    names = dict(zip(table["id"], table["name"], strict=True))
    found = [
        (row["name"], names.get(row["parent"]), row["status"])
        for row in table.iter_rows(named=True)
    ]
    return [row for row in found if row[0] != "first" and row[1] != "first"]


def test_plain(recorded: Run, model: Calling) -> None:
    """A span that is open outside is the parent, and one that is opened inside is a child."""

    def act() -> None:
        assert fast_path.entry
        with stepwell.span("inside"):
            pass

    model.act = act
    with stepwell.span("outside"):
        model(ONES)
    assert rows(recorded) == [
        ("outside", None, "ok"),
        ("forward", "outside", "ok"),
        ("inside", "forward", "ok"),
    ]


def test_an_error(recorded: Run, model: Calling) -> None:
    """It is on the span that it went through; the next call is quick again."""

    def act() -> None:
        raise ValueError("no")

    model.act = act
    with pytest.raises(ValueError, match="no"):
        model(ONES)
    model.act = lambda: None
    model(ONES)
    assert rows(recorded) == [("forward", None, "error"), ("forward", None, "ok")]


def test_called_while_an_error_is_handled(recorded: Run, model: Calling) -> None:
    """Which is none of the call's own, also when it gives nothing back."""
    model.below = torch.nn.Identity()
    try:
        raise ValueError("outside")
    except ValueError:
        model(ONES)
        model(None)
    assert rows(recorded) == [("forward", None, "ok")] * 2


def test_an_interrupt(recorded: Run, model: Calling) -> None:
    """No hook is called: the next call ends it, and is not inside it."""

    def act() -> None:
        raise KeyboardInterrupt

    model.act = act
    with pytest.raises(KeyboardInterrupt):
        model(ONES)
    assert fast_path.entry
    model.act = lambda: None
    model(ONES)
    model(ONES)
    assert rows(recorded) == [
        ("forward", None, "unfinished"),
        ("forward", None, "ok"),
        ("forward", None, "ok"),
    ]


def test_a_call_inside_a_call(recorded: Run, model: Calling) -> None:
    """Of an annotated model inside an annotated one, also below a span of the user's, the outer counts."""
    inner = annotate(model.below)

    def act() -> None:
        with stepwell.span("inside"):
            model.below(ONES)

    model.act = act
    model(ONES)
    inner.remove()
    assert rows(recorded) == [("forward", None, "ok"), ("inside", "forward", "ok")]


def test_a_step_with_a_closure(recorded: Run, model: Calling) -> None:
    """Forward and backward are inside the optimizer's step."""
    optimizer = make_optimizer(model)
    handle = annotate(optimizer=optimizer)

    def closure() -> Any:
        loss = model(ONES).sum()
        loss.backward()
        return loss

    optimizer.step(closure)
    handle.remove()
    assert [(name, parent) for name, parent, _ in rows(recorded)] == [
        ("step", None),
        ("forward", "step"),
        ("backward", "step"),
    ]


def test_a_pass_inside_a_pass(recorded: Run, model: Calling) -> None:
    """A backward pass inside another is part of it."""

    class Again(torch.autograd.Function):  # type: ignore[misc, name-defined]
        @staticmethod
        def forward(ctx: Any, x: Any) -> Any:
            return x * 2

        @staticmethod
        def backward(ctx: Any, gradient: Any) -> Any:
            with torch.enable_grad():
                other = torch.ones(1, requires_grad=True)
                (other * 3).sum().backward()
            return gradient * 2

    Again.apply(torch.ones(1, requires_grad=True)).sum().backward()
    assert rows(recorded) == [("backward", None, "ok")]


def test_two_threads(recorded: Run, model: Calling) -> None:
    """Each has its own, in its own thread, whichever ends first."""
    begun, done = threading.Event(), threading.Event()

    def act() -> None:
        if threading.current_thread().name == "other":
            begun.set()
            assert done.wait(10)

    model.act = act
    other = threading.Thread(target=model, args=(ONES,), name="other")
    other.start()
    assert begun.wait(10)
    model(ONES)
    done.set()
    other.join()
    begun.clear()
    done.clear()

    def act_first() -> None:
        if threading.current_thread().name == "other":
            return
        thread = threading.Thread(target=model, args=(ONES,), name="other")
        thread.start()
        thread.join()

    model.act = act_first
    model(ONES)
    table = finished(recorded)
    assert set(table["status"]) == {"ok"}
    threads = table.filter(table["name"] == "forward")["thread"].to_list()
    assert sorted(threads) == ["MainThread"] * 3 + ["other", "other #2"]


def test_in_another_segment(recorded: Run, model: Calling) -> None:
    """A call during which the segment fills up continues in the next segment."""

    def act() -> None:
        for _ in range(20_000):
            with stepwell.span("inside"):
                pass

    model.act = act
    model(ONES)
    model.act = lambda: None
    model(ONES)
    found = rows(recorded)
    assert found.count(("inside", "forward", "ok")) == 20_000
    assert found.count(("forward", None, "ok")) == 2
    assert len(found) == 20_002


def test_arguments_and_switches(recorded: Run, model: Calling) -> None:
    """Arguments of a node, or disabling it, take effect from the next call on."""
    from stepwell import ai

    try:
        ai.compute.forward.update(size=4)
        model(ONES)
        ai.compute.forward.disable()
        model(ONES)
    finally:
        ai.compute.forward.update(size=None)
        ai.compute.forward.enable()
    model(ONES)
    table = finished(recorded).filter(name="forward").sort("start_ns")
    attributes = [row or "{}" for row in table["attributes"]]
    assert [('"size":4' in text.replace(" ", "")) for text in attributes] == [False, True, False]


def test_in_a_task(recorded: Run, model: Calling) -> None:
    """Inside a span of a task it is that one's child."""

    async def train() -> None:
        with stepwell.span("task"):
            model(ONES)

    asyncio.run(train())
    assert rows(recorded) == [("task", None, "ok"), ("forward", "task", "ok")]


@pytest.mark.skipif(not hasattr(os, "fork"), reason="there is no fork here")
def test_a_forked_process_knows_no_thread(recorded: Run, model: Calling) -> None:
    """It must not write where its parent does."""
    child = os.fork()
    if not child:
        os._exit(0 if fast_path.lane is None and fast_path.thread == 0 else 1)
    assert os.waitstatus_to_exitcode(os.waitpid(child, 0)[1]) == 0
    assert fast_path.lane is not None


def test_another_run(recorded: Run, model: Calling, tmp_path: Any) -> None:
    """The run that comes next gets what is called in it."""
    recorded.finish()
    model(ONES)
    second = stepwell.init("second", dir=tmp_path)
    second.set_step(0)
    for _ in range(3):
        model(ONES)
    second.finish()
    read = stepwell.open_run(second.path)
    assert read.spans().collect()["name"].to_list() == ["forward"] * 3


def test_two_threads_that_fetch(recorded: Run, model: Calling) -> None:
    """Neither ends the other's span: a fetch on the slow path is unknown to the fast path."""
    begun, done = threading.Event(), threading.Event()

    class Loader:
        def __init__(self, act: Any) -> None:
            self.act = act

        def __iter__(self) -> Iterator[Any]:
            for _ in range(2):
                self.act()
                yield ONES

    def wait() -> None:
        begun.set()
        assert done.wait(10)

    slow = Loader(wait)
    other = threading.Thread(target=lambda: next(iter(slow)), name="other")

    def act() -> None:
        if other.ident is None:
            other.start()
            assert begun.wait(10)
            done.set()
            other.join()

    quick_one = Loader(act)
    handle = annotate(loader=[quick_one, slow])
    for _ in quick_one:
        pass
    handle.remove()
    table = finished(recorded).filter(name="fetch")
    assert table.select("thread", "status").sort("thread").rows() == [
        ("MainThread", "ok"),
        ("MainThread", "ok"),
        ("other", "ok"),
    ]


def test_threads_one_after_the_other(recorded: Run, model: Calling) -> None:
    """Each writes where it should, though one may have the number of another that is gone."""

    def train() -> None:
        for _ in range(3):
            model(ONES).sum().backward()

    for i in range(4):
        thread = threading.Thread(target=train, name=f"number {i}")
        thread.start()
        thread.join()
        assert fast_path.thread == 0
    table = finished(recorded).filter(name="forward")
    threads = table["thread"].to_list()
    assert [threads.count(f"number {i}") for i in range(4)] == [3] * 4


def test_threads_that_take_turns(recorded: Run, model: Calling) -> None:
    """Whoever becomes the one that is quick, no call is lost."""
    models = [torch.nn.Identity() for _ in range(3)]
    handle = annotate(models)
    interval = sys.getswitchinterval()

    def call(own: Any) -> None:
        for _ in range(3000):
            own(ONES)

    threads = [threading.Thread(target=call, args=(own,)) for own in models]
    sys.setswitchinterval(1e-6)
    try:
        for thread in threads:
            thread.start()
        for thread in threads:
            thread.join()
    finally:
        sys.setswitchinterval(interval)
    handle.remove()
    found = rows(recorded)
    assert found == [("forward", None, "ok")] * 9000


@pytest.mark.skipif(not hasattr(os, "fork"), reason="there is no fork here")
def test_forked_during_a_pass(recorded: Run, model: Calling) -> None:
    """The forked process continues the pass, on either path."""
    from stepwell import ai

    parent = os.getpid()
    children: list[int] = []

    class Forking(torch.autograd.Function):  # type: ignore[misc, name-defined]
        @staticmethod
        def forward(ctx: Any, x: Any) -> Any:
            return x * 2

        @staticmethod
        def backward(ctx: Any, gradient: Any) -> Any:
            children.append(os.fork())
            return gradient * 2

    for arguments in (dict[str, int](), {"size": 4}):
        handle = annotate(make_model())
        ai.compute.backward.update(**arguments)
        code = 1
        try:
            Forking.apply(torch.ones(1, requires_grad=True)).sum().backward()
            code = 0
        finally:
            if os.getpid() != parent:
                os._exit(code)
            ai.compute.backward.update(size=None)
            handle.remove()
        assert os.waitstatus_to_exitcode(os.waitpid(children.pop(), 0)[1]) == 0
