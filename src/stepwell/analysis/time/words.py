"""Phases as small numbers, and which of them a span has by its name."""

from __future__ import annotations

import re
from typing import Any

import numpy as np
from numpy.typing import NDArray

import stepwell.vocabulary as vocabulary

PHASES: dict[str, str] = {
    **vocabulary.PHASES,
    "garbage collection": "Python looked for garbage, and all threads waited",
    "idle": "between two training iterations, inside of nothing that has a phase",
    "ending": "after the last training iteration, inside of nothing that has a phase",
    "unaccounted": "inside of spans that no phase is known for, or of none although a step was under way",
}
"""What the ledger tells apart, and what each of them means."""

NAMES = tuple(PHASES)
CODES = {name: code for code, name in enumerate(NAMES)}
STARTUP, IDLE, ENDING = CODES["startup"], CODES["idle"], CODES["ending"]
DATA, TRANSFER, TRAINING = CODES["data"], CODES["transfer"], CODES["training"]
GARBAGE, UNACCOUNTED = CODES["garbage collection"], CODES["unaccounted"]
NOTHING = len(NAMES)
"""No phase: no span is open, or one that merely holds others, such as a training loop."""
NAMED = NOTHING + 1
"""No phase, but a span that somebody gave a name of their own."""

CLAIMING = frozenset(CODES[name] for name in ("validation", "testing", "checkpoint", "restore"))
"""These have all that is inside of them, whatever it is."""
COMPUTING = frozenset(CODES[name] for name in ("forward", "backward", "optimizer", "training"))
"""What a training step consists of, once it has its data."""

ITERATION = 1 << 6
"""Flag beside a code: a training iteration by its standard name."""
LIKE_ITERATION = 1 << 5
"""Flag beside a code: probably one, by a name such as "train step"."""
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
    """The code of a span by its name and category, with a flag where it looks like an iteration."""
    if (name, category) == ("gc", "runtime"):
        return GARBAGE
    phase = phase_of_span(name, category)
    if phase is not None:
        if name == vocabulary.StandardTrainingJobSpanName.TRAINING_SINGLE_ITERATION.value:
            return TRAINING | ITERATION
        return CODES[phase] | (LIKE_ITERATION if phase == "training" else 0)
    if vocabulary.word_of(name, category) or category or _plain(name) in HOLDERS:
        return NOTHING
    return NAMED


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

BEFORE, BETWEEN, INSIDE, AFTER, COLLECTING = range(5)
"""Where an instant lies: before the first step, between iterations, inside one, after the last; or in a
garbage collection, wherever that is."""
_WITHOUT_PHASE = {
    BEFORE: (STARTUP, STARTUP),
    BETWEEN: (IDLE, UNACCOUNTED),
    INSIDE: (UNACCOUNTED, UNACCOUNTED),
    AFTER: (ENDING, ENDING),
}
FINAL: Bytes = np.array(
    [[*range(NOTHING), *_WITHOUT_PHASE[place]] for place in (BEFORE, BETWEEN, INSIDE, AFTER)]
    + [[GARBAGE] * (NAMED + 1)],
    np.uint8,
)
"""[place, code of the time of a span] → phase that the ledger has it under."""


def is_one_of(codes: frozenset[int]) -> Mask:
    """A table that tells for each byte whether its code, flags aside, is one of these."""
    return np.array([(byte & CODE_MASK) in codes for byte in range(256)])


IS_COMPUTING = is_one_of(COMPUTING)
IS_DATA = is_one_of(frozenset((DATA, TRANSFER)))
IS_OTHER = ~is_one_of(frozenset((DATA, TRANSFER, NOTHING)))
IS_WORK = is_one_of(frozenset(range(NOTHING)) - {STARTUP, CODES["restore"]})
"""Phases that show that the training proper has begun, or is not over."""
