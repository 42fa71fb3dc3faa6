"""Runs a collection: calls the families one by one, then writes one record and the metrics of the run."""

from __future__ import annotations

import os
import secrets
import traceback
from collections.abc import Iterable
from datetime import datetime
from pathlib import Path
from typing import TYPE_CHECKING, Any

from stepwell._core.errors import StepwellError, is_strict, report, report_misuse, warn_once
from stepwell._core.values import text_of
from stepwell.diagnostics import built_in as built_in
from stepwell.diagnostics import norms, records
from stepwell.diagnostics.context import CollectionContext
from stepwell.diagnostics.families import MetricFamily, families
from stepwell.diagnostics.holdout import Piece, keep_first
from stepwell.diagnostics.isolation import preserved_rng
from stepwell.diagnostics.model_watch import ModelWatch
from stepwell.journal import metrics
from stepwell.journal.state import is_failing
from stepwell.telemetry.run import span

if TYPE_CHECKING:
    from stepwell.diagnostics.config import TelemetryConfig
    from stepwell.telemetry.run import Run

SPAN = "diagnostics"
MAX_MODELS = 16
"""The largest number of models that one object watches. The oldest is dropped first."""


class Collector:
    """The part of ``TrainingTelemetry`` that needs PyTorch. It is called for few batches.

    Attributes:
        collections: the number of collections so far.
        before_clipping: a norm before clipping that was noted before the first model was seen.
    """

    def __init__(self, config: TelemetryConfig) -> None:
        self.config = config
        self.collections = 0
        self.before_clipping: Any = None
        self._run: Run | None = None
        self._rank = 0
        self._records: Path | None = None
        self._baseline: Path | None = None
        self._holdout: list[Piece] = []
        self._watches: dict[int, ModelWatch] = {}
        self._models = 0
        self._own = secrets.token_hex(8)
        self._epochs = BatchCounter(config.batches_per_epoch)

    def use(
        self, run: Run | None, rank: int, records_path: Path | None, baseline: Path | None
    ) -> None:
        """Write to these files from now on. The first weight delta is then unknown."""
        self._rank = rank
        self._run, self._records, self._baseline = run, records_path, baseline
        for watch in self._watches.values():
            watch.keep_baseline(baseline, self._identity())

    def keep_holdout(self, data: Iterable[Any] | None) -> None:
        """Store the first examples of these batches."""
        self._holdout = [] if data is None else keep_first(data, self.config)
        if data is not None and not self._holdout:
            warn_once("diagnostics holdout", "the holdout data has no batch with examples")

    def note_clipping(self, norm: Any) -> None:
        """Store a norm before clipping for the model; if there are several, for the one added last."""
        watch = next(reversed(self._watches.values()), None)
        if watch is None:
            self.before_clipping = norm
        else:
            watch.gradients.note_clipping(norm)

    def look(
        self, model: Any, optimizer: Any, batch_idx: int, epoch: int, device: Any, batch: Any
    ) -> None:
        """Handle the end of a batch: collect, or prepare for the next collection."""
        watch = self._watch(model, optimizer)
        if self.config.track_gradients:
            watch.batch_ends(optimizer, batch_idx)
        if self.config.enabled and batch_idx % self.config.collect_every_n == 0:
            self.collections += 1
            with span(SPAN), preserved_rng():
                step = self._epochs.step(batch_idx, epoch)
                context = CollectionContext(
                    watch,
                    batch_idx=batch_idx,
                    epoch=epoch,
                    step=step,
                    device=device,
                    batch=batch,
                    holdout=self._holdout,
                    folder=None if self._records is None else self._records.parent,
                    rank=self._rank,
                )
                self._collect(context)
        if self.config.track_gradients:
            watch.batch_ended(batch_idx)

    def pace(self) -> tuple[int, int]:
        """Return (lead, every): a batch matters at multiples of ``every``, and ``lead`` batches before."""
        every = self.config.collect_every_n
        if not self.config.track_gradients:
            return 0, every
        predictors = [watch.predictor for watch in self._watches.values()]
        if any(it.sees_all_batches for it in predictors):
            return 0, 1
        return max((it.period or 0 for it in predictors), default=0), every

    def close(self) -> None:
        """Remove all hooks from optimizers."""
        for watch in self._watches.values():
            watch.close()
        self._watches.clear()

    # One collection

    def _collect(self, context: CollectionContext) -> None:
        fields: dict[str, Any] = {}
        prefixes: dict[str, str] = {}
        for family in families():
            if family.switch is not None and not getattr(self.config, family.switch):
                continue
            context.memory = context.watch.memories.setdefault(family.name, {})
            value = _call(family, context)
            if value is not None:
                fields[family.name] = value
                prefixes[family.name] = family.metrics
        fields.update({name: value for name, value in context.notes.items() if name not in fields})
        self._record(context, _resolved(fields), prefixes)

    def _record(
        self, context: CollectionContext, fields: dict[str, Any], prefixes: dict[str, str]
    ) -> None:
        number = context.watch.number
        head: dict[str, Any] = {
            "batch_idx": int(context.batch_idx),
            "epoch": context.epoch,
            "timestamp": datetime.now().astimezone().isoformat(),
            "step": context.step,
        }
        if self._run is not None:
            head["attempt"] = self._run.attempt
        if number:
            head["model"] = number
        above = f"model_{number}/" if number else ""
        numbers: dict[str, float] = {}
        for name, value in fields.items():
            numbers.update(records.metrics_of(value, above + prefixes.get(name, name)))
        metrics.log(numbers, context.step)
        if self._records is not None:
            self._write(self._records, {**head, **fields})

    def _write(self, path: Path, record: dict[str, Any]) -> None:
        try:
            records.append(path, records.strict(record))
        except OSError as error:
            if not is_failing():
                warn_once(
                    f"diagnostics {path} {error.errno}",
                    "a record cannot be written to %s: %s. Its numbers are metrics of the run",
                    path,
                    error,
                )

    def _watch(self, model: Any, optimizer: Any) -> ModelWatch:
        watch = self._watches.get(id(model))
        if watch is None:
            if len(self._watches) >= MAX_MODELS:
                self._watches.pop(next(iter(self._watches))).close()
            watch = ModelWatch(model, optimizer, self.config, self._models)
            watch.keep_baseline(self._baseline, self._identity())
            if self.before_clipping is not None:
                watch.gradients.note_clipping(self.before_clipping)
            self._models += 1
            self._watches[id(model)] = watch
        return watch

    def _identity(self) -> str:
        """Return the identity of a baseline: weights of another run or attempt are not used."""
        run = self._run
        name = "no run" if run is None else f"{run.id}, attempt {run.attempt}"
        return f"{name}, process {os.getpid()}, {self._own}"


class BatchCounter:
    """Computes the step of a batch, for runs whose step is not set.

    Most batches are not seen here. If ``batch_idx`` restarts in every epoch, the step is the sum of the last
    indices that were seen, unless the length of an epoch is known.
    """

    def __init__(self, length: int | None) -> None:
        self.length = length
        self._before = 0
        self._last = -1
        self._epoch: Any = None

    def step(self, batch_idx: int, epoch: int) -> int:
        """Return the run's step, or else the number of the batch since the start."""
        if metrics.context.step is not None:
            return metrics.context.step
        if self.length is not None:
            return int(epoch * self.length + batch_idx)
        # With one collection per epoch, the index is the same each time.
        if batch_idx < self._last or (batch_idx == self._last and epoch != self._epoch):
            self._before += self._last + (batch_idx == 0)
        self._last, self._epoch = int(batch_idx), epoch
        return self._before + self._last


def _call(family: MetricFamily, context: CollectionContext) -> Any:
    """Return the result of a family; None if it fails, with one warning."""
    try:
        return family.function(context)
    except StepwellError as error:
        # A wrong configuration, not an error in the family.
        report_misuse(
            f"diagnostic family {family.name}", f"{family.name} is not collected: {error}"
        )
        return None
    except Exception as error:
        if family.is_own or is_strict():
            report(f"diagnostic family {family.name}", error)
        else:
            where = traceback.extract_tb(error.__traceback__)[-1]
            report_misuse(
                f"diagnostic family {family.name}: {type(error).__name__}",
                f"the diagnostic family {family.name!r} failed: {type(error).__name__}: {text_of(error)} "
                f"({where.filename}, line {where.lineno})",
            )
        return None


def _resolved(fields: dict[str, Any]) -> dict[str, Any]:
    """Return the fields with numbers instead of tensors. All scalars are fetched together."""
    scalars: dict[str, Any] = {}
    for name, value in list(fields.items()):
        try:
            scalars.update(records.scalars_in(value, name))
        except Exception as error:
            report(f"diagnostic family {name}", error)
            del fields[name]
    try:
        numbers = norms.fetch(scalars)
    except Exception:
        # One of them cannot be fetched. Below, each is fetched by itself and reports its error.
        numbers = {}
    resolved: dict[str, Any] = {}
    for name, value in fields.items():
        try:
            resolved[name] = records.with_numbers(value, name, numbers)
            records.strict({name: resolved[name]})
        except Exception as error:
            report(f"diagnostic family {name}", error)
            resolved.pop(name, None)
    return resolved
