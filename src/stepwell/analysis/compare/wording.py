"""How numbers, places and p-values are put in a sentence."""

from __future__ import annotations

from stepwell.analysis.findings.wording import duration


def number(value: float | None) -> str:
    """A number with four figures."""
    return "nothing" if value is None else f"{value:.4g}"


def place(by: str, at: float) -> str:
    """Where on the axis: ``at step 39``, ``after 1.2 M tokens``."""
    return f"at step {at:.0f}" if by == "step" else f"after {amount(by, at)}"


def since(by: str, at: float) -> str:
    """The same as a beginning: from ``step 39``, from ``12.3 s``."""
    return f"step {at:.0f}" if by == "step" else amount(by, at)


def amount(by: str, at: float) -> str:
    """So many samples or tokens, or so much time."""
    return duration(at * 1e9) if by == "time" else f"{count(at)} {by}"


def count(value: float) -> str:
    """A number of things: 512, 8.42 k, 1.2 M."""
    for unit, size in (("T", 1e12), ("G", 1e9), ("M", 1e6), ("k", 1e4)):
        if value >= size:
            return f"{value / (1e3 if unit == 'k' else size):.4g} {unit}"
    return f"{value:.0f}" if value >= 100 or value == int(value) else f"{value:.3g}"


def chance(p: float) -> str:
    """A p-value."""
    return "p < 0.0001" if p < 1e-4 else f"p = {p:.2g}"
