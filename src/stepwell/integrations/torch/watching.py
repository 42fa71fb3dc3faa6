"""``watch``: a plain training loop, recorded and counted without touching it."""

from __future__ import annotations

import os
import sys
import weakref
from collections.abc import Callable, Iterable, Mapping
from types import FrameType, TracebackType
from typing import Any

import torch

from stepwell.diagnostics.config import TelemetryConfig
from stepwell.diagnostics.sharding import is_sharded
from stepwell.integrations.configuration import is_shuffled, parameter_counts, record_training
from stepwell.integrations.torch.annotating import Annotations, _each, annotate
from stepwell.integrations.torch.diagnostics import EVERY, light_config
from stepwell.integrations.torch.following import following
from stepwell.integrations.torch.loading import can_be_followed
from stepwell.integrations.torch.models import unwrapped
from stepwell.integrations.torch.optimizers import unwrapped_optimizer
from stepwell.integrations.torch.saves import SAVES
from stepwell.integrations.torch.watching_batches import Feed
from stepwell.integrations.torch.watching_epochs import nothing
from stepwell.integrations.torch.watching_loop import Options
from stepwell.integrations.torch.watching_loss import GRADIENTS, LOSS
from stepwell.integrations.torch.watching_training import WatchedTraining
from stepwell.integrations.torch.watching_validation import MODES
from stepwell.journal.errors import StepwellError, report, warn_once
from stepwell.journal.values import shown
from stepwell.telemetry.place import find_place
from stepwell.telemetry.run import Run, active_run
from stepwell.telemetry.start import init
from stepwell.training import calls
from stepwell.training.current import current, current_job
from stepwell.training.job import TrainingJob

Ranks = int | Iterable[int] | Callable[[int], bool] | None
_last: list[Watch] = []
"""The watch that is on."""


class Watch:
    """What ``watch`` has switched on. ``close()`` switches it off; so does leaving ``with``.

    Attributes:
        loader: the loader, to go through. Only for a list, a generator or the like is it another
            object than the one that was given.
        run: the run that is recorded; None when none is.
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
        """Whether training is being watched."""
        return self._training is not None

    @property
    def steps(self) -> int:
        """Optimizer steps so far, those before a resume included; 0 when nothing is watched."""
        return 0 if self._training is None else self._training.steps_made

    def close(self) -> None:
        """Training is over: end its loop, and the run if it was started here. Twice is harmless."""
        self._close(None)

    def _close(self, error: BaseException | None) -> None:
        if self in _last:
            _last.remove(self)
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

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        trace: TracebackType | None,
    ) -> None:
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
    """Record the training of a model from now on: spans, iterations, throughput, loss, diagnostics.

    Args:
        model: the model, also compiled or wrapped for distribution; or a list or a dict of models, of
            which the first is diagnosed.
        optimizer: its optimizer. Each of its steps is an iteration. Of a list or a dict, the steps of the
            first one are the iterations, and each has a metric ``loss/<name>`` of its own.
        loader: what gives the batches. The length of a batch's first tensor is its samples.
        name: what a run is called that is started here.
        config: what such a run was configured with.
        diagnostics: gradient norms and learning rates every so many steps; False for none, a
            ``TelemetryConfig`` for others.
        loss: record what ``backward()`` is called on as metric ``loss``, unless you log one.
        flops_per_sample: floating point operations for a sample, forward and backward.
        peak_flops: operations a second that a GPU can do at most, for the metric ``mfu``.
        count_flops: count the operations of the second step, where none are given.
        step: optimizer steps made before, when training is resumed.
        epoch: epochs before, likewise.
        target_steps: optimizer steps to be reached, those before included.
        replicas: how many ranks train on batches of their own; None: all.
        ranks: which ranks record: a rank, several, or a function of one; None: all.
        transfers: record copies between host and device; None: where there is a device.
        collectives: record calls of ``torch.distributed``.

    A run is started unless one is active, and finished with ``close()``, or when the program ends. A wrong
    argument raises ``StepwellError``; nothing that happens later is raised into training.
    """
    models = _each(_values(model), torch.nn.Module, "model")
    given_optimizers = _each(_values(optimizer), torch.optim.Optimizer, "optimizer")
    optimizers = [unwrapped_optimizer(one) for one in given_optimizers]
    named = dict(
        zip(optimizer_names(model, models, optimizer, optimizers), optimizers, strict=True)
    )
    loaders, given = _loaders(loader)
    chosen = _chosen(ranks)
    settings = _diagnostics(diagnostics)
    if settings is not None and not (models and optimizers and not _is_stuck(models[0], ranks)):
        settings = None
    options = Options(
        step=_count("step", step),
        epoch=_count("epoch", epoch),
        target_steps=None if target_steps is None else _count("target_steps", target_steps),
        replicas=None if replicas is None else max(1, _count("replicas", replicas)),
        loss=bool(loss),
        flops=_positive("flops_per_sample", flops_per_sample) or bool(count_flops),
        peak=_positive("peak_flops", peak_flops),
        diagnostics=settings,
        describe=_describer(models, optimizers, loaders),
    )
    made = Watch(given)
    if not chosen:
        return made
    while _last:
        # As a run that begins ends the one before.
        _last[-1].close()
    try:
        _start(made, WatchedTraining(options, models, named, loaders), name, config)
        if made.is_on and transfers is None:
            transfers = torch.accelerator.is_available()
        if made.is_on:
            made._annotations = annotate(
                models, optimizers, loaders, transfers=bool(transfers), collectives=collectives
            )
    except StepwellError:
        made.close()
        raise
    except Exception as error:
        made.close()
        report("watch", error)
    return made


def is_watched() -> bool:
    """Whether a watch is on that records to the active run."""
    return any(one.run is active_run() for one in _last)


def _start(made: Watch, training: WatchedTraining, name: str | None, config: Any) -> None:
    made.run = active_run()
    if made.run is None:
        made.run = made._own_run = init(name, config=config)
    if made.run.disabled:
        made.run = made._own_run = None
        return
    _last.append(made)
    made._training = training
    # Before the job, which is made when it is first asked for, does the same.
    made.run.before_finish(training.run_ends)
    job = current_job()
    if job is not None and (job.application is None or not job.application.active):
        calls.start_application()
        made._job = job
    following.follower = training
    removals = [GRADIENTS.install(), MODES.install(), SAVES.install()]
    made._remove_patches = lambda: [remove() for remove in removals]


def _describer(
    models: list[torch.nn.Module], optimizers: list[Any], loaders: list[Any]
) -> Callable[[], dict[str, int]]:
    """Return a function that describes these objects, for the training loop; it keeps none of them alive."""
    refs = [weakref.ref(model) for model in models]
    optimizer_refs = [weakref.ref(optimizer) for optimizer in optimizers]
    loader_ref: Callable[[], Any] = weakref.ref(loaders[0]) if loaders else nothing

    def describe() -> dict[str, int]:
        facts: dict[str, int] = {}
        known = [model for ref in refs if (model := ref()) is not None]
        stepping = [optimizer for ref in optimizer_refs if (optimizer := ref()) is not None]
        if known and optimizer_refs:
            facts |= parameter_counts(known, stepping)
        record_training(next(iter(known), None), stepping, loader_ref())
        batches = _length_of(loader_ref())
        if batches is not None:
            facts["batches_per_epoch"] = batches
        shuffles = is_shuffled(loader_ref())
        if shuffles is not None:
            facts["shuffle"] = shuffles
        return facts

    return describe


def _length_of(loader: Any) -> int | None:
    """Return the number of batches in a loader; None where it is not known, as with a stream."""
    called = "_IterableDataset_len_called"
    noted = getattr(loader, called, None)
    try:
        length = len(loader)
    except Exception:
        return None
    if getattr(loader, called, None) is not noted:
        # A DataLoader that was asked for its length warns when its dataset yields more than that.
        setattr(loader, called, noted)
    return length


def _values(given: Any) -> Any:
    """The objects in a dict; anything else as it is."""
    return list(given.values()) if isinstance(given, Mapping) else given


def optimizer_names(
    model: Any, models: list[torch.nn.Module], optimizer: Any, optimizers: list[Any]
) -> list[str]:
    """A name for each optimizer: its key, else that of the model with its parameters, else its number."""
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
    """The models' classes, if these are the user's and all different; else their variables."""
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
    """Whether norms would have to be put together by ranks of which some do not record."""
    if ranks is None or not is_sharded(model):
        return False
    warn_once(
        "watch sharded",
        "watch(ranks=…): the parameters are spread over the ranks, and not all of these record: "
        "there are no diagnostics",
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
            f"watch(diagnostics={shown(given)}): write a number of steps, False, or TelemetryConfig(…)"
        )
    return light_config(every)


def _loaders(given: Any) -> tuple[list[Any], Any]:
    """The objects to follow, and what the user is to go through."""
    if given is None:
        return [], None
    if type(given) in (list, tuple) and given and all(map(_is_loader, given)):
        return list(given), given
    if _is_loader(given):
        return [given], given
    if not hasattr(type(given), "__iter__"):
        raise StepwellError(
            f"watch(loader={shown(given)}): write a DataLoader, or whatever else gives batches"
        )
    feed = Feed(given)
    return [feed], feed


def _is_loader(given: Any) -> bool:
    """Whether this is rather a loader than a batch."""
    return can_be_followed(given) and not isinstance(given, torch.Tensor)


def _chosen(ranks: Ranks) -> bool:
    """Whether this rank records."""
    if ranks is None:
        return True
    rank = find_place(os.environ).rank
    if callable(ranks):
        return bool(ranks(rank))
    try:
        return rank in ([ranks] if isinstance(ranks, int) else list(ranks))
    except TypeError:
        raise StepwellError(
            f"watch(ranks={shown(ranks)}): write a rank, a list of them, or a function of one"
        ) from None


def _count(name: str, value: Any) -> int:
    if isinstance(value, bool) or not isinstance(value, int) or value < 0:
        raise StepwellError(f"watch({name}={shown(value)}): write a whole number of at least 0")
    return value


def _positive(name: str, value: Any) -> float | None:
    if value is None:
        return None
    try:
        found = float(value)
    except (TypeError, ValueError):
        found = 0.0
    if not 0 < found < float("inf"):
        raise StepwellError(f"watch({name}={shown(value)}): write a number above 0")
    return found
