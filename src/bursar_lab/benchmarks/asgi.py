"""What limiting adds to a request: bursar's middleware beside slowapi's and a bare application.

The same FastAPI application and request each time, called in this process without a network: what
a server and sockets take would be the same for all, and hide the difference. Many short turns, in
turn; the fastest of each counts, because whatever else the machine does only ever adds.
"""

from __future__ import annotations

import asyncio
import tempfile
import time
from collections.abc import MutableMapping
from typing import Any

from bursar.errors import BursarError
from bursar.integrations.asgi import BursarMiddleware, by_header
from bursar.policy import parse
from bursar.runtime.client import Bursar, connect
from bursar.runtime.loops import new_event_loop

POLICY = """
[resource.api]
kind = "rate"
servers = {{ here = "100M/s" }}
pacing = false
[resource.api.tenant]
acme = {{ limit = "50M/s" }}
[resource.disk]
kind = "share"
capacity = "50M/s"
[resource.disk.tenant]
acme = {{ weight = 1 }}
[daemon]
http = "off"
state = "{state}"
"""

HEADERS = [(b"host", b"x"), (b"x-tenant", b"acme")]
WARM_UP_S = 5.0


def make_app() -> Any:
    from fastapi import FastAPI
    from fastapi.responses import PlainTextResponse

    app = FastAPI()

    @app.get("/")
    async def root() -> PlainTextResponse:
        return PlainTextResponse("ok")

    return app


def make_slowapi_app() -> Any:
    try:
        from slowapi import Limiter
        from slowapi.middleware import SlowAPIASGIMiddleware
    except ImportError as error:
        raise BursarError("this compares with slowapi: pip install slowapi") from error
    app = make_app()
    app.state.limiter = Limiter(
        key_func=lambda request: request.headers["x-tenant"], default_limits=["50000000/second"]
    )
    app.add_middleware(SlowAPIASGIMiddleware)
    return app


def make_bursar_app(held: Bursar, resource: str) -> Any:
    app = make_app()
    tenant = by_header("x-tenant")
    app.add_middleware(BursarMiddleware, bursar=held, resource=resource, tenant=tenant, wait=1.0)
    return app


async def call(app: Any) -> int:
    status = 0

    async def send(message: MutableMapping[str, Any]) -> None:
        nonlocal status
        status = message.get("status", status)

    async def receive() -> dict[str, Any]:
        return {"type": "http.request", "body": b"", "more_body": False}

    scope = {
        "type": "http",
        "method": "GET",
        "path": "/",
        "raw_path": b"/",
        "root_path": "",
        "scheme": "http",
    }
    rest = {"query_string": b"", "headers": HEADERS, "http_version": "1.1", "client": ("127.0.0.1", 1)}
    await app({**scope, **rest, "server": ("x", 80), "asgi": {"version": "3.0"}}, receive, send)
    return status


async def wait_until_granting(app: Any) -> None:
    """Tokens come with the first period."""
    until = time.monotonic() + WARM_UP_S
    while await call(app) != 200:
        if time.monotonic() > until:
            raise BursarError(f"no tokens came within {WARM_UP_S:g} s")
        await asyncio.sleep(0.05)


async def measure(rounds: int, count: int) -> tuple[dict[str, float], dict[str, int]]:
    """The fastest turn of each application, in microseconds a request; and requests not served."""
    with tempfile.TemporaryDirectory() as folder:
        async with await connect(parse(POLICY.format(state=folder))) as held:
            apps = {
                "bare": make_app(),
                "slowapi": make_slowapi_app(),
                "bursar rate": make_bursar_app(held, "api"),
                "bursar share": make_bursar_app(held, "disk"),
            }
            for app in apps.values():
                await wait_until_granting(app)
            best: dict[str, float] = {}
            missed = dict.fromkeys(apps, 0)
            for _ in range(rounds):
                for name, app in apps.items():
                    began = time.perf_counter_ns()
                    refused = 0
                    for _ in range(count):
                        refused += await call(app) != 200
                    took = (time.perf_counter_ns() - began) / count / 1000
                    missed[name] += refused
                    if not refused:  # a refusal is quicker, and no request served
                        best[name] = min(took, best.get(name, took))
                    await asyncio.sleep(0.001)
            return best, missed


def run(quick: bool) -> dict[str, Any]:
    """Bursar must add less than slowapi does."""
    rounds, count = (20, 100) if quick else (150, 200)
    with asyncio.Runner(loop_factory=new_event_loop) as runner:
        best, missed = runner.run(measure(rounds, count))
    added = {name: took - best["bare"] for name, took in best.items()}
    table = [
        {
            "application": name,
            "us a request": round(took, 1),
            "added us": round(added[name], 1),
            "not served": missed[name],
        }
        for name, took in best.items()
    ]
    return {
        "table": table,
        "ok": added["bursar rate"] < added["slowapi"] and not any(missed.values()),
        "ratio to slowapi": round(added["bursar rate"] / added["slowapi"], 2),
        "rounds": rounds,
        "requests a round": count,
    }
