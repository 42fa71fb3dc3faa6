"""Norms against sums in float64."""

from __future__ import annotations

import math

import pytest
import torch

from stepwell.diagnostics.norms import fetch, l2, l2_by_group
from tests.diagnostics.models import KINDS, loss_of, made, norm64

pytestmark = pytest.mark.torch


@pytest.mark.parametrize("kind", KINDS)
def test_gradients_of_every_kind_of_model(kind: object) -> None:
    model = made(kind)
    loss_of(model, kind).backward()
    gradients = [parameter.grad for parameter in model.parameters()]
    assert float(l2(gradients)) == pytest.approx(norm64(gradients), rel=1e-6)
    assert norm64(gradients) > 0


@pytest.mark.parametrize("size", [0, 1, 4095, 4096, 4097, 200_001, 1 << 21])
@pytest.mark.parametrize("dtype", [torch.float32, torch.float64, torch.bfloat16, torch.float16])
def test_sizes_around_the_block_and_precisions(size: int, dtype: torch.dtype) -> None:
    tensor = torch.randn(size, generator=torch.Generator().manual_seed(0)).to(dtype)
    assert float(l2([tensor])) == pytest.approx(norm64([tensor]), rel=1e-6)


def test_a_tensor_of_39_million_elements() -> None:
    """A sum of squares in float32 is off by a quarter of a percent there."""
    tensor = torch.randn(39_000_000, generator=torch.Generator().manual_seed(0))
    exact = math.sqrt(sum(float(one.double().square().sum()) for one in tensor.split(1 << 20)))
    assert float(l2([tensor])) == pytest.approx(exact, rel=1e-6)


@pytest.mark.parametrize("value", [0.1, 1 / 3, 0.7, 0.0123, 1e-4, 123.4])
def test_equal_numbers(value: float) -> None:
    """Where the rounding of every sum goes the same way."""
    tensor = torch.full((100_000,), value)
    assert float(l2([tensor])) == pytest.approx(norm64([tensor]), rel=5e-6)


@pytest.mark.filterwarnings("ignore:Sparse CSR tensor support")
def test_layouts() -> None:
    """Transposed, channels last, with gaps, expanded, complex, whole numbers, sparse with duplicates."""
    base = torch.randn(40, 60)
    places = torch.tensor([[0, 0, 5], [1, 1, 2]])
    values = torch.tensor([1.0, 2.0, 4.0])
    sparse = torch.sparse_coo_tensor(places, values, (6, 4), check_invariants=True)
    for tensor in (
        base.t(),
        torch.randn(2, 3, 4, 5).to(memory_format=torch.channels_last),
        base[::2, ::3],
        torch.randn(5, 1).expand(5, 7),
        torch.randn(30, dtype=torch.complex64),
        torch.arange(9),
        sparse,
        base.to_sparse_csr(),
        torch.tensor(3.0),
        torch.randn(3, requires_grad=True),
    ):
        dense = tensor.to_dense() if tensor.layout != torch.strided else tensor
        found = l2([tensor])
        assert float(found) == pytest.approx(norm64([dense]), rel=1e-6)
        assert not found.requires_grad


@pytest.mark.parametrize("size", [10, 100_000])
@pytest.mark.parametrize("magnitude", [1e-30, 1e-22, 1e-17, 1e25, 1e37])
def test_squares_that_float32_cannot_hold(size: int, magnitude: float) -> None:
    """Vanishing and exploding gradients have a norm too."""
    tensor = torch.full((size,), magnitude)
    assert float(l2([tensor])) == pytest.approx(norm64([tensor]), rel=1e-5)


@pytest.mark.parametrize("size", [10, 100_000])
def test_what_is_not_finite_stays_so(size: int) -> None:
    tensor = torch.ones(size)
    tensor[3] = math.inf
    assert float(l2([tensor])) == math.inf
    tensor[4] = math.nan
    assert math.isnan(float(l2([tensor])))
    assert math.isnan(float(l2([torch.ones(2), tensor])))


def test_nothing_is_zero() -> None:
    assert float(l2([])) == 0.0
    assert float(l2([None, torch.zeros(0), torch.zeros(100_000)])) == 0.0


def test_groups_may_overlap_and_be_empty() -> None:
    a, b = torch.full((4,), 3.0), torch.full((4,), 4.0)
    found = fetch(l2_by_group({"overall": [a, b], "a": [a], "none": [None], "empty": []}))
    assert found == {"overall": 10.0, "a": 6.0, "none": 0.0, "empty": 0.0}


def test_fetch_takes_numbers_of_any_kind() -> None:
    given = {
        "a": torch.tensor(1.5),
        "b": torch.tensor([2.0], dtype=torch.float64),
        "c": torch.tensor(3),
    }
    assert fetch(given) == {"a": 1.5, "b": 2.0, "c": 3.0}
    assert fetch({}) == {}


def test_tensors_are_left_as_they_are() -> None:
    values = torch.tensor([1.0, 2.0])
    sparse = torch.sparse_coo_tensor([[0, 0]], values, (3,), check_invariants=True)
    dense = torch.randn(70_000)
    before = dense.clone()
    l2([sparse, dense])
    assert not sparse.is_coalesced()
    assert torch.equal(dense, before)
