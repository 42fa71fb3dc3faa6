"""Configurations: overrides, merging, conflicts, and conversion to JSON."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest

from stepwell.training.config import ApplicationConfig, TrainingTelemetryConfig
from stepwell.training.resolved_config import ResolvedConfig, merged
from tests.training.configs import OR_FUNCTION, WHOLE, message, of_the_document, training


def test_an_override_of_training() -> None:
    """Named fields change, others do not; the original is unchanged."""
    config = of_the_document()
    changed = config.with_override({"world_size": 8, "log_every_n_train_iterations": 5})
    assert (changed.world_size, changed.log_every_n_train_iterations) == (8, 5)
    assert changed.global_batch_size == 32
    assert config.world_size == 5


def test_an_override_in_an_override() -> None:
    """A nested dict changes the configuration of training, named with or without the ending."""
    base = ApplicationConfig(
        application_name="app", telemetry_config=training(seq_length_or_fn=128)
    )
    changed = base.with_override(
        {
            "application_name": "other",
            "telemetry_config": {"seq_length_or_fn": 256, "perf_tag": "fast"},
        }
    )
    assert changed.application_name == "other"
    assert changed.telemetry_config is not None
    assert changed.telemetry_config.seq_length == 256
    assert changed.telemetry_config.perf_tag == "fast"


def test_an_override_on_a_base_without_training() -> None:
    """There need not be a configuration of training to override."""
    changed = ApplicationConfig().with_override({"telemetry_config": {"seq_length": 256}})
    assert changed.telemetry_config is not None
    assert changed.telemetry_config.seq_length == 256
    assert ApplicationConfig().with_override({"strict": True}).telemetry_config is None
    assert ApplicationConfig().with_override({"telemetry_config": None}).telemetry_config is None


def test_fields_of_training_may_stand_outside() -> None:
    """An override need not know on which of the two configurations a field is."""
    changed = ApplicationConfig().with_override({"seq_length": 256, "strict": True})
    assert changed.strict is True
    assert changed.telemetry_config is not None
    assert changed.telemetry_config.seq_length == 256


def test_an_override_takes_a_value_back() -> None:
    """None gives the default again."""
    assert of_the_document().with_override({"session_tag": None}).session_tag is None
    assert training(strict=True).with_override({"strict": None}).strict is False


def test_facts_are_overridden_one_by_one() -> None:
    """Facts that the override does not name stay."""
    config = ApplicationConfig(custom_metadata={"a": 1, "b": 2})
    assert config.with_override({"custom_metadata": {"b": 3}}).custom_metadata == {"a": 1, "b": 3}


def test_an_override_of_what_training_said_too() -> None:
    """Overriding a field of the application leaves no contradiction behind."""
    base = ApplicationConfig(world_size_or_fn=5, telemetry_config=of_the_document())
    changed = base.with_override({"world_size": 8})
    assert merged(changed).world_size == 8


def test_a_wrong_override_names_the_place() -> None:
    """All problems of an override, each with its path."""
    base = ApplicationConfig()
    changes = {"strict": "no", "telemetry_config": {"seq_lenght": 3, "global_batch_size": 0}}
    assert message(lambda: base.with_override(changes)) == (
        "override: 3 problems\n"
        "- strict must be True or False, got 'no'\n"
        "- telemetry_config.seq_lenght is not a field; did you mean seq_length_or_fn?\n"
        f"- telemetry_config.global_batch_size {WHOLE}, got 0{OR_FUNCTION}"
    )


@pytest.mark.parametrize(
    ("changes", "says"),
    [
        ([("a", 1)], "override: must be a dict, such as {'session_tag': 'night'}, got [('a', 1)]"),
        (
            {"telemetry_config": 5},
            "override: telemetry_config must be a dict of its fields, got 5",
        ),
        (
            {"seq_length": 1, "seq_length_or_fn": 2},
            "override: seq_length_or_fn is given twice, with and without _or_fn",
        ),
        (
            {"seq_length": 1, "telemetry_config": {"seq_length": 2}},
            "override: telemetry_config.seq_length_or_fn is 2, but 1 at the top level",
        ),
    ],
)
def test_an_override_that_makes_no_sense(changes: Any, says: str) -> None:
    """Each is refused with what is wrong."""
    assert message(lambda: ApplicationConfig().with_override(changes)) == says


# Merging


def test_application_and_training_become_one() -> None:
    """All fields of both are there under their names."""
    config = merged(
        ApplicationConfig(application_name="app", world_size_or_fn=4, session_tag_or_fn="s"),
        training(global_batch_size_or_fn=lambda: 32, seq_length_or_fn=128),
    )
    assert isinstance(config, ResolvedConfig)
    assert (config.application_name, config.world_size, config.session_tag) == ("app", 4, "s")
    assert (config.global_batch_size, config.seq_length) == (32, 128)
    assert config.has_telemetry_config is True


def test_whether_training_is_configured() -> None:
    """It may be configured later; an override can do so too."""
    assert merged().has_telemetry_config is False
    assert merged(ApplicationConfig()).has_telemetry_config is False
    assert merged(ApplicationConfig(telemetry_config=training())).has_telemetry_config is True
    assert merged(None, training()).has_telemetry_config is True
    assert merged(of_the_document()).has_telemetry_config is True
    assert merged(ApplicationConfig(), None, [{"strict": True}]).has_telemetry_config is False
    assert merged(ApplicationConfig(), None, [{"seq_length": 3}]).has_telemetry_config is True
    nested: dict[str, Any] = {"telemetry_config": {}}
    assert merged(ApplicationConfig(), None, [nested]).has_telemetry_config is True


def test_saying_the_same_twice_is_fine() -> None:
    """Equal values contradict nothing, and neither does the same configuration given twice."""
    config = of_the_document()
    base = ApplicationConfig(application_name="test_app", world_size_or_fn=5)
    assert merged(base, config).world_size == 5
    assert merged(config, config).world_size == 5
    assert merged(ApplicationConfig(telemetry_config=config), config).world_size == 5


def test_a_contradiction_is_refused() -> None:
    """Both values are named."""
    base = ApplicationConfig(application_name="app", world_size_or_fn=4)
    assert message(lambda: merged(base, of_the_document())) == (
        "conflicting configurations: 2 problems\n"
        "- application_name is 'app' in one and 'test_app' in the other: set it in one only\n"
        "- world_size_or_fn is 4 in one and 5 in the other: set it in one only"
    )


def test_a_default_says_nothing() -> None:
    """A field that only one of them sets is taken from it."""
    base = ApplicationConfig(is_baseline_run_or_fn=True, strict=True)
    config = merged(base, of_the_document())
    assert config.is_baseline_run is True
    assert config.strict is True
    assert config.application_name == "test_app"


def test_facts_of_both_are_kept() -> None:
    """Facts add up; only one fact with two values is a contradiction."""
    base = ApplicationConfig(custom_metadata={"a": 1, "b": 2})
    assert merged(base, training(custom_metadata={"b": 2, "c": 3})).custom_metadata == {
        "a": 1,
        "b": 2,
        "c": 3,
    }
    assert message(lambda: merged(base, training(custom_metadata={"b": 3}))) == (
        "conflicting configurations: custom_metadata['b'] is 2 in one and 3 in the "
        "other: set it in one only"
    )


def test_facts_that_cannot_be_compared() -> None:
    """An array in them does not fail."""
    numpy = pytest.importorskip("numpy")
    facts = {"weights": numpy.array([1, 2])}
    assert merged(ApplicationConfig(custom_metadata=facts), training(custom_metadata=facts))


def test_later_overrides_win() -> None:
    """Over both configurations, and over earlier overrides."""
    config = merged(
        ApplicationConfig(application_name="a"),
        of_the_document().with_override({"application_name": "a"}),
        [{"world_size": 6, "custom_metadata": {"x": 1}}, {"telemetry_config": {"world_size": 7}}],
    )
    assert config.world_size == 7
    assert config.custom_metadata == {"x": 1}


def test_only_configurations_are_merged() -> None:
    """Anything else is refused."""
    assert message(lambda: merged({"world_size": 3})) == (  # type: ignore[arg-type]
        "config must be an ApplicationConfig or a TrainingTelemetryConfig, got {'world_size': 3}"
    )


def test_whether_counts_are_functions() -> None:
    """A job evaluates only functions again at each iteration."""
    assert merged(of_the_document()).counts_are_functions is False
    assert merged(training(world_size_or_fn=lambda: 3)).counts_are_functions is False
    for name in ("global_batch_size_or_fn", "seq_length_or_fn", "flops_per_sample_or_fn"):
        assert merged(training(**{name: lambda: 3})).counts_are_functions is True


# As JSON


def test_a_configuration_as_json() -> None:
    """Functions appear by what they give now, or by name where they fail."""

    def not_yet() -> int:
        raise RuntimeError

    config = ApplicationConfig(
        application_name="app",
        world_size_or_fn=not_yet,
        session_tag_or_fn=lambda: "night",
        custom_metadata={"path": Path("a"), "n": 3},
        telemetry_config=training(
            application_name="app", perf_tag_or_fn=["a"], save_checkpoint_strategy="async"
        ),
    )
    found = config.to_dict()
    assert json.loads(json.dumps(found, allow_nan=False)) == found
    assert found["application_name"] == "app"
    assert found["world_size"] == "<not_yet>"
    assert found["session_tag"] == "night"
    assert found["custom_metadata"] == {"path": "a", "n": 3}
    assert found["telemetry_config"]["perf_tag"] == ["a"]
    assert found["telemetry_config"]["save_checkpoint_strategy"] == "async"
    assert "seq_length" not in found["telemetry_config"]


def test_a_merged_configuration_as_json() -> None:
    """All fields are on one level."""
    found = merged(ApplicationConfig(session_tag_or_fn="s"), training(seq_length_or_fn=3)).to_dict()
    assert (found["session_tag"], found["seq_length"]) == ("s", 3)
    assert "telemetry_config" not in found
    assert "has_telemetry_config" not in found


def test_what_was_written_as_json_overrides_as_it_was() -> None:
    """The names in it are those that an override takes."""
    config = of_the_document()
    assert TrainingTelemetryConfig().with_override(config.to_dict()) == config
