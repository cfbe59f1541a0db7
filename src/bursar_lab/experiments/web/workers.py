"""Four workers of uvicorn, a WSGI server of threads and a gRPC server before one daemon, with a quota at
default settings (mode exact). Told is what the services settled, in files of theirs; charged is what the
daemon says."""

from __future__ import annotations

import asyncio
import os
import socket
import sys
import tempfile
import time
from collections import Counter
from contextlib import ExitStack
from pathlib import Path
from typing import Any

from bursar.demo.ports import find_free_port
from bursar.errors import BursarError
from bursar.runtime.client import connect
from bursar_lab.experiments.web.callers import Call, call_grpc, call_http, call_many
from bursar_lab.processes import Process, await_port

WORKERS = 4
AT_ONCE = 12
RATE = 300
POLICY = """
[resource.llm]
kind = "quota"
window = "day"
[resource.llm.tenant]
asgi = {{ limit = {limit} }}
wsgi = {{ limit = {limit} }}
grpc = {{ limit = {limit} }}
rate = {{ limit = 1_000_000_000 }}
[resource.api]
kind = "rate"
servers = {{ here = "100k/s" }}
[resource.api.tenant]
asgi = {{ limit = "50k/s" }}
rate = {{ limit = "{rate}/s" }}
[daemon]
http = "off"
listen = "127.0.0.1:{port}"
state = "{folder}/state"
"""


def workers(out: Path, quick: bool) -> dict[str, Any]:
    """What was told is what was charged, within the limit, and nobody is answered 5xx."""
    return asyncio.run(_run(*((60, 3.0) if quick else (400, 20.0))))


async def _run(calls: int, seconds: float) -> dict[str, Any]:
    with ExitStack() as held:
        folder = Path(held.enter_context(tempfile.TemporaryDirectory()))
        ports = _start(held, folder, limit=6 * calls)
        table = []
        async with await connect(f"bursar://127.0.0.1:{ports['daemon']}") as b:
            ways: dict[str, Call] = {"asgi": call_http, "wsgi": call_http, "grpc": call_grpc}
            for name, call in ways.items():
                counts = await call_many(call, ports[name], name, calls, AT_ONCE)
                table.append(await _audit(b, folder, name, counts, 6 * calls))
            rate = await _measure_rate(ports["asgi"], seconds)
        bars = _judge(table, rate)
        return {"table": table, f"of {RATE}/s over {WORKERS} workers": rate, "bars": bars,
                "ok": all(bar["met"] for bar in bars)}  # fmt: skip


def _start(held: ExitStack, folder: Path, limit: int) -> dict[str, int]:
    ports = {name: find_free_port() for name in ("daemon", "asgi", "wsgi", "grpc")}
    policy = folder / "policy.toml"
    policy.write_text(POLICY.format(limit=limit, rate=RATE, port=ports["daemon"], folder=folder))
    services = "bursar_lab.experiments.web.services"
    commands = {
        "daemon": ["bursar", "serve", str(policy)],
        "asgi": ["uvicorn", f"{services}:make_asgi", "--factory", "--workers", str(WORKERS),
                 "--port", str(ports["asgi"]), "--log-level", "warning", "--no-access-log"],
        "wsgi": [services, "wsgi", str(ports["wsgi"])],
        "grpc": [services, "grpc", str(ports["grpc"])],
    }  # fmt: skip
    os.environ["BURSAR_WEB_DAEMON"] = f"bursar://127.0.0.1:{ports['daemon']}"
    for name, command in commands.items():
        (folder / name).mkdir()
        os.environ["BURSAR_WEB_FOLDER"] = str(folder / name)
        process = Process([sys.executable, "-m", *command], folder / f"{name}.log")
        held.callback(process.stop)
        await_port(ports[name], process.child)
        if name == "asgi":
            _await_workers(ports[name], process)
    return ports


def _await_workers(port: int, process: Process) -> None:
    """A port of several workers takes connections before the first of them answers."""
    until = time.monotonic() + 30
    while time.monotonic() < until:
        with socket.create_connection(("127.0.0.1", port), 10) as link:
            link.sendall(b"GET / HTTP/1.1\r\nhost: x\r\nconnection: close\r\n\r\n")
            if link.recv(20).startswith(b"HTTP/1.1 400"):
                return
        time.sleep(0.1)
    raise process.fail("the workers do not answer")


async def _audit(b: Any, folder: Path, name: str, counts: Counter[str], limit: int) -> dict[str, Any]:
    """Once nothing is held any more."""
    until = time.monotonic() + 20
    while True:
        row = (await b.statistics("llm")).part["tenants"][name]
        if row["held"] == 0:
            break
        if time.monotonic() > until:
            raise BursarError(f"{name} still holds {row['held']} of the quota")
        await asyncio.sleep(0.05)
    files = (folder / name).glob("told-*")
    told = sum(int(line) for file in files for line in file.read_text().split())
    statuses = ", ".join(f"{count} {status}" for status, count in sorted(counts.items()))
    return {"over": name, "calls": statuses, "told": told, "charged": row["spent"], "limit": limit}


async def _measure_rate(port: int, seconds: float) -> dict[str, Any]:
    """Callers that want more than the tenant's limit, at all workers."""
    counts: Counter[str] = Counter()
    began = time.monotonic()
    until = began + seconds

    async def ask() -> None:
        while time.monotonic() < until:
            counts[await call_http(port, "rate", True)] += 1

    await asyncio.gather(*(ask() for _ in range(40)))
    took = time.monotonic() - began
    return {"granted/s": round(counts["left"] / took, 1), "answers": dict(counts)}


def _judge(table: list[dict[str, Any]], rate: dict[str, Any]) -> list[dict[str, Any]]:
    apart = sum(abs(row["told"] - row["charged"]) for row in table)
    over = sum(row["charged"] > row["limit"] for row in table)
    other = {status for status in rate["answers"] if status not in ("left", "429")}
    used = rate["granted/s"] / RATE
    return [
        {"bar": "what was told is what was charged", "found": f"{apart} units apart", "met": apart == 0},
        {"bar": "no limit is passed", "found": f"{over} passed", "met": over == 0},
        {"bar": "every answer is a grant or a refusal", "found": sorted(other), "met": not other},
        {"bar": "the rate is used and kept over all workers", "found": round(used, 3),
         "met": 0.9 <= used <= 1.02},
    ]  # fmt: skip
