"""Tools for testing code that records: a temporary run and a fake clock.

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
from stepwell._core import clock, errors

if TYPE_CHECKING:
    import polars as pl

    from stepwell.reading import RecordedRun

BEGIN = 1_700_000_000
"""Initial time of a fake clock, in seconds since the epoch."""


class FakeClock:
    """Replaces the wall clock and the monotonic clock. A context manager.

    Time only passes with ``advance`` and ``step``.
    """

    def __init__(self, wall: float = BEGIN, uptime: float = 1e6) -> None:
        self._monotonic = round(uptime * 1e9)
        self._wall = round(wall * 1e9)

    def advance(self, seconds: float) -> None:
        """Advance both clocks."""
        self._monotonic += round(seconds * 1e9)
        self._wall += round(seconds * 1e9)

    def step(self, seconds: float) -> None:
        """Change only the wall clock, as a clock correction does."""
        self._wall += round(seconds * 1e9)

    @property
    def time(self) -> float:
        """Wall time in seconds since the epoch."""
        return self._wall / 1e9

    @property
    def msec(self) -> float:
        """Wall time in milliseconds since the epoch, as callbacks accept it."""
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
    """A run in a temporary folder. Its tables can be read while it records and afterwards."""

    __test__ = False

    def __init__(self, run: stepwell.Run, folder: Path) -> None:
        self.run = run
        self._folder = folder
        self._tables: dict[str, pl.DataFrame] = {}

    @property
    def recorded(self) -> RecordedRun:
        """The recorded run. Available until the end of the ``with`` block."""
        return stepwell.open_run(self.run.path)

    def table(self, name: str) -> pl.DataFrame:
        """Return a table of the run, such as ``spans``. Also works after the end."""
        if name in self._tables:
            return self._tables[name]
        self.run.flush()
        return self.recorded.table(name).collect()

    def spans(self) -> pl.DataFrame:
        """Return all spans."""
        return self.table("spans")

    def events(self) -> pl.DataFrame:
        """Return all events."""
        return self.table("events")

    def metrics(self) -> pl.DataFrame:
        """Return all metrics."""
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
    """Record a block into a temporary run whose tables stay in memory. A context manager.

    Misuse and problems inside stepwell are raised. With ``strict=False`` they are only logged, as in
    training.
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
    """Start runs without runtime monitoring, so that they contain only what the test records."""
    before = os.environ.get("STEPWELL_RUNTIME")
    os.environ["STEPWELL_RUNTIME"] = before or "off"
    try:
        yield
    finally:
        if before is None:
            del os.environ["STEPWELL_RUNTIME"]
        else:
            os.environ["STEPWELL_RUNTIME"] = before
