"""What the machine says when it is asked: how busy it is, what energy was used, how much time has passed."""

from __future__ import annotations

import os
import time
from collections.abc import Callable, Mapping
from datetime import timedelta
from typing import Any

from stepwell.journal.errors import warn_once
from stepwell.journal.values import number, shown
from stepwell.loggers.items.making import CannotKeep, Item
from stepwell.telemetry.runtime.energy import CpuEnergy, EstimatedEnergy
from stepwell.telemetry.runtime.settings import Settings

INTENSITY = "STEPWELL_CARBON_INTENSITY"
JOULES_PER_KWH = 3.6e6
NVIDIA = "/dev/nvidiactl"
PREFIX = "system/"

Values = dict[str, float]


class Readings:
    """Begins when a logger's context is created: energy and time are counted from then on."""

    def __init__(self, tells_for_node: bool = True) -> None:
        self._tells_for_node = tells_for_node
        self._began = time.monotonic()
        self._cpu_began = _cpu_seconds()
        self._cpu = CpuEnergy()
        self._sources: dict[str, Callable[[], Values]] | None = None
        self._gpu = _gpu_reading(tells_for_node) if os.path.exists(NVIDIA) else None
        if self._gpu is not None:
            self._gpu()
        self._estimate = self._estimated()

    def made_of(self, kind: str, item: Any, identifier: str, more: Mapping[str, Any]) -> list[Item]:
        """One of these kinds as a thing to record."""
        options = dict(more)
        if kind == "system":
            return [Item(identifier, value=self.system(), meta=options)]
        if kind == "carbon":
            value, source = self.carbon(options.pop("carbon_intensity", None))
            return [Item(identifier, value=value, meta={**options, "source": source})]
        return [Item(identifier, value=self.duration(item), meta={"unit": "s", **options})]

    # What can be asked

    def system(self) -> Values:
        """The values of the runtime watch, without its prefix, as they are now."""
        is_first = self._sources is None
        if self._sources is None:
            self._sources = self._find_sources()
        values: Values = {}
        for read in self._sources.values():
            values |= read()
        found = {name.removeprefix(PREFIX): value for name, value in values.items()}
        if is_first:
            # These two look at the time since the reading before, and there was none.
            passed = max(time.monotonic() - self._began, 1e-3)
            found["cpu_percent"] = (_cpu_seconds() - self._cpu_began) / passed * 100
            found.pop("node_cpu_percent", None)
        return found

    def carbon(self, intensity: Any = None) -> tuple[Values, str]:
        """Energy since the beginning, and where it is known from; emissions where that is told.

        The names say whether it was measured, or estimated at least in part.

        ``intensity`` is how many grams of CO2 a kWh of this place's electricity stands for; else
        ``STEPWELL_CARBON_INTENSITY``.
        """
        parts, sources = self._energy()
        if not parts:
            raise CannotKeep(
                "this machine shows no counter of energy (RAPL is for root alone on most, and no GPU "
                "was found). With STEPWELL_TDP_WATTS=… it is estimated from processor time"
            )
        joules = sum(parts.values())
        how = "estimated" if any("estimated" in name for name in parts) else "measured"
        found = {
            f"energy_{how}_joules": joules,
            f"energy_{how}_kwh": joules / JOULES_PER_KWH,
            **parts,
            "seconds": time.monotonic() - self._began,
        }
        grams = _intensity(intensity)
        if grams is not None:
            found["emissions_kg_co2"] = joules / JOULES_PER_KWH * grams / 1000
            found["carbon_intensity_g_per_kwh"] = grams
        return found, ", ".join(sources)

    def duration(self, item: Any) -> float:
        """A duration in seconds; without one, the time since the beginning."""
        if item is None:
            return time.monotonic() - self._began
        seconds = item.total_seconds() if isinstance(item, timedelta) else number(item)
        if seconds is None:
            raise CannotKeep(f"a number of seconds is needed, or nothing, not {shown(item)}")
        return seconds

    # Where it comes from

    def _find_sources(self) -> dict[str, Callable[[], Values]]:
        try:
            import psutil
        except ImportError:
            raise CannotKeep("psutil is missing") from None
        from stepwell.telemetry.runtime.machine import NodeReading, ProcessReading

        sources: dict[str, Callable[[], Values]] = {"process": ProcessReading(psutil).read}
        if self._tells_for_node:
            sources["node"] = NodeReading(psutil).read
        if self._gpu is not None:
            sources["gpu"] = self._gpu
        return sources

    def _energy(self) -> tuple[Values, list[str]]:
        """Joules by where they were used, and how each of them is known."""
        parts: Values = {}
        sources = []
        if self._cpu and self._tells_for_node:
            parts["energy_cpu_measured_joules"] = sum(self._cpu.read().values())
            sources.append("measured: processor packages (RAPL)")
        elif self._estimate is not None:
            parts["energy_cpu_estimated_joules"] = sum(self._estimate().values())
            sources.append("estimated: processor time × STEPWELL_TDP_WATTS")
        on_gpu = [] if self._gpu is None else _energies(self._gpu())
        if on_gpu:
            parts["energy_gpu_measured_joules"] = sum(on_gpu)
            sources.append("measured: GPUs (NVML)")
        return parts, sources

    def _estimated(self) -> Callable[[], Values] | None:
        watts = Settings.from_environment(os.environ).tdp_watts
        if watts is None:
            return None
        began = _cpu_seconds()
        return EstimatedEnergy(lambda: _cpu_seconds() - began, watts).read


def _cpu_seconds() -> float:
    """Processor time of this process and of its children that have ended."""
    return sum(os.times()[:4])


def _energies(values: Values) -> list[float]:
    return [value for name, value in values.items() if name.endswith("energy_measured_joules")]


def _gpu_reading(tells_for_node: bool) -> Callable[[], Values] | None:
    try:
        import pynvml

        from stepwell.telemetry.runtime.gpu import GpuReading

        return GpuReading(pynvml, tells_for_node).read
    except Exception:  # no library, no driver, or one that is not allowed
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
        "the carbon intensity is %.40r: write grams of CO2 per kWh, such as 250; emissions are left out",
        text,
    )
    return None
