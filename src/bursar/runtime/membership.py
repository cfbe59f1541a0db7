"""A node's part in its fleet: the store is the one it knows, the policy in force is the fleet's, and the
others know that it is up.

A node that was started from a file brings its policy along. Where the store has none, the file becomes
it; where the store's says the same, nothing happens. Where it says something else, whose word counts?
If the policy in the store came from this node's own file, and nobody else is up, the file was edited
between two starts, and counts. Otherwise it is the fleet's policy, and a file that differs is refused.
"""

from __future__ import annotations

import socket
import uuid
from collections.abc import Awaitable, Callable

import msgspec

from bursar import __version__
from bursar.errors import UsageError
from bursar.fleet import changes
from bursar.fleet.documents import SCHEMA, ConflictError, read_document, write_document
from bursar.fleet.following import FleetView, Follower
from bursar.fleet.identity import check_form, check_identity, identify
from bursar.fleet.layout import Identity, NodeRecord, Version, list_nodes, read
from bursar.fleet.tokens import check_join
from bursar.policy import Policy
from bursar.runtime import logs
from bursar.runtime.marks import Mark
from bursar.runtime.routes import Address
from bursar.runtime.token_files import read_token
from bursar.runtime.world import LiveWorld
from bursar.stores.addresses import hide_password
from bursar.world import StoreName

STORE_FILE = "store"
SHOWN_MAX = 5
MEMORY = "memory://"
EVERYWHERE = ("0.0.0.0", "::")

Apply = Callable[[Policy], Awaitable[None]]


class Membership:
    """Of one node. `given` is the policy that it was started with; without resources in it, the fleet's
    is all there is."""

    def __init__(self, world: LiveWorld, given: Policy, store: str, apply: Apply, http: str = "") -> None:
        assert isinstance(world.fleet, FleetView)
        self.view: FleetView = world.fleet
        self._world = world
        self._given = given
        self._store = hide_password(store)
        self._mark = Mark(world, self._store)
        self._by = f"node {world.name}"
        settings = given.daemon
        world.sockets.is_member = lambda name: name in settings.peers or self.view.is_member(name)
        address = settings.advertise or find_address(world.listening)
        record = NodeRecord(
            name=world.name,
            incarnation=world.incarnation,
            address=address,
            http=http,
            schema=SCHEMA,
            build=__version__,
        )
        self.follower = Follower(
            world,
            self.view,
            record,
            apply,
            world.sockets.add_route,
            namesake_ns=settings.session_timeout_ns * 3 // 2,
        )

    @property
    def by_hand(self) -> bool:
        """Whether the policy was built by hand, for this process alone."""
        return bool(self._given.resources) and not self._given.text

    async def open(self) -> Policy:
        """The policy to run. Raises UsageError, PolicyError."""
        await self._check_store()
        given = self._given
        if self.by_hand:
            return given
        while True:
            found = await self.follower.open()
            if not given.resources:
                return found or Policy(resources={}, source=f"the store {self._store}")
            if found is not None and await self._says_the_same():
                return found
            await self._bring_policy()

    async def _check_store(self) -> None:
        if self._store == MEMORY:
            return  # it begins anew with the process
        found = await identify(self._world.store, str(uuid.uuid4()))
        data = self._world.node.recall(STORE_FILE)
        known = None if data is None else read_known(data)
        check_form(found, self._store)
        check_identity(known, found, self._store, self._given.daemon.state)
        self.view.store = StoreName(found.uuid, found.epoch, found.since_ns)
        if known == found:
            await self._mark.check()
        else:
            self._mark.forget()
            self._world.node.keep(STORE_FILE, msgspec.json.encode(found))

    async def _says_the_same(self) -> bool:
        document = await read_document(self._world.store)
        assert document is not None, "there is a head"
        differences = list(changes.compare(document.policy, self._given, running=False))
        if not differences:
            return True
        up = [node.name for node in await list_nodes(self._world.store)]
        others = [name for name in up if name != self._world.name]
        version = document.version
        if others or version.origin != "file" or version.by != self._by:
            raise UsageError(self._refuse_file(version, differences, others))
        return False

    def _refuse_file(self, version: Version, differences: list[changes.Change], others: list[str]) -> str:
        shown = "".join(f"\n  {change}" for change in differences[:SHOWN_MAX])
        more = f"\n  and {len(differences) - SHOWN_MAX} more" if len(differences) > SHOWN_MAX else ""
        up = f", which {', '.join(others[:SHOWN_MAX])} runs" if others else ""
        return (
            f"{self._given.source} differs from the policy in the store {self._store}, version "
            f"{version.number} by {version.by}{up}:{shown}{more}\n"
            f"`bursar apply {self._given.source}` makes the file the policy; or start with "
            f"`bursar serve --store {self._store}`, which takes the one in the store"
        )

    async def _bring_policy(self) -> None:
        try:
            version = await write_document(
                self._world.store,
                self._given.text,
                by=self._by,
                at_ns=self._world.clock.wall(),
                origin="file",
                note=self._given.source,
                expected=self.follower.record.version,
            )
        except ConflictError:
            return  # another node brought its file first: see what that one says
        logs.info("policy.brought", version=version.number, source=self._given.source)

    async def change(self, policy: Policy) -> Version | None:
        """The node's file was read again: what it says counts for the fleet, if it can. None: it says
        what is in force."""
        proposal = await changes.propose(self._world.store, policy.text, policy.source)
        if not proposal.changes:
            return None
        version = await changes.apply(
            self._world.store,
            policy.text,
            by=self._by,
            at_ns=self._world.clock.wall(),
            origin="file",
            note=policy.source,
            expected=proposal.expected,
        )
        await self.follower.wait_for(version.number)
        return version

    async def enter(self) -> None:
        """Take the node's place: before its resources are opened, which another node of its name must not
        have open. Raises UsageError."""
        await self.follower.enter(await self._check_right())
        if self._store != MEMORY:
            await self._mark.renew()

    async def _check_right(self) -> str:
        """By whose right it joins. Raises DeniedError."""
        file = self._given.daemon.join_token_file
        token = read_token(file) if file is not None else None
        return await check_join(self._world.store, token, self._world.name, at_ns=self._world.clock.wall())

    def follow(self) -> None:
        """The resources are open: what changes from now on is for them."""
        self.follower.start()
        if self._store != MEMORY:
            self._world.spawn(self._mark.keep_renewing(), "fleet.mark")

    async def leave(self) -> None:
        await self.follower.leave()


def find_address(listening: Address | None) -> str:
    """Where others reach a node that listens there: one that listens everywhere is found by the name of its
    machine."""
    if listening is None:
        return ""
    if listening.host in EVERYWHERE:
        return str(Address(socket.gethostname(), listening.port))
    return str(listening)


def read_known(data: bytes) -> Identity:
    """Which store a state directory belongs to."""
    return read(data, Identity)
