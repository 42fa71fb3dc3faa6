"""Energy that processors used: measured by their own counters, or estimated when that is asked for."""

from __future__ import annotations

import os
from collections.abc import Callable
from pathlib import Path

Values = dict[str, float]
POWERCAP = Path("/sys/class/powercap")


class CpuEnergy:
    """The RAPL counters of the processor packages, which most machines show to root alone."""

    def __init__(self, root: Path = POWERCAP) -> None:
        self._counters = [c for folder in _packages(root) if (c := _Counter.at(folder))]

    def __bool__(self) -> bool:
        return bool(self._counters)

    def read(self) -> Values:
        """Joules of all packages since the watch began."""
        joules = sum(counter.read() for counter in self._counters)
        return {"system/energy_cpu_measured_joules": joules}


class EstimatedEnergy:
    """Processor time times the share of one core in what all of them use under load."""

    def __init__(self, cpu_seconds: Callable[[], float], tdp_watts: float) -> None:
        self._cpu_seconds = cpu_seconds
        self._watts = tdp_watts / (os.cpu_count() or 1)

    def read(self) -> Values:
        """Joules of this process and its children since the watch began."""
        return {"system/energy_cpu_estimated_joules": self._cpu_seconds() * self._watts}


class _Counter:
    """Microjoules that begin anew when they reach their range."""

    def __init__(self, path: Path, range_uj: int, latest: int) -> None:
        self._path = path
        self._range = range_uj
        self._latest = latest
        self._total = 0

    @classmethod
    def at(cls, folder: Path) -> _Counter | None:
        try:
            range_uj = int((folder / "max_energy_range_uj").read_text())
            return cls(folder / "energy_uj", range_uj, int((folder / "energy_uj").read_text()))
        except (OSError, ValueError):
            return None

    def read(self) -> float:
        now = int(self._path.read_text())
        grown = now - self._latest
        self._total += grown if grown >= 0 else grown + self._range
        self._latest = now
        return self._total / 1e6


def _packages(root: Path) -> list[Path]:
    """Whole packages only: cores and memory controllers within them are counted there already."""
    try:
        folders = sorted(root.glob("intel-rapl:*"))
    except OSError:
        return []
    return [folder for folder in folders if folder.name.count(":") == 1]
