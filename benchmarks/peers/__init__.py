"""Other tools, each measured as its documentation shows it, in a process and folder of its own.

Each is checked afterwards to have written what it was given: dropping would be cheap, and no result.
Nothing here reaches a network.
"""

from __future__ import annotations

from benchmarks.floor import Measured


def checked(measured: Measured, what: str, written: int, expected: int) -> Measured:
    """The result, if the tool really wrote ``expected`` of what it counts or measures."""
    if written < expected:
        raise RuntimeError(f"{written} {what} were written, not {expected}")
    return measured
