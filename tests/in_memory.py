"""Folders without a disk below, for tests that make and remove thousands of small files."""

from __future__ import annotations

import os
import tempfile
from collections.abc import Iterator
from pathlib import Path

import pytest

import stepwell

SHARED_MEMORY = Path("/dev/shm")


def folder_in_memory() -> tempfile.TemporaryDirectory[str]:
    """A temporary folder; on a disk after all where the system has no file system in memory."""
    is_there = SHARED_MEMORY.is_dir() and os.access(SHARED_MEMORY, os.W_OK)
    return tempfile.TemporaryDirectory(
        prefix="stepwell-test-", dir=SHARED_MEMORY if is_there else None
    )


@pytest.fixture
def tmp_path() -> Iterator[Path]:
    """A folder in memory, for tests that are not about a disk: each run would wait for one."""
    with folder_in_memory() as folder:
        yield Path(folder)
        stepwell.finish()
