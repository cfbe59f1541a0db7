"""The server's book: which tokens this server may spend, and until when."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np

from bursar.book import Effects, Send
from bursar.rates.blocks import Blocks
from bursar.rates.messages import Ack, Grant, Poll, Report, Row
from bursar.rates.observation import Observation, is_news
from bursar.rates.scheduler import Scheduler, Whole
from bursar.world import Message


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
    ) -> None:
        self.name = name
        self.incarnation = incarnation
        self.tenants = tuple(tenants)
        self.scheduler = scheduler
        self.blocks = blocks
        self.granted = False
        self._lives: tuple[int, ...] = ()
        self._held_until = 0
        self.observed = Observation(len(self.tenants))
        self.epoch = 0
        self.sequence = 0
        self.period = 0
        self.openings = 0
        self.began_at = 0
        self.expires_at = 0
        self._index = {tenant: index for index, tenant in enumerate(self.tenants)}
        self._left: dict[str, int] | None = None
        self._used: list[int] = []
        self._reported: tuple[Row, ...] | None = None
        self._reported_at = 0
        self._reported_to: tuple[str, int] | None = None

    def index(self, tenant: str) -> int | None:
        """The tenant's number at this server; None for one that it does not know."""
        return self._index.get(tenant)

    def may_dispatch(self, now: int) -> bool:
        """Whether the tokens here are still good."""
        return now < self.expires_at

    def receive(self, now: int, sender: str, message: Message) -> Effects:
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
        if self.blocks is not None and not self.granted and poll.period > self.period:
            self._resume(now, poll.period, self.blocks)
        return [Send(sender, self._report(now, sender, poll))]

    def _resume(self, now: int, period: int, blocks: Blocks) -> None:
        """Take up what earlier lives held of this period, all of it spent, if that is known."""
        spent = blocks.resume(period)
        if spent is None:
            return
        self.period, self._lives, self._reported = period, blocks.past.lives, None
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
        rows: tuple[Row, ...] | None = self._rows(now)
        assert rows is not None
        observed = self.observed
        if not poll.full and to == self._reported_to and not is_news(self._reported, rows):
            rows = None
        else:
            self._reported, self._reported_to, self._reported_at = rows, to, now
        report = Report(
            server=self.name,
            incarnation=self.incarnation,
            asked_at=poll.asked_at,
            sent_at=now,
            stands_at=self._reported_at,
            epoch=self.epoch,
            sequence=self.sequence,
            period=self.period,
            time_left_ns=max(0, (self.expires_at or self._held_until) - now),
            seen_ns=now - observed.since,
            served=observed.served,
            busy_ns=observed.busy_ns,
            rows=rows,
            lives=self._lives if poll.period <= self.period else (),
        )
        observed.reset(now, self.scheduler.pending)
        return report

    def _rows(self, now: int) -> tuple[Row, ...]:
        observed = self.observed
        pending = _whole(self.scheduler.pending)
        dispatched = _whole(self.scheduler.dispatched) if self._left is None else [0] * len(pending)
        numbers = zip(self._allowances(), dispatched, pending, observed.arrived, strict=True)
        return tuple(
            Row(tenant, *row, observed.was_backlogged(index, now))
            for index, (tenant, row) in enumerate(zip(self.tenants, numbers, strict=True))
            if any(row)
        )

    def _allowances(self) -> list[int]:
        """By tenant, of the present period: while alone, what was left of the controller's."""
        if self._left is not None:
            return [self._left.get(tenant, 0) for tenant in self.tenants]
        return _whole(self.scheduler.allowance)

    def _take(self, now: int, sender: str, grant: Grant) -> Effects:
        stale = (grant.epoch, grant.sequence) < (self.epoch, self.sequence)
        ended = grant.period < self.period or (grant.period == self.period and self._left is not None)
        if stale or ended or grant.incarnation != self.incarnation:
            return []
        if (grant.epoch, grant.sequence) > (self.epoch, self.sequence):
            self._apply(now, grant)
        # A repeated grant is acknowledged again: the first acknowledgement may be lost.
        return [Send(sender, self._acknowledge(grant))]

    def _apply(self, now: int, grant: Grant) -> None:
        self.epoch, self.sequence = grant.epoch, grant.sequence
        self.granted = True
        self.expires_at = grant.sent_at + grant.time_left_ns
        if grant.period > self.period:
            self.period = grant.period
            self._left, self._lives = None, ()
            self._open(now)
            if self.blocks is not None:
                self.blocks.open_period(self.period, self.began_at, self.expires_at)
        allowance, priority, pace = columns = np.zeros((3, len(self.tenants)), np.int64)
        for row in grant.rows:
            index = self._index.get(row.tenant)
            if index is not None:
                columns[:, index] = row.allowance, row.priority, row.pace
        kept = np.maximum(allowance, self.scheduler.dispatched)
        if self.blocks is not None:
            dispatched = _whole(self.scheduler.dispatched)
            self.scheduler.cap_many(self.blocks.grant(_whole(kept), dispatched, self.expires_at))
        self.scheduler.grant_many(np.arange(kept.size), kept, priority, pace, now)

    def _open(self, now: int) -> None:
        """Tokens of another period: the pace begins when the server has them."""
        self.openings += 1
        self.began_at = now
        self.scheduler.open_period(now)

    def _acknowledge(self, grant: Grant) -> Ack:
        granted = {row.tenant: row.allowance for row in grant.rows}
        raised = tuple(
            (tenant, allowance)
            for tenant, allowance in zip(self.tenants, self._allowances(), strict=True)
            if allowance != granted.get(tenant, 0)
        )
        return Ack(self.name, self.incarnation, grant.epoch, grant.sequence, self.period, raised)

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
            self._used = _whole(self.scheduler.dispatched)
        used = self._used + [0] * (len(self.tenants) - len(self._used))
        first = _whole(self.scheduler.priority)
        self._open(now)
        self.expires_at = now + period_ns
        for index, (tokens, limit) in enumerate(zip(used, limits, strict=True)):
            tokens = min(tokens if safe is None else safe, limit)
            self.scheduler.grant(index, tokens, min(first[index], tokens), max(1, tokens), now)

    @property
    def alone(self) -> bool:
        """Whether it serves without a controller now."""
        return self._left is not None

    @property
    def charged_to(self) -> int:
        """The period that whatever goes now is charged to; 0 for none."""
        return 0 if self.alone else self.period

    def add_tenant(self, now: int, tenant: str, weight: int) -> None:
        """A tenant that the policy did not list before; it has nothing yet."""
        index = self.scheduler.add(weight)
        assert index == len(self.tenants), "the scheduler's tenants are the book's"
        self.tenants = (*self.tenants, tenant)
        self._index[tenant] = index
        if self.blocks is not None:
            self._count_spent(now, index, self.blocks.add_tenant(tenant))
        self.observed.add_tenant()
