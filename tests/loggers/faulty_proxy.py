"""A proxy in front of a real server that fails in the ways that servers and networks do."""

from __future__ import annotations

import http.client
import threading
import time
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from typing import Literal

Mode = Literal["well", "500", "500 afterwards", "hang", "hang afterwards"]
"""``afterwards``: the server has got the request, and its answer is lost."""


class FaultyProxy(ThreadingHTTPServer):
    """Passes requests on to a server on this machine. ``mode`` says what goes wrong; it may be changed."""

    daemon_threads = True

    def __init__(self, port: int) -> None:
        super().__init__(("127.0.0.1", 0), Handler)
        self.target = port
        self.mode: Mode = "well"
        self.failed = 0
        self.url = f"http://127.0.0.1:{self.server_address[1]}"
        threading.Thread(target=self.serve_forever, args=(0.05,), daemon=True).start()

    def close(self) -> None:
        self.mode = "500"
        self.shutdown()
        self.server_close()


class Handler(BaseHTTPRequestHandler):
    server: FaultyProxy

    def handle_any(self) -> None:
        mode = self.server.mode
        length = int(self.headers.get("content-length") or 0)
        body = self.rfile.read(length)
        answer = None if mode in ("500", "hang") else self.passed_on(body)
        if mode != "well":
            self.server.failed += 1
        if mode.startswith("hang"):
            while self.server.mode == mode:
                time.sleep(0.05)
            self.close_connection = True
            return
        status, content = answer if answer and mode == "well" else (500, b"out of order")
        self.send_response(status)
        self.send_header("content-length", str(len(content)))
        self.send_header("content-type", "application/json")
        self.end_headers()
        self.wfile.write(content)

    def passed_on(self, body: bytes) -> tuple[int, bytes]:
        connection = http.client.HTTPConnection("127.0.0.1", self.server.target, timeout=30)
        headers = {k: v for k, v in self.headers.items() if k.lower() != "host"}
        try:
            connection.request(self.command, self.path, body, headers)
            answer = connection.getresponse()
            return answer.status, answer.read()
        finally:
            connection.close()

    do_GET = do_POST = do_PUT = do_PATCH = do_DELETE = handle_any

    def log_message(self, *args: object) -> None:
        """Say nothing."""
