"""Training programs in separate processes, which execute code that the test sends them."""

from __future__ import annotations

import json
import os
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from pathlib import Path
from typing import Any

from tests.durability.helpers import Child
from tests.exporters.otlp_receiver import Receiver
from tests.harness import has_ended

BEGIN = """
from stepwell.exporters import OTLPExporter
run = init("training", dir=runs)
exporter = OTLPExporter(url, **options)
run.add_exporter(exporter)
answer = [str(run.path), run.exporters[0].process_id, os.getpid()]
"""
TREE = """
with span("application"):
    event("configured", lr=0.1)
    with span("training_loop", epochs=2):
        for i in range(3):
            with span("epoch", number=i):
                with span("model_forward"):
                    with span("attention"):
                        pass
    try:
        with span("checkpoint_save"):
            raise ValueError("disk full")
    except ValueError:
        pass
"""
EXPECTED = {
    ("application", None),
    ("training_loop", "application"),
    ("epoch", "training_loop"),
    ("attention", "epoch"),
    ("checkpoint_save", "application"),
}
"""(name, name of the parent): the short span ``model_forward`` is left out by default."""


class Trainer(Child):
    """A program that trains with an OTLP exporter."""

    path: Path
    sidecar: int

    def begin(self, url: str, **options: Any) -> Trainer:
        quick = {"timeout": 1.0, "announce_after": 30.0, "linger": 30.0, **options}
        path, sidecar, _ = self.do(BEGIN, runs=str(self.root / "runs"), url=url, options=quick)
        self.path, self.sidecar = Path(path), sidecar
        return self

    def __init__(self, root: Path, **variables: str) -> None:
        self.root = root
        super().__init__(root, **variables)

    @property
    def folder(self) -> Path:
        """The folder of its process."""
        (found,) = self.path.glob("rank-*")
        return found


@contextmanager
def training(
    root: Path,
    receiver: Receiver | str,
    variables: Mapping[str, str] | None = None,
    **options: Any,
) -> Iterator[Trainer]:
    """A trainer that exports to this receiver. No sidecar outlives the test."""
    url = receiver if isinstance(receiver, str) else receiver.url
    with Trainer(root, **(variables or {})) as trainer:
        trainer.begin(url, **options)
        try:
            yield trainer
        finally:
            end(trainer.sidecar)


def end(pid: int | None) -> None:
    """End a sidecar that a test started, if it still runs."""
    if pid is not None and not has_ended(pid):
        os.kill(pid, 9)


def read(path: Path) -> dict[str, Any]:
    return json.loads(path.read_text())
