"""Values that TelemetryConfig accepts and refuses."""

from __future__ import annotations

from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

import pytest
import yaml

from stepwell._core.errors import StepwellError
from stepwell.diagnostics import TelemetryConfig

DOCUMENTED = {
    "enabled": True,
    "collect_every_n": 200,
    "output_dir": None,
    "track_gradients": True,
    "track_weight_delta": True,
    "track_learning_rates": True,
    "track_holdout_logits": True,
    "track_batch_stats": True,
    "holdout_size": 50,
}


def test_documented_defaults() -> None:
    """All documented fields are there, in their order, with their defaults."""
    config = TelemetryConfig()
    assert {name: getattr(config, name) for name in DOCUMENTED} == DOCUMENTED
    assert list(TelemetryConfig.__annotations__)[: len(DOCUMENTED)] == list(DOCUMENTED)


def test_what_is_more_is_off() -> None:
    """Families beyond the documented five have to be turned on."""
    config = TelemetryConfig()
    switches = [name for name in TelemetryConfig.__annotations__ if name.startswith("track_")]
    assert [name for name in switches if getattr(config, name)] == list(DOCUMENTED)[3:8]


def test_from_yaml() -> None:
    """The documented YAML gives the defaults."""
    text = """
telemetry:
  enabled: true
  collect_every_n: 200
  output_dir: null
  track_gradients: true
  track_weight_delta: true
  track_learning_rates: true
  track_holdout_logits: true
  track_batch_stats: true
  holdout_size: 50
"""
    assert TelemetryConfig.from_dict(yaml.safe_load(text)["telemetry"]) == TelemetryConfig()


def test_to_yaml_and_back() -> None:
    """With fields of both kinds: documented ones and ours."""
    config = TelemetryConfig(collect_every_n=7, track_gradients=False, groups={"stem": "conv1"})
    text = yaml.safe_dump({"telemetry": asdict(config)})
    assert TelemetryConfig.from_dict(yaml.safe_load(text)["telemetry"]) == config


def test_from_dict_takes_a_part() -> None:
    """Omitted fields have their defaults."""
    assert TelemetryConfig.from_dict({}) == TelemetryConfig()
    assert TelemetryConfig.from_dict({"collect_every_n": 7}).collect_every_n == 7


@pytest.mark.parametrize("given", ["out", Path("out")])
def test_output_dir_becomes_a_path(given: str | Path) -> None:
    """A text and a path are the same."""
    assert TelemetryConfig(output_dir=given).output_dir == Path("out")


@pytest.mark.parametrize(
    ("key", "hint"),
    [
        ("colect_every_n", "collect_every_n"),
        ("track_gradient", "track_gradients"),
        ("holdoutsize", "holdout_size"),
        ("zzz", "valid names: activation_layers"),
    ],
)
def test_unknown_keys_are_left_out(key: str, hint: str, caplog: pytest.LogCaptureFixture) -> None:
    """A typing mistake is named, with the nearest right key; the other keys count."""
    config = TelemetryConfig.from_dict({key: 1, "collect_every_n": 7})
    assert config == TelemetryConfig(collect_every_n=7)
    (said,) = caplog.messages
    assert repr(key) in said
    assert hint in said


def test_all_unknown_keys_are_named_at_once(caplog: pytest.LogCaptureFixture) -> None:
    """One warning has all of them."""
    TelemetryConfig.from_dict({"enabeld": True, "output_dri": "x"})
    (said,) = caplog.messages
    assert "'enabeld'" in said
    assert "'output_dri'" in said


@pytest.mark.parametrize("given", [None, [("enabled", True)], "enabled"])
def test_from_dict_wants_a_dict(given: Any) -> None:
    """Of anything else it says what to write."""
    with pytest.raises(StepwellError, match="must be a dict"):
        TelemetryConfig.from_dict(given)


@pytest.mark.parametrize(
    ("name", "value"),
    [
        ("collect_every_n", 0),
        ("collect_every_n", -5),
        ("collect_every_n", "200"),
        ("collect_every_n", 1.5),
        ("collect_every_n", True),
        ("collect_every_n", None),
        ("holdout_size", 0),
        ("snapshot_every", 0),
        ("batches_per_epoch", -1),
        ("enabled", "yes"),
        ("enabled", None),
        ("track_gradients", 1),
        ("output_dir", 7),
        ("output_dir", ""),
        ("task", "ranking"),
        ("task", None),
        ("weight_delta", "gpu"),
        ("weight_delta", []),
        ("groups", "layer"),
        ("groups", {}),
        ("groups", ["head"]),
        ("groups", {"stem": "("}),
        ("groups", {"stem": ["conv", 5]}),
        ("batch_adapter", "pairs"),
        ("label_key", ""),
        ("holdout_dtype", "int8"),
        ("activation_layers", "head"),
        ("loss", 1),
    ],
)
def test_impossible_values_are_refused(name: str, value: Any) -> None:
    """The message names the field and what to write."""
    with pytest.raises(StepwellError, match=rf"{name} must .*got"):
        TelemetryConfig(**{name: value})


def test_several_wrong_values_are_named_at_once() -> None:
    """Each with what to write instead."""
    with pytest.raises(StepwellError, match=r"(?s)collect_every_n.*task"):
        TelemetryConfig(collect_every_n=0, task="x")


def test_a_subclass_adds_fields() -> None:
    """Of any type, also from a dict; ours are checked as before."""

    @dataclass
    class MyConfig(TelemetryConfig):
        my_threshold: float = 0.5
        my_layers: tuple[str, ...] = ()

    assert MyConfig(collect_every_n=7, my_threshold=0.7).my_threshold == 0.7
    made = MyConfig.from_dict({"my_layers": ("head",), "holdout_size": 3})
    assert made == MyConfig(my_layers=("head",), holdout_size=3)
    with pytest.raises(StepwellError, match=r"holdout_size must be .*, got 0"):
        MyConfig(holdout_size=0)


@pytest.mark.parametrize(
    "groups",
    ["param_groups", "layers", {"stem": "conv1"}, lambda name, parameter: name.partition(".")[0]],
)
def test_group_rules(groups: Any) -> None:
    """Names, patterns and functions are taken."""
    assert TelemetryConfig(groups=groups).groups is groups
