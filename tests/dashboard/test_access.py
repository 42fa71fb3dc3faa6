"""Only reading, only known hosts, only with the token, and nothing outside the runs."""

from __future__ import annotations

import os
import socket
from pathlib import Path

import pytest

import stepwell
from stepwell._core.errors import StepwellError
from stepwell.dashboard.access import host_of
from stepwell.dashboard.server import choose_token, host_names, listen
from tests.dashboard.serving import TOKEN, Server, served

ADDRESSES = [
    *("/", "/app.js", "/api/runs", "/api/runs/small", "/api/live", "/metrics"),
    "/api/runs/small/series?name=train/loss",
]


@pytest.mark.parametrize(
    "method", ["POST", "PUT", "DELETE", "PATCH", "OPTIONS", "TRACE", "CONNECT", "PROPFIND"]
)
@pytest.mark.parametrize("path", ["/", "/api/runs", "/api/runs/small", "/metrics"])
def test_other_methods_are_refused(server: Server, method: str, path: str) -> None:
    reply = server.ask(path, method)
    assert (reply.status, reply.headers["allow"]) == (405, "GET, HEAD")


def test_an_unknown_method_is_refused(server: Server) -> None:
    """By this server, or already by the parser below it (httptools), which knows only registered methods."""
    reply = server.ask("/api/runs", "X")
    assert (reply.status, reply.headers.get("allow")) in [(405, "GET, HEAD"), (400, None)]


def test_head_has_no_body(server: Server) -> None:
    reply = server.ask("/api/runs", "HEAD")
    assert (reply.status, reply.body) == (200, b"")


@pytest.mark.parametrize("path", ADDRESSES)
@pytest.mark.parametrize(
    "headers",
    [
        {},
        {"Authorization": "Bearer wrong"},
        {"Authorization": f"Basic {TOKEN}"},
        {"Cookie": "stepwell=1; token=2"},
        {"Cookie": f"stepwell-1={TOKEN}"},
        {"Cookie": "=;;,{}"},
    ],
)
def test_no_token_no_answer(server: Server, path: str, headers: dict[str, str]) -> None:
    reply = server.ask(path, headers=headers, signed_in=False)
    assert reply.status == 401
    assert b"small" not in reply.body


def test_the_link_sets_a_cookie_and_leads_to_the_address_without_the_token(server: Server) -> None:
    reply = server.ask(f"/?token={TOKEN}&a=1", signed_in=False)
    assert (reply.status, reply.headers["location"]) == (303, "/?a=1")
    cookie = reply.headers["set-cookie"]
    assert "HttpOnly" in cookie
    assert "SameSite=Lax" in cookie
    again = server.ask("/api/runs", headers={"Cookie": cookie.split(";")[0]}, signed_in=False)
    assert again.status == 200


@pytest.mark.parametrize("path", ["//evil.example/", "/\\evil.example", "///evil.example//x"])
def test_the_link_never_leads_elsewhere(server: Server, path: str) -> None:
    reply = server.ask(f"{path}?token={TOKEN}", signed_in=False)
    location = reply.headers.get("location", "/")
    assert location.startswith("/")
    assert not location.startswith(("//", "/\\"))


def test_a_wrong_token_in_a_link_sets_no_cookie(server: Server) -> None:
    reply = server.ask("/?token=wrong", signed_in=False)
    assert reply.status == 401
    assert "set-cookie" not in reply.headers


@pytest.mark.parametrize(
    "host",
    ["evil.example", "127.0.0.1.evil.example", "169.254.1.1", "", "[::1", "a b", "127.0.0.1@x"],
)
def test_foreign_hosts_are_refused(server: Server, host: str) -> None:
    """A name that an attacker points at this machine does not make the page theirs (DNS rebinding)."""
    assert server.ask("/api/runs", headers={"Host": host}).status == 400


@pytest.mark.parametrize("host", ["localhost", "127.0.0.1", "[::1]:1234", "LOCALHOST:1"])
def test_own_hosts_are_served(server: Server, host: str) -> None:
    assert server.ask("/api/runs", headers={"Host": host}).status == 200


FROM_A_LINK = {
    "Sec-Fetch-Site": "cross-site",
    "Sec-Fetch-Mode": "navigate",
    "Sec-Fetch-Dest": "document",
}


@pytest.mark.parametrize(
    "headers",
    [
        {"Origin": "http://evil.example"},
        {"Origin": "null"},
        {"Origin": "http://127.0.0.1:1"},
        {"Sec-Fetch-Site": "cross-site"},
        {"Sec-Fetch-Site": "same-site", "Sec-Fetch-Mode": "cors"},
        {"Sec-Fetch-Site": "cross-site", "Sec-Fetch-Mode": "navigate", "Sec-Fetch-Dest": "iframe"},
        FROM_A_LINK,
    ],
)
def test_requests_of_other_pages_are_refused(server: Server, headers: dict[str, str]) -> None:
    assert server.ask("/api/runs", headers=headers).status == 403


def test_a_link_on_another_page_opens_the_page(server: Server) -> None:
    assert server.ask("/", headers=FROM_A_LINK).status == 200


def test_every_answer_has_a_strict_policy_and_allows_no_other_page(server: Server) -> None:
    for path in (*ADDRESSES[:4], "/metrics", "/nothing", "/api/runs/none"):
        headers = server.ask(path).headers
        assert "default-src 'none'" in headers["content-security-policy"]
        assert "script-src 'self'" in headers["content-security-policy"]
        assert headers["x-content-type-options"] == "nosniff"
        assert headers["x-frame-options"] == "DENY"
        assert "access-control-allow-origin" not in headers


TRICKS = [
    *(
        "..",
        "../..",
        "%2e%2e",
        "%2e%2e%2f%2e%2e%2fetc%2fpasswd",
        "..%5c..",
        "%252e%252e",
        "/etc/passwd",
    ),
    *("small/../../etc", "small%00", "file:///etc/passwd", "~root", "C:\\x", "", "%", "\x7f"),
]


@pytest.mark.parametrize("trick", TRICKS)
def test_paths_cannot_leave_the_runs(server: Server, runs: Path, trick: str) -> None:
    (runs.parent / "secret.txt").write_text("top secret")
    addresses = [
        f"/{trick}",
        f"/api/runs/{trick}",
        f"/api/runs/{trick}/metrics",
        f"/api/runs/small/artifacts/{trick}",
        f"/api/runs/small/spans/{trick}",
        f"/api/live?run={trick}",
        f"/api/compare?run=small&run={trick}",
        f"/api/runs/small/model?measure={trick}",
        f"/api/runs/small/grid?phase={trick}",
        f"/api/runs/small/series?name={trick}",
    ]
    for address in addresses:
        address = address.replace("\x7f", "%7f").replace("\\", "%5c")
        reply = server.ask(address) if "live" not in address or trick else None
        if reply is not None:
            assert reply.status in (200, 400, 404, 307), (address, reply)
            assert b"root:" not in reply.body
            assert b"top secret" not in reply.body


@pytest.mark.parametrize(
    ("address", "status"),
    [
        ("/api/runs/small/series?name=train/loss&points=1e12", 200),
        ("/api/runs/small/series?name=train/loss&points=nan", 400),
        ("/api/runs/small/series?name=train/loss&start=inf", 400),
        ("/api/runs/small/series?name=train/loss&x=price", 400),
        ("/api/runs/small/series?" + "&".join(f"name=m{i}" for i in range(65)), 400),
        ("/api/runs/small/timeline?width=1e9&start=-1e18&end=1e18&lanes=1e9", 200),
        ("/api/runs/small/timeline?start=1e300", 400),
        ("/api/runs/small/timeline?rank=x", 400),
        ("/api/runs/job/grid?width=1e9&height=1e9&low=0&high=1e15&first=-1e15&last=1e15", 200),
        ("/api/runs/small/spans?q=" + "a" * 501, 400),
        ("/api/runs/small/spans?q=a&limit=1e9", 200),
        ("/api/runs/small/spans/99999999999999999999999999", 404),
        ("/api/runs/small/spans/-1", 404),
        ("/api/compare?run=small", 400),
        ("/api/compare", 400),
        ("/api/compare?" + "&".join(f"run=r{i}" for i in range(21)), 400),
        ("/api/runs/small/" + "x" * 9000, 414),
    ],
)
def test_sizes_are_bounded_and_mistakes_are_explained(
    server: Server, address: str, status: int
) -> None:
    reply = server.ask(address)
    assert reply.status == status, reply
    if status != 200:
        assert len(reply.body) < 2000
        assert b"Traceback" not in reply.body
    if status == 400:
        assert reply.json["error"]


def test_links_in_a_run_folder_lead_nowhere(tmp_path: Path) -> None:
    """A run folder from a stranger may contain links to other files of the reader."""
    (tmp_path / "secret.txt").write_text("top secret")
    (tmp_path / "elsewhere").mkdir()
    runs = tmp_path / "runs"
    with stepwell.init("small", dir=runs, run_id="small") as run:
        file = tmp_path / "file.txt"
        file.write_text("hello")
        run.artifact(file)
        run.log({"loss": 1.0})
    (artifact,) = (runs / "small" / "artifacts").iterdir()
    with served(runs) as server:
        address = f"/api/runs/small/artifacts/{artifact.name}"
        assert server.ask(address).body == b"hello"
        artifact.unlink()
        artifact.symlink_to(tmp_path / "secret.txt")
        assert server.ask(address).status == 404
        artifact.unlink()
        artifact.parent.rmdir()
        (tmp_path / "elsewhere" / artifact.name).write_text("top secret")
        artifact.parent.symlink_to(tmp_path / "elsewhere")
        assert b"secret" not in server.ask(address).body
        (runs / "small" / "events.jsonl").symlink_to(tmp_path / "secret.txt")
        (runs / "small" / "rank-00009.attempt-0.pid-9").symlink_to(tmp_path / "elsewhere")
        for path in ("", "/media", "/ranks", "/provenance", "/timeline"):
            assert b"top secret" not in server.ask(f"/api/runs/small{path}").body


def test_artifacts_are_downloaded_not_shown(server: Server) -> None:
    (artifact,) = server.get("/api/runs/small/provenance")["artifacts"]
    reply = server.ask(artifact["url"])
    assert reply.body == b"hello"
    assert reply.headers["content-type"] == "application/octet-stream"
    assert reply.headers["content-disposition"].startswith("attachment")
    assert "sandbox" in reply.headers["content-security-policy"]


# The server's own address and token


def test_the_default_address_is_loopback_only() -> None:
    listening = listen("127.0.0.1", 0)
    assert listening.getsockname()[0] == "127.0.0.1"
    assert host_names("127.0.0.1") == {"127.0.0.1", "localhost", "::1"}
    listening.close()


def test_on_all_addresses_only_names_of_this_machine_are_known() -> None:
    names = host_names("0.0.0.0")
    assert {"127.0.0.1", socket.gethostname()} <= names
    assert "evil.example" not in names
    assert host_names("10.1.2.3") == {"10.1.2.3"}


def test_a_port_that_is_taken_is_said() -> None:
    taken = listen("127.0.0.1", 0)
    port = taken.getsockname()[1]
    with pytest.raises(StepwellError, match=f"cannot listen on 127.0.0.1, port {port}: .*--port"):
        listen("127.0.0.1", port)
    with pytest.raises(StepwellError, match="--port must be from 0 to 65535, got 99999"):
        listen("127.0.0.1", 99999)
    taken.close()


def test_tokens(monkeypatch: pytest.MonkeyPatch) -> None:
    assert choose_token() != choose_token()
    assert len(choose_token()) >= 32
    for short in ("", "short", "x" * 15, "with spaces in it and more"):
        monkeypatch.setitem(os.environ, "STEPWELL_UI_TOKEN", short)
        with pytest.raises(StepwellError, match="at least 16"):
            choose_token()
    monkeypatch.setitem(os.environ, "STEPWELL_UI_TOKEN", TOKEN)
    assert choose_token() == TOKEN


@pytest.mark.parametrize(
    ("header", "host"),
    [
        ("localhost", "localhost"),
        ("LocalHost:80", "localhost"),
        ("[::1]:80", "::1"),
        ("a.b:x", None),
        ("a.b:80:80", None),
        ("a/b", None),
        ("", None),
    ],
)
def test_hosts(header: str, host: str | None) -> None:
    assert host_of(header) == host
