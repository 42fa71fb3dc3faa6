"""The choice of metrics for each panel: by family, or by request."""

from __future__ import annotations

import difflib
import fnmatch
import re
from collections.abc import Sequence
from dataclasses import dataclass

from stepwell._core.errors import StepwellError
from stepwell.reading.run import SYSTEM

MOST_CURVES = 10
MOST_PANELS = 12


@dataclass(frozen=True)
class PanelChoice:
    """The title of a panel and its metrics; ``left_out`` is the number of metrics that did not fit."""

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
"""The default panels. A metric belongs to the first family that matches."""


def by_default(names: Sequence[str]) -> list[PanelChoice]:
    """Return a panel for each family that has metrics; if none has, one for each of the first metrics."""
    own = [name for name in names if not name.startswith(SYSTEM)]
    taken: set[str] = set()
    choices = []
    for title, pattern in FAMILIES:
        family = [n for n in own if n not in taken and re.search(pattern, n, re.IGNORECASE)]
        taken.update(family)
        if family:
            choices.append(_choice(title, family))
    if choices:
        return choices
    return [PanelChoice(name, [name]) for name in (own or list(names))[:MOST_PANELS]]


def by_request(names: Sequence[str], wanted: Sequence[str]) -> list[PanelChoice]:
    """Return a panel for each request: a name, a pattern such as ``val/*``, or a part of a name."""
    choices = []
    for word in wanted:
        matches = [name for name in names if name == word]
        matches = matches or [name for name in names if fnmatch.fnmatchcase(name, word)]
        matches = matches or [name for name in names if word.lower() in name.lower()]
        if not matches:
            raise StepwellError(f"there is no metric {word!r}; {_what_exists(names, word)}")
        choices.append(_choice(word, matches))
    return choices


def _choice(title: str, names: list[str]) -> PanelChoice:
    # Totals come before their parts.
    ordered = sorted(names, key=lambda name: (not name.endswith(("overall", "total")), name))
    return PanelChoice(title, ordered[:MOST_CURVES], max(0, len(ordered) - MOST_CURVES))


def _what_exists(names: Sequence[str], word: str) -> str:
    near = difflib.get_close_matches(word, names, n=3, cutoff=0.5)
    own = [name for name in names if not name.startswith(SYSTEM)]
    others = [name for name in (*own, *names) if name not in near]
    shown = list(dict.fromkeys([*near, *others]))[:12]
    more = f" and {len(names) - len(shown)} more" if len(names) > len(shown) else ""
    return f"there are: {', '.join(shown)}{more}"
