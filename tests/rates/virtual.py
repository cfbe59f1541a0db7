"""Rates in virtual time: a node, or a few, without faults, and callers of its front door."""

from __future__ import annotations

import asyncio
from bisect import bisect_left
from collections import Counter
from collections.abc import Awaitable, Callable, Mapping
from typing import Any

from bursar.errors import Refused
from bursar.policy import RatePolicy, parse
from bursar.rates.resource import RateDecider, open_resource
from bursar.resource.door import Resource
from bursar.sim.faults import Faults
from bursar.sim.scenario import Boot, Scenario
from bursar.sim.simulation import Simulation
from bursar.world import SECOND_NS, World

Body = Callable[[World], Awaitable[None]]


class Bodies(Scenario):
    """Runs a coroutine on each of some nodes, until all have ended."""

    settle_ns = 0

    def __init__(self, bodies: Mapping[str, Body], seconds: int) -> None:
        self.duration_ns = seconds * SECOND_NS
        self.ended: list[str] = []
        self._bodies = bodies

    def nodes(self) -> Mapping[str, Boot]:
        return dict.fromkeys(self._bodies, self._boot)

    async def _boot(self, world: World) -> None:
        await self._bodies[world.name](world)
        self.ended.append(world.name)


def run(body: Body, *others: str, seconds: int = 10, faults: Faults | None = None) -> None:
    """`body` on node "n", and on the others; fails if it does, or takes longer in virtual time."""
    scenario = Bodies(dict.fromkeys(("n", *others), body), seconds)
    Simulation("virtual", scenario, 1, keep=10, faults=faults or Faults()).run()
    assert len(scenario.ended) == 1 + len(others), "it did not end in time"


def read(text: str) -> RatePolicy:
    policy = parse(text).resource("api")
    assert isinstance(policy, RatePolicy)
    return policy


async def open_rate(world: World, text: str) -> tuple[Resource, RateDecider]:
    """As `bursar.connect` does it, ready to decide."""
    door = open_resource(world, "api", read(text))
    decider: Any = door.decider
    await door.start()
    while not door.decider.is_ready():
        await world.clock.sleep(SECOND_NS // 1000)
    return door, decider


class Callers:
    """Callers that always want more, and what they were told."""

    def __init__(self, world: World, door: Resource, tenant: str, wait: float = 5.0) -> None:
        self.periods: Counter[int] = Counter()
        self.times: list[int] = []
        self.world, self.door, self.tenant, self.wait = world, door, tenant, wait

    def start(self, count: int, amount: int = 1) -> None:
        for _ in range(count):
            self.world.spawn(self._call(amount), "caller")

    async def _call(self, amount: int) -> None:
        while True:
            try:
                async with self.door.acquire(self.tenant, amount, wait=self.wait) as grant:
                    self.periods[grant.period] += grant.amount
                    self.times += [self.world.clock.now()] * grant.amount
            except Refused as refused:
                await self.world.clock.sleep(max(1, int((refused.retry_after or 0.001) * SECOND_NS)))
            await asyncio.sleep(0)

    def full_periods(self) -> list[int]:
        """What went in each period, but for the first and the last."""
        return [self.periods[period] for period in range(min(self.periods) + 1, max(self.periods))]

    def busiest(self, window_ns: int) -> int:
        return max(bisect_left(self.times, at + window_ns) - k for k, at in enumerate(self.times))
