"""``stepwell ui``: the web server, its address and its token."""

from __future__ import annotations

import html
import os
import re
import secrets
import socket
import tempfile
import threading
import time
import webbrowser
from collections.abc import Callable
from pathlib import Path
from types import FrameType

import uvicorn

from stepwell._core.errors import StepwellError
from stepwell.dashboard.access import is_loopback
from stepwell.dashboard.app import Dashboard, make_app
from stepwell.dashboard.page import page_file

PORT = 7837
TOKEN_VARIABLE = "STEPWELL_UI_TOKEN"
SHORTEST_TOKEN = 16
EVERYWHERE = {"0.0.0.0": "127.0.0.1", "::": "::1"}
"""Addresses that stand for all of a machine's, and the loopback address of each."""
FOLLOWED_S = 30.0
"""A browser has followed the link by then."""


def serve(
    folder: Path,
    *,
    host: str = "127.0.0.1",
    port: int | None = None,
    names: tuple[str, ...] = (),
    browser: bool = False,
    say: Callable[[str], None] = print,
) -> None:
    """Serve a folder of runs, or one run, until Ctrl-C.

    Args:
        folder: a folder of runs, or a run folder.
        host: the address to listen on. Others than loopback addresses can be reached by other machines.
        port: the port. Default: 7837, or a free one if that is taken.
        names: further host names under which the page may be opened, such as that of a proxy.
        browser: open the page in a browser.
        say: called with each line for the user.
    """
    page_file("index.html")
    token = choose_token()
    listening = listen(host, port)
    chosen = int(listening.getsockname()[1])
    app, dashboard = make_app(folder, token, {*host_names(host), *names}, chosen)
    shown = EVERYWHERE.get(host, host)
    shown = f"[{shown}]" if ":" in shown else shown
    link = f"http://{shown}:{chosen}/?token={token}"
    say(f"Runs in {folder}: {link}")
    if is_loopback(host):
        name = socket.gethostname()
        say(
            f"From another machine: ssh -N -L {chosen}:{shown}:{chosen} {name}, then the same link."
        )
    else:
        say("Other machines can reach this server. The connection is not encrypted.")
    say("Ctrl-C stops it.")
    if browser:
        threading.Thread(target=open_browser, args=(link,), daemon=True).start()
    config = uvicorn.Config(
        app,
        log_level="warning",
        access_log=False,
        server_header=False,
        lifespan="on",
        timeout_graceful_shutdown=2,
    )
    _Server(config, dashboard).run(sockets=[listening])


class _Server(uvicorn.Server):
    """Ends the streams of live events first: they would keep the server from ending."""

    def __init__(self, config: uvicorn.Config, dashboard: Dashboard) -> None:
        super().__init__(config)
        self._dashboard = dashboard

    def handle_exit(self, sig: int, frame: FrameType | None) -> None:
        self._dashboard.stop()
        super().handle_exit(sig, frame)


def open_browser(link: str) -> None:
    """Open a link in a browser. A private file leads to it: other users can read command lines."""
    with tempfile.NamedTemporaryFile("w", suffix=".html", delete=False) as file:
        file.write(f'<meta http-equiv="refresh" content="0; url={html.escape(link)}">')
    webbrowser.open(Path(file.name).as_uri())
    time.sleep(FOLLOWED_S)
    Path(file.name).unlink(missing_ok=True)


def choose_token() -> str:
    """Return the token in ``STEPWELL_UI_TOKEN``, else a random one."""
    given = os.environ.get(TOKEN_VARIABLE)
    if given is None:
        return secrets.token_urlsafe(24)
    if len(given) < SHORTEST_TOKEN or not re.fullmatch(r"[A-Za-z0-9_-]+", given):
        raise StepwellError(
            f"{TOKEN_VARIABLE} must have at least {SHORTEST_TOKEN} letters, digits, - or _"
        )
    return given


def listen(host: str, port: int | None) -> socket.socket:
    """Return a socket that listens on this address; without a port, on the usual or a free one."""
    if port is not None and not 0 <= port < 1 << 16:
        raise StepwellError(f"--port must be from 0 to 65535, got {port}")
    for number in (PORT, 0) if port is None else (port,):
        try:
            return socket.create_server(
                (host, number), family=socket.AF_INET6 if ":" in host else socket.AF_INET
            )
        except OSError as error:
            if port is None and number:
                continue
            reason = error.strerror or error
            raise StepwellError(
                f"cannot listen on {host}, port {number}: {reason}. Choose another with --host or --port"
            ) from None
    raise AssertionError


def host_names(host: str) -> set[str]:
    """Return the names under which a server on this address may be asked."""
    if is_loopback(host):
        return {host, "127.0.0.1", "localhost", "::1"}
    if host not in EVERYWHERE:
        return {host}
    import psutil

    addresses = {
        address.address.partition("%")[0]
        for each in psutil.net_if_addrs().values()
        for address in each
        if address.family in (socket.AF_INET, socket.AF_INET6)
    }
    return {"localhost", socket.gethostname(), socket.getfqdn(), *addresses}
