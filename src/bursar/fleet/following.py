"""Keeps a node in step with its fleet: which terms are in force, and which nodes are up.

The node enters itself in the store, for as long as its session lasts, and says there which version it
runs. It follows the head: what changed is read, built into a policy, and handed to whoever runs the
resources. A policy that this build does not understand is left alone: the node keeps the one it has,
says so, and because its guards name the older head it opens no period and mints no unit until it can
follow again.
"""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable, Mapping, Sequence
from functools import partial
from typing import Any

from bursar.errors import (
    BursarError,
    NodeExistsError,
    NodeMissingError,
    StoreUnknownError,
    UsageError,
)
from bursar.fleet import layout, tenants
from bursar.fleet.documents import Document, read_document, read_head
from bursar.fleet.layout import HEAD, MEMBERS, NODES, Head, Member, NodeRecord
from bursar.fleet.retries import RETRY_NS, follow, persist
from bursar.policy import Policy, ResourcePolicy
from bursar.policy.values import Table
from bursar.world import SECOND_NS, Check, Store, StoreName, World

NAMESAKE_NS = 15 * SECOND_NS
"""How long a node waits for the record of a former life to go: longer than a session lasts."""

Apply = Callable[[Policy], Awaitable[None]]
"""Takes a policy that is in force from now on. What it raises is a problem that the node reports."""

Route = Callable[[str, str], None]
"""Learns where a node of this name listens."""


class FleetView:
    """Implements `bursar.world.Fleet`: what this node knows, kept up to date by its `Follower`."""

    def __init__(self, store: StoreName | None = None) -> None:
        self.store = store or StoreName()
        self.head = -1
        self.up: dict[str, NodeRecord] = {}
        self.members: frozenset[str] = frozenset()
        self._callbacks: list[Callable[[], None]] = []

    def store_name(self) -> StoreName:
        return self.store

    def guards(self) -> Sequence[Check]:
        return () if self.head < 0 else (Check(HEAD, self.head),)

    def nodes(self) -> Mapping[str, str]:
        return {name: record.address for name, record in self.up.items()}

    def follow(self, changed: Callable[[], None]) -> None:
        self._callbacks.append(changed)

    def is_member(self, name: str) -> bool:
        """Whether a node of this name may speak as a peer."""
        return name in self.members or name in self.up

    def see(self, up: dict[str, NodeRecord], members: frozenset[str]) -> None:
        self.members = members
        before, self.up = self.nodes(), up
        if self.nodes() != before:
            for callback in self._callbacks:
                callback()


class Terms:
    """The policy in force, put together from its text and the tenants that were set beside it. Reads
    only what changed since it was read last."""

    def __init__(self, store: Store) -> None:
        self._store = store
        self._document: Document | None = None
        self._tenants: dict[str, dict[int, dict[str, Any]]] = {}
        self._values: dict[str, dict[str, Any]] = {}
        self._changes: dict[str, tuple[int, ...]] = {}

    async def read(self, head: Head) -> Policy:
        """Raises PolicyError: this build does not understand it."""
        document = self._document
        if document is None or document.version.number != head.version:
            document = await read_document(self._store, head.version)
            assert document is not None, "the head names one"
            policy = document.policy
            self._changes, self._values, self._tenants = {}, {}, {}  # read anew beside the new text
            self._document = document
        policy = document.policy
        resources = {
            name: await self._add(document, name, found, head) for name, found in policy.resources.items()
        }
        return Policy(
            resources=Table(resources),
            alert=policy.alert,
            descriptors=policy.descriptors,
            source=document.source,
        )

    async def _add(self, document: Document, name: str, policy: ResourcePolicy, head: Head) -> ResourcePolicy:
        if not head.tenants.get(name):
            return policy
        index = await tenants.read_index(self._store, name)
        known = self._changes.get(name, tenants.NO_TENANTS.changes)
        changed = [shard for shard, count in enumerate(index.changes) if count != known[shard]]
        # Nothing is kept before all of it was read: a store that does not answer is asked for all again.
        read = {shard: await tenants.read_shard(self._store, name, shard) for shard in changed}
        before, shards = self._tenants.get(name, {}), {**self._tenants.get(name, {}), **read}
        written = {
            tenant: terms
            for shard, found in read.items()
            for tenant, terms in found.items()
            if before.get(shard, {}).get(tenant) != terms
        }
        others = {tenant: terms for shard in shards.values() for tenant, terms in shard.items()}
        made = tenants.read_terms(document.table, name, written, others)
        known_values = self._values.get(name, {})
        values = {tenant: made[tenant] if tenant in made else known_values[tenant] for tenant in others}
        self._tenants[name], self._values[name], self._changes[name] = shards, values, index.changes
        return tenants.add_tenants(policy, values)


class Follower:
    """One node's. `record` is what the node says of itself; `view` what it knows of the others."""

    def __init__(
        self,
        world: World,
        view: FleetView,
        record: NodeRecord,
        apply: Apply,
        route: Route,
        *,
        namesake_ns: int = NAMESAKE_NS,
    ) -> None:
        self.view = view
        self.record = record
        self._world = world
        self._apply = apply
        self._route = route
        self._terms = Terms(world.store)
        self.namesake_ns = namesake_ns
        self._entered_in = 0
        self._joined_by = ""
        self._stepped = asyncio.Event()

    async def open(self) -> Policy | None:
        """What is in force now, None for nothing; the node is not up yet. Raises PolicyError: this build
        does not understand it."""
        await self._persist(lambda: layout.prepare(self._world.store))
        found = await self._persist(self._read_head)
        if found is None:
            return None
        head, stat = found
        policy: Policy = await self._persist(lambda: self._terms.read(head))
        self._take(head.version, stat.version)
        return policy

    def _take(self, version: int, head: int) -> None:
        self.view.head = head
        self._say(version=version, head=head, problem="")

    def _say(self, **fields: Any) -> None:
        self.record = NodeRecord(
            **{**{name: getattr(self.record, name) for name in self.record.__struct_fields__}, **fields}
        )

    async def enter(self, by: str = "") -> None:
        """Say that the node is up, let in by whoever that is, and see who else is. Raises UsageError for a
        name that is taken."""
        self._joined_by = by
        await self._persist(lambda: layout.prepare(self._world.store))
        await self._persist(self._enter)
        await self._persist(self._join)
        await self._persist(self._look_around)

    def start(self) -> None:
        look_around = partial(self._persist, self._look_around)
        self._world.spawn(self._follow(NODES, look_around), "fleet.nodes")
        self._world.spawn(self._follow(HEAD, self._catch_up), "fleet.policy")

    async def wait_for(self, version: int) -> None:
        """Until the node runs that version, or has said why it does not. Raises UsageError."""
        while self.record.version < version:
            self._stepped.clear()
            await self._stepped.wait()
            if self.record.problem:
                raise UsageError(self.record.problem)

    async def catch_up(self) -> None:
        """Until the node has seen every change of terms that was made before."""
        found = await self._persist(self._read_head)
        while found is not None and self.view.head < found[1].version and not self.record.problem:
            self._stepped.clear()
            await self._stepped.wait()

    async def _join(self) -> None:
        member = Member(name=self._world.name, at_ns=self._world.clock.wall(), by=self._joined_by)
        try:
            await self._world.store.create(layout.member_path(self._world.name), layout.write(member))
        except NodeExistsError:
            return  # it was a member before, and went without a word

    async def leave(self) -> None:
        """Say that the node is going, for good."""
        if not self._entered_in:
            return
        for path in (layout.member_path(self._world.name), layout.node_path(self._world.name)):
            await layout.remove(self._world.store, path)

    # -- following

    async def _follow(self, path: str, look: Callable[[], Awaitable[None]]) -> None:
        await follow(self._world, path, look, self._enter_again)

    async def _enter_again(self, session: int) -> None:
        """The node's record went with the session before."""
        if self._entered_in != session:
            await self._persist(self._enter)

    async def _catch_up(self) -> None:
        found = await self._persist(self._read_head)
        if found is None or found[1].version == self.view.head:
            return
        head, stat = found
        try:
            policy = await self._persist(lambda: self._terms.read(head))
            await self._apply(policy)
        except BursarError as error:
            self._say(problem=f"version {head.version} is not taken: {error}")
            self._world.trace("fleet.not_taken", version=head.version, why=str(error)[:500])
        else:
            self._take(head.version, stat.version)
        await self._persist(self._enter)
        self._stepped.set()

    async def _read_head(self) -> Any:
        await self._world.store.sync()
        return await read_head(self._world.store)

    async def _look_around(self) -> None:
        up = {record.name: record for record in await layout.list_nodes(self._world.store)}
        for record in up.values():
            if record.name != self._world.name and record.address:
                self._route(record.name, record.address)
        members = await self._world.store.children(MEMBERS)
        self.view.see(up, frozenset(map(layout.unquote_name, members)))

    async def _enter(self) -> None:
        """Make or renew the node's record. Raises UsageError if another node of its name is up, and stays."""
        store, path = self._world.store, layout.node_path(self._world.name)
        data, session = layout.write(self.record), store.session
        try:
            if await self._is_entered(path, session):
                await store.set(path, data)
            else:
                await store.create(path, data, ephemeral=True)
            self._entered_in = session
        except (NodeExistsError, NodeMissingError):
            raise StoreUnknownError(f"{path} changes under our hands") from None

    async def _is_entered(self, path: str, session: int) -> bool:
        """Whether there is a record of this session. One of another session is that of a former life, and
        goes with it, or that of another node, and stays."""
        store, clock = self._world.store, self._world.clock
        until, told = clock.now() + self.namesake_ns, False
        await store.sync()
        while (stat := await store.exists(path)) is not None and stat.owner != session:
            if clock.now() >= until:
                raise UsageError(
                    f"another node named {self._world.name} is up on this store: stop it, or give this one "
                    "another name (--name, or name under [daemon])"
                )
            if not told:
                told = True
                self._world.trace("node.waits_for_namesake", at_most_s=self.namesake_ns // SECOND_NS)
            await clock.sleep(RETRY_NS)
        return stat is not None

    async def _persist(self, attempt: Callable[[], Awaitable[Any]]) -> Any:
        return await persist(self._world, attempt)
