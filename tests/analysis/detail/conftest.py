"""A cache folder of its own for each test, and nothing in memory."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import pytest

from stepwell.analysis.cache import memory
from stepwell.journal.archive import Block
from tests.in_memory import tmp_path as tmp_path


@pytest.fixture(autouse=True)
def cache(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[Path]:
    """The reader's cache folder."""
    monkeypatch.setenv("STEPWELL_CACHE", str(tmp_path / "cache"))
    memory.clear()
    yield tmp_path / "cache"
    memory.clear()


@pytest.fixture
def unpacked(monkeypatch: pytest.MonkeyPatch) -> list[Block]:
    """The sealed segments that were unpacked."""
    blocks: list[Block] = []
    payload = Block.payload

    def counted(block: Block, *limit: int) -> bytes:
        blocks.append(block)
        return payload(block, *limit)

    monkeypatch.setattr(Block, "payload", counted)
    return blocks
