"""One batch of records on its way to an MLflow run."""

from __future__ import annotations

import hashlib
import json
from collections.abc import Callable, Mapping
from pathlib import Path, PurePosixPath
from typing import TYPE_CHECKING, Any

from stepwell.loggers.backends.mlflow.images import Picture, picture_of
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
from stepwell.loggers.delivery.backend import ItemRecord, LogRecord, MetricRecord
from stepwell.loggers.delivery.names import in_words
from stepwell.loggers.kinds import context_name

if TYPE_CHECKING:
    from mlflow import MlflowClient
    from mlflow.entities import DatasetInput, Metric

NAME_TAG = "stepwell.name"
CHANGED_TAG = "stepwell.changed"
NUMBERS = ("system", "carbon", "execution_time", "flops_pb", "flops_pe", "watch")
TABLES_TAG = "mlflow.loggedArtifacts"
SUMMARY = "summary"
VALUE = "value"
SYSTEM = "system/"
"""MLflow shows metrics whose names begin with this in a place of their own."""


class Sending:
    """Collects what a batch comes to, and sends it.

    Nothing of it is remembered before all of it was sent: ``params`` and ``paths`` are for the caller to
    keep then. ``models`` is the exception: which logged models were created.
    """

    def __init__(
        self,
        client: MlflowClient,
        run_id: str,
        content_path: Callable[[str], Path],
        params: Mapping[str, str],
        files: Mapping[str, str],
        models: dict[str, str],
        say: Callable[[str, str], None],
    ) -> None:
        self.client = client
        self.run_id = run_id
        self.content_path = content_path
        self.say = say
        self.params = dict(params)
        self.paths = backend_files.Paths(files)
        self.models = models
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
        """Sort the records by what MLflow has for them."""
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
            # Perhaps logged at every step: the latest one is a tag.
            self.tags[self._key(item.name)] = cut(text_of_param(item.value), LONGEST_TAG)
        elif item.kind in NUMBERS and (numbers := backend_files.numbers_of(item)) is not None:
            above = SYSTEM if item.kind == "system" else ""
            for name, value in numbers.items():
                name = name if name.startswith(above) else above + name
                self._metric(name, value, item.step, item.time_ns)
        elif item.content is not None and not self.content_path(item.content).is_file():
            gone = self.content_path(item.content)
            self.say("content", f"{gone} is gone, and so is not in MLflow; likewise for others")
        elif (picture := picture_of(item, self.content_path)) is not None:
            self.pictures.append(picture)
        elif (module := module_of(item, self.content_path)) is not None:
            self.modules.append(module)
        else:
            if item.attributes.get("registered_model_name"):
                self._say_not_registered(item)
            if item.kind == "dataset":
                self.datasets.append(_dataset(item))
            path = self._file(backend_files.path_of(item), self._content(item), item.step)
            if item.kind == "table":
                self.tables.append(path)

    def _metric(self, name: str, value: float, step: int | None, time_ns: int) -> None:
        from mlflow.entities import Metric

        key, at, millisecond = self._key(name), step or 0, in_milliseconds(time_ns)
        # Its table tells two values of the same step by the millisecond only.
        while (key, at, repr(value), millisecond) in self.metrics:
            millisecond += 1
        self.metrics[key, at, repr(value), millisecond] = Metric(key, value, millisecond, at)

    def _summary(self, item: ItemRecord) -> None:
        """A final value: a metric, or a tag where it is no number."""
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
            self.say(
                "long param",
                f"MLflow takes {LONGEST_PARAM} characters of a parameter: {item.name!r} is cut there, and "
                "whole among the artifacts, in params; likewise other long ones",
            )
            self._file(f"params/{item.name}.txt", whole.encode("utf-8", "replace"), item.step)
        before = self.params.setdefault(key, text)
        if before == text:
            self.new_params[key] = text
            return
        tag = key_of(f"{CHANGED_TAG}.{item.name}")
        self.tags[tag] = cut(whole, LONGEST_TAG)
        self.say(
            "changed param",
            f"MLflow does not change a parameter: {item.name!r} stays as it was first logged, and its "
            f"latest value is the tag {tag!r}; likewise for others",
        )

    def _say_not_registered(self, item: ItemRecord) -> None:
        self.say(
            f"not registered {item.name[:100]}",
            f"{item.name!r} is a file with weights, no whole model, and is not registered as "
            f"{item.attributes['registered_model_name']!r}: log the torch.nn.Module itself",
        )

    def _key(self, name: str) -> str:
        key = key_of(name)
        if key != name:
            self.say("name", in_words(name, key, "MLflow"))
        if len(key) == LONGEST_KEY and key != name:
            # What was cut off cannot be told from the key alone.
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
        """Send all of it.

        ``again``: some of it may be there already. ``only_new``: first find out which metrics are.
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
        models = Models(client, run_id, self.params, self.models, self.say)
        for module in self.modules:
            models.send(module, again)

    def _shown_tables(self) -> str:
        """Return the tag by which MLflow knows which files it shows as tables."""
        try:
            shown = json.loads(self.client.get_run(self.run_id).data.tags.get(TABLES_TAG) or "[]")
        except ValueError:
            shown = []
        shown += [{"path": path, "type": "table"} for path in self.tables]
        unique = [one for number, one in enumerate(shown) if one not in shown[:number]]
        while len(text := json.dumps(unique)) > LONGEST_TAG:
            # The files are there all the same.
            unique.pop(0)
        return text

    def _log(self, what: str, portion: list[Any]) -> None:
        """Log these; where MLflow refuses some of them for good, all the others."""
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
        self.say("refused", f"MLflow does not take {thing.key!r}: {cut(why, 300)}")
        if what == "params":
            # Somebody else may have logged another value meanwhile.
            self.tags[key_of(f"{CHANGED_TAG}.{thing.key}")] = cut(str(thing.value), LONGEST_TAG)

    def _upload(self, path: str, content: Path | bytes) -> None:
        where = PurePosixPath(path)
        with backend_files.named(content, where.name) as file:
            folder = None if where.parent == PurePosixPath() else str(where.parent)
            self.client.log_artifact(self.run_id, str(file), folder)

    def _metrics_to_send(self, only_new: bool) -> list[Metric]:
        if not only_new:
            return list(self.metrics.values())
        there = {
            (found.key, found.step, repr(found.value), found.timestamp)
            for key in {key for key, *_ in self.metrics}
            for found in self.client.get_metric_history(self.run_id, key)
        }
        return [metric for known, metric in self.metrics.items() if known not in there]


def in_milliseconds(time_ns: int) -> int:
    """MLflow's unit of time."""
    return max(0, time_ns // 1_000_000)


def _dataset(item: ItemRecord) -> DatasetInput:
    """What data was used, as an input of the run."""
    from mlflow.entities import Dataset, DatasetInput, InputTag

    about = item.value if isinstance(item.value, dict) else {"value": item.value}
    own: dict[str, Any] = about.get("mlflow") or {}
    told = json.dumps(about, sort_keys=True, default=str)
    digest = hashlib.sha256(told.encode()).hexdigest()[:16]
    source = about.get("source") or about.get("path") or about.get("root") or ""
    context = context_name(item.attributes.get("context") or "training")
    return DatasetInput(
        Dataset(
            name=str(own.get("name") or item.name)[:500],
            digest=str(own.get("digest") or digest)[:36],
            source_type=str(own.get("source_type") or about.get("type") or "unknown"),
            source=cut(str(own.get("source") or json.dumps({"uri": str(source)})), 60_000),
            schema=cut(str(own["schema"]), 1_000_000) if own.get("schema") else None,
            profile=cut(str(own.get("profile") or told), 1_000_000),
        ),
        [InputTag("mlflow.data.context", context)],
    )
