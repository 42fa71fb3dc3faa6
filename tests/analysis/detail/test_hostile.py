"""Run folders from strangers: damaged files give fewer records, never an error or a large answer."""

from __future__ import annotations

import json
import random
import shutil
from pathlib import Path

import pytest

from stepwell.analysis.detail import (
    grid_at,
    metric_list,
    search_spans,
    series_at,
    span_detail,
    timeline_at,
)
from stepwell.analysis.run_list import compute_summary, summaries_of
from stepwell.journal.archive import pack
from stepwell.journal.process_writer import ProcessWriter
from stepwell.reading import RecordedRun
from tests.analysis.detail.runs import CLOCK, Written, random_spans


def use_everything(run: RecordedRun) -> None:
    window = timeline_at(run, width=100)
    for lane in window.lanes:
        assert (lane.end >= lane.start).all()
        for identity in lane.id[lane.id >= 0][:3].tolist():
            span_detail(run, identity)
    timeline_at(run, 10**6, 10**6 + 10_000, 100)
    search_spans(run, "a", 5)
    for info in metric_list(run).metrics[:5]:
        series_at(run, [info.name], by="rank", x="time")
    grid_at(run, "forward")
    compute_summary(run)
    summaries_of([(run.id, run)])


@pytest.fixture(scope="module")
def original(tmp_path_factory: pytest.TempPathFactory) -> Path:
    written = Written(tmp_path_factory.mktemp("original") / "run")

    def write(writer: ProcessWriter) -> None:
        random_spans(1, 150, open_at_end=1)(writer)
        for step in range(20):
            writer.context(CLOCK + step * 1000, step, 0)
            writer.metric("train/loss", CLOCK + step * 1000, 1.0, step)
        writer.event("note", CLOCK + 5, 1, b'{"a": 1}')

    for rank in range(2):
        written.add(write, rank=rank)
    written.open()
    return written.folder


@pytest.mark.parametrize("seed", range(25))
def test_damaged_files_are_no_error(original: Path, tmp_path: Path, seed: int) -> None:
    """Bytes are changed, cut off or repeated: in archives, names, documents and run.json."""
    chance = random.Random(seed)
    folder = Path(shutil.copytree(original, tmp_path / "runs" / "run"))
    for path in chance.sample(sorted(p for p in folder.rglob("*") if p.is_file()), 3):
        data = bytearray(path.read_bytes())
        at = chance.randrange(len(data))
        match chance.randrange(3):
            case 0:
                for _ in range(20):
                    data[chance.randrange(len(data))] = chance.randrange(256)
            case 1:
                del data[at:]
            case _:
                data[at:at] = data[: chance.randrange(len(data))]
        path.write_bytes(data)
    use_everything(RecordedRun(folder))


@pytest.mark.parametrize(
    "header",
    [
        {"time": [0, 2**62], "until": 2**62, "links": [[1, 2**70], "x", None], "open": "yes"},
        {"time": "soon", "until": None, "links": {"a": 1}},
        {"seq": 2**31 - 1, "lane": 2**31 - 1, "thread": {"a": ["\ud800"]}},
    ],
)
def test_strange_headers_are_no_error(original: Path, tmp_path: Path, header: dict) -> None:
    folder = Path(shutil.copytree(original, tmp_path / "runs" / "run"))
    process = next(path for path in sorted(folder.iterdir()) if path.is_dir())
    for kind, words in (("spans", 3), ("metrics", 4)):
        fields = {"kind": kind, "seq": 900, "lane": 0, "process": process.name, **header}
        block = pack(fields, random.Random(1).randbytes(8 * words * 20))
        with open(process / f"{kind}-00000.zst", "ab") as file:
            file.write(block)
    use_everything(RecordedRun(folder))


def test_strange_documents_are_no_error(original: Path, tmp_path: Path) -> None:
    folder = Path(shutil.copytree(original, tmp_path / "runs" / "run"))
    document = {"id": "../../etc", "name": "<script>\ud800" * 1000, "tags": "x", "created": "y"}
    config = {"a": {"b": float("inf")}, "c": "\ud800", "d": [[]], "e": 10**400}
    (folder / "run.json").write_text(json.dumps({**document, "config": config}))
    use_everything(RecordedRun(folder))
    (entry,), _ = summaries_of([(folder.name, RecordedRun(folder))])
    assert len(entry.name) <= 200
    assert entry.config["c"] == "?"
    assert isinstance(entry.config["e"], str)
