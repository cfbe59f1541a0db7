"""The lots that are out, as whoever handed them out sees them (`lots` has the rules)."""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Iterable

from bursar.quotas import lots
from bursar.quotas.balances import Hold, Lot
from bursar.quotas.chains import Chains
from bursar.quotas.courier import QuotaCourier
from bursar.resource import Issue, Ticket
from bursar.resource.decider import Recall


class LotsOut:
    """Hands lots out, and wants them back when the book does. `recall` is asked for when it is needed."""

    def __init__(self, courier: QuotaCourier, chains: Chains, recall: Callable[[], Recall | None]) -> None:
        self._courier = courier
        self._chains = chains
        self._recall = recall
        self._world = courier.world
        self._out: dict[int, tuple[Lot, Issue]] = {}
        self._recalling: dict[int, None] = {}
        courier.recalled = self._want_back

    def issue(self, ticket: Ticket, hold: Hold) -> Lot | None:
        """Besides what the request itself got."""
        now, left_ns = self._world.clock.now(), self._chains.left_ns(ticket.tenant)
        until = now + (lots.LOT_NS if left_ns is None else min(lots.LOT_NS, left_ns))
        lot, effects = lots.issue(self._courier.book, now, hold.accounts, ticket.ahead, until)
        if lot is not None:
            issue = Issue(ticket.tenant, hold.accounts[0], ticket.held_by, lot.size, until, 0)
            self._out[lot.number] = (lot, issue)
        self._courier.perform(effects)
        return lot

    def spend(self, lot: Lot, amount: int) -> None:
        book, now = self._courier.book, self._world.clock.now()
        self._courier.perform(lots.spend(book, now, lot, amount))

    def take_back(self, lot: Lot, amount: int) -> None:
        book, now = self._courier.book, self._world.clock.now()
        self._courier.perform(lots.give_back(book, now, lot, amount))

    def end(self, lot: Lot, unspent: int) -> None:
        """Its holder says that it is over."""
        self.take_back(lot, unspent)
        self.spend(lot, lot.out)
        self._out.pop(lot.number, None)

    def prune(self) -> None:
        """Forget those that ended by themselves."""
        self._out = {number: out for number, out in self._out.items() if out[0].out}

    def _want_back(self, names: Iterable[str]) -> None:
        """Lots of these accounts are wanted back. One that does not come ends soon, and until then nobody
        is refused because of it."""
        recall, wanted = self._recall(), set(names)
        for number, (lot, issue) in self._out.items():
            issue.left = lot.out
            is_wanted = lot.out and number not in self._recalling and not wanted.isdisjoint(lot.accounts)
            if recall is not None and is_wanted:
                self._recalling[number] = None
                self._world.spawn(self._call_back(number, recall, issue), f"{self._courier.topic}.recall")

    async def recall_all(self) -> None:
        """Those that answer: before the node stops."""
        recall = self._recall()
        if recall is not None:
            await asyncio.gather(*(recall(issue) for lot, issue in self._out.values() if lot.out))

    async def _call_back(self, number: int, recall: Recall, issue: Issue) -> None:
        try:
            back = await recall(issue)
        finally:
            del self._recalling[number]
        self._world.trace("quota.recalled", tenant=issue.tenant, held_by=issue.held_by, back=back)
