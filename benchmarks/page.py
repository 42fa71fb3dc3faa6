"""``python -m benchmarks.page``: how quickly the server of the page answers about large runs.

Makes a run of 10 million spans and 5 million metric values, and a folder of 1,000 runs. Starts a server on
them with an empty cache. Prints the time of the first overview and of later requests, the memory of the
server, and how long a new value of a live run takes to reach one or many viewers.
"""

from __future__ import annotations

import argparse
import contextlib
import http.client
import json
import os
import random
import subprocess
import sys
import threading
import time
from collections.abc import Iterator
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Any
from urllib.parse import urlencode

import psutil

from benchmarks.detail import _alone, _write_many, _write_run
from stepwell.reading.remote import CACHE

TOKEN = "benchmark-of-the-page"
LATER = 200
VIEWERS = 10


def main() -> None:
    parser = argparse.ArgumentParser(prog="python -m benchmarks.page", description=__doc__)
    parser.add_argument("--spans", type=int, default=10_000_000, help="number of spans")
    parser.add_argument("--values", type=int, default=5_000_000, help="number of metric values")
    parser.add_argument("--runs", type=int, default=1000, help="number of runs to list")
    parser.add_argument(
        "--dir", type=Path, help="folder to keep the runs in, and to find them again"
    )
    asked = parser.parse_args()
    with TemporaryDirectory() as place:
        folder = asked.dir or Path(place)
        os.environ[CACHE] = str(Path(place, "cache"))
        if not (folder / "large" / "run").exists():
            _alone(_write_run, folder / "large" / "run", asked.spans, asked.values)
        if not (folder / "many").exists():
            _alone(_write_many, folder / "many", asked.runs)
        with served(folder / "large") as server:
            _large(server)
        with served(folder / "many") as server:
            _row("1,000 runs, first list", *server.timed("/api/runs"))
            while server.timed("/api/runs")[1]["pending"]:
                time.sleep(1)
            _row("1,000 runs, later list", *server.timed("/api/runs"))
        with served(Path(place, "live")) as server:
            _live(server, Path(place, "live"))


class Server:
    """``stepwell ui`` in a process."""

    def __init__(self, port: int, process: subprocess.Popen[str]) -> None:
        self.port = port
        self.process = psutil.Process(process.pid)

    def timed(self, path: str, **parameters: Any) -> tuple[float, Any]:
        """Return seconds and answer of one request."""
        address = f"{path}?{urlencode(parameters, doseq=True)}"
        began = time.perf_counter()
        connection = self.connection()
        connection.request("GET", address, headers={"Authorization": f"Bearer {TOKEN}"})
        answer = connection.getresponse()
        body = answer.read()
        took = time.perf_counter() - began
        connection.close()
        if answer.status != 200:
            raise SystemExit(f"{address}: {answer.status} {body[:200]!r}")
        return took, json.loads(body)

    def connection(self) -> http.client.HTTPConnection:
        return http.client.HTTPConnection("127.0.0.1", self.port, timeout=300)

    @property
    def megabytes(self) -> float:
        return float(self.process.memory_info().rss) / 1e6


@contextlib.contextmanager
def served(folder: Path) -> Iterator[Server]:
    folder.mkdir(parents=True, exist_ok=True)
    command = [sys.executable, "-m", "stepwell", "ui", str(folder), "--port", "0"]
    environment = {**os.environ, "STEPWELL_UI_TOKEN": TOKEN}
    with subprocess.Popen(command, stdout=subprocess.PIPE, text=True, env=environment) as process:
        assert process.stdout is not None
        line = process.stdout.readline()
        yield Server(int(line.split(":")[-1].split("/")[0]), process)
        process.terminate()


def _large(server: Server) -> None:
    (run,) = [each["id"] for each in server.timed("/api/runs")[1]["runs"]]
    base = f"/api/runs/{run}"
    took, overview = server.timed(base)
    _row("overview, cold", took, overview, "partial" if overview["is_partial"] else "")
    began = time.perf_counter()
    while server.timed(base)[1]["is_partial"]:
        time.sleep(0.1)
    print(f"{'overview complete after':34} {took + time.perf_counter() - began:8.2f} s")
    names = [each["name"] for each in server.timed(f"{base}/metrics")[1]["metrics"]]
    _row("timeline, first", *server.timed(f"{base}/timeline", width=1500))
    while server.timed(f"{base}/timeline", width=1500, lanes=39)[1]["missing"]:
        pass
    _row("grid, first", *server.timed(f"{base}/grid"))
    _row("ranks, first", *server.timed(f"{base}/ranks"))
    _row("provenance, first", *server.timed(f"{base}/provenance"))
    begin, end = server.timed(f"{base}/timeline", width=1500)[1]["full"]
    times = []
    choose = random.Random(0)
    for number in range(LATER):
        kind = number % 4
        if kind == 0:
            answer = server.timed(f"{base}/series", name=choose.choice(names), points=700 + number)
        elif kind == 3:
            answer = server.timed(f"{base}/grid", width=600 + number, height=300)
        else:
            width = (end - begin) / choose.choice([2, 8, 64, 1024, 65536])
            start = begin + choose.random() * (end - begin - width)
            given = {"start": int(start), "end": int(start + width), "width": 1500}
            answer = server.timed(f"{base}/timeline", **given)
        times.append(answer[0])
    times.sort()
    print(
        f"{f'{LATER} later requests':34} p50 {times[LATER // 2] * 1e3:.0f} ms, "
        f"p95 {times[LATER * 95 // 100] * 1e3:.0f} ms, longest {times[-1] * 1e3:.0f} ms"
    )
    print(f"{'memory of the server':34} {server.megabytes:8.0f} MB")


def _live(server: Server, folder: Path) -> None:
    import stepwell

    with stepwell.init("live", dir=folder, run_id="live", quiet=True) as run:
        for count in (1, VIEWERS):
            run.log({"loss": 0.0}, step=0)
            viewers = [_Viewer(server) for _ in range(count)]
            time.sleep(3)
            before = server.process.cpu_times()
            delays = []
            for step in range(1, 9):
                run.set_step(step + 100 * count)
                value = step + 1000.0 * count
                began = time.perf_counter()
                run.log({"loss": value})
                while not all(viewer.last == value for viewer in viewers):
                    time.sleep(0.005)
                delays.append(time.perf_counter() - began)
            after = server.process.cpu_times()
            spent = after.user + after.system - before.user - before.system
            print(
                f"{f'new value on {count} pages':34} {sorted(delays)[4]:8.2f} s, "
                f"longest {max(delays):.2f} s; CPU of the server {spent / sum(delays):.0%}"
            )
            for viewer in viewers:
                viewer.close()


class _Viewer:
    """A page that follows the live run."""

    def __init__(self, server: Server) -> None:
        self.last = 0.0
        self._connection = server.connection()
        headers = {"Authorization": f"Bearer {TOKEN}"}
        self._connection.request("GET", "/api/live?run=live", headers=headers)
        self._answer = self._connection.getresponse()
        threading.Thread(target=self._read, daemon=True).start()

    def _read(self) -> None:
        with contextlib.suppress(Exception):
            for line in self._answer:
                if line.startswith(b"data: "):
                    values = json.loads(line[6:])["values"].get("loss") or [[0, 0.0]]
                    self.last = values[-1][1]

    def close(self) -> None:
        if self._connection.sock is not None:
            self._connection.sock.shutdown(2)


def _row(title: str, seconds: float, answer: Any, note: str = "") -> None:
    size = len(json.dumps(answer))
    print(f"{title:34} {seconds:8.2f} s  {size / 1e3:8.0f} kB  {note}".rstrip(), flush=True)


if __name__ == "__main__":
    main()
