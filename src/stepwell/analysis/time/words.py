"""Phases as small numbers, and which of them a span has by its name."""

from __future__ import annotations

import re
from typing import Any

import numpy as np
from numpy.typing import NDArray

import stepwell.vocabulary as vocabulary

TRAINING_PHASE = "training"
"""The phase of spans around whole iterations. Their own time is ``other``: it is no line of the ledger."""
PHASES: dict[str, str] = {
    **{name: text for name, text in vocabulary.PHASES.items() if name != TRAINING_PHASE},
    "garbage collection": "Python's garbage collector; all threads wait",
    "ending": "after the last training step, in no span that has a phase or a name of its own",
    "other": "code in no span, or in a span that only contains others, such as the training loop",
}
"""What the ledger tells apart, and what each of them means."""
OWN_SPAN = "span:"
"""What the name of a user's own span is preceded by where it stands beside phases."""

NAMES = (*PHASES, TRAINING_PHASE, "idle")
"""The phases, and two that only the grid of ranks tells apart: inside and outside of iterations."""
CODES = {name: code for code, name in enumerate(NAMES)}
STARTUP, ENDING, OTHER = CODES["startup"], CODES["ending"], CODES["other"]
DATA, TRANSFER, TRAINING = CODES["data"], CODES["transfer"], CODES[TRAINING_PHASE]
GARBAGE = CODES["garbage collection"]
NOTHING = len(NAMES)
"""No phase: no span is open, or one that merely holds others, such as a training loop."""
NAMED = NOTHING + 1
"""No phase, but a span with a name of the user's own, without a category."""
HAS_NO_PHASE = frozenset((TRAINING, NOTHING, NAMED))
"""Time with these codes is named after the user's own span around it, if there is one."""

CLAIMING = frozenset(CODES[name] for name in ("validation", "testing", "checkpoint", "restore"))
"""These have all that is inside of them, whatever it is."""
COMPUTING = frozenset(CODES[name] for name in ("forward", "backward", "optimizer", "training"))
"""What a training step consists of, once it has its data."""

ITERATION = 1 << 6
"""Flag beside a code: a training iteration by its standard name."""
LIKE_ITERATION = 1 << 5
"""Flag beside a code: probably one, by a name such as "train step"."""
OWN_NAME = 1 << 7
"""Flag beside a code: a span that the user gave a name of their own."""
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
"""Names that people give to spans of their own, in small letters with single spaces."""
HOLDERS = {
    "application",
    "epoch",
    "train",
    "training",
    "training loop",
    "train loop",
    "loop",
    "fit",
}
HOLDERS |= {"main", "run", "job"}
"""Names of spans that merely hold others."""


def phase_of_span(name: str, category: str = "") -> str | None:
    """The phase of a span by its name and category, or None.

    Standard spans and `ai` nodes first; then plain words, for spans that were given no category.
    """
    found = vocabulary.phase_of(name, category)
    if found is None and not category:
        found = PLAIN_WORDS.get(_plain(name)) or vocabulary.phase_of(*_as_ai_path(name))
    return found


def _plain(name: str) -> str:
    spaced = re.sub(r"(?<=[a-z])(?=[A-Z])", " ", name[:100])
    return " ".join(re.split(r"[\s_\-./:]+", spaced.lower())).strip()


def _as_ai_path(name: str) -> tuple[str, str]:
    """Name and category as an `ai` node would write them, for ``ai.compute.forward`` and the like."""
    word = vocabulary.ai_word(name)
    return (word.trace_name, word.category) if word else ("", "")


def code_of(name: str, category: str = "") -> int:
    """The code of a span by its name and category, with flags."""
    if (name, category) == ("gc", vocabulary.RUNTIME):
        return GARBAGE
    phase = phase_of_span(name, category)
    if phase is not None:
        if name == vocabulary.StandardTrainingJobSpanName.TRAINING_SINGLE_ITERATION.value:
            return TRAINING | ITERATION
        return CODES[phase] | (LIKE_ITERATION if phase == "training" else 0)
    if vocabulary.word_of(name, category) or _plain(name) in HOLDERS:
        return NOTHING
    if not category:
        return NAMED | OWN_NAME
    return NOTHING if vocabulary.is_category(category) else NOTHING | OWN_NAME


def table_of(names: dict[int, tuple[str, str, str]]) -> Bytes:
    """Codes by the number of a name in its process; one more at the end for names that were lost."""
    table = np.full(max(names, default=0) + 2, NAMED, np.uint8)
    for number, (_, category, name) in names.items():
        table[number] = code_of(name, category)
    return table


def _inherit(outer: int, own: int) -> int:
    """The code of a span's time, from its own and that of the time of the span around it."""
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
"""Where an instant lies: before the first step, from there on, after the last; or in a garbage collection,
wherever that is. From ``OWN`` on: in the first, second … of the user's own spans that have a line."""
_WITHOUT_PHASE = {BEFORE: STARTUP, DURING: OTHER, AFTER: ENDING}


def final_phases(own: int = 0, iteration: int | None = None) -> Bytes:
    """[place, code of the time of a span] → line of the ledger that has it.

    After the phases come the lines of ``own`` spans of the user's own; of these ``iteration`` is the
    number of the one that the user put around each step.
    """
    inside = OTHER if iteration is None else len(PHASES) + iteration
    phases = list(range(TRAINING))
    found = [[*phases, inside, line, line, line] for line in _WITHOUT_PHASE.values()]
    found.append([GARBAGE] * (NAMED + 1))
    found += [[*phases, *[len(PHASES) + number] * 4] for number in range(own)]
    return np.array(found, np.uint8)


def is_one_of(codes: frozenset[int]) -> Mask:
    """A table that tells for each byte whether its code, flags aside, is one of these."""
    return np.array([(byte & CODE_MASK) in codes for byte in range(256)])


IS_COMPUTING = is_one_of(COMPUTING)
IS_DATA = is_one_of(frozenset((DATA, TRANSFER)))
IS_OTHER = ~is_one_of(frozenset((DATA, TRANSFER, NOTHING)))
IS_WORK = is_one_of(frozenset(range(NOTHING)) - {STARTUP, CODES["restore"]})
"""Phases that show that the training proper has begun, or is not over."""
