"""Real nodes in this process: sockets, journals, an SQLite store."""

from __future__ import annotations

import asyncio
import time
from pathlib import Path
from typing import Any

from bursar.fleet.following import FleetView
from bursar.policy.values import QuotaPolicy, QuotaTenant
from bursar.quotas.balances import Hold
from bursar.quotas.courier import QuotaCourier
from bursar.quotas.resource import QuotaDecider
from bursar.quotas.settling import read_id
from bursar.resource.door import Resource
from bursar.resource.grants import Grant
from bursar.runtime.world import LiveWorld, open_world
from bursar.world import StoreName

TENANTS = {
    "acme": QuotaTenant(limit=100),
    "acme/search": QuotaTenant(limit=60, parent="acme"),
    "beta": QuotaTenant(limit=1_000),
}


class Quota(Resource):
    """The door, with the kind behind it in plain sight."""

    decider: QuotaDecider

    @property
    def courier(self) -> QuotaCourier:
        return self.decider.courier

    def hold_of(self, grant: Grant) -> Hold:
        """The hold behind a grant of this node's."""
        hold = self.courier.book.ledger.find_hold(read_id(grant.id)[1])
        assert hold is not None
        return hold


class Town:
    """Opens nodes by name, and again after they were closed or dropped."""

    def __init__(self, folder: Path) -> None:
        self.folder = folder
        self.store = StoreName()
        self.worlds: dict[str, LiveWorld] = {}
        self.resources: dict[str, Quota] = {}

    async def open(self, name: str, *, state: str = "", **settings: Any) -> Quota:
        store = f"sqlite://{self.folder}/store.db"
        folder = self.folder / (state or name)
        world = await open_world(name, state=folder, listen="127.0.0.1:0", store=store)
        assert isinstance(world.fleet, FleetView)
        world.fleet.store = self.store
        for other in self.worlds.values():
            assert other.listening is not None and world.listening is not None
            world.sockets.add_route(other.name, other.listening)
            other.sockets.add_route(world.name, world.listening)
        self.worlds[name] = world
        policy = QuotaPolicy(name="llm", **{"tenants": TENANTS, **settings})
        resource = Quota(world, QuotaDecider(world, "llm", policy), policy)
        try:
            await resource.start()
        except BaseException:
            await self.worlds.pop(name).close()
            raise
        self.resources[name] = resource
        return resource

    def rebuild_store(self) -> None:
        """It is lost, and another is adopted in its place."""
        for file in self.folder.glob("store.db*"):
            file.unlink()
        self.store = self.store._replace(epoch=self.store.epoch + 1, since_ns=time.time_ns())

    async def close(self, name: str, *, cleanly: bool = True) -> None:
        resource, world = self.resources.pop(name), self.worlds.pop(name)
        if cleanly:
            await resource.stop()
        await world.close()


async def left(resource: Quota, account: str = "acme") -> tuple[int, int, int]:
    """(unspent and in flight, held, spent) over all nodes; the audit must find nothing missing."""
    async with asyncio.timeout(10):
        while True:
            total = (await resource.decider.watch.take_survey()).get(account)
            ledger = resource.courier.book.ledger
            if total is not None and total.missing == 0 and ledger.durable == ledger.written:
                return total.unspent + total.in_flight, total.held, total.spent
            await asyncio.sleep(0.02)
