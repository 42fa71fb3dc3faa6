"""Who may ask what: read-only methods, known hosts, and a token, as ASGI middleware.

Other people on a login node can reach a port on the loopback address, and so can any web page in the user's
browser. So every request needs the token, which is in the printed link and afterwards in a cookie.
"""

from __future__ import annotations

import hmac
import ipaddress
import re
from collections.abc import Awaitable, Callable, Iterable, MutableMapping
from http.cookies import CookieError, SimpleCookie
from typing import Any
from urllib.parse import parse_qsl, urlencode, urlsplit

Message = MutableMapping[str, Any]
Receive = Callable[[], Awaitable[Message]]
Send = Callable[[Message], Awaitable[None]]
ASGIApp = Callable[[Message, Receive, Send], Awaitable[None]]
Headers = list[tuple[bytes, bytes]]

METHODS = ("GET", "HEAD")
TOKEN = "token"
LONGEST = 8192
"""Longest path with query, in bytes."""
POLICY = (
    "default-src 'none'; script-src 'self'; style-src 'self' 'unsafe-inline'; img-src 'self' data: blob:; "
    "connect-src 'self'; font-src 'self'; base-uri 'none'; form-action 'none'; frame-ancestors 'none'"
)
"""Only the page's own scripts run, and nothing is loaded from elsewhere. Scripts may set styles."""
HEADERS: Headers = [
    (b"content-security-policy", POLICY.encode()),
    (b"x-content-type-options", b"nosniff"),
    (b"x-frame-options", b"DENY"),
    (b"referrer-policy", b"no-referrer"),
    (b"cross-origin-resource-policy", b"same-origin"),
    (b"cross-origin-opener-policy", b"same-origin"),
    (b"permissions-policy", b"camera=(), microphone=(), geolocation=()"),
]


class Access:
    """Passes permitted requests on, and answers all others itself.

    Args:
        app: the application.
        token: the secret that a request must have; "" for none.
        hosts: names and addresses under which the server may be asked, without port.
        port: makes the name of the cookie unique, since browsers send cookies to all ports of a host.
    """

    def __init__(self, app: ASGIApp, token: str, hosts: Iterable[str], port: int) -> None:
        self._app = app
        self._token = token.encode()
        self._hosts = {host.lower() for host in hosts}
        self._cookie = f"stepwell-{port}"

    async def __call__(self, scope: Message, receive: Receive, send: Send) -> None:
        if scope["type"] == "lifespan":
            await self._app(scope, receive, send)
            return
        if scope["type"] != "http":
            return
        problem = self._problem(scope)
        if problem is not None:
            await _refuse(send, *problem)
            return
        given = dict(parse_qsl(scope["query_string"].decode("latin-1"))).get(TOKEN)
        if given is not None and self._token:
            await self._sign_in(scope, send, given)
        elif self._token and not self._is_signed_in(scope):
            text = "Open the link that `stepwell ui` printed: it contains the token of this server."
            await _refuse(send, 401, text)
        else:
            await self._app(scope, receive, _with_headers(send))

    def _problem(self, scope: Message) -> tuple[int, str] | None:
        """Return status and text of the answer if the request itself is not permitted."""
        if scope["method"] not in METHODS:
            return 405, "This server only reads: use GET or HEAD."
        if len(scope.get("raw_path") or b"") + len(scope["query_string"]) > LONGEST:
            return 414, f"The address is longer than {LONGEST} bytes."
        hosts = _values(scope, b"host")
        if len(hosts) != 1 or host_of(hosts[0]) not in self._hosts:
            return (
                400,
                "This server is not known under that host name; start it with --allow-host NAME.",
            )
        for origin in _values(scope, b"origin"):
            if urlsplit(origin).netloc.lower() != hosts[0].lower():
                return 403, "Requests from other web pages are refused."
        if any(site not in ("same-origin", "none") for site in _values(scope, b"sec-fetch-site")):
            # A link from elsewhere may open the page itself, without scripts reading the answer.
            is_link = scope["path"] == "/" and _values(scope, b"sec-fetch-mode") == ["navigate"]
            if not is_link or _values(scope, b"sec-fetch-dest") != ["document"]:
                return 403, "Requests from other web pages are refused."
        return None

    def _is_signed_in(self, scope: Message) -> bool:
        for header in _values(scope, b"authorization"):
            kind, _, value = header.partition(" ")
            if kind.lower() == "bearer" and self._is_token(value.strip()):
                return True
        for header in _values(scope, b"cookie"):
            cookies: SimpleCookie = SimpleCookie()
            try:
                cookies.load(header)
            except CookieError:
                continue
            if self._cookie in cookies and self._is_token(cookies[self._cookie].value):
                return True
        return False

    def _is_token(self, value: str) -> bool:
        return hmac.compare_digest(value.encode("utf-8", "replace"), self._token)

    async def _sign_in(self, scope: Message, send: Send, given: str) -> None:
        """Answer a link with a token: set the cookie and lead to the same address without it."""
        if not self._is_token(given):
            await _refuse(
                send, 401, "The token in this link is wrong: the server was started again."
            )
            return
        query = parse_qsl(scope["query_string"].decode("latin-1"), keep_blank_values=True)
        rest = urlencode([(key, value) for key, value in query if key != TOKEN])
        # One slash: "//host" would lead to another server.
        path = "/" + re.sub(r"[^\x21-\x7e]|[\\]", "", scope["path"]).lstrip("/")
        # Not "Strict": a link in a notebook or a chat would lead here without the cookie that it just set.
        cookie = f"{self._cookie}={given}; Path=/; HttpOnly; SameSite=Lax"
        location = path + (f"?{rest}" if rest else "")
        headers = [(b"location", location.encode("latin-1")), (b"set-cookie", cookie.encode())]
        await _respond(send, 303, b"", headers)


def host_of(header: str) -> str | None:
    """Return the host of a Host header without its port, None if the header is malformed."""
    match = re.fullmatch(r"(\[[0-9A-Fa-f:.]+\]|[A-Za-z0-9._-]+)(:[0-9]{1,5})?", header.strip())
    return match.group(1).strip("[]").lower() if match else None


def is_loopback(host: str) -> bool:
    """Return whether only this machine can reach an address."""
    try:
        return ipaddress.ip_address(host).is_loopback
    except ValueError:
        return host == "localhost"


def _values(scope: Message, name: bytes) -> list[str]:
    return [value.decode("latin-1") for key, value in scope["headers"] if key == name]


def _with_headers(send: Send) -> Send:
    """Return ``send`` with the security headers added to every answer."""

    async def send_more(message: Message) -> None:
        if message["type"] == "http.response.start":
            given = {key for key, _ in message.get("headers", ())}
            message["headers"] = [
                *message.get("headers", ()),
                *(header for header in HEADERS if header[0] not in given),
            ]
        await send(message)

    return send_more


async def _refuse(send: Send, status: int, text: str) -> None:
    headers = [(b"content-type", b"text/plain; charset=utf-8")]
    if status == 405:
        headers.append((b"allow", ", ".join(METHODS).encode()))
    await _respond(send, status, f"stepwell: {text}\n".encode(), headers)


async def _respond(send: Send, status: int, body: bytes, headers: Headers) -> None:
    length = (b"content-length", str(len(body)).encode())
    cache = (b"cache-control", b"no-store")
    start = {
        "type": "http.response.start",
        "status": status,
        "headers": [*headers, length, cache, *HEADERS],
    }
    await send(start)
    await send({"type": "http.response.body", "body": body})
