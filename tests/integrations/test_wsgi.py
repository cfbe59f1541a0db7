"""The middleware for WSGI: requests are charged, refused and settled as over ASGI."""

from __future__ import annotations

import os
import threading
from collections.abc import Callable, Iterable, Iterator
from pathlib import Path
from typing import Any
from wsgiref.simple_server import WSGIRequestHandler, make_server
from wsgiref.util import setup_testing_defaults
from wsgiref.validate import validator

import httpx
import pytest

from bursar.integrations.wsgi import BursarMiddleware, by_header, by_path, grant_of, used_by_bytes

POLICY = """
[resource.llm]
kind = "quota"
window = "day"
[resource.llm.tenant]
acme = {{ limit = 10 }}
[daemon]
http = "off"
state = "{state}"
"""
Make = Callable[..., BursarMiddleware]


@pytest.fixture
def make(tmp_path: Path) -> Iterator[Make]:
    file = tmp_path / "policy.toml"
    file.write_text(POLICY.format(state=tmp_path / "state"))
    made: list[BursarMiddleware] = []

    def make_one(app: Any, **options: Any) -> BursarMiddleware:
        options = {"tenant": by_header("x-tenant"), "wait": 5.0} | options
        made.append(BursarMiddleware(app, bursar=str(file), resource="llm", **options))
        return made[-1]

    yield make_one
    for middleware in made:
        middleware.close()


def ask(
    app: Any, tenant: str | None = "acme", path: str = "/", root: str = ""
) -> tuple[int, dict[str, str], bytes]:
    """One request, as a server that keeps to the rules makes it."""
    environ: dict[str, Any] = {"PATH_INFO": path, "SCRIPT_NAME": root, "QUERY_STRING": ""}
    if tenant is not None:
        environ["HTTP_X_TENANT"] = tenant
    setup_testing_defaults(environ)
    told: list[Any] = []
    body = validator(app)(
        environ, lambda status, headers, error=None: told.append((status, headers)) or print
    )
    try:
        data = b"".join(body)
    finally:
        body.close()
    status, headers = told[0]
    return int(status[:3]), {key.lower(): value for key, value in headers}, data


def answer(environ: Any, start_response: Any) -> Iterable[bytes]:
    start_response("200 OK", [("Content-Type", "text/plain")])
    return [b"ok"]


def test_requests_are_charged_and_refused_with_the_fields_of_the_draft(make: Make) -> None:
    app = make(answer, amount=4)
    assert [ask(app)[0] for _ in range(3)] == [200, 200, 429]
    status, fields, body = ask(app)
    assert (status, fields["content-type"]) == (429, "application/problem+json")
    assert fields["ratelimit"].startswith('"llm";r=2') and b"quota-exceeded" in body
    assert ask(app, None)[0] == 400
    assert ask(app, "stranger")[0] == 403


def test_work_that_failed_costs_nothing_and_a_response_costs_what_was_said(make: Make) -> None:
    def fail(environ: Any, start_response: Any) -> Iterable[bytes]:
        raise ValueError("no")

    def answer_500(environ: Any, start_response: Any) -> Iterable[bytes]:
        start_response("500 Sorry", [("Content-Type", "text/plain")])
        return [b"no"]

    def settle(environ: Any, start_response: Any) -> Iterable[bytes]:
        grant_of(environ).settle(1)
        return answer(environ, start_response)

    apps = {"fail": fail, "500": answer_500, "settle": settle}
    routed = make(lambda environ, start: apps[environ["PATH_INFO"][1:]](environ, start), amount=5)
    with pytest.raises(ValueError, match="no"):
        ask(routed, path="/fail")
    assert ask(routed, path="/500")[0] == 500
    assert ask(routed, path="/settle")[0] == 200
    assert ask(routed, path="/500")[1]["ratelimit"].startswith('"llm";r=4')  # 10 - 1 - the 5 it holds


def test_a_handler_that_settles_more_than_was_acquired_spoils_no_answer(make: Make) -> None:
    def settle(environ: Any, start_response: Any) -> Iterable[bytes]:
        grant_of(environ).settle(9)
        return answer(environ, start_response)

    app = make(settle, amount=5)
    assert [ask(app)[0] for _ in range(3)] == [200, 200, 429]


def test_a_stream_is_charged_when_it_is_closed_and_a_client_that_leaves_pays_for_what_it_got(
    make: Make,
) -> None:
    def stream(environ: Any, start_response: Any) -> Iterator[bytes]:
        start_response("200 OK", [("Content-Type", "text/plain")])
        yield from (b"a", b"b", b"c")

    app = make(stream, amount=6, used=used_by_bytes)
    environ: dict[str, Any] = {"HTTP_X_TENANT": "acme"}
    setup_testing_defaults(environ)
    body = app(environ, lambda *_: print)
    assert next(iter(body)) == b"a"
    assert not grant_of(environ).closed
    body.close()  # type: ignore[attr-defined]
    assert grant_of(environ).closed and grant_of(environ).used == 1
    assert ask(app)[2] == b"abc"
    assert ask(app)[1]["ratelimit"].startswith('"llm";r=0')  # 10 - 1 - 3 - the 6 it holds


def test_what_an_application_is_mounted_under_is_no_tenant(make: Make) -> None:
    app = make(answer, tenant=by_path(0))
    assert ask(app, None, "/acme/items", "/api")[0] == 200
    assert ask(app, None, "/items", "/acme")[0] == 403


def test_a_real_server_with_threads_holds_the_limit(make: Make) -> None:
    class Quiet(WSGIRequestHandler):
        def log_message(self, *args: Any) -> None:
            """Not in the tests' output."""

    with make_server("127.0.0.1", 0, make(answer), handler_class=Quiet) as server:
        thread = threading.Thread(target=server.serve_forever)
        thread.start()
        try:
            url = f"http://127.0.0.1:{server.server_port}"
            codes = [httpx.get(url, headers={"x-tenant": "acme"}).status_code for _ in range(12)]
        finally:
            server.shutdown()
            thread.join()
    assert codes == [200] * 10 + [429] * 2


def test_a_worker_that_was_forked_after_a_request_connects_anew(make: Make, tmp_path: Path) -> None:
    """A parent that has answered nothing forks nothing; one that has must not share its connection."""
    app = make(answer)
    assert ask(app)[0] == 200
    app.close()
    reading, writing = os.pipe()
    child = os.fork()
    if child == 0:
        try:
            os.write(writing, b"%d" % ask(app)[0])
        finally:
            os._exit(0)
    os.waitpid(child, 0)
    assert os.read(reading, 10) == b"200"
