"""Steps, ranks and ordinals as parts of a sentence. Phases are in ``timeline.phases``, durations
and numbers in ``_core.text``.
"""

from __future__ import annotations

from collections.abc import Sequence


def listed(steps: Sequence[int], most: int = 3) -> str:
    """Return ``step 4`` or ``steps 4, 9 and 14``; of more than ``most`` steps only the first."""
    shown = [f"{step}" for step in steps[:most]]
    if len(steps) == 1:
        return f"step {shown[0]}"
    if len(steps) > most:
        return f"steps {', '.join(shown)}, …"
    return f"steps {', '.join(shown[:-1])} and {shown[-1]}"


def ranks_listed(ranks: Sequence[int], most: int = 4) -> str:
    """Return ``rank 4``, ``ranks 4 and 9`` or ``ranks 0, 1, 2, 3 and 12 more``."""
    if len(ranks) == 1:
        return f"rank {ranks[0]}"
    if len(ranks) > most:
        return f"ranks {', '.join(map(str, ranks[:most]))} and {len(ranks) - most} more"
    return f"ranks {', '.join(map(str, ranks[:-1]))} and {ranks[-1]}"


def ordinal(value: int) -> str:
    """Return 2nd, 3rd, 10th, 21st."""
    if value % 100 in (11, 12, 13):
        return f"{value}th"
    return f"{value}{({1: 'st', 2: 'nd', 3: 'rd'}).get(value % 10, 'th')}"


def capital(text: str) -> str:
    """Return the text with a capital first letter."""
    return text[:1].upper() + text[1:]
