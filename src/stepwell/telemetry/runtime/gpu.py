"""Readings of NVIDIA GPUs through NVML, where its library and a driver are there."""

from __future__ import annotations

import os
from collections.abc import Callable, Mapping
from typing import Any

Values = dict[str, float]


class GpuReading:
    """Utilisation, memory, power, temperature and energy of the GPUs that are this process's to tell of.

    What a device does not support is left out from then on.
    """

    def __init__(
        self, nvml: Any, tells_for_node: bool, environ: Mapping[str, str] = os.environ
    ) -> None:
        nvml.nvmlInit()
        self._nvml = nvml
        count = nvml.nvmlDeviceGetCount()
        chosen = _visible(nvml, count, environ.get("CUDA_VISIBLE_DEVICES"))
        # With one device for each rank every rank tells of its own.
        mine = chosen if tells_for_node or len(chosen) == 1 < count else []
        self._devices = {index: nvml.nvmlDeviceGetHandleByIndex(index) for index in mine}
        self._missing: set[tuple[int, str]] = set()
        self._energy: dict[int, float] = {}

    def read(self) -> Values:
        """Values now; energy is counted from when the watch began."""
        values: Values = {}
        for index, device in self._devices.items():
            for name, question in self._questions(index, device).items():
                if (index, name) not in self._missing:
                    self._ask(index, name, question, values)
        return values

    def _questions(self, index: int, device: Any) -> dict[str, Callable[[], Values]]:
        nvml = self._nvml

        def utilisation() -> Values:
            return {"utilization_percent": float(nvml.nvmlDeviceGetUtilizationRates(device).gpu)}

        def memory() -> Values:
            found = nvml.nvmlDeviceGetMemoryInfo(device)
            return {
                "memory_used_bytes": float(found.used),
                "memory_total_bytes": float(found.total),
            }

        def power() -> Values:
            return {"power_watts": nvml.nvmlDeviceGetPowerUsage(device) / 1e3}

        def temperature() -> Values:
            kind = nvml.NVML_TEMPERATURE_GPU
            return {"temperature_celsius": float(nvml.nvmlDeviceGetTemperature(device, kind))}

        def energy() -> Values:
            joules = nvml.nvmlDeviceGetTotalEnergyConsumption(device) / 1e3
            return {"energy_measured_joules": joules - self._energy.setdefault(index, joules)}

        questions = (utilisation, memory, power, temperature, energy)
        return {question.__name__: question for question in questions}

    def _ask(self, index: int, name: str, question: Callable[[], Values], values: Values) -> None:
        try:
            found = question()
        except (self._nvml.NVMLError, AttributeError):
            self._missing.add((index, name))
            return
        values.update({f"system/gpu_{index}/{key}": value for key, value in found.items()})


def _visible(nvml: Any, count: int, text: str | None) -> list[int]:
    """The devices that CUDA shows this process, by NVML's numbers; all where that cannot be told."""
    if text is None:
        return list(range(count))
    found = []
    for word in (part.strip() for part in text.split(",")):
        if word.isdigit() and int(word) < count:
            found.append(int(word))
        elif word.startswith("GPU-"):
            found += [i for i in range(count) if _uuid(nvml, i).startswith(word)]
        elif word.startswith("MIG-"):
            # NVML has no utilisation of a slice; its device is the nearest.
            return list(range(count))
        else:
            # As for CUDA, what follows an invalid one does not count.
            break
    return sorted(set(found))


def _uuid(nvml: Any, index: int) -> str:
    found = nvml.nvmlDeviceGetUUID(nvml.nvmlDeviceGetHandleByIndex(index))
    return found.decode() if isinstance(found, bytes) else str(found)
