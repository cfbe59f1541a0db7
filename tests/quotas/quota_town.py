"""Real nodes in this process: sockets, journals, an SQLite store."""

from __future__ import annotations

from pathlib import Path
from typing import Any

from bursar.policy.values import QuotaPolicy, QuotaTenant
from bursar.quotas.resource import QuotaResource
from bursar.runtime.world import LiveWorld, open_world

TENANTS = {
    "acme": QuotaTenant(limit=100),
    "acme/search": QuotaTenant(limit=60, parent="acme"),
    "beta": QuotaTenant(limit=1_000),
}


class Town:
    """Opens nodes by name, and again after they were closed or dropped."""

    def __init__(self, folder: Path) -> None:
        self.folder = folder
        self.worlds: dict[str, LiveWorld] = {}
        self.resources: dict[str, QuotaResource] = {}

    async def open(self, name: str, **settings: Any) -> QuotaResource:
        store = f"sqlite://{self.folder}/store.db"
        world = await open_world(name, state=self.folder / name, listen="127.0.0.1:0", store=store)
        for other in self.worlds.values():
            assert other.listening is not None and world.listening is not None
            world.sockets.add_route(other.name, other.listening)
            other.sockets.add_route(world.name, world.listening)
        self.worlds[name] = world
        policy = QuotaPolicy(name="llm", **{"tenants": TENANTS, **settings})
        resource = QuotaResource(world, "llm", policy)
        await resource.start()
        self.resources[name] = resource
        return resource

    async def close(self, name: str, *, cleanly: bool = True) -> None:
        resource, world = self.resources.pop(name), self.worlds.pop(name)
        if cleanly:
            await resource.stop()
        await world.close()
