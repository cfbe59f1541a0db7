"""A rate with zones under every fault: zones that are cut off, alone or from the store as well, their
leaders and the global one killed, servers restarted, and a network between zones that loses messages.

Opened from a policy through the front door, with the defaults or with terms that the seed draws.
"""

from __future__ import annotations

import asyncio
import random
from collections.abc import Coroutine, Mapping
from typing import Any

from bursar.policy.values import RatePolicy
from bursar.sim.loop import sleep_until
from bursar.sim.packets import Link
from bursar.sim.scenario import require
from bursar.sim.scenarios.rate.policies import draw_policy
from bursar.sim.scenarios.rate.world import RateScenario
from bursar.sim.store import STORE
from bursar.world import MILLISECOND_NS, SECOND_NS

ZONES = {"s1": "eu", "s2": "eu", "s3": "us", "s4": "us"}
"""Where each server is."""

TROUBLES = ("cut", "cut", "cut with store", "kill global", "kill zone", "kill server")
APART_NS = 900 * MILLISECOND_NS
OUTAGE_MAX_NS = 2500 * MILLISECOND_NS


class ZonesRateScenario(RateScenario):
    """The truth is what was served and told, by period, over all zones."""

    servers = tuple(ZONES)

    def __init__(self) -> None:
        super().__init__()
        self.zones_alone = 0
        """Periods that a zone began alone."""
        self.served_alone = 0
        """Tokens that went in such a period before any global leader knew of it."""
        self._seen_alone: set[tuple[str, int]] = set()
        self._calm = False

    def _draw_policy(self, draw: random.Random) -> RatePolicy:
        return draw_policy(draw, self.fixed, ZONES)

    def workloads(self) -> Mapping[str, Coroutine[Any, Any, None]]:
        return {"troubles": self._trouble()}

    async def _trouble(self) -> None:
        stream = self.sim.chance.stream("troubles")
        while not self._calm:
            await sleep_until(self.sim.loop, self.sim.now_ns + stream.randrange(0, 2 * APART_NS))
            self._strike(stream, stream.choice(TROUBLES), stream.randrange(0, OUTAGE_MAX_NS))
            await asyncio.sleep(0)

    def _strike(self, stream: random.Random, trouble: str, outage_ns: int) -> None:
        zone = stream.choice(sorted(set(ZONES.values())))
        match trouble:
            case "cut" | "cut with store":
                self._cut(zone, outage_ns, store=trouble != "cut")
            case "kill global":
                self._kill([name for name, decider in self.deciders.items() if decider.book.leading])
            case "kill zone":
                self._kill([name for name in ZONES if self._leads(name, zone)])
            case "kill server":
                self._kill([stream.choice(self.servers)])
        self.sim.history.add("nemesis", trouble, zone=zone, for_ns=outage_ns)

    def _leads(self, name: str, zone: str) -> bool:
        found = self.deciders[name].zones.get(zone) if name in self.deciders else None
        return found is not None and found.book.leading

    def _kill(self, names: list[str]) -> None:
        for name in names:
            if self.sim.node(name).up:
                self.sim.crash(name, self.sim.chance.stream("killed").randrange(0, SECOND_NS))

    def _cut(self, zone: str, outage_ns: int, *, store: bool) -> None:
        """From every other node, and perhaps from the store."""
        inside = [name for name, where in ZONES.items() if where == zone]
        others = [name for name in self.sim.names if name not in inside] + [STORE] * store
        links: list[Link] = [(a, b) for a in inside for b in others]
        mend = self.sim.fabric.cut(links + [(b, a) for a, b in links])
        self.sim.loop.call_at_ns(self.sim.now_ns + outage_ns, mend)

    def healed(self) -> None:
        self._calm = True

    def _count(self, tenant: str, period: int, tokens: int) -> None:
        super()._count(tenant, period, tokens)
        if period > self.opened:
            self.served_alone += tokens

    def _note_late(self, period: int, what: str) -> None:
        """Zones that go on alone count their periods by their own clocks: whether others are ahead of them
        is not for them to know."""
        if period not in self.begun_alone:
            super()._note_late(period, what)

    def check(self) -> None:
        for decider in self.deciders.values():
            for zone in decider.zones.values():
                if zone.above.look() and zone.above.grace.unheard:
                    self._note_alone(zone.name, zone.above.period)
        super().check()

    def _note_alone(self, zone: str, period: int) -> None:
        if (zone, period) not in self._seen_alone:
            self._seen_alone.add((zone, period))
            self.zones_alone += 1
            self.begun_alone.add(period)

    def audit(self) -> None:
        super().audit()
        now = self.sim.now_ns
        for name in ZONES:
            for server in self.deciders[name].servers.values():
                late = self.sim.node(name).clock.read() - server.book.expires_at
                require(late < self.period_ns, f"{name} has had no tokens for {late} ns at {now}")


SCENARIO = ZonesRateScenario
