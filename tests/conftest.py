"""Shared fixtures: an environment without variables of a launcher, and a run in a new folder."""

from __future__ import annotations

import gc
import os
import sys
from collections import defaultdict
from collections.abc import Iterator
from pathlib import Path

import pytest
from hypothesis import settings

import stepwell
from stepwell import Run
from tests.harness.environment import RESERVED_VARIABLES
from tests.harness.programs import run_tests_here, use_warm_sidecars
from tests.process_state import restored_process

# One thread for a process of tests, as there are as many processes as cores; PyTorch reads it when imported.
os.environ.setdefault("OMP_NUM_THREADS", "1")
# No test depends on elapsed time: machines are shared and slow down.
settings.register_profile("stepwell", deadline=None)
settings.load_profile("stepwell")


def pytest_xdist_auto_num_workers() -> int:
    """Four on two cores: many tests wait for other processes."""
    return (os.cpu_count() or 1) + 2


@pytest.hookimpl(tryfirst=True)
def pytest_collection_modifyitems(items: list[pytest.Item]) -> None:
    """Leave all but some cases of a test that is marked ``sampled`` to ``make test-full``."""
    cases: dict[str, list[pytest.Item]] = defaultdict(list)
    for item in items:
        if item.get_closest_marker("sampled") and not item.get_closest_marker("full"):
            cases[item.nodeid.partition("[")[0]].append(item)
    for family in cases.values():
        (count,) = family[0].get_closest_marker("sampled").args
        kept = {number * len(family) // count for number in range(count)}
        for number, item in enumerate(family):
            if number not in kept:
                item.add_marker(pytest.mark.full)


def pytest_collection_finish() -> None:
    """Leave what is imported by now out of garbage collections, which take long otherwise."""
    gc.collect()
    gc.freeze()


@pytest.fixture(autouse=True, scope="session")
def _warm_sidecars() -> None:
    """Sidecars of runs that tests record themselves are forked too."""
    run_tests_here()
    use_warm_sidecars()


def _clean_environment(patch: pytest.MonkeyPatch) -> None:
    """No variable of ours or of a launcher is set, and nothing is watched."""
    for name in list(os.environ):
        if RESERVED_VARIABLES.fullmatch(name):
            patch.delenv(name)
    # What the machine is busy with would be among what tests count.
    patch.setenv("STEPWELL_RUNTIME", "off")
    patch.setenv("STEPWELL_QUIET", "1")


@pytest.fixture(autouse=True, scope="session")
def _clean_session() -> Iterator[None]:
    """For fixtures that several tests share."""
    with pytest.MonkeyPatch.context() as patch:
        _clean_environment(patch)
        yield


@pytest.fixture
def _same_process() -> Iterator[None]:
    """No test depends on those before it in the same process."""
    with restored_process():
        yield


@pytest.fixture(autouse=True)
def _untouched(_same_process: None, monkeypatch: pytest.MonkeyPatch) -> Iterator[None]:
    """Each test begins in a clean environment. No run and no watch outlives it."""
    _clean_environment(monkeypatch)
    yield
    stepwell.finish()
    watches = sys.modules.get("stepwell.integrations.torch.watcher.watch")
    left = list(watches._active_watches) if watches is not None else []
    for watch in left:
        watch.close()
    assert not left, "the test must close its watch: later tests would be watched too"


@pytest.fixture
def recorded(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Run:
    """A run that is being recorded, in which a problem inside stepwell is raised."""
    monkeypatch.setenv("STEPWELL_STRICT", "1")
    return stepwell.init("test", dir=tmp_path / "runs")
