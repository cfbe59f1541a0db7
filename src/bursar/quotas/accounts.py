"""Accounts in the store: opened once, added to, and watched by every node.

An account's list of mints is the only place where units come from. Adding to the list is one
compare-and-set; each entry names the ledger that takes it in, which does so once, by number. So a
top-up that was cut off by a crash is there or not, and a node that was away takes in its part when
it returns.
"""

from __future__ import annotations

from collections.abc import Awaitable, Callable, Sequence

from bursar.errors import (
    NodeExistsError,
    NodeMissingError,
    SessionExpiredError,
    StoreUnknownError,
    UsageError,
    VersionError,
)
from bursar.quotas.layout import Layout, Mints, read_mints, read_name, split_evenly, write_mints
from bursar.resource import AMOUNT_MAX
from bursar.world import MILLISECOND_NS, Store, World

RETRY_NS = 50 * MILLISECOND_NS


async def open_account(
    store: Store, layout: Layout, account: str, limit: int, ledgers: Sequence[str]
) -> Mints:
    """The account's mints; the first to ask for it makes them, spread over `ledgers`."""
    path = layout.account(account)
    try:
        data, _ = await store.get(path)
        return read_mints(data)
    except NodeMissingError:
        pass
    mints = split_evenly(limit, ledgers)
    try:
        await store.create(path, write_mints(mints))
    except NodeExistsError:
        await store.sync()
        data, _ = await store.get(path)
        return read_mints(data)
    return mints


async def change_limit(store: Store, layout: Layout, account: str, limit: int, ledger: str) -> Mints:
    """Bring the account's total to `limit`, by an entry for `ledger`; nothing if it is that."""
    return await _add(store, layout, account, ledger, lambda mints: limit - total(mints))


async def top_up(store: Store, layout: Layout, account: str, amount: int, ledger: str) -> Mints:
    """Add `amount` units (negative: take them out) by one more entry for `ledger`. Not to be
    repeated after StoreUnknownError without reading the account."""
    return await _add(store, layout, account, ledger, lambda mints: max(amount, -total(mints)))


async def _add(
    store: Store, layout: Layout, account: str, ledger: str, amount: Callable[[Mints], int]
) -> Mints:
    while True:
        data, stat = await store.get(layout.account(account))
        mints = read_mints(data)
        change = amount(mints)
        if change == 0:
            return mints
        if total(mints) + change > AMOUNT_MAX:
            raise UsageError(f"{account} has {total(mints)} units: {change} more would pass 2^63 - 1")
        mints.append((ledger, change))
        try:
            await store.set(layout.account(account), write_mints(mints), stat.version)
        except VersionError:
            continue
        return mints


def total(mints: Mints) -> int:
    """The account's limit."""
    return sum(amount for _, amount in mints)


class AccountWatcher:
    """Tells `minted(account, mints)` of every account, and of every change to one."""

    def __init__(self, world: World, layout: Layout, minted: Callable[[str, Mints], None]) -> None:
        self._world = world
        self._layout = layout
        self._minted = minted
        self._known: dict[str, int] = {}
        self._looked: dict[str, None] = {}

    def start(self) -> None:
        self._world.spawn(
            self._follow(self._layout.accounts, self._look_at_all), f"{self._layout.accounts}.watch"
        )

    async def _look_at_all(self) -> None:
        for node in await self._world.store.children(self._layout.accounts):
            account = read_name(node)
            if account not in self._looked:
                self._looked[account] = None
                path = self._layout.account(account)
                self._world.spawn(self._follow(path, self._look_at(account)), f"{path}.watch")

    def _look_at(self, account: str) -> Callable[[], Awaitable[None]]:
        async def look() -> None:
            data, _ = await self._world.store.get(self._layout.account(account))
            self.learn(account, read_mints(data))

        return look

    def learn(self, account: str, mints: Mints) -> None:
        """A stale list is a shorter one: it says nothing."""
        if len(mints) > self._known.get(account, 0):
            self._known[account] = len(mints)
            self._minted(account, mints)

    async def _follow(self, path: str, look: Callable[[], Awaitable[None]]) -> None:
        """Look, and look again after every change. Watch first, so that none is missed."""
        while True:
            try:
                watch = await self._world.store.watch(path)
                try:
                    await self._world.store.sync()  # what a watch told of may not be seen otherwise
                    await look()
                    await watch.changed()
                finally:
                    watch.close()
            except (SessionExpiredError, StoreUnknownError, NodeMissingError):
                await self._world.clock.sleep(RETRY_NS)
