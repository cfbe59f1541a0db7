"""A rate of a fleet: nodes join, leave and are killed, and operators change the policy, in any order.

Nodes know the policy and each other through the store alone, as daemons do. What is checked: nobody
passes the limit of the terms that a period was opened with; a period is opened with the terms that are in
force in the store at that moment; whoever leads has entered the fleet in this life, and so knows whom it
leads; and once all is quiet, every node serves.
"""

from __future__ import annotations

import contextvars
import random
import zlib
from collections.abc import Mapping
from dataclasses import replace
from typing import Any

import msgspec

from bursar.errors import NodeExistsError, NodeMissingError, SessionExpiredError, StoreError, UsageError
from bursar.fleet import changes, layout
from bursar.fleet.documents import SCHEMA
from bursar.fleet.following import FleetView, Follower
from bursar.fleet.layout import Head, NodeRecord
from bursar.fleet.retries import renew
from bursar.policy import Policy, parse
from bursar.policy.kinds import RATE
from bursar.policy.values import RatePolicy
from bursar.rates.messages import State
from bursar.rates.terms import PolicyTerms, Terms
from bursar.resource.door import Resource
from bursar.sim.drawing import draw_terms, write_resource
from bursar.sim.faults import Faults
from bursar.sim.scenario import Boot, require
from bursar.sim.scenarios.rate.policies import RANGES
from bursar.sim.scenarios.rate.world import MET, RateScenario
from bursar.world import MILLISECOND_NS, SECOND_NS, World

NODES = ("a", "b", "c")
OPERATOR = "op"
TENANTS = ("even", "ann", "bob", "cat", "dan")
CALLERS = 3
STAY_MAX_NS = 2 * SECOND_NS
STATE = "/rates/cache/state"
RESERVATION = 10

PERIOD_NS = 400 * MILLISECOND_NS
FIXED = {"period": "400ms", "drift_ppm": 10_000, "without_bursar": "refuse"}
FLEET_RANGES = {**RANGES, **dict.fromkeys(FIXED, ()), "max_tenants": (len(TENANTS), 50)}


class FleetRateScenario(RateScenario):
    """The truth: what was charged, by tenant and period, and the terms of each period."""

    duration_ns = 5 * SECOND_NS
    settle_ns = 7 * SECOND_NS
    drift_ppm = 10_000
    view: type[FleetView] = FleetView

    def __init__(self) -> None:
        super().__init__()
        self._terms: dict[int, Mapping[str, Terms]] = {}
        self._policies: dict[int, str] = {}
        self._state = State(0, "", 0, ())
        self._version = -1
        self._entered: set[tuple[str, int]] = set()
        self._calm = False
        self._changes = random.Random()
        self.joins = self.leaves = 0

    def nodes(self) -> Mapping[str, Boot]:
        self.policy = RatePolicy(name="cache", servers={}, period_ns=PERIOD_NS)
        self._changes = self.sim.chance.stream("changes")
        return {OPERATOR: self._operate, **dict.fromkeys(NODES, self._boot)}

    def faults(self) -> Faults:
        """A change of the policy takes many calls of the store: where each of them is lost now and then, no
        change gets through."""
        rare = {"store_lost": 0.004, "store_slow": 0.004, "crashes": 0.5}
        return replace(Faults.everything(), **rare)  # type: ignore[arg-type]

    # -- the nodes

    async def _boot(self, world: World) -> None:
        view = self.view()
        world = replace(world, fleet=view)
        record = NodeRecord(name=world.name, incarnation=world.incarnation, schema=SCHEMA)
        doors: list[Resource] = []

        async def take(policy: Policy) -> None:
            await doors[0].reconfigure(read_rate(policy))

        follower = Follower(world, view, record, take, lambda peer, address: None)
        while (policy := await follower.open()) is None:
            await world.clock.sleep(50 * MILLISECOND_NS)
        doors.append(await self._open(world, read_rate(policy)))
        await follower.enter()
        follower.start()
        self.joins += 1
        for tenant in TENANTS:
            for number in range(CALLERS):
                world.spawn(self._call(world, doors[0], tenant), f"{tenant}.{number}")
        await self._leave(world, doors[0], follower)

    async def _open(self, world: World, policy: RatePolicy) -> Resource:
        decider = self.decider(
            world,
            "cache",
            policy,
            server_book=self.server_book,
            controller_book=self.controller_book,
            dispatched=self._count,
        )
        door = Resource(world, decider, policy)
        await door.start()
        self.deciders[world.name] = decider
        return door

    async def _leave(self, world: World, door: Resource, follower: Follower) -> None:
        """As a daemon does at SIGTERM, after some time."""
        await world.clock.sleep(world.random.randrange(SECOND_NS // 5, STAY_MAX_NS))
        if self._calm or world.random.random() < 0.2:
            return
        try:
            if world.random.random() < 0.5:
                await follower.leave()
            await door.stop()
        except StoreError as error:
            world.trace("left.badly", why=str(error)[:80])
        await world.clock.sleep(world.random.randrange(0, 50) * MILLISECOND_NS)
        self.leaves += 1
        now, context = self.sim.now_ns, contextvars.Context()
        self.sim.loop.call_at_ns(now, self._take_down, world.name, world.incarnation, context=context)

    def _take_down(self, name: str, incarnation: int) -> None:
        node = self.sim.node(name)
        if node.up and node.incarnation == incarnation:
            self.sim.crash(name, self.sim.chance.stream("leaving").randrange(0, SECOND_NS))

    # -- the operator

    async def _operate(self, world: World) -> None:
        while True:
            session = world.store.session
            try:
                if not self._calm or await world.store.exists(layout.HEAD) is None:
                    await self._change(world)
            except SessionExpiredError:
                await renew(world, session)
            except (UsageError, NodeExistsError, NodeMissingError, StoreError):
                await world.clock.sleep(20 * MILLISECOND_NS)
                continue
            await world.clock.sleep(world.random.randrange(50, 900) * MILLISECOND_NS)

    async def _change(self, world: World) -> None:
        draw = world.random
        listed = {"a": draw.choice(("1k/s", "200/s"))}
        if draw.random() < 0.5:
            listed["b"] = "1k/s"
        if draw.random() < 0.8:
            listed["*"] = "500/s"
        terms = {**draw_terms(self._changes, RATE, FLEET_RANGES), **FIXED, "servers": listed}
        tenants = {
            "even": {"reservation": "25/s", "limit": f"{draw.choice((50, 80, 120))}/s"},
            "*": {"limit": f"{draw.choice((5, 25, 40))}/s"},
        }
        text = write_resource("cache", "rate", terms, tenants)
        await changes.apply(world.store, text, by=world.name, at_ns=world.clock.wall())

    # -- the truth

    def healed(self) -> None:
        self._calm = True

    def check(self) -> None:
        self._check_opening()
        for decider in self.deciders.values():
            book = decider.book
            name, life = decider.world.name, decider.world.incarnation
            if name in decider.world.fleet.nodes():
                self._entered.add((name, life))
            require(
                not book.leading or (name, life) in self._entered,
                f"{name} leads a fleet that it has not entered",
            )
            if book.leading and book.state.terms == book.digest:
                self._terms.setdefault(book.state.period, book.terms)
        super().check()

    def tenants(self) -> tuple[str, ...]:
        return TENANTS

    def limit(self, tenant: str, period: int) -> int | None:
        before = self._terms.get(period - 1, {}) if period in self.begun_alone else {}
        terms = self._terms.get(period, before).get(tenant)
        return 0 if terms is None else terms.limit

    def _check_opening(self) -> None:
        """The store's own word, read without the nodes' code."""
        tree = self.sim.tree
        if tree.exists(STATE) is None:
            return
        data, stat = tree.get(STATE)
        if stat.version == self._version:
            return
        before, self._state = self._state, msgspec.msgpack.decode(data, type=State)
        self._version = stat.version
        if self._state.period > before.period:
            # What somebody may have begun alone keeps its terms, and nobody begins the next one alone.
            fixed = before.terms if before.standing and not self._state.standing else None
            require(
                self._state.terms in (self._read_digest(), fixed),
                f"period {self._state.period} was opened with terms that are not in force",
            )

    def _read_digest(self) -> str:
        tree = self.sim.tree
        number = layout.read(tree.get(layout.HEAD)[0], Head).version
        if number not in self._policies:
            self._policies[number] = PolicyTerms(read_rate(read_policy(tree, number))).digest
        return self._policies[number]

    def audit(self) -> None:
        for tenant, period in sorted(self.charged):
            self._check_period(tenant, period)
        settled = range(self._disturbed_period + 4, self.opened)
        require(len(settled) >= 2, f"only {self.opened} periods, disturbed until {self._disturbed_period}")
        for period in settled:
            charged = self.charged.get(("even", period), 0)
            require(charged >= MET * RESERVATION, f"even was served {charged} in {period}")
        self._check_servers()

    def _check_servers(self) -> None:
        for name in NODES:
            decider = self.deciders[name]
            policy = decider.policy
            here = [name] if name in policy.servers or policy.any_server is not None else []
            require(list(decider.servers) == here, f"{name} runs {list(decider.servers)}, not {here}")
            for server in decider.servers.values():
                now = self.sim.node(name).clock.read()
                late = now - server.book.expires_at
                require(late < self.period_ns, f"{name} has had no tokens for {late} ns")


def read_rate(policy: Policy) -> RatePolicy:
    found = policy.resources["cache"]
    assert isinstance(found, RatePolicy)
    return found


def read_policy(tree: Any, number: int) -> Policy:
    version = layout.read(tree.get(layout.version_path(number))[0], layout.Version)
    pieces = [zlib.decompress(tree.get(f"{layout.CHUNKS}/{digest}")[0]) for digest in version.chunks]
    return parse(b"".join(pieces).decode(), "truth")
