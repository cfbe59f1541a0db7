"""The homes of keys in the store: which hold stands for a key.

Taking a key is one `create` (of many keys at once, in one transaction, where many are asked for), so one
hold wins. Only the ledger that a record names deletes it, one
operation at a time for a key (`keys`), so nothing here needs more than it reads; a reply that was lost
is made up for by reading back, because a record says exactly whose it is. Of a ledger that is written off
whoever is asked for a key deletes the record, in a transaction that checks that it still is written off.
"""

from __future__ import annotations

import asyncio
from collections import deque
from collections.abc import Mapping, Sequence
from functools import partial
from itertools import islice
from typing import TYPE_CHECKING

from bursar.errors import NodeExistsError, NodeMissingError, StoreError, VersionError
from bursar.quotas.balances import Hold
from bursar.quotas.keys import KEY_MEMORY_NS
from bursar.quotas.layout import HomeRecord, Layout, digest, read_home, write_home
from bursar.world import SECOND_NS, Check, Create, Delete, Stat, Store

if TYPE_CHECKING:
    from bursar.quotas.courier import QuotaCourier

BATCH = 50
"""Keys that are taken, or freed, in one transaction."""

FENCED = 0
"""The version of the node that says that a ledger is written off: it is made, and never set."""

SWEEP_NS = 3600 * SECOND_NS
"""How often keys of ledgers that were written off are looked for."""


async def read(store: Store, layout: Layout, key: str) -> HomeRecord | None:
    """The key's home now; None if nobody used it, or it is free again."""
    await store.sync()
    found = await _look(store, layout.key(key))
    return None if found is None else found[0]


async def _look(store: Store, path: str) -> tuple[HomeRecord, Stat] | None:
    try:
        data, stat = await store.get(path)
    except NodeMissingError:
        return None
    return read_home(data), stat


async def take(store: Store, layout: Layout, key: str, record: HomeRecord) -> bool:
    """Make that hold stand for the key; False if another ledger's does."""
    path = layout.key(key)
    while True:
        try:
            await _create(store, path, write_home(record))
            return True
        except NodeExistsError:
            await store.sync()
            found = await _look(store, path)
            if found is None:
                continue
            if found[0].ledger != record.ledger:
                return False
            if found[0].hold == record.hold:
                return True  # by a call whose reply was lost
            await _delete(store, path, found[1])  # of a hold that is over: it came late


async def _create(store: Store, path: str, data: bytes) -> None:
    """In one transaction with its folder, where that is missing."""
    try:
        await store.create(path, data)
    except NodeMissingError:
        await store.transact([Create(path.rpartition("/")[0]), Create(path, data)])


async def _delete(store: Store, path: str, stat: Stat) -> None:
    try:
        await store.delete(path, stat.version)
    except (NodeMissingError, VersionError):
        return  # by a call whose reply was lost


async def free(store: Store, layout: Layout, ledger: str, keys: Mapping[str, int]) -> None:
    """Forget these keys, as far as those holds of that ledger stand for them."""
    while True:
        await store.sync()
        found = {path: await _look(store, path) for path in map(layout.key, keys)}
        deletions = [
            Delete(path, record[1].version)
            for (path, record), number in zip(found.items(), keys.values(), strict=True)
            if record is not None and (record[0].ledger, record[0].hold) == (ledger, number)
        ]
        try:
            if deletions:
                await store.transact(deletions)
            return
        except (NodeMissingError, VersionError):
            continue  # by a call whose reply was lost: look again


async def forget(store: Store, layout: Layout, key: str, ledger: str) -> None:
    """Forget a key of a ledger that is written off, as far as it still is and the key is still its."""
    path = layout.key(key)
    found = await _look(store, path)
    if found is None or found[0].ledger != ledger:
        return
    try:
        await store.transact([Check(layout.fence(ledger), FENCED), Delete(path, found[1].version)])
    except (NodeMissingError, VersionError):
        return  # it is back, or somebody was faster: look again


async def sweep(store: Store, layout: Layout, fenced: frozenset[str], now_s: int) -> int:
    """Forget the keys of ledgers that were written off, once their time is over; how many."""
    swept = 0
    for folder in await store.children(layout.keys):
        for name in await store.children(f"{layout.keys}/{folder}"):
            path = f"{layout.keys}/{folder}/{name}"
            found = await _look(store, path)
            if found is not None and found[0].ledger in fenced and found[0].until_s < now_s:
                await _delete(store, path, found[1])
                swept += 1
    return swept


class HomeKeeper:
    """Does what a book's keys ask of the store, and tells the book. `changed` is set, and replaced by
    another event, whenever the state of a key has changed here."""

    def __init__(self, courier: QuotaCourier) -> None:
        self.changed = asyncio.Event()
        self.hold_expiry_ns = 0
        self._courier = courier
        self._world = courier.world
        self._wanted = asyncio.Event()
        self._asking: deque[tuple[str, int]] = deque()
        self._asked = asyncio.Event()
        self._folders: dict[str, None] = {}

    def start(self) -> None:
        self._world.spawn(self._take_keys(), f"{self._courier.topic}.homes")
        self._world.spawn(self._free_keys(), f"{self._courier.topic}.keys")
        self._world.spawn(self._sweep(), f"{self._courier.topic}.sweep")
        doubted = self._courier.book.keys.take_doubted()
        if doubted:
            self._world.spawn(self._ask_again(doubted), f"{self._courier.topic}.doubted")

    def look(self) -> None:
        """The book has done something: see what its keys want."""
        keys = self._courier.book.keys
        if keys.asking:
            self._asking += keys.asking
            keys.asking = []
            self._asked.set()
        if keys.freeing:
            self._wanted.set()

    async def _take_keys(self) -> None:
        """All that were asked for while others were being taken are taken in one transaction: syncs are what
        a store has few of."""
        while True:
            await self._asked.wait()
            self._asked.clear()
            while self._asking:
                batch = [self._asking.popleft() for _ in range(min(BATCH, len(self._asking)))]
                await self._take_batch(batch)

    async def _take_batch(self, batch: Sequence[tuple[str, int]]) -> None:
        """Those of which something is known to be in the way, or is found to be, are asked for one by one."""
        courier = self._courier
        plain = {key: number for key, number in batch if self._folder_of(key) in self._folders}
        if len(plain) < 2 or not await self._create_all(plain):
            plain = {}
        for key, number in batch:
            if key not in plain:
                self._world.spawn(self._ask(key, number), f"{courier.topic}.key")
            else:
                courier.perform(courier.book.win_key(self._world.clock.now(), key, number))
        if plain:
            self._announce()

    async def _create_all(self, keys: Mapping[str, int]) -> bool:
        """Whether the store says that all of them are this ledger's now."""
        layout = self._courier.layout
        records = {
            key: write_home(self._make_record(self._find_hold(number))) for key, number in keys.items()
        }
        try:
            await self._world.store.transact([Create(layout.key(key), data) for key, data in records.items()])
        except StoreError:
            return False  # or that is not known: asking for each finds what was made
        return True

    def _folder_of(self, key: str) -> str:
        return self._courier.layout.key(key).rpartition("/")[0]

    def _find_hold(self, number: int) -> Hold:
        hold = self._courier.book.ledger.find_hold(number)
        assert hold is not None, "a key is kept as long as its hold"
        return hold

    async def _ask_again(self, doubted: Sequence[tuple[str, int]]) -> None:
        """One after the other: they may be very many, and are rarely wanted."""
        for key, number in doubted:
            await self._ask(key, number)

    async def _ask(self, key: str, number: int) -> None:
        courier = self._courier
        record = self._make_record(self._find_hold(number))
        won = await courier.persist(partial(take, self._world.store, courier.layout, key, record))
        self._folders[self._folder_of(key)] = None
        tell = courier.book.win_key if won else courier.book.lose_key
        courier.perform(tell(self._world.clock.now(), key, number))
        self._announce()

    def _make_record(self, hold: Hold) -> HomeRecord:
        until_ns = self._world.clock.wall() + self.hold_expiry_ns + KEY_MEMORY_NS
        terms = digest(hold.tenant, hold.amount)
        return HomeRecord(self._courier.book.identity, hold.number, terms, until_ns // SECOND_NS)

    async def _free_keys(self) -> None:
        courier = self._courier
        while True:
            await self._wanted.wait()
            self._wanted.clear()
            while freeing := dict(islice(courier.book.keys.freeing.items(), BATCH)):
                work = partial(free, self._world.store, courier.layout, courier.book.identity, freeing)
                await courier.persist(work)
                for key, number in freeing.items():
                    courier.perform(courier.book.end_key(self._world.clock.now(), key, number))
                self._announce()

    def _announce(self) -> None:
        changed, self.changed = self.changed, asyncio.Event()
        changed.set()

    async def _sweep(self) -> None:
        """The root cleans up after ledgers that were written off."""
        courier = self._courier
        while True:
            await self._world.clock.sleep(SWEEP_NS)
            fenced = courier.book.fenced
            if courier.book.parent is None and fenced:
                now_s = self._world.clock.wall() // SECOND_NS
                swept = await courier.persist(
                    partial(sweep, self._world.store, courier.layout, fenced, now_s)
                )
                self._world.trace("quota.keys_swept", keys=swept)
