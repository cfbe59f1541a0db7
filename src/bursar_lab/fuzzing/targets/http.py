"""HTTP: requests to a daemon's /v1, and what a tracker of tasks answers."""

from __future__ import annotations

import asyncio
import json
from collections.abc import Iterator
from functools import cache
from typing import Any

import h11

from bursar.api.app import Application
from bursar.api.desk import Desk
from bursar.api.gate import Gate
from bursar.api.operations import OPERATIONS
from bursar.errors import FormatError
from bursar.runtime.http_tracker import read_reply
from bursar_lab.fuzzing.house import open_daemon
from bursar_lab.fuzzing.pieces import join, mark, pick, run, split
from bursar_lab.fuzzing.target import Target

PATIENCE_S = 0.02
"""Then the client leaves."""


@cache
def open_application(who: str) -> Application:
    """For callers on this machine, or from beyond it, or of a daemon that is being started."""
    daemon = open_daemon()

    def fail(error: BaseException, path: str) -> None:
        raise error

    application = Application(
        Gate("127.0.0.1", who != "beyond", daemon.rights if who != "early" else None), {}, fail
    )
    application.desk = Desk(daemon.host.world, daemon.host.resources)
    return application


def ask(data: bytes) -> None:
    """Requests as the server reads them, "GRANT" standing for the grant that came before; each answer has a
    status of ours, and a body that is JSON."""
    who, data = pick(data, ["here", "beyond", "early"])
    application, grant = open_application(who), b"GRANT"
    for part in split(data)[:8]:
        answer = _ask_one(application, part.replace(b"GRANT", grant))
        found = json.loads(answer) if answer else None
        if isinstance(found, dict) and "expires_in" in found:
            grant = found["id"].encode()


def _ask_one(application: Application, data: bytes) -> bytes:
    """The body of the answer, where that is JSON."""
    connection = h11.Connection(h11.SERVER)
    try:
        connection.receive_data(data)
        request, body = connection.next_event(), bytearray()
        while isinstance(event := connection.next_event(), h11.Data):
            body += event.data
    except h11.RemoteProtocolError:
        return b""
    if not isinstance(request, h11.Request):
        return b""
    whole = isinstance(event, h11.EndOfMessage)
    status, kind, answer = run(_answer(application, request, bytes(body), whole=whole))
    assert status in range(200, 500) or status == 503, f"it was answered {status}"
    return answer if b"json" in kind else b""


async def _answer(
    application: Application, request: Any, body: bytes, *, whole: bool
) -> tuple[int, bytes, bytes]:
    path, _, query = request.target.partition(b"?")
    scope = {
        "type": "http",
        "http_version": "1.1",
        "scheme": "http",
        "root_path": "",
        "state": {},
        "method": request.method.decode("ascii"),
        "path": _unquote(path),
        "raw_path": path,
        "query_string": query,
        "headers": [(name.lower(), value) for name, value in request.headers],
        "client": ("127.0.0.1", 1),
        "server": ("127.0.0.1", 80),
    }
    told: list[Any] = []
    sent: Any = {"type": "http.request", "body": body, "more_body": False}
    arriving = [sent if whole else {"type": "http.disconnect"}]

    async def receive() -> Any:
        if arriving:
            return arriving.pop()
        await asyncio.sleep(PATIENCE_S)
        return {"type": "http.disconnect"}

    async def send(message: Any) -> None:
        told.append(message)

    await application(scope, receive, send)
    if not told:
        return 499, b"", b""  # it had left
    kind = dict(told[0]["headers"]).get(b"content-type", b"")
    return told[0]["status"], kind, b"".join(each.get("body", b"") for each in told[1:])


def _unquote(path: bytes) -> str:
    from urllib.parse import unquote

    return unquote(path.decode("ascii"))


BODIES: dict[str, Any] = {
    "acquire": {"tenant": "acme", "amount": 2, "wait": 0.01},
    "announce": {"tenant": "acme", "tokens": 5},
    "claim": {"tenant": "acme", "names": ["a:E", "b:S"], "priority": 1},
    "settle": {"used": 1},
    "settle_by_id": {"id": "x", "used": None},
    "submit": {"tenant": "acme", "names": ["x:E"], "payload": "aGk="},
}


def make_requests() -> Iterator[bytes]:
    for request in _make_one():
        yield mark(0, join([request]))
    for operation in OPERATIONS:
        for resource, body in (
            ("cache", BODIES["acquire"]),
            ("llm", {**BODIES["acquire"], "hold": 9}),
            ("vm", BODIES["claim"]),
        ):
            opening = "claims" if resource == "vm" else "grants"
            first = _write("POST", f"/v1/resources/{resource}/{opening}", json.dumps(body))
            if "{id}" in operation.path and operation.path.startswith("/v1/grants"):
                for sent in ({}, {"used": 1}, {"ttl": 5}, {"hold": 9}):
                    text = json.dumps(sent) if operation.body is not None else ""
                    then = _write(operation.method, operation.path.replace("{id}", "GRANT"), text)
                    yield mark(0, join([first, then, then]))
    for who in (1, 2):
        for headers in ((), ("authorization: Bearer bursar_a_b",), ("host: 10.0.0.1:80",)):
            yield mark(who, join([_write("GET", "/v1/resources", "", *headers)]))


def _make_one() -> Iterator[bytes]:
    """Every operation, with a body that fits or none, and some that nobody takes."""
    for operation in OPERATIONS:
        path = operation.path.replace("{tenant:path}", "acme/x").replace("{id}", "abc")
        for resource in ("cache", "llm", "vm", "disk"):
            if "{resource}" not in path and resource != "cache":
                continue
            where = path.replace("{resource}", resource)
            for body in (BODIES.get(operation.name, {}), {"tenant": "acme"}, {"used": 1}):
                sent = json.dumps(body) if operation.body is not None else ""
                yield _write(operation.method, where + ("?tenant=acme" if operation.query else ""), sent)
    yield _write("POST", "/v1/resources/cache/grants", "{")
    yield _write("POST", "/v1/resources/cache/grants", "[" * 2000)
    yield _write("POST", "/v1/resources/cache/grants", '{"tenant": "\\ud800"}')
    yield _write("POST", "/v1/resources/nobody/grants", '{"tenant": "acme"}', "authorization: Bearer x")
    yield _write("GET", "/v1/resources?a=1&a=2", "")
    yield _write("GET", "/v1/resources/llm/usage?tenant=a&tenant=b", "")
    yield _write("DELETE", "/v1/grants/%00", "x")
    yield _write("BREW", "/v1/nothing", "", "origin: http://evil", "host: x")
    yield _write("POST", "/v1/resources/cache/grants", "{}", "content-type: text/html")
    yield _write("POST", "/v1/resources/cache/grants", '{"tenant": "acme"}')[:-3]
    yield _write("POST", "/v1/resources/cache/grants", "{" + " " * 66_000)[:9_000]
    yield _write("POST", "/v1/resources/cache/grants", "{" + " " * 9_000_000)[:9_000]
    yield _write("DELETE", "/v1/grants/abc", "a body")
    yield _write("POST", "/v1/resources/cache/grants", '{"tenant": "nobody*", "amount": 999999999}')
    yield _write("POST", "/v1/resources/vm/claims", '{"tenant": "a", "names": ["a:X", "a:E"]}')
    yield _write("GET", "/v1/docs", "", "sec-fetch-site: cross-site")
    yield _write("POST", "/v1/resources/cache/grants", "{}", "origin: http://[", "content-type: text/html")


def _write(method: str, path: str, body: str, *headers: str) -> bytes:
    lines = [f"{method} {path} HTTP/1.1", *headers, f"content-length: {len(body)}"]
    lines += ["host: localhost"] * all("host:" not in each for each in headers)
    lines += ["content-type: application/json"] * all("content-type" not in each for each in headers)
    return "\r\n".join([*lines, "", body]).encode()


# -- what a tracker answers


def read_answer(data: bytes) -> None:
    run(_read(data))


async def _read(data: bytes) -> None:
    reader = asyncio.StreamReader(limit=2**16)
    reader.feed_data(data)
    reader.feed_eof()
    await read_reply(reader)


def make_answers() -> Iterator[bytes]:
    yield b"HTTP/1.0 200 OK\r\ncontent-length: 2\r\n\r\nok"
    yield b"HTTP/1.0 503 later\r\nretry-after: 5\r\n\r\n"
    yield b"HTTP/1.1 200 OK\r\ntransfer-encoding: chunked\r\n\r\n0\r\n\r\n"
    yield b"HTTP/1.0 200 OK\r\ncontent-length: 9\r\n\r\nok"
    yield b"HTTP/1.0 200 OK\r\ncontent-length: x\r\n\r\nok"
    yield from (b"SSH-2.0\r\n\r\n", b"HTTP/1.0 50\xb3 OK\r\n\r\n")
    yield b"HTTP/1.0 200 OK\r\ncontent-length: " + b"9" * 5000 + b"\r\n\r\nok"
    yield b"HTTP/1.0 200 OK"


WORDS = (
    *(f" {operation.path} ".encode() for operation in OPERATIONS),
    *(
        b'"tenant"',
        b'"amount"',
        b'"wait"',
        b'"key"',
        b'"names"',
        b'"used"',
        b'"acme"',
        b"?tenant=",
        b"&most=",
        b"%2F",
    ),
    *(b"content-type: application/json\r\n", b"host: localhost\r\n", b"authorization: Bearer "),
)

TARGETS = (
    Target(
        "http-requests",
        (
            "bursar.api.gate:-_nothing,-identify,-wait_until_gone",
            "bursar.api.app:Application._find,_check,_write_answered,_write,_respond,_describe_http",
            "bursar.api.answering",
            "bursar.api.problems:-write_headers",
        ),
        ask,
        make_requests,
        (),
        WORDS,
    ),
    Target(
        "http-answers",
        ("bursar.runtime.http_tracker:read_reply",),
        read_answer,
        make_answers,
        (FormatError, EOFError, asyncio.LimitOverrunError),
    ),
)
