"""Steps, ranks, names and ordinals as parts of a sentence. Phases are in ``timeline.phases``, durations
and numbers in ``_core.text``.
"""

from __future__ import annotations

from collections.abc import Sequence


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
