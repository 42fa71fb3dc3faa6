"""A real server over a folder of runs, in a thread, and plain requests to it."""

from __future__ import annotations

import contextlib
import http.client
import json
import threading
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any
from urllib.parse import urlencode

import uvicorn

from stepwell.dashboard.app import make_app
from stepwell.dashboard.server import host_names, listen
from tests.harness import wait_until

TOKEN = "0123456789abcdef-token"


@dataclass(frozen=True)
class Reply:
    """The answer to one request."""

    status: int
    headers: Mapping[str, str]
    body: bytes

    @property
    def json(self) -> Any:
        return json.loads(self.body)


@dataclass(frozen=True)
class Server:
    """A running server."""

    port: int
    token: str = TOKEN

    @property
    def link(self) -> str:
        return f"http://127.0.0.1:{self.port}/?token={self.token}"

    def ask(
        self,
        path: str,
        method: str = "GET",
        headers: Mapping[str, str] | None = None,
        *,
        signed_in: bool = True,
        **parameters: Any,
    ) -> Reply:
        """Send one request, just as it is: the path is not normalised."""
        if parameters:
            path = f"{path}?{urlencode(parameters, doseq=True)}"
        given = {"Host": f"127.0.0.1:{self.port}", **(headers or {})}
        if signed_in:
            given.setdefault("Authorization", f"Bearer {self.token}")
        connection = http.client.HTTPConnection("127.0.0.1", self.port, timeout=60)
        with contextlib.closing(connection):
            connection.putrequest(method, path, skip_host=True, skip_accept_encoding=True)
            for name, value in given.items():
                connection.putheader(name, value)
            connection.endheaders()
            answer = connection.getresponse()
            names = {name.lower(): value for name, value in answer.getheaders()}
            return Reply(answer.status, names, answer.read())

    def get(self, path: str, **parameters: Any) -> Any:
        """Return the JSON of an address that must exist, when it is complete."""

        def complete() -> Any:
            reply = self.ask(path, **parameters)
            assert reply.status == 200, reply
            return [reply.json] if not reply.json.get("is_partial") else None

        return wait_until(complete)[0]


@contextlib.contextmanager
def served(folder: Path, token: str = TOKEN) -> Iterator[Server]:
    """Serve a folder until the end of the block."""
    listening = listen("127.0.0.1", 0)
    port = listening.getsockname()[1]
    app, dashboard = make_app(folder, token, host_names("127.0.0.1"), port)
    config = uvicorn.Config(app, log_level="error", lifespan="on", timeout_graceful_shutdown=1)
    server = uvicorn.Server(config)
    thread = threading.Thread(target=server.run, kwargs={"sockets": [listening]}, daemon=True)
    thread.start()
    try:
        wait_until(lambda: server.started)
        yield Server(port, token)
    finally:
        dashboard.stop()
        server.should_exit = True
        thread.join(20)
        listening.close()
    assert not thread.is_alive()
