"""Which process has which rank, and which are workers of which."""

from __future__ import annotations

from collections import Counter

from stepwell.importing.rows import NO_END, Process


class Family:
    """The processes of an import, each with a rank, a name of its own, and its parent if it is a worker."""

    def __init__(self, processes: list[Process]) -> None:
        self._parents = _find_parents(processes)
        self._ranks = self._assign_ranks(processes)
        self._names: dict[int, str] = {}
        used: Counter[str] = Counter()
        for process in processes:
            rank = self._ranks[id(process)]
            name = f"rank-{rank:05d}.attempt-{process.attempt}.pid-{process.pid}"
            used[name] += 1
            again = f".{used[name]}" if used[name] > 1 else ""
            self._names[id(process)] = name + again

    def rank(self, process: Process) -> int:
        """Its rank: as it was told, that of its parent, or the next free one."""
        return self._ranks[id(process)]

    def name(self, process: Process) -> str:
        """Its name within the run."""
        return self._names[id(process)]

    def rename(self, process: Process, name: str) -> None:
        """Let it have another name within the run."""
        self._names[id(process)] = name

    def parent(self, process: Process) -> Process | None:
        """The process that it is a worker of."""
        return self._parents.get(id(process))

    def world_size(self) -> int:
        """How many ranks there are, as far as was told or seen."""
        return len(set(self._ranks.values()))

    def _assign_ranks(self, processes: list[Process]) -> dict[int, int]:
        ranks = {id(p): p.rank for p in processes if p.rank is not None}
        taken = set(ranks.values())
        free = 0
        for process in sorted(processes, key=lambda p: wall(p, p.first)):
            if id(process) in ranks or id(process) in self._parents:
                continue
            while free in taken:
                free += 1
            taken.add(free)
            ranks[id(process)] = free
        for process in processes:
            self._inherit(process, ranks)
        return ranks

    def _inherit(self, process: Process, ranks: dict[int, int]) -> None:
        """Take the rank of the nearest ancestor that has one; a file may lead around in a circle."""
        passed: list[Process] = []
        above: Process | None = process
        while above is not None and id(above) not in ranks and above not in passed[:50]:
            passed.append(above)
            above = self._parents.get(id(above)) if len(passed) < 50 else None
        rank = ranks.get(id(above), 0) if above is not None else 0
        for one in passed:
            ranks[id(one)] = rank


def _find_parents(processes: list[Process]) -> dict[int, Process]:
    by_pid = {(p.host, p.attempt, p.pid): p for p in processes}
    mains = {(p.rank, p.attempt): p for p in processes if not p.is_worker}
    found: dict[int, Process] = {}
    for process in processes:
        parent = None
        if process.rank is None and process.parent_pid is not None:
            parent = by_pid.get((process.host, process.attempt, process.parent_pid))
        elif process.rank is not None and process.is_worker:
            parent = mains.get((process.rank, process.attempt))
        if parent is not None and parent is not process:
            found[id(process)] = parent
    return found


def wall(process: Process, time_ns: int) -> int:
    """A time of a process as nanoseconds since the epoch, 0 for none."""
    return max(0, time_ns + process.origin_ns) if abs(time_ns) < NO_END else 0
