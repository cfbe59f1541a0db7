"""Nodes that follow one policy while operators change it: nobody mints under terms that are over.

Two operators apply texts and set tenants, at the same time and with lost answers. Each node mints now
and then, in a transaction with its guards, and writes down under which terms. Whatever is lost, late
or crashed, what a mint says are the terms that stood in the store at that moment; and when all is
quiet, every node runs the newest and knows every other.
"""

from __future__ import annotations

import zlib
from collections.abc import Awaitable, Callable, Mapping
from dataclasses import replace
from typing import Any

import msgspec

from bursar.errors import (
    NodeExistsError,
    NodeMissingError,
    SessionExpiredError,
    StoreUnknownError,
    UsageError,
    VersionError,
)
from bursar.fleet import changes, layout, tenants
from bursar.fleet.documents import SCHEMA
from bursar.fleet.following import FleetView, Follower
from bursar.fleet.layout import Head, NodeRecord
from bursar.fleet.retries import renew
from bursar.policy import ClaimPolicy, Policy
from bursar.sim.scenario import Boot, Scenario, require
from bursar.world import MILLISECOND_NS, SECOND_NS, Create, World

NODES = ("a", "b", "c")
OPERATORS = ("ann", "bob")
NAMES = ("joe", "zoe", "max")
MINTS = "/mints"

TEXT = """
[resource.cache]
kind = "claim"
aging = "{aging}s"
[resource.cache.tenant]
acme = {{ weight = 1 }}
"""


class Mint(msgspec.Struct, frozen=True):
    """Under which terms it was made: the age of the head, the aging of the text, the tenants' weights."""

    head: int
    aging_s: int
    weights: dict[str, int]


class FleetScenario(Scenario):
    """The truth is the store's own tree."""

    duration_ns = 5 * SECOND_NS
    settle_ns = 6 * SECOND_NS
    session_timeout_ns = SECOND_NS
    follower: type[Follower] = Follower
    view: type[FleetView] = FleetView

    def __init__(self) -> None:
        self.followers: dict[str, Follower] = {}
        self.running: dict[str, Policy] = {}
        self.minted = 0
        self._seen: set[str] = set()
        self._calm = False

    def nodes(self) -> Mapping[str, Boot]:
        return {**dict.fromkeys(NODES, self._boot), **dict.fromkeys(OPERATORS, self._boot_operator)}

    # -- the nodes

    async def _boot(self, world: World) -> None:
        self.followers.pop(world.name, None)
        view = self.view()
        world = replace(world, fleet=view)
        record = NodeRecord(name=world.name, incarnation=world.incarnation, schema=SCHEMA)
        follower = self.follower(world, view, record, self._taker(world.name), lambda peer, address: None)
        policy = await follower.open()
        if policy is not None:
            self.running[world.name] = policy
        await follower.enter()
        follower.start()
        self.followers[world.name] = follower
        world.spawn(self._mint(world), "mint")

    def _taker(self, node: str) -> Callable[[Policy], Awaitable[None]]:
        async def take(policy: Policy) -> None:
            self.running[node] = policy

        return take

    async def _mint(self, world: World) -> None:
        while True:
            await world.clock.sleep(world.random.randrange(20, 120) * MILLISECOND_NS)
            guards = world.fleet.guards()
            head = self.followers[world.name].view.head
            if self._calm or head < 0:
                continue
            data = msgspec.json.encode(Mint(head, *read_terms(self.running[world.name])))
            session = world.store.session
            try:
                await world.store.transact([*guards, Create(f"{MINTS}/m", data, sequential=True)])
            except (VersionError, NodeMissingError, StoreUnknownError):
                continue
            except SessionExpiredError:
                await renew(world, session)

    # -- the operators

    async def _boot_operator(self, world: World) -> None:
        while True:
            await world.clock.sleep(world.random.randrange(5, 300) * MILLISECOND_NS)
            if self._calm:
                continue
            session = world.store.session
            try:
                await self._change(world)
            except (UsageError, StoreUnknownError, NodeExistsError, NodeMissingError):
                continue
            except SessionExpiredError:
                await renew(world, session)

    async def _change(self, world: World) -> None:
        store, at_ns = world.store, world.clock.wall()
        await store.ensure(MINTS)
        if world.random.random() < 0.4 or await store.exists(layout.HEAD) is None:
            text = TEXT.format(aging=world.random.randrange(1, 1000))
            await changes.apply(store, text, by=world.name, at_ns=at_ns)
            return
        if world.random.random() < 0.2:
            head = layout.read((await store.get(layout.HEAD))[0], Head)
            number = world.random.randrange(max(1, head.version - 2), head.version + 1)
            await changes.rollback(store, number, by=world.name, at_ns=at_ns)
            return
        name = world.random.choice(NAMES)
        known = await tenants.show_tenant(store, "cache", name)
        removed = known is not None and world.random.random() < 0.3
        terms = None if removed else {"weight": world.random.randrange(1, 1000)}
        await self.set_tenants(store, "cache", {name: terms}, by=world.name, at_ns=at_ns)

    async def set_tenants(self, *arguments: Any, **options: Any) -> None:
        await tenants.set_tenants(*arguments, **options)

    # -- the truth

    def healed(self) -> None:
        self._calm = True

    def check(self) -> None:
        tree = self.sim.tree
        if tree.exists(MINTS) is None:
            return
        for name in tree.children(MINTS):
            if name in self._seen:
                continue
            self._seen.add(name)
            self.minted += 1
            mint = msgspec.json.decode(tree.get(f"{MINTS}/{name}")[0], type=Mint)
            aging_s, weights = self._read_truth()
            require(mint.head == tree.get(layout.HEAD)[1].version, "minted by a node that was behind")
            require(
                (mint.aging_s, mint.weights) == (aging_s, weights),
                f"minted under {mint.aging_s, mint.weights}, in force was {aging_s, weights}",
            )

    def _read_truth(self) -> tuple[int, dict[str, int]]:
        """The terms that the store holds, read without any of the code that nodes read them with."""
        tree = self.sim.tree
        head = layout.read(tree.get(layout.HEAD)[0], Head)
        version = layout.read(tree.get(layout.version_path(head.version))[0], layout.Version)

        text = zlib.decompress(tree.get(f"{layout.CHUNKS}/{version.chunks[0]}")[0]).decode()
        aging_s = int(text.partition('aging = "')[2].partition("s")[0])
        weights = {"acme": 1}
        path = tenants.index_path("cache")
        if tree.exists(path) is not None:
            for shard in tree.children(path):
                found = msgspec.msgpack.decode(tree.get(f"{path}/{shard}")[0])
                weights |= {name: terms["weight"] for name, terms in found.items()}
        return aging_s, dict(sorted(weights.items()))

    def audit(self) -> None:
        tree = self.sim.tree
        if tree.exists(layout.HEAD) is None:
            return  # no operator ever got through
        head = tree.get(layout.HEAD)[1].version
        for name in NODES:
            follower = self.followers.get(name)
            require(follower is not None, f"{name} never came up")
            assert follower is not None
            require(follower.view.head == head, f"{name} is at {follower.view.head}, the head at {head}")
            require(read_terms(self.running[name]) == self._read_truth(), f"{name} runs other terms")
            require(set(follower.view.up) == set(NODES), f"{name} knows of {sorted(follower.view.up)}")


def read_terms(policy: Policy) -> tuple[int, dict[str, int]]:
    claim = policy.resources["cache"]
    assert isinstance(claim, ClaimPolicy)
    weights = {name: tenant.weight for name, tenant in sorted(claim.tenants.items())}
    return claim.aging_ns // SECOND_NS, weights


SCENARIO = FleetScenario
