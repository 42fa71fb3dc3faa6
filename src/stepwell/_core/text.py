"""Durations and numbers as text, in one format for messages, commands and reports."""

from __future__ import annotations

import math


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
