"""Run ids are safe as folder names."""

from __future__ import annotations

import pytest

from stepwell.telemetry.run_names import check_run_id


@pytest.mark.parametrize("run_id", ["a", "7", "run-1", "A.b_c+d=e@f", "x" * 128])
def test_an_ordinary_id_is_taken_as_it_is(run_id: str) -> None:
    """Letters, digits and a few signs make a run id."""
    assert check_run_id(run_id) == run_id


@pytest.mark.parametrize(
    ("run_id", "said"),
    [
        ("", "empty"),
        ("..", "starts with '.'"),
        (".launches", "starts with '.'"),
        ("-rf", "starts with '-'"),
        ("a/b", "contains '/'"),
        ("a\\b", "contains '\\\\\\\\'"),
        ("a\0b", r"contains '\\x00'"),
        ("a b\n", r"contains '\\n', ' '"),
        ("käse", "such as 'kase'"),
        ("x" * 129, "129 characters"),
    ],
)
def test_an_id_that_is_no_safe_folder_name_is_refused(run_id: str, said: str) -> None:
    """The error says what is wrong with the id."""
    with pytest.raises(ValueError, match=said):
        check_run_id(run_id)
