"""Which spans are exported, and what is said about a filter that makes no sense."""

from __future__ import annotations

import enum
from typing import Any

import pytest

from stepwell import StepwellError
from stepwell.exporters import ExportCustomizationMode, ExportFilter
from stepwell.vocabulary import SHORT_SPANS

ALL = ExportCustomizationMode.EXPORT_ALL_SPANS
ONLY = ExportCustomizationMode.WHITELIST_SPANS
BUT = ExportCustomizationMode.BLACKLIST_SPANS


class Name(enum.Enum):
    LOOP = "training_loop"
    STEP = "training_single_iteration"


@pytest.mark.parametrize(
    ("chosen", "kept", "left_out"),
    [
        (ExportFilter(ALL), ["training_loop", "model_forward", "mine"], []),
        (ExportFilter(ONLY, ["mine", Name.LOOP]), ["training_loop", "mine"], ["other", "Mine"]),
        (ExportFilter(BUT, [Name.STEP]), ["training_loop", "mine"], ["training_single_iteration"]),
        (
            ExportFilter(),
            ["application", "training_loop", "checkpoint_save_sync", "mine"],
            [
                "training_single_iteration",
                "validation_single_iteration",
                "testing_single_iteration",
                "data_loading",
                "model_forward",
                "zero_grad",
                "model_backward",
                "optimizer_update",
            ],
        ),
    ],
)
def test_what_a_filter_keeps(chosen: ExportFilter, kept: list[str], left_out: list[str]) -> None:
    """Names are compared exactly; without arguments all but the eight short spans are kept."""
    assert [name for name in kept if not chosen.keeps(name)] == []
    assert [name for name in left_out if chosen.keeps(name)] == []


@pytest.mark.parametrize(
    ("arguments", "said"),
    [
        ((ALL, ["a"]), "span_name_filter must be left out with ALL_SPANS"),
        ((ALL, []), "span_name_filter must be left out with ALL_SPANS"),
        ((ONLY, None), "must be a list of span names with ALLOW_LIST"),
        ((BUT, []), "must be a list of span names with DENY_LIST"),
        ((BUT, "a"), "must be a list of span names with DENY_LIST"),
        ((BUT, 3), "must be a list of span names with DENY_LIST"),
        ((BUT, ["a", 3]), "span_name_filter must contain strings or members of an enum, got 3"),
        (("everything", None), "ExportMode.ALL_SPANS"),
        ((None, ["a"]), "mode must be one of ExportMode.ALL_SPANS"),
    ],
)
def test_a_wrong_filter(arguments: tuple[Any, Any], said: str) -> None:
    """Each mistake is refused, with what to write instead."""
    with pytest.raises(StepwellError) as refused:
        ExportFilter(*arguments)
    assert said in str(refused.value)


@pytest.mark.parametrize("chosen", [ExportFilter(), ExportFilter(ALL), ExportFilter(ONLY, ["a"])])
def test_a_filter_survives_the_way_to_another_process(chosen: ExportFilter) -> None:
    """Its plain values give it back."""
    assert ExportFilter.from_json(chosen.to_json()) == chosen


def test_the_short_spans_are_those_of_the_vocabulary() -> None:
    """Exporters leave out the short spans of the training vocabulary by default."""
    assert ExportFilter().names == {*map(str, SHORT_SPANS), "gc", "diagnostics"}
