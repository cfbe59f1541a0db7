"""The queues before one server: who waits, who goes next, and when.

Requests wait in a queue for each tenant until the scheduler chooses them, the server's book says
that its tokens are good, and the server has room: at most `capacity` tokens a second, and at most
`concurrency` requests at a time, where these are given.
"""

from __future__ import annotations

from collections import OrderedDict
from collections.abc import Callable, Collection

from bursar.courier import Alarm
from bursar.errors import Refused, Unknown, UsageError
from bursar.policy.values import REFUSE, WithoutBursar
from bursar.rates.capacity import Capacity
from bursar.rates.charges import Charge
from bursar.rates.learnt import SLICE_NS, LearntCapacity
from bursar.rates.promises import Promises
from bursar.rates.refusals import DISK_NS, explain_refusal
from bursar.rates.server import ServerBook
from bursar.rates.service import Services
from bursar.rates.terms import Terms
from bursar.resource import PLACE_NS, Ahead, Granted, Issue, Seen, Ticket
from bursar.world import MILLISECOND_NS, SECOND_NS, World

TURNOVER_NS = 250 * MILLISECOND_NS
"""Between the end of one period and the first tokens of the next: bursar's own pause, which a request
that wants no wait is not told of."""

START_NS = SECOND_NS
"""The same for the very first tokens, after the start."""

SOON_NS = 20 * MILLISECOND_NS
"""Whoever begins to ask here and does not go within that is told of at once, not with the next report."""

AHEAD_SHARE = 8
"""Tokens ahead are at most this part of what is left of the limit, as a quota's are: of a small limit
none, or what one caller keeps would be refused to another."""

PATIENCE_MAX_NS = 250 * MILLISECOND_NS


def _nothing() -> None: ...


class Dispatcher:
    """Queues, scheduler and book of one server. `dispatched` is called with (tenant, period, tokens)
    for all that is charged (and, with fewer than none, for what comes back): how the simulator sees
    the truth. `wanted` is called when a tenant begins to ask that has no tokens here. Without `ahead`, no
    lots are handed out."""

    def __init__(
        self,
        world: World,
        book: ServerBook,
        *,
        period_ns: int,
        capacity: float | None = None,
        concurrency: int | None = None,
        without_bursar: WithoutBursar = REFUSE,
        promises: Promises | None = None,
        ahead: Ahead | None = None,
        dispatched: Callable[[str, int, int], None] | None = None,
    ) -> None:
        self.book = book
        self.period_ns = period_ns
        self.capacity = Capacity(capacity)
        self.services = Services(concurrency, LearntCapacity() if capacity is None else None)
        self.promises = promises or Promises(period_ns, book.tenants)
        self.without_bursar = without_bursar
        self.charged = [0] * len(book.tenants)
        self.charged_alone = [0] * len(book.tenants)
        self.returned = [0] * len(book.tenants)
        self._kept: dict[str, tuple[int, int, int]] = {}
        self._world = world
        self._now = world.clock.now
        self._started_at = 0
        self.promises.servers.append(self)
        self._ahead = ahead if concurrency is None else None
        self._dispatched = dispatched
        self.wanted: Callable[[], None] = _nothing
        self._queues: list[OrderedDict[Ticket, None]] = [OrderedDict() for _ in book.tenants]
        self._waiting = 0
        self._pump_at: int | None = None
        self._alarm = Alarm(world, f"rate/{book.name}/queues", self._wake_at, self._wake)

    def start(self) -> None:
        self._started_at = self._now()
        self._alarm.start()

    # -- asking -----------------------------------------------------------------------------

    def grants_now(self, ticket: Ticket) -> bool:
        """The same as joining the queue and being let go, where nobody waits for the server: most
        requests go this way. (Who waits for tokens of its own does not wait for the server.) With it
        go tokens ahead, if they are wanted."""
        now, index = self._now(), self._find(ticket.tenant)
        if self.services.forgotten:
            self.services.end_forgotten(now)
        if not self._may_dispatch(now) or not self.has_room(now):
            return False
        more = self._find_ahead(now, ticket, index) if ticket.ahead else 0
        take, in_debt = self.book.scheduler.take, self.capacity.debt_ns > 0
        got = take(index, ticket.amount, now, more=more, first_only=in_debt)
        if got is None and self.book.reach(index, ticket.amount):
            got = take(index, ticket.amount, now, more=more, first_only=in_debt)
        if got is None:
            return False
        self.book.observed.arrived[index] += ticket.amount
        ticket.give(self._grant(now, index, ticket, got))
        return True

    def note_arrival(self, ticket: Ticket) -> None:
        """A request came that does not go at once: demand, whatever becomes of it."""
        index = self._find(ticket.tenant)
        observed = self.book.observed
        if observed.quiet[index] and self._lacks(index, ticket.amount):
            observed.quiet[index] = False
            self.wanted()
        observed.arrived[index] += ticket.amount

    def _lacks(self, index: int, amount: int) -> bool:
        """Whether those who wait here have not the tokens, or not the pace, to go soon."""
        short = self.unused(index) < self.book.observed.queued[index] + amount
        return short or self.book.scheduler.find_due(index, amount) > self._now() + SOON_NS

    def allows(self, ticket: Ticket) -> bool:
        """Whether the tenant has been allowed so much here at once."""
        return self.book.scheduler.read_allowance(self._find(ticket.tenant)) >= ticket.amount

    def queue(self, ticket: Ticket) -> None:
        """It waits until it is its turn; `ticket.place` are all the servers where it does."""
        index, now = self._find(ticket.tenant), self._now()
        queue = self._queues[index]
        queue[ticket] = None
        self.book.observed.queued[index] += ticket.amount
        if len(queue) == 1:
            self.book.observed.began_to_wait(index, now)
            self._price_front(index)
        self.book.scheduler.arrive(index, 1, now)
        self._waiting += 1
        self.pump()

    def drop(self, ticket: Ticket) -> None:
        """It waits no more: it goes elsewhere, or nobody wants it."""
        index = self._find(ticket.tenant)
        queue = self._queues[index]
        was_first = next(iter(queue)) is ticket
        del queue[ticket]
        self.book.observed.queued[index] -= ticket.amount
        self._waiting -= 1
        self.book.scheduler.withdraw(index)
        if was_first:
            self._price_front(index)

    def explain_refusal(self, ticket: Ticket) -> Refused | Unknown:
        """Why it does not go now."""
        return explain_refusal(self, self._now(), ticket, self._find(ticket.tenant))

    def patience_ns(self, ticket: Ticket) -> int:
        """How long the pause between two periods, or before the first, may still last; or that for
        the disk."""
        now = self._now()
        if self.book.may_dispatch(now):
            return DISK_NS if self.waits_for_disk(ticket) else 0
        ends_at = self.book.expires_at + TURNOVER_NS if self.book.granted else self._started_at + START_NS
        return max(0, min(ends_at - now, PATIENCE_MAX_NS))

    def waits_for_disk(self, ticket: Ticket) -> bool:
        """Whether what the tenant has for it is still being written to the journal."""
        return self.book.waits_for_disk(self._find(ticket.tenant), ticket.amount)

    def _find(self, tenant: str) -> int:
        index = self.book.index(tenant)
        if index is None:
            raise UsageError(f"tenant {tenant!r} is not in the policy; add it to the resource's tenants")
        return index

    def _price_front(self, index: int) -> None:
        queue = self._queues[index]
        if queue:
            self.book.observed.front_at[index] = self._now()
            self.book.scheduler.price(index, next(iter(queue)).amount)
        else:
            self.book.observed.ran_empty(index, self._now())

    # -- charging ---------------------------------------------------------------------------

    def _grant(self, now: int, index: int, ticket: Ticket, ahead: int) -> Granted:
        """The scheduler charged the request, and tokens ahead with it."""
        book = self.book
        self._charge(now, index, ticket.amount + ahead)
        service = self.services.begin(now, ticket.amount) if self.services.is_watched else None
        issue = self._issue(ticket, ahead) if ahead else None
        granted = Granted(
            ticket.amount,
            period=book.charged_to,
            ahead=ahead,
            until=book.expires_at if ahead else 0,
            fallback=self.without_bursar.mode if book.alone else None,
            limit=self.promises.terms(index).limit,
            remaining=self.remaining(index),
            reset_ns=self.ends_at - now,
            data=Charge(self, index, book.openings, service, issue),
        )
        if issue is not None and service is not None:
            # Whoever keeps the lot must not keep the request in service.
            granted.lot = Granted(
                0,
                period=granted.period,
                ahead=ahead,
                until=granted.until,
                limit=granted.limit,
                remaining=granted.remaining,
                reset_ns=granted.reset_ns,
                data=Charge(self, index, book.openings, None, issue),
            )
        return granted

    def _charge(self, now: int, index: int, tokens: int) -> None:
        counts = self.charged_alone if self.book.alone else self.charged
        counts[index] += tokens
        large = self.capacity.is_large(tokens)
        self.capacity.spend(now, tokens, self.book.scheduler.beyond if large else 0)
        if self._dispatched is not None:
            self._dispatched(self.book.tenants[index], self.book.charged_to, tokens)

    def _find_ahead(self, now: int, ticket: Ticket, index: int) -> int:
        """How many tokens may go ahead of use: rules 1 and 2 of lots. None of those that a server
        spends on its own, which are charged to no period; and none while requests have to be watched, to
        see what the server can do."""
        learnt = self.services.learnt
        if self._ahead is None or self.book.alone or (learnt is not None and not learnt.is_calm(now)):
            return 0
        if any(server.count_waiting(index) for server in self.promises.servers):
            return 0  # another of its requests has first claim, at whichever server it waits
        place_max = int(self.rate * PLACE_NS / SECOND_NS)
        burst = self.promises.burst(index, self.book.scheduler.read_pace(index))
        tenant_max = place_max if burst is None else burst
        room = self._ahead.room(now, ticket.tenant, self.book.name, tenant_max, place_max)
        left = self.remaining(index)
        if left is not None:
            room = min(room, (left - ticket.amount) // AHEAD_SHARE)
        spare = self.capacity.find_spare(now)
        return max(0, min(ticket.ahead, room) if spare is None else min(ticket.ahead, room, spare))

    def _issue(self, ticket: Ticket, tokens: int) -> Issue:
        assert self._ahead is not None, "where no lots are handed out, nothing is charged ahead"
        book = self.book
        return self._ahead.issue(
            ticket.tenant, book.name, ticket.held_by, tokens, book.expires_at, book.charged_to
        )

    def take_back(self, charge: Charge, unused: int) -> None:
        """So many tokens were not used: within their period, they are as if they had not been charged."""
        now = self._now()
        if charge.service is not None:
            self.services.undo(now, charge.service, unused)
        if charge.opening != self.book.openings:
            return
        self.book.scheduler.give_back(charge.index, unused, now)
        self.returned[charge.index] += unused
        self.capacity.give_back(now, unused)
        if self._dispatched is not None:
            self._dispatched(self.book.tenants[charge.index], self.book.charged_to, -unused)
        self.pump()

    def observe(self, tenant: str, seen: Seen) -> None:
        """What a holder of a lot saw is demand, here and now."""
        self.book.observed.arrived[self._find(tenant)] += seen.arrived + seen.refused
        if self.services.learnt is not None:
            self.services.learnt.note(self._now(), seen.arrived)

    def look_up(self) -> None:
        """A report is about to be made: count what was not counted yet."""
        if self.services.forgotten:
            self.pump()
        if self.services.learnt is not None:
            self.services.learnt.look(self._now())
        self.book.observed.capacity = self.rate

    def finish(self, charge: Charge) -> None:
        """A request that was dispatched is done: there is room for another."""
        if charge.service is not None:
            self.services.end(self._now(), charge.service)
            self.pump()

    # -- telling ----------------------------------------------------------------------------

    def remaining(self, index: int) -> int | None:
        """What is left to the tenant of its limit; of what it has here, while the server is alone."""
        return self.unused(index) if self.book.alone else self.promises.remaining(index)

    @property
    def rate(self) -> float:
        """Tokens a second that the server can do, as given or as learnt; 0 for any number."""
        learnt = self.services.learnt
        return (self.capacity.rate or 0.0) if learnt is None else learnt.rate

    @property
    def ends_at(self) -> int:
        """When the period ends: later than the last grant says, if the next one will say so."""
        book = self.book
        return book.expires_at if book.alone else max(book.expires_at, book.began_at + self.period_ns)

    def used(self, index: int) -> int:
        """Tokens charged to the tenant in this period."""
        return self.book.scheduler.read_dispatched(index)

    def unused(self, index: int) -> int:
        """Tokens that the tenant still has here in this period."""
        scheduler = self.book.scheduler
        return max(0, scheduler.read_allowance(index) - scheduler.read_dispatched(index))

    def count_waiting(self, index: int) -> int:
        """Requests of the tenant in the queue, by its number."""
        return len(self._queues[index]) if index < len(self._queues) else 0

    def waiting(self, tenant: str) -> int:
        """Requests of the tenant in the queue."""
        return len(self._queues[self._find(tenant)])

    def waiters(self, tenant: str) -> Collection[Ticket]:
        """Those requests. One may wait at several servers."""
        return self._queues[self._find(tenant)]

    def left(self, tenant: str) -> int:
        """Tokens that the tenant has here beyond what its waiting requests need."""
        index = self._find(tenant)
        return self.unused(index) - len(self._queues[index])

    def is_ready(self) -> bool:
        """Whether a request would be decided now."""
        now = self._now()
        book = self.book
        return book.may_dispatch(now) or book.grace.is_due(now, book.expires_at) or self._alone_at() <= now

    def set_terms(self, tenant: str, terms: Terms, burst_ns: int) -> None:
        """Of a tenant, which may be new here: it has what it was allowed in this period, unasked."""
        if self.book.index(tenant) is None:
            self._add(tenant, terms)
        index = self._find(tenant)
        self.book.scheduler.set_weight(index, terms.weight)
        self.book.scheduler.set_burst(index, burst_ns)

    def _add(self, tenant: str, terms: Terms) -> None:
        index = self.promises.index(tenant)
        assert index is not None, "a tenant's number is given by the node"
        while len(self._queues) <= index:
            self._queues.append(OrderedDict())
            for counts in self._counts:
                counts.append(0)
        for counts, count in zip(self._counts, self._kept.pop(tenant, (0, 0, 0)), strict=True):
            counts[index] = count
        self.book.add_tenant(self._now(), tenant, terms, index)

    def forget(self, index: int, *, keep: bool) -> None:
        """The tenant was not seen for a period. `keep` what was counted, for when it comes back."""
        if keep:
            charged, alone, returned = (counts[index] for counts in self._counts)
            self._kept[self.book.tenants[index]] = (charged, alone, returned)
        self.book.forget(index)

    def may_forget(self, index: int) -> bool:
        return self.book.may_forget(index)

    @property
    def _counts(self) -> tuple[list[int], list[int], list[int]]:
        return self.charged, self.charged_alone, self.returned

    def read_counts(self, tenant: str) -> tuple[int, int, int]:
        """Tokens charged, charged alone, and returned, ever."""
        index = self.book.index(tenant)
        if index is None:
            return self._kept.get(tenant, (0, 0, 0))
        return self.charged[index], self.charged_alone[index], self.returned[index]

    def set_capacity(self, rate: float | None) -> None:
        """What the server can do from now on; None to find out."""
        if rate != self.capacity.rate:
            self.capacity = Capacity(rate)
            self.services.learnt = LearntCapacity() if rate is None else None

    def retire(self) -> list[Ticket]:
        """The server is no more: those who waited here, and wait nowhere now."""
        self.promises.servers.remove(self)
        tickets = list(dict.fromkeys(ticket for queue in self._queues for ticket in queue))
        for ticket in tickets:
            for server in list(ticket.place):
                server.drop(ticket)
        return tickets

    # -- choosing ---------------------------------------------------------------------------

    def pump(self) -> None:
        """Let go all that may go now."""
        now = self._now()
        if self.services.forgotten:
            self.services.end_forgotten(now)
        if not self._waiting:
            return
        if not self._may_dispatch(now):
            return
        scheduler = self.book.scheduler
        self.book.reach_all()
        while self._waiting and self.has_room(now):
            in_debt = self.capacity.debt_ns > 0
            index = scheduler.choose(now, first_only=in_debt)
            if index < 0 and self.book.reach_all():
                continue
            if index < 0:
                self._wait_for_tokens()
                if in_debt:
                    self._pump_by(self.capacity.clear_at)
                return
            self._let_go(now, index)

    def _let_go(self, now: int, index: int) -> None:
        ticket, _ = self._queues[index].popitem(last=False)
        self.book.observed.queued[index] -= ticket.amount
        self._price_front(index)
        self._waiting -= 1
        for server in ticket.place:
            if server is not self:
                server.drop(ticket)
        ticket.give(self._grant(now, index, ticket, 0))

    def _may_dispatch(self, now: int) -> bool:
        return self.book.may_dispatch(now) or self._begins_next(now) or self._goes_on_alone(now)

    def _begins_next(self, now: int) -> bool:
        """The period is over and no leader has opened another: it may be known what this server has of it."""
        if self.book.begin_next(now):
            self._world.trace("rate.begun_alone", server=self.book.name, period=self.book.period)
            return True
        starts_at = None if self.book.alone else self.book.grace.find_start(self.book.expires_at)
        if starts_at is not None and starts_at > now:
            self._pump_by(starts_at)
        return False

    def _wait_for_tokens(self) -> None:
        """Nobody may go. Pacing lets somebody go at a known time; else only a grant, an arrival or
        the end of these tokens changes that."""
        release = self.book.scheduler.find_release()
        expires_at = self.book.expires_at
        self._pump_by(expires_at if release is None else min(release, expires_at))

    def _alone_at(self) -> int:
        """When the server goes on by itself: a whole period without a word, then at once."""
        book = self.book
        if self.without_bursar.mode == "refuse" or not book.granted or book.left:
            return 2**63
        return book.expires_at + (0 if book.alone or book.grace.unheard else self.period_ns)

    def _goes_on_alone(self, now: int) -> bool:
        """Bursar cannot be reached: do as the policy says."""
        alone_at = self._alone_at()
        if now < alone_at:
            if alone_at < 2**63:
                self._pump_by(alone_at)
            return False
        rate = self.without_bursar.rate
        safe = rate.per(self.period_ns) if rate else None
        self.book.go_on_alone(now, self.period_ns, safe, self.promises.limits)
        self._world.trace("rate.alone", server=self.book.name, mode=self.without_bursar.mode)
        return True

    def has_room(self, now: int) -> bool:
        """Whether the server can take another request."""
        if self.services.is_full(now):
            if self.services.learnt is not None:
                self._pump_by(now + SLICE_NS)
            return False
        if self.capacity.has_room(now):
            return True
        self._pump_by(self.capacity.rests_until)
        return False

    def find_free(self, index: int) -> int:
        """When the server takes a request of the tenant, if nobody else comes: one with priority does
        not wait for what others' large requests left to be done."""
        first = self.book.scheduler.is_first(index)
        return self.capacity.rests_until if first else self.capacity.clear_at

    def _pump_by(self, moment_ns: int) -> None:
        self._pump_at = moment_ns if self._pump_at is None else min(self._pump_at, moment_ns)
        self._alarm.set()

    def _wake_at(self) -> int | None:
        return self._pump_at

    def _wake(self, now: int) -> None:
        if self._pump_at is not None and self._pump_at <= now:
            self._pump_at = None
            self.pump()
