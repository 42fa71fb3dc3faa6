"""A run in a temporary folder."""

from __future__ import annotations

import tempfile
from collections.abc import Iterator
from contextlib import contextmanager

import stepwell


@contextmanager
def recording() -> Iterator[stepwell.Run]:
    """A fresh run that is active inside, and checked at the end to have lost nothing."""
    with tempfile.TemporaryDirectory(prefix="stepwell-bench-") as folder:
        with stepwell.init("bench", dir=folder) as run:
            yield run
        # Dropping would be cheap, and no result.
        dropped = stepwell.open_run(run.path).processes().collect()["dropped"].sum()
        if dropped:
            raise RuntimeError(f"the run lost {dropped} records")
