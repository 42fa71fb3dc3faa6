"""Writing into the run what is no plain number on the quick way: odd metrics, and everything else."""

from __future__ import annotations

from collections.abc import Mapping
from time import perf_counter_ns as _now
from typing import Any

from stepwell.journal import clock, metrics
from stepwell.journal.errors import counts, misuse, quietly, warn_once
from stepwell.journal.format import IMPLICIT_STEP, ROW_BYTES, STEP_BIAS, WHOLE_ROW
from stepwell.journal.journal import Journal
from stepwell.journal.metrics import context as current
from stepwell.journal.state import current_journal, current_lane
from stepwell.journal.values import number, shown, text_of
from stepwell.loggers.audience import Words
from stepwell.loggers.context import Context
from stepwell.loggers.items import documents as prov_items
from stepwell.loggers.items import making as items
from stepwell.loggers.items.logged import keep_logged, kind_of, write_items
from stepwell.loggers.items.making import CannotKeep, Item

_pack = WHOLE_ROW.pack_into
READINGS = ("system", "carbon", "execution_time")
NO_NUMBER = "no number "
MOST_SAID = 10
"""Of so many metrics that are no numbers it is said."""


def journal_of(context: Context) -> Journal | None:
    """The journal to write to; None when it is no longer that of the context's run."""
    journal = current_journal()
    if journal is None or journal is context.journal or not context.is_here:
        # A child of this process has a journal of its own in the same run.
        return journal
    warn_once(
        f"another run {id(context)}",
        "the run that a logger logs to, %s, is finished, and another one is active: destroy the "
        "logger's context and create it again to log there; until then nothing is logged",
        "" if context.run is None else context.run.id,
    )
    return None


@quietly
def write_metric(context: Context, words: Words, identifier: str, value: Any, step: Any) -> None:
    """Write a metric's value, whatever it is and wherever this is called."""
    journal = journal_of(context)
    lane = None if journal is None else current_lane()
    if journal is None or lane is None:
        return
    if isinstance(value, Mapping):
        for name, inner in value.items():
            write_metric(context, words, f"{identifier}/{text_of(name)}", inner, step)
        return
    word = words[identifier]
    step_word = 0 if step is None else metrics._explicit(step)
    step_word = step_word or metrics.step_word_of(metrics.word_of(identifier))
    found, now = number(value), _now()
    if found is None:
        whole = None if step_word & IMPLICIT_STEP else step_word - STEP_BIAS
        if kind_of(value) and keep_logged(journal, identifier, value, whole, words.numbers):
            return
        journal.take_odd_value(lane, identifier, value, step_word, now, word)
        if not hasattr(value, "detach") or value.numel() != 1:
            _say_no_number(identifier, value)
    elif lane.row_next + ROW_BYTES <= lane.row_limit or lane.roll_metrics():
        row = lane.row_next
        lane.row_next = row + ROW_BYTES
        _pack(lane.rows, row, now, step_word, found, word)
    else:
        journal.count_drop("metrics")


clock.follow(globals())


def keep(
    context: Context,
    words: Words,
    identifier: str,
    kind: str,
    item: Any,
    step: Any,
    more: Mapping[str, Any],
) -> None:
    """Turn an item into something that can be kept; what fails is said, and training goes on."""
    if journal_of(context) is None:
        return
    try:
        record(context, words, kind, _made_of(context, words, identifier, kind, item, more), step)
    except CannotKeep as error:
        _say_not_kept(identifier, kind, str(error))
    except Exception as error:
        _say_not_kept(identifier, kind, f"{type(error).__name__}: {text_of(error)}")


def keep_documents(
    context: Context, words: Words, identifier: str, step: Any, namespace: str | None
) -> None:
    """Have the provenance documents of the run so far made and kept, in the background."""
    run = context.run
    if run is None or journal_of(context) is None:
        return
    where = current.step if step is None else step

    def work() -> None:
        try:
            made = prov_items.documents(run.path, identifier, namespace or prov_items.NAMESPACE)
            record(context, words, "prov_documents", made, where)
        except Exception as error:
            _say_not_kept(identifier, "prov_documents", text_of(error))

    context.work(work)


@quietly
def keep_params(context: Context, words: Words, flat: Mapping[str, Any]) -> None:
    """Record parameters that are flat already."""
    made = [Item(name, value=value) for name, value in flat.items()]
    record(context, words, "param", made, None)


def record(context: Context, words: Words, kind: str, made: list[Item], step: Any) -> None:
    """Write items into the journal, their contents into the run folder; OSError when it is full."""
    journal = journal_of(context)
    if journal is None or context.run is None:
        return
    where = current.step if step is None else _whole_step(step)
    write_items(journal, kind, made, where, words.numbers)


def _made_of(
    context: Context,
    words: Words,
    identifier: str,
    kind: str,
    item: Any,
    more: Mapping[str, Any],
) -> list[Item]:
    if kind in READINGS:
        return context.readings.made_of(kind, item, identifier, more)
    if kind == "watch":
        return _watch(context, words, identifier, item, more)
    return items.made_of(kind, item, identifier, more)


def _watch(
    context: Context, words: Words, identifier: str, model: Any, more: Mapping[str, Any]
) -> list[Item]:
    from stepwell.loggers.items.watching import EVERY, ModelStatistics

    for watch in context.watched:
        if watch.watches(model, identifier):
            watch.leave_to_caller()
            watch.take()
            return []

    def write(values: dict[str, float]) -> None:
        for name, value in values.items():
            write_metric(context, words, name, value, None)

    often = more.get("every", more.get("log_freq", EVERY))
    watch = ModelStatistics(model, identifier, write, often, more.get("groups"))
    context.watched.append(watch)
    watch.take()
    return [watch.described()]


def _whole_step(step: Any) -> int | None:
    word = metrics._explicit(step)
    return word - STEP_BIAS if word else None


def _say_no_number(identifier: str, value: Any) -> None:
    key = f"{NO_NUMBER}{identifier[:200]}"
    if key not in counts and sum(one.startswith(NO_NUMBER) for one in counts) >= MOST_SAID:
        return
    warn_once(
        key,
        "the metric %r is %s, no number: it is kept with the run, and goes to no backend. Other "
        "things have a kind of their own, such as kind='text'",
        identifier[:200],
        shown(value),
    )


def _say_not_kept(identifier: str, kind: str, reason: str) -> None:
    misuse(f"log {kind}", f"log(…, {identifier[:200]!r}, kind={kind!r}) kept nothing: {reason}")
