"""A proxy before real memcached servers, with tokens in plain sight, for tests."""

from __future__ import annotations

import asyncio
import os
import subprocess
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from typing import Any

from bursar.demo.ports import find_free_port
from bursar.errors import Refused, Unknown
from bursar.integrations.memcached_proxy import Proxy
from bursar.resource import Decider, Explanation, Granted, Offers, Ticket
from bursar.resource.door import Resource
from bursar.runtime.world import open_world


class Tokens(Decider):
    """So many tokens a tenant; what waits goes when `give` brings more. Counts what is given back."""

    kind = "rate"
    name = "cache"
    offers = Offers(lots=True)

    def __init__(self, tokens: dict[str, int]) -> None:
        self.left = dict(tokens)
        self.open = 0
        self.waiting: list[Ticket] = []

    def is_ready(self) -> bool:
        return True

    def most(self, ticket: Ticket) -> int | None:
        if ticket.tenant not in self.left:
            raise Refused(f"no tenant {ticket.tenant}", reason="tenant")
        return None

    def decide(self, ticket: Ticket) -> None:
        if self.left[ticket.tenant] < ticket.amount:
            self.waiting.append(ticket)
            return
        self.left[ticket.tenant] -= ticket.amount
        self.open += 1
        ticket.give(Granted(ticket.amount))

    def give(self, tenant: str, tokens: int) -> None:
        self.left[tenant] += tokens
        waiting, self.waiting = self.waiting, []
        for ticket in waiting:
            self.decide(ticket)

    def withdraw(self, ticket: Ticket) -> Refused | Unknown | None:
        self.waiting.remove(ticket)
        if ticket.tenant == "vague":
            return Unknown("nobody answers")
        return Refused(f"{ticket.tenant} has used its tokens", limit=1, remaining=0, retry_after=0.25)

    def finish(self, granted: Granted) -> None:
        self.open -= 1

    def explain(self, tenant: str) -> Explanation:
        return Explanation(resource=self.name, kind=self.kind, tenant=tenant, sentences=())


class Stand:
    def __init__(self, proxy: Proxy, tokens: Tokens, port: int) -> None:
        self.proxy, self.tokens, self.port = proxy, tokens, port


def start(port: int) -> subprocess.Popen[bytes]:
    user = ["-u", "nobody"] if os.geteuid() == 0 else []
    return subprocess.Popen(["memcached", "-l", "127.0.0.1", "-p", str(port), "-m", "64", *user])


@asynccontextmanager
async def run_memcached() -> AsyncIterator[tuple[int, subprocess.Popen[bytes]]]:
    """(port, process), once it takes connections."""
    port = find_free_port()
    server = start(port)
    for _ in range(500):
        try:
            _, writer = await asyncio.open_connection("127.0.0.1", port)
            writer.close()
            break
        except OSError:
            await asyncio.sleep(0.01)
    try:
        yield port, server
    finally:
        server.kill()
        server.wait()


@asynccontextmanager
async def run_proxy(ports: list[int], **options: Any) -> AsyncIterator[Stand]:
    tokens = Tokens({"acme": 1_000_000, "few": 2, "vague": 0})
    world = await open_world("proxy")
    door = Resource(world, tokens, None)
    await door.start()
    options = {"slow_timeout_s": 0.5, "stall_timeout_s": 0.5} | options
    tls = options.pop("tls", None)
    proxy = Proxy(door, [f"127.0.0.1:{port}" for port in ports], **options)
    (address,) = await proxy.listen({"127.0.0.1:0": None}, tls)
    yield Stand(proxy, tokens, address.port)
    proxy.close()
    await world.close()


@asynccontextmanager
async def connect(port: int) -> AsyncIterator[tuple[asyncio.StreamReader, asyncio.StreamWriter]]:
    reader, writer = await asyncio.open_connection("127.0.0.1", port, limit=8 * 1024 * 1024)
    try:
        yield reader, writer
    finally:
        writer.close()


async def ask(port: int, data: bytes) -> bytes:
    """Send, stop sending, and read all that comes until the proxy closes."""
    async with connect(port) as (reader, writer):
        writer.write(data)
        writer.write_eof()
        return await asyncio.wait_for(reader.read(), 10)


async def wait_until(condition: Any) -> None:
    for _ in range(500):
        if condition():
            return
        await asyncio.sleep(0.02)
    raise AssertionError("it did not come about within ten seconds")
