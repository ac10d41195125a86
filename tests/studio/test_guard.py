"""Who may ask the studio for what."""

from __future__ import annotations

import json
import socket
from collections.abc import Callable
from typing import Any

import pytest
from starlette.applications import Starlette
from starlette.requests import Request
from starlette.responses import JSONResponse, Response
from starlette.routing import Route

from sinkgate.studio import app as app_module
from sinkgate.studio import server as server_module
from sinkgate.studio.guard import MOST_BYTES, Guard
from sinkgate.studio.jobs import body
from studio.raw import answer, ask, chunked, said, until
from studio.watched import Serving

JSON = {"Content-Type": "application/json"}


@pytest.fixture
def echo(monkeypatch: pytest.MonkeyPatch, serving: Callable[..., Serving]) -> Callable[..., Serving]:
    """A studio with two routes more: one that says how large its JSON is, one that fails."""
    from sinkgate.studio import weigh

    async def size(request: Request) -> Response:
        return JSONResponse({"keys": len(await body(request))})

    def fail(_: Request) -> Response:
        raise RuntimeError("by itself \ud800")

    routes = [Route("/api/echo", size, methods=["POST"]), Route("/api/fail", fail)]
    monkeypatch.setattr(weigh, "routes", lambda studio: routes)
    return serving


def test_the_page_is_served_with_what_keeps_it_ours(serving: Callable[..., Serving]) -> None:
    status, headers, page = ask(serving().port)
    assert status == 200
    assert page.startswith(b"<!doctype html>")
    assert headers["x-frame-options"] == "DENY"
    assert headers["x-content-type-options"] == "nosniff"
    assert headers["referrer-policy"] == "no-referrer"
    assert headers["cache-control"] == "no-store"
    assert headers["cross-origin-resource-policy"] == "same-origin"
    assert not [name for name in headers if name.startswith("access-control")]
    assert headers["content-type"].startswith("text/html")


@pytest.mark.parametrize(
    "host",
    ["evil.example", "evil.example:{port}", "127.0.0.1", "127.0.0.1:1", "localhost.evil.example:{port}", "", "192.168.1.1:{port}",
     "127.0.0.1:{port}@evil.example", "[::1]:{port}"],
)  # fmt: skip
def test_a_rebound_name_is_refused(serving: Callable[..., Serving], host: str) -> None:
    port = serving().port
    host = host.format(port=port)
    status, _, line = ask(port, host=host) if host else ask(port, "/", host=" ")
    assert status in (400, 421)
    assert b"<script" not in line
    if status == 421:
        assert b"open the address that it printed" in line


def test_our_own_names_are_answered_in_any_case(serving: Callable[..., Serving]) -> None:
    port = serving().port
    assert [ask(port, host=f"{name}:{port}")[0] for name in ("127.0.0.1", "localhost", "LOCALHOST")] == [200] * 3


@pytest.mark.parametrize(
    "origin", ["http://evil.example", "null", "https://127.0.0.1:1", "http://127.0.0.1", "file://"]
)
@pytest.mark.parametrize("target", ["/", "/api/records"])
def test_another_sites_page_may_not_ask(serving: Callable[..., Serving], origin: str, target: str) -> None:
    status, _, line = ask(serving().port, target, headers={"Origin": origin})
    assert status == 403
    assert b"another site" in line


def test_our_own_page_may(serving: Callable[..., Serving]) -> None:
    port = serving().port
    headers = {"Origin": f"http://127.0.0.1:{port}", "Sec-Fetch-Site": "same-origin"}
    assert ask(port, "/api/records", headers=headers)[0] == 200


@pytest.mark.parametrize("site", ["cross-site", "same-site"])
def test_what_the_browser_says_of_the_site_counts(serving: Callable[..., Serving], site: str) -> None:
    port = serving().port
    image = {"Sec-Fetch-Site": site, "Sec-Fetch-Mode": "no-cors", "Sec-Fetch-Dest": "image"}
    frame = {"Sec-Fetch-Site": site, "Sec-Fetch-Mode": "navigate", "Sec-Fetch-Dest": "iframe"}
    link = {"Sec-Fetch-Site": site, "Sec-Fetch-Mode": "navigate", "Sec-Fetch-Dest": "document"}
    assert ask(port, headers=image)[0] == 403
    assert ask(port, headers=frame)[0] == 403
    assert ask(port, headers=link)[0] == 200  # a shared link that a person follows
    assert ask(port, "/api/records", headers=link)[0] == 403
    assert ask(port, method="POST", headers=link | JSON, body=b"{}")[0] == 403


def test_a_preflight_gets_no_permission(serving: Callable[..., Serving]) -> None:
    headers = {"Origin": "http://evil.example", "Access-Control-Request-Method": "POST"}
    status, answered, _ = ask(serving().port, "/api/records", method="OPTIONS", headers=headers)
    assert status in (403, 405)
    assert "access-control-allow-origin" not in answered


@pytest.mark.parametrize("method", ["PUT", "TRACE", "OPTIONS", "PATCH", "CONNECT", "BREW"])
def test_other_methods_are_refused(serving: Callable[..., Serving], method: str) -> None:
    port = serving().port
    assert ask(port, f"127.0.0.1:{port}" if method == "CONNECT" else "/", method=method)[0] in (400, 405)


@pytest.mark.parametrize(
    "kind", ["", "text/plain", "application/x-www-form-urlencoded", "application/jsonp", "multipart/form-data"]
)
def test_a_form_of_another_page_is_not_taken_for_json(echo: Callable[..., Serving], kind: str) -> None:
    status, _, line = ask(echo().port, "/api/echo", method="POST", body=b"{}", headers={"Content-Type": kind})
    assert status == 415
    assert "application/json" in said(line)


def test_json_in_any_spelling_is_taken(echo: Callable[..., Serving]) -> None:
    port = echo().port
    for kind in ("application/json", "Application/JSON; charset=utf-8"):
        assert ask(port, "/api/echo", method="POST", body=b'{"a": 1}', headers={"Content-Type": kind})[0] == 200


@pytest.mark.parametrize("text", [b"{", b"[1]", b"\xff", b"NaN", b"[" * 100_000, b"null", b""])
def test_a_body_that_is_no_object_is_refused_with_a_line(echo: Callable[..., Serving], text: bytes) -> None:
    status, _, line = ask(echo().port, "/api/echo", method="POST", body=text, headers=JSON)
    assert status == 400
    assert said(line).startswith("the request is")


def test_a_body_is_bounded_by_what_it_says_and_by_what_comes(echo: Callable[..., Serving]) -> None:
    port = echo().port
    post = {"method": "POST", "headers": JSON}
    fits = json.dumps({"a": "x" * (MOST_BYTES - 100)}).encode()
    assert ask(port, "/api/echo", body=fits, **post)[0] == 200
    for length in (str(MOST_BYTES + 1), "9" * 30):
        status, _, line = ask(port, "/api/echo", method="POST", headers=JSON | {"Content-Length": length})
        assert status in (400, 413)
        assert status == 400 or f"{MOST_BYTES} bytes" in said(line)
    large = [b'{"a": "' + b"x" * 70_000, *[b"x" * 70_000] * 20, b'"}']
    status, _, line = ask(port, "/api/echo", method="POST", body=chunked(*large), headers=JSON | {"Transfer-Encoding": "chunked"})  # fmt: skip
    assert status == 413
    assert f"{MOST_BYTES} bytes" in said(line)
    assert ask(port, "/api/echo", body=b"{}", **post)[0] == 200


def test_a_body_that_hardly_comes_is_not_waited_for(
    echo: Callable[..., Serving], monkeypatch: pytest.MonkeyPatch
) -> None:
    class Hasty(Guard):
        def __init__(self, *args: Any, **options: Any) -> None:
            super().__init__(*args, **options, seconds=0.5)

    monkeypatch.setattr(app_module, "Guard", Hasty)
    port = echo().port
    with socket.create_connection(("127.0.0.1", port), timeout=20) as conn:
        conn.sendall(f"POST /api/echo HTTP/1.1\r\nHost: 127.0.0.1:{port}\r\nContent-Type: application/json\r\nContent-Length: 9\r\n\r\n{{".encode())  # fmt: skip
        status, _, line = answer(conn)
    assert status == 408
    assert "0.5 seconds" in said(line)


def test_connections_that_never_ask_are_closed(
    serving: Callable[..., Serving], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(server_module, "IDLE", 0.2)
    started = serving()
    conns = [socket.create_connection(("127.0.0.1", started.port), timeout=20) for _ in range(50)]
    for conn in conns[:25]:
        conn.sendall(b"GET / HT")
    assert until(lambda: len(started.server.server_state.connections) >= 50)
    assert until(lambda: not started.server.server_state.connections)
    assert ask(started.port)[0] == 200
    for conn in conns:
        conn.close()


def test_more_connections_than_are_taken_are_told_so(
    serving: Callable[..., Serving], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(server_module, "CONNECTIONS", 5)
    started = serving()
    conns = [socket.create_connection(("127.0.0.1", started.port), timeout=20) for _ in range(6)]
    assert until(lambda: len(started.server.server_state.connections) >= 6)
    assert ask(started.port)[0] == 503
    for conn in conns:
        conn.close()
    assert until(lambda: ask(started.port)[0] == 200)


def test_off_loopback_everything_asks_for_the_token(serving: Callable[..., Serving]) -> None:
    port = serving(token="s3cret").port
    bearer = {"Authorization": "Bearer s3cret"}
    for target in ("/", "/?token=wrong", "/?token=", "/?token=s3cre", "/api/records", "/api/records?token=s3cret", "/x", "//", "/api/../"):  # fmt: skip
        status, _, line = ask(port, target)
        assert status == 401, target
        assert b"token" in line
        assert b"<html" not in line
    assert ask(port, "/api/records", headers={"Authorization": "Bearer wrong"})[0] == 401
    assert ask(port, "/api/records", headers={"Authorization": "Basic s3cret"})[0] == 401
    assert ask(port, "/api/records", headers={"Authorization": "Bearer s3cret\xe9"})[0] == 401
    assert ask(port, "/?token=s3cret")[0] == 200
    assert ask(port, "/?token=s3cret&token=x")[0] == 200
    assert ask(port, "/api/records", headers=bearer)[0] == 200
    assert ask(port, "/api/records", headers=bearer, host="evil.example")[0] == 421


def test_bound_to_all_interfaces_an_address_is_ours_and_a_name_is_not() -> None:
    from starlette.testclient import TestClient

    inside = Starlette(routes=[Route("/", lambda request: Response("here"))])
    for hosts, addresses, host, status in (
        ((), True, "192.168.1.5:8000", 200), ((), True, "[fe80::1]:8000", 200), ((), True, "10.0.0.1", 200), ((), True, "[::1]", 200),
        ((), True, "evil.example:8000", 421), ((), True, "1.2.3.4.evil.example", 421), ((), True, "[::1].evil.example:80", 421),
        ((), False, "192.168.1.5:8000", 421), (("Box:1",), False, "box:1", 200),
    ):  # fmt: skip
        client = TestClient(Guard(inside, hosts, None, addresses=addresses))
        assert client.get("/", headers={"Host": host}).status_code == status, host


def test_web_sockets_are_refused(serving: Callable[..., Serving]) -> None:
    port = serving().port
    headers = {
        "Connection": "Upgrade",
        "Upgrade": "websocket",
        "Sec-WebSocket-Version": "13",
        "Sec-WebSocket-Key": "AA==",
    }
    assert ask(port, headers=headers)[0] != 101


def test_a_failing_route_is_one_line_and_the_server_lives(echo: Callable[..., Serving]) -> None:
    port = echo().port
    status, headers, line = ask(port, "/api/fail")
    assert status == 500
    assert said(line) == "this failed inside the studio: RuntimeError: by itself \ud800"
    assert headers["x-content-type-options"] == "nosniff"
    assert ask(port)[0] == 200


@pytest.mark.parametrize("target", ["/api/records/x", "/api/records/" + "9" * 500])
def test_a_record_that_is_not_there(serving: Callable[..., Serving], target: str) -> None:
    status, _, line = ask(serving().port, target)
    assert status == 400
    assert said(line).startswith("there is no record")
    assert len(said(line)) < 100


@pytest.mark.parametrize(
    "target", ["/etc/passwd", "/../../etc/passwd", "/api/records/..%2f..%2fetc%2fpasswd", "/static/x", "/page.css"]
)
def test_no_file_is_served(serving: Callable[..., Serving], target: str) -> None:
    status, _, line = ask(serving().port, target)
    assert status in (400, 404)
    assert b"root:" not in line


def test_a_reader_that_takes_it_packed_gets_it_packed(serving: Callable[..., Serving]) -> None:
    import gzip

    port = serving().port
    plain = ask(port)[2]
    status, headers, packed = ask(port, headers={"Accept-Encoding": "gzip, br"})
    assert status == 200
    assert headers["content-encoding"] == "gzip"
    assert gzip.decompress(packed) == plain
    assert len(packed) < len(plain) / 2
