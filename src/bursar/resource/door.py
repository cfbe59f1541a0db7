"""`Resource`: what users acquire from. The same for every kind, here or at a daemon.

An acquisition takes one of two ways. If the tenant's lot here covers it, it is a decrement and
nothing else. Otherwise it becomes a ticket, which the kind answers at once or later; the door keeps
its deadline, and gives back whatever comes too late.
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Awaitable, Sequence
from typing import Any

from bursar.errors import BursarError, Refused, Unknown, UsageError
from bursar.policy.values import ResourcePolicy, suggest
from bursar.resource.checks import check_amount, check_name, check_wait
from bursar.resource.deadlines import Deadlines
from bursar.resource.decider import Decider, Explanation, Seen
from bursar.resource.grants import Acquisition, Grant
from bursar.resource.lots import Lot
from bursar.resource.statistics import Statistics, Tally, WaitCounter
from bursar.resource.tallies import TallyCounter
from bursar.resource.tickets import Answer, Granted, Ticket
from bursar.world import MILLISECOND_NS, SECOND_NS, World

ANSWER_NS = 250 * MILLISECOND_NS
"""The longest that an answer may take beyond what the caller waits."""

AHEAD_MAX = 2**40
"""A lot is asked for as "up to this"; how many come, the rules of lots say at the kind."""


class Ghost:
    """A request in shadow mode whose caller has gone on: it waits in the caller's place."""

    __slots__ = ("ticket",)

    def __init__(self, ticket: Ticket) -> None:
        self.ticket = ticket


class Resource:
    """Something that tenants contend for. Its kind decides who gets how much of it.

    `policy` is None for a resource of a daemon elsewhere: tenants and shadow mode are its business."""

    def __init__(self, world: World, decider: Decider, policy: ResourcePolicy | None) -> None:
        self.name = decider.name
        self.kind = decider.kind
        self.decider = decider
        self.policy = policy
        self.refunds = decider.offers.refunds
        self.waited = WaitCounter()
        self._world = world
        self._now = world.clock.now
        self._lots: dict[str, Lot] = {}
        self._sated: set[str] = set()
        self._refilling: set[str] = set()
        self._tallies: defaultdict[str, TallyCounter] = defaultdict(TallyCounter)
        self._deadlines = Deadlines(world, f"{self.kind}.{self.name}.door")
        self._waiting = 0
        self._started = False
        decider.collect = self._tell_lots

    async def start(self) -> None:
        if not self._started:
            self._started = True
            self._deadlines.start()
            await self.decider.start()

    async def stop(self) -> None:
        for tenant in self.lot_holders():
            self.end_lot(tenant)
        await self.decider.stop()

    async def reconfigure(self, policy: ResourcePolicy) -> None:
        """Take a changed policy. Lots are recalled: they were charged under the old one."""
        await self.decider.reconfigure(policy)
        self.policy = policy
        for tenant in self.lot_holders():
            self.end_lot(tenant)

    # -- acquiring

    def acquire(
        self, tenant: str, amount: int = 1, *, wait: float = 0.0, key: str | None = None
    ) -> Acquisition:
        """Acquire `amount` tokens for `tenant`, waiting at most `wait` seconds for them.

        Raises Refused (decided) or Unknown (could not be learnt in time), within `wait` and a quarter
        of a second. The same `key` twice is one acquisition, for the kinds that offer keys."""
        wait_ns = check_wait(wait) if wait else 0
        if key is not None:
            self._check_key(key)
        return Acquisition(self, tenant, amount, wait_ns, key)

    def claim(
        self,
        names: Sequence[str],
        tenant: str,
        *,
        wait: float = 0.0,
        key: str | None = None,
        priority: int = 0,
    ) -> Acquisition:
        """Claim names ("vm-7:E", "host-1:S"), all or none: for the kind that offers names."""
        if not self.decider.offers.names:
            raise UsageError(f"{self.name} is of kind {self.kind}; names are claimed from kind claim")
        if isinstance(names, str):
            names = [part.strip() for part in names.split(",")]
        if not names:
            raise UsageError('claim takes at least one name, such as "vm-7:E"')
        for name in names:
            check_name("name", name)
        if key is not None:
            self._check_key(key)
        return Acquisition(self, tenant, len(names), check_wait(wait), key, tuple(names), priority)

    def try_acquire(self, tenant: str, amount: int = 1) -> Grant | None:
        """Acquire from what is here already: no I/O, no waiting. None when there is not enough here,
        which is not a refusal."""
        grant = self.spend(tenant, amount)
        return self._try_further(tenant, amount) if grant is None else grant

    def spend(self, tenant: str, amount: int) -> Grant | None:
        """From the tenant's lot, if it covers the amount."""
        lot = self._lots.get(tenant)
        if lot is None or amount.__class__ is not int or not 0 < amount <= lot.left:
            return None
        if self._now() >= lot.until:
            return None
        lot.left -= amount
        lot.requests += 1
        return Grant(self, tenant, amount, lot, None)

    def _try_further(self, tenant: str, amount: int) -> Grant | None:
        if not self.decider.offers.lots:
            raise UsageError(
                f"{self.name} holds nothing here ahead of use, so try_acquire has nothing to take from: "
                f"use `await acquire(...)`{' (or mode = fast)' if self.kind == 'quota' else ''}"
            )
        try:
            ticket = self._open(tenant, amount, 0, None, (), 0, at_once=True)
        except Refused:
            return None
        self.decider.decide(ticket)
        if ticket.answer is None:
            return self._miss(ticket)
        if isinstance(ticket.answer, UsageError):
            raise ticket.answer
        if isinstance(ticket.answer, Granted):
            self._tallies[tenant].grant(ticket.answer)
            return self._make(ticket, ticket.answer)
        return self._turn_away(ticket, ticket.answer)

    def _miss(self, ticket: Ticket) -> Grant | None:
        """It cannot be granted now, and nobody waits for it."""
        ticket.late = self._undo
        return self._turn_away(ticket, self.decider.withdraw(ticket))

    def _turn_away(self, ticket: Ticket, answer: BursarError | None) -> Grant | None:
        if self._shadow:
            return self._make(ticket, self._let_through(ticket))
        if isinstance(answer, Refused):
            self._tallies[ticket.tenant].refuse(ticket.amount)
        return None

    async def take(
        self, tenant: str, amount: int, wait_ns: int, key: str | None, names: tuple[str, ...], priority: int
    ) -> Grant:
        """By a ticket: what `acquire` does where no lot covers it."""
        ticket = self._open(tenant, amount, wait_ns, key, names, priority)
        if not ticket.ahead:
            return self._make(ticket, await self.decide(ticket))
        self._refilling.add(tenant)
        try:
            return self._make(ticket, await self.decide(ticket))
        finally:
            self._refilling.discard(tenant)

    def _open(
        self,
        tenant: str,
        amount: int,
        wait_ns: int,
        key: str | None,
        names: tuple[str, ...],
        priority: int,
        at_once: bool = False,
    ) -> Ticket:
        check_name("tenant", tenant)
        check_amount(amount)
        offers = self.decider.offers
        lots = offers.lots and key is None and not names
        if lots:
            self.end_lot(tenant)  # it does not cover what is asked, and makes way for the next
        ticket = Ticket(
            tenant,
            amount,
            key=key,
            names=names,
            priority=priority,
            wait_ns=wait_ns,
            at_once=at_once,
            ahead=AHEAD_MAX if lots and self._is_hungry(tenant) else 0,
        )
        self.check(ticket)
        return ticket

    def check(self, ticket: Ticket) -> None:
        """Refuse what could never be granted: an unknown tenant, more than there ever is."""
        tenant, policy = ticket.tenant, self.policy
        if ticket.key is not None:
            self._check_key(ticket.key)
        if ticket.names and not self.decider.offers.names:
            raise UsageError(f"{self.name} is of kind {self.kind}; names are claimed from kind claim")
        if policy is not None and policy.tenants and tenant not in policy.tenants:
            raise Refused(f'{self.name} has no tenant "{tenant}"{suggest(tenant, policy.tenants)}')
        most = self.decider.most(ticket)
        if most is not None and ticket.amount > most:
            self._tallies[tenant].refuse(ticket.amount)
            raise Refused(
                f"{tenant} asked for {ticket.amount} tokens of {self.name} at once, and never gets more than "
                f"{most}: ask for less",
                limit=most,
            )

    def _check_key(self, key: str) -> None:
        check_name("key", key)
        if not self.decider.offers.keys:
            raise UsageError(
                f"{self.name} is of kind {self.kind}, which knows no keys; the kinds quota and claim do"
            )

    # -- deciding

    async def decide(self, ticket: Ticket) -> Granted:
        """What the kind says to a ticket, in time. Raises Refused, Unknown or UsageError."""
        asked_at = self._now()
        self.decider.decide(ticket)
        answer = ticket.answer
        if answer is None:
            if self._shadow:
                return self._leave_ghost(ticket)
            answer = await self._wait(ticket, asked_at)
        if isinstance(answer, Granted):
            self.waited.add((self._now() - asked_at) / SECOND_NS)
            self._tallies[ticket.tenant].grant(answer)
            return answer
        if self._shadow and not isinstance(answer, UsageError):
            return self._let_through(ticket)
        self._tallies[ticket.tenant].fail(ticket.amount, answer)
        raise answer

    async def _wait(self, ticket: Ticket, asked_at: int) -> Answer:
        patience_ns = max(ticket.wait_ns, min(self.decider.patience_ns(ticket), ANSWER_NS))
        if patience_ns <= 0:
            self._expire(ticket)
            if ticket.answer is not None:
                return ticket.answer
        deadline = self._deadlines.add(asked_at + patience_ns, self._expire, ticket)
        self._waiting += 1
        try:
            return await ticket.wait()
        except BaseException:
            self._abandon(ticket)
            raise
        finally:
            self._waiting -= 1
            deadline.done = True

    def _expire(self, ticket: Ticket) -> None:
        """Its time is up: it is refused, or its answer is on the way and may take a moment longer."""
        if ticket.answer is not None:
            return
        refusal = self.decider.withdraw(ticket)
        if ticket.answer is not None:
            return
        if refusal is not None:
            ticket.give(refusal)
        else:
            self._deadlines.add(self._now() + ANSWER_NS, self._give_up, ticket)

    def _give_up(self, ticket: Ticket) -> None:
        if ticket.answer is None:
            ticket.give(Unknown(f"{self.name} did not decide in time"))
            ticket.late = self._undo

    def forsake(self, ticket: Ticket) -> None:
        """Whoever asked elsewhere wants it no more: whoever waits for the answer here is told so."""
        if ticket.answer is None:
            self.decider.withdraw(ticket)
        if ticket.answer is None:
            ticket.give(Unknown("the client gave up"))
            ticket.late = self._undo

    def _abandon(self, ticket: Ticket) -> None:
        """Whoever asked is gone: nothing stays held."""
        if ticket.answer is not None:
            self._undo(ticket, ticket.answer)
            return
        ticket.late = self._undo
        self.decider.withdraw(ticket)

    def _undo(self, ticket: Ticket, answer: Answer) -> None:
        """A grant that nobody wants."""
        if not isinstance(answer, Granted) or answer.replayed:
            return
        if answer.ahead:
            self.decider.end_lot(ticket.tenant, answer.lot or answer, Seen(), answer.ahead)
        ending = self.give_back(ticket.tenant, answer, 0)
        if ending is not None:
            self._spawn(ending)

    def _spawn(self, work: Awaitable[None]) -> None:
        async def run() -> None:
            try:
                await work
            except BursarError as error:
                self._world.trace("door.not_given_back", resource=self.name, why=str(error))

        self._world.spawn(run(), f"{self.kind}.{self.name}.back")

    # -- shadow mode: everybody goes, and what would have been refused is counted

    @property
    def _shadow(self) -> bool:
        return self.policy is not None and self.policy.shadow

    def _leave_ghost(self, ticket: Ticket) -> Granted:
        """The caller goes at once; its request waits on, and counts only if its time runs out."""
        patience_ns = max(ticket.wait_ns, min(self.decider.patience_ns(ticket), ANSWER_NS))
        self._deadlines.add(self._now() + patience_ns, self._expire_ghost, ticket)
        return self._shadow_grant(ticket, Ghost(ticket))

    def _expire_ghost(self, ticket: Ticket) -> None:
        if ticket.answer is None and ticket.late is None:
            self._tallies[ticket.tenant].let_through(ticket.amount)
            self._abandon(ticket)

    def _let_through(self, ticket: Ticket) -> Granted:
        self._tallies[ticket.tenant].let_through(ticket.amount)
        return self._shadow_grant(ticket, None)

    def _shadow_grant(self, ticket: Ticket, ghost: Ghost | None) -> Granted:
        fence = self.decider.shadow_fence(ticket)
        granted = Granted(ticket.amount, fence=fence, fallback="shadow", data=ghost)
        self._tallies[ticket.tenant].grant(granted)
        return granted

    def _end_ghost(self, ghost: Ghost | None) -> Awaitable[None] | None:
        if ghost is None:
            return None
        answer = ghost.ticket.answer
        if isinstance(answer, Granted):
            return self.give_back(ghost.ticket.tenant, answer, None)
        if ghost.ticket.late is None and answer is None:
            self._abandon(ghost.ticket)
        return None

    # -- lots

    def _make(self, ticket: Ticket, granted: Granted) -> Grant:
        if granted.ahead:
            self.end_lot(ticket.tenant)
            lot = self._lots[ticket.tenant] = Lot(ticket.tenant, granted.lot or granted)
            lot.deadline = self._deadlines.add(lot.until, self._expire_lot, lot)
        grant = Grant(self, ticket.tenant, granted.amount, None, granted)
        grant.closed = granted.replayed and granted.used is not None  # a repeat of what is over
        return grant

    def _is_hungry(self, tenant: str) -> bool:
        """Tokens ahead go to whoever used up its last lot, not to whoever let one pass; and one
        request at a time asks for them."""
        if tenant in self._refilling:
            return False
        if tenant in self._sated:
            self._sated.discard(tenant)
            return False
        return True

    def _expire_lot(self, lot: Lot) -> None:
        """Its time is over. What was left of it was not wanted."""
        if self._lots.get(lot.tenant) is lot:
            if lot.left:
                self._sated.add(lot.tenant)
            self.end_lot(lot.tenant)

    def end_lot(self, tenant: str) -> int:
        """The tenant's lot here is over; what was left of it goes back to the kind, and is returned."""
        lot = self._lots.pop(tenant, None)
        if lot is None:
            return 0
        lot.deadline.done = True
        left, lot.left = lot.left, 0
        lot.size -= left
        self._tallies[tenant].add(lot.spent, lot.requests)
        self.decider.end_lot(tenant, lot.granted, Seen(lot.tell(), 0, lot.requests), left)
        return left

    async def fetch(self, tenant: str, amount: int) -> None:
        """See that there is a lot here for the next `try_acquire`: the tokens that it takes to ask go
        back. Raises Refused, Unknown."""
        grant = await self.take(tenant, amount, 0, None, (), 0)
        grant._used = 0
        await grant.release()

    def lot_holders(self) -> list[str]:
        """The tenants that have a lot here."""
        return list(self._lots)

    def _tell_lots(self) -> None:
        """Tell the kind what was spent from lots up to now: it is about to look at demand."""
        for tenant, lot in self._lots.items():
            news = lot.tell()
            if news:
                self.decider.observe(tenant, lot.granted, Seen(news, 0))

    # -- ending a grant

    async def end(self, grant: Grant) -> None:
        """The grant is left: give back what was not used."""
        lot = grant._lot
        if lot is not None:
            unused = 0 if grant._used is None else grant.amount - grant._used
            if unused:
                self._return_to_lot(grant.tenant, lot, unused)
            return
        granted = grant._source
        ending = self.give_back(grant.tenant, granted, grant._used)
        if ending is not None:
            await ending

    def _return_to_lot(self, tenant: str, lot: Lot, unused: int) -> None:
        self._tallies[tenant].returned += unused
        if self._lots.get(tenant) is lot:
            lot.left += unused
            lot.returned += unused
        else:
            self.decider.take_back(tenant, lot.granted, unused)

    def give_back(self, tenant: str, granted: Granted, used: int | None) -> Awaitable[None] | None:
        """A grant is over; `used` None: all of it was used. Done once what is returned is."""
        if granted.fallback == "shadow":
            return self._end_ghost(granted.data)
        unused = 0 if used is None else granted.amount - used
        self._tallies[tenant].returned += unused
        if granted.id and self.decider.offers.settles:
            return self.decider.settle(granted.id, used)
        if unused:
            self.decider.take_back(tenant, granted, unused)
        return self.decider.finish(granted)

    def lose(self, granted: Granted) -> Awaitable[None] | None:
        """Whoever held it, at a client of a daemon, is gone and said nothing."""
        return self._end_ghost(granted.data) if granted.fallback == "shadow" else self.decider.lose(granted)

    async def settle(self, id: str, used: int | None) -> None:
        """End a grant by its id (`grant.id`), from any process. Raises UsageError, Unknown."""
        check_name("id", id)
        if not self.decider.offers.settles:
            raise UsageError(f"{self.name} is of kind {self.kind}, whose grants have no ids; a quota's have")
        await self.decider.settle(id, used)

    # -- telling

    async def verb(self, name: str, **arguments: Any) -> Any:
        """What else the kind does: top up a quota, submit a task."""
        found = self.decider.verbs.get(name)
        if found is None:
            known = ", ".join(self.decider.verbs) or "none"
            raise UsageError(f"{self.name} is of kind {self.kind}, which cannot {name!r}; it can: {known}")
        return await found(**arguments)

    async def explain(self, tenant: str) -> Explanation:
        check_name("tenant", tenant)
        found = self.decider.explain(tenant)
        return found if isinstance(found, Explanation) else await found

    async def statistics(self) -> Statistics:
        found = self.decider.statistics()
        if isinstance(found, Awaitable):
            found = await found
        return found if isinstance(found, Statistics) else self.snapshot(found)

    def snapshot(self, part: Any = None) -> Statistics:
        """What is counted here, now: for a resource of this process."""
        assert self.policy is not None, "a resource of a daemon is asked for over the wire"
        return Statistics(
            resource=self.name,
            kind=self.kind,
            shadow=self._shadow,
            without_bursar=self.policy.without_bursar.mode,
            ready=self.decider.is_ready(),
            waiting=self._waiting,
            ahead=sum(lot.left for lot in self._lots.values()),
            tenants=self.tallies(),
            waited=self.waited.read(),
            part=self.decider.statistics() if part is None else part,
        )

    def tallies(self) -> dict[str, Tally]:
        """By tenant; those that the policy lists and those that asked."""
        names = dict.fromkeys([*(self.policy.tenants if self.policy else ()), *self._tallies])
        return {name: self._tallies[name].read(self._lots.get(name)) for name in names}

    def count_elsewhere(self, tenant: str, tokens: int, requests: int, refused: int, refusals: int) -> None:
        """What a holder elsewhere spent from its lot, and refused by itself."""
        self._tallies[tenant].add(tokens, requests)
        self._tallies[tenant].refuse(refused, refusals)
