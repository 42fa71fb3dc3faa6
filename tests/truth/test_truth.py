"""Whole trainings: each report has the right numbers, all findings that it must have, and no other."""

from __future__ import annotations

from pathlib import Path

import pytest

for needed in ("torch", "lightning", "transformers", "accelerate"):
    pytest.importorskip(needed)

from tests.truth.case import Case  # noqa: E402
from tests.truth.families import cases_of  # noqa: E402
from tests.truth.outcome import run_case  # noqa: E402

pytestmark = pytest.mark.torch


def each(family: str, *by_default: str) -> pytest.MarkDecorator:
    """Parametrize a test with the cases of a family; all but these are for ``make test-full``."""
    parameters = []
    for case in cases_of(family):
        is_default = case.script.__name__ in by_default
        marks = [] if is_default else [pytest.mark.full]
        if case.wrong:
            marks.append(pytest.mark.xfail(strict=True, reason=case.wrong))
        parameters.append(pytest.param(case, id=case.script.__name__, marks=marks))
    return pytest.mark.parametrize("case", parameters)


def check(case: Case, folder: Path) -> None:
    mistakes = list(run_case(case, folder).mistakes())
    assert not mistakes, "\n".join(mistakes)


@each(
    "loops",
    *("with_a_loader", "validation_after_each_epoch", "accumulated_gradients"),
    *("gan", "loss_logged_by_hand"),
)
def test_loops(case: Case, tmp_path: Path) -> None:
    """Healthy loops of plain PyTorch."""
    check(case, tmp_path)


@each("spans", "own_spans")
def test_spans(case: Case, tmp_path: Path) -> None:
    """Healthy loops with explicit spans."""
    check(case, tmp_path)


@each(
    "learning",
    *("forgotten_zero_grad", "parameters_of_another_model", "nan_at_step_77", "overfitting"),
)
def test_learning(case: Case, tmp_path: Path) -> None:
    """Models that do not learn as they should."""
    check(case, tmp_path)


@each(
    "times",
    *("slow_loader", "one_stall", "code_in_no_span"),
)
def test_times(case: Case, tmp_path: Path) -> None:
    """Trainings that lose time."""
    check(case, tmp_path)


@each("ends", "killed_at_step_46", "exception_in_the_loop", "hang_in_the_model")
def test_ends(case: Case, tmp_path: Path) -> None:
    """Trainings that do not come to their end."""
    check(case, tmp_path)


@each("ranks", "rank_0_saves", "slow_rank", "rank_1_is_killed")
def test_ranks(case: Case, tmp_path: Path) -> None:
    """Trainings in two ranks."""
    check(case, tmp_path)


@each(
    "frameworks",
    *("lightning_fit", "trainer_slow_loader", "accelerate_loop"),
)
def test_frameworks(case: Case, tmp_path: Path) -> None:
    """Trainings with Lightning, the Trainer of Hugging Face and Accelerate."""
    check(case, tmp_path)
