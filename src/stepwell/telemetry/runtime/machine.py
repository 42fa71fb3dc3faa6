"""Readings of the process and its children, of the machine, and of CPU energy."""

from __future__ import annotations

import os
import time
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import Any

Values = dict[str, float]
PROC = Path("/proc")

NO_LIMIT = 1 << 60
"""Version 1 of control groups represents "no limit" by a number near 2**63."""
POWERCAP = Path("/sys/class/powercap")


class ProcessReading:
    """CPU, memory and disk of this process and its descendants.

    The operating system adds CPU time and bytes of ended children to their parent, so the sums never fall.
    """

    def __init__(self, psutil: Any) -> None:
        self._psutil = psutil
        self._own = psutil.Process()
        self._descendants: dict[int, Any] = {}
        self._began = self._latest = self._tree()
        self._time = time.monotonic()

    @property
    def cpu_seconds(self) -> float:
        """CPU seconds since sampling began, as of the latest reading."""
        return max(0.0, self._latest["cpu"] - self._began["cpu"])

    def read(self) -> Values:
        """Return current values; counters count from when sampling began."""
        before, now = self._latest, time.monotonic()
        current = self._latest = self._tree()
        passed = max(now - self._time, 1e-9)
        self._time = now
        values = {
            "system/cpu_percent": max(0.0, current["cpu"] - before["cpu"]) / passed * 100,
            "system/memory_rss_bytes": current["rss"],
            "system/processes": current["processes"],
            "system/threads": current["threads"],
        }
        if "read" in current:
            for way in ("read", "write"):
                moved = current[way] - self._began.get(way, 0.0)
                values[f"system/disk_{way}_bytes"] = max(0.0, moved)
        return values

    def _tree(self) -> Values:
        total: Values = {"cpu": 0.0, "rss": 0.0, "processes": 0.0, "threads": 0.0}
        for process in self._members():
            try:
                self._add(process, total)
            except (self._psutil.Error, OSError):
                # It has just ended, or belongs to another user.
                continue
        return total

    def _add(self, process: Any, total: Values) -> None:
        with process.oneshot():
            cpu, memory = process.cpu_times(), process.memory_info()
            threads = process.num_threads()
            disk = process.io_counters() if hasattr(process, "io_counters") else None
        total["cpu"] += cpu.user + cpu.system
        total["cpu"] += getattr(cpu, "children_user", 0.0) + getattr(cpu, "children_system", 0.0)
        total["rss"] += memory.rss
        total["processes"] += 1
        total["threads"] += threads
        if disk is not None:
            total["read"] = total.get("read", 0.0) + disk.read_bytes
            total["write"] = total.get("write", 0.0) + disk.write_bytes

    def _members(self) -> list[Any]:
        pids = descendants(self._own.pid)
        if pids is None:
            return [self._own, *self._own.children(recursive=True)]
        self._descendants = {pid: self._descendants.get(pid) or self._find(pid) for pid in pids}
        return [
            self._own,
            *(process for process in self._descendants.values() if process is not None),
        ]

    def _find(self, pid: int) -> Any:
        try:
            return self._psutil.Process(pid)
        except self._psutil.Error:
            return None


def descendants(pid: int, proc: Path = PROC) -> list[int] | None:
    """Return the descendants of a process, None if the kernel has no list of children.

    Much faster than checking the parent of every process of a large machine.
    """
    pids: list[int] = []
    ahead = [pid]
    while ahead:
        try:
            tasks = os.listdir(proc / str(ahead[-1]) / "task")
        except OSError:
            tasks = []
        parent = ahead.pop()
        for task in tasks:
            try:
                text = (proc / str(parent) / "task" / task / "children").read_text()
            except FileNotFoundError:
                if parent == pid and task == str(pid):
                    return None
                continue
            except OSError:
                continue
            children = [int(word) for word in text.split()]
            pids += children
            ahead += children
    return pids


class NodeReading:
    """CPU, memory and network of the machine or container. Recorded by one rank of each node."""

    def __init__(self, psutil: Any) -> None:
        self._psutil = psutil
        self._sent = self._received = 0.0
        psutil.cpu_percent(None)
        self._sent, self._received = self._network()

    def read(self) -> Values:
        """Return current values; traffic counts from when sampling began."""
        memory = self._psutil.virtual_memory()
        sent, received = self._network()
        values = {
            "system/node_cpu_percent": float(self._psutil.cpu_percent(None)),
            "system/memory_total_bytes": float(memory.total),
            "system/memory_available_bytes": float(memory.available),
            "system/network_sent_bytes": max(0.0, sent - self._sent),
            "system/network_received_bytes": max(0.0, received - self._received),
        }
        group = read_memory()
        if group is not None:
            left = max(0, group.limit - group.used)
            values["system/memory_limit_bytes"] = float(group.limit)
            values["system/memory_available_bytes"] = float(min(memory.available, left))
        return values

    def _network(self) -> tuple[float, float]:
        # psutil's correction of counters that overflow takes a lock, which a fork could copy while it is
        # held.
        counters = self._psutil.net_io_counters(pernic=True, nowrap=False)
        moved = [counter for name, counter in counters.items() if name != "lo"]
        return sum(c.bytes_sent for c in moved), sum(c.bytes_recv for c in moved)


@dataclass(frozen=True)
class Memory:
    """Memory limit and use (without caches) of the control group with the least memory left."""

    limit: int
    used: int


def read_memory(
    proc: Path = Path("/proc/self/cgroup"), root: Path = Path("/sys/fs/cgroup")
) -> Memory | None:
    """Return the tightest memory limit of this process, or None without one."""
    limits = [memory for folder in _folders(proc, root) if (memory := _read(folder))]
    return min(limits, key=lambda memory: memory.limit - memory.used, default=None)


def _folders(proc: Path, root: Path) -> list[Path]:
    """Return the folder of the process's control group and those above, as far as they are visible."""
    try:
        lines = proc.read_text().splitlines()
    except OSError:
        return []
    for number, controllers, path in (line.split(":", 2) for line in lines if line.count(":") > 1):
        if "memory" in controllers.split(","):
            return _upwards(root / "memory", path)
        if number == "0" and (root / "cgroup.controllers").exists():
            return _upwards(root, path)
    return []


def _upwards(top: Path, path: str) -> list[Path]:
    # In a container the path may be that of the host, of which only the top exists.
    below = [part for part in path.split("/") if part not in ("", "..")]
    return [top.joinpath(*below[:count]) for count in range(len(below), -1, -1)]


def _read(folder: Path) -> Memory | None:
    limit = _number(folder / "memory.max", folder / "memory.limit_in_bytes")
    used = _number(folder / "memory.current", folder / "memory.usage_in_bytes")
    if limit is None or used is None or limit >= NO_LIMIT:
        return None
    # The file cache is freed when memory is needed.
    return Memory(limit, max(0, used - _inactive_file(folder / "memory.stat")))


def _number(*paths: Path) -> int | None:
    for path in paths:
        try:
            return int(path.read_text())
        except (OSError, ValueError):
            continue
    return None


def _inactive_file(path: Path) -> int:
    try:
        lines = path.read_text().splitlines()
    except OSError:
        return 0
    stats = dict(line.split(" ", 1) for line in lines if " " in line)
    text = stats.get("total_inactive_file", stats.get("inactive_file", "0"))
    return int(text) if text.isdigit() else 0


class CpuEnergy:
    """Energy of the CPU packages from their RAPL counters, which only root can read on most machines."""

    def __init__(self, root: Path = POWERCAP) -> None:
        self._counters = [c for folder in _packages(root) if (c := _Counter.at(folder))]

    def __bool__(self) -> bool:
        return bool(self._counters)

    def read(self) -> Values:
        """Return the joules of all packages since sampling began."""
        joules = sum(counter.read() for counter in self._counters)
        return {"system/energy_cpu_measured_joules": joules}


class EstimatedEnergy:
    """Estimated energy: CPU seconds times the power of one core under load."""

    def __init__(self, cpu_seconds: Callable[[], float], tdp_watts: float) -> None:
        self._cpu_seconds = cpu_seconds
        self._watts = tdp_watts / (os.cpu_count() or 1)

    def read(self) -> Values:
        """Return the joules of this process and its children since sampling began."""
        return {"system/energy_cpu_estimated_joules": self._cpu_seconds() * self._watts}


class _Counter:
    """A counter of microjoules that starts over when it reaches its range."""

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
    """Return the folders of whole packages, which include their cores and memory controllers."""
    try:
        folders = sorted(root.glob("intel-rapl:*"))
    except OSError:
        return []
    return [folder for folder in folders if folder.name.count(":") == 1]
