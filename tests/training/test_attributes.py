"""Attribute classes: declared once, checked on creation, typed on access."""

from __future__ import annotations

import copy
import math
import pickle
from pathlib import Path
from typing import Any

import pytest

from stepwell import StepwellError
from stepwell._core.values import encode
from stepwell.telemetry.events import Attributes
from stepwell.training import attributes as module
from stepwell.training.attributes import (
    CheckpointSaveSpanAttributes,
    InitializationAttributes,
    SaveCheckpointFailureEventAttributes,
    SaveCheckpointSuccessEventAttributes,
    SyncCheckpointMetricsUpdateAttributes,
    TestingMetricsUpdateAttributes,
    TrainingLoopAttributes,
    TrainingMetricsUpdateAttributes,
    TrainingTelemetryAttributes,
    TypedAttributes,
    ValidationMetricsUpdateAttributes,
)
from stepwell.training.config import CheckPointStrategy

REFERENCE = Path(__file__).parents[2] / "docs" / "training.md"
CLASSES: list[type[TypedAttributes]] = [getattr(module, name) for name in module.__all__]

# One set of values of each class, with all that it requires and nothing else.
LEAST: dict[type[TypedAttributes], dict[str, Any]] = {
    TrainingLoopAttributes: {"train_iterations_start": 0},
    CheckpointSaveSpanAttributes: {
        "checkpoint_strategy": "sync",
        "current_iteration": 6,
        "save_checkpoint_attempt_count": 1,
    },
    InitializationAttributes: {
        "application_name": "app",
        "world_size": 2,
        "rank": 1,
        "node_name": "host",
        "app_type": "training",
        "is_baseline_run": False,
        "enable_for_current_rank": True,
        "stepwell_version": "0.1.0",
        "summary_data_schema_version": "1.0.0",
    },
    TrainingTelemetryAttributes: {
        "log_every_n_train_iterations": 50,
        "is_train_iterations_enabled": True,
        "is_validation_iterations_enabled": True,
        "is_test_iterations_enabled": True,
        "is_save_checkpoint_enabled": True,
        "is_log_throughput_enabled": False,
    },
    TrainingMetricsUpdateAttributes: {
        "train_iterations_start": 0,
        "current_iteration": 4,
        "num_iterations": 5,
        "interval": 5,
        "is_final": False,
        "avg_iteration_time_sec": 0.5,
        "min_iteration_time_sec": 0.25,
        "max_iteration_time_sec": 1.0,
        "total_iteration_time_sec": 2.5,
        "first_logged_train_iterations_finish_timestamp_sec": 1794765322.5,
        "last_logged_train_iterations_finish_timestamp_sec": 1794765326.5,
        "window_iterations": 5,
    },
    ValidationMetricsUpdateAttributes: {"current_iteration": 4, "interval": 5, "num_iterations": 0},
    TestingMetricsUpdateAttributes: {"current_iteration": 4, "interval": 5, "num_iterations": 0},
    SaveCheckpointSuccessEventAttributes: {
        "checkpoint_strategy": "async",
        "current_iteration": 6,
        "save_checkpoint_success_count": 1,
        "first_successful_save_checkpoint_timestamp_sec": 1794765322.5,
        "latest_successful_save_checkpoint_timestamp_sec": 1794765322.5,
        "productive_train_iterations": 6,
        "productive_train_iterations_sec": 0.5,
        "productive_validation_iterations_sec": 0.0,
    },
    SaveCheckpointFailureEventAttributes: {
        "checkpoint_strategy": "sync",
        "current_iteration": 6,
        "save_checkpoint_failure_count": 1,
    },
    SyncCheckpointMetricsUpdateAttributes: {
        "save_checkpoint_count": 2,
        "save_checkpoint_sync_time_total_sec": 3.0,
        "save_checkpoint_sync_time_avg_sec": 1.5,
        "save_checkpoint_sync_time_min_sec": 1.0,
        "save_checkpoint_sync_time_max_sec": 2.0,
    },
}

# The attributes of other such libraries that dashboards may look for, by class.
DOCUMENTED: dict[type[TypedAttributes], str] = {
    TrainingLoopAttributes: "train_iterations_start train_samples_start train_tokens_target "
    "completed_floating_point_operations_overall train_iterations_target train_samples_target",
    CheckpointSaveSpanAttributes: "checkpoint_strategy current_iteration "
    "save_checkpoint_attempt_count",
    InitializationAttributes: "world_size enable_for_current_rank session_tag is_baseline_run "
    "summary_data_schema_version node_name rank custom_metadata",
    TrainingTelemetryAttributes: "perf_tag global_batch_size log_every_n_train_iterations "
    "micro_batch_size seq_length flops_per_sample train_iterations_target train_samples_target "
    "checkpoint_strategy is_train_iterations_enabled is_validation_iterations_enabled "
    "is_test_iterations_enabled is_save_checkpoint_enabled is_log_throughput_enabled "
    "custom_metadata",
    TrainingMetricsUpdateAttributes: "train_iterations_start current_iteration num_iterations "
    "train_samples_start num_train_samples interval avg_iteration_time_sec min_iteration_time_sec "
    "max_iteration_time_sec total_iteration_time_sec avg_forward_time_sec avg_backward_time_sec "
    "avg_dataloader_time_sec avg_tflops train_tokens avg_tokens_per_second latest_loss "
    "avg_batch_size completed_floating_point_operations_overall total_flops "
    "train_throughput_per_gpu train_throughput_per_gpu_max train_throughput_per_gpu_min "
    "first_logged_train_iterations_finish_timestamp_sec "
    "last_logged_train_iterations_finish_timestamp_sec",
    ValidationMetricsUpdateAttributes: "current_iteration interval avg_iteration_time_sec "
    "min_iteration_time_sec max_iteration_time_sec total_iteration_time_sec",
    TestingMetricsUpdateAttributes: "current_iteration interval",
    SaveCheckpointSuccessEventAttributes: "checkpoint_strategy current_iteration "
    "first_successful_save_checkpoint_timestamp_sec "
    "latest_successful_save_checkpoint_timestamp_sec save_checkpoint_success_count "
    "productive_train_iterations productive_train_samples productive_train_iterations_sec "
    "productive_validation_iterations_sec productive_train_tflops checkpoint_size "
    "checkpoint_directory training_start_timestamp_sec",
    SyncCheckpointMetricsUpdateAttributes: "save_checkpoint_sync_time_total_sec "
    "save_checkpoint_sync_time_min_sec save_checkpoint_sync_time_max_sec",
}

each_class = pytest.mark.parametrize("kind", CLASSES, ids=lambda kind: kind.__name__)


def loop(**values: Any) -> TrainingLoopAttributes:
    return TrainingLoopAttributes.create(**values)


def update(**values: Any) -> TrainingMetricsUpdateAttributes:
    return TrainingMetricsUpdateAttributes.create(
        **{**LEAST[TrainingMetricsUpdateAttributes], **values}
    )


@each_class
def test_what_is_required_suffices(kind: type[TypedAttributes]) -> None:
    """The least set of values is kept as it is; all other attributes are absent."""
    made = kind.create(**LEAST[kind])
    assert made == LEAST[kind]
    for name in kind.FIELDS:
        assert getattr(made, name) == LEAST[kind].get(name)


@each_class
def test_each_required_value_is_missed(kind: type[TypedAttributes]) -> None:
    """Without it, or with None, the error names class and attribute."""
    for name in LEAST[kind]:
        for values in (
            {key: value for key, value in LEAST[kind].items() if key != name},
            {**LEAST[kind], name: None},
        ):
            with pytest.raises(StepwellError, match=f"^{kind.__name__}: {name} is missing$"):
                kind.create(**values)


@pytest.mark.parametrize("kind", DOCUMENTED, ids=lambda kind: kind.__name__)
def test_documented_names(kind: type[TypedAttributes]) -> None:
    """All attributes that users of the standard vocabulary know are declared."""
    assert set(DOCUMENTED[kind].split()) - kind.FIELDS.keys() == set()


def test_values_are_read_by_property() -> None:
    """Each declared attribute is a property, None when it is absent."""
    made = loop(train_iterations_start=10, train_samples_start=320)
    assert made.train_iterations_start == 10
    assert made.train_samples_start == 320
    assert made.train_tokens_target is None
    assert (
        TrainingLoopAttributes.train_samples_start.meaning == "samples trained on before the loop"
    )
    assert TrainingLoopAttributes.train_iterations_start.is_required


def test_none_means_absent() -> None:
    """A value of None is not kept."""
    assert loop(train_iterations_start=0, train_samples_start=None) == {"train_iterations_start": 0}


@pytest.mark.parametrize(
    ("name", "value", "wanted"),
    [
        ("current_iteration", -1, "must be a whole number of at least 0, got -1"),
        ("current_iteration", 1.5, "must be a whole number of at least 0, got 1.5"),
        ("current_iteration", "3", "must be a whole number of at least 0, got '3'"),
        ("current_iteration", True, "must be a whole number of at least 0, got True"),
        ("current_iteration", math.inf, "must be a whole number of at least 0, got inf"),
        ("avg_iteration_time_sec", -0.1, "must be a finite number of at least 0, got -0.1"),
        ("avg_iteration_time_sec", math.nan, "must be a finite number of at least 0, got nan"),
        ("min_iteration_time_sec", math.inf, "must be a finite number of at least 0, got inf"),
        ("max_iteration_time_sec", "fast", "must be a finite number of at least 0, got 'fast'"),
        ("max_iteration_time_sec", False, "must be a finite number of at least 0, got False"),
        ("is_final", 1, "must be True or False, got 1"),
        ("is_final", "yes", "must be True or False, got 'yes'"),
        ("latest_loss", "low", "must be a number, got 'low'"),
        ("latest_loss", [0.5], r"must be a number, got \[0.5\]"),
    ],
)
def test_a_wrong_value_is_refused(name: str, value: object, wanted: str) -> None:
    """The error names attribute and value, and says what to write instead."""
    with pytest.raises(StepwellError, match=f"^TrainingMetricsUpdateAttributes: {name} {wanted}$"):
        update(**{name: value})


@pytest.mark.parametrize(
    ("kind", "name", "value", "wanted"),
    [
        (InitializationAttributes, "world_size", 0, "a whole number of at least 1"),
        (InitializationAttributes, "application_name", "  ", "a non-blank string"),
        (InitializationAttributes, "session_tag", 7, "a non-blank string"),
        (InitializationAttributes, "custom_metadata", ["a:1"], "a dict with string keys"),
        (InitializationAttributes, "custom_metadata", {1: 2}, "a dict with string keys"),
        (TrainingTelemetryAttributes, "perf_tag", [], "a string or a list of strings"),
        (TrainingTelemetryAttributes, "perf_tag", ["a", 1], "a string or a list of strings"),
        (CheckpointSaveSpanAttributes, "checkpoint_strategy", "lazy", "'sync' or 'async'"),
        (SaveCheckpointSuccessEventAttributes, "checkpoint_directory", 5, "a path"),
        (SaveCheckpointSuccessEventAttributes, "checkpoint_size", -1, "a whole number of at least"),
        (SaveCheckpointFailureEventAttributes, "error_message", OSError(), "a string"),
    ],
)
def test_other_kinds_of_wrong_values(
    kind: type[TypedAttributes], name: str, value: object, wanted: str
) -> None:
    """Positive counts, strings, tags, metadata, strategies and paths are checked."""
    with pytest.raises(StepwellError, match=f"^{kind.__name__}: {name} must be {wanted}.*, got "):
        kind.create(**{**LEAST[kind], name: value})


def test_a_value_that_cannot_be_looked_at_is_refused_too() -> None:
    """Whatever a stranger's object raises, the error is ours."""

    class Hostile:
        def __index__(self) -> int:
            raise RuntimeError("no")

        def __repr__(self) -> str:
            raise RuntimeError("no")

    with pytest.raises(
        StepwellError, match=r"must be a whole .*, got <Hostile: unreadable, RuntimeError>"
    ):
        loop(train_iterations_start=Hostile())


def test_an_unknown_name_is_refused_with_the_nearest_one() -> None:
    """The message for a typo suggests the most similar name."""
    with pytest.raises(StepwellError) as refused:
        loop(train_iterations_start=0, train_sample_start=3)
    assert str(refused.value) == (
        "TrainingLoopAttributes: train_sample_start is not an attribute; "
        "did you mean train_samples_start?"
    )


def test_a_name_without_a_near_one_gets_the_list() -> None:
    """Where nothing is near, all names are given."""
    with pytest.raises(StepwellError, match="xyz is not an attribute; valid names: check"):
        CheckpointSaveSpanAttributes.create(**LEAST[CheckpointSaveSpanAttributes], xyz=1)


def test_all_problems_are_in_one_error() -> None:
    """A wrong, an unknown and a missing value are named together."""
    with pytest.raises(StepwellError) as refused:
        CheckpointSaveSpanAttributes.create(
            checkpoint_strategy="sync", current_iteration=-2, iteration=3
        )
    assert str(refused.value) == (
        "CheckpointSaveSpanAttributes: 3 problems\n"
        "- current_iteration must be a whole number of at least 0, got -2\n"
        "- iteration is not an attribute; did you mean current_iteration?\n"
        "- save_checkpoint_attempt_count is missing"
    )


def test_values_are_kept_in_their_plain_form() -> None:
    """Scalars of numpy, whole floats, enums, paths and tuples become what JSON has."""
    numpy = pytest.importorskip("numpy")
    made = update(
        current_iteration=numpy.int64(4),
        total_flops=6e9,
        avg_iteration_time_sec=numpy.float32(0.5),
        min_iteration_time_sec=1,
        is_final=numpy.bool_(True),
        latest_loss=2,
    )
    kept = made.to_json()
    assert (type(kept["current_iteration"]), kept["current_iteration"]) == (int, 4)
    assert (type(kept["total_flops"]), kept["total_flops"]) == (int, 6_000_000_000)
    assert (type(kept["avg_iteration_time_sec"]), kept["avg_iteration_time_sec"]) == (float, 0.5)
    assert (type(kept["min_iteration_time_sec"]), kept["min_iteration_time_sec"]) == (float, 1.0)
    assert kept["is_final"] is True
    assert (type(kept["latest_loss"]), kept["latest_loss"]) == (float, 2.0)

    save = {**LEAST[SaveCheckpointSuccessEventAttributes], "checkpoint_directory": Path("a/b")}
    save["checkpoint_strategy"] = CheckPointStrategy.ASYNC
    success = SaveCheckpointSuccessEventAttributes.create(**save)
    assert success.checkpoint_directory == "a/b"
    assert (type(success.checkpoint_strategy), success.checkpoint_strategy) == (str, "async")

    telemetry = {**LEAST[TrainingTelemetryAttributes], "perf_tag": ("a", "b")}
    assert TrainingTelemetryAttributes.create(**telemetry).perf_tag == ["a", "b"]


def test_facts_keep_their_types() -> None:
    """Custom metadata is the given dict, not a list of strings."""
    facts = {"team": "x", "n": 3, "ratio": 0.5, "on": True, "list": [1, 2]}
    values = {**LEAST[InitializationAttributes], "custom_metadata": facts}
    assert InitializationAttributes.create(**values).custom_metadata == facts


@pytest.mark.parametrize("loss", [math.nan, math.inf, -math.inf])
def test_a_loss_that_is_not_finite_is_absent(loss: float) -> None:
    """A diverged loss breaks no update, and puts no word into JSON that it does not have."""
    made = update(latest_loss=loss)
    assert made.latest_loss is None
    assert "latest_loss" not in made


@each_class
def test_everything_is_strict_json(kind: type[TypedAttributes]) -> None:
    """Accepted values are written unchanged, with no number flagged as not finite."""
    assert b"null" not in encode(kind.create(**LEAST[kind]).to_json())


def test_huge_counts_are_kept_exactly() -> None:
    """Operations of a large training run do not fit into 64 bits."""
    assert update(total_flops=3 * 10**25).total_flops == 3 * 10**25


def test_own_attributes_can_be_added() -> None:
    """`add` takes any other name, and holds the declared ones to their kind."""
    made = loop(train_iterations_start=0)
    made.add("my_attribute", "v").add("train_samples_start", 5)
    assert made == {"train_iterations_start": 0, "my_attribute": "v", "train_samples_start": 5}
    with pytest.raises(
        StepwellError, match=r"train_samples_start must be a whole number .*, got -5"
    ):
        made.add("train_samples_start", -5)
    made.add("train_samples_start", None)
    assert made == {"train_iterations_start": 0, "my_attribute": "v"}
    made.train_samples_start = 7
    assert made["train_samples_start"] == 7


def test_a_required_value_that_is_not_there_says_so() -> None:
    """Attributes read back from elsewhere may lack one; reading it is an error that names it."""
    read = TrainingLoopAttributes.from_json({"train_samples_start": 3})
    assert isinstance(read, TrainingLoopAttributes)
    with pytest.raises(StepwellError, match=r"TrainingLoopAttributes\.train_iterations_start has"):
        _ = read.train_iterations_start


def test_they_are_attributes_like_any_other() -> None:
    """They compare, copy, pickle and merge as a plain set does."""
    made = loop(train_iterations_start=3)
    assert isinstance(made, Attributes)
    assert made == Attributes({"train_iterations_start": 3})
    for twin in (copy.copy(made), copy.deepcopy(made), pickle.loads(pickle.dumps(made))):
        assert twin == made
        assert type(twin) is TrainingLoopAttributes
    assert Attributes.merge(made, {"a": 1}) == {"train_iterations_start": 3, "a": 1}


@each_class
def test_the_documentation_has_every_attribute(kind: type[TypedAttributes]) -> None:
    """The page lists each attribute of each class with its meaning."""
    text = REFERENCE.read_text(encoding="utf-8")
    assert f"### `{kind.__name__}`" in text
    section = text.partition(f"### `{kind.__name__}`")[2].partition("\n###")[0]
    rows = [reference_row(kind, name) for name in kind.FIELDS]
    assert [row for row in rows if row not in section.splitlines()] == []


def reference_row(kind: type[TypedAttributes], name: str) -> str:
    """A row of the reference in the documentation."""
    field = kind.FIELDS[name]
    always = "always" if field.is_required else ""
    return f"| `{name}` | {always} | {field.meaning} |"
