"""The size cap: how it is written."""

from __future__ import annotations

import pytest

from stepwell.journal.cap import SizeCap, parse_size


@pytest.mark.parametrize(
    ("text", "size"),
    [
        ("", None),
        ("  ", None),
        ("0", None),
        ("0M", None),
        ("off", None),
        ("None", None),
        ("1", 1),
        ("500", 500),
        ("1K", 1024),
        ("1k", 1024),
        ("20M", 20 * 1024 * 1024),
        ("20MB", 20 * 1024 * 1024),
        ("20MiB", 20 * 1024 * 1024),
        ("20 mb", 20 * 1024 * 1024),
        (" 1.5G ", 3 * 512 * 1024 * 1024),
        ("2T", 2 * 1024**4),
        ("7B", 7),
    ],
)
def test_sizes_are_read_as_people_write_them(text: str, size: int | None) -> None:
    """Units are powers of 1024, in any case; nothing, zero and off mean no cap."""
    assert parse_size(text) == size


@pytest.mark.parametrize("text", ["many", "-1", "1e9", "5X", "1.2.3M", "M", "inf", "nan", "1,5G"])
def test_a_size_that_is_none_is_refused(text: str) -> None:
    """A text that is not a number with a unit raises ValueError."""
    with pytest.raises(ValueError, match="must be a size"):
        parse_size(text)


def test_the_environment_decides() -> None:
    """Limit and policy come from their variables; the policy is oldest unless said otherwise."""
    cap = SizeCap.from_environment({"STEPWELL_MAX_BYTES": "1M", "STEPWELL_DROP": "newest"})
    assert (cap.limit, cap.drop) == (1 << 20, "newest")
    cap = SizeCap.from_environment({})
    assert (cap.limit, cap.drop) == (None, "oldest")


def test_a_mistake_leaves_the_default() -> None:
    """Neither a wrong size nor a wrong policy ends training."""
    cap = SizeCap.from_environment({"STEPWELL_MAX_BYTES": "lots", "STEPWELL_DROP": "all"})
    assert (cap.limit, cap.drop) == (None, "oldest")


def test_a_small_cap_rolls_small_files() -> None:
    """Files are an eighth of the cap, so that dropping one frees little more than is needed."""
    assert SizeCap(8 << 20).roll_bytes == 1 << 20
    assert SizeCap(1000).roll_bytes == 1 << 16
    assert SizeCap(None).roll_bytes == SizeCap(1 << 40).roll_bytes == 64 << 20
