"""Delivered records are in the files of W&B, according to its own reader."""

from __future__ import annotations

import gc
import importlib.util
import json
import math
import os
import shutil
import signal
import subprocess
import sys
from collections import Counter
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from stepwell.loggers.backends.wandb.backend import WandBBackend
from stepwell.loggers.backends.wandb.fragments import FragmentProgress, FragmentRecords
from stepwell.loggers.backends.wandb.rows import STEP
from stepwell.loggers.delivery.backend import LogRecord
from tests.harness import SDKS, run_script, start_script, wait_until
from tests.loggers.delivering import PNG, STARTED, Log, metric
from tests.loggers.reading_back import wandb_records

pytestmark = [
    pytest.mark.filterwarnings("ignore"),
    pytest.mark.skipif(importlib.util.find_spec("wandb") is None, reason="needs wandb"),
]


@pytest.fixture(autouse=True)
def _environment(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> Iterator[None]:
    for name in [name for name in os.environ if name.startswith("WANDB_")]:
        monkeypatch.delenv(name)
    # Nobody's key; and what a backend sets for its own process is put back.
    monkeypatch.setenv("NETRC", str(tmp_path / "no-netrc"))
    monkeypatch.setenv("WANDB_DATA_DIR", str(tmp_path / "logs" / "wandb"))
    monkeypatch.setenv("WANDB_ERROR_REPORTING", "false")
    yield
    if "wandb" in sys.modules:
        sys.modules["wandb"].teardown()
        # What it leaves behind complains when it is collected: here, where that is not an error.
        gc.collect()


@pytest.fixture
def log(tmp_path: Path) -> Log:
    return Log(tmp_path / "run-1")


def backend(tmp_path: Path, **options: Any) -> WandBBackend:
    return WandBBackend(
        number=1, savedir=str(tmp_path / "logs" / "wandb"), project_name="tests", **options
    )


class Found:
    """What ``wandb leet inspect`` finds in all fragments of a run: what ``wandb sync`` would upload."""

    def __init__(self, tmp_path: Path, run_id: str) -> None:
        folder = tmp_path / "logs" / "wandb"
        self.fragments = sorted(folder.glob(f"*run-*-{run_id}/run-{run_id}.wandb"))
        self.records: list[dict[str, Any]] = []
        for file in self.fragments:
            self.records += wandb_records(file)

    def all(self, kind: str) -> list[dict[str, Any]]:
        return [record[kind] for record in self.records if record["type"] == kind]

    @property
    def rows(self) -> list[dict[str, Any]]:
        return [record["item"] for record in self.all("history")]

    def curve(self, key: str) -> list[tuple[Any, Any]]:
        return [(row.get(STEP), row[key]) for row in self.rows if key in row]

    @property
    def config(self) -> dict[str, Any]:
        found: dict[str, Any] = {}
        for run in self.all("run"):
            found |= run.get("config", {}).get("update", {})
        for change in self.all("config"):
            found |= change.get("update", {})
        found.pop("_wandb", None)
        return found

    def file(self, path: str) -> bytes:
        [found] = [f for one in self.fragments for f in (one.parent / "files").glob(path)]
        return found.read_bytes()


def delivered(tmp_path: Path, log: Log, *records: LogRecord, status: str = "finished") -> Found:
    to = backend(tmp_path)
    log.open(to)
    to.deliver(list(records), again=False)
    to.finish(status)
    to.close()
    return Found(tmp_path, log.state["run_id"])


def test_metrics_of_a_step_are_one_row(tmp_path: Path, log: Log) -> None:
    """With our step, epoch and time as values; the charts use that step."""
    records = []
    for step in range(3):
        records += [metric("train/löss é", 1 / (step + 1), step * 10, at=step, epoch=1)]
        records += [metric("lr.x", 0.1, step * 10)]
    found = delivered(tmp_path, log, *records)
    assert found.curve("train/löss é") == [(0, 1), (10, 0.5), (20, 1 / 3)]
    assert found.curve("lr.x") == [(0, 0.1), (10, 0.1), (20, 0.1)]
    assert len(found.rows) == 3
    assert [row["epoch"] for row in found.rows] == [1, 1, 1]
    assert [row["_step"] for row in found.rows] == [0, 1, 2]
    assert abs(found.rows[0]["_timestamp"] - STARTED / 1e9) < 0.001
    defined = {m.get("glob_name") or m.get("name"): m for m in found.all("metric")}
    assert defined["*"]["step_metric"] == STEP


def test_a_step_may_go_back_and_a_value_may_come_twice(tmp_path: Path, log: Log) -> None:
    """W&B drops a row whose own step goes back; ours never does."""
    records = [metric("loss", 1.0, 5), metric("loss", 2.0, 5), metric("loss", 3.0, 2)]
    found = delivered(tmp_path, log, *records)
    assert found.curve("loss") == [(5, 1), (5, 2), (2, 3)]


@pytest.mark.full
def test_what_is_no_number_is_kept_as_w_and_b_writes_it(tmp_path: Path, log: Log) -> None:
    import wandb

    values = {"a": math.nan, "b": math.inf, "c": -math.inf}
    found = delivered(tmp_path, log, *[metric(name, value) for name, value in values.items()])
    own = wandb.init(mode="offline", dir=str(tmp_path / "logs"), id="own", reinit="create_new")
    own.log(values)
    own.finish()
    expected = Found(tmp_path, "own").rows[0]
    assert {key: found.rows[0][key] for key in values} == {key: expected[key] for key in values}


@pytest.mark.full
def test_ten_thousand_metrics_arrive_once_each(tmp_path: Path, log: Log) -> None:
    to = backend(tmp_path)
    log.open(to)
    records = [metric(f"m{i % 10}", float(i), i // 10) for i in range(10_000)]
    for start in range(0, len(records), to.batch):
        to.deliver(records[start : start + to.batch], again=False)
    # What is on disk by now need not be kept with the state.
    wait_until(lambda: len(Found(tmp_path, log.state["run_id"]).rows) > 600)
    to.deliver([metric("last", 1.0, 1000)], again=False)
    assert len(log.state["unsaved"]) < 500
    to.finish("finished")
    found = Found(tmp_path, log.state["run_id"])
    assert len(found.rows) == 1001
    for number in range(10):
        assert found.curve(f"m{number}") == [(step, step * 10 + number) for step in range(1000)]


@pytest.mark.parametrize("removed", [0, 100])
def test_records_after_damage_are_those_of_w_and_bs_own_reader(
    tmp_path: Path, log: Log, removed: int
) -> None:
    """A changed byte spoils a block; after a gap, as a full disk leaves it, nothing can be uploaded."""
    found = delivered(tmp_path, log, *(metric("loss", float(i), i) for i in range(1000)))
    (file,) = found.fragments
    whole = FragmentProgress(file)
    assert (whole.last, whole.ended) == (999, True)
    content = bytearray(file.read_bytes())
    middle = len(content) // 2
    content[middle : middle + 1 + removed] = bytes([content[middle] ^ 1])
    file.write_bytes(content)
    rows = Found(tmp_path, log.state["run_id"]).rows
    assert 0 < len(rows) < 1000
    assert history_steps(file) == [row["_step"] for row in rows]
    damaged = FragmentProgress(file)
    steps = history_steps(file)
    assert (damaged.highest, damaged.ended) == (steps[-1], not removed)
    assert damaged.last == next((i for i, step in enumerate(steps) if step != i), len(steps)) - 1


def history_steps(file: Path) -> list[int]:
    """The numbers of the rows in a file as stepwell reads it."""
    from wandb.proto.wandb_internal_pb2 import Record

    records = map(Record.FromString, FragmentRecords(file).new())
    return [one.history.step.num for one in records if one.WhichOneof("record_type") == "history"]


def test_names_that_are_w_and_bs_own_are_mapped_and_said_once(tmp_path: Path, log: Log) -> None:
    odd = ["_step", STEP, "", "a%5Fb", "_x", "tab\t"]
    found = delivered(tmp_path, log, *[metric(name, float(i), 7) for i, name in enumerate(odd)])
    [row] = found.rows
    assert (row["_step"], row[STEP]) == (0, 7)
    kept = ["%5Fstep", "%74rainer/global_step", "%", "a%255Fb", "%5Fx", "tab%09"]
    assert [row[name] for name in kept] == [0, 1, 2, 3, 4, 5]
    assert "name" in log.state["notes"]


def test_parameters_are_the_configuration_and_may_change(tmp_path: Path, log: Log) -> None:
    to = backend(tmp_path)
    log.open(to)
    values = {"lr": 0.1, "opt.name": "ädam", "layers": [1, 2], "none": None, "long": "x" * 9000}
    to.deliver([log.item("param", name, value) for name, value in values.items()], again=False)
    to.deliver([log.item("param", "lr", 0.2)], again=False)
    to.finish("finished")
    assert Found(tmp_path, log.state["run_id"]).config == {**values, "lr": 0.2}


def test_every_kind_is_found(tmp_path: Path, log: Log) -> None:
    """Native where W&B has it, else an artifact."""
    found = delivered(
        tmp_path,
        log,
        log.item("text", "note", "grüß", file="note.txt", step=1),
        log.item("dict", "conf", {"a": {"b": [1, 2]}}, file="conf.json"),
        log.item("figure", "plot", data=PNG, file="plot.png", media="image/png", step=1),
        log.item("image", "val/sample", data=PNG, file="sample.png", media="image/png", step=1),
        log.item("figure", "page", data=b"<p>hi</p>", file="page.html", media="text/html"),
        log.item("image", "broken", data=b"no picture", file="broken.png", media="image/png"),
        log.item("artifact", "data", data=b"1,2", file="sub/a.csv", folder=True),
        log.item("artifact", "data", data=b"3,4", file="b.csv", folder=True),
        log.item("artifact", "log file/ü", data=b"x", file="out.log"),
        log.item("torch", "tensor", data=b"pt", file="tensor.pt"),
        log.item("model", "net", data=b"weights", file="net.pt", step=5),
        log.item("best_model", "net", data=b"better", file="net.pt", step=9),
        log.item("dataset", "cifar", {"type": "folder", "path": "/data", "files": 3}),
        log.item("system", "system", {"cpu": 12.5, "gpu": {"0": 50}}, step=3),
        log.item("carbon", "carbon", {"energy_kwh": None, "source": "unknown"}),
        log.item("flops_pb", "flops", 1e9),
        log.item("execution_time", "epoch_time", 3.5, step=1),
        log.item("prov_documents", "prov", data=b"{}", file="prov.json"),
        log.item("text", "long", data=b"long text", file="long.txt", media="text/plain"),
    )
    values = {key: value for row in found.rows for key, value in row.items()}
    assert values["note"] == "grüß"
    assert values["conf.a.b"] == [1, 2]
    assert found.file(values["plot.path"]) == PNG
    assert found.file(values["val/sample.path"]) == PNG
    assert values["val/sample._type"] == "image-file"
    assert b"<p>hi</p>" in found.file(values["page.path"])
    assert (values["system/cpu"], values["system/gpu/0"]) == (12.5, 50)
    assert (values["flops"], values["epoch_time"]) == (1e9, 3.5)
    [row] = [row for row in found.rows if "note" in row]
    assert row[STEP] == 1
    assert {"note", "plot._type", "val/sample._type", "epoch_time"} <= {*row}
    kept = {(a["type"], a["name"]): a for a in found.all("artifact")}
    files = {
        key: {c["path"]: Path(c["local_path"]).read_bytes() for c in a["manifest"]["contents"]}
        for key, a in kept.items()
    }
    assert files["artifact", "data"] == {"sub/a.csv": b"1,2", "b.csv": b"3,4"}
    assert files["artifact", "log_x20_file_x2F__xFC_"] == {"out.log": b"x"}
    assert files["torch", "tensor"] == {"tensor.pt": b"pt"}
    models = [a for a in found.all("artifact") if a["type"] == "model"]
    assert [sorted(a["aliases"]) for a in models] == [["latest"], ["best", "latest"]]
    assert json.loads(files["dataset", "cifar"]["cifar.json"])["files"] == 3
    assert json.loads(files["carbon", "carbon"]["carbon.json"])["source"] == "unknown"
    assert files["provenance", "prov"] == {"prov.json": b"{}"}
    assert files["text", "long"] == {"long.txt": b"long text"}
    assert files["kept", "broken"] == {"broken.png": b"no picture"}
    assert "cannot be shown" in values["broken"]


@pytest.mark.full
@pytest.mark.parametrize(
    ("status", "code"),
    [("finished", 0), ("failed", 1), ("interrupted", 130), ("killed", 137)],
)
def test_how_it_ended_is_carried_over(tmp_path: Path, log: Log, status: str, code: int) -> None:
    found = delivered(tmp_path, log, metric("loss", 1.0), status=status)
    [ended] = found.all("exit")
    assert ended["exit_code"] == code


def test_a_batch_that_comes_again_is_there_once(tmp_path: Path, log: Log) -> None:
    """In the same process, after it failed in the middle; and in another one."""
    to = backend(tmp_path)
    log.open(to)
    records = [metric("loss", float(i), i) for i in range(100)]
    records.append(log.item("artifact", "file", data=b"abc", file="file"))
    records += [metric("loss", float(i), i) for i in range(100, 200)]
    left = log.killed()
    whole = to._do
    to._do = lambda session, acts: (whole(session, acts[:50]), 1 / 0)  # type: ignore
    with pytest.raises(ZeroDivisionError):
        to.deliver(records, again=False)
    to._do = whole  # type: ignore
    to.deliver(records, again=True)
    to.close()
    log.state = left
    other = backend(tmp_path)
    log.open(other)
    other.deliver(records, again=True)
    other.finish("finished")
    found = Found(tmp_path, log.state["run_id"])
    assert found.curve("loss") == [(i, i) for i in range(200)]
    assert len(found.all("artifact")) == 1
    assert len(found.fragments) == 2
    assert len(found.all("preempting")) == 1


KILLED = """
import json, os, sys, time
from pathlib import Path
from stepwell.loggers.backends.wandb.backend import WandBBackend
from tests.loggers.delivering import Log, metric
folder, savedir, kept = Path(sys.argv[1]), sys.argv[2], Path(sys.argv[3])
log = Log(folder)
log.state = json.loads(kept.read_text()) if kept.exists() else {}
begin = log.state.get("batches", 0)
to = WandBBackend(number=1, savedir=savedir, project_name="tests")
log.open(to)
for batch in range(begin, 40):
    records = [metric("loss", float(i), i) for i in range(batch * 25, batch * 25 + 25)]
    if batch % 7 == 3:
        records.append(log.item("artifact", f"file{batch}", data=b"abc", file="file"))
    to.deliver(records, again=True)
    log.state["batches"] = batch + 1
    kept.with_suffix(".new").write_text(json.dumps(log.state, allow_nan=False))
    os.replace(kept.with_suffix(".new"), kept)
    print(batch, flush=True)
    time.sleep(0.02)
to.finish("finished")
kept.write_text(json.dumps(log.state))
print("done", flush=True)
"""


@pytest.mark.full
def test_killed_in_the_middle_and_resumed_each_value_is_there_once(tmp_path: Path) -> None:
    """Killed with -9 twice; W&B had put little of it on disk by then."""
    for at in (6, 25, None):
        process = start_script(
            KILLED,
            tmp_path / "run",
            tmp_path / "logs" / "wandb",
            tmp_path / "state.json",
            modules=SDKS,
            stdout=subprocess.PIPE,
            text=True,
        )
        assert process.stdout is not None
        for line in process.stdout:
            if at is not None and line.strip() == str(at):
                process.send_signal(signal.SIGKILL)
        process.wait()
        assert process.returncode == (0 if at is None else -signal.SIGKILL)
    state = json.loads((tmp_path / "state.json").read_text())
    found = Found(tmp_path, state["run_id"])
    assert Counter(found.curve("loss")) == Counter((i, i) for i in range(1000))
    numbers = [row["_step"] for row in found.rows]
    assert numbers == sorted(set(numbers))
    names = [a["name"] for a in found.all("artifact")]
    assert sorted(names) == sorted(f"file{batch}" for batch in range(3, 40, 7))
    assert len(found.fragments) == 3


ORPHANED = """
import os, signal, subprocess, sys, time
from pathlib import Path
from stepwell.loggers.backends.wandb.backend import WandBBackend
from tests.loggers.delivering import Log, metric

def persistently(call):
    for _ in range(5):
        try:
            return call()
        except Exception:
            time.sleep(0.1)
    return call()

log = Log(Path(sys.argv[1]))
to = WandBBackend(number=1, savedir=sys.argv[2], project_name="tests")
log.open(to)
to.deliver([metric("loss", float(i), i) for i in range(10)], again=False)
found = subprocess.run(["pgrep", "-P", str(os.getpid()), "wandb-core"], capture_output=True, text=True)
for pid in found.stdout.split():
    os.kill(int(pid), signal.SIGKILL)
batch = [metric("loss", float(i), i) for i in range(10, 20)]
persistently(lambda: to.deliver(batch, again=True))
persistently(lambda: to.finish("finished"))
print(log.state["run_id"], flush=True)
os._exit(0 if found.stdout.split() else 3)
"""


@pytest.mark.full
def test_when_w_and_bs_own_process_dies_the_rest_goes_on(tmp_path: Path) -> None:
    """It may be noticed at once, or only at the end; whatever fails is called again."""
    done = run_script(
        ORPHANED, tmp_path / "run", tmp_path / "logs" / "wandb", modules=SDKS, check=True
    )
    found = Found(tmp_path, done.stdout.split()[-1])
    assert Counter(found.curve("loss")) == Counter((i, i) for i in range(20))


@pytest.mark.full
def test_a_later_attempt_goes_on_with_the_same_run(tmp_path: Path, log: Log) -> None:
    """Records of the earlier one that are forwarded later come after it, and nothing is lost."""
    first = backend(tmp_path)
    log.open(first)
    first.deliver([metric("loss", 1.0, 0)], again=False)
    first.close()
    second = Log(log.folder, attempt=1)
    to = backend(tmp_path)
    second.open(to)
    to.deliver([metric("loss", 2.0, 1), metric("loss", 3.0, 2)], again=False)
    to.finish("finished")
    late = backend(tmp_path)
    log.open(late)
    late.deliver([metric("loss", 9.0, 0)], again=False)
    late.finish("killed")
    assert log.state["run_id"] == second.state["run_id"]
    found = Found(tmp_path, log.state["run_id"])
    assert [(row[STEP], row["loss"]) for row in found.rows] == [(0, 1), (1, 2), (2, 3), (0, 9)]
    assert [row["_step"] for row in found.rows] == [0, 1, 2, 3]


def test_fragments_that_were_uploaded_and_removed_do_not_come_again(
    tmp_path: Path, log: Log
) -> None:
    to = backend(tmp_path)
    log.open(to)
    to.deliver([metric("loss", float(i), i) for i in range(5)], again=False)
    to.finish("finished")
    log.state.pop("ended")
    shutil.rmtree(tmp_path / "logs")
    other = backend(tmp_path)
    log.open(other)
    other.deliver([metric("loss", 5.0, 5)], again=False)
    other.finish("finished")
    found = Found(tmp_path, log.state["run_id"])
    assert [(row["_step"], row["loss"]) for row in found.rows] == [(5, 5)]


def test_ranks_have_runs_of_their_own_in_one_group(tmp_path: Path, log: Log) -> None:
    runs = []
    for rank in (1, 2):
        own = Log(log.folder, rank=rank, world_size=4)
        to = backend(tmp_path, rank=rank, ranks=[1, 2])
        own.open(to)
        to.deliver([metric("loss", float(rank))], again=False)
        to.finish("finished")
        found = Found(tmp_path, own.state["run_id"])
        assert found.curve("loss") == [(0, rank)]
        runs += found.all("run")
    assert [run["run_group"] for run in runs] == [log.folder.name] * 2
    assert [run["display_name"] for run in runs] == ["demo", "demo rank 2"]
    assert len({run["run_id"] for run in runs}) == 2


@pytest.mark.parametrize(
    ("variables", "expected"),
    [
        ({}, "offline"),
        pytest.param({"WANDB_MODE": "online"}, "offline", marks=pytest.mark.full),
        pytest.param(
            {"WANDB_MODE": "offline", "WANDB_API_KEY": "a" * 40}, "offline", marks=pytest.mark.full
        ),
        ({"WANDB_MODE": "disabled", "WANDB_API_KEY": "a" * 40}, "disabled"),
        ({"WANDB_API_KEY": "a" * 40}, "online"),
    ],
)
def test_the_environment_says_whether_to_upload(
    monkeypatch: pytest.MonkeyPatch, variables: dict[str, str], expected: str
) -> None:
    """Without a key nothing can be uploaded, and there is no prompt for one."""
    from stepwell.loggers.backends.wandb.session import mode_of

    for name, value in variables.items():
        monkeypatch.setenv(name, value)
    assert mode_of({})[0] == expected
    assert mode_of({"offline_mode": True})[0] == (
        "disabled" if expected == "disabled" else "offline"
    )


@pytest.mark.full
def test_a_server_that_is_gone_fails_within_bounds(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path, log: Log
) -> None:
    """And when there is none at all any more, what was logged is on disk all the same."""
    monkeypatch.setattr("stepwell.loggers.backends.wandb.session.INIT_TIMEOUT", 1.0)
    monkeypatch.setenv("WANDB_API_KEY", "a" * 40)
    monkeypatch.setenv("WANDB_BASE_URL", "http://127.0.0.1:9")
    with pytest.raises(Exception, match=r"(?i)timed out|refused|connect|communicat|network"):
        log.open(backend(tmp_path))
    sys.modules["wandb"].teardown()
    monkeypatch.setenv("WANDB_MODE", "offline")
    found = delivered(tmp_path, log, metric("loss", 1.0))
    assert found.curve("loss") == [(0, 1)]


@pytest.mark.full
def test_fragments_that_were_not_uploaded_are_before_another_one_begins(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path, log: Log
) -> None:
    """The oldest first, each once; one that was uploaded already is left alone."""
    from stepwell.loggers.backends.wandb import fragments as wandb_backend_upload

    to = backend(tmp_path)
    for value in (1.0, 2.0, 3.0):
        log.open(to)
        to.deliver([metric("loss", value)], again=False)
        to.close()
    folders = [file.parent for file in Found(tmp_path, log.state["run_id"]).fragments]
    (folders[1] / f"run-{log.state['run_id']}.wandb.synced").touch()
    uploaded: list[Path] = []
    monkeypatch.setattr(wandb_backend_upload, "_sync", uploaded.append)
    for _ in range(2):
        wandb_backend_upload.upload_unfinished(tmp_path / "logs" / "wandb", log.state["run_id"])
    assert uploaded == [folders[0], folders[2]]


def test_a_key_may_be_in_netrc(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    from stepwell.loggers.backends.wandb.session import mode_of

    (tmp_path / "netrc").write_text("machine api.wandb.ai login user password " + "a" * 40)
    (tmp_path / "netrc").chmod(0o600)
    monkeypatch.setenv("NETRC", str(tmp_path / "netrc"))
    assert mode_of({}) == ("online", None)


def test_switched_off_nothing_is_written(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path, log: Log
) -> None:
    monkeypatch.setenv("WANDB_MODE", "disabled")
    found = delivered(tmp_path, log, metric("loss", 1.0))
    assert found.fragments == []
    assert not (tmp_path / "logs").exists()


@pytest.mark.full
def test_the_users_own_active_run_is_left_alone(tmp_path: Path, log: Log) -> None:
    import wandb

    own = wandb.init(mode="offline", dir=str(tmp_path / "logs"), id="mine", project="p")
    found = delivered(tmp_path, log, metric("loss", 1.0))
    assert wandb.run is own
    own.log({"mine": 1})
    own.finish()
    assert [row["mine"] for row in Found(tmp_path, "mine").rows] == [1]
    assert found.curve("loss") == [(0, 1)]
