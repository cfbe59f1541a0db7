"""All that befalls workers at once: besides the faults of the claims' own scenario, tasks whose result is
too large, that kill their process, or that block for three session timeouts, and a store that is away for
long, with sessions that outlast it or do not."""

from __future__ import annotations

from collections import Counter
from collections.abc import Coroutine, Mapping
from typing import Any

from bursar.claims.model import RESULT_MAX_BYTES, decode_task
from bursar.claims.tracker import Dispatch
from bursar.sim.loop import sleep_until
from bursar.sim.scenario import require
from bursar.sim.scenarios.claim.policies import INSTANCES
from bursar.sim.scenarios.claim.world import OUTAGE_NS, ClaimScenario
from bursar.sim.store import STORE
from bursar.world import SECOND_NS, World

FATES = ("ends", "ends", "ends", "ends", "grows", "dies", "blocks")
AWAY_MIN_NS, AWAY_MAX_NS = 2 * SECOND_NS, 8 * SECOND_NS
BLOCKED_TIMEOUTS = 3


class StormClaimScenario(ClaimScenario):
    """What must hold is what holds there: every task has one end, nothing is left, no guarded write
    conflicts with another."""

    duration_ns = 14 * SECOND_NS

    def __init__(self) -> None:
        super().__init__()
        self.befell: Counter[str] = Counter()
        self._fates: dict[str, str] = {}

    def workloads(self) -> Mapping[str, Coroutine[Any, Any, None]]:
        return {**super().workloads(), "outage": self._be_away()}

    async def _be_away(self) -> None:
        draw = self.sim.chance.stream("outage")
        await sleep_until(self.sim.loop, draw.randrange(0, self.duration_ns // 2))
        away_ns = draw.randrange(AWAY_MIN_NS, AWAY_MAX_NS)
        if draw.random() < 0.5:  # the servers are away, and with them the clock of every session
            for session in self.tree.sessions.values():
                session.expires_ns += away_ns
        links = [link for name in INSTANCES for link in ((name, STORE), (STORE, name))]
        heal = self.sim.fabric.cut(links)
        self.befell["away"] += 1
        try:
            await sleep_until(self.sim.loop, self.sim.now_ns + away_ns)
        finally:
            heal()

    async def _work(self, world: World, dispatch: Dispatch) -> bytes:
        done = await super()._work(world, dispatch)
        fate = self._fates.get(dispatch.id)
        if fate is None:
            fate = self._fates[dispatch.id] = self.sim.chance.stream("fates").choice(FATES)
        if fate == "grows":
            done = bytes(RESULT_MAX_BYTES + 1)
            self.tries.fail(dispatch)
        elif self.sim.now_ns >= self.duration_ns:
            return done  # all is well from here on
        elif fate == "dies":
            self.sim.spawn(self._kill(world.name, world.incarnation), f"kill.{world.name}")
            await world.clock.sleep(SECOND_NS)
        elif fate == "blocks":
            until_ns = self.sim.now_ns + BLOCKED_TIMEOUTS * self.session_timeout_ns
            self.sim.node(world.name).life.pause(until_ns)
            await world.clock.sleep(1)
        self.befell[fate] += 1
        return done

    async def _kill(self, name: str, incarnation: int) -> None:
        node = self.sim.node(name)
        if node.up and node.incarnation == incarnation:
            self.befell["dies"] += 1
            self.sim.crash(name, OUTAGE_NS)

    def audit(self) -> None:
        super().audit()
        for id, fate in self._fates.items():
            node = self.tree.read(self._layout.released(id))
            if fate == "grows" and node is not None:
                outcome = decode_task(id, node.data).outcome
                require(outcome != "ok", f"the result of {id} was too large, and it is ok")


SCENARIO = StormClaimScenario
