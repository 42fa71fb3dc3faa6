"""The server's answers are those of the analysis functions, and follow a run while it is recorded."""

from __future__ import annotations

import dataclasses
import errno
import gzip
import http.client
import json
import shutil
import threading
from pathlib import Path
from subprocess import PIPE
from typing import Any

import numpy as np
import polars as pl
import pytest

import stepwell
from stepwell.analysis.detail.timeline import StepMark, TimelineWindow
from stepwell.analysis.report import report
from stepwell.analysis.run_list import compute_summary
from stepwell.dashboard import summaries
from stepwell.dashboard.answers import timeline
from stepwell.dashboard.answers.values import encode, plain
from stepwell.dashboard.catalogue import Catalogue
from stepwell.dashboard.html import html_report, notebook_html, write_html
from stepwell.dashboard.summaries import Summaries
from stepwell.reading import RecordedRun
from tests.dashboard.serving import TOKEN, Server, served
from tests.harness import run_stepwell, start_script, wait_until


def test_the_list_of_runs(server: Server) -> None:
    answer = wait_until(lambda: (a := server.get("/api/runs"))["pending"] == 0 and a)
    runs = {run["id"]: run for run in answer["runs"]}
    assert set(runs) == {"job", "small"}
    small = runs["small"]
    assert (small["name"], small["status"], small["step"]) == ("small", "finished", 49)
    assert small["config"] == {"lr": 0.1, "deep.a": 1}
    assert small["loss"]["name"] == "train/loss"
    assert small["loss"]["last"] == pytest.approx(1 / 50)
    assert small["metrics"]["val/accuracy"] == pytest.approx(49 / 50)
    assert small["metrics"]["odd"] == "nan"
    assert (runs["job"]["ranks"], runs["job"]["attempts"]) == (4, 2)
    assert 0 < runs["job"]["goodput"] < 1
    assert sum(runs["job"]["findings"].values()) == len(report(open_job(server)).findings)


def open_job(server: Server) -> stepwell.reading.RecordedRun:
    return stepwell.open_run(Path(server.get("/api/runs")["folder"]) / "job")


def test_the_overview_is_the_report(server: Server, runs: Path) -> None:
    result = report(stepwell.open_run(runs / "job"))
    answer = server.get("/api/runs/job")
    head = answer["head"]
    assert (head["status"], head["wall_ns"], head["step"]) == (
        result.status,
        result.wall_ns,
        result.step,
    )
    assert [f["sentence"] for f in answer["findings"]] == [f.sentence for f in result.findings]
    assert [(line["phase"], line["ns"]) for line in answer["time"]] == [
        (line.phase, line.ns) for line in result.time
    ]
    assert sum(line["ns"] for line in answer["time"]) == pytest.approx(result.wall_ns, rel=1e-6)
    assert answer["goodput"] == result.goodput
    assert answer["charts"] == [{"title": "loss", "names": ["train/loss"]}]
    assert [line["attempt"] for line in answer["attempts"]] == [0, 1]
    assert answer["attempts"][0]["end"] <= answer["attempts"][1]["start"]


def test_series_are_the_metrics(server: Server, runs: Path) -> None:
    (series,) = server.get("/api/runs/small/series", name="train/loss")["series"]
    assert series["x"] == list(range(50))
    assert series["y"] == [1 / (step + 1) for step in range(50)]
    (odd,) = server.get("/api/runs/small/series", name="odd")["series"]
    assert (odd["y"], odd["odd"]) == ([], [{"x": 49, "value": "nan"}])
    both = server.get(
        "/api/runs/small/series", name=["train/loss", "val/accuracy"], start=10, end=19
    )
    assert [s["x"] for s in both["series"]] == [list(range(10, 20))] * 2
    names = [m["name"] for m in server.get("/api/runs/small/metrics")["metrics"]]
    assert {"odd", "train/loss", "val/accuracy"} <= set(names)


def test_the_timeline_has_every_span(server: Server, runs: Path) -> None:
    spans = stepwell.open_run(runs / "small").spans().collect()
    answer = server.get("/api/runs/small/timeline", width=8000)
    (lane,) = [lane for lane in answer["lanes"] if lane["thread"] == "MainThread"]
    assert sum(lane["count"]) == spans.filter(pl.col("thread") == "MainThread").height
    assert {answer["names"][i]["name"] for i in lane["name"]} <= set(spans["name"])
    window = server.get("/api/runs/small/spans", q="forward", limit=3)
    assert len(window["hits"]) == 3
    assert window["more"]
    assert window["stats"][0]["count"] == 50
    hit = window["hits"][1]
    detail = server.get(f"/api/runs/small/spans/{hit['id']}", start=hit["start"])
    assert (detail["name"], detail["step"], detail["attributes"]) == ("forward", 1, {"batch": 1})


def test_the_grid_has_each_rank_and_step(server: Server, runs: Path) -> None:
    answer = server.get("/api/runs/job/grid", phase="forward", attempt=0)
    assert answer["ranks"] == [0, 1, 2, 3]
    assert len(answer["values"]) == 4 * len(answer["steps"])
    spans = stepwell.open_run(runs / "job").spans()
    cell = spans.filter(
        (pl.col("name") == "model_forward")
        & (pl.col("rank") == 2)
        & (pl.col("step") == answer["steps"][5])
        & (pl.col("attempt") == 0)
    ).collect()
    assert answer["values"][2 * len(answer["steps"]) + 5] == cell["duration_ns"].sum()


def test_ranks_name_the_straggler(server: Server, runs: Path) -> None:
    truth = json.loads((runs / "job" / "truth.json").read_text())
    answer = server.get("/api/runs/job/ranks")
    slow = [fault["rank"] for fault in (*truth["stragglers"], *truth["stalls"])]
    assert answer["ranks"][0]["rank"] in slow
    assert answer["ranks"][0]["waited_ns"] > 0
    assert any(sentence.startswith(f"Rank {slow[0]} is slow") for sentence in answer["stragglers"])


def test_provenance_and_comparison(server: Server) -> None:
    answer = server.get("/api/runs/small/provenance")
    assert answer["config"] == {"lr": 0.1, "deep": {"a": 1}}
    kinds = {node["kind"] for node in answer["nodes"]}
    assert kinds == {"entity", "activity", "agent"}
    ids = {node["id"] for node in answer["nodes"]}
    assert all(edge["from"] in ids and edge["to"] in ids for edge in answer["edges"])
    compared = server.get("/api/compare", run=["small", "job"])
    assert [run["id"] for run in compared["runs"]] == ["small", "job"]
    assert compared["summary"]
    assert {"key": "lr", "values": ["0.1", None]} in compared["config"]


def test_a_window_opens_as_a_trace(server: Server) -> None:
    reply = server.ask("/api/runs/small/trace")
    trace = json.loads(gzip.decompress(reply.body))
    names = [event["name"] for event in trace["traceEvents"] if event.get("ph") == "X"]
    assert names.count("forward") == 50
    hit = server.get("/api/runs/small/spans", q="forward", limit=10)["hits"][9]
    part = server.ask("/api/runs/small/trace", start=0, end=hit["start"] + 1)
    trace = json.loads(gzip.decompress(part.body))
    names = [event["name"] for event in trace["traceEvents"] if event.get("ph") == "X"]
    assert names.count("forward") == 10


def test_an_incomplete_timeline_is_completed(runs: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """What could not be read in time is read when it is asked for again."""
    real, left = timeline.timeline_at, [2, 1]

    def late(*arguments: Any, **options: Any) -> Any:
        window = real(*arguments, **options)
        return dataclasses.replace(window, missing=left.pop(0)) if left else window

    monkeypatch.setattr(timeline, "timeline_at", late)
    with served(runs) as server:
        missing = [server.get("/api/runs/small/timeline")["missing"] for _ in range(4)]
    assert missing == [2, 1, 0, 0]


def test_copies_of_a_run_are_runs_of_their_own(runs: Path, tmp_path: Path) -> None:
    for name in ("small", "copy"):
        shutil.copytree(runs / "small", tmp_path / name)
    with served(tmp_path) as server:
        ids = [run["id"] for run in server.get("/api/runs")["runs"]]
        assert sorted(ids) == ["copy", "small"]
        for name in ids:
            assert server.get(f"/api/runs/{name}")["head"]["path"] == str(tmp_path / name)


def test_images_large_numbers_and_earlier_errors(tmp_path: Path) -> None:
    """Images are shown and are in the file; integers are exact; an error belongs to its attempt."""
    big = (1 << 63) - 1
    with (
        pytest.raises(ZeroDivisionError),
        stepwell.init("odd", dir=tmp_path, run_id="odd", config={"seed": big}),
    ):
        1 / 0  # noqa: B018
    with stepwell.init("odd", dir=tmp_path, run_id="odd", config={"seed": big}) as run:
        run.log({"gray": stepwell.Image(np.zeros((8, 8), np.uint8)), "loss": 1.0}, step=7)
    with served(tmp_path) as server:
        (item,) = server.get("/api/runs/odd/media")["items"]
        reply = server.ask(item["url"])
        assert (reply.headers["content-type"], reply.body[1:4]) == ("image/png", b"PNG")
        assert server.get("/api/runs/odd/provenance")["config"]["seed"] == str(big)
        head = server.get("/api/runs/odd")["head"]
        assert (head["status"], head["error"], head["step"]) == ("finished", None, 7)
    assert "data:image/png;base64" in html_report(stepwell.open_run(tmp_path / "odd"))


@pytest.mark.parametrize("run", ["none", "small2", "jo"])
def test_unknown_runs(server: Server, run: str) -> None:
    reply = server.ask(f"/api/runs/{run}")
    assert reply.status == 404
    assert reply.json["error"].startswith(f"There is no run {run!r} in ")


def test_an_empty_folder(tmp_path: Path) -> None:
    with served(tmp_path) as server:
        assert server.get("/api/runs")["runs"] == []
        assert server.ask("/metrics").body == b"# EOF\n"


def test_one_run_alone(runs: Path) -> None:
    with served(runs / "small") as server:
        assert [run["id"] for run in server.get("/api/runs")["runs"]] == ["small"]
        assert server.get("/api/runs/small")["head"]["name"] == "small"


def test_times_of_long_runs_are_numbers_and_ids_are_exact() -> None:
    """After 104 days a time in nanoseconds is above 2**53. The page calculates with it."""
    long, identity = (1 << 53) + 2, (1 << 60) + 1
    window = TimelineWindow((0, long), 0, long, [], [], 0, 0, [0], [StepMark(1, long)])
    answer = plain(window)
    assert (answer["full"], answer["end"]) == ([0, long], long)
    assert answer["steps"] == [{"step": 1, "start": long}]
    assert plain({"ids": [identity], "pair": (0, identity)}) == {
        "ids": [str(identity)],
        "pair": [0, str(identity)],
    }


def test_a_summary_that_failed_is_computed_again_later(
    runs: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Not in a loop: with each request only after a pause."""
    computed: list[str] = []
    monkeypatch.setattr(summaries, "BUDGET_S", -1.0)
    monkeypatch.setattr(summaries, "LIVE_S", 0.0)
    monkeypatch.setattr(summaries, "REST", 0)

    def compute(run: RecordedRun) -> bytes:
        computed.append(run.id)
        if len(computed) == 1:
            raise OSError(errno.EMFILE, "Too many open files")
        return encode(plain(dataclasses.asdict(compute_summary(run))))

    shutil.copytree(runs / "small", copy := runs.parent / "retried" / "small")
    table = Summaries(Catalogue(copy.parent), lambda: None, compute)

    def settled() -> Any:
        return wait_until(lambda: (a := table.answer())["pending"] == 0 and a)["runs"][0]

    assert settled()["findings"] is None
    assert settled()["findings"] is None
    assert len(computed) == 1
    monkeypatch.setattr(summaries, "RETRY_S", 0.0)
    assert settled()["findings"] is not None
    settled()
    assert len(computed) == 2


# Live runs

TRAINING = """
import sys, stepwell
with stepwell.init("live", dir=sys.argv[1], run_id="live", config={"max_steps": 100}) as run:
    for step, line in enumerate(sys.stdin):
        run.set_step(step)
        with run.span("forward"):
            run.log({"train/loss": float(line)})
        print(step, flush=True)
"""


def test_a_live_run_is_followed(tmp_path: Path) -> None:
    """Events tell each new value, two viewers share one follower, and OpenMetrics has the same numbers."""
    with (
        served(tmp_path) as server,
        start_script(TRAINING, tmp_path, stdin=PIPE, stdout=PIPE, text=True) as program,
    ):

        def train(loss: float) -> None:
            program.stdin.write(f"{loss}\n")
            program.stdin.flush()
            program.stdout.readline()

        train(4.0)
        train(3.5)
        wait_until(lambda: server.ask("/api/runs/live").status == 200)
        viewers = [Viewer(server), Viewer(server)]
        wait_until(lambda: all(v.has(1, 3.5) for v in viewers))
        train(3.25)
        wait_until(lambda: all(v.has(2, 3.25) for v in viewers))
        followers = [t for t in threading.enumerate() if t.name == "stepwell-follow"]
        assert len(followers) == 1
        assert viewers[0].events[-1]["status"] == "running"
        text = server.ask("/metrics").body.decode()
        assert 'stepwell_step{run="live",name="live"} 2\n' in text
        assert 'stepwell_loss{run="live",name="live",metric="train/loss"} 3.25\n' in text
        assert text.endswith("# EOF\n")
        wait_until(
            lambda: (
                server.get("/api/runs/live/series", name="train/loss")["series"][0]["y"]
                == [4.0, 3.5, 3.25]
            )
        )
        program.stdin.close()
        assert program.wait() == 0
        wait_until(lambda: viewers[0].events[-1]["status"] == "finished")
        for viewer in viewers:
            viewer.close()
        wait_until(lambda: server.get("/api/runs/live")["head"]["status"] == "finished")


class Viewer:
    """Reads the events of a live run in a thread."""

    def __init__(self, server: Server) -> None:
        self.events: list[Any] = []
        self._is_closed = False
        self._connection = http.client.HTTPConnection("127.0.0.1", server.port, timeout=60)
        self._connection.request(
            "GET", "/api/live?run=live", headers={"Authorization": f"Bearer {TOKEN}"}
        )
        self._answer = self._connection.getresponse()
        assert self._answer.headers["content-type"].startswith("text/event-stream")
        self._thread = threading.Thread(target=self._read, daemon=True)
        self._thread.start()

    def _read(self) -> None:
        try:
            for line in self._answer:
                if line.startswith(b"data: "):
                    self.events.append(json.loads(line[6:]))
        except Exception:
            # `close` ends the connection under it.
            if not self._is_closed:
                raise

    def has(self, step: int, loss: float) -> bool:
        return any(event["values"].get("train/loss") == [[step, loss]] for event in self.events)

    def close(self) -> None:
        self._is_closed = True
        self._connection.sock.shutdown(2)
        self._connection.close()
        self._thread.join(20)


# One file


def contained(html: str) -> dict[str, Any]:
    """The data inside a report."""
    inside = html.split('id="stepwell-data">')[1].split("</script>")[0]
    answers: dict[str, Any] = json.loads(inside)["answers"]
    return answers


def test_a_report_contains_the_same_answers(server: Server, runs: Path) -> None:
    answers = contained(html_report(stepwell.open_run(runs / "small")))
    for key in ("/api/runs/small", "/api/runs/small/metrics", "/api/runs/small/ranks"):
        ours, theirs = answers[key], server.get(key)
        # Measured when asked for: the cost of recording.
        assert {**ours, "cost": 0} == {**theirs, "cost": 0}
    series = [key for key in answers if "/series?" in key]
    assert any("name=train%2Floss" in key for key in series)


def test_a_report_is_one_small_file_without_addresses(tmp_path: Path, runs: Path) -> None:
    path = write_html(stepwell.open_run(runs / "small"), tmp_path)
    assert path == tmp_path / "small.html"
    html = path.read_text()
    assert len(html) < 1_000_000
    assert "http://" not in html.replace("http://www.w3.org", "")
    assert "https://" not in html
    assert html.count("<script") == 2
    assert "default-src 'none'" in html


def test_hostile_names_stay_text_in_a_report(tmp_path: Path) -> None:
    evil = "</script><script>alert(1)</script><!--"
    with stepwell.init(evil, dir=tmp_path, run_id="evil", config={evil: evil}, tags=[evil]) as run:
        run.set_step(0)
        with run.span(evil, **{"a": evil}):
            run.log({evil: 1.0})
    html = html_report(stepwell.open_run(tmp_path / "evil"))
    assert html.count("</script>") == 2
    assert evil not in html
    assert json.dumps(contained(html)).count("alert(1)") > 3
    frame = notebook_html(stepwell.open_run(tmp_path / "evil"), 500)
    assert frame.count("<") == 2
    assert 'sandbox="allow-scripts"' in frame


def test_runs_in_notebooks(runs: Path) -> None:
    run = stepwell.open_run(runs / "small")
    html = run._repr_html_()
    assert html is not None
    assert html.startswith("<iframe")
    assert 'height="400"' in (run.show(400)._repr_html_() or "")
    assert "stepwell ui" in repr(run.show())


def test_the_command_writes_the_file(tmp_path: Path, runs: Path) -> None:
    done = run_stepwell("report", str(runs / "small"), "-o", "x.html", cwd=tmp_path)
    assert done.returncode == 0, done
    assert done.stdout.startswith("x.html (")
    assert "</html>" in (tmp_path / "x.html").read_text()
    wrong = run_stepwell("report", str(runs / "small"), "-o", "x.pdf", cwd=tmp_path)
    assert (wrong.returncode, "must end in .html" in wrong.stderr) == (2, True)
