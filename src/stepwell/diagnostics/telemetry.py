"""``TrainingTelemetry``: one call at the end of every batch, numbers every so many."""

from __future__ import annotations

import os
import sys
from collections.abc import Iterable
from pathlib import Path
from types import TracebackType
from typing import TYPE_CHECKING, Any

from stepwell.diagnostics.config import TelemetryConfig
from stepwell.diagnostics.place import Tally, claim
from stepwell.journal.errors import StepwellError, misuse, report, warn_once
from stepwell.journal.state import is_failing
from stepwell.journal.values import shown
from stepwell.telemetry.place import find_place
from stepwell.telemetry.run import Run, active_run
from stepwell.telemetry.start import init

if TYPE_CHECKING:
    from stepwell.diagnostics.collecting import Collector

METRICS_FILE = "telemetry.jsonl"
CHECKPOINT_FILE = "last_checkpoint.pt"


class TrainingTelemetry:
    """Collects how a model learns: gradients, weights, learning rates, a holdout, the batches.

    Each collection is a line of ``telemetry.jsonl``, and metrics of the run. A run is started unless one is
    active. Nothing here changes training or stops it: what fails is missing, and said once.

    Attributes:
        config: as given. Setting ``enabled`` to False pauses collection, True resumes it. Change other
            fields before the first batch only.
        output_dir: folder of the files; None when there is none.
        metrics_file: the records, one JSON object a line.
        checkpoint_file: the weights of the last collection, to compare the next one with.
        holdout_data: as given to ``set_holdout_data``.
    """

    def __init__(self, config: TelemetryConfig | None = None) -> None:
        self.config = TelemetryConfig() if config is None else config
        if not isinstance(self.config, TelemetryConfig):
            raise StepwellError(
                f"TrainingTelemetry({shown(config)}): write TrainingTelemetry(TelemetryConfig(…)), "
                "or TelemetryConfig.from_dict(…) for a dict"
            )
        self.holdout_data: Any = None
        self.output_dir: Path | None = None
        self.metrics_file: Path | None = None
        self.checkpoint_file: Path | None = None
        self.run: Run | None = None
        self._own_run: Run | None = None
        self._rank = 0
        self._collector: Collector | None = None
        self._tally = Tally(self.config.collect_every_n, self.config.enabled)
        # Batches pass while (batch_idx + lead) % every > lead. These let only batch 0 through.
        self._lead = 0
        self._every = sys.maxsize
        if self.config.enabled and not _is_off():
            self._every = 1
            self._open()
        elif (run := active_run()) is not None:
            # It says at its end why there is nothing.
            run.before_finish(self._tally.run_ends)

    def on_batch_end(
        self,
        model: Any,
        optimizer: Any,
        batch_idx: int,
        epoch: int,
        device: Any = None,
        batch: Any = None,
    ) -> None:
        """Collect, when it is time to. Call it after ``optimizer.step()``, for every batch.

        Args:
            model: the model that is trained, wrapped or not.
            optimizer: its optimizer.
            batch_idx: number of the batch in its epoch.
            epoch: number of the epoch.
            device: where the model is; None: where its first parameter is.
            batch: the batch, for its statistics.
        """
        try:
            if (batch_idx + self._lead) % self._every > self._lead:
                return
        except TypeError:
            misuse(
                "on_batch_end",
                f"on_batch_end: batch_idx is {shown(batch_idx)}, and should be a whole number",
            )
            return
        if self._every == sys.maxsize:
            return
        try:
            self._look(model, optimizer, batch_idx, epoch, device, batch)
        except Exception as error:
            report("TrainingTelemetry.on_batch_end", error)

    def set_holdout_data(self, holdout_data: Iterable[Any] | None) -> None:
        """Set the examples that the model is asked about: the first ``holdout_size`` of these batches."""
        self.holdout_data = holdout_data
        if self._every == sys.maxsize:
            return
        try:
            self._collect().keep_holdout(holdout_data)
        except Exception as error:
            report("TrainingTelemetry.set_holdout_data", error)

    def note_clipping(self, total_norm: Any) -> None:
        """Hand over what ``clip_grad_norm_`` returned, the norm before clipping. Cheap in every batch."""
        if self._every != sys.maxsize:
            self._collect().note_clipping(total_norm)

    def expect_nothing(self) -> None:
        """Print no message at the end if nothing was collected."""
        self._tally.is_said = True

    def close(self) -> None:
        """Let go of the optimizer, and finish the run if it was started here."""
        if self._every == sys.maxsize:
            return
        self._every = sys.maxsize
        if self._collector is not None:
            self._collector.close()
        run, self._own_run = self._own_run, None
        if run is not None and run is active_run():
            run.finish()
        self._tally.say_why()

    def __enter__(self) -> TrainingTelemetry:
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        trace: TracebackType | None,
    ) -> None:
        self.close()

    # Behind the comparison

    def _look(
        self, model: Any, optimizer: Any, batch_idx: int, epoch: int, device: Any, batch: Any
    ) -> None:
        self._tally.is_called = True
        self._tally.is_enabled = self.config.enabled
        if self.config.output_dir is None and self.run is not active_run():
            # Another run has begun: the numbers belong to that one.
            self._open()
        collector = self._collect()
        try:
            collector.look(model, optimizer, batch_idx, epoch, device, batch)
        finally:
            self._tally.collections = collector.collections
            self._lead, self._every = collector.pace()

    def _collect(self) -> Collector:
        if self._collector is None:
            # Imports torch, which whoever only reads or configures may not have.
            from stepwell.diagnostics.collecting import Collector

            self._collector = Collector(self.config)
            self._collector.use(self.run, self._rank, self.metrics_file, self.checkpoint_file)
        return self._collector

    def _open(self) -> None:
        """Find the run, and the places of the files."""
        self.run = active_run()
        if self.run is None:
            self.run = self._own_run = init()
        if self.run.disabled:
            self.run = None
        else:
            self.run.before_finish(self._tally.run_ends)
        self._rank = find_place(os.environ).rank if self.run is None else self.run.rank
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
                    "%s cannot be made (%s): the numbers are metrics of the run only",
                    self.output_dir,
                    error,
                )


def with_rank(name: str, rank: int) -> str:
    """The name of a file of this rank."""
    stem, dot, suffix = name.rpartition(".")
    return name if rank == 0 else f"{stem}.rank-{rank:05d}{dot}{suffix}"


def _is_off() -> bool:
    return os.environ.get("STEPWELL_MODE", "").strip().lower() == "off"
