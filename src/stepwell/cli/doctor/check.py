"""One thing that was looked at."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Literal

State = Literal["ok", "note", "problem"]


@dataclass(frozen=True)
class Check:
    """What was looked at, what was found, and what to do.

    Attributes:
        name: what it is about, in a word or two.
        state: "ok"; "note", worth knowing; "problem", something does not work.
        text: what was found.
        advice: what to do; empty when there is nothing to do.
    """

    name: str
    state: State
    text: str
    advice: str = ""
