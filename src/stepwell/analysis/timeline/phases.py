"""Phases: their names, as words and as small numbers (codes), and the phase of a span by its name."""

from __future__ import annotations

import re
from typing import Any

import numpy as np
from numpy.typing import NDArray

import stepwell.vocabulary as vocabulary

TRAINING_PHASE = "training"
"""The phase of spans around whole iterations. It has no line in the ledger: their own time is ``other``."""
PHASES: dict[str, str] = {
    **{name: text for name, text in vocabulary.PHASES.items() if name != TRAINING_PHASE},
    "garbage collection": "Python's garbage collector; all threads wait",
    "ending": "after the last training step, in no span that has a phase or a name of its own",
    "other": "code in no span, or in a span that only contains others, such as the training loop",
}
"""The phases of the ledger, with descriptions."""
OWN_SPAN = "span:"
"""Prefix of the names of the user's own spans where they are listed with phases."""

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


NAMES = (*PHASES, TRAINING_PHASE, "idle")
"""The phases, and two that only the grid of ranks uses: other time within iterations, and outside them."""
CODES = {name: code for code, name in enumerate(NAMES)}
STARTUP, ENDING, OTHER = CODES["startup"], CODES["ending"], CODES["other"]
DATA, TRANSFER, TRAINING = CODES["data"], CODES["transfer"], CODES[TRAINING_PHASE]
GARBAGE = CODES["garbage collection"]
NOTHING = len(NAMES)
"""No phase: no span is open, or only a container such as a training loop."""
NAMED = NOTHING + 1
"""No phase, but a span that the user named, without a category."""
HAS_NO_PHASE = frozenset((TRAINING, NOTHING, NAMED))
"""Time with these codes is named after the user's own span around it, if any."""

CLAIMING = frozenset(CODES[name] for name in ("validation", "testing", "checkpoint", "restore"))
"""Phases that include all time within them, whatever spans it is in."""
COMPUTING = frozenset(CODES[name] for name in ("forward", "backward", "optimizer", "training"))
"""Phases of a training step after its data is there."""

ITERATION = 1 << 6
"""Flag: a training iteration, by its standard name."""
LIKE_ITERATION = 1 << 5
"""Flag: probably a training iteration, by a name such as "train step"."""
OWN_NAME = 1 << 7
"""Flag: a span that the user named."""
CODE_MASK = LIKE_ITERATION - 1

Bytes = NDArray[np.uint8]
Mask = NDArray[np.bool_]

_PLAIN: dict[str, str] = {
    "startup": "startup, start up, setup, set up, initialization, initialisation, init, warm up",
    "restore": "restore, load checkpoint, checkpoint load, resume",
    "data": "data, data loading, data load, load data, data wait, wait for data, dataloader, fetch, "
    "load batch, get batch, next batch, fetch batch, batch wait, input, input wait, preprocess",
    "transfer": "transfer, to device, copy to device, move to device, host to device, h2d, d2h",
    "forward": "forward, forward pass, model forward, fwd",
    "backward": "backward, backward pass, model backward, bwd",
    "optimizer": "optimizer, optimizer step, optimizer update, optimiser, optim step, zero grad",
    "communication": "communication, comm, all reduce, allreduce, all gather, allgather, "
    "reduce scatter, all to all, barrier, broadcast, sync gradients, gradient sync",
    "checkpoint": "checkpoint, save checkpoint, checkpoint save, save model, save",
    "validation": "validation, validate, valid, val, evaluation, evaluate, eval, validation loop",
    "testing": "testing, test, test loop",
    "training": "train step, training step, train iteration, training iteration, iteration, "
    "train batch, training batch",
}
PLAIN_WORDS = {word: phase for phase, text in _PLAIN.items() for word in text.split(", ")}
"""Phases by common names of user's own spans, in lower case with single spaces."""
CONTAINERS = {
    "application",
    "epoch",
    "train",
    "training",
    "training loop",
    "train loop",
    "loop",
    "fit",
}
CONTAINERS |= {"main", "run", "job"}
"""Names of spans that only contain other spans."""


def phase_of_span(name: str, category: str = "") -> str | None:
    """Return the phase of a span by its name and category, or None.

    Standard spans and `ai` nodes come first, then common names, for spans without a category.
    """
    phase = vocabulary.phase_of(name, category)
    if phase is None and not category:
        phase = PLAIN_WORDS.get(_plain(name)) or vocabulary.phase_of(*_as_ai_path(name))
    return phase


def _plain(name: str) -> str:
    spaced = re.sub(r"(?<=[a-z])(?=[A-Z])", " ", name[:100])
    return " ".join(re.split(r"[\s_\-./:]+", spaced.lower())).strip()


def _as_ai_path(name: str) -> tuple[str, str]:
    """Return name and category as an `ai` node writes them, for names such as ``ai.compute.forward``."""
    word = vocabulary.ai_word(name)
    return (word.trace_name, word.category) if word else ("", "")


def code_of(name: str, category: str = "") -> int:
    """Return the code of a span by its name and category, with flags."""
    if (name, category) == ("gc", vocabulary.RUNTIME):
        return GARBAGE
    phase = phase_of_span(name, category)
    if phase is not None:
        if name == vocabulary.StandardTrainingJobSpanName.TRAINING_SINGLE_ITERATION.value:
            return TRAINING | ITERATION
        return CODES[phase] | (LIKE_ITERATION if phase == "training" else 0)
    if vocabulary.word_of(name, category) or _plain(name) in CONTAINERS:
        return NOTHING
    if not category:
        return NAMED | OWN_NAME
    return NOTHING if vocabulary.is_category(category) else NOTHING | OWN_NAME


def code_table(names: dict[int, tuple[str, str, str]]) -> Bytes:
    """Return codes by name number, with one more entry at the end for names that were lost."""
    table = np.full(max(names, default=0) + 2, NAMED, np.uint8)
    for number, (_, category, name) in names.items():
        table[number] = code_of(name, category)
    return table


def _inherit(outer: int, own: int) -> int:
    """Return the code of a span's time, from its own code and the code of the time around it."""
    if own in CLAIMING:
        return own
    if outer in CLAIMING or own >= NOTHING > outer:
        return outer
    if own == NOTHING:
        return outer
    return own


def _table(function: Any) -> Bytes:
    size = NAMED + 1
    return np.array([[function(i, j) for j in range(size)] for i in range(size)], np.uint8)


INHERITED: Bytes = _table(_inherit)
"""[code of the time of the span around, own code] → code of the span's time."""

BEFORE, DURING, AFTER, COLLECTING, OWN = range(5)
"""Places of an instant: before the first step, during the steps, after the last, in a garbage collection.
From ``OWN`` on: in the first, second … of the user's own spans that have a line."""
_WITHOUT_PHASE = {BEFORE: STARTUP, DURING: OTHER, AFTER: ENDING}


def final_phases(own: int = 0, iteration: int | None = None) -> Bytes:
    """Return a table: [place, code of a span's time] → line of the ledger.

    Args:
        own: number of the user's own spans that have a line. Their lines follow the phases.
        iteration: index of the own span around each step, if any.
    """
    inside = OTHER if iteration is None else len(PHASES) + iteration
    phases = list(range(TRAINING))
    lines = [[*phases, inside, line, line, line] for line in _WITHOUT_PHASE.values()]
    lines.append([GARBAGE] * (NAMED + 1))
    lines += [[*phases, *[len(PHASES) + number] * 4] for number in range(own)]
    return np.array(lines, np.uint8)


def lookup_table(codes: frozenset[int]) -> Mask:
    """Return a table that tells for each byte whether its code, without flags, is one of these."""
    return np.array([(byte & CODE_MASK) in codes for byte in range(256)])


IS_COMPUTING = lookup_table(COMPUTING)
IS_PASS = lookup_table(COMPUTING - {TRAINING})
IS_DATA = lookup_table(frozenset((DATA, TRANSFER)))
IS_OTHER = ~lookup_table(frozenset((DATA, TRANSFER, NOTHING)))
IS_WORK = lookup_table(frozenset(range(NOTHING)) - {STARTUP, CODES["restore"]})
"""Phases that show that training has begun and is not over."""
