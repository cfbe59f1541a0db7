"""Claims and tasks that ask for more while they run, beside counted names, under every fault.

Whoever asks waits for longer than the run takes. So two that waited for each other would never be over, and
the audit would find them; who is told to give way lets go at once.
"""

from __future__ import annotations

import random

from bursar.claims.fences import StaleFence
from bursar.claims.resource import ClaimDecider
from bursar.claims.tracker import Dispatch
from bursar.errors import Refused, Unknown, UsageError
from bursar.policy.values import ClaimPolicy, Table
from bursar.resource.grants import Grant
from bursar.sim.scenario import Boot
from bursar.sim.scenarios.claim.asking import AskingClaims
from bursar.sim.scenarios.claim.policies import ClaimPolicies
from bursar.sim.scenarios.claim.tries import Tries
from bursar.sim.scenarios.claim.world import WORK_MAX_NS, ClaimScenario
from bursar.world import SECOND_NS, World

ASKS = 0.6
"""How many of those that hold something ask for more."""

SPLITS = 0.3
"""How many tasks have a part of theirs done by another one."""

WAIT_S = 300.0


class MorePolicies(ClaimPolicies):
    """Half of the runs have a counted name."""

    def __init__(self, draw: random.Random) -> None:
        self._counted = Table({"gpu": 3} if draw.random() < 0.5 else {})
        super().__init__(draw)

    def _read(self) -> ClaimPolicy:
        policy = super()._read()
        return ClaimPolicy(
            name=policy.name,
            dead_holder=policy.dead_holder,
            aging_ns=2 * SECOND_NS,
            attempts=policy.attempts,
            paths=policy.paths,
            counted=self._counted,
        )


class MoreClaimScenario(ClaimScenario):
    """What must hold is what holds for all claims: no conflicting owners, whatever was asked for when; every
    task is over in the end, and nothing is left."""

    settle_ns = 45 * SECOND_NS
    """Tasks are tried up to four times, with pauses of seven seconds, and each try may ask for more."""

    def __init__(self) -> None:
        super().__init__()
        self.asked = self.given = self.gave_way = self.parts = 0

    def nodes(self) -> dict[str, Boot]:
        found = dict(super().nodes())
        self.policies = MorePolicies(self.sim.chance.stream("more"))
        self.tries = Tries(self.policies.first.attempts, self.duration_ns)
        return found

    def _choose_more(self, world: World) -> list[str]:
        """Some names, and now and then a unit."""
        wanted = [str(need) for need in self._choose(world)[-2:]]
        return [
            *wanted,
            *(f"{name}:1" for name in self.policies.first.counted if world.random.random() < 0.3),
        ]

    async def _use(self, world: World, grant: Grant) -> None:
        if world.random.random() >= ASKS or self.sim.now_ns >= self.duration_ns:
            return
        self.asked += 1
        try:
            await grant.more(*self._choose_more(world), wait=WAIT_S)
        except UsageError:
            return  # what it shares, it cannot have for itself
        except (Refused, Unknown) as error:
            self.gave_way += "began earlier" in str(error)
            raise
        self.given += 1
        await self._write_all(world, grant.id, dict(grant.fence))

    async def _do_more(self, world: World, dispatch: Dispatch) -> None:
        """As a task."""
        if world.random.random() < SPLITS:
            await self._split(world, dispatch)
            return
        if world.random.random() >= ASKS or self.sim.now_ns >= self.duration_ns:
            return
        decider = self.resources[world.name].decider
        assert isinstance(decider, ClaimDecider)
        self.asked += 1
        wait_ns = int(WAIT_S * SECOND_NS)
        try:
            fences = await decider.instance.more(
                dispatch.id, dispatch.attempt, self._choose_more(world), wait_ns
            )
        except UsageError:
            return
        except (Refused, Unknown) as error:
            self.gave_way += "began earlier" in str(error)
            return
        self.given += 1
        await self._write_all(world, dispatch.id, fences)

    async def _split(self, world: World, dispatch: Dispatch) -> None:
        """A part of it is done as a task of its own, and waited for."""
        task = self._read_record(dispatch.id)
        if task is None or task.parent or task.attempt != dispatch.attempt or not task.needs:
            return
        decider = self.resources[world.name].decider
        assert isinstance(decider, ClaimDecider)
        names = [f"{name}:{mode}" for name, mode in task.needs[-2:]]
        key = f"{dispatch.id}-{dispatch.attempt}"
        try:
            part = await self.resources[world.name].verb(
                "submit", tenant=world.name, names=names, key=key, parent=task.id
            )
            self.submitted[part] = None
            self.parts += 1
            fences = await decider.instance.wait_for_subtasks(task.id, dispatch.attempt, [part])
        except (Refused, Unknown):
            return
        await self._write_all(world, task.id, fences)

    async def _do_part(self, world: World, dispatch: Dispatch) -> None:
        for _ in range(3):
            await world.clock.sleep(world.random.randrange(0, WORK_MAX_NS))
            for name, fence in dispatch.fences.items():
                try:
                    self.guards[name].check(name, fence)
                except StaleFence:
                    self.refused_writes += 1
                    return

    async def _write_all(self, world: World, id: str, fences: dict[str, int]) -> None:
        task = self._read_record(id)
        if task is not None and {name for name, _ in task.needs} == set(fences):
            await self._write(world, id, task.requirements, fences)


SCENARIO = MoreClaimScenario
SMALL_WORLD = AskingClaims
