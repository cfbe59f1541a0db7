"""What one node knows of the accounts in the store.

Names of tenants are listed, a shard at a time, whenever one changes: all nodes know who there is. Records
are read when they are needed (a request, a message about the account, a survey) and again when their shard
says that one of them was changed. Whatever is wanted while the store is asked for something goes there
next, all at once: that no account is opened alone when thousands begin, and that one which is alone does
not wait.
"""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable, Iterable, Sequence
from functools import partial
from itertools import islice
from typing import Protocol

from bursar.errors import BursarError, NodeMissingError, SessionExpiredError, StoreError, StoreUnknownError
from bursar.quotas import accounts
from bursar.quotas.accounts import Guards, Horizon, Opening, WindowOverError, list_windows
from bursar.quotas.layout import AccountRecord, Layout, Mints, TenantRecord, read_name
from bursar.quotas.windows import Window, account_name, is_over, split_account
from bursar.world import MILLISECOND_NS, Stat, World

RETRY_NS = 50 * MILLISECOND_NS
LOOK_NS = 1_000 * MILLISECOND_NS
SHARDS_A_SECOND = 50
"""Where tenants come all the time, so many shards are looked at in a second, and a shard once. (Where nothing
has happened for as long, a change is seen at once.)"""

NEWS_PART = 5
"""What changes of an account is read at once; that takes at most this part of the time."""

BATCH = 64
"""Records that are read, or opened in one transaction."""


OVER = "the window of {tenant} is over at every node, and was forgotten: is this node's clock right?"


class Hearer(Protocol):
    """Who is told: of a tenant that has accounts, of an account's mints whenever they grew, of the limit it
    was read with, of what nothing may be granted of (and why; "": it may again), of the horizon, and up to
    which version of the news all of this was told."""

    def opened(self, tenant: str) -> None: ...

    def minted(self, account: str, mints: Mints) -> None: ...

    def limited(self, account: str, limit: int) -> None: ...

    def fenced(self, account: str, why: str) -> None: ...

    def ended(self, horizon_s: int) -> None: ...

    async def heard(self, version: int) -> None: ...


class Wanted:
    """A record that somebody waits for: to be read, or (`opening`) to have an account."""

    def __init__(self, opening: Opening | None, guards: Guards) -> None:
        self.opening = opening
        self.guards = tuple(guards)
        self.done: asyncio.Future[None] = asyncio.get_running_loop().create_future()


class Registry:
    """mints     of each account that was read
    windows   of each tenant that was read
    names     of all tenants, by shard
    """

    def __init__(
        self, world: World, layout: Layout, hearer: Hearer, live: Callable[[], Sequence[str]]
    ) -> None:
        """`live`: the ledgers that a new account's units are spread over."""
        self.mints: dict[str, Mints] = {}
        self.windows: dict[str, tuple[Window, ...]] = {}
        self.names: dict[str, dict[str, None]] = {}
        self._world = world
        self._layout = layout
        self._hearer = hearer
        self._live = live
        self._horizon_s = 0
        self._horizon: Horizon | None = None
        self._versions: dict[str, int] = {}
        self._followed: dict[str, None] = {}
        self._wanted: dict[tuple[str, bool], Wanted] = {}
        self._asking: dict[tuple[str, bool], Wanted] = {}
        self._heard = 0
        self._asked = asyncio.Event()

    def start(self) -> None:
        self._world.spawn(self._serve(), f"{self._layout.accounts}.reading")
        self._world.spawn(
            self._follow(self._layout.accounts, self._list_shards, self._find_pause), "quota.accounts"
        )
        self._world.spawn(self._follow(self._layout.news, self._read_news, _rest), "quota.news")

    def find_shard(self, tenant: str) -> str:
        return self._layout.shard(tenant)

    def list_tenants(self) -> list[str]:
        """All that have accounts, in order."""
        return sorted(name for names in self.names.values() for name in names)

    def list_accounts(self, tenants: Iterable[str]) -> list[str]:
        """Theirs, as far as they were read."""
        named = (account_name(tenant, each) for tenant in tenants for each in self._list_of(tenant))
        return [account for account in named if account in self.mints]

    def _list_of(self, tenant: str) -> tuple[Window | None, ...]:
        return (None, *sorted(self.windows.get(tenant, ())))

    # -- reading and opening

    async def open(self, opening: Opening, guards: Guards) -> None:
        """See that the tenant's account exists, and is known here. Raises StoreError."""
        await self._want(opening.tenant, opening, guards)

    async def read(self, tenant: str) -> None:
        """See that what the store has of the tenant is known here. Raises StoreError."""
        await self._want(tenant, None, ())

    async def read_all(self, tenants: Iterable[str], *, anew: bool) -> None:
        """Those that were not read yet; `anew`: all of them, because other nodes open accounts, too."""
        wanted = (tenant for tenant in tenants if anew or tenant not in self.windows)
        await asyncio.gather(*map(self.read, wanted))

    async def _want(self, tenant: str, opening: Opening | None, guards: Guards) -> None:
        key = (tenant, opening is not None)
        wanted = self._wanted.get(key)
        if wanted is None or wanted.opening != opening or wanted.guards != tuple(guards):
            if wanted is not None:
                _end(wanted.done, StoreError(f"{tenant} is being opened by other terms: open it again"))
            wanted = self._wanted[key] = Wanted(opening, guards)
            self._asked.set()
        await asyncio.shield(wanted.done)

    async def _serve(self) -> None:
        while True:
            await self._asked.wait()
            self._asked.clear()
            while self._wanted:
                taken = self._asking = dict(islice(self._wanted.items(), BATCH))
                for key in taken:
                    del self._wanted[key]
                await self._carry_out({key[0]: each for key, each in taken.items() if not key[1]}, ())
                opening = {key[0]: each for key, each in taken.items() if key[1]}
                for guards in dict.fromkeys(each.guards for each in opening.values()):
                    alike = {name: each for name, each in opening.items() if each.guards == guards}
                    await self._carry_out(alike, guards)
                self._asking = {}

    async def _carry_out(self, wanted: dict[str, Wanted], guards: Guards) -> None:
        if not wanted:
            return
        try:
            found = await self._ask(wanted, guards)
            for tenant, record in found.items():
                self.learn(tenant, record)
            for tenant, each in wanted.items():
                if each.opening is not None and tenant not in found:
                    _end(each.done, WindowOverError(OVER.format(tenant=tenant)))
        except BursarError as error:
            for each in wanted.values():
                _end(each.done, error)
        for each in wanted.values():
            _end(each.done, None)

    async def _ask(self, wanted: dict[str, Wanted], guards: Guards) -> dict[str, TenantRecord]:
        store, layout = self._world.store, self._layout
        openings = [each.opening for each in wanted.values() if each.opening is not None]
        if openings:
            horizon = self._horizon or await accounts.read_horizon(store, layout)
            ledgers, wall_ns = self._live(), self._world.clock.wall()
            opened, self._horizon = await accounts.open_accounts(
                store, layout, openings, ledgers, guards, horizon, wall_ns
            )
            return opened
        found = await accounts.read_tenants(store, layout, wanted)
        return {tenant: record for tenant, (record, _) in found.items()}

    # -- what was read

    def learn(self, tenant: str, record: TenantRecord) -> None:
        """What is stale is a part of what was known: it says nothing."""
        self._meet(self._layout.shard(tenant), tenant)
        windows = {*self.windows.get(tenant, ()), *list_windows(record)}
        self.windows[tenant] = tuple(each for each in windows if each.end_s > self._horizon_s)
        for name, each in record.windows.items():
            account = f"{tenant}@{name}" if name else tenant
            if not is_over(account, self._horizon_s):
                self._learn_account(account, each)

    def _learn_account(self, account: str, record: AccountRecord) -> None:
        self.learn_mints(account, record.mints)
        self._hearer.fenced(account, record.fenced)
        self._hearer.limited(account, record.limit)

    def learn_mints(self, account: str, mints: Mints) -> None:
        if len(mints) > len(self.mints.get(account, ())):
            self.mints[account] = mints
            self._hearer.minted(account, mints)

    def _meet(self, shard: str, tenant: str) -> None:
        names = self.names.setdefault(shard, {})
        if tenant not in names:
            names[tenant] = None
            self._hearer.opened(tenant)

    def end(self, horizon_s: int) -> None:
        """Accounts of windows that ended by the horizon are forgotten."""
        self._horizon_s = max(self._horizon_s, horizon_s)
        for account in [account for account in self.mints if is_over(account, self._horizon_s)]:
            del self.mints[account]
            tenant = split_account(account)[0]
            left = tuple(each for each in self.windows[tenant] if each.end_s > self._horizon_s)
            self.windows[tenant] = left

    # -- what changes in the store

    async def _list_shards(self) -> None:
        self._horizon = await accounts.read_horizon(self._world.store, self._layout)
        self._hearer.ended(self._horizon.ends_s)
        for name in await self._world.store.children(self._layout.accounts):
            shard = f"{self._layout.accounts}/{name}"
            if shard not in self._followed:
                self._followed[shard] = None
                self._world.spawn(self._follow(shard, partial(self._look_at, shard), self._find_pause), shard)

    async def _look_at(self, shard: str) -> None:
        """Read again what was changed; list anew what there is, but not at every tenant that comes."""
        stat = await self._read_changed(shard)
        if stat.children != len(self.names.get(shard, {})):
            await self._list(shard)

    async def _read_news(self) -> None:
        """What was changed by then. Whoever changed it may wait until all know."""
        _, stat = await self._world.store.get(self._layout.news)
        if stat.version != self._heard:
            asked = [self._layout.shard(tenant) for tenant, _ in self._asking]
            await asyncio.gather(*map(self._read_changed, dict.fromkeys([*self.names, *asked])))
            await self._hearer.heard(stat.version)
            self._heard = stat.version

    async def _read_changed(self, shard: str) -> Stat:
        """Read again what was read of a shard, if something in it was changed."""
        _, stat = await self._world.store.get(shard)
        if stat.version != self._versions.get(shard, 0):
            known = [tenant for tenant in self.names.get(shard, ()) if tenant in self.windows]
            # What is being asked for may be answered with what was there before the change.
            asked = [tenant for tenant, _ in self._asking if self._layout.shard(tenant) == shard]
            await asyncio.gather(*map(self.read, dict.fromkeys(known + asked)))
            self._versions[shard] = stat.version
        return stat

    async def _list(self, shard: str) -> None:
        listed = dict.fromkeys(map(read_name, await self._world.store.children(shard)))
        for tenant in listed:
            self._meet(shard, tenant)
        names = self.names.get(shard, {})
        for tenant in [name for name in names if name not in listed and not self.windows.get(name)]:
            del names[tenant]  # the store has forgotten it
            self.windows.pop(tenant, None)

    def _find_pause(self, _took_ns: int) -> int:
        return LOOK_NS * max(1, len(self._followed) // SHARDS_A_SECOND)

    async def _follow(
        self, path: str, look: Callable[[], Awaitable[None]], find_pause: Callable[[int], int]
    ) -> None:
        """Look, and look again after every change, but not sooner than the pause that goes with the time
        that the look took. Watch first, so that no change is missed."""
        clock = self._world.clock
        while True:
            began = clock.now()
            try:
                watch = await self._world.store.watch(path)
                try:
                    while True:
                        await self._world.store.sync()  # what a watch told of may not be seen otherwise
                        began = clock.now()
                        await look()
                        apart_ns = find_pause(clock.now() - began)
                        await watch.changed()
                        await clock.sleep(began + apart_ns - clock.now())
                finally:
                    watch.close()
            except (SessionExpiredError, StoreUnknownError, NodeMissingError):
                await clock.sleep(RETRY_NS)


def _rest(took_ns: int) -> int:
    return NEWS_PART * took_ns


def _end(done: asyncio.Future[None], error: BaseException | None) -> None:
    if done.done():
        return
    if error is None:
        done.set_result(None)
    else:
        done.set_exception(error)
        done.exception()  # whoever waited may have gone
