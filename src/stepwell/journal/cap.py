"""The size cap: how much one process may keep, and what goes when it is more.

``STEPWELL_MAX_BYTES`` (such as ``500M`` or ``20G``; none by default) bounds the archives of a process.
``STEPWELL_DROP=oldest`` (default) then removes the oldest spans; ``newest`` stops recording spans. Metrics
and events are kept either way.
"""

from __future__ import annotations

import os
import re
from collections.abc import Mapping
from pathlib import Path
from typing import TYPE_CHECKING

from stepwell.journal.archive import ROLL_BYTES, archive_files, read_frames
from stepwell.journal.errors import StepwellError, warn_once

if TYPE_CHECKING:
    from stepwell.journal.journal import Journal

UNITS = {"": 1, "K": 1 << 10, "M": 1 << 20, "G": 1 << 30, "T": 1 << 40}


class SizeCap:
    """Bytes allowed and bytes used by the archives of one process."""

    def __init__(self, limit: int | None, drop: str = "oldest") -> None:
        self.limit = limit
        self.drop = drop
        self.used = 0
        self.roll_bytes = ROLL_BYTES if limit is None else max(1 << 16, min(ROLL_BYTES, limit // 8))

    @classmethod
    def from_environment(cls, environ: Mapping[str, str] = os.environ) -> SizeCap:
        """The cap that the environment asks for; a wrong word is refused by name."""
        drop = environ.get("STEPWELL_DROP") or "oldest"
        if drop not in ("oldest", "newest"):
            raise StepwellError(f"STEPWELL_DROP is {drop!r}: write oldest or newest")
        return cls(parse_size(environ.get("STEPWELL_MAX_BYTES", "")), drop)

    def add(self, size: int) -> None:
        """Note that an archive grew."""
        self.used += size

    def enforce(self, folder: Path, journal: Journal) -> None:
        """Bring the archives below the limit, or stop recording spans."""
        if self.limit is None or self.used <= self.limit:
            return
        if self.drop == "newest":
            journal.capped = frozenset({"spans", "attributes"})
        else:
            self._remove_oldest(folder, journal)
        warn_once(
            f"cap {folder}",
            "the journal reached STEPWELL_MAX_BYTES=%d: dropping the %s spans from here on",
            self.limit,
            self.drop,
        )

    def _remove_oldest(self, folder: Path, journal: Journal) -> None:
        # The newest file is still being written.
        for path in archive_files(folder, "spans")[:-1]:
            if self.limit is None or self.used <= self.limit:
                return
            frames = [f.header for f in read_frames(path) if f.header["kind"] == "spans"]
            journal.drops["spans"] += sum(header["spans"] for header in frames)
            self.used -= path.stat().st_size
            path.unlink()


def parse_size(text: str) -> int | None:
    """``"20G"`` in bytes; None for nothing, 0 or ``off``."""
    if text.strip().lower() in ("", "0", "off", "none"):
        return None
    match = re.fullmatch(r"\s*(\d+(?:\.\d+)?)\s*([KMGT]?)(?:i?B)?\s*", text, re.IGNORECASE)
    if match is None:
        raise StepwellError(f"STEPWELL_MAX_BYTES is {text!r}: write a size such as 500M or 20G")
    return int(float(match[1]) * UNITS[match[2].upper()]) or None
