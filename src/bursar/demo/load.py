"""The load: servers that take real time for each request, tenants that keep requests waiting."""

from __future__ import annotations

import asyncio
from collections import Counter, deque
from collections.abc import Coroutine
from contextlib import suppress
from typing import Any

from bursar.demo.cluster import (
    BUDGET_NODES,
    CAPACITY,
    CLAIM,
    CONTROLLER,
    LENDERS,
    POOL,
    QUOTA,
    READERS,
    SERVERS,
    SHARE,
    SPENDERS,
    TENANTS,
    Cluster,
)
from bursar.errors import BursarError, Refused, Unknown
from bursar.resource.door import Resource

TICK_S = 0.005
CATCH_UP_S = 0.1
WAIT_S = 5.0
PAUSE_S = 0.05
SHARE_CONCURRENCY = 40
READ_CONCURRENCY = 4
READ_AT_ONCE = 10
LENDER = "simulation"
MODEST_CONCURRENCY = 4
"""What the lender keeps waiting while it needs little: less than half of what is its own."""

CONCURRENCY: dict[str, dict[str, int]] = {
    "acme": {"a": 6, "b": 4, "c": 2, "d": 4},
    "globex": {"a": 2, "b": 6, "c": 2, "d": 4},
    "initech": {"a": 2, "b": 2, "c": 4, "d": 2},
    "umbrella": {"a": 2, "b": 2, "c": 2, "d": 2},
    "hooli": {"a": 1, "b": 1, "c": 3, "d": 3},
    "greedy": dict.fromkeys(SERVERS, 60),
}
"""Requests that each tenant keeps waiting at each server: its data is not everywhere alike."""


class Server:
    """Does requests in the order in which they come, `CAPACITY` a second."""

    def __init__(self) -> None:
        self._queue: deque[asyncio.Future[None]] = deque()

    async def work(self) -> None:
        loop = asyncio.get_running_loop()
        done_at = loop.time()
        while True:
            await asyncio.sleep(TICK_S)
            now = loop.time()
            # Idle time is gone, and so is time in which this process stood still.
            done_at = max(done_at, now - CATCH_UP_S) if self._queue else now
            while self._queue and done_at + 1 / CAPACITY <= now:
                done_at += 1 / CAPACITY
                waiting = self._queue.popleft()
                if not waiting.done():
                    waiting.set_result(None)

    async def serve(self) -> None:
        waiting: asyncio.Future[None] = asyncio.get_running_loop().create_future()
        self._queue.append(waiting)
        await waiting


class Load:
    """All that asks. `served` counts requests that were done, as the tenants see it."""

    def __init__(self, cluster: Cluster) -> None:
        self._cluster = cluster
        self.served: Counter[str] = Counter()
        self.shared: Counter[str] = Counter()
        self.spent: Counter[str] = Counter()
        self.finished: Counter[str] = Counter()
        self.refused: dict[str, Refused | Unknown] = {}
        self.modest: set[str] = set()
        self._servers = {name: Server() for name in SERVERS}
        self._tasks: dict[asyncio.Task[None], str] = {}

    def start(self) -> None:
        for name, server in self._servers.items():
            self._begin(server.work(), f"work on {name}")
        for tenant in TENANTS:
            for name in SERVERS:
                self._ask(tenant, name, CONCURRENCY[tenant][name])
        self._start_others()

    def _start_others(self) -> None:
        share, claim = (self._cluster.other(name) for name in (SHARE, CLAIM))
        for tenant in LENDERS if share else ():
            for number in range(SHARE_CONCURRENCY):
                self._begin(self._share(tenant, number), SHARE)
        for node in BUDGET_NODES:
            if self._cluster.other(QUOTA, node) is not None:
                for tenant in SPENDERS:
                    self._begin(self._spend(tenant, node), QUOTA)
        for tenant in READERS if self._cluster.other(POOL) else ():
            for _ in range(READ_CONCURRENCY):
                self._begin(self._read(tenant), POOL)
        for number in range(6 if claim else 0):
            self._begin(self._operate(number), CLAIM)

    def _begin(self, work: Coroutine[Any, Any, None], name: str) -> None:
        task = asyncio.get_running_loop().create_task(work)
        self._tasks[task] = name
        task.add_done_callback(self._end)

    def _end(self, task: asyncio.Task[None]) -> None:
        self._tasks.pop(task, None)
        if not task.cancelled() and task.exception() is not None:
            asyncio.get_running_loop().call_exception_handler(
                {"message": f"the demo's load failed: {task.exception()}", "exception": task.exception()}
            )

    def _ask(self, tenant: str, server: str, requests: int) -> None:
        for _ in range(requests):
            self._begin(self._keep_asking(tenant, server), server)

    async def _keep_asking(self, tenant: str, server: str) -> None:
        while True:
            try:
                async with self._cluster.rate(server).acquire(tenant, wait=WAIT_S):
                    await self._servers[server].serve()
                self.served[tenant] += 1
            except (Refused, Unknown) as error:
                self.refused[tenant] = error
                await asyncio.sleep(PAUSE_S)

    def leave(self, server: str) -> None:
        """The server is going: what was sent there goes to the others."""
        self._cancel(server)
        others = [name for name in self._cluster.servers if name != server]
        for tenant, places in CONCURRENCY.items():
            for number in range(places[server]):
                other = others[number % len(others)]
                self._begin(self._keep_asking(tenant, other), f"instead of {server}")

    def come_back(self, server: str) -> None:
        self._cancel(f"instead of {server}")
        for tenant, places in CONCURRENCY.items():
            self._ask(tenant, server, places[server])

    def _cancel(self, name: str) -> None:
        for task in [task for task, called in self._tasks.items() if called == name]:
            task.cancel()

    # -- beside the rate --------------------------------------------------------------------

    async def _share(self, tenant: str, number: int) -> None:
        """All at once, or, while it is modest, a few now and then."""
        share = self._other(SHARE)
        while True:
            if tenant in self.modest:
                await asyncio.sleep(PAUSE_S)
                if number >= MODEST_CONCURRENCY:
                    continue
            with suppress(Refused, Unknown):
                async with share.acquire(tenant, wait=WAIT_S):
                    self.shared[tenant] += 1

    async def _read(self, tenant: str) -> None:
        """Reads in handfuls: a token for each."""
        pool = self._other(POOL)
        while True:
            try:
                async with pool.acquire(tenant, READ_AT_ONCE, wait=1.0):
                    await asyncio.sleep(TICK_S)
            except (Refused, Unknown):
                await asyncio.sleep(PAUSE_S)

    async def _spend(self, tenant: str, node: str) -> None:
        """A gateway that reserves for the longest answer and pays for the real one."""
        quota = self._other(QUOTA, node)
        call = 0
        while True:
            call += 1
            try:
                async with quota.acquire(tenant, 400, wait=1.0) as grant:
                    await asyncio.sleep(PAUSE_S)
                    used = 150 + 37 * call % 250
                    grant.settle(used)
                self.spent[tenant] += used
            except (Refused, Unknown) as error:
                self.refused[tenant] = error
                await asyncio.sleep(1.0)

    async def _operate(self, number: int) -> None:
        """Operations on virtual machines: each needs its machine alone, and its host with others."""
        claim: object = self._other(CLAIM)
        while True:
            machine, host = f"dc/host-{number % 2}/vm-{number % 4}", f"dc/host-{(number + 1) % 2}"
            number += 1
            names = (f"{machine}:E", f"{host}:S") if number % 5 else (f"{host}:E",)
            try:
                acquisition = claim.claim(names, "ops", wait=20.0)  # type: ignore[attr-defined]
                async with acquisition:
                    await asyncio.sleep(0.4 + 0.1 * (number % 3))
                self.finished["ops"] += 1
            except (Refused, Unknown) as error:
                self.refused["ops"] = error
                await asyncio.sleep(PAUSE_S)

    def _other(self, name: str, node: str = CONTROLLER) -> Resource:
        found = self._cluster.other(name, node)
        if found is None:
            raise BursarError(f"the demo has no resource {name}")
        return found

    async def close(self) -> None:
        tasks = list(self._tasks)
        for task in tasks:
            task.cancel()
        await asyncio.gather(*tasks, return_exceptions=True)
