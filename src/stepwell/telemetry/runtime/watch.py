"""The watch itself: which readings there are, and when they are taken and logged."""

from __future__ import annotations

import os
from collections.abc import Callable
from typing import TYPE_CHECKING, Any

from stepwell.journal import forks
from stepwell.journal.errors import report, say
from stepwell.journal.metrics import log
from stepwell.journal.state import state
from stepwell.journal.track import Track
from stepwell.telemetry.runtime.pauses import Pauses
from stepwell.telemetry.runtime.settings import Settings

if TYPE_CHECKING:
    from stepwell.telemetry.recorder import Recorder

Values = dict[str, float]
Reading = Callable[[], Values]
FIRST = 1.0
"""Seconds after which the watch begins, so that what is over at once pays nothing."""
WRITE_PAUSES = 1.0
PREFIX = "system/"
"""How the names of all these metrics begin."""


def start_watch(recorder: Recorder) -> Pauses | None:
    """Watch this process for as long as its recorder is open.

    What it returns, if anything, is to be stopped before the recorder is closed.
    """
    settings = Settings.from_environment(os.environ)
    if settings.seconds is not None:
        tells_for_node = not recorder.about.get("local_rank")
        Watch(recorder, settings, settings.seconds, tells_for_node).begin()
    if settings.pause_ms is None:
        return None
    pauses = Pauses(Track(recorder.journal, "gc"), settings.pause_ms)
    recorder.pump.every(WRITE_PAUSES, pauses.write, at_end=True)
    pauses.start()
    return pauses


class Watch:
    """Logs readings every so many seconds. All but its making happens on the pump's thread."""

    def __init__(
        self, recorder: Recorder, settings: Settings, seconds: float, tells_for_node: bool
    ) -> None:
        self._recorder = recorder
        self._settings = settings
        self._seconds = seconds
        self._tells_for_node = tells_for_node
        self._readings: dict[str, Reading] = {}

    def begin(self) -> None:
        """Have the pump begin shortly."""
        self._recorder.pump.run_later(FIRST, self._prepare)

    def _prepare(self) -> None:
        with forks.held_off():
            self._readings = self._find_readings()
        # The first values soon: a short run has some too.
        first = min(FIRST, self._seconds)
        share = self._settings.share
        self._recorder.pump.every(self._seconds, self.sample, first=first, share=share)

    def _find_readings(self) -> dict[str, Reading]:
        found: dict[str, Reading] = {}
        for find in (self._process, self._node, self._energy, self._gpu):
            try:
                found |= find()
            except Exception as error:
                report(f"runtime watch {find.__name__}", error)
        return found

    def _process(self) -> dict[str, Reading]:
        from stepwell.telemetry.runtime import energy, machine

        psutil = _find_psutil()
        if psutil is None:
            say("psutil is missing: processor, memory, disk and network are not watched")
            return {}
        process = machine.ProcessReading(psutil)
        watts = self._settings.tdp_watts
        if watts is None:
            return {"process": process.read}
        estimate = energy.EstimatedEnergy(lambda: process.cpu_seconds, watts)
        return {"process": process.read, "estimated energy": estimate.read}

    def _node(self) -> dict[str, Reading]:
        from stepwell.telemetry.runtime import machine

        psutil = _find_psutil()
        if psutil is None or not self._tells_for_node:
            return {}
        return {"node": machine.NodeReading(psutil).read}

    def _energy(self) -> dict[str, Reading]:
        from stepwell.telemetry.runtime import energy

        measured = energy.CpuEnergy()
        return {"energy": measured.read} if measured and self._tells_for_node else {}

    def _gpu(self) -> dict[str, Reading]:
        from stepwell.telemetry.runtime import gpu

        nvml = _find_nvml()
        if nvml is None:
            return {}
        try:
            return {"gpu": gpu.GpuReading(nvml, self._tells_for_node).read}
        except nvml.NVMLError:
            # The library without a driver, as on most machines without a GPU.
            return {}

    def sample(self) -> None:
        """Take all readings and log them at the step that it is now."""
        values: Values = {}
        for name, read in list(self._readings.items()):
            try:
                values |= read()
            except Exception as error:
                del self._readings[name]
                report(f"runtime watch {name}", error)
        if state.journal is self._recorder.journal:
            log(values)


def _find_psutil() -> Any:
    try:
        import psutil
    except ImportError:
        return None
    return psutil


def _find_nvml() -> Any:
    try:
        import pynvml
    except ImportError:
        return None
    return pynvml
