"""Memory limits of the container that the process is in: control groups, version 2 or 1."""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path

NO_LIMIT = 1 << 60
"""Version 1 says "no limit" with a number near 2**63."""


@dataclass(frozen=True)
class Memory:
    """Of the group with the least left: what it may use, and what it uses beyond caches."""

    limit: int
    used: int


def read_memory(
    proc: Path = Path("/proc/self/cgroup"), root: Path = Path("/sys/fs/cgroup")
) -> Memory | None:
    """The tightest limit that holds for this process, or None when there is none."""
    found = [memory for folder in _folders(proc, root) if (memory := _read(folder))]
    return min(found, key=lambda memory: memory.limit - memory.used, default=None)


def _folders(proc: Path, root: Path) -> list[Path]:
    """The folder of the process's group and those above, as far as they can be seen."""
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
    # Inside of a container the path may be the host's, of which only the top is there.
    below = [part for part in path.split("/") if part not in ("", "..")]
    return [top.joinpath(*below[:count]) for count in range(len(below), -1, -1)]


def _read(folder: Path) -> Memory | None:
    limit = _number(folder / "memory.max", folder / "memory.limit_in_bytes")
    used = _number(folder / "memory.current", folder / "memory.usage_in_bytes")
    if limit is None or used is None or limit >= NO_LIMIT:
        return None
    # What files are cached goes when it is needed.
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
    found = dict(line.split(" ", 1) for line in lines if " " in line)
    text = found.get("total_inactive_file", found.get("inactive_file", "0"))
    return int(text) if text.isdigit() else 0
