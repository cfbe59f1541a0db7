"""A policy opened in this process, at a daemon, or at several of a fleet."""

from __future__ import annotations

import asyncio
import sys
import tempfile
import time
from collections.abc import AsyncIterator, Sequence
from contextlib import asynccontextmanager
from pathlib import Path
from typing import Any

import bursar
from bursar.demo.ports import find_free_port
from bursar.errors import NetworkError
from bursar.rates.resource import open_server
from bursar_lab.experiments.fleet.processes import Fleet
from bursar_lab.processes import Process, await_port

START_S = 60.0
"""A daemon on a busy machine may take so long to come up."""


@asynccontextmanager
async def open_here(policy: str) -> AsyncIterator[Any]:
    """The resource `api` of a node in this process."""
    with tempfile.TemporaryDirectory(prefix="bursar-surface-") as folder:
        file = Path(folder) / "policy.toml"
        file.write_text(policy)
        async with await bursar.connect(str(file)) as b:
            yield b.resource("api")


async def open_servers(resource: Any, names: Sequence[str]) -> list[Any]:
    """A front door to each of these servers, for a resource in this process."""
    return [await open_server(resource, name) for name in names]


@asynccontextmanager
async def open_daemon(policy: str) -> AsyncIterator[Any]:
    """The same at `bursar serve`, in a process of its own."""
    with tempfile.TemporaryDirectory(prefix="bursar-surface-") as folder:
        file, port = Path(folder) / "policy.toml", find_free_port()
        own = f'[daemon]\nlisten = "127.0.0.1:{port}"\nhttp = "off"\nstate = "{folder}/state"\n'
        file.write_text(policy + own)
        daemon = Process([sys.executable, "-m", "bursar", "serve", str(file)], Path(folder) / "daemon.log")
        try:
            await asyncio.to_thread(await_port, port, daemon.child, START_S)
            async with await _connect(f"bursar://127.0.0.1:{port}") as b:
                yield b.resource("api")
        finally:
            daemon.stop()


@asynccontextmanager
async def open_fleet(policy: str, names: Sequence[str]) -> AsyncIterator[list[Any]]:
    """The resource as each of several daemons has it, each with the server of its name."""
    with tempfile.TemporaryDirectory(prefix="bursar-surface-") as folder:
        fleet = Fleet(Path(folder), f"sqlite://{folder}/store.db")
        try:
            await asyncio.to_thread(_start, fleet, policy, names)
            clients = [await _connect(fleet.url(name)) for name in names]
            yield [client.resource("api") for client in clients]
            for client in clients:
                await client.close()
        finally:
            await asyncio.to_thread(fleet.stop)


async def _connect(url: str) -> Any:
    """Once the daemon answers: it listens before it has loaded what is compiled."""
    until = time.monotonic() + START_S
    while True:
        try:
            return await bursar.connect(url, timeout=START_S)
        except NetworkError:
            if time.monotonic() > until:
                raise
            await asyncio.sleep(0.5)


def _start(fleet: Fleet, policy: str, names: Sequence[str]) -> None:
    fleet.apply(policy)
    for name in names:
        fleet.start(name)
