"""Who is let in: not a page in a browser, not a stranger, not what is too large; and every operation asks
for a right before it does anything."""

from __future__ import annotations

import ssl
from pathlib import Path
from typing import Any

import httpx
import pytest
from tests.api.conftest import write_policy
from tests.resources.over_http import JSON
from tests.runtime.certificates import make_certificates

from bursar.api.operations import OPERATIONS, Operation
from bursar.errors import DeniedError, UsageError
from bursar.policy import parse
from bursar.runtime import http
from bursar.runtime.daemon import Daemon
from bursar.runtime.reports import Reports

ACQUIRE = "/v1/resources/llm/grants"
BODY = '{"tenant": "acme"}'
TOKEN = "a token of some length"


async def post(client: httpx.AsyncClient, **headers: str) -> int:
    named = {name.replace("_", "-"): value for name, value in headers.items()}
    sent = {"content-type": "application/json", **named}
    return (await client.post(ACQUIRE, content=BODY, headers=sent)).status_code


async def test_only_this_machines_names_are_taken_as_host(client: httpx.AsyncClient) -> None:
    port = client.base_url.port
    for host in ("localhost", f"localhost:{port}", "127.0.0.1", f"[::1]:{port}", "LOCALHOST"):
        assert await post(client, host=host) == 201, host
    for host in (
        "evil.example",
        f"evil.example:{port}",
        "127.0.0.1.evil.example",
        "localhost.evil.example",
        "10.0.0.1",
    ):
        assert await post(client, host=host) == 421, host
        for path in ("/metrics", "/live", "/v1/docs", "/v1/policy"):
            assert (await client.get(path, headers={"host": host})).status_code == 421


async def test_a_page_of_another_site_cannot_ask(client: httpx.AsyncClient) -> None:
    here = f"http://127.0.0.1:{client.base_url.port}"
    assert await post(client, origin=here) == 201
    for origin in ("http://evil.example", "null", "http://127.0.0.1:1", "http://[", "https://localhost"):
        assert await post(client, origin=origin) == 403, origin
    assert await post(client, sec_fetch_site="cross-site") == 403
    assert await post(client, sec_fetch_site="same-origin") == 201
    # what a page can send without asking first
    for simple in ("text/plain", "application/x-www-form-urlencoded", "multipart/form-data; boundary=x", ""):
        assert await post(client, content_type=simple) == 415, simple
    assert await post(client, content_type="application/json; charset=utf-8") == 201
    asked_first = await client.options(ACQUIRE, headers={"access-control-request-method": "POST"})
    assert asked_first.status_code == 405
    assert "access-control-allow-origin" not in asked_first.headers


WRONG_BODIES = (
    ("", 400),
    ("{", 400),
    ("[]", 422),
    ('{"tenant": "acme", "amonut": 1}', 422),
    ('{"tenant": "acme", "amount": 1.5}', 422),
    ('{"tenant": "acme", "amount": true}', 422),
    ('{"tenant": "acme", "wait": 61}', 422),
    ('{"tenant": "acme", "ttl": 0}', 422),
    ('{"tenant": "ac\\u0000me"}', 422),
    ('{"tenant": "\\ud800"}', 400),
    ("[" * 60_000, 422),
    ('{"tenant": "' + "x" * 70_000 + '"}', 413),
)


async def test_a_body_that_will_not_do_is_said_to(client: httpx.AsyncClient) -> None:
    for body, status in WRONG_BODIES:
        answer = await client.post(ACQUIRE, content=body, headers=JSON)
        assert answer.status_code == status, (body[:50], answer.text)
        assert answer.headers["content-type"] == "application/problem+json"


async def test_a_body_without_a_length_is_bounded_too(client: httpx.AsyncClient) -> None:
    async def pieces() -> Any:
        for _ in range(100):
            yield b" " * 1024

    answer = await client.post(ACQUIRE, content=pieces(), headers=JSON)
    assert answer.status_code == 413


async def test_what_is_not_there_is_a_problem_too(client: httpx.AsyncClient) -> None:
    for method, path, status in (
        ("GET", "/nothing", 404),
        ("GET", "/v1/resources/lm/explanation?tenant=acme", 404),
        ("PATCH", ACQUIRE, 405),
        ("DELETE", "/live", 405),
        ("GET", "/v1/resources/llm/statistics?most=x", 422),
        ("GET", "/v1/resources/llm/statistics?mots=1", 422),
        ("GET", "/v1/resources/llm/explanation", 422),
    ):
        answer = await client.request(method, path)
        assert answer.status_code == status, (method, path, answer.text)
        assert answer.json()["status"] == status
    assert (await client.patch(ACQUIRE)).headers["allow"] == "POST"


async def test_a_mistake_of_ours_is_an_answer_that_tells_nothing(
    client: httpx.AsyncClient, daemon: Daemon, monkeypatch: pytest.MonkeyPatch
) -> None:
    def fail(tenant: str) -> None:
        raise ZeroDivisionError("a secret")

    monkeypatch.setattr(daemon.host.resources["llm"].decider, "explain", fail)
    answer = await client.get("/v1/resources/llm/explanation?tenant=acme")
    assert answer.status_code == 500 and "secret" not in answer.text
    assert (await client.get("/live")).status_code == 200


# -- rights


class Watching:
    """Knows one token, and denies what is not in `allowed`."""

    name = "watched"
    is_open = False
    valid = True

    def __init__(self) -> None:
        self.asked: list[tuple[str, str, str]] = []
        self.refused = 0
        self.allowed: set[tuple[str, str, str]] = set()

    def identify(self, token: str | None, certificate: tuple[str, ...] = ()) -> Watching:
        if token != TOKEN and not certificate:
            raise DeniedError("who is that")
        return self

    def may(self, verb: str, resource: str = "*", tenant: str = "*") -> bool:
        self.asked.append((verb, resource, tenant))
        return (verb, resource, tenant) in self.allowed

    def may_some(self, verb: str, resource: str) -> bool:
        self.asked.append((verb, resource, "some"))
        return any(each[:2] == (verb, resource) for each in self.allowed)

    def check(self, verb: str, resource: str = "*", tenant: str = "*") -> None:
        if not self.may(verb, resource, tenant):
            raise DeniedError(f"no right to {verb}")

    def note_refused(self, source: str, why: str) -> int:
        self.refused += 1
        return 0


BODIES: dict[str, Any] = {
    "acquire": {"tenant": "acme"},
    "claim": {"tenant": "acme", "names": ["n:E"]},
    "settle": {"used": 1},
    "renew": {},
    "extend": {"hold": 60},
    "spend": {"used": 1},
    "settle_anywhere": {"id": "bursar/1", "used": 1},
    "submit_task": {"tenant": "acme", "names": ["n:E"]},
    "announce": {"tenant": "acme", "tokens": 10},
    "wait_for_tasks": {"ids": ["t1"]},
    "adjust": {"account": "acme", "amount": -1, "reason": "an outage"},
    "set_tenants": {"tenants": {"initech": {"limit": 1}}},
    "set_tenant": {"limit": 1},
    "apply_policy": {"text": "x"},
    "propose_policy": {"text": "x"},
    "roll_back_policy": {"number": 1},
}


async def ask(client: httpx.AsyncClient, operation: Operation, id: str, token: str | None) -> int:
    resource = "dc" if operation.tag == "tasks" or operation.name == "claim" else "llm"
    path = operation.path.replace(":path}", "}").replace(":int}", "}")
    path = path.format(resource=resource, id=id, tenant="acme", number=1)
    body = BODIES.get(operation.name)
    headers = {
        **(JSON if body is not None else {}),
        **({"Authorization": f"Bearer {token}"} if token else {}),
    }
    query = {"tenant": "acme"} if operation.name == "explain" else {}
    answer = await client.request(operation.method, path, json=body, headers=headers, params=query)
    return answer.status_code


@pytest.fixture
async def guarded(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Any:
    rights = Watching()
    open_reports = Reports.open
    monkeypatch.setattr(Reports, "open", lambda self, *given: open_reports(self, *given[:2], rights))
    daemon = await Daemon.open(parse(write_policy(tmp_path)))
    async with httpx.AsyncClient(base_url=f"http://{daemon.http_at}") as client:
        yield client, rights, daemon
    await daemon.close()


def find_wanted(operation: Operation) -> str:
    """The verb of the right that an operation takes."""
    if operation.name in ("show_grant", "cancel_task") or operation.tag == "acquiring":
        return "acquire"
    if operation.name == "wait_for_tasks":
        return "read"
    if operation.name == "adjust":
        return "change"
    if operation.tag in ("tenants", "policy") and operation.method != "GET":
        return "read" if operation.name == "propose_policy" else "change"
    return "acquire" if operation.method != "GET" else "read"


async def test_every_operation_asks_for_a_right_first(guarded: Any) -> None:
    client, rights, daemon = guarded
    llm, dc = daemon.host.resources["llm"], daemon.host.resources["dc"]
    rights.allowed = {("acquire", "llm", "acme")}
    made = await client.post(ACQUIRE, content=BODY, headers={**JSON, "Authorization": f"Bearer {TOKEN}"})
    ids = {"acquiring": made.json()["id"], "tasks": await dc.verb("submit", tenant="acme", names="n:E")}
    rights.allowed = set()
    before = await llm.statistics()
    for operation in OPERATIONS:
        rights.asked, refused = [], rights.refused
        id = ids.get(operation.tag, "x")
        assert await ask(client, operation, id, None) == 401, operation.name
        assert await ask(client, operation, id, "another token, not known") == 401, operation.name
        assert rights.asked == [], operation.name
        assert rights.refused == refused + 2, "whoever shows a wrong token is noted"
        assert await ask(client, operation, id, TOKEN) == 403, operation.name
        assert rights.asked[-1][0] == find_wanted(operation), operation.name
    assert (await llm.statistics()).tenants == before.tenants


async def test_the_rights_asked_for_name_resource_and_tenant(guarded: Any) -> None:
    client, rights, _ = guarded
    rights.allowed = {("acquire", "llm", "acme")}
    head = {**JSON, "Authorization": f"Bearer {TOKEN}"}
    assert (await client.post(ACQUIRE, content=BODY, headers=head)).status_code == 201
    assert (await client.post(ACQUIRE, content='{"tenant": "globex"}', headers=head)).status_code == 403
    assert (await client.get("/v1/resources/llm/statistics", headers=head)).status_code == 403
    rights.allowed = {("read", "llm", "acme")}
    one = await client.get("/v1/resources/llm/statistics?tenant=acme", headers=head)
    assert one.status_code == 200 and "globex" not in one.text
    assert (await client.get("/v1/resources/llm/tenants/globex", headers=head)).status_code == 403


async def test_the_token_of_the_daemon_is_the_simplest_right(tmp_path: Path) -> None:
    secret = tmp_path / "token"
    secret.write_text(f"{TOKEN}\n")
    text = write_policy(tmp_path).replace("[daemon]", f'[daemon]\ntoken_file = "{secret}"')
    daemon = await Daemon.open(parse(text))
    async with httpx.AsyncClient(base_url=f"http://{daemon.http_at}") as client:
        refused = await client.post(ACQUIRE, content=BODY, headers=JSON)
        assert refused.status_code == 401 and refused.headers["www-authenticate"] == "Bearer"
        assert await post(client, authorization=f"Bearer {TOKEN}x") == 401
        assert await post(client, authorization=f"Basic {TOKEN}") == 401
        assert await post(client, authorization=f"bearer {TOKEN}") == 201
        assert (await client.get("/live")).status_code == 200
    await daemon.close()


async def test_beyond_loopback_it_takes_a_certificate_or_a_token(tmp_path: Path) -> None:
    made = make_certificates(tmp_path, "bursar", "gateway")
    files = made["bursar"]
    tls = f'tls = {{ cert = "{files.cert}", key = "{files.key}", ca = "{files.ca}" }}\nhttp = "0.0.0.0:0"\n'
    text = write_policy(tmp_path).replace('http = "127.0.0.1:0"\n', tls)
    daemon = await Daemon.open(parse(text))
    assert daemon.http_at is not None
    try:
        for client_files, status in ((None, 401), (made["gateway"], 201)):
            context = ssl.create_default_context(cafile=files.ca)
            if client_files is not None:
                context.load_cert_chain(client_files.cert, client_files.key)
            url = f"https://127.0.0.1:{daemon.http_at.port}"
            async with httpx.AsyncClient(base_url=url, verify=context) as client:
                assert await post(client) == status
                assert (await client.get("/live")).status_code == 200
                assert (await client.get("/metrics")).status_code == (200 if client_files else 401)
    finally:
        await daemon.close()


# -- packages that are not installed


async def test_without_the_packages_the_default_is_warned_of_and_another_address_refused(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    import sys

    monkeypatch.setitem(sys.modules, "uvicorn", None)
    monkeypatch.delitem(sys.modules, "bursar.runtime.http_listener", raising=False)
    text = write_policy(tmp_path)
    with pytest.raises(UsageError, match=r"bursar\[http\]"):
        await Daemon.open(parse(text))
    daemon = await Daemon.open(parse(text.replace('http = "127.0.0.1:0"\n', "")))
    assert daemon.http_at is None
    assert any("bursar[http]" in str(getattr(record, "fields", "")) for record in caplog.records)
    async with daemon.host.resources["llm"].acquire("acme"):
        pass
    await daemon.close()
    assert http.HTTP == "127.0.0.1:9464"


async def test_who_shows_another_callers_id_needs_the_right_to_it(guarded: Any) -> None:
    client, rights, _ = guarded
    rights.allowed = {("acquire", "llm", "acme")}
    head = {**JSON, "Authorization": f"Bearer {TOKEN}"}
    grant = (await client.post(ACQUIRE, content=BODY, headers=head)).json()
    rights.allowed = {("acquire", "llm", "globex")}
    for method, path in (("GET", ""), ("DELETE", "")):
        assert (
            await client.request(method, f"/v1/grants/{grant['id']}{path}", headers=head)
        ).status_code == 403
    assert len(grant["id"]) >= 20
