"""The tree of a quota's nodes: who is there, who is whose parent. (Section III-A assumes one.)

A node that comes up enters `live` with a number; a node's parent is always one with a lower number,
so there are no circles, and the lowest number is the root. Each node has FANOUT slots; a child
takes one by creating it, so two children never share it. Among the seniors with a free slot the
child takes the nearest, by measured round trips. When a parent goes (its entry in `live` is
ephemeral) its children take other slots, and requests go on meanwhile: a node without a parent
grants from what it has.

Nothing here is needed for safety: the ledger keeps units whatever the tree looks like, and a
refusal names the ledgers that were heard, against the store's list of all that are not fenced.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from typing import NamedTuple

from bursar.errors import (
    NetworkError,
    NodeExistsError,
    NodeMissingError,
    SessionExpiredError,
    StoreUnknownError,
)
from bursar.quotas.layout import Layout, read_live, read_name, write_live
from bursar.quotas.requests import node_of
from bursar.world import MILLISECOND_NS, Message, Store, Watch, World

FANOUT = 5
CANDIDATES_MAX = 8
"""Seniors whose distance a node measures before it chooses."""

PING_NS = 300 * MILLISECOND_NS
RETRY_NS = 50 * MILLISECOND_NS
ORPHAN_NS = 200 * MILLISECOND_NS


class Ping(Message, frozen=True):
    """How far are you?"""


class Pong(Message, frozen=True):
    pass


class Place(NamedTuple):
    """Where a node is in the tree, and which ledgers there are at all."""

    parent: str | None
    children: tuple[str, ...]
    members: frozenset[str]
    fenced: frozenset[str]


class Tree:
    """Keeps one node in the tree. `changed` is told of every other place."""

    def __init__(
        self,
        world: World,
        layout: Layout,
        ledger: str,
        changed: Callable[[Place], None],
    ) -> None:
        self._world = world
        self._layout = layout
        self._ledger = ledger
        self._changed = changed
        self._topic = f"{layout.root}/ping"
        self._session = 0
        self._seniority = 0
        self._slot: str | None = None
        self._parent: str | None = None
        self._told: Place | None = None
        self._left = False
        self.up: list[str] = []
        """The ledgers whose nodes were up when it was last looked, the most senior first."""

    async def leave(self) -> None:
        """Out of the tree, so that nobody sends anything here any more: children look for another
        parent."""
        self._left = True
        store, session = self._world.store, self._world.store.session
        for node in await store.children(self._layout.live):
            if read_live(node)[1] == self._ledger:
                await _delete_own(store, f"{self._layout.live}/{node}", session)
        if self._slot is not None:
            await _delete_own(store, self._slot, session)

    def start(self) -> None:
        self._world.network.serve(self._topic, Ping, self._answer)
        self._world.spawn(self._keep_place(), f"{self._layout.root}.tree")

    async def _answer(self, sender: str, message: Message) -> Message:
        return Pong()

    async def live(self) -> list[str]:
        """The ledgers whose nodes are up, the most senior first."""
        return [ledger for _, ledger in await self._read_live()]

    async def _read_live(self) -> list[tuple[int, str]]:
        newest: dict[str, int] = {}
        for seniority, ledger in sorted(map(read_live, await self._world.store.children(self._layout.live))):
            newest[ledger] = seniority  # an older entry is of a session that is about to expire
        return sorted((seniority, ledger) for ledger, seniority in newest.items())

    async def _keep_place(self) -> None:
        while not self._left:
            session = self._world.store.session
            try:
                await self._enter()
                await self._keep_until_change()
            except SessionExpiredError:
                await self._renew(session)
            except StoreUnknownError:
                await self._world.clock.sleep(RETRY_NS)

    async def _keep_until_change(self) -> None:
        """Look at everything after beginning to watch it, and again whenever something has changed, until
        there is something else to watch. (Watches that were let go and taken again at every look would tell
        of themselves, and keep the store busy for nothing.) In another session everything is entered anew,
        also when another part of the node opened it before the first watch was taken."""
        store, session = self._world.store, self._session
        changed, lost = asyncio.Event(), asyncio.Event()
        watches = [await self._world.store.watch(path) for path in self._watched()]
        for watch in watches:
            self._world.spawn(_pass_on(watch, changed, lost), f"{self._layout.root}.watch")
        try:
            while not (self._left or lost.is_set() or store.session != session):
                changed.clear()
                await self._world.store.sync()  # what was told by a watch may not be seen otherwise
                if self._left:
                    return
                watched = self._slot
                orphaned = await self._take_place()
                if self._slot != watched:
                    return  # to watch the new one too
                if orphaned:
                    self._world.spawn(self._look_again(changed), f"{self._layout.root}.orphan")
                await changed.wait()
        finally:
            lost.set()
            for watch in watches:
                watch.close()

    def _watched(self) -> tuple[str, ...]:
        layout = self._layout
        own = (self._slot,) if self._slot is not None else ()
        return layout.live, layout.ledgers, layout.fenced, layout.slots(self._ledger), *own

    async def _look_again(self, changed: asyncio.Event) -> None:
        await self._world.clock.sleep(ORPHAN_NS)
        changed.set()

    async def _renew(self, session: int) -> None:
        """Another resource of this node may have opened the new session already."""
        if self._world.store.session == session:
            try:
                await self._world.store.renew()
            except StoreUnknownError:
                await self._world.clock.sleep(RETRY_NS)

    async def _enter(self) -> None:
        """Be in `live`, once a session."""
        store = self._world.store
        if self._session == store.session or self._left:
            return
        session = store.session
        await store.ensure(self._layout.slots(self._ledger))
        path = await store.create(write_live(self._layout, self._ledger), ephemeral=True, sequential=True)
        self._seniority = read_live(path.rpartition("/")[2])[0]
        self._session, self._slot, self._parent = session, None, None

    async def _take_place(self) -> bool:
        """True if there are seniors and none of them took this node for a child."""
        live = await self._read_live()
        self.up = [ledger for _, ledger in live]
        seniors = [ledger for seniority, ledger in live if seniority < self._seniority]
        if self._parent not in seniors or not await self._has_slot():
            await self._leave_slot()
            self._parent = await self._find_parent(seniors)
        self._tell(Place(self._parent, await self._read_children(live), *await self.read_members()))
        return self._parent is None and bool(seniors)

    async def _has_slot(self) -> bool:
        stat = await self._world.store.exists(self._slot) if self._slot is not None else None
        return stat is not None and stat.owner == self._world.store.session

    async def _leave_slot(self) -> None:
        if self._slot is not None and await self._read_slot(self._slot) == self._ledger:
            try:
                await self._world.store.delete(self._slot)
            except NodeMissingError:
                pass  # it went with its session
        self._slot = None

    async def _find_parent(self, seniors: list[str]) -> str | None:
        """The nearest senior that has a free slot; None for the root."""
        for candidate in await self._sort_by_distance(seniors):
            if await self._take_slot(candidate):
                return candidate
        return None

    async def _sort_by_distance(self, seniors: list[str]) -> list[str]:
        """A few of them, the nearest first; then the others, the most senior first."""
        chosen = list(seniors)
        self._world.random.shuffle(chosen)
        measured = [
            (await self._measure(senior), place) for place, senior in enumerate(chosen[:CANDIDATES_MAX])
        ]
        near = [chosen[place] for distance, place in sorted(measured) if distance < PING_NS]
        return near + [senior for senior in seniors if senior not in near]

    async def _measure(self, ledger: str) -> int:
        began = self._world.clock.now()
        try:
            await self._world.network.call(node_of(ledger), self._topic, Ping(), Pong, PING_NS)
        except NetworkError:
            return PING_NS
        return self._world.clock.now() - began

    async def _take_slot(self, parent: str) -> bool:
        folder = self._layout.slots(parent)
        for place in range(FANOUT):
            path = f"{folder}/{place}"
            try:
                if await self._read_slot(path) == self._ledger:
                    # Left by a session that is over, or by a call whose reply was lost.
                    await self._world.store.delete(path)
                self._slot = path  # now, so that it is given up even if the reply is lost
                await self._world.store.create(path, self._ledger.encode(), ephemeral=True)
                return True
            except NodeExistsError:
                self._slot = None
            except NodeMissingError:
                self._slot = None
                return False  # the senior has not made its folder yet
        return False

    async def _read_slot(self, path: str) -> str | None:
        try:
            data, _ = await self._world.store.get(path)
        except NodeMissingError:
            return None
        return data.decode("utf-8", "replace")  # of another program's data: nobody's name

    async def _read_children(self, live: list[tuple[int, str]]) -> tuple[str, ...]:
        folder = self._layout.slots(self._ledger)
        up = {ledger for seniority, ledger in live if seniority > self._seniority}
        slots = await self._world.store.children(folder)
        children = [await self._read_slot(f"{folder}/{place}") for place in slots]
        return tuple(child for child in dict.fromkeys(children) if child is not None and child in up)

    async def read_members(self) -> tuple[frozenset[str], frozenset[str]]:
        """(ledgers that are not fenced, ledgers that are)"""
        store, layout = self._world.store, self._layout
        fenced = frozenset(map(read_name, await store.children(layout.fenced)))
        return frozenset(map(read_name, await store.children(layout.ledgers))) - fenced, fenced

    def _tell(self, place: Place) -> None:
        if place != self._told:
            self._told = place
            self._changed(place)


async def _delete_own(store: Store, path: str, session: int) -> None:
    """If it is this session's."""
    stat = await store.exists(path)
    if stat is not None and stat.owner == session:
        try:
            await store.delete(path)
        except NodeMissingError:
            return


async def _pass_on(watch: Watch, changed: asyncio.Event, lost: asyncio.Event) -> None:
    """Until it is `lost`, or nobody listens any more."""
    while not lost.is_set():
        try:
            await watch.changed()
        except (SessionExpiredError, StoreUnknownError):
            lost.set()  # the next call of the store tells
        changed.set()
