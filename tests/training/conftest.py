"""Folders for hundreds of small runs."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import pytest

import stepwell
from tests.in_memory import folder_in_memory


@pytest.fixture
def tmp_path() -> Iterator[Path]:
    """A folder in memory: no test here is about a disk, and each run would wait for one."""
    with folder_in_memory() as folder:
        yield Path(folder)
        stepwell.finish()
