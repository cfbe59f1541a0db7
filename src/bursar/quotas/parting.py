"""A node that leaves hands its units over, so that those who stay can grant them.

It goes out of the tree first, so that nobody sends it more. Then what it has goes, and a moment later
what came meanwhile, a few accounts at a
time and the richest first, to its parent or whoever else is up, as a transfer like any other: written
down before it is sent, and credited once. It is not waited for long: what was not handed over stays in
this node's ledger, and what was sent and not acknowledged is in flight until one of the two is back.
"""

from __future__ import annotations

import asyncio
from typing import TYPE_CHECKING

from bursar.errors import StoreError
from bursar.quotas.windows import split_account
from bursar.world import MILLISECOND_NS

if TYPE_CHECKING:
    from bursar.quotas.courier import QuotaCourier

PATIENCE_NS = 500 * MILLISECOND_NS
"""In all. (A node has a second to stop.)"""

REMIND_NS = 100 * MILLISECOND_NS
LOOK_NS = MILLISECOND_NS
LINGER_NS = 50 * MILLISECOND_NS
AT_ONCE = 200
"""Accounts that are under way at a time: what is not sent is not stranded."""


class Parting:
    def __init__(self, courier: QuotaCourier) -> None:
        self._courier = courier
        self._world = courier.world
        self._until = courier.world.clock.now() + PATIENCE_NS

    async def hand_over(self) -> None:
        done = asyncio.Event()
        timer = self._world.spawn(self._ring(done), f"{self._courier.topic}.parting")
        work = self._world.spawn(self._do(done), f"{self._courier.topic}.handing")
        await done.wait()
        timer.cancel()
        work.cancel()

    async def _ring(self, done: asyncio.Event) -> None:
        await self._world.clock.sleep(PATIENCE_NS)
        done.set()

    async def _do(self, done: asyncio.Event) -> None:
        try:
            heir = await self._find_heir()
            await self._courier.tree.leave()
            if heir is not None:
                await self._hand_all(heir)
                await self._world.clock.sleep(LINGER_NS)  # what was on its way here has come
                await self._hand_all(heir)
        except StoreError as error:  # nobody can be found: what is here stays here
            self._world.trace("quota.kept", why=str(error))
        done.set()

    async def _hand_all(self, heir: str) -> None:
        while names := self._choose():
            await self._send(heir, names)

    async def _find_heir(self) -> str | None:
        """The parent, if it is up, or the most senior of the others; None if there is nobody."""
        book = self._courier.book
        up = [ledger for ledger in await self._courier.tree.live() if ledger != book.identity]
        return book.parent if book.parent in up else next(iter(up), None)

    def _choose(self) -> list[str]:
        """Of windows that are over nobody needs anything."""
        accounts = self._courier.book.ledger.accounts.values()
        rich = [each for each in accounts if each.unspent and self._is_present(each.name)]
        rich.sort(key=lambda account: -account.unspent)
        return [account.name for account in rich[:AT_ONCE]]

    def _is_present(self, account: str) -> bool:
        window = split_account(account)[1]
        return window is None or window.holds(self._world.clock.wall())

    async def _send(self, heir: str, names: list[str]) -> None:
        courier, clock = self._courier, self._world.clock
        courier.perform(courier.book.hand_over(clock.now(), heir, names))
        self._world.trace("quota.handed_over", to=heir, accounts=len(names))
        reminded_at = clock.now()
        while names := [name for name in names if not courier.book.is_handed_over(heir, name)]:
            await clock.sleep(LOOK_NS)
            if clock.now() - reminded_at >= REMIND_NS:
                reminded_at = clock.now()
                courier.perform(courier.book.remind(reminded_at, heir, names))
