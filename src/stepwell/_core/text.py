"""Durations, numbers and lists as text, in one format for messages, commands and reports."""

from __future__ import annotations

import math
from collections.abc import Sequence


def duration(ns: float) -> str:
    """Return a duration with three significant digits: 1.23 s, 45.6 ms, 2 h 03 min."""
    seconds = ns / 1e9
    if seconds < 0.9995e-3:
        return f"{seconds * 1e6:.3g} µs"
    # The limits are where three digits would round up to 1000.
    if seconds < 0.9995:
        return f"{seconds * 1e3:.3g} ms"
    if seconds < 59.95:
        return f"{seconds:.3g} s"
    whole = round(seconds)
    if whole < 3600:
        return f"{whole // 60} min {whole % 60:02d} s"
    return f"{whole // 3600} h {whole % 3600 // 60:02d} min"


def number(value: float) -> str:
    """Return a number with three significant digits; from 1,000 to a million as a whole number: 4,096."""
    return f"{value:,.0f}" if 999.5 <= abs(value) < 1e6 else f"{value:.3g}"


def rate(value: float) -> str:
    """Return a number per second with three significant digits, and commas between thousands."""
    digits = 2 - math.floor(math.log10(abs(value))) if value else 0
    rounded = round(value, digits)
    return f"{rounded:,.{max(0, digits)}f}" if abs(value) >= 0.001 else f"{value:.3g}"


def size(count: float) -> str:
    """Return a number of bytes with three significant digits: 1.23 MB."""
    for unit in ("B", "kB", "MB", "GB"):
        if count < 999.5:
            return f"{count:.3g} {unit}"
        count /= 1000
    return f"{count:.3g} TB"


def percent(share: float) -> str:
    """Return a share of one in percent, with a decimal below 10 %: 41 %, 4.2 %, <0.1 %."""
    if 0 < share < 0.0005:
        return "<0.1 %"
    return f"{share * 100:.1f} %" if 0 < share < 0.0995 else f"{share * 100:.0f} %"


def listed(steps: Sequence[int]) -> str:
    """Return ``step 4`` or ``steps 4, 9 and 14``; of more than three steps only the first."""
    numbers = [f"{step}" for step in steps[:3]]
    if len(steps) > 3:
        return f"steps {', '.join(numbers)}, …"
    return f"{'step' if len(numbers) == 1 else 'steps'} {named(numbers)}"


def ranks_listed(ranks: Sequence[int]) -> str:
    """Return ``rank 4``, ``ranks 4 and 9`` or ``ranks 0, 1, 2, 3 and 12 more``."""
    return f"{'rank' if len(ranks) == 1 else 'ranks'} {named([f'{rank}' for rank in ranks])}"


def named(names: Sequence[str]) -> str:
    """Return the first four names, and how many more there are."""
    if len(names) > 4:
        return f"{', '.join(names[:4])} and {len(names) - 4} more"
    return names[0] if len(names) == 1 else f"{', '.join(names[:-1])} and {names[-1]}"


def ordinal(value: int) -> str:
    """Return 2nd, 3rd, 10th, 21st."""
    if value % 100 in (11, 12, 13):
        return f"{value}th"
    return f"{value}{({1: 'st', 2: 'nd', 3: 'rd'}).get(value % 10, 'th')}"


def capital(text: str) -> str:
    """Return the text with a capital first letter."""
    return text[:1].upper() + text[1:]
