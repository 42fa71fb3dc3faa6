"""What a run was given and what it made: datasets, models, checkpoints and other files."""

from __future__ import annotations

import re
from collections import defaultdict
from typing import Any

from stepwell.journal.document import read_json
from stepwell.loggers.delivery.backend import BACKENDS
from stepwell.loggers.kinds import context_name
from stepwell.loggers.prov.activities import Activities
from stepwell.loggers.prov.checkpoint_sums import sum_key
from stepwell.loggers.prov.digests import MAX_VALUE, digest_of, json_of, value_of
from stepwell.loggers.prov.facts import MEASURES, Checkpoint, Facts, Item
from stepwell.loggers.prov.statements import Name, Statements, Uri, local_name, printable
from stepwell.telemetry.artifacts import artifact_path

MODELS = ("model", "best_model")
NO_PRODUCTS = ("param", "dataset", "watch", "prov_documents", *MEASURES)
"""Kinds that are told otherwise."""
MOST_FILES = 2000
"""Of more files than that, the latest are in the document."""
CONTEXTS = {
    "training": "training_loop",
    "validation": "validation_loop",
    "evaluation": "validation_loop",
    "testing": "testing_loop",
    "test": "testing_loop",
}
"""What ``log(…, context=…)`` may say, and the phases that are meant."""
LOADED_FROM = ("checkpoint_path", "checkpoint_directory", "path")
"""Attributes of a load that say from where."""
CHECKPOINT_SUMS = "prov-checkpoints"
"""How the files begin in which backends keep the sums of checkpoints."""


class Products:
    """States them, each with its sha256 and with what it came from."""

    def __init__(
        self, facts: Facts, statements: Statements, activities: Activities, user: str
    ) -> None:
        self.facts = facts
        self.statements = statements
        self.activities = activities
        self.user = user
        self._data: list[tuple[str, Item]] = []
        for item in facts.items:
            if is_data(item):
                self._dataset(item)
        self._saved: list[tuple[str, int, str]] = []
        self._checkpoints()
        self._loads()
        self._files()

    # Datasets

    def _dataset(self, item: Item) -> None:
        value = item.value if isinstance(item.value, dict) else {"description": item.value}
        about = _innermost(value)
        sha256 = item.sha256 or _sha256(about.get("sha256"))
        entity = self.statements.entity(
            f"run:{local_name(['dataset', item.name, (sha256 or digest_of(value))[:12]])}",
            prov_type=Name("stepwell:Dataset"),
            prov_label=item.name,
            prov_location=_place(about.get("path") or about.get("source")),
            stepwell_samples=_whole(about.get("length")),
            stepwell_size=_whole(about.get("size")) or item.size,
            stepwell_sha256=sha256,
            stepwell_sha256_of_names_and_sizes=_text(about.get("sha256_of_names_and_sizes")),
            dcterms_description=json_of(value)[:MAX_VALUE] if item.value is not None else None,
            **_more(item.attributes),
        )
        self._data.append((entity, item))
        self.statements.relate("used", self._user_of(item), entity)

    def _user_of(self, item: Item) -> str:
        """What used a dataset: the phases it was logged for, or the attempt as a whole."""
        context = context_name(item.attributes.get("context", ""))
        phases = self.activities.named(item.attempt, CONTEXTS.get(context, ""))
        return phases or self.activities.attempts[item.attempt]

    def _learned_from(self, attempt: int, time: int) -> list[str]:
        """The datasets that what was made at this time came from: not those to validate or test with."""
        return [
            entity
            for entity, item in self._data
            if item.attempt == attempt and item.time <= time and _is_for_training(item)
        ]

    # Checkpoints

    def _checkpoints(self) -> None:
        sums = self._sums()
        latest: dict[int, str] = {}
        groups: dict[tuple[int, int | None], list[Checkpoint]] = defaultdict(list)
        for saved in self.facts.checkpoints:
            groups[saved.attempt, _whole(saved.attributes.get("current_iteration"))].append(saved)
        for (attempt, step), parts in groups.items():
            first = min(parts, key=lambda part: part.rank)
            known = sums.get(sum_key(first), {})
            ranks = len({part.rank for part in parts})
            entity = self.statements.entity(
                f"run:checkpoint/attempt-{attempt}/step-{'unknown' if step is None else step}",
                prov_type=Name("stepwell:Checkpoint"),
                prov_label=f"checkpoint, step {step}",
                prov_location=_place(
                    known.get("file") or first.attributes.get("checkpoint_directory")
                ),
                stepwell_step=step,
                stepwell_size=_whole(first.attributes.get("checkpoint_size")),
                stepwell_strategy=_text(first.attributes.get("checkpoint_strategy")),
                stepwell_ranks=ranks if ranks > 1 else None,
                stepwell_sha256=_sha256(known.get("sha256")),
            )
            time = max(part.time for part in parts)
            saving = self.activities.of_span(first.span)
            made_by = saving or self.activities.around(attempt, time, time)
            self.activities.generate(entity, made_by, time)
            self._derive(entity, made_by, attempt, time, latest.get(attempt), None)
            latest[attempt] = entity
            for place in (known.get("file"), first.attributes.get("checkpoint_directory")):
                self._saved += [(place, time, entity)] if isinstance(place, str) else []

    def _loads(self) -> None:
        """What a load used, where it says from where it loaded."""
        for phase in self.facts.phases:
            said = [phase.attributes.get(key) for key in LOADED_FROM]
            if phase.name == "checkpoint_load" and any(said):
                places = {str(place).rstrip("/") for place in said if place}
                before = [
                    e for place, time, e in self._saved if place in places and time <= phase.start
                ]
                loading = self.activities.of_span(phase.id)
                if before and loading:
                    self.statements.relate("used", loading, before[-1])

    def _sums(self) -> dict[str, Any]:
        found: dict[str, Any] = {}
        for path in sorted((self.facts.folder / BACKENDS).glob(f"{CHECKPOINT_SUMS}-*.json")):
            for key, value in (read_json(path) or {}).items():
                found[key] = value if isinstance(value, dict) else {}
        return found

    # Models and other files

    def _files(self) -> None:
        items = [i for i in self.facts.items if i.kind not in NO_PRODUCTS and not is_data(i)]
        before: dict[tuple[Any, ...], str] = {}
        for item in items[-MOST_FILES:]:
            entity = self._file(item)
            file = item.file if item.attributes.get("folder") else None
            key = (item.attempt, item.rank, item.kind, item.name, file)
            made_by = self.activities.around(item.attempt, item.time, item.time)
            if self.statements.related("wasGeneratedBy", entity):
                continue
            self.activities.generate(entity, made_by, item.time)
            earlier = before.get(key)
            if item.kind in MODELS:
                self._derive(entity, made_by, item.attempt, item.time, None, earlier)
            else:
                self._attribute(entity, earlier)
            before[key] = entity

    def _file(self, item: Item) -> str:
        inside = [item.file] if item.attributes.get("folder") and item.file else []
        sha256 = item.sha256 or digest_of(item.value)
        kind = "model" if item.kind in MODELS else item.kind
        path = None if item.sha256 is None else artifact_path(self.facts.folder, item.sha256)
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
            stepwell_rank=item.rank if self.facts.ranks > 1 else None,
            stepwell_size=item.size,
            stepwell_sha256=sha256,
            **_more(item.attributes),
        )

    def _derive(
        self,
        entity: str,
        made_by: str,
        attempt: int,
        time: int,
        earlier: str | None,
        revised: str | None,
    ) -> None:
        """State what weights came from: data, those before them, those of the same name."""
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


def is_data(item: Item) -> bool:
    """Whether an item was given to the run, and not made by it."""
    # A data loader is described, whatever kind it was logged as.
    loader = item.kind == "torch" and item.sha256 is None
    return item.kind == "dataset" or loader or item.attributes.get("is_input") is True


def _innermost(value: dict[str, Any]) -> dict[str, Any]:
    """What a description says of the data itself, of a loader of it besides its own."""
    inner = value.get("dataset")
    return {**value, **_innermost(inner)} if isinstance(inner, dict) else value


def _is_for_training(item: Item) -> bool:
    context = context_name(item.attributes.get("context", ""))
    if context:
        return CONTEXTS.get(context) == "training_loop"
    words = item.name.lower()
    return not any(word in words for word in ("val", "test", "eval", "holdout"))


def _more(attributes: dict[str, Any]) -> dict[str, Any]:
    """What else was said about an item, under names of our own."""
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
