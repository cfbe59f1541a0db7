"""Charges what Envoys were told, at the node's own door.

For each tenant one request at a time, for what falls due in the next moments: it waits its turn among the
tenant's other requests, so that clients and Envoys share what there is by what they want.
"""

from __future__ import annotations

import math
from collections.abc import Callable
from heapq import heappop, heappush

from bursar.errors import BursarError
from bursar.integrations.envoy.accounts import RETRY_NS, Account
from bursar.integrations.envoy.ledger import Ledger
from bursar.resource.decider import Seen
from bursar.resource.door import Resource
from bursar.resource.strangers import check_tenant
from bursar.resource.tickets import Answer, Granted, Ticket
from bursar.world import MILLISECOND_NS, SECOND_NS

HOLDER = "envoy"
TICK_NS = 50 * MILLISECOND_NS
ACCOUNT_NS = 40_000
"""What one charge costs at most: of very many tenants each is charged less often, and more at once."""

PATIENCE_NS = 2 * SECOND_NS
SLICE = 200
"""Accounts that are seen to before others have a turn."""


class Charging:
    """`door` may hand out less than is asked for, later, or nothing: the ledger keeps what is owed."""

    def __init__(self, door: Resource, ledger: Ledger, rouse: Callable[[], None]) -> None:
        self.door = door
        self.ledger = ledger
        self.rouse = rouse
        self.charged = 0
        self._tickets: dict[str, tuple[Ticket, int]] = {}
        self._due: list[tuple[int, int, Account]] = []
        self._queued: dict[str, int] = {}
        self._number = 0
        self._seen: dict[str, tuple[int, int]] = {}

    # -- when

    def wake(self, account: Account, at: int) -> None:
        """See to the account by then."""
        if at < self._queued.get(account.tenant, 2**62):
            self._queued[account.tenant] = at
            self._number += 1
            heappush(self._due, (at, self._number, account))

    def next_at(self) -> int | None:
        return self._due[0][0] if self._due else None

    def run(self, now: int) -> list[Account]:
        """Charge all that is due; the accounts whose Envoys may have to be told something else."""
        changed = []
        for _ in range(SLICE):
            if not self._due or self._due[0][0] > now:
                break
            at, _, account = heappop(self._due)
            if self._queued.get(account.tenant) != at:
                continue
            del self._queued[account.tenant]
            if self._see_to(now, account):
                changed.append(account)
        return changed

    def _see_to(self, now: int, account: Account) -> bool:
        account.advance(now)
        self._look(now, account)
        self._ask(now, account)
        refused = account.take_refused()
        if refused:
            self.door.decider.observe(account.tenant, None, Seen(0, refused))
        reviewed = account.find_review(now)
        if reviewed:
            account.review(now, *self._count_others(account))
        wish = max(account.in_force(now), account.wish(now))
        if not wish and account.owed < 1 and account.tenant not in self._tickets:
            if not account.cells:
                self.ledger.accounts.pop(account.tenant, None)
                self._seen.pop(account.tenant, None)
            return reviewed
        pause_ns = max(TICK_NS, ACCOUNT_NS * len(self._queued))
        self.wake(account, now + max(pause_ns, min(RETRY_NS, int(SECOND_NS / max(wish, 1e-9)))))
        return account.cut(now) or account.retry(now) or reviewed

    # -- what

    def _look(self, now: int, account: Account) -> None:
        """Whether what waits was decided meanwhile."""
        found = self._tickets.get(account.tenant)
        if found is None:
            return
        ticket, since = found
        if ticket.answer is None and now - since > PATIENCE_NS:
            self.door.decider.withdraw(ticket)
            if ticket.answer is None:
                ticket.late = self._undo
                ticket = Ticket(account.tenant, 0)
        elif ticket.answer is None:
            return
        del self._tickets[account.tenant]
        self._take(account, ticket)

    def _take(self, account: Account, ticket: Ticket) -> bool:
        answer = ticket.answer
        if not isinstance(answer, Granted):
            return False
        account.charge(answer.amount)
        self.charged += answer.amount
        self.door.count_elsewhere(account.tenant, answer.amount, 0, 0, 0)
        ending = self.door.decider.finish(answer)
        if ending is not None:
            self.door.asking.end_beside(ending)
        return True

    def _undo(self, ticket: Ticket, answer: Answer) -> None:
        if isinstance(answer, Granted):
            self.door.decider.take_back(ticket.tenant, answer, answer.amount)
            self.door.decider.finish(answer)

    def _ask(self, now: int, account: Account) -> None:
        """For as much as goes at once; what does not go waits."""
        while (amount := account.find_amount()) and account.tenant not in self._tickets:
            ticket = self._open(account, amount, wait_ns=PATIENCE_NS)
            if ticket is None:
                return
            if ticket.answer is None:
                ticket.late = self._hear
                self._tickets[account.tenant] = (ticket, now)
            elif not self._take(account, ticket):
                return

    def _hear(self, ticket: Ticket, answer: Answer) -> None:
        """What waited was decided: ask for more at once, because who waits uses its pace to the full."""
        ticket.answer = answer
        account = self.ledger.accounts.get(ticket.tenant)
        if account is not None:
            self.wake(account, 0)
            self.rouse()

    def _open(self, account: Account, amount: int, *, wait_ns: int = 0) -> Ticket | None:
        """Ask the kind. None for what it does not take at all."""
        assert self.door.policy is not None, "a node has the policy of its resources"
        ticket = Ticket(account.tenant, amount, wait_ns=wait_ns, held_by=HOLDER)
        try:
            check_tenant(self.door.policy, account.tenant, self.door.decider.strangers)
            most = self.door.decider.most(ticket)
            ticket.amount = amount if most is None else max(1, min(amount, most))
            self.door.decider.decide(ticket)
        except BursarError:
            return None
        return ticket

    def charge_now(self, now: int, account: Account, tokens: float) -> bool:
        """So many at once, or none of them."""
        amount = math.ceil(tokens)
        if amount < 1:
            return True
        ticket = self._open(account, amount)
        if ticket is None:
            return False
        if ticket.answer is None:
            self.door.decider.withdraw(ticket)
        if ticket.answer is None:
            ticket.late = self._undo
            return False
        return self._take(account, ticket)

    def _count_others(self, account: Account) -> tuple[float, float]:
        """Tokens that callers of this door asked for, and got, since it was last looked."""
        granted, refused = self.door.count_of(account.tenant)
        granted, refused = granted - int(account.charged), refused - account.denied
        before = self._seen.get(account.tenant, (granted, refused))
        self._seen[account.tenant] = (granted, refused)
        got = max(0, granted - before[0])
        return got + max(0, refused - before[1]), got

    def close(self) -> None:
        for ticket, _ in self._tickets.values():
            if ticket.answer is None:
                ticket.late = self._undo
                self.door.decider.withdraw(ticket)
        self._tickets.clear()
