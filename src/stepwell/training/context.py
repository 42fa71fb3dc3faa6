"""Context managers for every standard span. Each is also a decorator, and yields the live span.

with application():
    with training_loop(train_iterations_start=0):
        for batch in loader:
            with training_iteration():
                ...

An exception is recorded on the span and passed on.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, TypeVar

from stepwell._core.errors import report
from stepwell.telemetry.span_handle import NO_SPAN, Span, open_span
from stepwell.training import calls
from stepwell.training.calls import current
from stepwell.training.checkpoints import PathLike
from stepwell.training.config import CheckPointStrategy
from stepwell.training.standard_spans import WORDS
from stepwell.training.training_loop import Count, TrainingLoop
from stepwell.vocabulary import StandardTrainingJobSpanName as Name

F = TypeVar("F", bound=Callable[..., Any])


class StandardSpan:
    """A standard span to enter any number of times, also recursively and in several threads."""

    __slots__ = ("_end", "_start", "name")

    def __init__(
        self, name: Name, start: Callable[[], Span], end: Callable[[BaseException | None], None]
    ) -> None:
        self.name = name.value
        self._start = start
        self._end = end

    def __enter__(self) -> Span:
        return self._start()

    def __exit__(self, kind: object, error: BaseException | None, trace: object) -> None:
        self._end(error)

    def __call__(self, function: F) -> F:
        from stepwell.journal.decorator import decorate

        return decorate(self, function)


class Iteration:
    """A training iteration to enter.

    While nothing records, entering does nothing. Inside a training loop, ``__enter__`` is directly a method
    of that loop, because this is a hot path.
    """

    __slots__ = ("_optimizer_step", "_samples", "_tokens")

    name = Name.TRAINING_SINGLE_ITERATION.value

    def __init__(self, samples: int | None, tokens: int | None, optimizer_step: bool) -> None:
        self._samples = samples
        self._tokens = tokens
        self._optimizer_step = optimizer_step

    def __enter__(self) -> Span:
        return calls.start_iteration()

    def __exit__(self, kind: object, error: BaseException | None, trace: object) -> None:
        calls.end_iteration(self._samples, self._tokens, self._optimizer_step, error)

    __call__ = StandardSpan.__call__


class UsualIteration(Iteration):
    """An iteration of the usual size."""

    __slots__ = ()


def _idle_enter(self: Iteration) -> Span:
    return NO_SPAN


# While nothing records, leaving calls a C function that returns a false value: the fastest no-op.
_nothing: Any = "".format
_enter = Iteration.__enter__
_exit = Iteration.__exit__


def _switch(enabled: bool, loop: TrainingLoop | None) -> None:
    # A bound method of the loop is called without the object that was entered, because it is not a function.
    enter: Any = _enter if enabled else _idle_enter
    leave: Any = _exit if enabled else _nothing
    leave_usual = leave
    if enabled and loop is not None:
        enter, leave_usual = loop.enter, loop.leave
    Iteration.__enter__ = enter  # type: ignore[method-assign]
    Iteration.__exit__ = leave  # type: ignore[method-assign]
    UsualIteration.__exit__ = leave_usual  # type: ignore[method-assign]


current.add_switch(_switch)
_usual_iteration = UsualIteration(None, None, True)


class SimpleSpan(StandardSpan):
    """A simple span: one without counters. Some are entered in each iteration."""

    __slots__ = ("_name", "name_word")

    def __init__(self, name: Name) -> None:
        self.name = name.value
        self._name = name
        self.name_word = WORDS[name]

    def __enter__(self) -> Span:
        job = current.job
        if job is None:
            return calls.start(self._name)
        try:
            return open_span(self.name_word, None, 0, None, job.container)
        except Exception as error:
            report(self.name, error)
            return NO_SPAN

    def __exit__(self, kind: object, error: BaseException | None, trace: object) -> None:
        calls.end(self._name, None, error)


_SIMPLE = {name: SimpleSpan(name) for name in Name}
_APPLICATION = StandardSpan(
    Name.APPLICATION,
    calls.enter_application,
    calls.leave_application,
)


def _loop(part: calls.EvaluationKind, name: Name) -> StandardSpan:
    return StandardSpan(
        name,
        lambda: calls.start_evaluation(part),
        lambda error: calls.end_evaluation(part, None, error),
    )


def _single(part: calls.EvaluationKind, name: Name) -> StandardSpan:
    return StandardSpan(
        name,
        lambda: calls.start_evaluation_iteration(part),
        lambda error: calls.end_evaluation_iteration(part, None, error),
    )


_VALIDATION_LOOP = _loop("validation", Name.VALIDATION_LOOP)
_VALIDATION_ITERATION = _single("validation", Name.VALIDATION_SINGLE_ITERATION)
_TESTING_LOOP = _loop("testing", Name.TESTING_LOOP)
_TESTING_ITERATION = _single("testing", Name.TESTING_SINGLE_ITERATION)

# Application and setup


def application() -> StandardSpan:
    """The whole application. Its end closes all open spans in it."""
    return _APPLICATION


def distributed_init() -> StandardSpan:
    """Setup of communication between ranks."""
    return _SIMPLE[Name.DIST_INIT]


def model_init() -> StandardSpan:
    """Creation of the model."""
    return _SIMPLE[Name.MODEL_INIT]


def dataloader_init() -> StandardSpan:
    """Creation of the data loaders."""
    return _SIMPLE[Name.DATA_LOADER_INIT]


def optimizer_init() -> StandardSpan:
    """Creation of the optimizer."""
    return _SIMPLE[Name.OPTIMIZER_INIT]


def checkpoint_load() -> StandardSpan:
    """Loading a checkpoint."""
    return _SIMPLE[Name.CHECKPOINT_LOAD]


# Training


def training_loop(
    train_iterations_start: int = 0,
    train_samples_start: int | None = None,
    train_iterations_target_or_fn: Count | None = None,
    train_samples_target_or_fn: Count | None = None,
) -> StandardSpan:
    """A training loop that starts at this iteration (not 0 if training is resumed)."""
    return StandardSpan(
        Name.TRAINING_LOOP,
        lambda: calls.start_training(
            train_iterations_start,
            train_samples_start,
            train_iterations_target_or_fn,
            train_samples_target_or_fn,
        ),
        lambda error: calls.end_training(None, error),
    )


def training_iteration(
    *, samples: int | None = None, tokens: int | None = None, optimizer_step: bool = True
) -> Iteration:
    """A training iteration.

    Args:
        samples: samples of all ranks, if not always the global batch size.
        tokens: tokens of all ranks, if not samples times sequence length.
        optimizer_step: False if it only accumulates gradients: it then counts as part of the next iteration.
    """
    if samples is None and tokens is None and optimizer_step:
        return _usual_iteration
    return Iteration(samples, tokens, optimizer_step)


def data_loading() -> StandardSpan:
    """Loading of a batch."""
    return _SIMPLE[Name.DATA_LOADING]


def model_forward() -> StandardSpan:
    """The forward pass."""
    return _SIMPLE[Name.MODEL_FORWARD]


def zero_grad() -> StandardSpan:
    """Clearing the gradients."""
    return _SIMPLE[Name.ZERO_GRAD]


def model_backward() -> StandardSpan:
    """The backward pass."""
    return _SIMPLE[Name.MODEL_BACKWARD]


def optimizer_update() -> StandardSpan:
    """The optimizer step."""
    return _SIMPLE[Name.OPTIMIZER_UPDATE]


# Validation and testing


def validation_loop() -> StandardSpan:
    """A validation loop."""
    return _VALIDATION_LOOP


def validation_iteration() -> StandardSpan:
    """A validation iteration."""
    return _VALIDATION_ITERATION


def testing_loop() -> StandardSpan:
    """A testing loop."""
    return _TESTING_LOOP


def testing_iteration() -> StandardSpan:
    """A testing iteration."""
    return _TESTING_ITERATION


# Pytest must not collect them when a test module imports them.
for _function in (testing_loop, testing_iteration):
    _function.__test__ = False  # type: ignore[attr-defined]

# Saving checkpoints


class CheckpointSave(StandardSpan):
    """A checkpoint save. A synchronous one that ends without an exception has succeeded."""

    __slots__ = ("_path", "_step", "_strategy")

    def __init__(
        self, step: int, path: PathLike | None, strategy: CheckPointStrategy | str | None
    ) -> None:
        self.name = Name.CHECKPOINT_SAVE_SYNC.value
        self._step = step
        self._path = path
        self._strategy = strategy

    def __enter__(self) -> Span:
        return calls.start_save(self._step, None, self._path, self._strategy)

    def __exit__(self, kind: object, error: BaseException | None, trace: object) -> None:
        calls.conclude_save(error)


def checkpoint_save(
    global_step: int,
    *,
    path: PathLike | None = None,
    strategy: CheckPointStrategy | str | None = None,
) -> CheckpointSave:
    """A save of the checkpoint of this step.

    Args:
        global_step: iterations so far, which identifies the checkpoint.
        path: file or folder of the checkpoint. Its size is reported with the success.
        strategy: "sync" or "async"; default: that of the configuration. Call ``on_save_checkpoint_success``
            when an asynchronous save is complete.
    """
    return CheckpointSave(global_step, path, strategy)


def checkpoint_save_finalization() -> StandardSpan:
    """Completion of an asynchronous checkpoint."""
    return _SIMPLE[Name.CHECKPOINT_SAVE_FINALIZATION]
