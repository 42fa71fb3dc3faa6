"""Alerts: the same rules during a run; each finding is delivered once."""

from __future__ import annotations

import json
import logging
import sys
import threading
from collections.abc import Iterator
from http.server import BaseHTTPRequestHandler, HTTPServer
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest

import stepwell
from stepwell import StepwellError
from stepwell.analysis.findings import Alerts, Finding
from stepwell.analysis.findings import alerts as alerts_module
from stepwell.reading import RecordedRun
from tests.analysis.findings.training import train
from tests.harness import run_stepwell


@pytest.fixture
def waits(tmp_path: Path) -> RecordedRun:
    """A run that waits for its data."""
    return train(tmp_path / "runs", times=lambda step: {"wait for data": 0.05})


@pytest.fixture
def hook() -> Iterator[tuple[str, list[dict[str, Any]], list[int]]]:
    """A server: its address, what it got, and the answers that it gives before it gives 200."""
    got: list[dict[str, Any]] = []
    answers: list[int] = []

    class Handler(BaseHTTPRequestHandler):
        def do_POST(self) -> None:
            got.append(json.loads(self.rfile.read(int(self.headers["Content-Length"]))))
            self.send_response(answers.pop() if answers else 200)
            self.end_headers()

        def log_message(self, *args: Any) -> None:
            pass

    server = HTTPServer(("127.0.0.1", 0), Handler)
    thread = threading.Thread(target=server.serve_forever, daemon=True)
    thread.start()
    yield f"http://127.0.0.1:{server.server_port}/", got, answers
    server.shutdown()
    thread.join()
    server.server_close()


def test_a_callback_hears_of_each_finding_once(waits: Any) -> None:
    """However often one looks."""
    heard: list[Finding] = []
    alerts = Alerts(waits, callback=heard.append)
    assert [f.rule for f in alerts.check()] == ["data-bound"]
    assert alerts.check() == []
    assert [f.rule for f in heard] == ["data-bound"]


def test_it_tells_while_the_run_goes_on(tmp_path: Path) -> None:
    """Nothing at first; and then what has come up since."""
    heard: list[str] = []
    with stepwell.init("live", dir=tmp_path) as run:
        alerts = Alerts(stepwell.open_run(run.path), callback=lambda f: heard.append(f.sentence))
        for step in range(40):
            run.log({"loss": 1.0}, step=step)
        run.flush()
        assert alerts.check() == []
        run.log({"loss": float("nan")}, step=40)
        run.flush()
        alerts.check()
    assert heard == ["loss is NaN from step 40 on."]


def test_a_webhook_gets_json(waits: Any, hook: Any) -> None:
    """With a text that chat programs show."""
    address, got, _ = hook
    Alerts(waits, webhook=address).check()
    (sent,) = got
    assert sent["rule"] == "data-bound"
    assert sent["text"].startswith("training: Waiting for data takes 57 % of the wall time")


def test_a_webhook_that_fails_is_tried_again(
    waits: Any, hook: Any, caplog: pytest.LogCaptureFixture
) -> None:
    """It is retried a few times, with a warning; the other receivers get the finding once."""
    address, got, answers = hook
    answers += [503, 503]
    heard: list[Finding] = []
    alerts = Alerts(waits, callback=heard.append, webhook=address)
    with caplog.at_level(logging.WARNING, "stepwell"):
        for _ in range(5):
            alerts.check()
    assert (len(got), len(heard)) == (3, 1)
    assert "alert not delivered" in caplog.text


def test_what_is_refused_is_not_sent_again(waits: Any, hook: Any) -> None:
    """An address that does not exist will not exist the next time either."""
    address, got, answers = hook
    answers += [404, 404]
    alerts = Alerts(waits, webhook=address)
    alerts.check()
    alerts.check()
    assert len(got) == 1
    host = address.split("/")[2]
    assert alerts.undelivered == [
        f"1 finding was not delivered to {host}: HTTP status 404 Not Found"
    ]


def test_the_rest_is_sent_when_the_run_has_ended(
    waits: Any, hook: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    """After pauses that grow; then nothing is left."""
    pauses: list[float] = []
    monkeypatch.setattr(alerts_module, "time", SimpleNamespace(sleep=pauses.append))
    address, got, answers = hook
    answers += [503, 503]
    alerts = Alerts(waits, webhook=address)
    alerts.follow()
    assert (len(got), pauses, alerts.undelivered) == (3, [2.0, 4.0], [])


@pytest.mark.sampled(2)
@pytest.mark.parametrize("words", [("--once",), ()])
def test_the_exit_code_of_a_webhook_that_refuses(
    waits: Any, hook: Any, tmp_path: Path, words: tuple[str, ...]
) -> None:
    """1, with a sentence that names the receiver; the finding is printed all the same."""
    address, _, answers = hook
    answers += [404]
    done = run_stepwell("alert", str(waits.path), "--webhook", address, *words, cwd=tmp_path)
    assert done.returncode == 1
    assert "aiting for data" in done.stdout
    assert "stepwell: 1 finding was not delivered to 127.0.0.1:" in done.stderr


def test_a_command_is_run(waits: Any, tmp_path: Path) -> None:
    """With the finding on its standard input and in its environment; no shell takes part."""
    out = tmp_path / "said"
    program = (
        "import json, os, sys; about = json.load(sys.stdin);"
        f"open({str(out)!r}, 'w').write(about['rule'] + ' ' + os.environ['STEPWELL_SEVERITY'])"
    )
    Alerts(waits, command=[sys.executable, "-c", program]).check()
    assert out.read_text() == "data-bound critical"


def test_only_what_is_grave_enough(waits: Any) -> None:
    """``least`` leaves the rest out, and is checked as the address is."""
    assert len(Alerts(waits, least="critical").check()) == 1
    with pytest.raises(StepwellError, match="'critical', 'warning' or 'note'"):
        Alerts(waits, least="bad")
    with pytest.raises(StepwellError, match="http"):
        Alerts(waits, webhook="file:///etc/passwd")


def test_the_command_line(waits: Any, tmp_path: Path) -> None:
    """It prints a line of JSON for each, and ends with the run."""
    done = run_stepwell("alert", str(waits.path), "--json", cwd=tmp_path, check=True)
    (line,) = done.stdout.splitlines()
    assert json.loads(line)["rule"] == "data-bound"
