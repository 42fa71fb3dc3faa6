"""Readings of NVIDIA GPUs through NVML, if its library and a driver are installed."""

from __future__ import annotations

import os
from collections.abc import Callable, Mapping
from typing import Any

Values = dict[str, float]


class GpuReading:
    """Utilisation, memory, power, temperature and energy of the GPUs that this process records.

    Values that a device does not support are skipped after the first failure.
    """

    def __init__(
        self, nvml: Any, records_node: bool, environ: Mapping[str, str] = os.environ
    ) -> None:
        nvml.nvmlInit()
        self._nvml = nvml
        count = nvml.nvmlDeviceGetCount()
        chosen = _visible(nvml, count, environ.get("CUDA_VISIBLE_DEVICES"))
        # With one device per rank, every rank records its own.
        mine = chosen if records_node or len(chosen) == 1 < count else []
        self._devices = {index: nvml.nvmlDeviceGetHandleByIndex(index) for index in mine}
        self._missing: set[tuple[int, str]] = set()
        self._energy: dict[int, float] = {}

    def read(self) -> Values:
        """Return current values; energy counts from when sampling began."""
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
            info = nvml.nvmlDeviceGetMemoryInfo(device)
            return {
                "memory_used_bytes": float(info.used),
                "memory_total_bytes": float(info.total),
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
            readings = question()
        except (self._nvml.NVMLError, AttributeError):
            self._missing.add((index, name))
            return
        values.update({f"system/gpu_{index}/{key}": value for key, value in readings.items()})


def _visible(nvml: Any, count: int, text: str | None) -> list[int]:
    """Return the NVML indices of the devices visible to this process; all if they cannot be determined."""
    if text is None:
        return list(range(count))
    indices: list[int] = []
    for word in (part.strip() for part in text.split(",")):
        if word.isdigit() and int(word) < count:
            indices.append(int(word))
        elif word.startswith("GPU-"):
            indices += [i for i in range(count) if _uuid(nvml, i).startswith(word)]
        elif word.startswith("MIG-"):
            # NVML has no utilisation of a slice: use the devices.
            return list(range(count))
        else:
            # Like CUDA, ignore everything after an invalid entry.
            break
    return sorted(set(indices))


def _uuid(nvml: Any, index: int) -> str:
    uuid = nvml.nvmlDeviceGetUUID(nvml.nvmlDeviceGetHandleByIndex(index))
    return uuid.decode() if isinstance(uuid, bytes) else str(uuid)
