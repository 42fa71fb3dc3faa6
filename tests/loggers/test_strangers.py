"""``stepwell forward`` with a stranger's run folder: nothing is sent to an unconfirmed destination."""

from __future__ import annotations

import json
import os
from pathlib import Path
from typing import Any

import pytest

from stepwell import Run, StepwellError
from stepwell.cli.forward import parse_receiver
from stepwell.loggers.backends.mlflow import runs
from stepwell.loggers.delivery import forwarder
from stepwell.loggers.delivery.forwarder import forward_log, is_backend
from stepwell.telemetry import artifacts, forward
from stepwell.telemetry.forward import NotTaken
from tests.harness.marks import others_in_full
from tests.journal.logging_rows import folder_of, log_for, write_line

FOLDERS = {
    "console": "savedir",
    "tensorboard": "savedir",
    "prov": "provenance_save_dir",
}

CLASSES = {
    "console": "stepwell.loggers.backends.console.ConsoleBackend",
    "tensorboard": "stepwell.loggers.backends.tensorboard.backend.TensorBoardBackend",
    "prov": "stepwell.loggers.prov.backend.ProvBackend",
}


def files_below(folder: Path) -> list[Path]:
    return [path for path in folder.rglob("*") if path.is_file()]


def keep(run: Run, name: str, content: bytes) -> Path:
    """Log a file to any logger; returns where the run has it."""
    sha, size = artifacts.store(run.path, content)
    write_line("item", name, item="artifact", audience=[1], content=sha, size=size, file=name)
    return artifacts.artifact_path(run.path, sha)


@pytest.mark.parametrize("to", FOLDERS)
@pytest.mark.parametrize("called", ["../../outside", "{outside}"])
def test_the_id_of_a_run_leads_out_of_no_folder(
    recorded: Run, tmp_path: Path, to: str, called: str
) -> None:
    """It is part of folder names, and may come from a stranger."""
    outside = tmp_path / "outside"
    keep(recorded, "authorized_keys", b"content")
    recorded.finish()
    document = folder_of(recorded.path) / "process.json"
    about = json.loads(document.read_text())
    document.write_text(json.dumps({**about, "run": called.format(outside=outside)}))
    inside = tmp_path / "a" / "b"
    write = {FOLDERS[to]: str(inside)}
    forward_log(recorded.path, CLASSES[to], write)
    assert not outside.exists()
    assert files_below(inside)


@pytest.mark.filterwarnings("ignore")
@pytest.mark.parametrize(
    "to", others_in_full(["console", "tensorboard", "mlflow"], ["tensorboard"])
)
def test_a_link_in_place_of_a_content_is_not_followed(
    recorded: Run, tmp_path: Path, to: str
) -> None:
    """It may lead to a secret of the user who forwards. Later records still arrive."""
    secret = tmp_path / "secret"
    secret.write_bytes(b"the secret")
    content = keep(recorded, "data.bin", b"content")
    keep(recorded, "other.bin", b"the other one")
    recorded.finish()
    content.unlink()
    content.symlink_to(secret)
    kept = tmp_path / "kept"
    if to == "mlflow":
        pytest.importorskip("mlflow")
    forward_log(recorded.path, CLASSES.get(to, to), {"savedir": str(kept)})
    contents = [path.read_bytes() for path in files_below(kept)]
    assert b"the other one" in contents
    assert not any(b"the secret" in one for one in contents)


def stored(number: int, to: str, **options: Any) -> None:
    write_line("logger", to, number=number, to=to, **{"class": "x.Y", "options": options})


def test_where_it_goes_is_said_first(
    recorded: Run, tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    """If only the run folder names it."""
    kept, given = tmp_path / "kept", tmp_path / "given"
    stored(1, "tensorboard", savedir=str(kept))
    log_for("1", "loss", 1.0, 0)
    recorded.finish()
    forward_log(recorded.path, "tensorboard")
    (said,) = [r.getMessage() for r in caplog.records if "goes to" in r.getMessage()]
    assert said == f"tensorboard goes to savedir '{kept}', as stored in the run folder"
    caplog.clear()
    write = {"savedir": str(given)}
    forward_log(recorded.path, CLASSES["console"], write)
    assert not [r for r in caplog.records if "goes to" in r.getMessage()]


ADDRESS = "http://stranger.example:5000"


@pytest.mark.parametrize("is_delivered", [False, True])
def test_an_address_that_only_the_run_folder_says_is_confirmed(
    recorded: Run, monkeypatch: pytest.MonkeyPatch, is_delivered: bool
) -> None:
    """Else credentials would be sent to a stranger: of a logger or of an earlier delivery alike."""
    stored(1, "mlflow", **({} if is_delivered else {"tracking_uri": ADDRESS}))
    log_for("1", "loss", 1.0, 0)
    recorded.finish()
    if is_delivered:
        own = {"uri": ADDRESS, "place": ADDRESS}
        state = {"cursor": None, "intent": None, "state": own, "status_delivered": None}
        path = folder_of(recorded.path) / "delivery-mlflow-1.json"
        path.write_text(json.dumps(state))
    called: list[str] = []

    def refuse(uri: str) -> None:
        called.append(uri)
        raise ConnectionError("it does not answer")

    monkeypatch.setattr(runs, "connect", refuse)
    monkeypatch.setattr(forward, "TRIES", 1)
    monkeypatch.delenv("MLFLOW_TRACKING_URI", raising=False)
    with pytest.raises(StepwellError, match=rf"credentials .* --to mlflow={ADDRESS}$"):
        forward_log(recorded.path, "mlflow")
    monkeypatch.setenv("MLFLOW_TRACKING_URI", "http://own.example:5000")
    with pytest.raises((StepwellError, NotTaken), match=ADDRESS):
        forward_log(recorded.path, "mlflow")
    assert called == []
    # The user's own settings say the same, or the command does.
    monkeypatch.setenv("MLFLOW_TRACKING_URI", ADDRESS)
    with pytest.raises(NotTaken):
        forward_log(recorded.path, "mlflow")
    monkeypatch.delenv("MLFLOW_TRACKING_URI")
    with pytest.raises(NotTaken):
        forward_log(recorded.path, "mlflow", {"tracking_uri": ADDRESS})
    assert called == [ADDRESS, ADDRESS]


def test_an_address_on_the_command_line() -> None:
    """``--to NAME=ADDRESS`` is the receiver's own option for it."""
    assert parse_receiver("mlflow", {"a": 1}) == ("mlflow", {"a": 1})
    address = {"a": 1, "tracking_uri": "http://x/?b=c"}
    assert parse_receiver("mlflow=http://x/?b=c", {"a": 1}) == ("mlflow", address)
    assert parse_receiver("otlp=http://x", {}) == ("otlp", {"endpoint": "http://x"})
    for words, said in [
        ("tensorboard=http://x", "tensorboard does not take an address"),
        ("mlflow=", "such as --to mlflow=http"),
        ("mlflow=http://y", "use one of them"),
        ("mlfow=http://x", "did you mean 'mlflow'"),
    ]:
        with pytest.raises(StepwellError, match=said):
            parse_receiver(words, {"tracking_uri": "http://x"})


@pytest.fixture
def stranger(monkeypatch: pytest.MonkeyPatch) -> None:
    """This user has none of the files."""
    monkeypatch.setattr(forwarder, "ROOT", -1)
    monkeypatch.setattr(os, "geteuid", lambda: 424242)


@pytest.mark.usefixtures("stranger")
def test_a_folder_of_another_user_does_not_say_where_to(recorded: Run, tmp_path: Path) -> None:
    """The user who forwards it confirms it; then it is sent."""
    kept, given = tmp_path / "kept", tmp_path / "given"
    stored(1, "tensorboard", savedir=str(kept))
    stored(2, "mlflow", tracking_uri="http://127.0.0.1:9", savedir=str(kept))
    log_for("1+2", "loss", 1.0, 0)
    recorded.finish()
    with pytest.raises(StepwellError, match=r"belongs to .*--option savedir=…"):
        forward_log(recorded.path, "tensorboard")
    with pytest.raises(StepwellError, match=r"tracking_uri 'http://127.0.0.1:9'"):
        forward_log(recorded.path, "mlflow")
    assert not kept.exists()
    assert forward_log(recorded.path, "tensorboard", {"savedir": str(given)})[0].records == 1
    assert files_below(given)


@pytest.mark.usefixtures("stranger")
def test_neither_does_what_it_says_of_an_earlier_delivery(recorded: Run, tmp_path: Path) -> None:
    """The folder in the state of a delivery has to be below the one that was given."""
    stored(1, "tensorboard", savedir=str(tmp_path / "kept"))
    log_for("1", "loss", 1.0, 0)
    recorded.finish()
    own = {
        "folder": str(tmp_path / "elsewhere"),
        "file": "x",
        "length": 0,
        "params": {},
        "tags": {},
    }
    state = {"cursor": None, "intent": None, "state": own, "status_delivered": None}
    path = folder_of(recorded.path) / "delivery-tensorboard-1.json"
    path.write_text(json.dumps(state))
    with pytest.raises(StepwellError, match=r"folder '.*elsewhere'"):
        forward_log(recorded.path, "tensorboard", {"savedir": str(tmp_path / "given")})
    assert not (tmp_path / "elsewhere").exists()


def test_a_terminal_is_told_no_control_characters(
    recorded: Run, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    """Names may contain anything."""
    log_for("1", "lo\x1b[2Jss", 1.0, 0)
    recorded.finish()
    forward_log(recorded.path, CLASSES["console"], {"savedir": str(tmp_path)})
    assert "lo?[2Jss = 1 (step 0)" in capsys.readouterr().err


def test_the_name_of_an_own_logger_asks_for_its_class(recorded: Run) -> None:
    """The folder does not decide which code runs."""
    stored(1, "lines")
    recorded.finish()
    with pytest.raises(StepwellError, match=r"pass its class to --to.* 'x\.Y'"):
        is_backend(recorded.path, "lines")
