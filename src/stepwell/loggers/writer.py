"""Writes the records that the fast path of ``log()`` does not: unusual metrics, and all other kinds."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from collections.abc import Mapping
from contextlib import AbstractContextManager
from pathlib import Path
from time import perf_counter_ns as _now
from typing import Any

from stepwell._core import clock
from stepwell._core.errors import counts, never_raises, warn_once
from stepwell._core.values import number, shown, text_of
from stepwell.journal import metrics
from stepwell.journal.format import IMPLICIT_STEP, ROW_BYTES, STEP_BIAS, WHOLE_ROW
from stepwell.journal.journal import Journal
from stepwell.journal.metrics import context as current
from stepwell.journal.state import current_journal, current_lane
from stepwell.loggers.context import LoggerContext
from stepwell.loggers.items import converters as items
from stepwell.loggers.items.converters import CannotKeep, ConvertedItem
from stepwell.loggers.items.logged_values import (
    failures_reported,
    keep_logged,
    kind_of,
    write_items,
)
from stepwell.loggers.targets import NameIds

_pack = WHOLE_ROW.pack_into
READINGS = ("system", "carbon", "execution_time")
NOT_A_NUMBER = "no number "
"""Prefix of the keys of warnings about metrics that are not numbers."""
MOST_WARNINGS = 10


def journal_of(context: LoggerContext) -> Journal | None:
    """Return the journal to write to; None if another run is active than that of the context."""
    journal = current_journal()
    if journal is None or journal is context.journal or not context.is_here:
        # A child of this process has its own journal, in the same run.
        return journal
    warn_once(
        f"another run {id(context)}",
        "the run of a logger, %s, is finished, and another run is active. Nothing is logged until you "
        "destroy the logger's context and create it again",
        "" if context.run is None else context.run.id,
    )
    return None


@never_raises
def write_metric(
    context: LoggerContext, ids: NameIds, identifier: str, value: Any, step: Any
) -> None:
    """Write a value of a metric, of any type and from any thread."""
    journal = journal_of(context)
    lane = None if journal is None else current_lane()
    if journal is None or lane is None:
        return
    if isinstance(value, Mapping):
        for name, inner in value.items():
            write_metric(context, ids, f"{identifier}/{text_of(name)}", inner, step)
        return
    word = ids[identifier]
    step_word = 0 if step is None else metrics.explicit_step_word(step)
    step_word = step_word or metrics.step_word_of(metrics.word_of(identifier))
    scalar, now = number(value), _now()
    if scalar is None:
        whole = None if step_word & IMPLICIT_STEP else step_word - STEP_BIAS
        if kind_of(value) and keep_logged(journal, identifier, value, whole, ids.numbers):
            return
        journal.take_odd_value(lane, identifier, value, step_word, now, word)
        if not hasattr(value, "detach") or value.numel() != 1:
            _warn_no_number(identifier, value)
    elif lane.row_next + ROW_BYTES <= lane.row_limit or lane.roll_metrics():
        row = lane.row_next
        lane.row_next = row + ROW_BYTES
        _pack(lane.rows, row, now, step_word, scalar, word)
    else:
        journal.count_drop("metrics")


clock.follow(globals())


def keep(
    context: LoggerContext,
    ids: NameIds,
    identifier: str,
    kind: str,
    item: Any,
    step: Any,
    more: Mapping[str, Any],
) -> None:
    """Convert an item and record it. A failure is reported and never raised."""
    if journal_of(context) is None:
        return
    with _failures_reported(identifier, kind):
        record(context, ids, kind, _convert(context, ids, identifier, kind, item, more), step)


def keep_documents(
    context: LoggerContext, ids: NameIds, identifier: str, step: Any, namespace: str | None
) -> None:
    """Create the provenance documents of the run so far, in the background, and record them."""
    run = context.run
    if run is None or journal_of(context) is None:
        return
    where = current.step if step is None else step

    def work() -> None:
        with _failures_reported(identifier, "prov_documents"):
            documents = make_documents(run.path, identifier, namespace or NAMESPACE)
            record(context, ids, "prov_documents", documents, where)

    context.work(work)


@never_raises
def keep_params(context: LoggerContext, ids: NameIds, flat: Mapping[str, Any]) -> None:
    """Record parameters, given without nesting."""
    params = [ConvertedItem(name, value=value) for name, value in flat.items()]
    record(context, ids, "param", params, None)


def record(
    context: LoggerContext, ids: NameIds, kind: str, converted: list[ConvertedItem], step: Any
) -> None:
    """Write items to the journal and their contents to the run folder. Raise OSError if the disk is full."""
    journal = journal_of(context)
    if journal is None or context.run is None:
        return
    where = current.step if step is None else _whole_step(step)
    write_items(journal, kind, converted, where, ids.numbers)


def _convert(
    context: LoggerContext,
    ids: NameIds,
    identifier: str,
    kind: str,
    item: Any,
    more: Mapping[str, Any],
) -> list[ConvertedItem]:
    if kind in READINGS:
        return context.readings.convert(kind, item, identifier, more)
    if kind == "watch":
        return _watch(context, ids, identifier, item, more)
    return items.convert(kind, item, identifier, more)


def _watch(
    context: LoggerContext, ids: NameIds, identifier: str, model: Any, more: Mapping[str, Any]
) -> list[ConvertedItem]:
    from stepwell.loggers.items.model_statistics import EVERY, ModelStatistics

    for watch in context.watched:
        if watch.watches(model, identifier):
            # The caller chooses the moments from now on.
            watch.stop_hook()
            watch.take()
            return []

    def write(values: dict[str, float]) -> None:
        for name, value in values.items():
            write_metric(context, ids, name, value, None)

    every = more.get("every", more.get("log_freq", EVERY))
    watch = ModelStatistics(model, identifier, write, every, more.get("groups"))
    context.watched.append(watch)
    watch.take()
    return [watch.description()]


def _whole_step(step: Any) -> int | None:
    word = metrics.explicit_step_word(step)
    return word - STEP_BIAS if word else None


def _warn_no_number(identifier: str, value: Any) -> None:
    key = f"{NOT_A_NUMBER}{identifier[:200]}"
    if key not in counts and sum(k.startswith(NOT_A_NUMBER) for k in counts) >= MOST_WARNINGS:
        return
    warn_once(
        key,
        "the metric %r must be a number, got %s. It is stored with the run and goes to no backend. Log other "
        "values with their own kind, such as kind='text'",
        identifier[:200],
        shown(value),
    )


def _failures_reported(identifier: str, kind: str) -> AbstractContextManager[None]:
    return failures_reported(f"log {kind}", f"log(…, {identifier[:200]!r}, kind={kind!r})")


# Provenance documents. They are created in another process: this takes libraries that a training process
# does not load (Polars), and a second or two.

MAKE = """
import json, sys
sys.path[:] = json.loads(sys.argv[1])
from stepwell.loggers.prov.document import document_of
from stepwell.loggers.prov.graph_files import documents_of
json.dump(documents_of(document_of(sys.argv[2], user_namespace=sys.argv[3])), sys.stdout)
"""
LONGEST = 120.0
"""Seconds that the process may take."""
NAMESPACE = "www.example.org"


def make_documents(
    run_folder: Path, identifier: str, namespace: str = NAMESPACE
) -> list[ConvertedItem]:
    """Return the documents of the run so far, as files in a folder with this name. Takes a second or two."""
    path = [place or os.getcwd() for place in sys.path if isinstance(place, str)]
    done = subprocess.run(
        [sys.executable, "-c", MAKE, json.dumps(path), str(run_folder), namespace],
        env={**os.environ, "STEPWELL_MODE": "off", "CUDA_VISIBLE_DEVICES": ""},
        stdin=subprocess.DEVNULL,
        capture_output=True,
        timeout=LONGEST,
        check=False,
    )
    if done.returncode:
        lines = done.stderr.decode("utf-8", "replace").strip().splitlines()
        reason = lines[-1][:300] if lines else "no error message"
        raise CannotKeep(f"the documents cannot be created: {reason}")
    return [
        ConvertedItem(identifier, content=text.encode(), file=name, meta={"folder": True})
        for name, text in json.loads(done.stdout).items()
    ]
