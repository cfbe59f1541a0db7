"""The server's book: which tokens this server may spend, and until when."""

from __future__ import annotations

from collections.abc import Callable, Sequence

import numpy as np

from bursar.book import Effects, Send
from bursar.rates.allotment import Allotment
from bursar.rates.blocks import Blocks
from bursar.rates.columns import UNNAMED, pack
from bursar.rates.grace import Grace
from bursar.rates.messages import NO_PART, UNBOUNDED, Ack, Grant, Left, Part, Poll, Report, Rows
from bursar.rates.observation import Observation, is_news
from bursar.rates.parts import count_part
from bursar.rates.scheduler import Scheduler, Whole
from bursar.rates.terms import Terms
from bursar.world import Message

FindTerms = Callable[[str], Terms | None]

FREE = ""
"""As a tenant's name: nobody has this number now."""


def _find_nothing(tenant: str) -> Terms | None:
    return None


def _whole(counts: Whole) -> list[int]:
    """As Python's numbers, which can be sent: all at once, because one by one is slow."""
    whole: list[int] = np.asarray(counts).tolist()
    return whole


class ServerBook:
    """All that keeps a server from spending tokens that are not its own.

    Invariants:
    - a grant is taken only if its (epoch, sequence) is higher than the last one's, and only if it
      is addressed to this life of the server;
    - `dispatched <= allowance` for every tenant: an allowance is never set below what was
      dispatched, so that the acknowledged one is the truth;
    - nothing is dispatched at or after `expires_at`, which is counted from the sending of the
      report that the grant answers: no clock but the server's own is read;
    - once the server went on by itself (`without_bursar`) it takes no more tokens of that period,
      because it no longer knows what it has dispatched of them;
    - tokens come back only to the opening that they were charged to (`openings` counts them): a
      period's own tokens, never another's;
    - a tenant that no grant of the period has named has the part of its limit that the grant says, by the
      terms that the period was opened with, if the server knows those; else nothing;
    - a tenant is forgotten only while nothing of the present period is charged to it;
    - a period that nobody granted is begun only if it is the one after a granted one, with the part that
      the last grant of that one said, when every token of that one has ended on every clock (`grace`);
    - once it has left, it dispatches nothing more and takes no grant;
    - with `blocks`, nothing is dispatched that no durable line states; what comes back may go again,
      because the lines go on stating it. Until its first grant this life then holds what earlier ones
      charged of the period that it was last asked for, all of it spent, and says so (`lives`); it
      never turns to an earlier period than that.

    The tokens themselves are in the scheduler, which charges what it chooses.
    """

    def __init__(
        self,
        name: str,
        incarnation: int,
        tenants: Sequence[str],
        scheduler: Scheduler,
        blocks: Blocks | None = None,
        *,
        period_ns: int = 0,
    ) -> None:
        """Without a `period_ns` it begins no period alone."""
        self.name = name
        self.incarnation = incarnation
        self.tenants = list(tenants)
        self.scheduler = scheduler
        self.blocks = blocks
        self.grace = Grace(period_ns)
        self.short: dict[str, int] = {}
        self.granted = False
        self.left = False
        self.idle: set[int] = set()
        self._named: FindTerms = _find_nothing
        self._digest = ""
        self._opened_named: FindTerms = _find_nothing
        self._opened_digest = ""
        self._part = NO_PART
        self._parted = (NO_PART, 0)
        self._allotment = Allotment()
        self._numbers = [-1] * len(self.tenants)
        self._resumed: dict[str, int] = {}
        self._parts = [0] * len(self.tenants)
        self._lives: tuple[int, ...] = ()
        self._held_until = 0
        self.observed = Observation(len(self.tenants))
        self.epoch = 0
        self.sequence = 0
        self.period = 0
        self.openings = 0
        self.began_at = 0
        self.expires_at = 0
        self._index = {tenant: index for index, tenant in enumerate(self.tenants) if tenant != FREE}
        self._left: dict[str, int] | None = None
        self._used: dict[str, int] = {}
        self._safe: int | None = None
        self._reported: Whole | None = None
        self._reported_at = 0
        self._reported_to: tuple[str, int] | None = None

    @property
    def leader(self) -> str | None:
        """Whoever asked last."""
        return None if self._reported_to is None else self._reported_to[0]

    def index(self, tenant: str) -> int | None:
        """The tenant's number at this server; None for one that it does not know."""
        return self._index.get(tenant)

    def set_terms(self, find: FindTerms, digest: str) -> None:
        """What tenants are promised, from the next period on, and the name of these terms."""
        self._named, self._digest = find, digest

    def may_dispatch(self, now: int) -> bool:
        """Whether the tokens here are still good."""
        return now < self.expires_at and not self.left

    def receive(self, now: int, sender: str, message: Message) -> Effects:
        if self.left:
            return [Send(sender, self._tell_left(now))] if isinstance(message, Poll) else []
        match message:
            case Poll():
                return self._answer(now, sender, message)
            case Grant():
                return self._take(now, sender, message)
        return []

    def _answer(self, now: int, sender: str, poll: Poll) -> Effects:
        # A deposed leader is answered too: the epoch in the report tells it so.
        if poll.epoch > self.epoch:
            self.epoch, self.sequence = poll.epoch, 0
        if poll.period > self.period:
            self.grace.give_up()
        self.begin_next(now)
        if self.blocks is not None and not self.granted and poll.period > self.period:
            self._resume(now, poll.period, self.blocks)
        return [Send(sender, self._report(now, sender, poll))]

    def _resume(self, now: int, period: int, blocks: Blocks) -> None:
        """Take up what earlier lives held of this period, all of it spent, if that is known."""
        spent = blocks.resume(period)
        if spent is None:
            return
        self.period, self._lives, self._reported = period, blocks.past.lives, None
        self._open_with(NO_PART)
        self._resumed = dict(blocks.past.levels.get(period, {}))
        self._open(now)
        for index, tokens in enumerate(spent):
            self._count_spent(now, index, tokens)
        began_at, ends_at = blocks.span
        # A clock that began anew does not tell how long ago they were granted: a whole period at most.
        self.began_at, self._held_until = (began_at, ends_at) if ends_at else (now, now + blocks.period_ns)

    def _count_spent(self, now: int, index: int, tokens: int) -> None:
        if tokens:
            self.scheduler.spend(index, tokens)
            self.scheduler.grant(index, tokens, now=now)

    def _report(self, now: int, sender: str, poll: Poll) -> Report:
        to = (sender, poll.epoch)
        whole = poll.full or to != self._reported_to
        indices, table = self._look(now, whole)
        rows: Rows | None = None
        if whole or is_news(self._reported, table) or self._resumed:
            rows = self._make_rows(indices, table[1:], whole)
            self._reported, self._reported_to, self._reported_at = table, to, now
        observed = self.observed
        report = Report(
            server=self.name,
            incarnation=self.incarnation,
            asked_at=poll.asked_at,
            sent_at=now,
            stands_at=self._reported_at,
            epoch=self.epoch,
            sequence=self.sequence,
            period=self.period,
            time_left_ns=self._find_left_ns(now),
            seen_ns=now - observed.since,
            capacity=observed.capacity,
            rows=rows,
            lives=self._lives if poll.period <= self.period else (),
            part=self._part,
            over_ns=self.grace.tell(now, self.period, poll.period),
        )
        observed.reset(now, self.scheduler.pending)
        return report

    def _find_left_ns(self, now: int) -> int:
        """How long the tokens of the period are good. What it spends alone is of no period."""
        return 0 if self.alone else max(0, (self.expires_at or self._held_until) - now)

    def _look(self, now: int, whole: bool) -> tuple[list[int], Whole]:
        """Of whoever asks for anything or was served; and, for the whole, of whoever has other than its part
        here. The columns are the number here, and those of a row."""
        observed = self.observed
        counts = np.zeros((4, len(self.tenants)), np.int64)
        counts[0] = self._allowances()
        counts[1] = 0 if self.alone else self.scheduler.dispatched
        counts[2], counts[3] = observed.queued, observed.arrived
        chosen = counts[1:].any(axis=0)
        if whole:
            chosen |= counts[0] != self._parts
        indices: list[int] = np.flatnonzero(chosen).tolist()
        table = np.empty((8, len(indices)), np.int64)
        table[0], table[1:5] = indices, counts[:, chosen]
        table[5] = [observed.was_backlogged(index, now) for index in indices]
        table[6:] = np.array([self._find_front(index, now) for index in indices], np.int64).reshape(-1, 2).T
        return indices, table

    def _make_rows(self, indices: list[int], columns: Whole, whole: bool) -> Rows:
        """By the numbers that the leader has given them, if it is the one that asks; else by name."""
        known = not whole and self._allotment.is_of(self.epoch)
        numbers = np.array([self._numbers[index] if known else -1 for index in indices], np.int64)
        numbered = numbers >= 0
        order = np.argsort(~numbered, kind="stable")
        names = [self.tenants[indices[place]] for place in np.flatnonzero(~numbered).tolist()]
        absent = self._list_absent(whole)
        elsewhere = np.zeros((len(columns), len(absent)), np.int64)
        if absent:
            elsewhere[0] = list(absent.values())
            elsewhere[1] = [self._resumed.get(tenant, 0) for tenant in absent]
        table = np.concatenate([columns[:, order], elsewhere], axis=1)
        return Rows(
            self._allotment.roll if numbered.any() else 0,
            whole,
            pack(numbers[numbered]),
            (*names, *absent),
            tuple(map(pack, table)),
        )

    def _find_front(self, index: int, now: int) -> tuple[int, int]:
        """What the first request that waits costs, and how long it has been the first."""
        if not self.observed.queued[index]:
            return 0, 0
        return self.scheduler.front_cost(index), now - self.observed.front_at[index]

    def _list_absent(self, whole: bool) -> dict[str, int]:
        """Tenants that have not asked for anything in this life, and what they have: of which an earlier one
        charged something, and (for the whole) which have other than their part here. (There may be thousands
        of them, of which there is nothing to say but what was granted.)"""
        names = dict.fromkeys(self._resumed)
        if whole:
            names |= dict.fromkeys(tenant for tenant, _ in self._allotment.list_named())
        return {tenant: self.find_held(tenant) for tenant in names if tenant not in self._index}

    def _allowances(self) -> Sequence[int] | Whole:
        """By tenant, of the present period: while alone, what was left of the controller's."""
        if self._left is not None:
            return [self.find_held(tenant) for tenant in self.tenants]
        return np.asarray(self.scheduler.allowance)

    def find_held(self, tenant: str) -> int:
        """What the tenant was allowed here in the present period, whether it ever asked or not."""
        if self._left is not None and tenant in self._left:
            return self._left[tenant]
        row = self._allotment.find(tenant)
        allowed = self._count_part(tenant) if row is None else row.allowance
        return max(allowed, self._resumed.get(tenant, 0))

    def _count_part(self, tenant: str) -> int:
        return count_part(tenant, self._opened_named(tenant), self.name, self._part) if tenant else 0

    def _take(self, now: int, sender: str, grant: Grant) -> Effects:
        stale = (grant.epoch, grant.sequence) < (self.epoch, self.sequence)
        ended = grant.period < self.period or (grant.period == self.period and self._left is not None)
        if stale or ended or grant.incarnation != self.incarnation:
            return []
        if (grant.epoch, grant.sequence) > (self.epoch, self.sequence):
            if not self._allotment.take(grant):
                return []  # as if it were lost
            self._apply(now, grant)
        # A repeated grant is acknowledged again: the first acknowledgement may be lost.
        return [Send(sender, self._acknowledge(grant))]

    def _apply(self, now: int, grant: Grant) -> None:
        self.epoch, self.sequence = grant.epoch, grant.sequence
        self.granted = True
        self.expires_at = grant.sent_at + grant.time_left_ns
        opens = grant.period > self.period
        if opens:
            self._opened_named, self._opened_digest = self._named, self._digest
            self._begin(now, grant.period)
        # Parts are counted by the terms of the period: who does not know these has none.
        known = grant.terms == self._opened_digest
        self.grace.hear(now, grant, grant.standing if known else NO_PART, opens=opens)
        self._open_with(grant.part if known else NO_PART)
        self.short = dict(grant.short)
        if grant.rows.names or not grant.rows.known:
            find = self._allotment.find_number
            self._numbers = [find(tenant) for tenant in self.tenants]
        self._allow(now)

    def begin_next(self, now: int) -> bool:
        """Nobody has spoken of the next period, and it is time: begin it with the part that is fixed."""
        if self.left or self.alone or not self.grace.is_due(now, self.expires_at):
            return False
        self.expires_at = self.grace.find_end(self.expires_at)
        self._begin(now, self.period + 1)
        self._open_with(self.grace.begin())
        self._allotment.clear()
        self._allow(now)
        return True

    def _begin(self, now: int, period: int) -> None:
        self.period = period
        self._left, self._lives, self._resumed = None, (), {}
        self.idle = set(self._find_idle())
        self._open(now)
        if self.blocks is not None:
            self.blocks.open_period(self.period, self.began_at, self.expires_at)

    def _allow(self, now: int) -> None:
        """What is allotted counts; whoever is not named has its part."""
        levels, priority, paces = self._allotment.read(np.array(self._numbers, np.int64))
        parts = np.array(self._parts, np.int64)
        allowance = np.where(levels == UNNAMED, parts, levels)
        pace = np.where(levels == UNNAMED, np.where(parts < UNBOUNDED, parts, 0), paces)
        kept = np.maximum(allowance, self.scheduler.dispatched)
        if self.blocks is not None:
            dispatched = _whole(self.scheduler.dispatched)
            self.scheduler.cap_many(self.blocks.grant(_whole(kept), dispatched, self.expires_at))
        self.scheduler.grant_many(np.arange(kept.size), kept, priority, pace, now)

    def _open_with(self, part: Part) -> None:
        """The part is the same throughout a period, for as long as one leader has it."""
        if (part, self.period) != self._parted:
            self._part, self._parted = part, (part, self.period)
            self._parts = [self._count_part(tenant) for tenant in self.tenants]

    def _open(self, now: int) -> None:
        """Tokens of another period: the pace begins when the server has them."""
        self.openings += 1
        self.began_at = now
        self.scheduler.open_period(now)

    def _acknowledge(self, grant: Grant) -> Ack:
        """What was granted, but for whoever has more."""
        levels, _, _ = self._allotment.read(np.array(self._numbers, np.int64))
        granted = np.where(levels == UNNAMED, np.array(self._parts, np.int64), levels)
        allowances = np.asarray(self._allowances(), np.int64)
        raised = [
            (self.tenants[k], int(allowances[k])) for k in np.flatnonzero(allowances != granted).tolist()
        ]
        absent = self._list_absent(whole=False)
        raised += [(tenant, held) for tenant, held in absent.items() if held != self._find_granted(tenant)]
        return Ack(self.name, self.incarnation, grant.epoch, grant.sequence, self.period, tuple(raised))

    def _find_granted(self, tenant: str) -> int:
        row = self._allotment.find(tenant)
        return self._count_part(tenant) if row is None else row.allowance

    def reach(self, index: int, cost: int) -> bool:
        """A request did not go. Whether its tenant's ceiling could be raised, so that it may now."""
        if self.blocks is None or self.alone:
            return False
        tokens = self.scheduler
        allowance, dispatched = tokens.read_allowance(index), tokens.read_dispatched(index)
        ceiling = self.blocks.reach(index, allowance, dispatched, cost)
        if ceiling is None:
            return False
        tokens.cap(index, ceiling)
        return True

    def reach_all(self) -> bool:
        """The same for every tenant that waits for nothing else; whether any may go now."""
        if self.blocks is None:
            return False
        costs = {index: self.scheduler.front_cost(index) for index in self.scheduler.find_short()}
        raised = [index for index, cost in costs.items() if self.reach(index, cost)]
        return bool(raised)

    def waits_for_disk(self, index: int, cost: int) -> bool:
        """Whether only what is being written keeps a request of the tenant from going."""
        if self.blocks is None or self.alone:
            return False
        tokens = self.scheduler
        allowance, dispatched = tokens.read_allowance(index), tokens.read_dispatched(index)
        return self.blocks.is_short(index, allowance, dispatched, cost)

    def synced(self, lines: int) -> None:
        """The first so many lines of the blocks' are durable."""
        assert self.blocks is not None, "a book without blocks writes nothing"
        self.blocks.synced(lines)

    def go_on_alone(self, now: int, period_ns: int, safe: int | None, limits: Sequence[int]) -> None:
        """Serve a period without a controller: what each tenant was charged here in the last period
        that there was, or `safe` tokens each, and never more than its limit. They are charged to no
        period of a controller's."""
        if self._left is None:
            self._left = dict(zip(self.tenants, _whole(self.scheduler.allowance), strict=True))
            self._used = dict(zip(self.tenants, _whole(self.scheduler.dispatched), strict=True))
        self._safe = safe
        self.grace.give_up()
        first = _whole(self.scheduler.priority)
        self._open(now)
        self.expires_at = now + period_ns
        for index, limit in enumerate(limits):
            self._grant_alone(now, index, limit, first[index])

    def _grant_alone(self, now: int, index: int, limit: int, first: int = 0) -> None:
        tenant = self.tenants[index]
        tokens = min(self._used.get(tenant, 0) if self._safe is None else self._safe, limit)
        if tenant != FREE:
            self.scheduler.grant(index, tokens, min(first, tokens), tokens, now)

    @property
    def alone(self) -> bool:
        """Whether it serves without a controller now."""
        return self._left is not None

    @property
    def charged_to(self) -> int:
        """The period that whatever goes now is charged to; 0 for none."""
        return 0 if self.alone else self.period

    # -- who is known -----------------------------------------------------------------------

    def add_tenant(self, now: int, tenant: str, terms: Terms, index: int | None = None) -> None:
        """A tenant that was not here lately, under a number that nobody has: it has what it was allowed in
        this period, of which nothing is dispatched."""
        index = len(self.tenants) if index is None else index
        if index == len(self.tenants):
            added = self.scheduler.add(terms.weight)
            assert added == index, "the scheduler's tenants are the book's"
            self.tenants.append(tenant)
            self.observed.add_tenant()
            self._parts.append(0)
            self._numbers.append(-1)
        else:
            assert self.tenants[index] == FREE, "a number is one tenant's at a time"
            self.scheduler.reset(index, terms.weight)
            self.tenants[index] = tenant
        self._index[tenant] = index
        self._numbers[index] = self._allotment.find_number(tenant)
        self._parts[index] = self._count_part(tenant)
        if self.blocks is not None:
            self._count_spent(now, index, self.blocks.add_tenant(index, tenant))
        self._admit(now, tenant, index, terms)

    def _admit(self, now: int, tenant: str, index: int, terms: Terms) -> None:
        if self.alone:
            self._grant_alone(now, index, UNBOUNDED if terms.limit is None else terms.limit)
        elif self.granted:
            row = self._allotment.find(tenant)
            allowance, priority = self._parts[index], 0
            pace = allowance if allowance < UNBOUNDED else 0
            if row is not None:
                allowance, priority, pace = row.allowance, row.priority, row.pace
            allowance = max(allowance, self.scheduler.read_dispatched(index))
            if self.blocks is not None:
                self.scheduler.cap(index, self.blocks.grant_one(index, allowance))
            self.scheduler.grant(index, allowance, priority, pace, now)

    def forget(self, index: int) -> None:
        """Nobody asks for it any more. Its number goes to another tenant."""
        assert self.may_forget(index), "its limit would begin anew"
        del self._index[self.tenants[index]]
        self.idle.discard(index)
        self.tenants[index] = FREE
        self.scheduler.reset(index, 1)
        self._parts[index], self._numbers[index] = 0, -1
        self.observed.arrived[index] = 0

    def may_forget(self, index: int) -> bool:
        """Whether the tenant was idle for a whole period, and still is."""
        return index in self.idle and not self.alone and self._is_unused(index)

    def _is_unused(self, index: int) -> bool:
        return not self.observed.arrived[index] and self.scheduler.is_unused(index)

    def _find_idle(self) -> list[int]:
        """Those to whom nothing was charged in the period that ends now."""
        unused = np.flatnonzero(self.scheduler.dispatched == 0).tolist()
        return [index for index in unused if self.tenants[index] != FREE and self._is_unused(index)]

    def leave(self, now: int) -> Left:
        """Dispatch nothing more, and say what was."""
        self.left = True
        return self._tell_left(now)

    def _tell_left(self, now: int) -> Left:
        dispatched = _whole(self.scheduler.dispatched)
        rows = zip(self.tenants, self._allowances() if self.alone else dispatched, strict=True)
        time_left_ns = self._find_left_ns(now)
        spent = {**self._resumed, **{tenant: tokens for tenant, tokens in rows if tokens}}
        return Left(self.name, self.incarnation, self.period, time_left_ns, tuple(spent.items()))
