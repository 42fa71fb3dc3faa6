"""Readings of the machine: its utilization, the energy used, and the time since the context was created."""

from __future__ import annotations

import os
import time
from collections.abc import Callable, Mapping
from datetime import timedelta
from typing import Any

from stepwell._core.errors import warn_once
from stepwell._core.values import number, shown
from stepwell.loggers.items.converters import CannotKeep, ConvertedItem
from stepwell.telemetry.runtime.machine import CpuEnergy, EstimatedEnergy
from stepwell.telemetry.runtime.sampler import SamplerSettings

INTENSITY = "STEPWELL_CARBON_INTENSITY"
JOULES_PER_KWH = 3.6e6
NVIDIA = "/dev/nvidiactl"
PREFIX = "system/"

Values = dict[str, float]


class Readings:
    """Readings since the creation of this object, which is when a logger's context is created."""

    def __init__(self, reads_node: bool = True) -> None:
        self._reads_node = reads_node
        self._began = time.monotonic()
        self._cpu_began = _cpu_seconds()
        self._cpu = CpuEnergy()
        self._sources: dict[str, Callable[[], Values]] | None = None
        self._gpu = _gpu_reading(reads_node) if os.path.exists(NVIDIA) else None
        if self._gpu is not None:
            self._gpu()
        self._estimate = self._estimated()

    def convert(
        self, kind: str, item: Any, identifier: str, more: Mapping[str, Any]
    ) -> list[ConvertedItem]:
        """Return the item of kind ``system``, ``carbon`` or ``execution_time``."""
        options = dict(more)
        if kind == "system":
            return [ConvertedItem(identifier, value=self.system(), meta=options)]
        if kind == "carbon":
            value, source = self.carbon(options.pop("carbon_intensity", None))
            return [ConvertedItem(identifier, value=value, meta={**options, "source": source})]
        return [ConvertedItem(identifier, value=self.duration(item), meta={"unit": "s", **options})]

    # Kinds

    def system(self) -> Values:
        """Return the current system metrics, without their prefix."""
        is_first = self._sources is None
        if self._sources is None:
            self._sources = self._find_sources()
        values: Values = {}
        for read in self._sources.values():
            values |= read()
        current = {name.removeprefix(PREFIX): value for name, value in values.items()}
        if is_first:
            # These two cover the time since the reading before, and there was none.
            passed = max(time.monotonic() - self._began, 1e-3)
            current["cpu_percent"] = (_cpu_seconds() - self._cpu_began) / passed * 100
            current.pop("node_cpu_percent", None)
        return current

    def carbon(self, intensity: Any = None) -> tuple[Values, str]:
        """Return the energy used, and emissions if the carbon intensity is known; and the sources.

        The names say whether the energy was measured, or estimated at least in part.

        Args:
            intensity: grams of CO2 per kWh of electricity; by default ``STEPWELL_CARBON_INTENSITY``.
        """
        parts, sources = self._energy()
        if not parts:
            raise CannotKeep(
                "this machine has no readable energy counter (most allow RAPL for root only, and no GPU "
                "was found). Set STEPWELL_TDP_WATTS to estimate the energy from CPU time"
            )
        joules = sum(parts.values())
        how = "estimated" if any("estimated" in name for name in parts) else "measured"
        values = {
            f"energy_{how}_joules": joules,
            f"energy_{how}_kwh": joules / JOULES_PER_KWH,
            **parts,
            "seconds": time.monotonic() - self._began,
        }
        grams = _intensity(intensity)
        if grams is not None:
            values["emissions_kg_co2"] = joules / JOULES_PER_KWH * grams / 1000
            values["carbon_intensity_g_per_kwh"] = grams
        return values, ", ".join(sources)

    def duration(self, item: Any) -> float:
        """Return a duration in seconds; without an item, the time since the context was created."""
        if item is None:
            return time.monotonic() - self._began
        seconds = item.total_seconds() if isinstance(item, timedelta) else number(item)
        if seconds is None:
            raise CannotKeep(f"the item must be a number of seconds or None, got {shown(item)}")
        return seconds

    # Sources

    def _find_sources(self) -> dict[str, Callable[[], Values]]:
        try:
            import psutil
        except ImportError:
            raise CannotKeep("psutil is missing") from None
        from stepwell.telemetry.runtime.machine import NodeReading, ProcessReading

        sources: dict[str, Callable[[], Values]] = {"process": ProcessReading(psutil).read}
        if self._reads_node:
            sources["node"] = NodeReading(psutil).read
        if self._gpu is not None:
            sources["gpu"] = self._gpu
        return sources

    def _energy(self) -> tuple[Values, list[str]]:
        """Return joules by device, and the source of each value."""
        parts: Values = {}
        sources = []
        if self._cpu and self._reads_node:
            parts["energy_cpu_measured_joules"] = sum(self._cpu.read().values())
            sources.append("measured: processor packages (RAPL)")
        elif self._estimate is not None:
            parts["energy_cpu_estimated_joules"] = sum(self._estimate().values())
            sources.append("estimated: processor time × STEPWELL_TDP_WATTS")
        gpu = {} if self._gpu is None else self._gpu()
        on_gpu = [joules for name, joules in gpu.items() if name.endswith("energy_measured_joules")]
        if on_gpu:
            parts["energy_gpu_measured_joules"] = sum(on_gpu)
            sources.append("measured: GPUs (NVML)")
        return parts, sources

    def _estimated(self) -> Callable[[], Values] | None:
        watts = SamplerSettings.from_environment(os.environ).tdp_watts
        if watts is None:
            return None
        began = _cpu_seconds()
        return EstimatedEnergy(lambda: _cpu_seconds() - began, watts).read


def _cpu_seconds() -> float:
    """Return the CPU time of this process and of its children that have ended."""
    return sum(os.times()[:4])


def _gpu_reading(reads_node: bool) -> Callable[[], Values] | None:
    try:
        import pynvml

        from stepwell.telemetry.runtime.gpu import GpuReading

        return GpuReading(pynvml, reads_node).read
    except Exception:  # no library, no driver, or no permission
        return None


def _intensity(given: Any) -> float | None:
    text = os.environ.get(INTENSITY, "").strip() if given is None else given
    if text == "":
        return None
    try:
        grams = float(text)
        if grams >= 0:
            return grams
    except (TypeError, ValueError):
        pass
    warn_once(
        INTENSITY,
        "the carbon intensity must be grams of CO2 per kWh, such as 250, got %.40r. Emissions are left out",
        text,
    )
    return None
