"""Every way to the front door, with one face: here, through a daemon or over HTTP, async or sync."""

from __future__ import annotations

import asyncio
import contextlib
from collections.abc import AsyncIterator
from pathlib import Path
from typing import Any

import httpx

import bursar
import bursar.sync
from bursar.policy import Policy, parse
from bursar.runtime.daemon import Daemon

WAYS = ("here-async", "here-sync", "daemon-async", "daemon-sync", "http-async")

KINDS = ("rate", "share", "pool", "quota", "fast", "claim")
"""`fast` is a quota in mode fast, the one that hands out lots."""

POLICY = """
[resource.rate]
kind = "rate"
servers = { here = "2k/s" }
[resource.rate.tenant]
acme = { limit = "100/s" }
globex = { limit = "1k/s", reservation = "500/s" }

[resource.share]
kind = "share"
capacity = "1k/s"
[resource.share.tenant]
acme = { weight = 1 }
globex = { weight = 3 }

[resource.pool]
kind = "pool"
capacity = "1k/s"
[resource.pool.tenant]
acme = { reservation = "100/s", limit = "100/s" }
globex = { reservation = "500/s" }

[resource.quota]
kind = "quota"
[resource.quota.tenant]
acme = { limit = 1000 }
globex = { limit = 1000 }

[resource.fast]
kind = "quota"
mode = "fast"
[resource.fast.tenant]
acme = { limit = 1000 }
globex = { limit = 1000 }

[resource.claim]
kind = "claim"
"""

DAEMON = """
[daemon]
listen = "127.0.0.1:0"
http = "127.0.0.1:0"
state = "{state}"
"""

LOTS = ("rate", "share", "pool", "fast")
KEYS = ("quota", "fast", "claim")
LIMITED = ("rate", "pool", "quota", "fast")
"""The kinds whose tenant acme can use up what it may have."""


def make_policy(folder: Path, text: str = POLICY, **changes: str) -> Policy:
    """The policy, with lines put below the head of a resource: `rate="shadow = true"`."""
    for kind, line in changes.items():
        text = text.replace(f"[resource.{kind}]\n", f"[resource.{kind}]\n{line}\n")
    return parse(text + DAEMON.format(state=folder / "state"), "contract.toml")


class Caller:
    """One program's connection. Everything is awaited, whichever way it goes."""

    def __init__(self, way: str, b: Any, daemon: Daemon | None) -> None:
        self.way = way
        self.b = b
        self.daemon = daemon

    @property
    def has_lots(self) -> bool:
        """Whether tokens are in hand ahead of use: over HTTP they are in the daemon's."""
        return True

    @property
    def sync(self) -> bool:
        return self.way.endswith("sync") and not self.way.endswith("async")

    async def _do(self, function: Any, *args: Any, **named: Any) -> Any:
        if self.sync:
            return await asyncio.to_thread(function, *args, **named)
        found = function(*args, **named)
        return await found if hasattr(found, "__await__") else found

    async def acquire(self, kind: str, amount: int = 1, *, tenant: str = "acme", **terms: Any) -> Any:
        """A grant that stays open. Of a claim `amount` is how many names are claimed."""
        resource = self.b.resource(kind)
        if kind == "claim":
            names = [f"thing-{number}:E" for number in range(amount)]
            acquisition = resource.claim(names, tenant, **terms)
        else:
            acquisition = resource.acquire(tenant, amount, **terms)
        if self.sync:
            return await asyncio.to_thread(acquisition.take)
        return await acquisition

    async def try_acquire(self, kind: str, amount: int = 1, *, tenant: str = "acme") -> Any:
        return await self._do(self.b.resource(kind).try_acquire, tenant, amount)

    async def release(self, grant: Any) -> None:
        await self._do(grant.release)

    async def settle(self, grant: Any, used: int) -> None:
        await self._do(grant.settle, used) if self.sync else grant.settle(used)
        await self.release(grant)

    async def spend(self, grant: Any, tokens: int) -> None:
        await self._do(grant.spend, tokens)

    async def extend(self, grant: Any, hold: float) -> None:
        await self._do(grant.extend, hold)

    async def fail(self, grant: Any) -> None:
        """Leave a grant as work that failed does."""
        error = RuntimeError("the work failed")
        leave = grant.__exit__ if self.sync else grant.__aexit__
        await self._do(leave, RuntimeError, error, None)

    async def statistics(self, kind: str) -> bursar.Statistics:
        found: bursar.Statistics = await self._do(self.b.statistics, kind)
        return found

    async def explain(self, kind: str, tenant: str = "acme") -> bursar.Explanation:
        found: bursar.Explanation = await self._do(self.b.explain, kind, tenant)
        return found

    async def acquire_all(self, amounts: dict[str, int], *, tenant: str = "acme", **terms: Any) -> Any:
        acquisition = self.b.acquire_all(tenant, amounts, **terms)
        return await asyncio.to_thread(acquisition.take) if self.sync else await acquisition


@contextlib.asynccontextmanager
async def open_way(way: str, policy: Policy) -> AsyncIterator[Caller]:
    """A connection by that way; ready once everything is decided."""
    place, _, style = way.partition("-")
    if place == "http":
        async with open_http(policy) as caller:
            yield caller
        return
    daemon = await Daemon.open(policy) if place == "daemon" else None
    target: Any = policy if daemon is None else f"bursar://{daemon.host.world.listening}"
    try:
        if style == "sync":
            b: Any = await asyncio.to_thread(bursar.sync.connect, target)
            try:
                yield await _ready(Caller(way, b, daemon))
            finally:
                await asyncio.to_thread(b.close)
        else:
            async with await bursar.connect(target) as b:
                yield await _ready(Caller(way, b, daemon))
    finally:
        if daemon is not None:
            await daemon.close()


@contextlib.asynccontextmanager
async def open_http(policy: Policy) -> AsyncIterator[Caller]:
    from tests.resources.over_http import HttpCaller

    daemon = await Daemon.open(policy)
    try:
        async with httpx.AsyncClient(base_url=f"http://{daemon.http_at}", timeout=100) as client:
            yield await _ready(HttpCaller("http-async", client, daemon))
    finally:
        await daemon.close()


async def _ready(caller: Caller) -> Caller:
    async with asyncio.timeout(10):
        for kind in KINDS:
            while not (await caller.statistics(kind)).ready:
                await asyncio.sleep(0.01)
    return caller
