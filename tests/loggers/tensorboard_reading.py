"""Reading what was logged as TensorBoard does: by its library and by its server."""

from __future__ import annotations

import json
import subprocess
import time
import urllib.error
import urllib.request
from pathlib import Path
from typing import Any
from urllib.parse import urlencode

from tests.harness import SDKS, Program
from tests.harness.programs import free_port

ALL = {"scalars": 0, "tensors": 0, "images": 0}


def accumulated(folder: Path) -> Any:
    """TensorBoard's view of one run folder, all of it."""
    from tensorboard.backend.event_processing.event_accumulator import EventAccumulator

    found = EventAccumulator(str(folder), size_guidance=ALL)
    found.Reload()
    return found


def scalars(folder: Path) -> dict[str, list[tuple[int, float]]]:
    """(step, value) of each tag."""
    found = accumulated(folder)
    return {
        tag: [(event.step, event.value) for event in found.Scalars(tag)]
        for tag in found.Tags()["scalars"]
    }


def texts(folder: Path) -> dict[str, list[tuple[int, str]]]:
    """(step, text) of each tag that holds texts."""
    found = accumulated(folder)
    return {
        tag: [(e.step, e.tensor_proto.string_val[0].decode()) for e in found.Tensors(tag)]
        for tag in found.Tags()["tensors"]
        if not tag.startswith("_hparams_")
    }


def hparams(folder: Path) -> tuple[dict[str, Any], str]:
    """The hyperparameters of a run folder, and the status it ended with."""
    from tensorboard.plugins.hparams import api_pb2, plugin_data_pb2

    found = accumulated(folder)
    content = [
        plugin_data_pb2.HParamsPluginData.FromString(found.SummaryMetadata(tag).plugin_data.content)
        for tag in found.Tags()["tensors"]
        if tag.startswith("_hparams_")
    ]
    values: dict[str, Any] = {}
    status = "STATUS_UNKNOWN"
    for part in content:
        for name, value in part.session_start_info.hparams.items():
            values[name] = getattr(value, value.WhichOneof("kind"))
        if part.HasField("session_end_info"):
            status = api_pb2.Status.Name(part.session_end_info.status)
    return values, status


class Server:
    """A real TensorBoard."""

    def __init__(self, folder: Path, log: Path, *options: str) -> None:
        self.port = free_port()
        words = ["-m", "tensorboard.main", "--logdir", str(folder), *options]
        words += ["--host", "127.0.0.1", "--port", str(self.port), "--reload_interval", "1"]
        self.log = log
        with log.open("w") as file:
            self.process = Program(
                words, modules=SDKS, stdin=subprocess.DEVNULL, stdout=file, stderr=file
            )

    def get(self, path: str, body: Any = None, **query: Any) -> Any:
        """Its answer."""
        return json.loads(self.content(f"/data/{path}", body, **query))

    def content(self, path: str, body: Any = None, **query: Any) -> bytes:
        url = f"http://127.0.0.1:{self.port}{path}{'?' if query else ''}{urlencode(query)}"
        data = None if body is None else json.dumps(body).encode()
        request = urllib.request.Request(url, data, {"content-type": "application/json"})
        with urllib.request.urlopen(request, timeout=20) as answer:
            return bytes(answer.read())

    def wait_for(self, path: str, is_there: Any, seconds: float = 90, **query: Any) -> Any:
        """The answer as soon as it has what is waited for."""
        deadline = time.monotonic() + seconds
        answer = None
        while time.monotonic() < deadline:
            try:
                answer = self.get(path, **query)
                if is_there(answer):
                    return answer
            except (urllib.error.URLError, OSError):
                pass
            time.sleep(0.05)
        raise TimeoutError(f"{answer!r}, {self.log.read_text()[-2000:]}")

    def close(self) -> None:
        self.process.kill()
        self.process.wait()
