"""The result of one check."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Literal

State = Literal["ok", "note", "problem"]


@dataclass(frozen=True)
class Check:
    """The result of a check.

    Attributes:
        name: subject, in a word or two.
        state: "ok"; "note" (worth knowing); "problem" (does not work).
        text: the result.
        advice: what to do, or "".
    """

    name: str
    state: State
    text: str
    advice: str = ""
