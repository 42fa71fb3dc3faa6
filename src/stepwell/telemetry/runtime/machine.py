"""Readings of the process with its children, and of the machine they run on, through psutil."""

from __future__ import annotations

import os
import time
from pathlib import Path
from typing import Any

from stepwell.telemetry.runtime.cgroup import read_memory

Values = dict[str, float]
PROC = Path("/proc")


class ProcessReading:
    """This process and all that descend from it, workers included: processor, memory, disk.

    Processor time and bytes of children that have ended are in their parent's account, so the sums
    never fall when a worker ends.
    """

    def __init__(self, psutil: Any) -> None:
        self._psutil = psutil
        self._own = psutil.Process()
        self._known: dict[int, Any] = {}
        self._began = self._latest = self._tree()
        self._time = time.monotonic()

    @property
    def cpu_seconds(self) -> float:
        """Processor time since the watch began, as of the latest reading."""
        return max(0.0, self._latest["cpu"] - self._began["cpu"])

    def read(self) -> Values:
        """Values now; what is counted is counted from when the watch began."""
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
                # It ended just now, or is somebody else's.
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
        self._known = {pid: self._known.get(pid) or self._find(pid) for pid in pids}
        return [self._own, *(process for process in self._known.values() if process is not None)]

    def _find(self, pid: int) -> Any:
        try:
            return self._psutil.Process(pid)
        except self._psutil.Error:
            return None


def descendants(pid: int, proc: Path = PROC) -> list[int] | None:
    """All that descend from a process, where the kernel has a list; None where it has none.

    Much quicker than to look at every process of a large machine for its parent.
    """
    found: list[int] = []
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
            found += children
            ahead += children
    return found


class NodeReading:
    """The machine, or the container, with everything that runs there: one rank of a node tells."""

    def __init__(self, psutil: Any) -> None:
        self._psutil = psutil
        self._sent = self._received = 0.0
        psutil.cpu_percent(None)
        self._sent, self._received = self._network()

    def read(self) -> Values:
        """Values now; traffic is counted from when the watch began."""
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
        # Its own correction of counters that begin anew takes a lock, which a fork could catch.
        counters = self._psutil.net_io_counters(pernic=True, nowrap=False)
        moved = [counter for name, counter in counters.items() if name != "lo"]
        return sum(c.bytes_sent for c in moved), sum(c.bytes_recv for c in moved)
