"""A kind for tests of the door alone: one counter, filled by hand."""

from __future__ import annotations

from typing import Any

import msgspec

from bursar.errors import Refused, Unknown
from bursar.resource import Ahead, Decider, Explanation, Granted, Offers, Seen, Ticket


class ToyStatistics(msgspec.Struct, frozen=True):
    left: int


class ToyDecider(Decider):
    """Grants while `left` lasts; what waits goes first come, first served when `add` brings more."""

    kind = "toy"

    def __init__(self, name: str, left: int, *, now: Any, offers: Offers | None = None, lot: int = 0) -> None:
        self.name = name
        self.left = left
        self.offers = offers or Offers(lots=lot > 0)
        self.ahead = Ahead()
        self.queue: list[Ticket] = []
        self.finished: list[Granted] = []
        self.seen = 0
        self.asked = 0
        self.retry_after: float | None = None
        self.period = 1
        self._lot = lot
        self._now = now

    def is_ready(self) -> bool:
        return True

    def most(self, ticket: Ticket) -> int | None:
        return 1000

    def decide(self, ticket: Ticket) -> None:
        self.asked += 1
        if self.queue or ticket.amount > self.left:
            self.queue.append(ticket)
        else:
            ticket.give(self._grant(ticket))

    def _grant(self, ticket: Ticket) -> Granted:
        self.left -= ticket.amount
        now = self._now()
        ahead = min(ticket.ahead, self.left, self._lot) if not self.queue else 0
        until = now + 10**9
        issue = (
            self.ahead.issue(ticket.tenant, "", ticket.held_by, ahead, until, self.period) if ahead else None
        )
        self.left -= ahead
        return Granted(ticket.amount, period=self.period, ahead=ahead, until=until, data=issue)

    def add(self, tokens: int) -> None:
        self.left += tokens
        while self.queue and self.queue[0].amount <= self.left:
            ticket = self.queue.pop(0)
            ticket.give(self._grant(ticket))

    def withdraw(self, ticket: Ticket) -> Refused | Unknown | None:
        self.queue.remove(ticket)
        return Refused(f"{self.left} left", limit=1000, remaining=self.left, retry_after=self.retry_after)

    def take_back(self, tenant: str, granted: Granted, unused: int) -> None:
        self.add(unused)

    def finish(self, granted: Granted) -> None:
        self.finished.append(granted)

    def observe(self, tenant: str, granted: Granted | None, seen: Seen) -> None:
        self.seen += seen.arrived
        if granted is not None and granted.data is not None:
            self.ahead.spend(granted.data, seen.arrived)

    def end_lot(self, tenant: str, granted: Granted, seen: Seen, unspent: int) -> None:
        self.observe(tenant, granted, seen)
        self.ahead.end(granted.data)
        if unspent:
            self.take_back(tenant, granted, unspent)

    def explain(self, tenant: str) -> Explanation:
        return Explanation(resource=self.name, kind=self.kind, tenant=tenant, sentences=("a toy",))

    def statistics(self) -> ToyStatistics:
        return ToyStatistics(self.left)
