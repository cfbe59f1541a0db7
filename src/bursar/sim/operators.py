"""What operators and scrapers do to any resource, at any moment: look at it, and take a node down."""

from __future__ import annotations

import random
from collections.abc import Sequence
from typing import TYPE_CHECKING

from bursar.errors import NetworkError, Refused, Unknown, UsageError
from bursar.resource.door import Resource
from bursar.sim.chance import draw_ns
from bursar.world import MILLISECOND_NS, World

if TYPE_CHECKING:
    from bursar.sim.simulation import Simulation

LOOK_NS = 400 * MILLISECOND_NS
OUTAGE_NS = 300 * MILLISECOND_NS


async def look_often(world: World, door: Resource, tenants: Sequence[str], draw: random.Random) -> None:
    """Explanations and statistics, again and again. What cannot be learnt now may be unknown, and a daemon
    out of reach; any other error is one of the run. `draw` is nobody else's, so that looking changes no
    other choice."""
    while True:
        await world.clock.sleep(draw_ns(draw, 0, LOOK_NS))
        tenant = tenants[int(draw.random() * len(tenants))]
        try:
            await door.statistics()
            if door.policy is not None:
                door.snapshot()
            explained = await door.explain(tenant)
        except (Unknown, NetworkError):
            continue
        except UsageError:
            if door.policy is None or door.policy.find(tenant) is None:
                continue  # nobody has heard of it, or not any more
            raise
        assert explained.sentences, "an explanation says something"


async def leave(sim: Simulation, world: World, door: Resource) -> None:
    """As at SIGTERM: the resource is stopped, then the node ends, and comes back after a while."""
    await door.stop()
    sim.spawn(_end(sim, world), f"end.{world.name}")


async def _end(sim: Simulation, world: World) -> None:
    node = sim.node(world.name)
    if node.up and node.incarnation == world.incarnation:
        sim.crash(world.name, OUTAGE_NS)


async def fetch_lot(door: Resource, tenant: str) -> None:
    """Have a lot for the next `try_acquire`, if there is one to have."""
    try:
        await door.fetch(tenant, 1)
    except (Refused, Unknown):
        return
