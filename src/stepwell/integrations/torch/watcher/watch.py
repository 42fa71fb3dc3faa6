"""The public function ``watch`` and its handle ``Watch``."""

from __future__ import annotations

import os
import sys
import weakref
from collections.abc import Callable, Iterable, Iterator, Mapping
from types import FrameType
from typing import Any

import torch

from stepwell._core.checks import COUNT, Kind
from stepwell._core.errors import StepwellError, report, warn_once
from stepwell._core.values import shown
from stepwell.diagnostics.config import TelemetryConfig
from stepwell.diagnostics.isolation import unwrapped
from stepwell.diagnostics.sharding import is_sharded
from stepwell.integrations.configuration import is_shuffled, parameter_counts, record_training
from stepwell.integrations.torch.annotations import Annotations, annotate, objects_of
from stepwell.integrations.torch.diagnostics import EVERY, light_config
from stepwell.integrations.torch.hooks import unwrapped_optimizer
from stepwell.integrations.torch.loaders import can_be_followed
from stepwell.integrations.torch.observer import active
from stepwell.integrations.torch.watcher.checkpoints import SAVES
from stepwell.integrations.torch.watcher.epochs import nothing
from stepwell.integrations.torch.watcher.loop import WatchOptions
from stepwell.integrations.torch.watcher.loss import GRADIENTS, LOSS
from stepwell.integrations.torch.watcher.training import WatchedTraining
from stepwell.integrations.torch.watcher.validation import MODES
from stepwell.telemetry.rank_info import find_rank_info
from stepwell.telemetry.run import Run, active_run
from stepwell.telemetry.start import borrow_run
from stepwell.training import calls
from stepwell.training.calls import current, current_job
from stepwell.training.job import TrainingJob

Ranks = int | Iterable[int] | Callable[[int], bool] | None
_active_watches: list[Watch] = []
"""The watch that records now: at most one."""


class Watch:
    """The handle that ``watch`` returns. ``close()``, or leaving ``with``, stops recording.

    Attributes:
        loader: the loader to iterate over. It is the given object, or a wrapper of a list, a generator or
            another built-in iterable.
        run: the run that is recorded to, None if nothing is recorded.
    """

    def __init__(self, loader: Any) -> None:
        self.loader = loader
        self.run: Run | None = None
        self._training: WatchedTraining | None = None
        self._annotations: Annotations | None = None
        self._job: TrainingJob | None = None
        self._own_run: Run | None = None
        self._remove_patches: Callable[[], object] | None = None

    @property
    def is_on(self) -> bool:
        """Whether training is recorded."""
        return self._training is not None

    @property
    def steps(self) -> int:
        """Optimizer steps so far, including those before a resume; 0 if nothing is recorded."""
        return 0 if self._training is None else self._training.steps_made

    def close(self) -> None:
        """End the training loop, and the run if ``watch`` started it. A second call does nothing."""
        self._close(None)

    def _close(self, error: BaseException | None) -> None:
        if self in _active_watches:
            _active_watches.remove(self)
        training, self._training = self._training, None
        annotations, self._annotations = self._annotations, None
        remove, self._remove_patches = self._remove_patches, None
        job, self._job = self._job, None
        run, self._own_run = self._own_run, None
        try:
            if annotations is not None:
                annotations.remove()
            if remove is not None:
                remove()
            if training is not None:
                training.close(error)
            if job is not None and job is current.job:
                calls.end_application(error=error)
            if run is not None and run is active_run():
                run.__exit__(None if error is None else type(error), error, None)
        except Exception as problem:
            report("watch", problem)

    def __enter__(self) -> Watch:
        return self

    def __exit__(self, kind: object, error: BaseException | None, trace: object) -> None:
        self._close(error)

    def __repr__(self) -> str:
        return f"<watch{'' if self.is_on else ', closed'}>"


def watch(
    model: torch.nn.Module
    | Iterable[torch.nn.Module]
    | Mapping[str, torch.nn.Module]
    | None = None,
    optimizer: Any = None,
    loader: Any = None,
    *,
    name: str | None = None,
    config: Any = None,
    diagnostics: bool | int | TelemetryConfig = EVERY,
    loss: bool = True,
    flops_per_sample: float | None = None,
    peak_flops: float | None = None,
    count_flops: bool = True,
    step: int = 0,
    epoch: int = 0,
    target_steps: int | None = None,
    replicas: int | None = None,
    ranks: Ranks = None,
    transfers: bool | None = None,
    collectives: bool = True,
) -> Watch:
    """Record a training from now on: spans, iterations, throughput, loss and diagnostics.

    Args:
        model: the model, which may be compiled or wrapped for distributed training; or a list or dict of
            models. Diagnostics are those of the first one.
        optimizer: the optimizer. Each of its steps is an iteration. With a list or dict, the steps of the
            first one are the iterations, and each optimizer has its own metric ``loss/<name>``.
        loader: the loader or iterable of batches. The length of the first tensor in a batch counts as
            samples.
        name: name of the run, if one is started here.
        config: configuration of the run, if one is started here.
        diagnostics: steps between records of gradient norms and learning rates, a ``TelemetryConfig`` for
            other diagnostics, or False for none.
        loss: record the scalar that ``backward()`` is called on as metric ``loss``, unless you log one.
        flops_per_sample: floating point operations per sample, forward and backward.
        peak_flops: peak operations per second of a GPU, for the metric ``mfu``.
        count_flops: count the operations of the second step, if ``flops_per_sample`` is not given.
        step: optimizer steps made before a resume.
        epoch: epochs completed before a resume.
        target_steps: optimizer steps to reach, including those before a resume.
        replicas: number of ranks that train on their own batches. Default: all.
        ranks: the ranks that record: a rank, several, or a function of the rank. Default: all.
        transfers: record copies between host and device. Default: if there is a device.
        collectives: record calls of ``torch.distributed``.

    A run is started unless one is active. It is finished by ``close()`` or at the end of the program. A wrong
    argument raises ``StepwellError``; later problems are logged and never raised into training.
    """
    models = objects_of(_values(model), torch.nn.Module, "model")
    given_optimizers = objects_of(_values(optimizer), torch.optim.Optimizer, "optimizer")
    optimizers = [unwrapped_optimizer(each) for each in given_optimizers]
    named = dict(
        zip(optimizer_names(model, models, optimizer, optimizers), optimizers, strict=True)
    )
    loaders, given = _loaders(loader)
    is_recording = _is_recording(ranks)
    settings = _diagnostics(diagnostics)
    if settings is not None and not (models and optimizers and not _is_stuck(models[0], ranks)):
        settings = None
    options = WatchOptions(
        step=COUNT.check("step", step),
        epoch=COUNT.check("epoch", epoch),
        target_steps=COUNT.or_none("target_steps", target_steps),
        replicas=None if replicas is None else max(1, COUNT.check("replicas", replicas)),
        loss=bool(loss),
        flops=POSITIVE_NUMBER.or_none("flops_per_sample", flops_per_sample) or bool(count_flops),
        peak=POSITIVE_NUMBER.or_none("peak_flops", peak_flops),
        diagnostics=settings,
        describe=_describer(models, optimizers, loaders),
    )
    handle = Watch(given)
    if not is_recording:
        return handle
    while _active_watches:
        # A new watch ends the previous one, as a new run does.
        _active_watches[-1].close()
    try:
        _start(handle, WatchedTraining(options, models, named, loaders), name, config)
        if handle.is_on and transfers is None:
            transfers = torch.accelerator.is_available()
        if handle.is_on:
            handle._annotations = annotate(
                models, optimizers, loaders, transfers=bool(transfers), collectives=collectives
            )
    except StepwellError:
        handle.close()
        raise
    except Exception as error:
        handle.close()
        report("watch", error)
    return handle


def is_watched() -> bool:
    """Return whether a watch records to the active run."""
    return any(each.run is active_run() for each in _active_watches)


def _start(handle: Watch, training: WatchedTraining, name: str | None, config: Any) -> None:
    run, is_own = borrow_run(name, config=config)
    if run.disabled:
        return
    handle.run = run
    handle._own_run = run if is_own else None
    _active_watches.append(handle)
    handle._training = training
    # Before the job registers its own callback, which it does when it is first requested.
    run.before_finish(training.run_ends)
    job = current_job()
    if job is not None and (job.application is None or not job.application.active):
        calls.start_application()
        handle._job = job
    active.observer = training
    removals = [GRADIENTS.install(), MODES.install(), SAVES.install()]
    handle._remove_patches = lambda: [remove() for remove in removals]


def _describer(
    models: list[torch.nn.Module], optimizers: list[Any], loaders: list[Any]
) -> Callable[[], dict[str, int]]:
    """Return a function that describes these objects for the training loop, without keeping them alive."""
    refs = [weakref.ref(model) for model in models]
    optimizer_refs = [weakref.ref(optimizer) for optimizer in optimizers]
    loader_ref: Callable[[], Any] = weakref.ref(loaders[0]) if loaders else nothing

    def describe() -> dict[str, int]:
        facts: dict[str, int] = {}
        alive = [model for ref in refs if (model := ref()) is not None]
        stepping = [optimizer for ref in optimizer_refs if (optimizer := ref()) is not None]
        if alive and optimizer_refs:
            facts |= parameter_counts(alive, stepping)
        record_training(next(iter(alive), None), stepping, loader_ref())
        batches = _length_of(loader_ref())
        if batches is not None:
            facts["batches_per_epoch"] = batches
        shuffles = is_shuffled(loader_ref())
        if shuffles is not None:
            facts["shuffle"] = shuffles
        return facts

    return describe


def _length_of(loader: Any) -> int | None:
    """Return the number of batches in a loader, None if it has no length."""
    attribute = "_IterableDataset_len_called"
    before = getattr(loader, attribute, None)
    try:
        length = len(loader)
    except Exception:
        return None
    if getattr(loader, attribute, None) is not before:
        # Undo a side effect of len(): the DataLoader would warn if its dataset yields more batches.
        setattr(loader, attribute, before)
    return length


def _values(given: Any) -> Any:
    """Return the values of a dict as a list, and anything else unchanged."""
    return list(given.values()) if isinstance(given, Mapping) else given


def optimizer_names(
    model: Any, models: list[torch.nn.Module], optimizer: Any, optimizers: list[Any]
) -> list[str]:
    """Return a name for each optimizer: its key, else the name of the model it optimizes, else its number."""
    if isinstance(optimizer, Mapping):
        return [str(name) for name in optimizer]
    if len(optimizers) < 2:
        return [LOSS] * len(optimizers)
    keys = list(model) if isinstance(model, Mapping) else _names_of_models(models)
    owners = {
        id(parameter): str(key)
        for key, each in zip(keys, models, strict=True)
        for parameter in each.parameters()
        if key is not None
    }
    names = []
    for each in optimizers:
        held = {owners.get(id(p)) for group in each.param_groups for p in group["params"]}
        names.append(held.pop() if len(held) == 1 else None)
    return [
        name if name is not None and names.count(name) == 1 else f"optimizer_{i}"
        for i, name in enumerate(names)
    ]


def _names_of_models(models: list[torch.nn.Module]) -> list[str | None]:
    """Return the class names of the models if distinct and not torch's, else their variable names."""
    classes = [type(unwrapped(each)) for each in models]
    if len(set(classes)) == len(models) and not any(
        each.__module__.startswith("torch.") for each in classes
    ):
        return [each.__name__.lower() for each in classes]
    frame: FrameType | None = sys._getframe(1)
    while frame is not None and frame.f_globals.get("__name__", "").startswith("stepwell"):
        frame = frame.f_back
    variables = {} if frame is None else {**frame.f_globals, **frame.f_locals}
    return [next((name for name in variables if variables[name] is each), None) for each in models]


def _is_stuck(model: torch.nn.Module, ranks: Ranks) -> bool:
    """Return whether diagnostics would wait forever: they need all ranks, and only some record."""
    if ranks is None or not is_sharded(model):
        return False
    warn_once(
        "watch sharded",
        "watch(ranks=…) records no diagnostics: the parameters are sharded over all ranks, "
        "and only some of the ranks record.",
    )
    return True


def _diagnostics(given: Any) -> TelemetryConfig | None:
    if isinstance(given, TelemetryConfig):
        return given if given.enabled else None
    if given is False or given is None:
        return None
    every = EVERY if given is True else given
    if isinstance(every, bool) or not isinstance(every, int) or every < 1:
        raise StepwellError(
            "diagnostics must be a number of steps, True, False or a TelemetryConfig, "
            f"got {shown(given)}"
        )
    return light_config(every)


def _loaders(given: Any) -> tuple[list[Any], Any]:
    """Return the loaders to record, and the object for the user to iterate over."""
    if given is None:
        return [], None
    if type(given) in (list, tuple) and given and all(map(_is_loader, given)):
        return list(given), given
    if _is_loader(given):
        return [given], given
    if not hasattr(type(given), "__iter__"):
        raise StepwellError(f"loader must be a DataLoader or another iterable, got {shown(given)}")
    wrapper = IterableWrapper(given)
    return [wrapper], wrapper


def _is_loader(given: Any) -> bool:
    """Return whether this is a loader, rather than a batch."""
    return can_be_followed(given) and not isinstance(given, torch.Tensor)


def _is_recording(ranks: Ranks) -> bool:
    """Return whether this rank records."""
    if ranks is None:
        return True
    rank = find_rank_info(os.environ).rank
    if callable(ranks):
        return bool(ranks(rank))
    try:
        return rank in ([ranks] if isinstance(ranks, int) else list(ranks))
    except TypeError:
        raise StepwellError(
            f"ranks must be a rank, a list of ranks or a function of the rank, got {shown(ranks)}"
        ) from None


def _positive(value: Any) -> float:
    number = float(value)
    if not 0 < number < float("inf"):
        raise ValueError
    return number


POSITIVE_NUMBER = Kind[float]("a number above 0", lambda value: False, _positive)


class IterableWrapper:
    """Wraps an iterable of a built-in class (a list, a generator), whose ``__iter__`` cannot be patched."""

    def __init__(self, items: Any) -> None:
        self._items = items

    def __iter__(self) -> Iterator[Any]:
        return iter(self._items)

    def __len__(self) -> int:
        return len(self._items)

    def __getattr__(self, name: str) -> Any:
        if name == "_items":
            raise AttributeError(name)
        return getattr(self._items, name)
