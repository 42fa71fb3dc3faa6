"""The entities of a provenance document: datasets, models, checkpoints and other files.

Also computes the sha256 of checkpoints that training wrote itself, soon after they were saved. The journal
has their folder, size and time. A file counts as the checkpoint only if it is the only one of that size from
that time.
"""

from __future__ import annotations

import hashlib
import re
from collections import defaultdict
from collections.abc import Mapping
from itertools import islice
from pathlib import Path
from typing import Any

from stepwell._core.files import read_json
from stepwell.loggers.delivery.backend import BACKENDS
from stepwell.loggers.kinds import MEASURES, context_name
from stepwell.loggers.prov.activities import Activities
from stepwell.loggers.prov.history import LoggedItem, RunHistory, SavedCheckpoint
from stepwell.loggers.prov.statements import (
    MAX_VALUE,
    Name,
    Statements,
    Uri,
    digest_of,
    json_of,
    local_name,
    printable,
    value_of,
)
from stepwell.telemetry.artifacts import artifact_path, file_sha256

MODELS = ("model", "best_model")
NO_PRODUCTS = ("param", "dataset", "watch", "prov_documents", *MEASURES)
"""Kinds that the document contains in another form."""
MOST_FILES = 2000
"""The largest number of files in the document; the latest ones."""
CONTEXTS = {
    "training": "training_loop",
    "validation": "validation_loop",
    "evaluation": "validation_loop",
    "testing": "testing_loop",
    "test": "testing_loop",
}
"""Values of ``log(…, context=…)`` and the phases that they mean."""
LOADED_FROM = ("checkpoint_path", "checkpoint_directory", "path")
"""Attributes of a load with the place that it loads from."""
CHECKPOINT_SUMS = "prov-checkpoints"
"""Prefix of the files in which backends store the checksums of checkpoints."""


class Products:
    """Adds the entities to the document, each with its sha256 and its origin."""

    def __init__(
        self, history: RunHistory, statements: Statements, activities: Activities, user: str
    ) -> None:
        self.history = history
        self.statements = statements
        self.activities = activities
        self.user = user
        self._data: list[tuple[str, LoggedItem]] = []
        for item in history.items:
            if is_data(item):
                self._dataset(item)
        self._saved: list[tuple[str, int, str]] = []
        self._checkpoints()
        self._loads()
        self._files()

    # Datasets

    def _dataset(self, item: LoggedItem) -> None:
        value = item.value if isinstance(item.value, dict) else {"description": item.value}
        data = _innermost(value)
        sha256 = item.sha256 or _sha256(data.get("sha256"))
        entity = self.statements.entity(
            f"run:{local_name(['dataset', item.name, (sha256 or digest_of(value))[:12]])}",
            prov_type=Name("stepwell:Dataset"),
            prov_label=item.name,
            prov_location=_place(data.get("path") or data.get("source")),
            stepwell_samples=_whole(data.get("length")),
            stepwell_size=_whole(data.get("size")) or item.size,
            stepwell_sha256=sha256,
            stepwell_sha256_of_names_and_sizes=_text(data.get("sha256_of_names_and_sizes")),
            dcterms_description=json_of(value)[:MAX_VALUE] if item.value is not None else None,
            **_more(item.attributes),
        )
        self._data.append((entity, item))
        self.statements.relate("used", self._user_of(item), entity)

    def _user_of(self, item: LoggedItem) -> str:
        """Return the activity that used a dataset: the phase it was logged for, or the whole attempt."""
        context = context_name(item.attributes.get("context", ""))
        phases = self.activities.named(item.attempt, CONTEXTS.get(context, ""))
        return phases or self.activities.attempts[item.attempt]

    def _learned_from(self, attempt: int, time: int) -> list[str]:
        """Return the datasets that were used for training before this time."""
        return [
            entity
            for entity, item in self._data
            if item.attempt == attempt and item.time <= time and _is_for_training(item)
        ]

    # Checkpoints

    def _checkpoints(self) -> None:
        sums = self._sums()
        latest: dict[int, str] = {}
        groups: dict[tuple[int, int | None], list[SavedCheckpoint]] = defaultdict(list)
        for saved in self.history.checkpoints:
            groups[saved.attempt, _whole(saved.attributes.get("current_iteration"))].append(saved)
        for (attempt, step), parts in groups.items():
            first = min(parts, key=lambda part: part.rank)
            computed = sums.get(sum_key(first), {})
            ranks = len({part.rank for part in parts})
            entity = self.statements.entity(
                f"run:checkpoint/attempt-{attempt}/step-{'unknown' if step is None else step}",
                prov_type=Name("stepwell:Checkpoint"),
                prov_label=f"checkpoint, step {step}",
                prov_location=_place(
                    computed.get("file") or first.attributes.get("checkpoint_directory")
                ),
                stepwell_step=step,
                stepwell_size=_whole(first.attributes.get("checkpoint_size")),
                stepwell_strategy=_text(first.attributes.get("checkpoint_strategy")),
                stepwell_ranks=ranks if ranks > 1 else None,
                stepwell_sha256=_sha256(computed.get("sha256")),
            )
            time = max(part.time for part in parts)
            saving = self.activities.of_span(first.span)
            activity = saving or self.activities.around(attempt, time, time)
            self.activities.generate(entity, activity, time)
            self._derive(entity, attempt, time, latest.get(attempt), None)
            latest[attempt] = entity
            for place in (computed.get("file"), first.attributes.get("checkpoint_directory")):
                self._saved += [(place, time, entity)] if isinstance(place, str) else []

    def _loads(self) -> None:
        """Add which checkpoint a load used, if it recorded the place."""
        for phase in self.history.phases:
            paths = [phase.attributes.get(key) for key in LOADED_FROM]
            if phase.name == "checkpoint_load" and any(paths):
                places = {str(path).rstrip("/") for path in paths if path}
                before = [
                    e for place, time, e in self._saved if place in places and time <= phase.start
                ]
                loading = self.activities.of_span(phase.id)
                if before and loading:
                    self.statements.relate("used", loading, before[-1])

    def _sums(self) -> dict[str, Any]:
        sums: dict[str, Any] = {}
        for path in sorted((self.history.folder / BACKENDS).glob(f"{CHECKPOINT_SUMS}-*.json")):
            for key, value in (read_json(path) or {}).items():
                sums[key] = value if isinstance(value, dict) else {}
        return sums

    # Models and other files

    def _files(self) -> None:
        items = [i for i in self.history.items if i.kind not in NO_PRODUCTS and not is_data(i)]
        before: dict[tuple[Any, ...], str] = {}
        for item in items[-MOST_FILES:]:
            entity = self._file(item)
            file = item.file if item.attributes.get("folder") else None
            key = (item.attempt, item.rank, item.kind, item.name, file)
            if self.statements.related("wasGeneratedBy", entity):
                continue
            activity = self.activities.around(item.attempt, item.time, item.time)
            self.activities.generate(entity, activity, item.time)
            earlier = before.get(key)
            if item.kind in MODELS:
                self._derive(entity, item.attempt, item.time, None, earlier)
            else:
                self._attribute(entity, earlier)
            before[key] = entity

    def _file(self, item: LoggedItem) -> str:
        inside = [item.file] if item.attributes.get("folder") and item.file else []
        sha256 = item.sha256 or digest_of(item.value)
        kind = "model" if item.kind in MODELS else item.kind
        path = None if item.sha256 is None else artifact_path(self.history.folder, item.sha256)
        types = [Name("stepwell:Model" if item.kind in MODELS else "stepwell:Artifact")]
        if item.kind == "best_model":
            types.append(Name("stepwell:BestModel"))
        return self.statements.entity(
            f"run:{local_name([kind, f'attempt-{item.attempt}', item.name, *inside, sha256[:12]])}",
            prov_type=types,
            prov_label=item.name if not inside else f"{item.name}/{item.file}",
            prov_location=None if path is None else Uri(path.as_uri()),
            prov_value=None if item.sha256 else value_of(item.value),
            dcterms_format=item.media,
            stepwell_kind=item.kind,
            stepwell_file=item.file,
            stepwell_step=item.step,
            stepwell_epoch=item.epoch,
            stepwell_rank=item.rank if self.history.ranks > 1 else None,
            stepwell_size=item.size,
            stepwell_sha256=sha256,
            **_more(item.attributes),
        )

    def _derive(
        self,
        entity: str,
        attempt: int,
        time: int,
        earlier: str | None,
        revised: str | None,
    ) -> None:
        """Add the origin of weights: training data, the weights before, and earlier weights of this name."""
        for data in self._learned_from(attempt, time):
            self.statements.relate("wasDerivedFrom", entity, data)
        if earlier is not None and earlier != entity:
            self.statements.relate("wasDerivedFrom", entity, earlier)
        self._attribute(entity, revised)

    def _attribute(self, entity: str, revised: str | None) -> None:
        if revised is not None and revised != entity:
            revision = Name("prov:Revision")
            self.statements.relate("wasDerivedFrom", entity, revised, prov_type=revision)
        self.statements.relate("wasAttributedTo", entity, self.user)


def is_data(item: LoggedItem) -> bool:
    """Return whether an item is an input of the run, not a product."""
    # A data loader is stored as a description, whatever kind it was logged as.
    loader = item.kind == "torch" and item.sha256 is None
    return item.kind == "dataset" or loader or item.attributes.get("is_input") is True


def _innermost(value: dict[str, Any]) -> dict[str, Any]:
    """Return the description of the data itself; that of a data loader includes its own attributes."""
    inner = value.get("dataset")
    return {**value, **_innermost(inner)} if isinstance(inner, dict) else value


def _is_for_training(item: LoggedItem) -> bool:
    context = context_name(item.attributes.get("context", ""))
    if context:
        return CONTEXTS.get(context) == "training_loop"
    words = item.name.lower()
    return not any(word in words for word in ("val", "test", "eval", "holdout"))


def _more(attributes: dict[str, Any]) -> dict[str, Any]:
    """Return the further attributes of an item, in stepwell's namespace."""
    return {
        f"stepwell:{local_name([key])}": value_of(value)
        for key, value in attributes.items()
        if value is not None and key != "folder"
    }


def _place(value: Any) -> Any:
    text = _text(value)
    if text is None:
        return None
    if text.startswith("/"):
        from urllib.parse import quote

        return Uri(f"file://{quote(printable(text))}")
    return Uri(text) if "://" in text else text


def _text(value: Any) -> str | None:
    return value if isinstance(value, str) and value else None


def _sha256(value: Any) -> str | None:
    return value if isinstance(value, str) and re.fullmatch("[0-9a-f]{64}", value) else None


def _whole(value: Any) -> int | None:
    return value if type(value) is int else None


LARGEST = 8 << 30
"""The largest checkpoint whose checksum is computed, in bytes."""
SLACK = 2_000_000_000
"""Largest difference between the clocks of the file system and of a process, in nanoseconds."""
MOST_CANDIDATES = 10_000


def checkpoint_sums(history: RunHistory, process: str, before: Mapping[str, Any]) -> dict[str, Any]:
    """Return the checksums of all checkpoints of a process: those in ``before``, and new ones."""
    sums = dict(before)
    starts = {phase.id: phase.start for phase in history.phases}
    for saved in history.checkpoints:
        key = sum_key(saved)
        if saved.process == process and key not in sums:
            start = starts.get(saved.span, saved.time) if saved.span is not None else saved.time
            sums[key] = _sum(saved, start) or {}
    return sums


def sum_key(saved: SavedCheckpoint) -> str:
    """Return the key of a checkpoint in the file of checksums."""
    return f"{saved.process} {saved.span} {saved.time}"


def _sum(saved: SavedCheckpoint, start: int) -> dict[str, Any] | None:
    directory, size = (
        saved.attributes.get("checkpoint_directory"),
        saved.attributes.get("checkpoint_size"),
    )
    if not isinstance(directory, str) or not isinstance(size, int) or size > LARGEST:
        return None
    try:
        return _of_folder(Path(directory), size, start - SLACK, saved.time + SLACK)
    except OSError:
        return None


def _of_folder(folder: Path, size: int, start: int, end: int) -> dict[str, Any] | None:
    files = [path for path in islice(folder.iterdir(), MOST_CANDIDATES) if path.is_file()]
    alike = [path for path in files if _is_fresh(path, start, end) and path.stat().st_size == size]
    if len(alike) == 1:
        return {"sha256": file_sha256(alike[0]), "file": str(alike[0].absolute())}
    if alike:
        return None
    # Perhaps the folder is the checkpoint: then it has nothing else in it, and its sum is that of a line
    # for each of its files.
    files = sorted(path for path in islice(folder.rglob("*"), MOST_CANDIDATES) if path.is_file())
    if not all(_is_fresh(path, start, end) for path in files):
        return None
    if not files or sum(path.stat().st_size for path in files) != size:
        return None
    lines = [f"{file_sha256(path)}  {path.relative_to(folder).as_posix()}\n" for path in files]
    whole = hashlib.sha256("".join(lines).encode("utf-8", "replace")).hexdigest()
    return {"sha256": whole, "file": str(folder.absolute())}


def _is_fresh(path: Path, start: int, end: int) -> bool:
    return start <= path.stat().st_mtime_ns <= end
