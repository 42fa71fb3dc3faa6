"""Configurations: checked on creation, evaluated on access."""

from __future__ import annotations

import pickle
import sys
from dataclasses import FrozenInstanceError

import pytest

from stepwell import StepwellError
from stepwell.training.config import ApplicationConfig, CheckPointStrategy, TrainingTelemetryConfig
from stepwell.training.settings import OR_FN
from tests.training.configs import (
    FLAGS,
    OR_FUNCTION,
    POSITIVE_FIELDS,
    WHOLE,
    message,
    of_the_document,
    training,
)


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
    """Not when the configuration is created, but each time it is read."""
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


WRONG_COUNTS = [
    (name, value)
    for name in POSITIVE_FIELDS
    for value in (0, -1, 2.5, "8", True)
    if not (name.endswith("_target") and value == -1)
]


@pytest.mark.parametrize(("name", "value"), WRONG_COUNTS)
def test_a_function_that_gives_an_impossible_value(name: str, value: object) -> None:
    """The error names field and value where it is read."""
    config = training(**{name + OR_FN: lambda: value})
    assert message(lambda: getattr(config, name)) == f"{name}_or_fn() {WHOLE}, got {value!r}"


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
        "is_test_iterations_enabled_or_fn() must be True or False, got None"
    )


# What is refused


@pytest.mark.parametrize("name", ["train_iterations_target", "train_samples_target"])
@pytest.mark.parametrize("value", [-1, -32])
def test_a_negative_target_is_not_known(name: str, value: int) -> None:
    """Trainers without a number of steps say -1, and -1 times the batch size is negative too."""
    assert getattr(training(**{name + OR_FN: value}), name) is None
    assert getattr(training(**{name + OR_FN: lambda: value}), name) is None


@pytest.mark.parametrize(("name", "value"), WRONG_COUNTS)
def test_a_wrong_count_is_refused(name: str, value: object) -> None:
    """Plain values are checked when the configuration is made."""
    assert message(lambda: training(**{name + OR_FN: value})) == (
        f"TrainingTelemetryConfig: {name}_or_fn {WHOLE}, got {value!r}{OR_FUNCTION}"
    )


@pytest.mark.parametrize("name", FLAGS)
def test_a_wrong_switch_is_refused(name: str) -> None:
    """1 and "yes" are neither True nor False."""
    for value in (1, "yes"):
        assert message(lambda value=value: training(**{name + OR_FN: value})) == (
            f"TrainingTelemetryConfig: {name}_or_fn must be True or False, got {value!r}{OR_FUNCTION}"
        )


@pytest.mark.parametrize(
    ("field", "value", "says"),
    [
        ("application_name", " ", "must be a non-blank string, got ' '"),
        ("application_name", 5, "must be a non-blank string, got 5"),
        ("session_tag_or_fn", "", f"must be a non-blank string, got ''{OR_FUNCTION}"),
        ("perf_tag_or_fn", [], f"must be a string or a list of strings, got []{OR_FUNCTION}"),
        ("enable_for_current_rank", 0, f"must be True or False, got 0{OR_FUNCTION}"),
        (
            "custom_metadata",
            ["a"],
            "must be a dict with string keys, such as {'team': 'vision'}, got ['a']",
        ),
        (
            "custom_metadata",
            {"": 1},
            "must be a dict with string keys, such as {'team': 'vision'}, got {'': 1}",
        ),
        ("summary_data_schema_version", 1, "must be a non-blank string, got 1"),
        ("strict", "no", "must be True or False, got 'no'"),
        ("log_every_n_train_iterations", 0, f"{WHOLE}, got 0"),
        ("loss_metric", 1, "must be a non-blank string, got 1"),
        (
            "save_checkpoint_strategy",
            "lazy",
            "must be CheckPointStrategy.SYNC or CheckPointStrategy.ASYNC, got 'lazy'",
        ),
    ],
)
def test_other_wrong_values_are_refused(field: str, value: object, says: str) -> None:
    """The error names field and value, and says what to write instead."""
    assert message(lambda: training(**{field: value})) == f"TrainingTelemetryConfig: {field} {says}"


def test_a_function_where_none_is_taken() -> None:
    """Fields without the ending take a value alone."""
    said = message(lambda: training(log_every_n_train_iterations=lambda: 5))
    assert WHOLE in said
    assert OR_FUNCTION not in said


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
        f"{config.__name__}: {written} is not a field; did you mean {meant}?"
    )


def test_all_problems_are_in_one_error() -> None:
    """Unknown names, wrong values and values without a name are reported together."""
    assert message(lambda: ApplicationConfig("app", strict="no", world_size_or_fn=0)) == (  # type: ignore[call-arg, arg-type]
        "ApplicationConfig: 3 problems\n"
        "- fields must be given as name=value, got 'app' without a name\n"
        "- strict must be True or False, got 'no'\n"
        f"- world_size_or_fn {WHOLE}, got 0{OR_FUNCTION}"
    )


def test_a_telemetry_config_is_a_configuration() -> None:
    """A dict there is refused: `with_override` takes those."""
    assert message(lambda: ApplicationConfig(telemetry_config={"seq_length": 3})) == (  # type: ignore[arg-type]
        "ApplicationConfig: telemetry_config must be a TrainingTelemetryConfig, got {'seq_length': 3}"
    )
