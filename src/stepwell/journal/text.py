"""Durations and numbers as text, in one format for messages, commands and reports."""

from __future__ import annotations

import math


def duration(ns: float) -> str:
    """Return a duration with three significant digits: 1.23 s, 45.6 ms, 2 h 03 min."""
    seconds = ns / 1e9
    if seconds < 0.9995e-3:
        return f"{seconds * 1e6:.3g} µs"
    # From here on it would be shown as 1000 ms.
    if seconds < 0.9995:
        return f"{seconds * 1e3:.3g} ms"
    if seconds < 59.95:
        return f"{seconds:.3g} s"
    whole = round(seconds)
    if whole < 3600:
        return f"{whole // 60} min {whole % 60:02d} s"
    return f"{whole // 3600} h {whole % 3600 // 60:02d} min"


def number(value: float) -> str:
    """Return a number with three significant digits."""
    return f"{value:.3g}"


def rate(value: float) -> str:
    """Return a number per second with three significant digits, and commas between thousands."""
    digits = 2 - math.floor(math.log10(abs(value))) if value else 0
    rounded = round(value, digits)
    return f"{rounded:,.{max(0, digits)}f}" if abs(value) >= 0.001 else f"{value:.3g}"
