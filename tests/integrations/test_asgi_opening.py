"""Starting: with bursar, without it, and with bursar coming later."""

from __future__ import annotations

import asyncio
import re
import subprocess
import sys
import time
from collections.abc import AsyncIterator, Iterator
from contextlib import asynccontextmanager
from pathlib import Path
from typing import Any, cast

import httpx
import pytest
from asgi_budget import Backend, Budget, fetch, make_door
from fastapi import FastAPI
from starlette.testclient import TestClient

from bursar.demo.ports import find_free_port
from bursar.errors import NetworkError, PolicyError, UnreachableError, UsageError
from bursar.integrations.asgi import BursarMiddleware, by_header
from bursar.integrations.asgi.opening import Opening
from bursar.runtime.client import Bursar

TIMEOUT_S = 60.0


class LateBursar(Bursar):
    """A daemon that answers after so many tries."""

    def __init__(self, failures: int) -> None:
        super().__init__("bursar://127.0.0.1:1")
        self.budget = Budget()
        self.failures = failures
        self.tries = 0
        self.connected = 0
        self.closed = 0

    async def connect(self) -> Bursar:
        self.tries += 1
        await asyncio.sleep(0)
        if self.tries <= self.failures:
            raise UnreachableError("connection refused")
        self.connected += 1
        self._connected = cast(Any, Backend(make_door(self.budget)))
        return self

    async def close(self) -> None:
        self.closed += 1
        self._connected = None


@pytest.fixture(autouse=True)
def quick(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("bursar.integrations.asgi.opening.PAUSE_MIN_S", 0.01)


def make_app(bursar: Any, **options: Any) -> tuple[FastAPI, list[str]]:
    """An application that writes down its own start and end."""
    ran: list[str] = []

    @asynccontextmanager
    async def live(app: Any) -> AsyncIterator[None]:
        ran.append("up")
        yield
        ran.append("down")

    app = FastAPI(lifespan=live)

    @app.get("/items")
    async def items() -> dict[str, str]:
        return {"fine": "yes"}

    settings = {"resource": "budget", "tenant": by_header("x-tenant", "acme"), **options}
    app.add_middleware(BursarMiddleware, bursar=bursar, **settings)
    return app, ran


def wait_for(client: Any, status: int) -> None:
    for _ in range(1000):
        if client.get("/items").status_code == status:
            return
    raise AssertionError(f"no answer of {status}")


# --- away at the start --------------------------------------------------------------------------


def test_an_application_starts_while_bursar_is_away_and_is_limited_once_it_is_there() -> None:
    late = LateBursar(3)
    app, ran = make_app(late)
    with TestClient(app) as client:
        assert ran == ["up"]
        away = client.get("/items")
        assert (away.status_code, away.headers["retry-after"]) == (503, "1")
        wait_for(client, 200)
        assert "ratelimit" in client.get("/items").headers
    assert ran == ["up", "down"]
    assert (late.tries, late.closed) == (4, 1)


def test_requests_may_go_on_while_bursar_was_never_there() -> None:
    app, ran = make_app(LateBursar(10**9), when_away="allow")
    with TestClient(app) as client:
        answer = client.get("/items")
    assert answer.status_code == 200
    assert "ratelimit" not in answer.headers
    assert ran == ["up", "down"]


def test_where_bursar_is_required_nothing_starts_without_it() -> None:
    late = LateBursar(1)
    app, ran = make_app(late, required=True)
    with pytest.raises(NetworkError, match="connection refused"), TestClient(app):
        pass
    assert ran == []
    assert late.tries == 1


@pytest.mark.parametrize("required", [True, False])
def test_a_mistake_stops_the_start_whether_required_or_not(required: bool, tmp_path: Path) -> None:
    """Trying again does not mend it."""
    broken = tmp_path / "policy.toml"
    broken.write_text("[resource.api]\nkind = 5\n")
    app, ran = make_app(broken, required=required)
    with pytest.raises(PolicyError), TestClient(app):
        pass
    app, ran = make_app(LateBursar(0), resource="budgie", required=required)
    with pytest.raises(UsageError, match=r"no resource 'budgie'.*did you mean"), TestClient(app):
        pass
    assert ran == []


async def run_lifespan(app: Any) -> list[dict[str, Any]]:
    """What a server is told."""
    told: list[dict[str, Any]] = []
    messages = iter([{"type": "lifespan.startup"}, {"type": "lifespan.shutdown"}])

    async def receive() -> Any:
        return next(messages)

    async def send(message: Any) -> None:
        told.append(message)

    await asyncio.gather(app({"type": "lifespan"}, receive, send), return_exceptions=True)
    return told


async def test_the_server_is_told_why_it_does_not_start() -> None:
    app, _ = make_app(LateBursar(1), required=True)
    assert await run_lifespan(app) == [
        {"type": "lifespan.startup.failed", "message": "bursar: connection refused"}
    ]


async def test_an_application_that_fails_to_start_says_so_itself() -> None:
    app = FastAPI(lifespan=cast(Any, lambda app: 1 / 0))
    late = LateBursar(0)
    app.add_middleware(BursarMiddleware, bursar=late, resource="budget", tenant=by_header("x"))
    told = await run_lifespan(app)
    assert [message["type"] for message in told] == ["lifespan.startup.failed"]
    assert late.closed == 1


def test_requests_are_taken_once_they_would_be_decided() -> None:
    late = LateBursar(0)
    ready = iter([False, False, True])
    late.budget.is_ready = lambda: next(ready)  # type: ignore[method-assign]
    app, _ = make_app(late)
    with TestClient(app):
        assert next(ready, None) is None


def test_a_server_starts_although_nothing_is_decided_for_long(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("bursar.integrations.asgi.opening.READY_MAX_S", 0.05)
    late = LateBursar(0)
    late.budget.is_ready = lambda: False  # type: ignore[method-assign]
    app, ran = make_app(late)
    with TestClient(app):
        assert ran == ["up"]


# --- connecting ---------------------------------------------------------------------------------


async def test_without_lifespan_it_connects_at_the_first_request() -> None:
    late = LateBursar(0)
    app, ran = make_app(late)
    answers = await asyncio.gather(*(fetch(app) for _ in range(5)))
    assert {answer.status_code for answer in answers} == {200}
    assert (ran, late.tries) == ([], 1)


async def test_what_was_connected_before_is_left_connected() -> None:
    late = LateBursar(0)
    await late.connect()
    app, _ = make_app(late)
    await run_lifespan(app)
    assert (late.tries, late.closed) == (1, 0)


async def test_middlewares_that_share_a_bursar_connect_it_once() -> None:
    late = LateBursar(2)
    openings = [Opening(late, "budget") for _ in range(3)]
    await asyncio.gather(*(opening.start(required=False) for opening in openings))
    while not all(opening.resource for opening in openings):
        await asyncio.sleep(0.01)
    assert late.connected == 1
    for opening in openings:
        await opening.close()
    assert late.closed == 1


async def test_tries_come_further_apart(monkeypatch: pytest.MonkeyPatch) -> None:
    pauses: list[float] = []

    async def sleep(seconds: float) -> None:
        if seconds:
            pauses.append(seconds)

    monkeypatch.setattr("bursar.integrations.asgi.opening.asyncio.sleep", sleep)
    monkeypatch.setattr("bursar.integrations.asgi.opening.random.uniform", lambda low, high: high)
    opening = Opening(LateBursar(11), "budget")
    await opening.try_first()
    assert opening._trying is not None
    await opening._trying
    assert pauses == [0.01 * 2**n for n in range(9)] + [5.0, 5.0]
    assert opening.resource is not None


async def test_a_resource_that_the_daemon_does_not_have_yet_is_asked_for_again() -> None:
    late = LateBursar(1)
    opening = Opening(late, "other")
    await opening.start(required=False)
    while opening.error is None or "no resource" not in str(opening.error):
        await asyncio.sleep(0.01)
    cast(Any, late._connected).resources["other"] = found = make_door(Budget())
    while opening.resource is None:
        await asyncio.sleep(0.01)
    assert opening.resource is found
    await opening.close()


# --- real servers -------------------------------------------------------------------------------

SERVICE = """
from contextlib import asynccontextmanager

from fastapi import FastAPI

from bursar.integrations.asgi import BursarMiddleware, by_header

started = []


@asynccontextmanager
async def live(app):
    started.append("up")
    yield


app = FastAPI(lifespan=live)
app.add_middleware(
    BursarMiddleware,
    bursar="bursar://127.0.0.1:{port}",
    resource="api",
    tenant=by_header("x-tenant"),
    exempt=lambda scope: scope["path"] == "/started",
    required={required},
)


@app.get("/started")
async def tell():
    return started


@app.get("/items")
async def items():
    return "fine"
"""
POLICY = """
[resource.api]
kind = "rate"
servers = {{ here = "100/s" }}
[resource.api.tenant]
acme = {{ limit = "50/s" }}
[daemon]
listen = "127.0.0.1:{port}"
http = "off"
"""


class Processes:
    """Programs in one folder, ended when the test is over."""

    def __init__(self, folder: Path) -> None:
        self.folder = folder
        self.begun: list[subprocess.Popen[str]] = []

    def start(self, *arguments: str, log: str) -> subprocess.Popen[str]:
        with open(self.folder / log, "w") as file:
            process = subprocess.Popen(
                [sys.executable, "-m", *arguments], cwd=self.folder, stdout=file, stderr=file, text=True
            )
        self.begun.append(process)
        return process

    def close(self) -> None:
        for process in self.begun:
            process.terminate()
            process.wait(TIMEOUT_S)


@pytest.fixture
def processes(tmp_path: Path) -> Iterator[Processes]:
    processes = Processes(tmp_path)
    yield processes
    processes.close()


def poll(url: str, wanted: int, **headers: str) -> httpx.Response:
    """The first answer with that status."""
    seen: Any = None
    transport = httpx.HTTPTransport(retries=3)
    with httpx.Client(transport=transport, headers=headers) as client:
        for _ in range(int(TIMEOUT_S / 0.1)):
            try:
                seen = client.get(url)
                if seen.status_code == wanted:
                    return cast(httpx.Response, seen)
            except httpx.TransportError as error:
                seen = error
            time.sleep(0.1)
    raise AssertionError(f"{url} never answered {wanted}: {seen!r}")


def test_uvicorn_serves_while_the_daemon_is_down_and_limits_once_it_is_up(
    tmp_path: Path, processes: Processes
) -> None:
    port, listen = find_free_port(), find_free_port()
    (tmp_path / "service.py").write_text(SERVICE.format(port=port, required=False))
    (tmp_path / "policy.toml").write_text(POLICY.format(port=port))
    processes.start("uvicorn", "service:app", "--port", str(listen), log="uvicorn.log")
    service = f"http://127.0.0.1:{listen}"
    assert poll(f"{service}/started", 200).json() == ["up"]
    away = poll(f"{service}/items", 503, **{"x-tenant": "acme"})
    assert int(away.headers["retry-after"]) <= 5
    processes.start("bursar", "serve", "policy.toml", log="bursar.log")
    granted = poll(f"{service}/items", 200, **{"x-tenant": "acme"})
    assert re.match(r'"api";r=\d+', granted.headers["ratelimit"])


def test_uvicorn_exits_and_says_why_where_the_daemon_is_required(
    tmp_path: Path, processes: Processes
) -> None:
    port, listen = find_free_port(), find_free_port()
    (tmp_path / "service.py").write_text(SERVICE.format(port=port, required=True))
    process = processes.start("uvicorn", "service:app", "--port", str(listen), log="uvicorn.log")
    assert process.wait(TIMEOUT_S) == 3
    assert f"no daemon answers at bursar://127.0.0.1:{port}" in (tmp_path / "uvicorn.log").read_text()
