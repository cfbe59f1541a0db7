"""The homes of keys in the store: which hold stands for a key.

Taking a key is one `create`, so one hold wins. Only the ledger that a record names deletes it, one
operation at a time for a key (`keys`), so nothing here needs more than it reads; a reply that was lost
is made up for by reading back, because a record says exactly whose it is.
"""

from __future__ import annotations

import asyncio
from collections.abc import Mapping
from functools import partial
from itertools import islice
from typing import TYPE_CHECKING

from bursar.errors import NodeExistsError, NodeMissingError, VersionError
from bursar.quotas.balances import Hold
from bursar.quotas.keys import KEY_MEMORY_NS
from bursar.quotas.layout import HomeRecord, Layout, digest, read_home, write_home
from bursar.world import SECOND_NS, Create, Delete, Stat, Store

if TYPE_CHECKING:
    from bursar.quotas.courier import QuotaCourier

BATCH = 50
"""Keys that are freed in one transaction."""

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

    def start(self) -> None:
        self._world.spawn(self._free_keys(), f"{self._courier.topic}.keys")
        self._world.spawn(self._sweep(), f"{self._courier.topic}.sweep")

    def look(self) -> None:
        """The book has done something: see what its keys want."""
        keys = self._courier.book.keys
        asking, keys.asking = keys.asking, []
        for key, number in asking:
            self._world.spawn(self._ask(key, number), f"{self._courier.topic}.key")
        if keys.freeing:
            self._wanted.set()

    async def _ask(self, key: str, number: int) -> None:
        courier = self._courier
        hold = courier.book.ledger.find_hold(number)
        assert hold is not None, "a key is kept as long as its hold"
        record = self._make_record(hold)
        won = await courier.persist(partial(take, self._world.store, courier.layout, key, record))
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
