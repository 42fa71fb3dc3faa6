"""Phases, steps, ranks and ordinals as parts of a sentence. Durations and numbers are in ``_core.text``."""

from __future__ import annotations

from collections.abc import Sequence

from stepwell.analysis.timeline.phases import OWN_SPAN

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
    "idle": "code between steps, outside any span",
    "ending": "code after the last step",
    "other": "code outside any span",
}
"""Each can be the subject of a sentence: "waiting for data takes 12 ms"."""
TITLES = {"ending": "after the last step"}


def phase_word(phase: str) -> str:
    """Return a phase as a noun phrase; the user's own spans by name."""
    if phase.startswith(OWN_SPAN):
        return f'the span "{phase.removeprefix(OWN_SPAN)}"'
    return PHASE_WORDS.get(phase, phase)


def phase_title(phase: str) -> str:
    """Return the title of a phase in the time table; the user's own spans by name."""
    return TITLES.get(phase, phase.removeprefix(OWN_SPAN))


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
