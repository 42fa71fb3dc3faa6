"""The vocabulary: one table with the names of the parts of a training job, in every spelling.

A span keeps the name and category it was written with. This table maps both spellings to the same row:
``model_forward`` and ``ai.compute.forward`` are the same part of a job.
"""

from __future__ import annotations

import re
from collections.abc import Iterable
from dataclasses import dataclass
from enum import Enum


class _Name(str, Enum):
    """A text enum that is printed as its value."""

    def __str__(self) -> str:
        return str(self.value)

    def __format__(self, spec: str) -> str:
        return format(str(self.value), spec)


class StandardTrainingJobSpanName(_Name):
    """The standard spans of a training job."""

    APPLICATION = "application"
    DIST_INIT = "distributed_code_initialization"
    DATA_LOADER_INIT = "data_loader_initialization"
    MODEL_INIT = "model_initialization"
    OPTIMIZER_INIT = "optimizer_initialization"
    CHECKPOINT_LOAD = "checkpoint_load"
    TRAINING_LOOP = "training_loop"
    TRAINING_SINGLE_ITERATION = "training_single_iteration"
    VALIDATION_LOOP = "validation_loop"
    VALIDATION_SINGLE_ITERATION = "validation_single_iteration"
    TESTING_LOOP = "testing_loop"
    TESTING_SINGLE_ITERATION = "testing_single_iteration"
    DATA_LOADING = "data_loading"
    MODEL_FORWARD = "model_forward"
    ZERO_GRAD = "zero_grad"
    MODEL_BACKWARD = "model_backward"
    OPTIMIZER_UPDATE = "optimizer_update"
    CHECKPOINT_SAVE_SYNC = "checkpoint_save_sync"
    CHECKPOINT_SAVE_ASYNC = "checkpoint_save_async"
    CHECKPOINT_SAVE_FINALIZATION = "checkpoint_save_finalization"


class StandardTrainingJobEventName(_Name):
    """The standard events of a training job."""

    SPAN_START = "span_start"
    SPAN_STOP = "span_stop"
    INITIALIZATION = "one_logger_initialization"
    ONE_LOGGER_INITIALIZATION = "one_logger_initialization"  # alias: the name in nv-one-logger
    UPDATE_TRAINING_TELEMETRY_CONFIG = "update_training_telemetry_config"
    TRAINING_METRICS_UPDATE = "training_metrics_update"
    TRAINING_MULTI_ITERATION_METRICS_UPDATE = "training_metrics_update"
    VALIDATION_METRICS_UPDATE = "validation_metrics_update"
    TESTING_METRICS_UPDATE = "testing_metrics_update"
    SAVE_CHECKPOINT_SUCCESS = "save_checkpoint_success"
    SAVE_CHECKPOINT_FAILURE = "save_checkpoint_failure"
    SYNC_CHECKPOINT_METRICS_UPDATE = "sync_checkpoint_metrics_update"
    ERROR = "error"
    TELEMETRY_DATA_ERROR = "telemetry_data_error"


PHASES: dict[str, str] = {
    "startup": "setting things up before training: processes, data loaders, model, optimizer",
    "restore": "loading a checkpoint",
    "data": "waiting for or preparing data",
    "transfer": "copying between host and device",
    "forward": "forward pass",
    "backward": "backward pass",
    "optimizer": "applying and clearing gradients",
    "communication": "collectives and messages between ranks",
    "checkpoint": "saving a checkpoint",
    "validation": "validation, whatever it consists of",
    "testing": "testing, whatever it consists of",
    "training": "inside a training iteration, outside its recorded parts",
}
"""The phases that analysis groups time by. The time of a span without a phase belongs to its parent."""

CATEGORY = "training"
"""The category in traces of standard spans without a node in the `ai` tree."""
RUNTIME = "runtime"
"""The category of pauses of the interpreter."""


@dataclass(frozen=True)
class Word:
    """One row of the table: a kind of span in every spelling."""

    name: str
    """Our span name: that of the standard span, else that of the `ai` node."""
    standard: StandardTrainingJobSpanName | None
    """The standard span, None if only the `ai` tree has it."""
    ai: str | None
    """The path of the `ai` node, such as ``ai.compute.forward``."""
    category: str
    """The category in Chrome traces, and of spans of the `ai` node."""
    trace_name: str
    """The name in Chrome traces, and of spans of the `ai` node."""
    otel_name: str
    """The name in OpenTelemetry, which has no categories."""
    phase: str | None
    """One of ``PHASES``; None if its time belongs to the spans around or inside it."""
    is_short: bool
    """Whether it is too short and frequent to be exported by default. The journal contains it anyway."""
    meaning: str

    @property
    def member(self) -> str | None:
        """The name of the enum member, such as ``MODEL_FORWARD``."""
        return self.standard.name if self.standard else None


_Standard = StandardTrainingJobSpanName


def _word(
    standard: StandardTrainingJobSpanName | None,
    ai: str | None,
    phase: str | None,
    meaning: str,
    short: bool = False,
) -> Word:
    category, ai_name = _ai_spelling(ai) if ai else (CATEGORY, "")
    name = standard.value if standard else ai_name
    return Word(
        name=name,
        standard=standard,
        ai=ai,
        category=category,
        trace_name=ai_name or name,
        otel_name=name if standard or not ai else ai.removeprefix("ai."),
        phase=phase,
        is_short=short,
        meaning=meaning,
    )


def _ai_spelling(path: str) -> tuple[str, str]:
    """Return category and name of an `ai` node: the last part of its path, or more if that is ambiguous."""
    if path == "ai":
        return "ai_root", "ai_root"
    words = path.split(".")[1:]
    dotted = "io" in words or words[0] == "other" or words[-1] == "init"
    return words[0], ".".join(words) if dotted else words[-1]


def _io(parent: str, phase: str | None) -> list[Word]:
    """Return the rows for input and output of one category."""
    of = parent.removeprefix("ai.")
    return [
        _word(None, f"{parent}.io", phase, f"input and output of {of}"),
        *(
            _word(None, f"{parent}.io.{verb}", phase, f"{verb} a file or object of {of}")
            for verb in ("open", "read", "write", "close")
        ),
    ]


_STANDARD_WORDS = [
    _word(_Standard.APPLICATION, "ai", None, "the whole job"),
    _word(_Standard.DIST_INIT, "ai.comm.init", "startup", "setting up the process group"),
    _word(_Standard.DATA_LOADER_INIT, "ai.dataloader.init", "startup", "creating the data loaders"),
    _word(_Standard.MODEL_INIT, None, "startup", "creating the model"),
    _word(_Standard.OPTIMIZER_INIT, None, "startup", "creating the optimizer"),
    _word(_Standard.CHECKPOINT_LOAD, "ai.checkpoint.restart", "restore", "loading a checkpoint"),
    _word(_Standard.TRAINING_LOOP, "ai.pipeline.train", None, "a training loop"),
    _word(_Standard.TRAINING_SINGLE_ITERATION, None, "training", "one iteration of training", True),
    _word(_Standard.VALIDATION_LOOP, "ai.pipeline.evaluate", "validation", "a validation loop"),
    _word(
        _Standard.VALIDATION_SINGLE_ITERATION, None, "validation", "one batch of validation", True
    ),
    _word(_Standard.TESTING_LOOP, "ai.pipeline.test", "testing", "a testing loop"),
    _word(_Standard.TESTING_SINGLE_ITERATION, None, "testing", "one batch of testing", True),
    _word(_Standard.DATA_LOADING, "ai.dataloader.fetch", "data", "getting a batch", True),
    _word(_Standard.MODEL_FORWARD, "ai.compute.forward", "forward", "forward pass", True),
    _word(_Standard.ZERO_GRAD, None, "optimizer", "clearing the gradients", True),
    _word(_Standard.MODEL_BACKWARD, "ai.compute.backward", "backward", "backward pass", True),
    _word(_Standard.OPTIMIZER_UPDATE, "ai.compute.step", "optimizer", "optimizer step", True),
    _word(
        _Standard.CHECKPOINT_SAVE_SYNC,
        "ai.checkpoint.capture",
        "checkpoint",
        "saving a checkpoint while training waits",
    ),
    _word(
        _Standard.CHECKPOINT_SAVE_ASYNC,
        None,
        "checkpoint",
        "starting to save a checkpoint in the background",
    ),
    _word(
        _Standard.CHECKPOINT_SAVE_FINALIZATION,
        None,
        "checkpoint",
        "completing a checkpoint that was saved in the background",
    ),
]

_COMMUNICATION = {
    "send": "point-to-point send",
    "receive": "point-to-point receive",
    "barrier": "waiting for all ranks",
    "bcast": "one rank to all",
    "reduce": "all ranks combined on one",
    "all_reduce": "all ranks combined on all",
    "gather": "all ranks' parts to one",
    "all_gather": "all ranks' parts to all",
    "scatter": "parts of one rank to all",
    "reduce_scatter": "all ranks combined, a part to each",
    "all_to_all": "a part of each rank to each",
}

_AI_WORDS = [
    _word(None, "ai.compute", "training", "the computation of a step"),
    _word(None, "ai.data", "data", "work on data"),
    _word(None, "ai.data.preprocess", "data", "preparing a data set"),
    _word(None, "ai.data.item", "data", "loading or transforming one item"),
    *_io("ai.data", "data"),
    _word(None, "ai.dataloader", "data", "work of a data loader"),
    _word(None, "ai.comm", "communication", "communication between ranks"),
    *(
        _word(None, f"ai.comm.{name}", "communication", meaning)
        for name, meaning in _COMMUNICATION.items()
    ),
    _word(None, "ai.device", "transfer", "work with a device"),
    _word(None, "ai.device.transfer", "transfer", "copying between host and device"),
    _word(None, "ai.checkpoint", "checkpoint", "work on a checkpoint"),
    *_io("ai.checkpoint", "checkpoint"),
    _word(None, "ai.pipeline", None, "the whole pipeline"),
    _word(None, "ai.pipeline.epoch", None, "one epoch"),
    _word(None, "ai.other", None, "anything else"),
    _word(None, "ai.other.log", None, "logging"),
    *_io("ai.other", None),
]

WORDS: tuple[Word, ...] = (*_STANDARD_WORDS, *_AI_WORDS)
"""The table: the standard spans in the order of a job, then the other nodes of the `ai` tree."""

SHORT_SPANS: tuple[StandardTrainingJobSpanName, ...] = tuple(
    word.standard for word in WORDS if word.standard and word.is_short
)
"""The eight spans of every iteration. Exporters leave them out by default."""

AI_NODES: tuple[Word, ...] = tuple(
    sorted(
        (word for word in WORDS if word.ai and not word.ai.endswith(".init")),
        key=lambda word: word.ai or "",
    )
)
"""The nodes of the `ai` tree, parents before children. Every node also has an ``init``, without a row of
its own except for the two that are standard spans."""

_BY_STANDARD_NAME = {word.name: word for word in WORDS if word.standard}
_BY_AI_PATH = {word.ai: word for word in WORDS if word.ai}
_BY_TRACE_NAME = {
    (word.category, name): word for word in WORDS for name in (word.name, word.trace_name)
}
_AI_CATEGORIES = {word.category for word in AI_NODES}


def ai_word(path: str) -> Word | None:
    """Return the row of an `ai` node by its path, such as ``ai.compute.forward``, None if there is none."""
    return _BY_AI_PATH.get(path)


def word_of(name: str, category: str = "") -> Word | None:
    """Return the row of a span with this name and category, in either spelling; None if there is none.

    Names derived from an `ai` node (``preprocess.collate``, ``fetch.iter``) belong to that node.
    """
    if category not in _AI_CATEGORIES:
        return _BY_STANDARD_NAME.get(name)
    while True:
        word = _BY_TRACE_NAME.get((category, name))
        if word or "." not in name:
            return word
        name = name.rpartition(".")[0]


def is_category(category: str) -> bool:
    """Return whether standard spans, `ai` nodes or pauses of the interpreter have this category."""
    return category in _AI_CATEGORIES or category in (CATEGORY, RUNTIME)


def phase_of(name: str, category: str = "") -> str | None:
    """Return the phase of a span with this name and category, or None."""
    if category in _AI_CATEGORIES:
        last = name.rpartition(".")[2]
        if last == "init":
            return "startup"
        if last == "block" and category == "dataloader":
            # Work on a loaded batch is not data loading.
            return None
    word = word_of(name, category)
    return word.phase if word else None


LOSSES = ("loss", "train_loss", "train/loss")
"""Names of the training loss; if several are logged, the first one counts."""
MOST_LOSSES = 3
HELD_OUT = re.compile(
    r"(^|[/_.\- ])(val|valid|validat(e|ing|ion)|eval|evaluat(e|ing|ion)|test|testing|holdout|dev)\d*"
    r"([/_.\- ]|loss|acc|(?-i:[A-Z])|$)",
    re.I,
)
"""Found in the names of metrics of a validation or a test."""


def loss_names(names: Iterable[str]) -> list[str]:
    """Return the training loss among these metrics, or the losses of several models.

    Losses of a validation or test are never returned.
    """
    metrics = set(names)
    for name in LOSSES:
        if name in metrics:
            return [name]
    several = sorted(name for name in metrics if name.startswith("loss/"))
    others = sorted(
        name for name in metrics if "loss" in name.lower() and not HELD_OUT.search(name)
    )
    return several[:MOST_LOSSES] or others[:1]
