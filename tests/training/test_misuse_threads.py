"""Standard spans in several threads and tasks, started and ended in different ones or concurrently."""

from __future__ import annotations

import asyncio
import threading
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from stepwell import training
from stepwell.telemetry import timed_span
from stepwell.testing import FakeClock
from stepwell.training import application, data_loading, training_iteration, training_loop
from tests.training.misusing import Recorded, in_thread, record

BLOCKS: dict[str, Callable[[], Any]] = {
    "application": training.application,
    "distributed_code_initialization": training.distributed_init,
    "data_loader_initialization": training.dataloader_init,
    "model_initialization": training.model_init,
    "optimizer_initialization": training.optimizer_init,
    "checkpoint_load": training.checkpoint_load,
    "training_loop": training.training_loop,
    "training_single_iteration": training.training_iteration,
    "data_loading": training.data_loading,
    "model_forward": training.model_forward,
    "zero_grad": training.zero_grad,
    "model_backward": training.model_backward,
    "optimizer_update": training.optimizer_update,
    "validation_loop": training.validation_loop,
    "validation_single_iteration": training.validation_iteration,
    "testing_loop": training.testing_loop,
    "testing_single_iteration": training.testing_iteration,
    "checkpoint_save_sync": lambda: training.checkpoint_save(5),
    "checkpoint_save_async": lambda: training.checkpoint_save(5, strategy="async"),
    "checkpoint_save_finalization": training.checkpoint_save_finalization,
    "custom": lambda: timed_span("custom"),
}
PAIRS = {
    name.removesuffix("_start"): (
        getattr(training, name),
        getattr(training, name.replace("_start", "_end")),
    )
    for name in training.__all__
    if name.startswith("on_") and name.endswith("_start") and "save_checkpoint_start" not in name
}
PAIRS["on_save_checkpoint"] = (
    lambda: training.on_save_checkpoint_start(5),
    training.on_save_checkpoint_end,
)


@pytest.fixture(scope="module")
def fresh(tmp_path_factory: pytest.TempPathFactory) -> Recorded:
    return record(tmp_path_factory.mktemp("fresh"))


def _around(name: str) -> Any:
    """The loop that an iteration belongs into."""
    part = name.partition("_")[0]
    loops = {
        "training": training.training_loop,
        "validation": training.validation_loop,
        "testing": training.testing_loop,
    }
    return loops[part]() if "single" in name else timed_span("around")


@pytest.mark.sampled(12)
@pytest.mark.parametrize("name", BLOCKS)
@pytest.mark.parametrize("turns", ["in order", "crossed"])
def test_two_threads_in_one_span(name: str, turns: str, tmp_path: Path, fresh: Recorded) -> None:
    """Each has its span, which ends; nothing breaks, and the next job is as it should be."""

    def case(clock: FakeClock) -> None:
        inside, done = threading.Barrier(2), threading.Barrier(2)
        first_out = threading.Event()

        def other() -> None:
            inside.wait(20)
            with BLOCKS[name]() as span:
                span.add_attribute("thread", "other")
                done.wait(20)
                if turns == "crossed":
                    first_out.wait(20)
            first_out.set()

        with application(), _around(name):
            thread = threading.Thread(target=other)
            thread.start()
            with BLOCKS[name]() as span:
                span.add_attribute("thread", "main")
                inside.wait(20)
                done.wait(20)
                if turns == "in order":
                    first_out.wait(20)
            first_out.set()
            thread.join()

    found = record(tmp_path, case)
    assert not [w for w in found.warnings if "inside stepwell" in w]
    assert found.spans.filter(name=name).height == (1 if name == "application" else 2)
    assert set(found.spans["status"]) == {"ok"}
    assert found.spans.filter(name="application")["parent"].to_list() == [None]
    if name == "training_single_iteration":
        (update,) = found.attributes("training_metrics_update")
        assert update["num_iterations"] == 2
    if name == "checkpoint_save_sync":
        told = [e for e in found.events if e[0] == "save_checkpoint_success"]
        assert [about["save_checkpoint_success_count"] for _, _, about in told] == [1, 2]
    assert found.after == fresh.after


@pytest.mark.sampled(6)
@pytest.mark.parametrize("name", PAIRS)
def test_start_in_one_thread_and_end_in_another(name: str, tmp_path: Path, fresh: Recorded) -> None:
    """It is ended with its real duration, and said; also when the thread that started it is gone."""
    start, end = PAIRS[name]

    def case(clock: FakeClock) -> None:
        if name != "on_app":
            training.on_app_start()
        if "single" in name:
            PAIRS[name.replace("_single_iteration", "").replace("training", "train")][0]()
        in_thread(start)
        clock.advance(2)
        in_thread(end)

    found = record(tmp_path, case)
    (said,) = found.warnings
    assert "ended in another thread" in said
    assert found.spans["duration_ns"].to_list().count(2 * 10**9) >= 1
    assert set(found.spans["status"]) == {"ok"}
    assert found.after == fresh.after


def test_threads_that_all_open_and_none_closes(tmp_path: Path, fresh: Recorded) -> None:
    """Spans of very many threads that are gone end at last, though not all can be waited for."""

    def case(clock: FakeClock) -> None:
        training.on_app_start()
        for _ in range(100):
            in_thread(training.on_data_loading_start)
        clock.advance(1)

    found = record(tmp_path, case)
    assert not [w for w in found.warnings if "inside stepwell" in w]
    assert found.spans.filter(name="data_loading").height == 100
    assert set(found.spans["status"]) <= {"ok", "unfinished"}
    assert found.after == fresh.after


def test_many_threads_in_iterations(tmp_path: Path, fresh: Recorded) -> None:
    """Threads that train at the same time are all counted, or at least none breaks the others."""

    def case(clock: FakeClock) -> None:
        def work() -> None:
            for _ in range(200):
                with training_iteration(), data_loading():
                    pass

        with application(), training_loop():
            threads = [threading.Thread(target=work) for _ in range(4)]
            for thread in threads:
                thread.start()
            for thread in threads:
                thread.join()

    found = record(tmp_path, case)
    assert not [w for w in found.warnings if "inside stepwell" in w], found.warnings
    assert found.spans.filter(name="data_loading").height == 800
    assert found.spans.filter(name="training_single_iteration").height == 800
    assert set(found.spans["status"]) == {"ok"}
    assert found.after == fresh.after


def test_tasks_each_loading_data(tmp_path: Path, fresh: Recorded) -> None:
    """Tasks that interleave have a span each, with the time that it took, under the loop."""

    def case(clock: FakeClock) -> None:
        async def load(turns: int) -> None:
            with data_loading():
                for _ in range(turns):
                    await asyncio.sleep(0)
                with timed_span("decode"):
                    await asyncio.sleep(0)

        async def main() -> None:
            with application(), training_loop():
                await asyncio.gather(*[load(turns) for turns in (3, 1, 2)])
                with training_iteration():
                    await asyncio.sleep(0)

        asyncio.run(main())

    found = record(tmp_path, case)
    assert found.warnings == []
    assert found.edges == {
        ("application", None): 1,
        ("training_loop", "application"): 1,
        ("data_loading", "training_loop"): 3,
        ("decode", "data_loading"): 3,
        ("training_single_iteration", "training_loop"): 1,
    }
    loads = set(found.spans.filter(name="data_loading")["id"])
    assert set(found.spans.filter(name="decode")["parent"]) == loads
    assert found.after == fresh.after


@pytest.mark.parametrize("name", ["training_single_iteration", "validation_single_iteration"])
def test_tasks_in_iterations(name: str, tmp_path: Path, fresh: Recorded) -> None:
    """Iterations of tasks that interleave each have their own time."""

    def case(clock: FakeClock) -> None:
        async def iterate(turns: int) -> None:
            with BLOCKS[name]():
                for _ in range(turns):
                    await asyncio.sleep(0)

        async def tick() -> None:
            for _ in range(5):
                clock.advance(1)
                await asyncio.sleep(0)

        async def main() -> None:
            with application(), _around(name):
                await asyncio.gather(*[iterate(turns) for turns in (3, 1, 2)], tick())

        asyncio.run(main())

    found = record(tmp_path, case)
    assert sorted(found.spans.filter(name=name)["duration_ns"]) == [10**9, 2 * 10**9, 3 * 10**9]
    loop = name.replace("single_iteration", "loop")
    assert found.edges[name, loop] == 3
    (update,) = found.attributes(name.replace("single_iteration", "metrics_update"))
    assert (update["num_iterations"], update["total_iteration_time_sec"]) == (3, 6)
    assert found.after == fresh.after


def test_explicit_spans_of_tasks_and_threads(tmp_path: Path) -> None:
    """A callback that starts in a task is found by the end in the same task, not by a neighbour's."""

    def case(clock: FakeClock) -> None:
        async def load(turns: int) -> None:
            span = training.on_data_loading_start()
            for _ in range(turns):
                await asyncio.sleep(0)
            training.on_data_loading_end()
            assert not span.active

        async def main() -> None:
            await asyncio.gather(*[load(turns) for turns in (3, 1, 2)])

        with application():
            asyncio.run(main())

    found = record(tmp_path, case, then=None)
    assert found.warnings == []
    assert found.edges["data_loading", "application"] == 3
