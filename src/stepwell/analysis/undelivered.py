"""Whether loggers and exporters of a run have handed over all that they had to.

    undelivered(run.path)  # ["mlflow"]: it is nowhere but in the run folder

A delivery that came to its end has written that down (``delivery-<name>-<number>.json``); one that was
given up leaves a note (``….undelivered.json``). A logger that has neither was cut off, by the end of its
machine say.
"""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

from stepwell.journal.document import read_json
from stepwell.journal.follow_document import FollowedDocument
from stepwell.journal.journal import EVENTS, LOGGER
from stepwell.journal.tail import Tail, parse_object
from stepwell.reading.process import process_folders

NOTES = "*.undelivered.json"


def undelivered(run: Path) -> list[str]:
    """Where to something of a run folder has not been delivered, such as mlflow or otlp."""
    found: dict[str, None] = {}
    for folder in process_folders(run):
        for note in sorted(folder.glob(NOTES)):
            found[str((read_json(note) or {}).get("exporter") or note.name)] = None
        for number, to in _loggers(folder):
            if not _was_ended(folder, number):
                found[to] = None
    return list(found)


def _was_ended(folder: Path, number: int) -> bool:
    """Whether the receiver of this logger was told how it ended: that is the last thing it is told."""
    kept = [read_json(path) or {} for path in folder.glob(f"delivery-*-{number}.json")]
    return any(state.get("status_delivered") is not None for state in kept)


def _loggers(folder: Path) -> Iterator[tuple[int, str]]:
    """Number and receiver of the loggers of a process that deliver to somewhere."""
    tail, paths = Tail(), [place / EVENTS for place in FollowedDocument(folder).folders()]
    seen: set[int] = set()
    while True:
        for line in tail.read(paths):
            event = (parse_object(line) or {}) if b'"logger"' in line else {}
            about = event.get("attributes")
            if event.get("kind") != LOGGER or not isinstance(about, dict) or "class" not in about:
                continue
            number = about.get("number")
            if type(number) is int and number not in seen:
                seen.add(number)
                yield number, str(about.get("to"))
        if not tail.more:
            return
