"""`Resource`: what users acquire from. The same for every kind, here or at a daemon.

An acquisition takes one of two ways. If the tenant's lot here covers it, it is a decrement and
nothing else. Otherwise it becomes a ticket, which the kind answers (`bursar.resource.asking`).
"""

from __future__ import annotations

from collections import defaultdict, deque
from collections.abc import Awaitable, Callable, Sequence
from typing import Any, Protocol

from bursar.errors import Refused, UsageError
from bursar.policy.values import ANYONE, ResourcePolicy
from bursar.resource.alerts import ALERTS_KEPT, Alert
from bursar.resource.asking import Asking
from bursar.resource.checks import check_amount, check_arguments, check_hold, check_name, check_wait
from bursar.resource.deadlines import Deadlines
from bursar.resource.decider import Decider, Explanation, Verb
from bursar.resource.excerpts import Wanted, excerpt
from bursar.resource.grants import Acquisition, Grant
from bursar.resource.hand import Hand
from bursar.resource.lots import Issue
from bursar.resource.only import restrict
from bursar.resource.rows import Rows, freeze, freeze_at_once
from bursar.resource.statistics import Statistics, Tally
from bursar.resource.strangers import check_tenant
from bursar.resource.tallies import TallyCounter
from bursar.resource.tickets import Granted, Ticket
from bursar.world import SECOND_NS, World


class Elsewhere(Protocol):
    """Whoever hands this resource's lots to others: a daemon, to its clients."""

    async def recall(self, door: Resource, issue: Issue) -> int | None: ...

    async def recall_all(self, door: Resource) -> None: ...


class Resource:
    """Something that tenants contend for. Its kind decides who gets how much of it.

    `policy` is None for a resource of a daemon elsewhere: tenants and shadow mode are its business."""

    def __init__(self, world: World, decider: Decider, policy: ResourcePolicy | None) -> None:
        self.name = decider.name
        self.kind = decider.kind
        self.decider = decider
        self.refunds = decider.offers.refunds
        self.settles = decider.offers.settles
        self.verbs: dict[str, Verb] = dict(decider.verbs)
        """What else can be done with it, by name: by its kind, and by the node that it is on."""
        self.alerts: deque[Alert] = deque(maxlen=ALERTS_KEPT)
        self.clock = world.clock
        self._now = world.clock.now
        self._tallies: defaultdict[str, TallyCounter] = defaultdict(TallyCounter)
        self._deadlines = Deadlines(world, f"{self.kind}.{self.name}.door")
        self.asking = Asking(world, decider, self._deadlines, self._tallies, self.give_back, self.undo)
        self.hand = Hand(decider, self._deadlines, self._tallies)
        self._lots = self.hand.lots
        self._started = False
        self._set_policy(policy)
        self.elsewhere: Elsewhere | None = None
        decider.collect = self.hand.tell
        decider.forget = self._forget
        decider.recall = self._recall

    def _set_policy(self, policy: ResourcePolicy | None) -> None:
        self.policy = policy
        self.asking.shadow = policy is not None and policy.shadow

    async def start(self) -> None:
        """Begin to decide. Called again it does nothing."""
        if not self._started:
            self._started = True
            self._deadlines.start()
            await self.decider.start()

    async def stop(self) -> None:
        """Stop deciding and let go of what is held, within a second."""
        self.hand.end_all()
        await self.decider.stop()

    async def reconfigure(self, policy: ResourcePolicy) -> None:
        """Take a changed policy. Lots come back: they were charged under the old one."""
        await self.decider.reconfigure(policy)
        self._set_policy(policy)
        self.hand.end_all()
        if self.elsewhere is not None:
            await self.elsewhere.recall_all(self)

    async def _recall(self, issue: Issue) -> int | None:
        """End a lot that is out; how many tokens came back, None if its holder did not answer."""
        if not issue.held_by:
            return self.hand.end(issue.tenant)
        return None if self.elsewhere is None else await self.elsewhere.recall(self, issue)

    # -- acquiring

    def acquire(
        self,
        tenant: str,
        amount: int = 1,
        *,
        wait: float = 0.0,
        key: str | None = None,
        hold: float | str | None = None,
    ) -> Acquisition:
        """Acquire `amount` tokens for `tenant`, waiting at most `wait` seconds for them.

        Raises Refused (decided) or Unknown (could not be learnt in time), within `wait` and a quarter
        of a second. The same `key` twice is one acquisition, for the kinds that offer keys. `hold`: how long
        it may be held until it counts as used (600, or "10min"), for the kind whose grants expire."""
        wait_ns = check_wait(wait) if wait else 0
        if key is not None:
            self._check_key(key)
        hold_ns = 0 if hold is None else self._check_hold("hold=", hold)
        return Acquisition(self, tenant, amount, wait_ns, key, hold_ns=hold_ns)

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
        self._check_names(names)
        if isinstance(names, str):
            names = [part.strip() for part in names.split(",")]
        if key is not None:
            self._check_key(key)
        return Acquisition(self, tenant, len(names), check_wait(wait), key, tuple(names), priority)

    def try_acquire(self, tenant: str, amount: int = 1) -> Grant | None:
        """Acquire from what is here already: no I/O, no waiting. None when there is not enough here,
        which is not a refusal."""
        # As `spend`, without a call of its own: this is what is asked for every request.
        lot = self._lots.get(tenant)
        if lot is not None and amount.__class__ is int and 0 < amount <= lot.left and self._now() < lot.until:
            lot.left -= amount
            lot.requests += 1
            return Grant(self, tenant, amount, lot, None)
        return self._try_further(tenant, amount)

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
                f"{self.name} holds nothing here ahead of use, so try_acquire has nothing to take from: use "
                f"`await acquire(...)`{', or set mode = fast' if self.kind == 'quota' else ''}"
            )
        try:
            ticket = self._open(tenant, amount, at_once=True)
        except Refused:
            return None
        granted = self.asking.decide_now(ticket)
        return None if granted is None else self._make(ticket, granted)

    async def take(
        self,
        tenant: str,
        amount: int,
        wait_ns: int = 0,
        key: str | None = None,
        names: tuple[str, ...] = (),
        priority: int = 0,
        hold_ns: int = 0,
        by: int | None = None,
    ) -> Grant:
        """By a ticket: what `acquire` does where no lot covers it."""
        ticket = self._open(tenant, amount, wait_ns, key, names, priority, hold_ns)
        ticket.by = by
        if not ticket.ahead:
            return self._make(ticket, await self.asking.decide(ticket))
        self.hand.refilling.add(tenant)
        try:
            return self._make(ticket, await self.asking.decide(ticket))
        finally:
            self.hand.refilling.discard(tenant)

    def _open(
        self,
        tenant: str,
        amount: int,
        wait_ns: int = 0,
        key: str | None = None,
        names: tuple[str, ...] = (),
        priority: int = 0,
        hold_ns: int = 0,
        *,
        at_once: bool = False,
    ) -> Ticket:
        ticket = Ticket(
            tenant,
            amount,
            key=key,
            names=names,
            priority=priority,
            wait_ns=wait_ns,
            at_once=at_once,
            hold_ns=hold_ns,
        )
        self.check(ticket)
        if self._may_take_ahead(ticket):
            self.hand.end(tenant)  # it does not cover what is asked, and makes way for the next
            ticket.ahead = self.hand.ahead_for(tenant)
        return ticket

    def _may_take_ahead(self, ticket: Ticket) -> bool:
        """Not for keys and names; nor for more than one unit where what is not used is to come back
        whatever happens meanwhile: that takes a grant of its own, with an id."""
        plain = self.decider.offers.lots and not (ticket.key or ticket.names or ticket.hold_ns)
        return plain and (ticket.amount == 1 or ticket.at_once or not self.settles)

    def _make(self, ticket: Ticket, granted: Granted) -> Grant:
        if granted.ahead:
            self.hand.put(ticket.tenant, granted)
        grant = Grant(self, ticket.tenant, granted.amount, None, granted)
        grant.closed = granted.replayed and granted.used is not None  # a repeat of what is over
        return grant

    async def fetch(self, tenant: str, amount: int) -> None:
        """See that there is a lot here for the next `try_acquire`: the tokens that it takes to ask go
        back. Raises Refused, Unknown."""
        grant = await self.take(tenant, amount)
        grant._used = 0
        await grant.release()

    # -- checking

    def check(self, ticket: Ticket) -> None:
        """Refuse what makes no sense, and what could never be granted."""
        tenant, policy = ticket.tenant, self.policy
        check_name("tenant", tenant)
        check_amount(ticket.amount)
        if ticket.key is not None:
            self._check_key(ticket.key)
        if ticket.names:
            self._check_names(ticket.names)
        if ticket.hold_ns:
            self._check_hold("hold=", ticket.hold_ns / SECOND_NS)
        if policy is not None:
            check_tenant(policy, tenant, self.decider.strangers)
        most = self.decider.most(ticket)
        if most is not None and ticket.amount > most:
            self._tallies[tenant].refuse(ticket.amount)
            why = (
                f"{tenant} asked for {ticket.amount} tokens of {self.name} at once, and never gets more than "
                f"{most}: ask for less"
            )
            none = f"{self.name} gives {tenant} nothing: its limit is 0"
            raise Refused(why if most else none, limit=most, reason="amount")

    def _check_key(self, key: str) -> None:
        check_name("key", key)
        if not self.decider.offers.keys:
            raise UsageError(
                f"{self.name} is of kind {self.kind}, which knows no keys; the kinds quota and claim do"
            )

    def _check_hold(self, what: str, hold: float | str) -> int:
        self.check_holds(what)
        return check_hold(hold)

    def check_holds(self, what: str) -> None:
        if not self.decider.offers.holds:
            raise UsageError(
                f"{self.name} is of kind {self.kind}, whose grants are not held for a time: {what} is for "
                "the kind quota"
            )

    def _check_names(self, names: Sequence[str]) -> None:
        if not self.decider.offers.names:
            raise UsageError(f"{self.name} is of kind {self.kind}; names are claimed from kind claim")
        if not names:
            raise UsageError('claim takes at least one name, such as "vm-7:E"')
        for name in names:
            check_name("name", name)

    # -- held for long

    async def extend(self, grant: Grant, hold: float | str) -> None:
        """It expires so long from now on. Raises UsageError, Unknown."""
        hold_ns = self._check_hold("extend", hold)
        if grant.fallback != "shadow":
            await self.decider.extend(self._find_id(grant), hold_ns)

    async def more(self, grant: Grant, names: Sequence[str], wait: float) -> None:
        """See that it holds these names too. Raises Refused, UsageError, Unknown."""
        self._check_names(names)
        await self.more_of(grant._source, tuple(names), check_wait(wait))
        grant.amount = grant._source.amount

    async def more_of(self, granted: Granted, names: tuple[str, ...], wait_ns: int) -> None:
        """The same, of a grant that a client holds."""
        self._check_names(names)
        if granted.fallback == "shadow" and self.policy is not None:
            ticket = Ticket("", len(names), names=names)
            granted.fence = {**(granted.fence or {}), **self.decider.shadow_fence(ticket)}
        else:
            await self.decider.more(granted, names, wait_ns)

    async def grow(self, grant: Grant, size: int) -> None:
        """See that it has so many tokens, before they are used. Raises Refused, UsageError, Unknown."""
        self.check_holds("spend")
        if grant.fallback != "shadow":
            size = await self.decider.grow(self._find_id(grant), size)
        self.note_size(grant.tenant, grant._source, size)
        grant.amount = size

    def note_size(self, tenant: str, granted: Granted, size: int) -> None:
        """A grant was found to have so many tokens now."""
        if size > granted.amount:
            self._tallies[tenant].add(size - granted.amount, 0)
            granted.amount = size

    def _find_id(self, grant: Grant) -> str:
        if not grant.id:
            raise UsageError(
                "this grant came from tokens ahead of use, used at once: acquire more than one token "
                "at a time, or with hold= or a key, for one that can be held"
            )
        return grant.id

    async def extend_id(self, id: str, hold_ns: int) -> None:
        """As `extend`, of a grant that is held by somebody else. Raises UsageError, Unknown."""
        check_name("id", id)
        self.check_holds("extend")
        await self.decider.extend(id, self._check_hold("extend", hold_ns / SECOND_NS))

    async def grow_id(self, id: str, size: int) -> int:
        """As `grow`; how many tokens it has."""
        check_name("id", id)
        self.check_holds("spend")
        check_amount(size)
        return await self.decider.grow(id, size)

    # -- ending

    async def end(self, grant: Grant) -> None:
        """The grant is left: give back what was not used."""
        ending = self.end_at_once(grant)
        if ending is not None:
            await ending

    def end_at_once(self, grant: Grant) -> Awaitable[None] | None:
        """The same; what takes time is left to whoever asks."""
        lot = grant._lot
        if lot is None:
            return self.give_back(grant.tenant, grant._source, grant._used)
        if grant._used is not None and grant._used < grant.amount:
            unused = grant.amount - grant._used
            self._count_returned(grant.tenant, unused)
            self.hand.give_back(lot, unused)
        return None

    def put_back(self, grant: Grant) -> None:
        """As if it had never been granted; what takes time is not waited for."""
        if grant.closed:
            return
        grant._used, grant.closed = 0, True
        ending = self.end_at_once(grant)
        if ending is not None:
            self.asking.end_beside(ending)

    def give_back(self, tenant: str, granted: Granted, used: int | None) -> Awaitable[None] | None:
        """A grant is over; `used` None: all of it was used. Done once what is returned is."""
        if granted.fallback == "shadow" and self.policy is not None:
            return self.asking.end_ghost(granted)
        unused = 0 if used is None else max(0, granted.amount - used)
        self._count_returned(tenant, unused)
        if granted.id and self.decider.offers.settles:
            return self.decider.settle(granted.id, used)
        if unused:
            self.decider.take_back(tenant, granted, unused)
        return self.decider.finish(granted)

    def undo(self, tenant: str, granted: Granted) -> Awaitable[None] | None:
        """Nobody was told of a grant. Done once what is returned is."""
        if granted.fallback == "shadow" and self.policy is not None:
            return self.asking.end_ghost(granted)
        self._count_returned(tenant, granted.amount)
        return self.decider.undo(tenant, granted)

    def _count_returned(self, tenant: str, tokens: int) -> None:
        """Of a tenant that was forgotten meanwhile, too."""
        if tokens:
            known = self.policy is None or tenant in self.policy.tenants or tenant in self._tallies
            self._tallies[tenant if known else ANYONE].returned += tokens

    def _forget(self, tenant: str) -> None:
        """A tenant of a template is gone; what was counted for it stays in the sum."""
        self.hand.forget(tenant)
        tally = self._tallies.pop(tenant, None)
        if tally is not None:
            self._tallies[ANYONE].merge(tally)

    def lose(self, granted: Granted) -> Awaitable[None] | None:
        """Whoever held it, at a client of a daemon, is gone and said nothing."""
        if granted.fallback == "shadow" and self.policy is not None:
            return self.asking.end_ghost(granted)
        return self.decider.lose(granted)

    async def whose(self, id: str) -> str:
        """The tenant of a grant, by its id. Raises UsageError, Unknown."""
        check_name("id", id)
        return await self.decider.whose(id)

    async def settle(self, id: str, used: int | None) -> None:
        """End a grant by its id (`grant.id`), from any process. Raises UsageError, Unknown."""
        check_name("id", id)
        await self.decider.settle(id, used)

    async def release_id(self, id: str, attempt: int) -> None:
        """Release a claim of which nobody here knows: the daemon that granted it was restarted, or is away.
        Raises UsageError, Unknown."""
        check_name("id", id)
        await self.decider.release(id, attempt)

    # -- telling

    async def verb(self, name: str, **arguments: Any) -> Any:
        """What else the kind does: top up a quota, submit a task."""
        found = self.verbs.get(name)
        if found is None:
            known = ", ".join(self.verbs) or "no verbs"
            raise UsageError(f"{self.name} is of kind {self.kind}, which has no {name!r}; it has {known}")
        check_arguments(name, found, arguments)
        return await found(**arguments)

    async def explain(self, tenant: str) -> Explanation:
        """Why the tenant gets what it gets: what `bursar why` prints."""
        check_name("tenant", tenant)
        found = self.decider.explain(tenant)
        return found if isinstance(found, Explanation) else await found

    async def statistics(
        self, may: Callable[[str], bool] | None = None, wanted: Wanted | None = None
    ) -> Statistics:
        """What is counted where it is decided: here, or at the daemon. `may`: only of these tenants;
        `wanted`: of so many of them, for a resource that is decided here."""
        found = self.decider.statistics()
        if isinstance(found, Awaitable):
            found = await found
        counted = found if isinstance(found, Statistics) else self._count(found)
        if may is not None:
            counted = restrict(counted, self.policy, may)
        if wanted is not None:
            counted = excerpt(counted, self._count_tokens(), wanted)
        return counted if counted is found else await freeze(counted)

    def snapshot(self) -> Statistics:
        """The same at once, for a resource of this process."""
        return freeze_at_once(self._count(self.decider.statistics()))

    def _count(self, part: Any) -> Statistics:
        assert self.policy is not None, "a resource of a daemon is asked for over the wire"
        return Statistics(
            resource=self.name,
            kind=self.kind,
            shadow=self.policy.shadow,
            without_bursar=self.policy.without_bursar.mode,
            ready=self.decider.is_ready(),
            waiting=self.asking.waiting,
            ahead=sum(lot.left for lot in self._lots.values()),
            tenants=self.tallies(),
            waited=self.asking.waited.read(),
            part=part,
            alerts=tuple(self.alerts),
        )

    def _count_tokens(self) -> dict[str, tuple[int, int]]:
        """Granted and refused, of those who asked."""
        spent = {name: lot.spent for name, lot in self._lots.items()}
        tallies = self._tallies.items()
        return {name: (tally.granted + spent.get(name, 0), tally.refused) for name, tally in tallies}

    def count_of(self, tenant: str) -> tuple[int, int]:
        """Tokens granted to a tenant, and refused, ever."""
        tally, lot = self._tallies.get(tenant), self._lots.get(tenant)
        spent = 0 if lot is None else lot.spent
        return (spent, 0) if tally is None else (tally.granted + spent, tally.refused)

    def tallies(self) -> Rows[Tally]:
        """By tenant; those that the policy lists and those that asked. "*": tenants of templates that
        are forgotten."""
        names = dict.fromkeys([*(self.policy.tenants if self.policy else ()), *self._tallies])
        return Rows(names, lambda name: self._tallies[name].read(self._lots.get(name)))

    def count_elsewhere(self, tenant: str, tokens: int, requests: int, refused: int, refusals: int) -> None:
        """What a holder elsewhere spent from its lot, and refused by itself."""
        self._tallies[tenant].add(tokens, requests)
        self._tallies[tenant].refuse(refused, refusals)
