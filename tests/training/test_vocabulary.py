"""The vocabulary: every spelling of a kind of span leads to the same row."""

from __future__ import annotations

import json
import pickle
import subprocess
import sys
from pathlib import Path

import pytest

from stepwell.vocabulary import (
    AI_NODES,
    PHASES,
    SHORT_SPANS,
    WORDS,
    Word,
    ai_word,
    phase_of,
    word_of,
)
from stepwell.vocabulary import StandardTrainingJobEventName as EventName
from stepwell.vocabulary import StandardTrainingJobSpanName as SpanName

REFERENCE = Path(__file__).parents[2] / "docs" / "training.md"

SPANS = {
    "APPLICATION": "application",
    "DIST_INIT": "distributed_code_initialization",
    "DATA_LOADER_INIT": "data_loader_initialization",
    "MODEL_INIT": "model_initialization",
    "OPTIMIZER_INIT": "optimizer_initialization",
    "CHECKPOINT_LOAD": "checkpoint_load",
    "TRAINING_LOOP": "training_loop",
    "TRAINING_SINGLE_ITERATION": "training_single_iteration",
    "VALIDATION_LOOP": "validation_loop",
    "VALIDATION_SINGLE_ITERATION": "validation_single_iteration",
    "TESTING_LOOP": "testing_loop",
    "TESTING_SINGLE_ITERATION": "testing_single_iteration",
    "DATA_LOADING": "data_loading",
    "MODEL_FORWARD": "model_forward",
    "ZERO_GRAD": "zero_grad",
    "MODEL_BACKWARD": "model_backward",
    "OPTIMIZER_UPDATE": "optimizer_update",
    "CHECKPOINT_SAVE_SYNC": "checkpoint_save_sync",
    "CHECKPOINT_SAVE_ASYNC": "checkpoint_save_async",
    "CHECKPOINT_SAVE_FINALIZATION": "checkpoint_save_finalization",
}

EVENTS = {
    "SPAN_START": "span_start",
    "SPAN_STOP": "span_stop",
    "INITIALIZATION": "one_logger_initialization",
    "ONE_LOGGER_INITIALIZATION": "one_logger_initialization",
    "UPDATE_TRAINING_TELEMETRY_CONFIG": "update_training_telemetry_config",
    "TRAINING_METRICS_UPDATE": "training_metrics_update",
    "TRAINING_MULTI_ITERATION_METRICS_UPDATE": "training_metrics_update",
    "VALIDATION_METRICS_UPDATE": "validation_metrics_update",
    "TESTING_METRICS_UPDATE": "testing_metrics_update",
    "SAVE_CHECKPOINT_SUCCESS": "save_checkpoint_success",
    "SAVE_CHECKPOINT_FAILURE": "save_checkpoint_failure",
    "SYNC_CHECKPOINT_METRICS_UPDATE": "sync_checkpoint_metrics_update",
    "ERROR": "error",
    "TELEMETRY_DATA_ERROR": "telemetry_data_error",
}

# The tree as its document prints it: path, category and name of every node.
TREE = {
    "ai": ("ai_root", "ai_root"),
    "ai.compute": ("compute", "compute"),
    "ai.compute.forward": ("compute", "forward"),
    "ai.compute.backward": ("compute", "backward"),
    "ai.compute.step": ("compute", "step"),
    "ai.data": ("data", "data"),
    "ai.data.preprocess": ("data", "preprocess"),
    "ai.data.item": ("data", "item"),
    "ai.data.io": ("data", "data.io"),
    "ai.data.io.open": ("data", "data.io.open"),
    "ai.data.io.read": ("data", "data.io.read"),
    "ai.data.io.write": ("data", "data.io.write"),
    "ai.data.io.close": ("data", "data.io.close"),
    "ai.dataloader": ("dataloader", "dataloader"),
    "ai.dataloader.fetch": ("dataloader", "fetch"),
    "ai.comm": ("comm", "comm"),
    "ai.comm.send": ("comm", "send"),
    "ai.comm.receive": ("comm", "receive"),
    "ai.comm.barrier": ("comm", "barrier"),
    "ai.comm.bcast": ("comm", "bcast"),
    "ai.comm.reduce": ("comm", "reduce"),
    "ai.comm.all_reduce": ("comm", "all_reduce"),
    "ai.comm.gather": ("comm", "gather"),
    "ai.comm.all_gather": ("comm", "all_gather"),
    "ai.comm.scatter": ("comm", "scatter"),
    "ai.comm.reduce_scatter": ("comm", "reduce_scatter"),
    "ai.comm.all_to_all": ("comm", "all_to_all"),
    "ai.device": ("device", "device"),
    "ai.device.transfer": ("device", "transfer"),
    "ai.checkpoint": ("checkpoint", "checkpoint"),
    "ai.checkpoint.capture": ("checkpoint", "capture"),
    "ai.checkpoint.restart": ("checkpoint", "restart"),
    "ai.checkpoint.io": ("checkpoint", "checkpoint.io"),
    "ai.checkpoint.io.open": ("checkpoint", "checkpoint.io.open"),
    "ai.checkpoint.io.read": ("checkpoint", "checkpoint.io.read"),
    "ai.checkpoint.io.write": ("checkpoint", "checkpoint.io.write"),
    "ai.checkpoint.io.close": ("checkpoint", "checkpoint.io.close"),
    "ai.pipeline": ("pipeline", "pipeline"),
    "ai.pipeline.epoch": ("pipeline", "epoch"),
    "ai.pipeline.train": ("pipeline", "train"),
    "ai.pipeline.evaluate": ("pipeline", "evaluate"),
    "ai.pipeline.test": ("pipeline", "test"),
    "ai.other": ("other", "other"),
    "ai.other.log": ("other", "other.log"),
    "ai.other.io": ("other", "other.io"),
    "ai.other.io.open": ("other", "other.io.open"),
    "ai.other.io.read": ("other", "other.io.read"),
    "ai.other.io.write": ("other", "other.io.write"),
    "ai.other.io.close": ("other", "other.io.close"),
}


def test_the_standard_names() -> None:
    """Members and values of both enums, the alias included."""
    assert {name: member.value for name, member in SpanName.__members__.items()} == SPANS
    assert {name: member.value for name, member in EventName.__members__.items()} == EVENTS
    alias = EventName.TRAINING_MULTI_ITERATION_METRICS_UPDATE
    assert alias is EventName.TRAINING_METRICS_UPDATE


@pytest.mark.parametrize("name", [SpanName.MODEL_FORWARD, EventName.ERROR])
def test_a_name_is_its_value_wherever_it_is_printed(name: SpanName | EventName) -> None:
    """str(), format(), f-strings, JSON and comparison give the value, on every Python version."""
    value = "model_forward" if name is SpanName.MODEL_FORWARD else "error"
    assert str(name) == f"{name}" == format(name) == "%s" % name == value  # noqa: UP031
    assert f"{name:>20}" == value.rjust(20)
    assert json.dumps({name: name}) == json.dumps({value: value})
    assert name == value
    assert {name: 1}[value] == 1
    assert pickle.loads(pickle.dumps(name)) is name


def test_every_standard_span_has_one_row() -> None:
    """The table holds each member once, in the order of the enum, under its standard name."""
    rows = [word for word in WORDS if word.standard]
    assert [word.standard for word in rows] == list(SpanName)
    assert [(word.member, word.name) for word in rows] == list(SPANS.items())


def test_the_nodes_of_the_ai_tree() -> None:
    """Every node is there with the category and name that it writes, parents before children."""
    assert {word.ai: (word.category, word.trace_name) for word in AI_NODES} == TREE
    paths = [word.ai or "" for word in AI_NODES]
    parents = [path.rpartition(".")[0] for path in paths]
    assert all(not p or paths.index(p) < i for i, p in enumerate(parents))


@pytest.mark.parametrize(
    ("member", "path"),
    [
        ("APPLICATION", "ai"),
        ("DIST_INIT", "ai.comm.init"),
        ("DATA_LOADER_INIT", "ai.dataloader.init"),
        ("CHECKPOINT_LOAD", "ai.checkpoint.restart"),
        ("TRAINING_LOOP", "ai.pipeline.train"),
        ("VALIDATION_LOOP", "ai.pipeline.evaluate"),
        ("TESTING_LOOP", "ai.pipeline.test"),
        ("DATA_LOADING", "ai.dataloader.fetch"),
        ("MODEL_FORWARD", "ai.compute.forward"),
        ("MODEL_BACKWARD", "ai.compute.backward"),
        ("OPTIMIZER_UPDATE", "ai.compute.step"),
        ("CHECKPOINT_SAVE_SYNC", "ai.checkpoint.capture"),
    ],
)
def test_two_spellings_of_one_thing(member: str, path: str) -> None:
    """A standard span and its `ai` node are one row, however it is looked up."""
    word = word_of(SPANS[member])
    assert word is not None
    assert word is word_of(SpanName[member]) is ai_word(path)
    assert word is word_of(word.name) is word_of(word.trace_name, word.category)
    assert word.otel_name == SPANS[member]


def test_no_two_rows_share_a_spelling() -> None:
    """Paths, traces' names within a category, and OpenTelemetry's names are unique."""
    paths = [word.ai for word in WORDS if word.ai]
    assert len(paths) == len(set(paths))
    assert len({(word.category, word.trace_name) for word in WORDS}) == len(WORDS)
    assert len({word.otel_name for word in WORDS}) == len(WORDS)


def test_names_in_opentelemetry() -> None:
    """The standard name if there is one, else the path, because there are no categories."""
    found = {path: word.otel_name for path in TREE if (word := ai_word(path))}
    assert found["ai.compute.forward"] == "model_forward"
    assert found["ai.comm.all_reduce"] == "comm.all_reduce"
    assert found["ai.data.io.read"] == "data.io.read"
    assert found["ai.compute"] == "compute"


def test_words_that_are_not_there() -> None:
    """A lookup of anything else gives None."""
    assert word_of("my_span") is None
    assert ai_word("ai.compute.sideways") is None
    assert word_of("sideways", "compute") is None
    assert word_of("forward") is None


def test_the_short_spans_are_left_out_of_exports() -> None:
    """Eight of them, as names."""
    assert set(map(str, SHORT_SPANS)) == {
        "training_single_iteration",
        "validation_single_iteration",
        "testing_single_iteration",
        "data_loading",
        "model_forward",
        "zero_grad",
        "model_backward",
        "optimizer_update",
    }
    assert len(SHORT_SPANS) == 8


@pytest.mark.parametrize(
    ("name", "category", "phase"),
    [
        ("application", "", None),
        ("distributed_code_initialization", "", "startup"),
        ("data_loader_initialization", "", "startup"),
        ("model_initialization", "", "startup"),
        ("optimizer_initialization", "", "startup"),
        ("checkpoint_load", "", "restore"),
        ("training_loop", "", None),
        ("training_single_iteration", "", "training"),
        ("validation_loop", "", "validation"),
        ("validation_single_iteration", "", "validation"),
        ("testing_loop", "", "testing"),
        ("testing_single_iteration", "", "testing"),
        ("data_loading", "", "data"),
        ("model_forward", "", "forward"),
        ("zero_grad", "", "optimizer"),
        ("model_backward", "", "backward"),
        ("optimizer_update", "", "optimizer"),
        ("checkpoint_save_sync", "", "checkpoint"),
        ("checkpoint_save_async", "", "checkpoint"),
        ("checkpoint_save_finalization", "", "checkpoint"),
        # The category in traces, as an imported trace has it.
        ("training_single_iteration", "training", "training"),
        ("my_custom_span", "", None),
        ("forward", "", None),
        # The `ai` tree.
        ("ai_root", "ai_root", None),
        ("compute", "compute", "training"),
        ("forward", "compute", "forward"),
        ("step", "compute", "optimizer"),
        ("step", "pipeline", None),
        ("all_reduce", "comm", "communication"),
        ("transfer", "device", "transfer"),
        ("capture", "checkpoint", "checkpoint"),
        ("restart", "checkpoint", "restore"),
        ("epoch", "pipeline", None),
        ("train", "pipeline", None),
        ("evaluate", "pipeline", "validation"),
        ("test", "pipeline", "testing"),
        ("data.io.read", "data", "data"),
        ("other.io.read", "other", None),
        # What the nodes derive.
        ("preprocess.collate", "data", "data"),
        ("preprocess.collate.inner", "data", "data"),
        ("checkpoint.init", "checkpoint", "startup"),
        ("item.init", "data", "startup"),
        ("comm.init", "comm", "startup"),
        ("fetch.iter", "dataloader", "data"),
        ("fetch.block", "dataloader", None),
        ("dataloader.block", "dataloader", None),
        ("epoch.iter", "pipeline", None),
        ("epoch.block", "pipeline", None),
        ("evaluate.block", "pipeline", "validation"),
        ("preprocess.block", "data", "data"),
        ("unknown.init", "elsewhere", None),
        ("", "", None),
    ],
)
def test_phases(name: str, category: str, phase: str | None) -> None:
    """The phase that time in a span belongs to, in both spellings."""
    assert phase_of(name, category) == phase
    assert phase is None or phase in PHASES


def test_every_phase_is_used() -> None:
    """No phase is declared that no span has."""
    assert {word.phase for word in WORDS if word.phase} == PHASES.keys()


def test_the_table_pulls_in_nothing() -> None:
    """The module itself needs the standard library alone."""
    path = Path(sys.modules[Word.__module__].__file__ or "")
    code = (
        "import runpy, sys\n"
        f"runpy.run_path({str(path)!r})\n"
        "print([name for name in sys.modules if name.startswith('stepwell')])"
    )
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True)
    assert done.returncode == 0, done.stderr
    assert done.stdout.strip() == "[]"


def row(word: Word) -> str:
    """A row of the table in the documentation."""
    cells = [
        f"`{word.name}`" if word.standard else "",
        f"`{word.member}`" if word.standard else "",
        f"`{word.ai}`" if word.ai else "",
        f"{word.category} / {word.trace_name}",
        word.otel_name,
        word.phase or "",
        word.meaning,
    ]
    return f"| {' | '.join(cells)} |"


def test_the_documentation_has_the_table() -> None:
    """The page shows every row, every phase and every event."""
    text = REFERENCE.read_text(encoding="utf-8")
    lines = set(text.splitlines())
    assert [row(word) for word in WORDS if row(word) not in lines] == []
    assert [p for p, meaning in PHASES.items() if f"| `{p}` | {meaning} |" not in lines] == []
    assert [name for name in EVENTS.values() if f"`{name}`" not in text] == []
