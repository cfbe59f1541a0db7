"""Tenants that send to one server: continuously backlogged, or at a pace of their own."""

from __future__ import annotations

import asyncio
import heapq
import random
from collections.abc import Awaitable, Callable
from typing import Protocol

from bursar.integrations.file_backend import FileBackend
from bursar.integrations.memcached_backend import MemcachedBackend
from bursar.rates import choices
from bursar.rates.dispatcher import Dispatcher
from bursar.resource import Granted, Ticket
from bursar.world import SECOND_NS, World
from bursar_lab.experiments.rates_live.plan import Flow, Plan
from bursar_lab.experiments.ycsb import Workload

WAIT_NS = 3600 * SECOND_NS
TICK_S = 0.004
LOAD_AT_ONCE = 500

Perform = Callable[[], Awaitable[None]]


class Requests(Protocol):
    """What a request does at the backend."""

    async def prepare(self) -> None: ...

    async def perform(self) -> None: ...

    async def close(self) -> None: ...


class MemcachedRequests:
    """A YCSB workload at a memcached."""

    def __init__(self, plan: Plan, address: str, chance: random.Random) -> None:
        self._backend = MemcachedBackend(address)
        self._workload = Workload(plan.workload, chance, records=plan.records, record_bytes=plan.record_bytes)

    async def prepare(self) -> None:
        """Load the records."""
        await self._backend.open()
        keys = list(self._workload.keys())
        for start in range(0, len(keys), LOAD_AT_ONCE):
            sets = (
                self._backend.set(key, self._workload.value()) for key in keys[start : start + LOAD_AT_ONCE]
            )
            await asyncio.gather(*sets)

    async def perform(self) -> None:
        request = self._workload.draw()
        match request.operation:
            case "read":
                await self._backend.get(request.key)
            case "scan":
                await asyncio.gather(*map(self._backend.get, request.keys))
            case "modify":
                await self._backend.get(request.key)
                await self._backend.set(request.key, self._workload.value())
            case _:
                await self._backend.set(request.key, self._workload.value())

    async def close(self) -> None:
        await self._backend.close()


class FileRequests:
    """Random reads of 4 KB."""

    def __init__(self, path: str, chance: random.Random) -> None:
        self._path = path
        self._chance = chance
        self._backend: FileBackend | None = None

    async def prepare(self) -> None:
        self._backend = FileBackend(self._path, direct=True)

    async def perform(self) -> None:
        assert self._backend is not None, "prepared before"
        await self._backend.read(self._chance.randrange(self._backend.blocks))

    async def close(self) -> None:
        if self._backend is not None:
            self._backend.close()


class Load:
    """All tenants' requests to one server, from `began_at` on."""

    def __init__(self, world: World, plan: Plan, server: str, queues: Dispatcher, requests: Requests) -> None:
        self._world = world
        self._queues = queues
        self._requests = requests
        self._outstanding = plan.outstanding
        self._flows = plan.flows_to(server)
        self._began_at = 0
        self._sending = {tenant: asyncio.Event() for tenant in self._flows}
        self._unanswered = dict.fromkeys(self._flows, 0)
        self.done = 0
        self.dropped = 0

    def start(self, began_at: int) -> None:
        self._began_at = began_at
        paced = [flow for flows in self._flows.values() for flow in flows if flow.rate is not None]
        if paced:
            self._world.spawn(self._send_paced(paced), "load.paced")
        for tenant, flows in self._flows.items():
            backlogged = [flow for flow in flows if flow.rate is None]
            if backlogged:
                self._world.spawn(self._switch(tenant, backlogged), f"load.{tenant}")
                for _ in range(self._outstanding):
                    self._world.spawn(self._send_backlogged(tenant), f"load.{tenant}")

    async def _until(self, moment_s: float) -> None:
        await self._world.clock.sleep(self._began_at + int(moment_s * SECOND_NS) - self._world.clock.now())

    async def _switch(self, tenant: str, flows: list[Flow]) -> None:
        for flow in flows:
            await self._until(flow.begins_s)
            self._sending[tenant].set()
            await self._until(flow.ends_s)
            self._sending[tenant].clear()

    async def _send_backlogged(self, tenant: str) -> None:
        sending = self._sending[tenant]
        while True:
            await sending.wait()
            await self._send(tenant)

    async def _send_paced(self, flows: list[Flow]) -> None:
        due = [(flow.begins_s, number, flow) for number, flow in enumerate(flows)]
        heapq.heapify(due)
        while due:
            await asyncio.sleep(TICK_S)
            now_s = (self._world.clock.now() - self._began_at) / SECOND_NS
            while due and due[0][0] <= now_s:
                at_s, number, flow = due[0]
                assert flow.rate is not None, "paced"
                if at_s >= flow.ends_s:
                    heapq.heappop(due)
                    continue
                heapq.heapreplace(due, (at_s + 1.0 / flow.rate, number, flow))
                self._begin(flow.tenant)

    def _begin(self, tenant: str) -> None:
        if self._unanswered[tenant] >= self._outstanding:
            self.dropped += 1
        else:
            self._unanswered[tenant] += 1
            self._world.spawn(self._send_one(tenant), f"load.{tenant}")

    async def _send_one(self, tenant: str) -> None:
        try:
            await self._send(tenant)
        finally:
            self._unanswered[tenant] -= 1

    async def _send(self, tenant: str) -> None:
        ticket = Ticket(tenant, 1, wait_ns=WAIT_NS)
        choices.decide_among([self._queues], ticket)
        granted = await ticket.wait()
        if not isinstance(granted, Granted):
            return
        try:
            await self._requests.perform()
            self.done += 1
        finally:
            self._queues.finish(granted.data)
