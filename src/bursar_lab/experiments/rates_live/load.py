"""Tenants that send to servers: continuously backlogged, or at a pace of their own. Each request acquires
from the server's daemon and goes to the server's backend while it holds the grant."""

from __future__ import annotations

import asyncio
import heapq
import random
from collections.abc import Mapping
from typing import Protocol

from bursar.errors import Refused, Unknown
from bursar.integrations.file_backend import FileBackend
from bursar.integrations.memcached_backend import MemcachedBackend
from bursar.resource.door import Resource
from bursar.world import SECOND_NS
from bursar_lab.experiments.rates_live.plan import Flow, Plan
from bursar_lab.experiments.rates_live.tally import Tally, boot_ns
from bursar_lab.experiments.ycsb import Workload

WAIT_S = 5.0
TICK_S = 0.004
LOAD_AT_ONCE = 500


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
    """One client's requests to one server, from `began_at` on, until its tasks are cancelled."""

    def __init__(self, flows: Mapping[str, list[Flow]], plan: Plan, tally: Tally) -> None:
        self._outstanding = plan.outstanding
        self._flows = flows
        self._tally = tally
        self._began_at = 0
        self._sending = {tenant: asyncio.Event() for tenant in flows}
        self._unanswered = dict.fromkeys(flows, 0)
        self.tasks: set[asyncio.Task[None]] = set()

    def start(self, began_at: int, resource: Resource, requests: Requests) -> None:
        self._began_at, self._resource, self._requests = began_at, resource, requests
        paced = [flow for flows in self._flows.values() for flow in flows if flow.rate is not None]
        if paced:
            self._spawn(self._send_paced(paced))
        for tenant, flows in self._flows.items():
            backlogged = [flow for flow in flows if flow.rate is None]
            if backlogged:
                self._spawn(self._switch(tenant, backlogged))
                for _ in range(self._outstanding):
                    self._spawn(self._send_backlogged(tenant))

    def _spawn(self, work: object) -> None:
        task: asyncio.Task[None] = asyncio.ensure_future(work)  # type: ignore[call-overload]
        self.tasks.add(task)
        task.add_done_callback(self.tasks.discard)

    async def _until(self, moment_s: float) -> None:
        await asyncio.sleep(max(0.0, (self._began_at - boot_ns()) / SECOND_NS + moment_s))

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
            now_s = (boot_ns() - self._began_at) / SECOND_NS
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
            self._tally.fail("not sent")
        else:
            self._unanswered[tenant] += 1
            self._spawn(self._send_one(tenant))

    async def _send_one(self, tenant: str) -> None:
        try:
            await self._send(tenant)
        finally:
            self._unanswered[tenant] -= 1

    async def _send(self, tenant: str) -> None:
        try:
            async with self._resource.acquire(tenant, wait=WAIT_S) as grant:
                if grant.fallback is None:
                    self._tally.count(tenant, grant.period)
                else:
                    self._tally.fail(grant.fallback)
                await self._requests.perform()
        except Refused as refused:
            self._tally.fail("refused")
            await asyncio.sleep(refused.retry_after or TICK_S)
        except Unknown:
            self._tally.fail("unknown")
            await asyncio.sleep(TICK_S)
