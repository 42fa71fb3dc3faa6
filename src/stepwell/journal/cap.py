"""The size cap of the archives of one process.

``STEPWELL_MAX_BYTES`` (such as ``500M`` or ``20G``; no limit by default) sets the cap. At the cap,
``STEPWELL_DROP=oldest`` (default) removes the oldest spans, and ``newest`` stops recording spans. Metrics and
events are always kept.
"""

from __future__ import annotations

import os
import re
from collections.abc import Mapping
from pathlib import Path
from typing import TYPE_CHECKING

from stepwell._core.environment import warn_setting
from stepwell._core.errors import warn_once
from stepwell.journal.archive import ROLL_BYTES, archive_files, read_blocks

if TYPE_CHECKING:
    from stepwell.journal.journal import Journal

OLDEST, NEWEST = "oldest", "newest"
UNITS = {"": 1, "K": 1 << 10, "M": 1 << 20, "G": 1 << 30, "T": 1 << 40}


class SizeCap:
    """The limit of the archives of one process, and the bytes used."""

    def __init__(self, limit: int | None, drop: str = OLDEST) -> None:
        self.limit = limit
        self.drop = drop
        self.used = 0
        self.roll_bytes = ROLL_BYTES if limit is None else max(1 << 16, min(ROLL_BYTES, limit // 8))

    @classmethod
    def from_environment(cls, environ: Mapping[str, str] = os.environ) -> SizeCap:
        """Return the cap from the environment; a wrong value gives a warning."""
        drop = environ.get("STEPWELL_DROP", "").strip().lower() or OLDEST
        if drop not in (OLDEST, NEWEST):
            warn_setting("STEPWELL_DROP", drop, f"{OLDEST} (the default) or {NEWEST}")
            drop = OLDEST
        size = environ.get("STEPWELL_MAX_BYTES", "")
        try:
            return cls(parse_size(size), drop)
        except ValueError:
            warn_setting("STEPWELL_MAX_BYTES", size, "a size such as 500M or 20G")
            return cls(None, drop)

    def add(self, size: int) -> None:
        """Note that an archive grew."""
        self.used += size

    def enforce(self, folder: Path, journal: Journal) -> None:
        """Bring the archives below the limit, or stop recording spans."""
        if self.limit is None or self.used <= self.limit:
            return
        if self.drop == NEWEST:
            journal.capped = frozenset({"spans", "attributes"})
        else:
            self._remove_oldest(folder, journal)
        warn_once(
            f"cap {folder}",
            "The journal reached STEPWELL_MAX_BYTES=%d. From now on the %s spans are dropped.",
            self.limit,
            self.drop,
        )

    def _remove_oldest(self, folder: Path, journal: Journal) -> None:
        # The last file is being written.
        for path in archive_files(folder, "spans")[:-1]:
            if self.limit is None or self.used <= self.limit:
                return
            headers = [b.header for b in read_blocks(path) if b.header["kind"] == "spans"]
            journal.drops["spans"] += sum(header["spans"] for header in headers)
            self.used -= path.stat().st_size
            path.unlink()


def parse_size(text: str) -> int | None:
    """Return ``"20G"`` in bytes; None for "", 0 or ``off``. Raise ValueError if it is not a size."""
    if text.strip().lower() in ("", "0", "off", "none"):
        return None
    match = re.fullmatch(r"\s*(\d+(?:\.\d+)?)\s*([KMGT]?)(?:i?B)?\s*", text, re.IGNORECASE)
    if match is None:
        raise ValueError(f"must be a size such as 500M or 20G, got {text!r}")
    return int(float(match[1]) * UNITS[match[2].upper()]) or None
