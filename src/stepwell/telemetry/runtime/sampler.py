"""The system sampler: takes readings at intervals and logs them as metrics."""

from __future__ import annotations

import math
import os
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from importlib import import_module
from typing import TYPE_CHECKING, Any

from stepwell._core import threads
from stepwell._core.environment import warn_setting
from stepwell._core.errors import log_warning, report
from stepwell.journal.journal import Track
from stepwell.journal.metrics import log
from stepwell.journal.pump import SMALL_SHARE
from stepwell.journal.state import state
from stepwell.telemetry.runtime.gc_pauses import GcPauses

if TYPE_CHECKING:
    from stepwell.telemetry.recorder import Recorder

Values = dict[str, float]
Reading = Callable[[], Values]
FIRST = 1.0
"""Seconds before sampling begins, so that very short runs do not pay for it."""
WRITE_PAUSES = 1.0
PREFIX = "system/"
"""Prefix of the names of these metrics."""

EVERY = 5.0
SHORTEST = 0.1
PAUSE_MS = 1.0
ASKED_SHARE = 0.05


def start_sampling(recorder: Recorder) -> GcPauses | None:
    """Start to sample this process until its recorder is closed.

    Stop the returned pauses, if any, before the recorder is closed.
    """
    settings = SamplerSettings.from_environment(os.environ)
    if settings.seconds is not None:
        records_node = not recorder.info.get("local_rank")
        SystemSampler(recorder, settings, settings.seconds, records_node).begin()
    if settings.pause_ms is None:
        return None
    pauses = GcPauses(Track(recorder.journal, "gc"), settings.pause_ms)
    recorder.pump.every(WRITE_PAUSES, pauses.write, at_end=True)
    pauses.start()
    return pauses


class SystemSampler:
    """Logs readings every ``seconds``. Everything but the constructor runs on the pump's thread."""

    def __init__(
        self, recorder: Recorder, settings: SamplerSettings, seconds: float, records_node: bool
    ) -> None:
        self._recorder = recorder
        self._settings = settings
        self._seconds = seconds
        self._records_node = records_node
        self._readings: dict[str, Reading] = {}

    def begin(self) -> None:
        """Let the pump start sampling shortly."""
        self._recorder.pump.run_later(FIRST, self._prepare)

    def _prepare(self) -> None:
        with threads.forks_blocked():
            self._readings = self._find_readings()
        # First values early, so that short runs have some too.
        first = min(FIRST, self._seconds)
        share = self._settings.share
        self._recorder.pump.every(self._seconds, self.sample, first=first, share=share)

    def _find_readings(self) -> dict[str, Reading]:
        readings: dict[str, Reading] = {}
        for find in (self._process, self._node, self._energy, self._gpu):
            try:
                readings |= find()
            except Exception as error:
                report(f"system sampler {find.__name__}", error)
        return readings

    def _process(self) -> dict[str, Reading]:
        from stepwell.telemetry.runtime import machine

        psutil = _find("psutil")
        if psutil is None:
            log_warning(
                "psutil is missing: CPU, memory, disk and network are not recorded. Install psutil."
            )
            return {}
        process = machine.ProcessReading(psutil)
        watts = self._settings.tdp_watts
        if watts is None:
            return {"process": process.read}
        estimate = machine.EstimatedEnergy(lambda: process.cpu_seconds, watts)
        return {"process": process.read, "estimated energy": estimate.read}

    def _node(self) -> dict[str, Reading]:
        from stepwell.telemetry.runtime import machine

        psutil = _find("psutil")
        if psutil is None or not self._records_node:
            return {}
        return {"node": machine.NodeReading(psutil).read}

    def _energy(self) -> dict[str, Reading]:
        from stepwell.telemetry.runtime import machine

        measured = machine.CpuEnergy()
        return {"energy": measured.read} if measured and self._records_node else {}

    def _gpu(self) -> dict[str, Reading]:
        from stepwell.telemetry.runtime import gpu

        nvml = _find("pynvml")
        if nvml is None:
            return {}
        try:
            return {"gpu": gpu.GpuReading(nvml, self._records_node).read}
        except nvml.NVMLError:
            # The library is installed without a driver, as on most machines without a GPU.
            return {}

    def sample(self) -> None:
        """Take all readings and log them at the current step."""
        values: Values = {}
        for name, read in list(self._readings.items()):
            try:
                values |= read()
            except Exception as error:
                del self._readings[name]
                report(f"system sampler {name}", error)
        if state.journal is self._recorder.journal:
            log(values)


def _find(module: str) -> Any:
    """Return an optional module, None if it is not installed."""
    try:
        return import_module(module)
    except ImportError:
        return None


@dataclass(frozen=True)
class SamplerSettings:
    """Settings from the environment; None means off. A mistake gives a warning.

    ``seconds`` is the time between two readings, ``pause_ms`` the shortest garbage collection to record,
    ``tdp_watts`` the power of all cores under load, to estimate energy. ``share`` is the share of a core
    that readings may use: little, unless the interval was set.
    """

    seconds: float | None = EVERY
    pause_ms: float | None = PAUSE_MS
    tdp_watts: float | None = None
    share: float = SMALL_SHARE

    @classmethod
    def from_environment(cls, environ: Mapping[str, str]) -> SamplerSettings:
        """Read ``STEPWELL_RUNTIME``, ``STEPWELL_GC_PAUSES`` and ``STEPWELL_TDP_WATTS``."""
        seconds = _read_number(environ, "STEPWELL_RUNTIME", EVERY, SHORTEST)
        # STEPWELL_RUNTIME=off switches pauses off too, unless they have their own setting.
        pause = None if seconds is None else PAUSE_MS
        return cls(
            seconds,
            _read_number(environ, "STEPWELL_GC_PAUSES", pause, 0.0),
            _read_number(environ, "STEPWELL_TDP_WATTS", None, 0.1),
            SMALL_SHARE if seconds == EVERY else ASKED_SHARE,
        )


def _read_number(
    environ: Mapping[str, str], name: str, default: float | None, least: float
) -> float | None:
    text = environ.get(name, "").strip().lower()
    if text in ("", "on"):
        return default
    if text == "off":
        return None
    try:
        value = float(text)
    except ValueError:
        value = math.nan
    if math.isfinite(value) and value >= least:
        return value
    warn_setting(name, text, f"off, or a number of at least {least:g}")
    return default
