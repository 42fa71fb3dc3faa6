"""``TrainingTelemetry``: one call at the end of every batch, and a collection at every n-th."""

from __future__ import annotations

import itertools
import os
import sys
import weakref
from collections.abc import Iterable
from pathlib import Path
from typing import TYPE_CHECKING, Any

from stepwell._core.errors import StepwellError, log_warning, report, report_misuse, warn_once
from stepwell._core.values import shown
from stepwell.diagnostics.config import TelemetryConfig
from stepwell.journal.state import is_failing
from stepwell.telemetry.rank_info import find_rank_info
from stepwell.telemetry.run import Run, active_run
from stepwell.telemetry.start import borrow_run

if TYPE_CHECKING:
    from stepwell.diagnostics.collector import Collector

METRICS_FILE = "telemetry.jsonl"
CHECKPOINT_FILE = "last_checkpoint.pt"


class TrainingTelemetry:
    """Collects how a model learns: gradients, weights, learning rates, a holdout, the batches.

    Each collection is a line of ``telemetry.jsonl``, and metrics of the run. A run is started if none is
    active. Training is never changed or interrupted: if something fails, it is left out, with one warning.

    Attributes:
        config: the configuration. Set ``enabled`` to False to pause collection, to True to resume it. Change
            other fields only before the first batch.
        output_dir: folder of the files; None if there is none.
        metrics_file: the records, one JSON object per line.
        checkpoint_file: the weights of the last collection, to compare with the next one.
        holdout_data: the argument of ``set_holdout_data``.
    """

    def __init__(self, config: TelemetryConfig | None = None) -> None:
        self.config = TelemetryConfig() if config is None else config
        if not isinstance(self.config, TelemetryConfig):
            raise StepwellError(
                f"config must be a TelemetryConfig, got {shown(config)}; for a dict, write "
                "TelemetryConfig.from_dict(…)"
            )
        self.holdout_data: Any = None
        self.output_dir: Path | None = None
        self.metrics_file: Path | None = None
        self.checkpoint_file: Path | None = None
        self.run: Run | None = None
        self._own_run: Run | None = None
        self._rank = 0
        self._collector: Collector | None = None
        self._stats = CollectionStats(self.config.collect_every_n, self.config.enabled)
        # Batches are skipped while (batch_idx + lead) % every > lead. With these values, all but batch 0.
        self._lead = 0
        self._every = sys.maxsize
        if self.config.enabled and not _is_off():
            self._every = 1
            self._open()
        elif (run := active_run()) is not None:
            # At its end, it explains why nothing was collected.
            run.before_finish(self._stats.warn_if_empty)

    def on_batch_end(
        self,
        model: Any,
        optimizer: Any,
        batch_idx: int,
        epoch: int,
        device: Any = None,
        batch: Any = None,
    ) -> None:
        """Collect, if a collection is due. Call it after ``optimizer.step()``, in every batch.

        Args:
            model: the model that is trained, wrapped or not.
            optimizer: its optimizer.
            batch_idx: index of the batch in its epoch.
            epoch: index of the epoch.
            device: the device of the model; None: that of its first parameter.
            batch: the batch, for its statistics.
        """
        try:
            if (batch_idx + self._lead) % self._every > self._lead:
                return
        except TypeError:
            report_misuse(
                "on_batch_end",
                f"on_batch_end: batch_idx must be a whole number, got {shown(batch_idx)}",
            )
            return
        if self._every == sys.maxsize:
            return
        try:
            self._look(model, optimizer, batch_idx, epoch, device, batch)
        except Exception as error:
            report("TrainingTelemetry.on_batch_end", error)

    def set_holdout_data(self, holdout_data: Iterable[Any] | None) -> None:
        """Set the holdout: the first ``holdout_size`` examples of these batches."""
        self.holdout_data = holdout_data
        if self._every == sys.maxsize:
            return
        try:
            self._collect().keep_holdout(holdout_data)
        except Exception as error:
            report("TrainingTelemetry.set_holdout_data", error)

    def note_clipping(self, total_norm: Any) -> None:
        """Note the result of ``clip_grad_norm_``: the norm before clipping. Cheap enough for every batch."""
        if self._every != sys.maxsize:
            self._collect().note_clipping(total_norm)

    def expect_nothing(self) -> None:
        """Do not warn at the end if nothing was collected."""
        self._stats.has_warned = True

    def close(self) -> None:
        """Remove the hooks, and finish the run if it was started here."""
        if self._every == sys.maxsize:
            return
        self._every = sys.maxsize
        if self._collector is not None:
            self._collector.close()
        run, self._own_run = self._own_run, None
        if run is not None and run is active_run():
            run.finish()
        self._stats.warn_if_empty()

    def __enter__(self) -> TrainingTelemetry:
        return self

    def __exit__(self, *exception: object) -> None:
        self.close()

    # Internals

    def _look(
        self, model: Any, optimizer: Any, batch_idx: int, epoch: int, device: Any, batch: Any
    ) -> None:
        self._stats.is_called = True
        self._stats.is_enabled = self.config.enabled
        if self.config.output_dir is None and self.run is not active_run():
            # Another run has started: the numbers belong to it.
            self._open()
        collector = self._collect()
        try:
            collector.look(model, optimizer, batch_idx, epoch, device, batch)
        finally:
            self._stats.collections = collector.collections
            self._lead, self._every = collector.pace()

    def _collect(self) -> Collector:
        if self._collector is None:
            # Imports torch, which is not needed to read or to configure.
            from stepwell.diagnostics.collector import Collector

            self._collector = Collector(self.config)
            self._collector.use(self.run, self._rank, self.metrics_file, self.checkpoint_file)
        return self._collector

    def _open(self) -> None:
        """Find or start the run, and choose the files."""
        self.run, is_new = borrow_run()
        if is_new:
            self._own_run = self.run
        if self.run.disabled:
            self.run = None
        else:
            self.run.before_finish(self._stats.warn_if_empty)
        self._rank = find_rank_info(os.environ).rank if self.run is None else self.run.rank
        self._choose_files()
        if self._collector is not None:
            self._collector.use(self.run, self._rank, self.metrics_file, self.checkpoint_file)

    def _choose_files(self) -> None:
        given = self.config.output_dir
        folder = given
        if folder is None and self.run is not None:
            folder = self.run.path / "telemetry"
        if folder is None:
            self.output_dir = self.metrics_file = self.checkpoint_file = None
            return
        self.output_dir = Path(folder)
        self.metrics_file = self.output_dir / with_rank(METRICS_FILE, self._rank)
        checkpoint = self.output_dir / with_rank(CHECKPOINT_FILE, self._rank)
        self.checkpoint_file = claim(self, checkpoint)
        try:
            self.output_dir.mkdir(parents=True, exist_ok=True)
        except OSError as error:
            if not is_failing():
                warn_once(
                    f"diagnostics {self.output_dir}",
                    "%s cannot be created (%s): the numbers are only metrics of the run",
                    self.output_dir,
                    error,
                )


def with_rank(name: str, rank: int) -> str:
    """Return the name of a file for this rank."""
    stem, dot, suffix = name.rpartition(".")
    return name if rank == 0 else f"{stem}.rank-{rank:05d}{dot}{suffix}"


def _is_off() -> bool:
    return os.environ.get("STEPWELL_MODE", "").strip().lower() == "off"


_owners: weakref.WeakValueDictionary[Path, Any] = weakref.WeakValueDictionary()


def claim(owner: object, path: Path) -> Path:
    """Return this path, with a number added if another object in this process uses it."""
    for number in itertools.count(1):
        mine = path if number == 1 else path.with_name(f"{path.stem}.{number}{path.suffix}")
        if _owners.setdefault(mine.absolute(), owner) is owner:
            return mine
    raise AssertionError("numbers do not end")


class CollectionStats:
    """Counts collections, to explain at the end why there are none."""

    def __init__(self, every: int, is_enabled: bool = True) -> None:
        self.every = every
        self.is_enabled = is_enabled
        self.is_called = False
        self.collections = 0
        self.has_warned = False

    def warn_if_empty(self, status: str = "") -> None:
        """If nothing was collected, warn once and give the reason. Runs call it just before they end."""
        if self.collections or self.has_warned:
            return
        self.has_warned = True
        if not self.is_enabled:
            log_warning("diagnostics collected nothing: they are disabled (enabled=False)")
        elif self.is_called:
            log_warning(
                "diagnostics collected nothing: no batch index was a multiple of collect_every_n=%d. If an "
                "epoch has fewer batches, choose a smaller number",
                self.every,
            )
        else:
            log_warning(
                "diagnostics collected nothing: on_batch_end was never called. Call it after "
                "optimizer.step(), in every batch"
            )
