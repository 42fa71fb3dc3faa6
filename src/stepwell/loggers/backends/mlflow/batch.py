"""Converts one batch of records to MLflow's entities, and sends them to a run."""

from __future__ import annotations

import hashlib
import io
import json
import uuid
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from pathlib import Path, PurePosixPath
from typing import TYPE_CHECKING, Any

from stepwell.loggers.backends.mlflow.models import LoggedModule, Models, module_of
from stepwell.loggers.backends.mlflow.names import (
    LONGEST_KEY,
    LONGEST_PARAM,
    LONGEST_TAG,
    MOST_METRICS,
    MOST_PARAMS,
    cut,
    key_of,
    path_of,
    portions,
    text_of_param,
)
from stepwell.loggers.delivery import files as backend_files
from stepwell.loggers.delivery.backend import Backend, ItemRecord, LogRecord, MetricRecord
from stepwell.loggers.delivery.files import escape, renamed_message, shortened
from stepwell.loggers.kinds import MEASURES, context_name

if TYPE_CHECKING:
    from mlflow import MlflowClient
    from mlflow.entities import DatasetInput, Metric

NAME_TAG = "stepwell.name"
CHANGED_TAG = "stepwell.changed"
NUMBERS = (*MEASURES, "watch")
TABLES_TAG = "mlflow.loggedArtifacts"
SUMMARY = "summary"
VALUE = "value"
SYSTEM = "system/"
"""MLflow shows metrics with this prefix on a separate page."""


class MLflowBatch:
    """Collects the entities of a batch, then sends them.

    The caller saves ``params`` and ``paths`` after everything was sent, not before. ``models`` (the logged
    models that were created) is the exception: it is updated at once.
    """

    def __init__(self, backend: Backend, client: MlflowClient, params: Mapping[str, str]) -> None:
        """Args: ``params`` are the parameters that the run has already."""
        self.client = client
        self.run_id = str(backend.state["run_id"])
        self.content_path = backend.content_path
        self.warn = backend.warn
        self.params = dict(params)
        self.paths = backend_files.Paths(backend.state["files"])
        self.models: dict[str, str] = backend.state.setdefault("models", {})
        self.metrics: dict[tuple[str, int, str, int], Metric] = {}
        self.new_params: dict[str, str] = {}
        self.tags: dict[str, str] = {}
        self.files: list[tuple[str, Path | bytes]] = []
        self.pictures: list[Picture] = []
        self.modules: list[LoggedModule] = []
        self.datasets: list[DatasetInput] = []
        self.tables: list[str] = []

    # Collecting

    def take(self, records: list[LogRecord]) -> None:
        """Convert the records to metrics, parameters, tags, files, images, models and datasets."""
        for record in records:
            if isinstance(record, MetricRecord):
                self._metric(record.name, record.value, record.step, record.time_ns)
            else:
                self._item(record)

    def _item(self, item: ItemRecord) -> None:
        if item.kind == "param":
            self._param(item)
        elif item.kind == SUMMARY:
            self._summary(item)
        elif item.kind == VALUE:
            # It may be logged at every step, so only the latest value is kept, as a tag.
            self.tags[self._key(item.name)] = cut(text_of_param(item.value), LONGEST_TAG)
        elif item.kind in NUMBERS and (numbers := backend_files.numbers_of(item)) is not None:
            above = SYSTEM if item.kind == "system" else ""
            for name, value in numbers.items():
                name = name if name.startswith(above) else above + name
                self._metric(name, value, item.step, item.time_ns)
        elif item.content is not None and not self.content_path(item.content).is_file():
            missing = self.content_path(item.content)
            self.warn(
                "content", f"{missing} was removed and is not in MLflow; others may be missing too"
            )
        elif (picture := picture_of(item, self.content_path)) is not None:
            self.pictures.append(picture)
        elif (module := module_of(item, self.content_path)) is not None:
            self.modules.append(module)
        else:
            if item.attributes.get("registered_model_name"):
                self._warn_not_registered(item)
            if item.kind == "dataset":
                self.datasets.append(_dataset(item))
            path = self._file(backend_files.path_of(item), self._content(item), item.step)
            if item.kind == "table":
                self.tables.append(path)

    def _metric(self, name: str, value: float, step: int | None, time_ns: int) -> None:
        from mlflow.entities import Metric

        key, at, millisecond = self._key(name), step or 0, in_milliseconds(time_ns)
        # MLflow tells two values of the same step apart by the millisecond only.
        while (key, at, repr(value), millisecond) in self.metrics:
            millisecond += 1
        self.metrics[key, at, repr(value), millisecond] = Metric(key, value, millisecond, at)

    def _summary(self, item: ItemRecord) -> None:
        """Convert a final value to a metric, or to a tag if it is not a number."""
        numbers = backend_files.numbers_of(item)
        if numbers is None:
            tag = key_of(f"{SUMMARY}/{item.name}")
            self.tags[tag] = cut(text_of_param(item.value), LONGEST_TAG)
            return
        for name, value in numbers.items():
            self._metric(f"{SUMMARY}/{name}", value, item.step, item.time_ns)

    def _param(self, item: ItemRecord) -> None:
        key, whole = self._key(item.name), text_of_param(item.value)
        text = cut(whole, LONGEST_PARAM)
        if text != whole:
            self.warn(
                "long param",
                f"MLflow parameters have at most {LONGEST_PARAM} characters: {item.name!r} is cut, and the "
                "whole value is an artifact in params/. Other long parameters are cut too",
            )
            self._file(f"params/{item.name}.txt", whole.encode("utf-8", "replace"), item.step)
        before = self.params.setdefault(key, text)
        if before == text:
            self.new_params[key] = text
            return
        tag = key_of(f"{CHANGED_TAG}.{item.name}")
        self.tags[tag] = cut(whole, LONGEST_TAG)
        self.warn(
            "changed param",
            f"MLflow parameters cannot change: {item.name!r} keeps its first value, and its latest value is "
            f"the tag {tag!r}. The same applies to other changed parameters",
        )

    def _warn_not_registered(self, item: ItemRecord) -> None:
        self.warn(
            f"not registered {item.name[:100]}",
            f"{item.name!r} is a file of weights, not a whole model, and is not registered as "
            f"{item.attributes['registered_model_name']!r}. Log the torch.nn.Module itself",
        )

    def _key(self, name: str) -> str:
        key = key_of(name)
        if key != name:
            self.warn("name", renamed_message(name, key, "MLflow"))
        if len(key) == LONGEST_KEY and key != name:
            # The whole name, which cannot be restored from a shortened key.
            digest = hashlib.sha256(name.encode("utf-8", "replace")).hexdigest()[:12]
            self.tags[f"{NAME_TAG}.{digest}"] = cut(name, LONGEST_TAG)
        return key

    def _file(self, path: str, content: Path | bytes, step: int | None) -> str:
        digest = content.name if isinstance(content, Path) else hashlib.sha256(content).hexdigest()
        free = self.paths.free(path_of(path), digest[:16], step)
        self.files.append((free, content))
        return free

    def _content(self, item: ItemRecord) -> Path | bytes:
        if item.content is not None:
            return self.content_path(item.content)
        return backend_files.bytes_of(item)

    # Sending

    def send(self, again: bool = False, only_new: bool = False) -> None:
        """Send everything.

        Args:
            again: whether parts of the batch may be there already.
            only_new: whether to look up first which metrics are there, and leave them out.
        """
        from mlflow.entities import Param, RunTag

        client, run_id = self.client, self.run_id
        params = [Param(key, text) for key, text in self.new_params.items()]
        for portion in portions(params, MOST_PARAMS):
            self._log("params", portion)
        if self.pictures:
            self.tags["mlflow.loggedImages"] = "True"
        if self.tables:
            self.tags[TABLES_TAG] = self._shown_tables()
        tags = [RunTag(key, text) for key, text in self.tags.items()]
        for some in portions(tags, MOST_PARAMS):
            self._log("tags", some)
        for few in portions(self._metrics_to_send(only_new), MOST_METRICS):
            self._log("metrics", few)
        if self.datasets:
            client.log_inputs(run_id, self.datasets)
        for path, content in self.files:
            self._upload(path, content)
        for picture in self.pictures:
            picture.upload(self._upload)
        models = Models(client, run_id, self.params, self.models, self.warn)
        for module in self.modules:
            models.send(module, again)

    def _shown_tables(self) -> str:
        """Return the value of the tag that lists the files to show as tables."""
        try:
            shown = json.loads(self.client.get_run(self.run_id).data.tags.get(TABLES_TAG) or "[]")
        except ValueError:
            shown = []
        shown += [{"path": path, "type": "table"} for path in self.tables]
        unique = [table for number, table in enumerate(shown) if table not in shown[:number]]
        while len(text := json.dumps(unique)) > LONGEST_TAG:
            # The file stays; it is only not shown as a table.
            unique.pop(0)
        return text

    def _log(self, what: str, portion: list[Any]) -> None:
        """Log a portion. If MLflow refuses some entities for good, log the others."""
        from mlflow.exceptions import MlflowException

        try:
            self.client.log_batch(self.run_id, **{what: portion}, synchronous=True)
        except MlflowException as error:
            if error.error_code != "INVALID_PARAMETER_VALUE" or not self._is_active():
                raise
            if len(portion) > 1:
                half = len(portion) // 2
                self._log(what, portion[:half])
                self._log(what, portion[half:])
            else:
                self._refused(what, portion[0], str(error))

    def _is_active(self) -> bool:
        return bool(self.client.get_run(self.run_id).info.lifecycle_stage == "active")

    def _refused(self, what: str, thing: Any, why: str) -> None:
        self.warn("refused", f"MLflow does not accept {thing.key!r}: {cut(why, 300)}")
        if what == "params":
            # Someone else may have logged another value in the meantime.
            self.tags[key_of(f"{CHANGED_TAG}.{thing.key}")] = cut(str(thing.value), LONGEST_TAG)

    def _upload(self, path: str, content: Path | bytes) -> None:
        where = PurePosixPath(path)
        with backend_files.named(content, where.name) as file:
            folder = None if where.parent == PurePosixPath() else str(where.parent)
            self.client.log_artifact(self.run_id, str(file), folder)

    def _metrics_to_send(self, only_new: bool) -> list[Metric]:
        if not only_new:
            return list(self.metrics.values())
        stored = {
            (metric.key, metric.step, repr(metric.value), metric.timestamp)
            for key in {key for key, *_ in self.metrics}
            for metric in self.client.get_metric_history(self.run_id, key)
        }
        return [metric for key, metric in self.metrics.items() if key not in stored]


def in_milliseconds(time_ns: int) -> int:
    """Return a time in milliseconds, MLflow's unit."""
    return max(0, time_ns // 1_000_000)


def _dataset(item: ItemRecord) -> DatasetInput:
    """Return a dataset as an input of the run."""
    from mlflow.entities import Dataset, DatasetInput, InputTag

    description = item.value if isinstance(item.value, dict) else {"value": item.value}
    own: dict[str, Any] = description.get("mlflow") or {}
    text = json.dumps(description, sort_keys=True, default=str)
    digest = hashlib.sha256(text.encode()).hexdigest()[:16]
    source = description.get("source") or description.get("path") or description.get("root") or ""
    context = context_name(item.attributes.get("context") or "training")
    return DatasetInput(
        Dataset(
            name=str(own.get("name") or item.name)[:500],
            digest=str(own.get("digest") or digest)[:36],
            source_type=str(own.get("source_type") or description.get("type") or "unknown"),
            source=cut(str(own.get("source") or json.dumps({"uri": str(source)})), 60_000),
            schema=cut(str(own["schema"]), 1_000_000) if own.get("schema") else None,
            profile=cut(str(own.get("profile") or text), 1_000_000),
        ),
        [InputTag("mlflow.data.context", context)],
    )


Upload = Callable[[str, Path | bytes], None]

SMALL_SIDE = 256
"""Pixels of the longer side of the thumbnail for MLflow's overview."""


@dataclass(frozen=True)
class Picture:
    """A PNG file at a step, which MLflow shows with a slider.

    ``path`` is the path that MLflow's ``log_image`` would choose, without the suffix. ``log_image`` itself
    would upload a repeated image twice.
    """

    path: str
    content: Path

    def upload(self, upload: Upload) -> None:
        """Upload the file and a thumbnail."""
        upload(f"{self.path}.png", self.content)
        upload(f"{self.path}+compressed.webp", _small(self.content))


def picture_of(item: ItemRecord, content_path: Callable[[str], Path]) -> Picture | None:
    """Return the item as a picture if it is a readable PNG file with a step; else None."""
    if item.kind not in ("figure", "image") or item.step is None or item.content is None:
        return None
    content = content_path(item.content)
    if item.media != "image/png" or not _is_readable(content):
        return None
    key = escape(item.name.strip("/") or item.kind, _allowed).replace("/", "~")
    # The same for each attempt to send it.
    unique = uuid.uuid5(uuid.NAMESPACE_OID, f"{item.name} {item.content} {item.time_ns}")
    milliseconds = item.time_ns // 1_000_000
    name = f"{shortened(key, 120)}+step+{item.step}+timestamp+{milliseconds}+{unique}"
    return Picture(f"images/{name}", content)


def _allowed(character: str) -> bool:
    return character.isascii() and (character.isalnum() or character in "_-./ ")


def _is_readable(content: Path) -> bool:
    try:
        from PIL import Image
    except ImportError:
        return False
    try:
        with Image.open(content) as picture:
            picture.verify()
    except Exception:  # not an image, or a damaged one: it stays a plain file
        return False
    return True


def _small(content: Path) -> bytes:
    from PIL import Image

    target = io.BytesIO()
    with Image.open(content) as picture:
        picture.thumbnail((SMALL_SIDE, SMALL_SIDE))
        picture.save(target, "WEBP")
    return target.getvalue()
