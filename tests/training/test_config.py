"""Configurations: checked when made, evaluated when read, merged without contradiction."""

from __future__ import annotations

import json
import pickle
import sys
import textwrap
from collections.abc import Callable
from dataclasses import FrozenInstanceError
from pathlib import Path
from typing import Any

import pytest

from stepwell import StepwellError
from stepwell.training.config import (
    ApplicationConfig,
    ApplicationFields,
    CheckPointStrategy,
    TrainingFields,
    TrainingTelemetryConfig,
)
from stepwell.training.config_files import read_overrides
from stepwell.training.merging import ResolvedConfig, merged
from stepwell.training.settings import OR_FN, Setting, settings_of

REFERENCE = Path(__file__).parents[2] / "docs" / "training.md"

WHOLE = "write a whole number of at least 1"
OR_FUNCTION = ", or a function that gives one"

POSITIVE_FIELDS = [
    "world_size",
    "global_batch_size",
    "micro_batch_size",
    "seq_length",
    "flops_per_sample",
    "train_iterations_target",
    "train_samples_target",
]
FLAGS = [
    "is_baseline_run",
    "is_log_throughput_enabled",
    "is_train_iterations_enabled",
    "is_validation_iterations_enabled",
    "is_test_iterations_enabled",
    "is_save_checkpoint_enabled",
]


def of_the_document() -> TrainingTelemetryConfig:
    return TrainingTelemetryConfig(
        world_size_or_fn=5,
        is_log_throughput_enabled_or_fn=True,
        flops_per_sample_or_fn=100,
        global_batch_size_or_fn=32,
        log_every_n_train_iterations=10,
        application_name="test_app",
        perf_tag_or_fn="test_perf",
        session_tag_or_fn="test_session",
    )


def training(**fields: Any) -> TrainingTelemetryConfig:
    return TrainingTelemetryConfig(**fields)


def message(call: Callable[[], object]) -> str:
    """What the StepwellError of a call says."""
    with pytest.raises(StepwellError) as refused:
        call()
    return str(refused.value)


# Making and reading


def test_a_configuration_with_everything_on_it() -> None:
    """The fields of the application are accepted on the configuration of training."""
    config = of_the_document()
    assert config.world_size == 5
    assert config.is_log_throughput_enabled is True
    assert config.flops_per_sample == 100
    assert config.global_batch_size == 32
    assert config.log_every_n_train_iterations == 10
    assert config.application_name == "test_app"
    assert config.perf_tag == "test_perf"
    assert config.session_tag == "test_session"
    assert config.app_type == "training"


def test_nothing_is_required(monkeypatch: pytest.MonkeyPatch) -> None:
    """Everything has a default; the name of an application is that of its script."""
    monkeypatch.setattr(sys, "argv", ["/some/where/train_gpt.py", "--lr", "1"])
    config = TrainingTelemetryConfig()
    assert config.application_name == "train_gpt"
    assert config.to_dict() == {
        "application_name": "train_gpt",
        "is_baseline_run": False,
        "enable_for_current_rank": True,
        "summary_data_schema_version": "1.0.0",
        "strict": False,
        "log_every_n_train_iterations": 50,
        "is_log_throughput_enabled": False,
        "save_checkpoint_strategy": "sync",
        "is_train_iterations_enabled": True,
        "is_validation_iterations_enabled": True,
        "is_test_iterations_enabled": True,
        "is_save_checkpoint_enabled": True,
    }
    for name in [*POSITIVE_FIELDS, "session_tag", "perf_tag", "custom_metadata", "loss_metric"]:
        assert getattr(config, name) is None


@pytest.mark.parametrize(
    ("argv", "name"),
    [
        (["train.py"], "train"),
        (["/a/package/__main__.py"], "package"),
        (["-c"], "application"),
        ([""], "application"),
        ([], "application"),
    ],
)
def test_the_name_of_a_script(argv: list[str], name: str, monkeypatch: pytest.MonkeyPatch) -> None:
    """However Python was started, there is a name."""
    monkeypatch.setattr(sys, "argv", argv)
    assert ApplicationConfig().application_name == name


def test_strategies() -> None:
    """A strategy is written as a member or as its word."""
    assert training().save_checkpoint_strategy is CheckPointStrategy.SYNC
    for written in (CheckPointStrategy.ASYNC, "async", "ASYNC"):
        config = training(save_checkpoint_strategy=written)
        assert config.save_checkpoint_strategy is CheckPointStrategy.ASYNC
    assert f"{CheckPointStrategy.SYNC}" == str(CheckPointStrategy.SYNC) == "sync"


def test_perf_tags() -> None:
    """One or several."""
    assert training(perf_tag_or_fn="a").perf_tag == "a"
    assert training(perf_tag_or_fn=("a", "b")).perf_tag == ["a", "b"]
    assert training(perf_tag_or_fn=lambda: ["c"]).perf_tag == ["c"]


def test_a_large_count_may_be_written_as_a_float() -> None:
    """6e9 is a whole number."""
    config = training(flops_per_sample_or_fn=6e9)
    assert (type(config.flops_per_sample), config.flops_per_sample) == (int, 6_000_000_000)


def test_facts_are_a_copy() -> None:
    """Changing a dict later does not change the configuration that it was given to."""
    facts = {"a": 1, "b": [True, 0.5]}
    config = ApplicationConfig(custom_metadata=facts)
    facts["a"] = 2
    assert config.custom_metadata == {"a": 1, "b": [True, 0.5]}


def test_none_is_as_if_not_given() -> None:
    """None gives the default, also where the default is something."""
    config = training(is_baseline_run_or_fn=None, log_every_n_train_iterations=None)
    assert config.is_baseline_run is False
    assert config.log_every_n_train_iterations == 50


def test_a_configuration_does_not_change() -> None:
    """It is frozen; it can be compared and pickled."""
    config = of_the_document()
    with pytest.raises(FrozenInstanceError):
        config.strict = True  # type: ignore[misc]
    assert config == of_the_document()
    assert pickle.loads(pickle.dumps(config)) == config


# Functions


@pytest.mark.parametrize("name", [*POSITIVE_FIELDS])
def test_a_function_is_called_at_each_access(name: str) -> None:
    """Not when the configuration is made, and anew each time."""
    values = iter([8, 16])
    config = training(**{name + OR_FN: lambda: next(values)})
    assert getattr(config, name) == 8
    assert getattr(config, name) == 16


@pytest.mark.parametrize("name", FLAGS)
def test_switches_take_functions(name: str) -> None:
    """Every switch is a value or a function."""
    for value in (True, False):
        assert getattr(training(**{name + OR_FN: value}), name) is value
        assert getattr(training(**{name + OR_FN: lambda value=value: value}), name) is value


def test_the_switch_of_the_rank_takes_a_function() -> None:
    """Whether this rank records may be found out when it is needed."""
    assert (
        ApplicationConfig(enable_for_current_rank=lambda: False).is_enabled_for_current_rank
        is False
    )
    assert ApplicationConfig().is_enabled_for_current_rank is True


@pytest.mark.parametrize("name", POSITIVE_FIELDS)
@pytest.mark.parametrize("value", [0, -1, 2.5, "8", True])
def test_a_function_that_gives_an_impossible_value(name: str, value: object) -> None:
    """The error names field and value where it is read."""
    config = training(**{name + OR_FN: lambda: value})
    assert message(lambda: getattr(config, name)) == f"{name}_or_fn() is {value!r}: {WHOLE}"


def test_a_function_that_raises() -> None:
    """The error names field and exception, and carries the exception along."""

    def broken() -> int:
        raise RuntimeError("torch is not initialised")

    config = training(world_size_or_fn=broken)
    with pytest.raises(StepwellError) as refused:
        _ = config.world_size
    assert str(refused.value) == "world_size_or_fn() raised RuntimeError: torch is not initialised"
    assert isinstance(refused.value.__cause__, RuntimeError)


def test_a_function_may_have_nothing_to_say() -> None:
    """None is an answer where the field may be absent, but not for a switch."""
    assert training(train_iterations_target_or_fn=lambda: None).train_iterations_target is None
    config = training(is_test_iterations_enabled_or_fn=lambda: None)
    assert message(lambda: config.is_test_iterations_enabled) == (
        "is_test_iterations_enabled_or_fn() is None: write True or False"
    )


# What is refused


@pytest.mark.parametrize("name", POSITIVE_FIELDS)
@pytest.mark.parametrize("value", [0, -1, 2.5, "8", True])
def test_a_wrong_count_is_refused(name: str, value: object) -> None:
    """Plain values are checked when the configuration is made."""
    assert message(lambda: training(**{name + OR_FN: value})) == (
        f"TrainingTelemetryConfig: {name}_or_fn is {value!r}: {WHOLE}{OR_FUNCTION}"
    )


@pytest.mark.parametrize("name", FLAGS)
def test_a_wrong_switch_is_refused(name: str) -> None:
    """1 and "yes" are neither True nor False."""
    for value in (1, "yes"):
        assert message(lambda value=value: training(**{name + OR_FN: value})) == (
            f"TrainingTelemetryConfig: {name}_or_fn is {value!r}: write True or False{OR_FUNCTION}"
        )


@pytest.mark.parametrize(
    ("field", "value", "says"),
    [
        ("application_name", " ", "is ' ': write a text that is not blank"),
        ("application_name", 5, "is 5: write a text that is not blank"),
        ("session_tag_or_fn", "", f"is '': write a text that is not blank{OR_FUNCTION}"),
        ("perf_tag_or_fn", [], f"is []: write a text or a list of texts{OR_FUNCTION}"),
        ("enable_for_current_rank", 0, f"is 0: write True or False{OR_FUNCTION}"),
        (
            "custom_metadata",
            ["a"],
            "is ['a']: write a dict whose keys are texts, such as {'team': 'vision'}",
        ),
        (
            "custom_metadata",
            {"": 1},
            "is {'': 1}: write a dict whose keys are texts, such as {'team': 'vision'}",
        ),
        ("summary_data_schema_version", 1, "is 1: write a text that is not blank"),
        ("strict", "no", "is 'no': write True or False"),
        ("log_every_n_train_iterations", 0, f"is 0: {WHOLE}"),
        ("loss_metric", 1, "is 1: write a text that is not blank"),
        (
            "save_checkpoint_strategy",
            "lazy",
            "is 'lazy': write CheckPointStrategy.SYNC or CheckPointStrategy.ASYNC",
        ),
    ],
)
def test_other_wrong_values_are_refused(field: str, value: object, says: str) -> None:
    """The error names field and value, and says what to write instead."""
    assert message(lambda: training(**{field: value})) == f"TrainingTelemetryConfig: {field} {says}"


def test_a_function_where_none_is_taken() -> None:
    """Fields without the ending take a value alone."""
    assert message(lambda: training(log_every_n_train_iterations=lambda: 5)).endswith(WHOLE)


@pytest.mark.parametrize(
    ("config", "written", "meant"),
    [
        (TrainingTelemetryConfig, "wrld_size_or_fn", "world_size_or_fn"),
        (TrainingTelemetryConfig, "world_size", "world_size_or_fn"),
        (TrainingTelemetryConfig, "log_every_n_iterations", "log_every_n_train_iterations"),
        (ApplicationConfig, "session_tag", "session_tag_or_fn"),
        (ApplicationConfig, "telemetry_cfg", "telemetry_config"),
    ],
)
def test_an_unknown_field_is_refused_with_the_nearest_one(
    config: type, written: str, meant: str
) -> None:
    """Nothing is silently ignored."""
    assert message(lambda: config(**{written: 1})) == (
        f"{config.__name__}: {written} is no field of it; did you mean {meant}?"
    )


def test_all_problems_are_in_one_error() -> None:
    """Unknown names, wrong values and values without a name are told together."""
    assert message(lambda: ApplicationConfig("app", strict="no", world_size_or_fn=0)) == (  # type: ignore[call-arg, arg-type]
        "ApplicationConfig: 3 problems\n"
        "- 'app' has no name: write its fields as name=value\n"
        "- strict is 'no': write True or False\n"
        f"- world_size_or_fn is 0: {WHOLE}{OR_FUNCTION}"
    )


def test_a_telemetry_config_is_a_configuration() -> None:
    """A dict there is refused: `with_override` takes those."""
    assert message(lambda: ApplicationConfig(telemetry_config={"seq_length": 3})) == (  # type: ignore[arg-type]
        "ApplicationConfig: telemetry_config is {'seq_length': 3}: write TrainingTelemetryConfig(…)"
    )


# Overriding


def test_an_override_of_training() -> None:
    """Named fields change, others stay; the original is untouched."""
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
        "the override: 3 problems\n"
        "- strict is 'no': write True or False\n"
        "- telemetry_config.seq_lenght is no field of it; did you mean seq_length_or_fn?\n"
        f"- telemetry_config.global_batch_size is 0: {WHOLE}{OR_FUNCTION}"
    )


@pytest.mark.parametrize(
    ("changes", "says"),
    [
        ([("a", 1)], "the override: is [('a', 1)]: write a dict, such as {'session_tag': 'night'}"),
        (
            {"telemetry_config": 5},
            "the override: telemetry_config is 5: write a dict of its fields",
        ),
        (
            {"seq_length": 1, "seq_length_or_fn": 2},
            "the override: seq_length_or_fn is written twice, with and without _or_fn",
        ),
        (
            {"seq_length": 1, "telemetry_config": {"seq_length": 2}},
            "the override: telemetry_config.seq_length_or_fn is 2, but outside it 1",
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
        "the configurations contradict each other: 2 problems\n"
        "- application_name is 'app' in one and 'test_app' in the other: write it in one of them\n"
        "- world_size_or_fn is 4 in one and 5 in the other: write it in one of them"
    )


def test_a_default_says_nothing() -> None:
    """What only one of them sets is taken from it."""
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
        "the configurations contradict each other: custom_metadata['b'] is 2 in one and 3 in the "
        "other: write it in one of them"
    )


def test_facts_that_cannot_be_compared() -> None:
    """An array in them is no reason to fail."""
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
        "the configuration is {'world_size': 3}: write ApplicationConfig(…) "
        "or TrainingTelemetryConfig(…)"
    )


def test_whether_counts_are_functions() -> None:
    """A job asks anew at each iteration only where a function can give something new."""
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
    """All fields lie side by side."""
    found = merged(ApplicationConfig(session_tag_or_fn="s"), training(seq_length_or_fn=3)).to_dict()
    assert (found["session_tag"], found["seq_length"]) == ("s", 3)
    assert "telemetry_config" not in found
    assert "has_telemetry_config" not in found


def test_what_was_written_as_json_overrides_as_it_was() -> None:
    """The names in it are those that an override takes."""
    config = of_the_document()
    assert TrainingTelemetryConfig().with_override(config.to_dict()) == config


# From files


YAML = """\
# a comment
session_tag: night
world_size: 8
telemetry_config:
  flops_per_sample: 6e9
  perf_tag: [a, b]
  save_checkpoint_strategy: async
custom_metadata:
  team: vision
  n: 3
"""

AS_JSON = """\
{
  "session_tag": "night",
  "world_size": 8,
  "telemetry_config": {
    "flops_per_sample": 6e9,
    "perf_tag": ["a", "b"],
    "save_checkpoint_strategy": "async"
  },
  "custom_metadata": {"team": "vision", "n": 3}
}
"""


@pytest.mark.parametrize(
    ("name", "text"), [("c.yaml", YAML), ("c.yml", YAML), ("c.json", AS_JSON), ("d.yaml", AS_JSON)]
)
def test_overrides_from_a_file(name: str, text: str, tmp_path: Path) -> None:
    """YAML and JSON files hold the same fields."""
    (tmp_path / name).write_text(text, encoding="utf-8")
    config = merged(ApplicationConfig(world_size_or_fn=2), None, [read_overrides(tmp_path / name)])
    assert config.session_tag == "night"
    assert config.world_size == 8
    assert config.flops_per_sample == 6_000_000_000
    assert config.perf_tag == ["a", "b"]
    assert config.save_checkpoint_strategy is CheckPointStrategy.ASYNC
    assert config.custom_metadata == {"team": "vision", "n": 3}


@pytest.mark.parametrize(
    ("name", "text", "says"),
    [
        (
            "c.yaml",
            "strict: true\ntelemetry_config:\n  seq_length: 3\n  global_batch: 4\n",
            "{}: line 4: telemetry_config.global_batch is no field of it; "
            "did you mean global_batch_size_or_fn?",
        ),
        (
            "c.json",
            '{"strict": true,\n "telemetry_config": {\n  "seq_length": 0}}',
            f"{{}}: line 3: telemetry_config.seq_length is 0: {WHOLE}{OR_FUNCTION}",
        ),
        (
            "c.yaml",
            "world_size: 0\nstrict: maybe\n",
            f"{{}}: 2 problems\n- line 1: world_size is 0: {WHOLE}{OR_FUNCTION}\n"
            "- line 2: strict is 'maybe': write True or False",
        ),
        (
            "c.yaml",
            "seq_length: 3\n\nseq_length: 4\n",
            "{}, line 3: seq_length is written twice, first in line 1",
        ),
        (
            "c.json",
            '{"strict": true,\n"strict": false}',
            "{}, line 2: strict is written twice, first in line 1",
        ),
        (
            "c.yaml",
            "a: 1\nb: [1, 2\nc: 3\n",
            "{}, line 3: expected ',' or ']', but got ':'",
        ),
        ("c.json", '{"a": 1,\n}', None),
        ("c.json", '{"world_size": NaN}', None),
        ("c.yaml", "- a\n- b\n", "{}: write fields, such as session_tag: night"),
        ("c.json", "[1]", "{}: write fields, such as session_tag: night"),
        ("c.toml", "a = 1", "{}: the name must end in .yaml, .yml or .json"),
        ("c.yaml", "a: !!python/object:os.system {}\n", None),
    ],
)
def test_a_wrong_file_is_refused(name: str, text: str, says: str | None, tmp_path: Path) -> None:
    """The error names file, line and field."""
    file = tmp_path / name
    file.write_text(text, encoding="utf-8")
    found = message(lambda: read_overrides(file))
    assert found.startswith(str(file))
    assert says is None or found == says.format(file)


@pytest.mark.parametrize(
    ("text", "line"),
    [
        ('{"custom_metadata": {"strict": 1},\n "strict": 5}', 2),
        ('{"custom_metadata": [{"strict": 1}],\n "strict": 5,\n"custom_metadata_": 1}', 1),
        ('{"application_name": "\\"strict\\": {",\n"strict": 5}', 2),
    ],
)
def test_lines_in_json(text: str, line: int, tmp_path: Path) -> None:
    """A name that also stands elsewhere, in lists or in texts, does not mislead."""
    file = tmp_path / "c.json"
    file.write_text(text, encoding="utf-8")
    assert f"line {line}: " in message(lambda: read_overrides(file))


def test_an_empty_file_overrides_nothing(tmp_path: Path) -> None:
    """Neither does one that has comments alone."""
    for name, text in (("a.yaml", ""), ("b.yaml", "# nothing\n"), ("c.json", " \n")):
        (tmp_path / name).write_text(text, encoding="utf-8")
        assert read_overrides(tmp_path / name) == {}


def test_files_that_cannot_be_read(tmp_path: Path) -> None:
    """Missing, too large, or no text: each is said."""
    assert "missing.yaml cannot be read: No such file" in message(
        lambda: read_overrides(tmp_path / "missing.yaml")
    )
    (tmp_path / "large.yaml").write_bytes(b"#" * (2 << 20))
    assert "too many for a configuration" in message(
        lambda: read_overrides(tmp_path / "large.yaml")
    )
    (tmp_path / "binary.yaml").write_bytes(b"\xff\xfe\x00")
    assert "is not a text in UTF-8" in message(lambda: read_overrides(tmp_path / "binary.yaml"))


# Types, and the documentation


USERS_FILE = """
from __future__ import annotations

from typing_extensions import assert_type

from stepwell.training.attributes import TrainingLoopAttributes, TrainingMetricsUpdateAttributes
from stepwell.training.config import ApplicationConfig, CheckPointStrategy, TrainingTelemetryConfig
from stepwell.training.merging import merged
from stepwell.vocabulary import StandardTrainingJobSpanName


def batch() -> int:
    return 32


config = TrainingTelemetryConfig(
    application_name="app",
    world_size_or_fn=5,
    is_log_throughput_enabled_or_fn=lambda: True,
    flops_per_sample_or_fn=6e9,
    global_batch_size_or_fn=batch,
    perf_tag_or_fn=["a", "b"],
    save_checkpoint_strategy=CheckPointStrategy.ASYNC,
    custom_metadata={"a": 1},
)
assert_type(config.global_batch_size, "int | None")
assert_type(config.is_log_throughput_enabled, bool)
assert_type(config.session_tag, "str | None")
assert_type(config.perf_tag, "str | list[str] | None")
base = ApplicationConfig(session_tag_or_fn=lambda: "s", telemetry_config=config)
resolved = merged(base, None, [{"world_size": 8}])
assert_type(resolved.world_size, "int | None")

loop = TrainingLoopAttributes.create(train_iterations_start=0)
assert_type(loop, TrainingLoopAttributes)
assert_type(loop.train_iterations_start, int)
assert_type(loop.train_samples_start, "int | None")


def read(update: TrainingMetricsUpdateAttributes) -> None:
    assert_type(update.avg_iteration_time_sec, float)
    assert_type(update.latest_loss, "float | None")
    assert_type(update.is_final, bool)


name: str = StandardTrainingJobSpanName.MODEL_FORWARD


def wrong() -> None:
    TrainingTelemetryConfig(wrld_size_or_fn=5)  # type: ignore[call-arg]
    TrainingTelemetryConfig(world_size_or_fn="5")  # type: ignore[arg-type]
    ApplicationConfig("app")  # type: ignore[call-arg]
    loop.train_sample_start  # type: ignore[attr-defined]
    config.strict = True  # type: ignore[misc]
"""


@pytest.mark.slow
def test_a_users_file_type_checks(tmp_path: Path, pytestconfig: pytest.Config) -> None:
    """`mypy --strict` sees the fields and the types of what is read from them."""
    from tests.test_public_surface import type_check

    file = tmp_path / "users_file.py"
    file.write_text(textwrap.dedent(USERS_FILE), encoding="utf-8")
    assert pytestconfig.cache is not None
    code, output = type_check(file, pytestconfig.cache.mkdir("mypy-of-a-users-config"))
    assert code == 0, output


def reference_row(name: str, about: Setting, default: Any) -> str:
    """A row of the reference in the documentation."""
    takes = f"{about.kind.wanted.partition(', such')[0]}{' or fn' if about.takes_function else ''}"
    shown = "" if default is None else f"`{default}`"
    return f"| `{name}` | {takes} | {shown} | {about.meaning} |"


@pytest.mark.parametrize("fields", [ApplicationFields, TrainingFields])
def test_the_documentation_has_every_field(fields: type) -> None:
    """The page lists each field with what it takes, its default and its meaning."""
    lines = REFERENCE.read_text(encoding="utf-8").splitlines()
    plain = TrainingTelemetryConfig()
    rows = [
        reference_row(name, about, None if name == "application_name" else getattr(plain, name))
        for name, about in settings_of(fields).items()
    ]
    assert [row for row in rows if row not in lines] == []
