"""A quota in a fleet: the policy stands in the store, changes while it runs, and nodes follow it late."""

from __future__ import annotations

import hashlib
from collections.abc import Awaitable, Callable
from dataclasses import replace
from typing import Any

from bursar.errors import BursarError, SessionExpiredError, StoreError, StoreUnknownError
from bursar.fleet import layout as places
from bursar.fleet.documents import write_document
from bursar.fleet.following import FleetView, Follower
from bursar.fleet.layout import HEAD, Head, NodeRecord, Version
from bursar.policy import Policy, ResourcePolicy
from bursar.quotas.layout import Layout, read_name, read_tenant
from bursar.quotas.resource import QuotaDecider
from bursar.resource.door import Resource
from bursar.sim.drawing import write_resource
from bursar.sim.faults import Faults
from bursar.sim.operators import look_often
from bursar.sim.scenario import require
from bursar.sim.scenarios.quota.policies import LIMITS
from bursar.sim.scenarios.quota.variants import WindowedQuotaScenario
from bursar.sim.scenarios.quota.world import PAUSE_NS, RULES, QuotaScenario
from bursar.world import MILLISECOND_NS, SECOND_NS, World

APPLY_NS = 2 * SECOND_NS
"""Each node applies another policy about twice in so long."""

LEAVE_NS = 8 * SECOND_NS
OUTAGE_NS = 500 * MILLISECOND_NS
SLOW_NS = 300 * MILLISECOND_NS
"""A node takes up to so long to carry out a policy that it has read."""


class FleetQuotaScenario(WindowedQuotaScenario):
    """Whoever opens an account, or changes one, does so by the terms that the store holds at that moment;
    nodes that have not followed yet mint nothing."""

    def __init__(self) -> None:
        super().__init__()
        self.applied = 0
        self.opened = 0
        self.changed = 0
        self._texts: dict[str, dict[str, int]] = {}
        self._limits: dict[str, int] = {}
        self._revision = 0

    def faults(self) -> Faults:
        """A node reads and writes much before it is up: if each call took seconds, none would be."""
        return replace(Faults.everything(), slow_ns=SLOW_NS, store_lost=0.01)

    async def _boot(self, world: World) -> None:
        view = FleetView()
        world = replace(world, fleet=view)
        resources: list[Resource] = []

        async def apply(policy: Policy) -> None:
            await world.clock.sleep(world.random.randrange(0, SLOW_NS))
            await resources[0].reconfigure(_shorten(policy))

        record = NodeRecord(name=world.name, incarnation=world.incarnation)
        follower = Follower(world, view, record, apply, lambda name, address: None)
        while (policy := await _insist(world, follower.open)) is None:
            await self._apply(world, dict(LIMITS))
        terms = _shorten(policy)
        decider = self.decider_class(world, "llm", terms, RULES)  # type: ignore[arg-type]
        resources.append(Resource(world, decider, terms))
        await resources[0].start()
        self._resources[world.name], self._deciders[world.name] = resources[0], decider
        await follower.enter()
        follower.start()
        for tenant in LIMITS:
            world.spawn(self._live(world, resources[0], tenant), f"tenant.{tenant}")
        world.spawn(self._change_policy(world), "operator")
        looks = self.sim.chance.stream(f"looks/{world.name}")
        world.spawn(look_often(world, resources[0], tuple(LIMITS), looks), "looks")

    async def _change_policy(self, world: World) -> None:
        while not self._calm:
            await world.clock.sleep(world.random.randrange(0, APPLY_NS))
            await self._apply(world, self._choose_limits(world))

    def _choose_limits(self, world: World) -> dict[str, int]:
        """One of the two is another, and who is below has no more than who is above."""
        tenant = world.random.choice(("acme", "acme/search"))
        limits = {**LIMITS, tenant: LIMITS[tenant] * world.random.randrange(1, 16) // 10}
        return {**limits, "acme/search": min(limits["acme"], limits["acme/search"])}

    async def _apply(self, world: World, limits: dict[str, int]) -> None:
        terms = {**self.policies.draw(), **self.fixed, "shadow": self.policies.shadow}
        tenants = {tenant: {"limit": limit} for tenant, limit in limits.items()}
        text = write_resource("llm", "quota", terms, tenants)
        self.highest = {tenant: max(limit, self.highest[tenant]) for tenant, limit in limits.items()}
        self._texts[hashlib.sha256(text.encode()).hexdigest()] = limits
        try:
            await write_document(world.store, text, by="operator", at_ns=0)
        except BursarError as error:  # done or not: the store knows
            if isinstance(error, SessionExpiredError):
                await _insist(world, world.store.renew)

    # -- what must hold

    def check(self) -> None:
        super().check()
        tree = self.sim.tree
        if tree.revision == self._revision:
            return
        self._revision = tree.revision
        limits = self._read_limits()
        layout = Layout("llm")
        if tree.exists(layout.accounts) is None:
            return
        for shard in tree.children(layout.accounts):
            for node in tree.children(f"{layout.accounts}/{shard}"):
                data, _ = tree.get(f"{layout.accounts}/{shard}/{node}")
                for window, record in read_tenant(data).windows.items():
                    self._check_account(f"{read_name(node)}@{window}", record.limit, limits)

    def _read_limits(self) -> dict[str, int]:
        """Those of the terms in force."""
        if self.sim.tree.exists(HEAD) is None:
            return {}
        head = places.read(self.sim.tree.get(HEAD)[0], Head)
        version = places.read(self.sim.tree.get(places.version_path(head.version))[0], Version)
        self.applied = head.version
        return self._texts[version.digest]

    def _check_account(self, account: str, limit: int, limits: dict[str, int]) -> None:
        known = self._limits.get(account)
        if known == limit:
            return
        self.opened += known is None
        self.changed += known is not None
        self._limits[account] = limit
        right = limits[account.partition("@")[0]]
        require(limit == right, f"{account} was minted {limit}, and the terms in force say {right}")


class LeavingQuotaScenario(QuotaScenario):
    """Nodes that are stopped, in the middle of everything, hand over what they have, and come back."""

    def __init__(self) -> None:
        super().__init__()
        self.left = 0
        self.handed_over = 0

    async def _boot(self, world: World) -> None:
        await super()._boot(world)
        world.spawn(self._leave(world), "leaving")

    async def _leave(self, world: World) -> None:
        await world.clock.sleep(world.random.randrange(0, LEAVE_NS))
        if self._calm:
            return
        resource, decider = self._resources[world.name], self._deciders[world.name]
        before = _count_units(decider)
        await resource.stop()
        self.left += 1
        self.handed_over += before - _count_units(decider)
        self.sim.spawn(self._end(world.name), f"end.{world.name}")

    async def _end(self, name: str) -> None:
        self.sim.crash(name, OUTAGE_NS)


def _count_units(decider: QuotaDecider) -> int:
    return sum(account.unspent for account in decider.courier.book.ledger.accounts.values())


def _shorten(policy: Policy) -> ResourcePolicy:
    return policy.resource("llm")


async def _insist(world: World, attempt: Callable[[], Awaitable[Any]]) -> Any:
    """As a node that starts: until the store has answered."""
    while True:
        try:
            return await attempt()
        except SessionExpiredError:
            await _insist(world, world.store.renew)
        except (StoreUnknownError, StoreError):
            await world.clock.sleep(PAUSE_NS)
