"""For tests of code that records: a run that leaves nothing behind, and a clock that stands still.

def test_my_training():
    with testing.FakeClock() as clock, testing.recorded() as run:
        with stepwell.span("load"):
            clock.advance(2.5)
    assert run.spans()["duration_ns"].to_list() == [2_500_000_000]
"""

from __future__ import annotations

import os
import shutil
import tempfile
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from types import TracebackType
from typing import TYPE_CHECKING, Any

import stepwell
from stepwell.journal import clock, errors

if TYPE_CHECKING:
    import polars as pl

    from stepwell.reading import RecordedRun

BEGIN = 1_700_000_000
"""What a fake clock shows at first, in seconds since the epoch."""


class FakeClock:
    """The two clocks, standing still until they are moved. A context manager that puts them in place."""

    def __init__(self, wall: float = BEGIN, uptime: float = 1e6) -> None:
        # As on a machine that has run for so many seconds.
        self._monotonic = round(uptime * 1e9)
        self._wall = round(wall * 1e9)

    def advance(self, seconds: float) -> None:
        """Let time pass on both clocks."""
        self._monotonic += round(seconds * 1e9)
        self._wall += round(seconds * 1e9)

    def step(self, seconds: float) -> None:
        """Set the wall clock forward or back, as when it is corrected; no time passes."""
        self._wall += round(seconds * 1e9)

    @property
    def time(self) -> float:
        """What the wall clock shows, in seconds since the epoch."""
        return self._wall / 1e9

    @property
    def msec(self) -> float:
        """What the wall clock shows, in milliseconds since the epoch, as callbacks take it."""
        return self._wall / 1e6

    def __enter__(self) -> FakeClock:
        clock.replace(lambda: self._monotonic, lambda: self._wall)
        clock.anchor()
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        trace: TracebackType | None,
    ) -> None:
        clock.replace()
        clock.anchor()


class TestRun:
    """A run that is being recorded in a folder of its own; its tables can be read meanwhile and after."""

    __test__ = False

    def __init__(self, run: stepwell.Run, folder: Path) -> None:
        self.run = run
        self._folder = folder
        self._tables: dict[str, pl.DataFrame] = {}

    @property
    def recorded(self) -> RecordedRun:
        """The run as a reader sees it; only until the end of the ``with`` block."""
        return stepwell.open_run(self.run.path)

    def table(self, name: str) -> pl.DataFrame:
        """A table of the run, such as ``spans``, also after the end."""
        if name in self._tables:
            return self._tables[name]
        self.run.flush()
        return self.recorded.table(name).collect()

    def spans(self) -> pl.DataFrame:
        """All spans."""
        return self.table("spans")

    def events(self) -> pl.DataFrame:
        """All events."""
        return self.table("events")

    def metrics(self) -> pl.DataFrame:
        """All metrics."""
        return self.table("metrics")

    def close(self) -> None:
        """Finish the run, keep its tables in memory and remove its folder."""
        from stepwell.reading.run import TABLES

        try:
            self.run.finish()
            self._tables = {name: self.recorded.table(name).collect() for name in TABLES}
        finally:
            shutil.rmtree(self._folder, ignore_errors=True)


class recorded:
    """A context manager: what is recorded inside goes to a run that is kept in memory afterwards.

    A problem inside stepwell, or a call that makes no sense, is raised; ``strict=False`` lets it pass as it
    would in training.
    """

    def __init__(self, name: str = "test", *, strict: bool = True, **options: Any) -> None:
        self._name = name
        self._strict = strict
        self._options = options

    def __enter__(self) -> TestRun:
        folder = Path(tempfile.mkdtemp(prefix="stepwell-test-"))
        errors.set_strict(self._strict)
        try:
            with _unwatched():
                run = stepwell.init(self._name, dir=folder, **{"quiet": True, **self._options})
        except BaseException:
            errors.set_strict(False)
            shutil.rmtree(folder, ignore_errors=True)
            raise
        self._run = TestRun(run, folder)
        return self._run

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        trace: TracebackType | None,
    ) -> None:
        try:
            self._run.close()
        finally:
            errors.set_strict(False)


@contextmanager
def _unwatched() -> Iterator[None]:
    """A run that is started within is not watched: only what the code under test records is there."""
    before = os.environ.get("STEPWELL_RUNTIME")
    os.environ["STEPWELL_RUNTIME"] = before or "off"
    try:
        yield
    finally:
        if before is None:
            del os.environ["STEPWELL_RUNTIME"]
        else:
            os.environ["STEPWELL_RUNTIME"] = before
