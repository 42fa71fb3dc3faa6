"""Making a collection: the families one by one, then one record and the metrics of the run."""

from __future__ import annotations

import os
import secrets
import traceback
from collections.abc import Iterable
from datetime import datetime
from pathlib import Path
from typing import TYPE_CHECKING, Any

from stepwell.diagnostics import extra as extra
from stepwell.diagnostics import norms, records
from stepwell.diagnostics import standard as standard
from stepwell.diagnostics.context import Context
from stepwell.diagnostics.families import Family, families
from stepwell.diagnostics.holdout import Piece, keep_first
from stepwell.diagnostics.model_watch import ModelWatch
from stepwell.diagnostics.no_trace import same_random_numbers
from stepwell.journal import metrics
from stepwell.journal.errors import StepwellError, is_strict, misuse, report, warn_once
from stepwell.journal.state import is_failing
from stepwell.journal.values import text_of
from stepwell.telemetry.run import span

if TYPE_CHECKING:
    from stepwell.diagnostics.config import TelemetryConfig
    from stepwell.telemetry.run import Run

SPAN = "diagnostics"
MAX_MODELS = 16
"""Models that one object follows at a time; the one seen first goes first."""


class Collector:
    """What ``TrainingTelemetry`` has behind its integer comparison.

    Attributes:
        collections: how many were made.
        before_clipping: a norm before clipping that came before any model was seen.
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
        self._epochs = Epochs(config.batches_per_epoch)

    def use(
        self, run: Run | None, rank: int, records_path: Path | None, baseline: Path | None
    ) -> None:
        """Write into these files from now on; weights are compared anew."""
        self._rank = rank
        self._run, self._records, self._baseline = run, records_path, baseline
        for watch in self._watches.values():
            watch.keep_baseline(baseline, self._identity())

    def keep_holdout(self, data: Iterable[Any] | None) -> None:
        """Keep the first examples of these batches."""
        self._holdout = [] if data is None else keep_first(data, self.config)
        if data is not None and not self._holdout:
            warn_once("diagnostics holdout", "the holdout data has no batch with examples")

    def note_clipping(self, norm: Any) -> None:
        """Keep a norm before clipping for the model that is trained; of several, for the last one seen."""
        watch = next(reversed(self._watches.values()), None)
        if watch is None:
            self.before_clipping = norm
        else:
            watch.note_clipping(norm)

    def look(
        self, model: Any, optimizer: Any, batch_idx: int, epoch: int, device: Any, batch: Any
    ) -> None:
        """A batch ends that is to be looked at: collect, or get ready to."""
        watch = self._watch(model, optimizer)
        if self.config.track_gradients:
            watch.batch_ends(optimizer, batch_idx)
        if self.config.enabled and batch_idx % self.config.collect_every_n == 0:
            self.collections += 1
            with span(SPAN), same_random_numbers():
                step = self._epochs.step(batch_idx, epoch)
                context = Context(
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
        """How far ahead of a collection, and at multiples of what, a batch has to be looked at."""
        every = self.config.collect_every_n
        if not self.config.track_gradients:
            return 0, every
        foreseen = [watch.foresight for watch in self._watches.values()]
        if any(it.is_watching for it in foreseen):
            return 0, 1
        return max((it.period or 0 for it in foreseen), default=0), every

    def close(self) -> None:
        """Leave the optimizers alone."""
        for watch in self._watches.values():
            watch.close()
        self._watches.clear()

    # One collection

    def _collect(self, context: Context) -> None:
        found: dict[str, Any] = {}
        prefixes: dict[str, str] = {}
        for one in families():
            if one.switch is not None and not getattr(self.config, one.switch):
                continue
            context.memory = context.watch.memories.setdefault(one.name, {})
            value = _ask(one, context)
            if value is not None:
                found[one.name] = value
                prefixes[one.name] = one.metrics
        found.update({name: value for name, value in context.notes.items() if name not in found})
        self._keep(context, _resolved(found), prefixes)

    def _keep(self, context: Context, fields: dict[str, Any], prefixes: dict[str, str]) -> None:
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
                    "a record could not be written to %s: %s; its numbers are in the run",
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
                watch.note_clipping(self.before_clipping)
            self._models += 1
            self._watches[id(model)] = watch
        return watch

    def _identity(self) -> str:
        """What a baseline belongs to: weights that another run or attempt left are not compared with."""
        run = self._run
        about = "no run" if run is None else f"{run.id}, attempt {run.attempt}"
        return f"{about}, process {os.getpid()}, {self._own}"


class Epochs:
    """The number of a batch since the beginning, for a run of which no step was set.

    Batches that pass are not counted: where the index begins anew in every epoch, it is the sum of those
    that were looked at last, unless the length of an epoch is known.
    """

    def __init__(self, length: int | None) -> None:
        self.length = length
        self._before = 0
        self._last = -1
        self._epoch: Any = None

    def step(self, batch_idx: int, epoch: int) -> int:
        """The run's step, else the number of the batch."""
        if metrics.context.step is not None:
            return metrics.context.step
        if self.length is not None:
            return int(epoch * self.length + batch_idx)
        # With one collection an epoch the index is the same each time.
        if batch_idx < self._last or (batch_idx == self._last and epoch != self._epoch):
            self._before += self._last + (batch_idx == 0)
        self._last, self._epoch = int(batch_idx), epoch
        return self._before + self._last


def _ask(one: Family, context: Context) -> Any:
    """What a family gives; None when it fails, which is said once."""
    try:
        return one.function(context)
    except StepwellError as error:
        # A wrong call, not a fault of the family.
        misuse(f"diagnostic family {one.name}", f"{one.name} is not collected: {error}")
        return None
    except Exception as error:
        if one.is_own or is_strict():
            report(f"diagnostic family {one.name}", error)
        else:
            where = traceback.extract_tb(error.__traceback__)[-1]
            misuse(
                f"diagnostic family {one.name}: {type(error).__name__}",
                f"the diagnostic family {one.name!r} failed: {type(error).__name__}: {text_of(error)} "
                f"({where.filename}, line {where.lineno})",
            )
        return None


def _resolved(fields: dict[str, Any]) -> dict[str, Any]:
    """The fields with numbers instead of tensors: all scalars come over together."""
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
        # One of them cannot be fetched; each says so by itself.
        numbers = {}
    found: dict[str, Any] = {}
    for name, value in fields.items():
        try:
            found[name] = records.with_numbers(value, name, numbers)
            records.strict({name: found[name]})
        except Exception as error:
            report(f"diagnostic family {name}", error)
            found.pop(name, None)
    return found
