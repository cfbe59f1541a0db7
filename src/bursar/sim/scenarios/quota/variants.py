"""Quotas in other modes: blocks charged ahead, disks that are lost, windows that end."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import replace
from datetime import date
from functools import partial
from typing import Any

from bursar.errors import CrashedError, JournalError, SessionExpiredError, StoreError, UsageError
from bursar.fleet.following import FleetView
from bursar.quotas import operations
from bursar.quotas.layout import Layout
from bursar.quotas.resource import QuotaDecider
from bursar.quotas.windows import Kind, Window, is_over
from bursar.resource import Issue
from bursar.resource.door import Resource
from bursar.sim.clock import WALL_START_NS
from bursar.sim.loop import sleep_until
from bursar.sim.operators import fetch_lot
from bursar.sim.scenario import Boot, require
from bursar.sim.scenarios.quota.world import NODES, PAUSE_NS, QuotaScenario
from bursar.world import SECOND_NS, StoreName, World

SIPPING = ("c", "d")
LOSES = 0.3
"""How often a node that crashed has lost its disk (`LossyQuotaScenario`)."""

WINDOW_S = 3
WINDOW_NS = WINDOW_S * SECOND_NS
REBUILD_NS = SECOND_NS
WINDOWS_KEPT = 4
"""The present, the last, and two in which nobody asked for anything."""


class FastQuotaScenario(QuotaScenario):
    """The same with blocks charged ahead, and lots out of them. What a block has left is unspent where its
    node is up, so a refusal may come while another node is returning its own; but not while a lot is out."""

    fixed: Mapping[str, Any] = {"mode": "fast", "block": 40}
    large = 0.2

    async def _boot(self, world: World) -> None:
        await super()._boot(world)
        self._deciders[world.name].recall = partial(self._recall, world, self._resources[world.name])

    async def _live(self, world: World, resource: Resource, tenant: str) -> None:
        if tenant == "plain" and world.name in SIPPING:
            await self._sip(world, resource)
        else:
            await super()._live(world, resource, tenant)

    async def _sip(self, world: World, resource: Resource) -> None:
        """Little at a time, from lots that last long."""
        while not self._calm:
            await world.clock.sleep(world.random.randrange(0, 2 * PAUSE_NS))
            grant = resource.try_acquire("plain")
            if grant is not None:
                self.granted += 1
                self._tell(grant)
                await grant.release()
            elif world.random.random() < 0.2:
                await fetch_lot(resource, "plain")

    async def _recall(self, world: World, resource: Resource, issue: Issue) -> int | None:
        """Some holders do not answer."""
        if world.random.random() < 0.3:
            return None
        await world.clock.sleep(world.random.randrange(0, PAUSE_NS))
        return resource.hand.end(issue.tenant)

    def _unspent(self, account: str) -> int:
        out = sum(book.ledger.account(account).ahead for book in self._books().values())
        return super()._unspent(account) + out


class LossyQuotaScenario(QuotaScenario):
    """Nodes that lose their disk come back once they were fenced, with a new ledger. What the old one
    had is gone, and is handed out by nobody."""

    def __init__(self) -> None:
        super().__init__()
        self._ledgers: dict[str, set[str]] = {}

    async def _boot(self, world: World) -> None:
        if world.incarnation > 1 and not self._calm and world.random.random() < LOSES:
            await world.journal("quota/llm").rewrite([])
        try:
            await super()._boot(world)
        except JournalError as error:
            if "quota fence" not in str(error):
                raise
            self.lost.update(self._ledgers.get(world.name, ()))
            await self._fence(world)
            await super()._boot(world)
        identity = self._deciders[world.name].courier.book.identity
        known = self._ledgers.setdefault(world.name, set())
        self.lost |= known - {identity}  # a rebuilt store asks nobody to write the lost one off
        known.add(identity)

    async def _fence(self, world: World) -> None:
        """As an operator: until the store has it."""
        expired = False
        while True:
            try:
                if expired:
                    await world.store.renew()
                    expired = False
                others = [each for name, each in self._resources.items() if name != world.name]
                if others:  # as `bursar quota fence` at any of them
                    await others[0].verb("fence", node=world.name)
                else:
                    store, at_ns = world.store, world.clock.wall()
                    layout = Layout("llm", world.fleet.store_name().epoch)
                    await operations.fence(store, layout, world.name, by="operator", at_ns=at_ns)
                return
            except (StoreError, UsageError, CrashedError) as error:
                # Whoever was asked has just died, or this node's last life's session still counts as up.
                expired = expired or isinstance(error, SessionExpiredError)
                await world.clock.sleep(PAUSE_NS)

    def _unspent(self, account: str) -> int:
        """What is on its way may be on its way to a lost ledger."""
        return sum(book.ledger.account(account).unspent for book in self._books().values())

    def _audit_account(self, account: str) -> None:
        """A cut that a lost ledger had to take may not have been carried out."""
        known = sum(book.ledger.account(account).endowment for book in self._books().values())
        highest = self.highest[account]
        require(known <= highest, f"the audit finds {known} of {account}'s {highest} units")


class OwingQuotaScenario(QuotaScenario):
    """What is used beyond a grant is charged to what is left, and then to overdrafts; holds expire soon where
    nobody extends them."""

    fixed: Mapping[str, Any] = {"over": "overdraft", "hold_expiry": "3s"}
    briefly = 0.4


class RebuiltQuotaScenario(QuotaScenario):
    """The store is lost in the middle, and another adopted in its place: all nodes stop, and go on with what
    their ledgers have. Nothing that the lost store had minted is minted again."""

    def __init__(self) -> None:
        super().__init__()
        self.store = StoreName("store")

    def nodes(self) -> Mapping[str, Boot]:
        self.sim.spawn(self._rebuild(), "rebuild")
        return super().nodes()

    async def _rebuild(self) -> None:
        """The new epoch has folders of its own, which are empty: so is a store that was rebuilt."""
        await sleep_until(self.sim.loop, self.duration_ns // 2)
        self.store = StoreName("store", 2, WALL_START_NS + self.sim.now_ns)
        self._jobs.clear()  # whose the keys were is lost
        for name in NODES:
            if self.sim.node(name).up:
                self.sim.crash(name, REBUILD_NS)

    async def _boot(self, world: World) -> None:
        await super()._boot(replace(world, fleet=FleetView(self.store)))

    def _check_refusal(self, tenant: str, amount: int, before: int) -> None:
        """Nodes come back one after the other, and what is with those to come is not known of."""

    def _audit_account(self, account: str) -> None:
        known = sum(book.ledger.account(account).endowment for book in self._books().values())
        highest = self.highest[account]
        require(known <= highest, f"the audit finds {known} of {account}'s {highest} units")


class WorstQuotaScenario(RebuiltQuotaScenario, LossyQuotaScenario, OwingQuotaScenario):
    """All of it at once: disks are lost, and in the middle the store, while tenants run into debt."""

    fixed = OwingQuotaScenario.fixed

    def _operate(self, world: World, resource: Resource) -> None:
        super()._operate(world, resource)
        world.spawn(self._fence_lost(world), "fences")

    async def _fence_lost(self, world: World) -> None:
        """In a rebuilt store the others may enter a lost ledger after its node came back without it. (As the
        operator does, but that ledger alone: its node's other one may just be down.)"""
        store, layout = world.store, self._deciders[world.name].courier.layout
        while True:
            await world.clock.sleep(world.random.randrange(0, SECOND_NS))
            for ledger in sorted(self.lost):
                try:
                    if await store.exists(layout.ledger(ledger)) is not None:
                        await store.create(layout.fence(ledger))
                except StoreError:
                    continue  # it is fenced, or the store is away


def short_window_of(kind: Kind, wall_ns: int, zone: str = "UTC", anchor: date | None = None) -> Window | None:
    """Three seconds each."""
    begin_s = wall_ns // WINDOW_NS * WINDOW_S
    return Window(begin_s, begin_s + WINDOW_S)


class ShortWindows(QuotaDecider):
    window_of = staticmethod(short_window_of)

    async def start(self) -> None:
        self.watch.grace_ns = 0  # the windows here are over sooner than the next survey
        await super().start()


class WindowedQuotaScenario(QuotaScenario):
    """Windows of a few seconds: no account is overspent, and those that are long over are forgotten."""

    fixed: Mapping[str, Any] = {"window": "hour", "hold_expiry": "3s"}  # a window lasts while it is held of
    decider_class = ShortWindows
    job_ns = WINDOW_NS  # a key goes with its window
    long_s = 3  # and a window is kept as long as anything is held of it

    def _unspent(self, account: str) -> int:
        return 0  # which accounts there are depends on whose clock is asked

    def _audit_account(self, account: str) -> None:
        now_ns = WALL_START_NS + self.sim.now_ns
        present = short_window_of("hour", now_ns)
        oldest = (now_ns - WINDOWS_KEPT * WINDOW_NS) // SECOND_NS
        for name, decider in self._deciders.items():
            ledger, mints = decider.courier.book.ledger, decider.courier.mints
            over = [each for each in [*ledger.accounts, *mints] if is_over(each, oldest)]
            require(not over, f"{name} still has {', '.join(over)} in window {present}")
