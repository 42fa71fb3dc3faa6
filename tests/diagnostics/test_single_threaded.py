"""Work in the calling thread alone, without effect on other threads."""

from __future__ import annotations

from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor

import pytest

torch = pytest.importorskip("torch")

from stepwell.diagnostics import norms  # noqa: E402

pytestmark = pytest.mark.torch


@pytest.fixture(autouse=True)
def _two_threads() -> Iterator[None]:
    """Another number than the one that is under test."""
    before = torch.get_num_threads()
    torch.set_num_threads(2)
    yield
    torch.set_num_threads(before)


def test_the_number_of_threads_is_as_before_afterwards() -> None:
    """Also after an error, and when one is inside another."""
    with norms.single_threaded(), norms.single_threaded():
        assert torch.get_num_threads() == 1
    assert torch.get_num_threads() == 2
    with pytest.raises(ValueError, match="broken"), norms.single_threaded():
        raise ValueError("broken")
    assert torch.get_num_threads() == 2


def test_another_thread_keeps_its_own() -> None:
    """Whether it was there before or starts within."""
    with ThreadPoolExecutor(1) as pool:
        assert pool.submit(torch.get_num_threads).result() == 2
        with norms.single_threaded():
            assert pool.submit(torch.get_num_threads).result() == 2
    with ThreadPoolExecutor(1) as pool, norms.single_threaded():
        assert pool.submit(torch.get_num_threads).result() == 2


@pytest.mark.parametrize("dtype", [torch.float32, torch.float64, torch.bfloat16])
@pytest.mark.parametrize("alone", [True, False])
def test_norms_are_right_where_it_cannot_be_had(
    alone: bool, dtype: torch.dtype, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A constant is the worst case: all roundings go in the same direction."""
    if not alone:
        monkeypatch.setattr(norms, "_setter", lambda: None)
        monkeypatch.setattr(torch, "get_num_threads", lambda: 2)
    size = 3_000_001
    tensor = torch.full((size,), 0.3, dtype=dtype)
    right = float(tensor[0].double()) * size**0.5
    assert float(norms.l2([tensor])) == pytest.approx(right, rel=1e-5)
    moved = torch.cat(norms.norms_of_change(tensor, torch.zeros_like(tensor))).double()
    assert float(torch.linalg.vector_norm(moved)) == pytest.approx(right, rel=1e-5)
