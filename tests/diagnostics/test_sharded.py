"""Norms of models that are spread over processes are those of the model that is not."""

from __future__ import annotations

from pathlib import Path

import pytest

from tests.harness import run_ranks

pytest.importorskip("torch.distributed")

pytestmark = pytest.mark.torch
PROGRAM = Path(__file__).with_name("sharded_program.py")


@pytest.mark.full
@pytest.mark.parametrize("size", [2, pytest.param(4, marks=pytest.mark.full)])
def test_every_rank_has_the_numbers_of_the_whole(size: int, tmp_path: Path) -> None:
    """Data parallel, FSDP2, tensor parallel and on a mesh of both; also when one rank is in trouble."""
    run_ranks(PROGRAM, tmp_path, world=size, cwd=tmp_path, check=True, timeout=200)
