"""A rate whose tenants also ask for as much at once as they can ever get: under every fault, and then in
peace, in which nobody's reservation may suffer and no request may wait past the bound.

The bound is what `bursar.rates.scheduler` and `bursar.rates.fronts` say: the server's turns, and for a
tenant with a limit as many periods as there are servers at which it waits.
"""

from __future__ import annotations

import random
from collections.abc import Mapping
from typing import Any

from bursar.errors import Refused, Unknown
from bursar.policy.values import RatePolicy
from bursar.resource.door import Resource
from bursar.resource.grants import Grant
from bursar.sim.drawing import read_resource
from bursar.sim.scenario import require
from bursar.sim.scenarios.rate.policies import SERVERS, TOKENS, write_tenants
from bursar.sim.scenarios.rate.world import MET, RateScenario
from bursar.world import MILLISECOND_NS, SECOND_NS, World

PERIOD = "400ms"
PERIOD_NS = 400 * MILLISECOND_NS

LARGE = {"capped": 8, "free": 40}
"""By tenant: two of the capped one's do not fit into its limit of 12; and the other's takes the smallest
server for a whole period."""

CAN, RESERVED = 40, 12
"""What the smallest server does in a period, and the most of it that is reserved for a third of the tenants'
demand: what is left is for turns."""


def find_bound(cost: int) -> int:
    """By the rule of turns: beside two tenants that wait for a token and for a large request, another
    of which is still to be paid for. One period more than that, in which the controller learns of it and
    pauses between two periods are made up for."""
    tokens = cost * len(TOKENS) + max(LARGE.values()) + 3 + max(LARGE.values())
    return tokens * PERIOD_NS // (CAN - RESERVED) + PERIOD_NS


BOUNDS = {"capped": len(SERVERS) * find_bound(LARGE["capped"]), "free": find_bound(LARGE["free"])}
"""How long a large request waits at most, once all is quiet: one of the tenant with a limit waits for those
that were first at the other servers before it."""


class CostlyRateScenario(RateScenario):
    """The truth: since when each large request waits."""

    settle_ns = 10 * SECOND_NS
    fixed: Mapping[str, Any] = {"period": PERIOD}
    costs_max = (3,)
    """Of small requests, whose reservation is judged period by period: larger ones would not divide it."""

    def _draw_policy(self, draw: random.Random) -> RatePolicy:
        """The bound is counted from these figures."""
        terms = {"period": PERIOD, "servers": dict.fromkeys(SERVERS, "100/s")}
        policy: RatePolicy = read_resource("cache", "rate", terms, write_tenants(TOKENS, PERIOD))
        return policy

    def __init__(self) -> None:
        super().__init__()
        self._waits: dict[tuple[str, str], int] = {}
        self.served = dict.fromkeys(LARGE, 0)

    def _opened(self, world: World, door: Resource) -> None:
        for tenant in LARGE if world.name in SERVERS else ():
            world.spawn(self._call_large(world, door, tenant), f"{tenant}.large")

    async def _call(self, world: World, door: Resource, tenant: str) -> None:
        if tenant not in LARGE:
            await super()._call(world, door, tenant)

    async def _call_large(self, world: World, door: Resource, tenant: str) -> None:
        """One after the other, each until it goes."""
        key = (world.name, tenant)
        while True:
            self._waits.setdefault(key, self.sim.now_ns)
            try:
                grant = await door.acquire(tenant, LARGE[tenant], wait=60.0)
            except (Refused, Unknown):
                await world.clock.sleep(SECOND_NS // 100)
                continue
            self._waits.pop(key)
            self.served[tenant] += 1
            await self._keep(grant)

    async def _keep(self, grant: Grant) -> None:
        if grant.period:
            key = (grant.tenant, grant.period)
            self.told[key] = self.told.get(key, 0) + grant.amount
        await grant.release()

    def crashed(self, name: str) -> None:
        super().crashed(name)
        self._waits = {key: since for key, since in self._waits.items() if key[0] != name}

    def check(self) -> None:
        super().check()
        calm_at = self._disturbed_until_ns + 4 * PERIOD_NS
        for (server, tenant), since in self._waits.items():
            waited = self.sim.now_ns - max(since, calm_at)
            require(
                waited <= BOUNDS[tenant],
                f"a request of {tenant} for {LARGE[tenant]} tokens has waited for {waited} ns at {server}, "
                f"its bound is {BOUNDS[tenant]}",
            )

    def _check_reservation(self, tenant: str, reservation: int, settled: range) -> None:
        """Of one whose requests are larger than its reservation: over all periods together."""
        if tenant not in LARGE:
            super()._check_reservation(tenant, reservation, settled)
            return
        charged = sum(self.charged.get((tenant, period), 0) for period in settled)
        wanted = reservation * len(settled)
        require(charged >= MET * wanted, f"{tenant} was served {charged} of its reservations of {wanted}")

    def audit(self) -> None:
        super().audit()
        for tenant in LARGE:
            require(self.served[tenant] > 0, f"no large request of {tenant} ever went: {TOKENS[tenant]}")


SCENARIO = CostlyRateScenario
