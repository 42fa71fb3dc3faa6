"""How much of a disk a run takes."""

from __future__ import annotations

import os
from pathlib import Path


def disk_bytes(path: Path) -> int:
    """What the files below a folder take, links not followed; 0 where the system does not tell."""
    total = 0
    for folder, _, files in os.walk(path):
        for name in files:
            try:
                total += os.lstat(os.path.join(folder, name)).st_blocks * 512
            except (OSError, AttributeError):
                continue
    return total
