"""Which metrics share a panel: by what they are about, or by what a person asked for."""

from __future__ import annotations

import difflib
import fnmatch
import re
from collections.abc import Sequence
from dataclasses import dataclass

from stepwell.journal.errors import StepwellError

SYSTEM = "system/"
MOST_CURVES = 10
MOST_PANELS = 12


@dataclass(frozen=True)
class Choice:
    """A panel to be: its title and the metrics in it."""

    title: str
    names: list[str]
    left_out: int = 0


FAMILIES = [
    ("Loss", r"(^|[/_.-])loss([/_.-]|$)"),
    ("Accuracy", r"(^|[/_.-])(acc|accuracy)([/_.@-]|$)"),
    ("Gradient norm", r"grad(ient)?s?[/_.-]*norm"),
    ("Weight delta", r"weight[/_.-]*delta"),
    ("Learning rate", r"(^|[/_.-])(lr|learning_?rates?)([/_.-]|$)"),
]
"""What is drawn when nothing is asked for; a metric belongs to the first that fits."""


def by_default(names: Sequence[str]) -> list[Choice]:
    """Loss, accuracy, gradient norm, weight delta and learning rates; else whatever was logged."""
    own = [name for name in names if not name.startswith(SYSTEM)]
    taken: set[str] = set()
    choices = []
    for title, pattern in FAMILIES:
        found = [n for n in own if n not in taken and re.search(pattern, n, re.IGNORECASE)]
        taken.update(found)
        if found:
            choices.append(_choice(title, found))
    if choices:
        return choices
    return [Choice(name, [name]) for name in (own or list(names))[:MOST_PANELS]]


def by_request(names: Sequence[str], wanted: Sequence[str]) -> list[Choice]:
    """A panel for each request: a name, or a pattern such as ``val/*``, or a part of names."""
    choices = []
    for word in wanted:
        found = [name for name in names if name == word]
        found = found or [name for name in names if fnmatch.fnmatchcase(name, word)]
        found = found or [name for name in names if word.lower() in name.lower()]
        if not found:
            raise StepwellError(f"there is no metric {word!r}; {_what_exists(names, word)}")
        choices.append(_choice(word, found))
    return choices


def _choice(title: str, found: list[str]) -> Choice:
    # The whole before its parts.
    ordered = sorted(found, key=lambda name: (not name.endswith(("overall", "total")), name))
    return Choice(title, ordered[:MOST_CURVES], max(0, len(ordered) - MOST_CURVES))


def _what_exists(names: Sequence[str], word: str) -> str:
    near = difflib.get_close_matches(word, names, n=3, cutoff=0.5)
    own = [name for name in names if not name.startswith(SYSTEM)]
    others = [name for name in (*own, *names) if name not in near]
    shown = list(dict.fromkeys([*near, *others]))[:12]
    more = f" and {len(names) - len(shown)} more" if len(names) > len(shown) else ""
    return f"there are: {', '.join(shown)}{more}"
