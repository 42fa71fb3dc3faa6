"""Which parameters are in which group, under which name."""

from __future__ import annotations

import logging
import re

import pytest
import torch

from stepwell._core.errors import StepwellError, counts
from stepwell.diagnostics.groups import grouped
from tests.diagnostics.models import Block, made, mlp

pytestmark = pytest.mark.torch


class Two(torch.nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.backbone = torch.nn.Linear(2, 2)
        self.mlp = torch.nn.Linear(2, 2)
        self.my_head = torch.nn.Linear(2, 1)
        self.token = torch.nn.Parameter(torch.zeros(2))


class Wrapper(torch.nn.Module):
    """As data parallelism does it."""

    def __init__(self, module: torch.nn.Module) -> None:
        super().__init__()
        self.module = module


def names(groups: dict) -> dict[str, list[str]]:
    return {group: [name for name, _ in members] for group, members in groups.items()}


def test_by_default_names_tell_backbone_and_head() -> None:
    """Others are in overall alone, and overall comes first."""
    found = names(grouped(Two()))
    assert list(found) == ["overall", "backbone", "head"]
    assert found["backbone"] == ["backbone.weight", "backbone.bias"]
    assert found["head"] == ["mlp.weight", "mlp.bias", "my_head.weight", "my_head.bias"]
    assert len(found["overall"]) == 7


def test_a_group_without_parameters_is_absent() -> None:
    assert list(grouped(mlp())) == ["overall"]


def test_groups_of_the_optimizer_have_its_names() -> None:
    """Parameters that are in no group of the optimizer are in overall alone."""
    model = Two()
    optimizer = torch.optim.SGD(
        [
            {"params": model.backbone.parameters(), "name": "slow"},
            {"params": [*model.mlp.parameters(), torch.nn.Parameter(torch.ones(1))]},
        ],
        lr=0.1,
    )
    found = names(grouped(model, optimizer, "param_groups"))
    assert found["slow"] == ["backbone.weight", "backbone.bias"]
    assert found["group_1"] == ["mlp.weight", "mlp.bias"]
    assert list(found) == ["overall", "slow", "group_1"]


def test_layers_are_modules_with_parameters_of_their_own() -> None:
    found = names(grouped(Two(), None, "layers"))
    assert list(found) == ["overall", "root", "backbone", "mlp", "my_head"]
    assert found["root"] == ["token"]


def test_patterns_are_searched_in_names() -> None:
    """A parameter is in every group whose pattern finds it."""
    rule = {"all weights": r"\.weight$", "ends": ["^backbone", re.compile("my_head")]}
    found = names(grouped(Two(), None, rule))
    assert found["all weights"] == ["backbone.weight", "mlp.weight", "my_head.weight"]
    assert found["ends"] == ["backbone.weight", "backbone.bias", "my_head.weight", "my_head.bias"]


def test_a_pattern_that_finds_nothing_is_said_once(caplog: pytest.LogCaptureFixture) -> None:
    counts.clear()
    with caplog.at_level(logging.INFO, "stepwell"):
        for _ in range(2):
            assert list(grouped(Two(), None, {"trunk": "trunk"})) == ["overall"]
    assert [record.getMessage().count("trunk") for record in caplog.records] == [1]


def test_a_function_says_where_a_parameter_belongs() -> None:
    found = names(grouped(Two(), None, lambda name, one: "bias" if one.dim() == 1 else None))
    assert found["bias"] == ["token", "backbone.bias", "mlp.bias", "my_head.bias"]


@pytest.mark.parametrize(
    ("rule", "message"),
    [
        ("layer", "groups must be"),
        ({"head": "*head"}, "regular expression"),
        ({"overall": "head"}, "reserved"),
        (lambda name, one: 3, "string or None"),
        ("param_groups", "needs the optimizer"),
    ],
)
def test_a_wrong_rule_is_refused(rule: object, message: str) -> None:
    with pytest.raises(StepwellError, match=message):
        grouped(Two(), None, rule)


@pytest.mark.parametrize(
    "wrap",
    [
        Wrapper,
        lambda model: torch.compile(model, backend="eager"),
        lambda model: Wrapper(torch.compile(model, backend="eager")),
        lambda model: torch.compile(Wrapper(model), backend="eager"),
        torch.nn.DataParallel,
        torch.optim.swa_utils.AveragedModel,
    ],
)
def test_names_do_not_tell_how_the_model_was_wrapped(wrap: object) -> None:
    plain = made(Block)
    expected = names(grouped(plain, None, "layers"))
    assert names(grouped(wrap(plain), None, "layers")) == expected


def test_a_part_that_is_compiled_keeps_its_name() -> None:
    model = Two()
    expected = names(grouped(model))
    model.mlp = torch.compile(model.mlp, backend="eager")
    found = names(grouped(model))
    assert {group: sorted(own) for group, own in found.items()} == {
        group: sorted(own) for group, own in expected.items()
    }


def test_a_module_that_is_called_module_is_no_wrapper() -> None:
    """With a sibling, the name distinguishes them."""
    model = torch.nn.ModuleDict({"module": torch.nn.Linear(1, 1), "other": torch.nn.Linear(1, 1)})
    assert names(grouped(model))["overall"][0] == "module.weight"


def test_a_shared_parameter_counts_once_and_is_found_under_all_its_names() -> None:
    found = names(grouped(made(Block), None, {"head": "^lm_head"}))
    assert found["head"] == ["embed.weight"]
    assert found["overall"].count("embed.weight") == 1
    assert "lm_head.weight" not in found["overall"]
