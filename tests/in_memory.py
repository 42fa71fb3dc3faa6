"""Folders without a disk below, for tests that make and remove thousands of small files."""

from __future__ import annotations

import os
import shutil
import tempfile
from collections.abc import Iterator
from pathlib import Path

import pytest

import stepwell

SHARED_MEMORY = Path("/dev/shm")


def folder_in_memory() -> tempfile.TemporaryDirectory[str]:
    """A temporary folder; on a disk after all where the system has no file system in memory."""
    return tempfile.TemporaryDirectory(
        prefix="stepwell-test-",
        dir=SHARED_MEMORY if _has_space(SHARED_MEMORY) else None,
        ignore_cleanup_errors=True,
    )


def _has_space(place: Path) -> bool:
    """Whether there is room for a few runs; a container may have 64 MB of shared memory."""
    is_there = place.is_dir() and os.access(place, os.W_OK)
    return is_there and shutil.disk_usage(place).free > 1 << 30


@pytest.fixture
def tmp_path() -> Iterator[Path]:
    """A folder in memory, for tests that do not need a disk."""
    with folder_in_memory() as folder:
        yield Path(folder)
        stepwell.finish()
