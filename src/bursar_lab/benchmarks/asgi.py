"""What limiting adds to a request: bursar's middleware beside slowapi's and a bare application.

The same FastAPI application and request each time, called in this process without a network: what
a server and sockets take would be the same for all, and hide the difference. Many short turns, in
turn: the fastest of each, because whatever else the machine does only ever adds, and the median, because
what is done once for many requests is in few turns. With a daemon, in a
process of its own, as several workers share one: there a rate comes in lots, and a quota at default settings
(`exact`) is asked for each time, and written to disk before the answer and after it.
"""

from __future__ import annotations

import asyncio
import contextlib
import sys
import tempfile
import time
from collections.abc import Iterator, MutableMapping
from pathlib import Path
from statistics import median
from typing import Any

from bursar.demo.ports import find_free_port
from bursar.errors import BursarError
from bursar.integrations.asgi import BursarMiddleware, by_header
from bursar.policy import parse
from bursar.runtime.client import Bursar, connect
from bursar.runtime.loops import new_event_loop
from bursar_lab.processes import Process, await_port

POLICY = """
[resource.api]
kind = "rate"
servers = {{ here = "100M/s" }}
pacing = false
[resource.api.tenant]
acme = {{ limit = "50M/s" }}
[resource.asked]
kind = "rate"
servers = {{ here = "100M/s" }}
[resource.asked.tenant]
acme = {{ limit = "50M/s", burst = 1 }}
[resource.disk]
kind = "share"
capacity = "50M/s"
[resource.disk.tenant]
acme = {{ weight = 1 }}
[resource.llm]
kind = "quota"
[resource.llm.tenant]
acme = {{ limit = 1_000_000_000 }}
[daemon]
http = "off"
state = "{state}"
"""
SLOW = ("bursar quota", "bursar quota, daemon", "bursar rate, daemon, no lots")
"""Those that ask for each request have shorter turns."""

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


@contextlib.contextmanager
def run_daemon(folder: Path) -> Iterator[str]:
    """A daemon with the same policy, and its address."""
    port = find_free_port()
    policy = folder / "served.toml"
    policy.write_text(POLICY.format(state=folder / "served") + f'listen = "127.0.0.1:{port}"\n')
    daemon = Process([sys.executable, "-m", "bursar", "serve", str(policy)], folder / "served.log")
    try:
        await_port(port, daemon.child)
        yield f"bursar://127.0.0.1:{port}"
    finally:
        daemon.stop()


async def measure(rounds: int, count: int) -> tuple[dict[str, list[float]], dict[str, int]]:
    """The turns of each application, in microseconds a request; and requests not served."""
    with tempfile.TemporaryDirectory() as name, run_daemon(Path(name)) as address:
        policy = parse(POLICY.format(state=Path(name) / "state"))
        async with await connect(policy) as held, await connect(address) as far:
            apps = {
                "bare": make_app(),
                "slowapi": make_slowapi_app(),
                "bursar rate": make_bursar_app(held, "api"),
                "bursar share": make_bursar_app(held, "disk"),
                "bursar quota": make_bursar_app(held, "llm"),
                "bursar rate, daemon": make_bursar_app(far, "api"),
                "bursar rate, daemon, no lots": make_bursar_app(far, "asked"),
                "bursar share, daemon": make_bursar_app(far, "disk"),
                "bursar quota, daemon": make_bursar_app(far, "llm"),
            }
            for app in apps.values():
                await wait_until_granting(app)
            turns: dict[str, list[float]] = {label: [] for label in apps}
            missed = dict.fromkeys(apps, 0)
            for _ in range(rounds):
                for label, app in apps.items():
                    await take_turn(label, app, count // 10 if label in SLOW else count, turns, missed)
            return turns, missed


async def take_turn(
    label: str, app: Any, count: int, turns: dict[str, list[float]], missed: dict[str, int]
) -> None:
    began = time.perf_counter_ns()
    refused = 0
    for _ in range(count):
        refused += await call(app) != 200
    took = (time.perf_counter_ns() - began) / count / 1000
    missed[label] += refused
    if not refused:  # a refusal is quicker, and no request served
        turns[label].append(took)
    await asyncio.sleep(0.001)


def run(quick: bool) -> dict[str, Any]:
    """Bursar must add less than slowapi does."""
    rounds, count = (20, 100) if quick else (150, 200)
    with asyncio.Runner(loop_factory=new_event_loop) as runner:
        turns, missed = runner.run(measure(rounds, count))
    best = {name: min(took) for name, took in turns.items()}
    middle = {name: median(took) for name, took in turns.items()}
    added = {name: took - best["bare"] for name, took in best.items()}
    table = [
        {
            "application": name,
            "us a request": round(best[name], 1),
            "added us": round(added[name], 1),
            "median added us": round(middle[name] - middle["bare"], 1),
            "not served": missed[name],
        }
        for name in best
    ]
    return {
        "table": table,
        "ok": added["bursar rate"] < added["slowapi"] and not any(missed.values()),
        "ratio to slowapi": round(added["bursar rate"] / added["slowapi"], 2),
        "rounds": rounds,
        "requests a round": count,
    }
