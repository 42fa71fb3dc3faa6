"""How times, shares, steps and ranks are put in a sentence."""

from __future__ import annotations

from collections.abc import Sequence

from stepwell.analysis.time.words import OWN_SPAN
from stepwell.journal.text import duration as duration
from stepwell.journal.text import number as number

PHASE_WORDS = {
    "startup": "setting up",
    "restore": "loading a checkpoint",
    "data": "waiting for data",
    "transfer": "copying to the device",
    "forward": "the forward pass",
    "backward": "the backward pass",
    "optimizer": "the optimizer",
    "communication": "communication",
    "checkpoint": "saving checkpoints",
    "validation": "validation",
    "testing": "testing",
    "training": "the training step",
    "garbage collection": "garbage collection",
    "idle": "code between steps, in no span",
    "ending": "code after the last step",
    "other": "code in no span",
}
TITLES = {"ending": "after the last step"}


def phase_word(phase: str) -> str:
    """A phase as a person would say it."""
    if phase.startswith(OWN_SPAN):
        return f'the span "{phase.removeprefix(OWN_SPAN)}"'
    return PHASE_WORDS.get(phase, phase)


def phase_title(phase: str) -> str:
    """A phase as it stands in the time table; the user's own spans under their names."""
    return TITLES.get(phase, phase.removeprefix(OWN_SPAN))


def percent(share: float) -> str:
    """A share in whole per cent, with one decimal where it is small."""
    if 0 < share < 0.0005:
        return "<0.1%"
    return f"{share:.1%}" if 0 < share < 0.0995 else f"{share:.0%}"


def listed(steps: Sequence[int], most: int = 3) -> str:
    """Steps in a sentence: ``step 4``, or ``steps 4, 9 and 14``; of many the first ones."""
    shown = [f"{step}" for step in steps[:most]]
    if len(steps) == 1:
        return f"step {shown[0]}"
    if len(steps) > most:
        return f"steps {', '.join(shown)}, …"
    return f"steps {', '.join(shown[:-1])} and {shown[-1]}"


def ranks_listed(ranks: Sequence[int], most: int = 4) -> str:
    """Ranks in a sentence."""
    if len(ranks) == 1:
        return f"rank {ranks[0]}"
    if len(ranks) > most:
        return f"ranks {', '.join(map(str, ranks[:most]))} and {len(ranks) - most} more"
    return f"ranks {', '.join(map(str, ranks[:-1]))} and {ranks[-1]}"


def ordinal(value: int) -> str:
    """2nd, 3rd, 10th, 21st."""
    if value % 100 in (11, 12, 13):
        return f"{value}th"
    return f"{value}{({1: 'st', 2: 'nd', 3: 'rd'}).get(value % 10, 'th')}"


def capital(text: str) -> str:
    """With a capital letter at the beginning."""
    return text[:1].upper() + text[1:]
