"""A stand-in for NVML: two GPUs that answer as NVIDIA's library would."""

from __future__ import annotations

from types import ModuleType, SimpleNamespace
from typing import Any

GB = 1 << 30


class FakeError(Exception):
    pass


class FakeNvml(ModuleType):
    """Two GPUs; the second knows neither its power nor its energy."""

    NVMLError = FakeError
    NVML_TEMPERATURE_GPU = 0

    def __init__(self) -> None:
        super().__init__("pynvml")
        self.energy = 5_000_000
        self.asked: list[str] = []

    def nvmlInit(self) -> None:
        pass

    def nvmlDeviceGetCount(self) -> int:
        return 2

    def nvmlDeviceGetHandleByIndex(self, index: int) -> int:
        return index

    def nvmlDeviceGetUUID(self, device: int) -> bytes:
        return f"GPU-{'ab'[device]}1234".encode()

    def nvmlDeviceGetUtilizationRates(self, device: int) -> Any:
        return SimpleNamespace(gpu=70 + device, memory=30)

    def nvmlDeviceGetMemoryInfo(self, device: int) -> Any:
        return SimpleNamespace(used=3 * GB, total=16 * GB)

    def nvmlDeviceGetPowerUsage(self, device: int) -> int:
        self.asked.append(f"power {device}")
        if device == 1:
            raise FakeError
        return 250_500

    def nvmlDeviceGetTemperature(self, device: int, sensor: int) -> int:
        return 60 + device

    def nvmlDeviceGetTotalEnergyConsumption(self, device: int) -> int:
        if device == 1:
            raise FakeError
        return self.energy
