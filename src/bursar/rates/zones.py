"""Zones: a controller for the servers of each, and one above them that moves tokens between zones.

**The idea** (the rate paper's future work: to distribute the token control). One controller that asks every
server in every interval is asked too much where servers are many, and too far away where they stand in
several places. So the servers of a zone have a controller of their own, elected among the nodes of that
zone, and a global one, elected among all nodes, moves tokens between zones at a longer interval. Both are the
controller that a rate without zones has (`controller`), with the same placement and the same couriers:

- to the global controller a zone is a server. It has a capacity (what its servers can do together), a demand
  (what they see), an allowance and a priority part of each tenant's tokens, and a life: the epoch of the
  zone's leader. `ZoneBook` answers for it, as a `ServerBook` answers for a server;
- to its servers a zone's controller is the controller. In place of a tenant's limit, reservation and pace it
  has what the zone was granted of them (`narrow`), and in place of the period that follows the one that
  was granted from above.

    global controller --Poll, Grant--> ZoneBook of eu | the zone's controller --Poll, Grant--> servers of eu
                      <-Report, Ack--                 |                       <-Report, Ack--

**The invariant** is the rate's: requests charged to a period never exceed the tenant's limit, over all
zones. It is the rate's rules twice, joined by three more:

1. *A zone gives out what it has.* What the zone's servers may hold of a period (its controller's bounds) and
   the zone was granted of it are compared by tenant whenever tokens are placed: a bound rises only within
   the grant. A grant that is smaller than the bounds is acknowledged with what the bounds are, and never as
   it stands before they have fallen. So the global bound for a zone is at least what its servers can spend,
   and the global bounds add up to the limit.
2. *One period.* A zone opens no period but the one that it was granted, or has a standing part of, and
   charges everything to its number. Its tokens end when the grant says, counted from the sending of the
   zone's own report; each server's from its own. As both end early by a fast clock's measure, the global
   controller's guard covers both levels.
3. *One life at a time speaks for a zone.* A zone's leader writes its epoch, and every period that it opens,
   to the store by compare-and-set. Whoever follows it knows therefore which periods may have been opened, and
   answers for those before it only when every server that was listed has answered, and so takes nothing from
   its predecessor any more: it says what they hold in all; and of a later period, that there is nothing.
   What was granted to a life before it is charged until then.

**Cut off.** A zone that does not hear the global controller keeps what it has of the period; and has its
standing part, one of as many as there are zones, of the `ALONE_PERIODS` after it. Whoever opens these counts
that part as the zone's, whether it is heard or not. So limits hold for as long as it lasts, and nobody else
has that part while a zone is dead: that is the price. The zone's leader needs the store to open a period;
where the whole zone has lost that too, its servers do as `without_bursar` says when the period is over.
When a zone hears of a later period again, its standing part of those before it is given up.

**What differs from one level.** A tenant's demand that moves to another zone waits for two rounds, unless a
server says that it is wanted (`Wanted`, which is passed on). Servers of a zone begin no period alone: their
zone does. Tenants in no message have parts of parts: a limit is divided among zones, then in the zone.
"""

from __future__ import annotations

from collections.abc import Callable, Collection, Container, Iterable, Mapping
from dataclasses import replace

import numpy as np
from msgspec.structs import astuple

from bursar.book import Effects, Send
from bursar.rates.allotment import Allotment
from bursar.rates.columns import Whole, make_rows
from bursar.rates.controller import ControllerBook
from bursar.rates.grace import Grace
from bursar.rates.messages import NO_PART, UNBOUNDED, Ack, Allowance, Grant, Part, Poll, Report, Row
from bursar.rates.observation import is_news
from bursar.rates.parts import count_part, split
from bursar.rates.terms import Terms, lift
from bursar.rates.views import ServerView
from bursar.world import SECOND_NS, Message

ALONE_PERIODS = 30
"""How many periods in a row a zone may begin with its standing part. A dead zone's part is nobody's for so
long; and a change of the policy waits for a zone that cannot be told of it, at most so long."""

FORMER_MAX = 16
"""Lives before its own that a zone answers for, at most. What others had counts as spent."""


class ZoneBook:
    """What a zone has of the present period, while this node leads it.

    Invariants:
    - a grant is taken only if its (epoch, sequence) is higher than the last one's, and it is addressed to
      this life of the zone: the epoch in which its controller leads;
    - what is acknowledged or reported as the zone's allowance is never less than what its servers may hold;
    - of a period that a life before this one may have opened, it answers for that only once all servers have
      said what they hold; where some do not, it has none of it but what it is granted itself, and gives out
      none of that either;
    - a period that nobody granted is begun only with the part that the last grant said, when every token of
      the one before has ended on every clock (`grace`), and in a row at most `ALONE_PERIODS` times;
    - whoever asks for a later period is told that this zone has nothing of it, and then that is so.
    """

    def __init__(
        self,
        name: str,
        number: tuple[int, int],
        book: ControllerBook,
        find_rate: Callable[[str], float],
        *,
        period_ns: int,
        answer_ns: int,
    ) -> None:
        """`number`: which of the zones it is, of how many. `find_rate`: what a server of it can do, in tokens
        a second. `answer_ns`: how long an acknowledgement waits for servers to give tokens up."""
        self.name = name
        self._number = number
        self._book = book
        self._find_rate = find_rate
        self._period_ns = period_ns
        self._answer_ns = answer_ns
        self.life = 0
        self._reset(0)

    def _reset(self, life: int) -> None:
        self.life = life
        self.period = 0
        self.expires_at = 0
        self.terms = ""
        self.granted = False
        self.asked_at: int | None = None
        self.leader: str | None = None
        self.short: Mapping[str, int] = {}
        self.grace = Grace(self._period_ns, ALONE_PERIODS)
        self._epoch = self._sequence = 0
        self._part = NO_PART
        self._allotment = Allotment()
        self._resumed: dict[str, int] = {}
        self._lives = tuple(range(max(1, life - FORMER_MAX), life))
        self._knows_from = 0
        self._asked_since: int | None = None
        self._unanswered: tuple[str, Grant, int] | None = None
        self._reported: dict[str, Row] | None = None
        self._reported_to: tuple[str, int] | None = None
        self._reported_at = 0

    def look(self) -> bool:
        """Whether this node leads the zone, perhaps only now."""
        if self._book.leading and self._book.state.epoch != self.life:
            self._reset(self._book.state.epoch)
        return self._book.leading

    def is_new(self) -> bool:
        """Whether there is a period for the zone's controller to open."""
        return self.granted and self.period > self._book.state.period

    # -- what the zone's controller has from here (`views.Above`)

    def narrow(self, terms: Mapping[str, Terms]) -> dict[str, Terms]:
        present = self.period == self._book.state.period >= self._knows_from
        if not present and not self._book.complete:
            return dict(terms)  # then nothing but what is held may be moved, whatever the limit is
        held = {} if present else self._book.count_held(terms)
        return {tenant: self._narrow(tenant, each, held.get(tenant)) for tenant, each in terms.items()}

    def _narrow(self, tenant: str, terms: Terms, held: int | None) -> Terms:
        row = self._find_row(tenant) if held is None else None
        limit = held if held is not None else self.find(tenant, terms)
        if row is not None:
            reservation, pace = row.priority, row.pace
        else:
            reservation, pace = split(tenant, terms.reservation, *self._number), limit
        if limit >= UNBOUNDED:
            return replace(terms, limit=None, reservation=reservation, pace=0)
        return replace(terms, limit=limit, reservation=min(reservation, limit), pace=pace)

    def find_named(self) -> Iterable[str]:
        return dict.fromkeys([*self._resumed, *(tenant for tenant, _ in self._allotment.list_named())])

    def _find_row(self, tenant: str) -> Allowance | None:
        """What the last grant says, or what the zone's servers held when this life took it up."""
        held = self._resumed.get(tenant)
        return self._allotment.find(tenant) if held is None else Allowance(tenant, held, 0)

    def nest(self, part: Part) -> Part:
        """The zone's servers have parts of everybody's limit if the zone has."""
        return Part(part.place, part.of, *self._number) if part.of and self._part.of else NO_PART

    def find(self, tenant: str, terms: Terms) -> int:
        """What the zone may use of the period."""
        row = self._find_row(tenant)
        return self._count_part(tenant, terms) if row is None else row.allowance

    def _count_part(self, tenant: str, terms: Terms) -> int:
        return count_part(tenant, lift(terms), self.name, self._part)

    # -- what the global controller asks and grants

    def receive(self, now: int, sender: str, message: Message) -> Effects:
        if not self.look():
            return []
        match message:
            case Poll():
                return self._answer(now, sender, message)
            case Grant():
                self._take(now, sender, message)
        return []

    def _answer(self, now: int, sender: str, poll: Poll) -> Effects:
        if poll.epoch > self._epoch:
            self._epoch, self._sequence = poll.epoch, 0
        if poll.period > self.period:
            self.grace.give_up()
        self.leader, self.asked_at = sender, now
        self._asked_since = now if self._asked_since is None else self._asked_since
        self.begin_next(now)
        if self.period < max(poll.period, self._book.state.period) and not self.granted:
            self._take_up(now, poll.period)
        if self.period < self._book.state.period:
            return []  # somebody before this life opened it, and what is out is not known yet
        return [Send(sender, self._report(now, sender, poll))]

    def _take_up(self, now: int, asked_for: int) -> None:
        """What there is of the period, of all lives before this one. Where servers do not say what they hold
        this life begins with nothing, and leaves what there is charged to those before it."""
        book, opened = self._book, self._book.state.period
        waited_ns = now - (now if self._asked_since is None else self._asked_since)
        if asked_for <= opened and not book.complete and waited_ns < self._answer_ns:
            return
        self.period = self._knows_from = max(asked_for, opened)
        self._forget_rows()
        self._part, self._reported = NO_PART, None
        if self.period == opened and book.complete:
            self._resume()
        elif self.period == opened:
            self._knows_from += 1

    def _resume(self) -> None:
        """Its servers have said what they hold, and whether they have parts."""
        book = self._book
        views = self._views()
        tenants = dict.fromkeys(row.tenant for view in views for row in book.tokens.list_rows(view))
        self._part = Part(*self._number) if any(view.acknowledged.part.of for view in views) else NO_PART
        self._resumed = book.count_held(tenants)
        self.terms, self.expires_at = book.state.terms, book.ends_at

    def _take(self, now: int, sender: str, grant: Grant) -> None:
        newer = (grant.epoch, grant.sequence) > (self._epoch, self._sequence)
        if not newer or grant.period < self.period or grant.incarnation != self.life:
            return
        if not self._allotment.take(grant):
            return  # as if it were lost
        self._epoch, self._sequence = grant.epoch, grant.sequence
        self._resumed = {}
        opens = grant.period > self.period
        self.period, self.expires_at = grant.period, grant.sent_at + grant.time_left_ns
        self.terms, self.granted = grant.terms, True
        self.grace.hear(now, grant, grant.standing, opens=opens)
        self._part, self.short = grant.part, dict(grant.short)
        self._unanswered = (sender, grant, now + self._answer_ns)

    def begin_next(self, now: int) -> bool:
        """Nobody has spoken of the next period, and it is time: begin it with the zone's standing part."""
        if not self.look() or not self.granted or not self.grace.is_due(now, self.expires_at):
            return False
        self.expires_at = self.grace.find_end(self.expires_at)
        self.period += 1
        self._part = self.grace.begin()
        self._forget_rows()
        self._unanswered = None
        return True

    def _forget_rows(self) -> None:
        """Everybody has its part of what the zone has."""
        self._allotment.clear()
        self._resumed = {}

    def wake_at(self) -> int | None:
        if not self._book.leading:
            return None
        due = [self.grace.find_start(self.expires_at), self._unanswered and self._unanswered[2]]
        return min((each for each in due if each is not None), default=None)

    def acknowledge(self, now: int) -> Effects:
        """The grant that was taken, once servers have given up what it takes away, or soon anyway."""
        if self._unanswered is None or not self.look():
            return []
        sender, grant, latest = self._unanswered
        if now < latest and grant.period == self._book.state.period and not self._book.settled:
            return []
        self._unanswered = None
        raised = self._find_raised(grant)
        ack = Ack(self.name, self.life, grant.epoch, grant.sequence, grant.period, raised)
        return [Send(sender, ack)]

    def _find_raised(self, grant: Grant) -> tuple[tuple[str, int], ...]:
        if not self._knows_from <= self._book.state.period == grant.period:
            return ()
        held = self._book.count_held(self._list_named())
        return tuple((tenant, held[tenant]) for tenant in held if held[tenant] > self._find_granted(tenant))

    def _find_granted(self, tenant: str) -> int:
        terms = self._book.terms.get(tenant)
        row = self._find_row(tenant)
        return (
            self._count_part(tenant, terms)
            if row is None and terms is not None
            else row.allowance
            if row
            else 0
        )

    # -- what it says

    def _list_named(self) -> list[str]:
        """Whoever a message has named: all others have their part."""
        return list(dict.fromkeys([*self.find_named(), *self._book.tokens.roll.names]))

    def _report(self, now: int, sender: str, poll: Poll) -> Report:
        to = (sender, poll.epoch)
        whole = poll.full or to != self._reported_to
        rows = {row.tenant: row for row in self._tell_rows()}
        news = whole or self._reported is None or _is_news(self._reported, rows)
        if news:
            self._reported, self._reported_to, self._reported_at = rows, to, now
        return Report(
            server=self.name,
            incarnation=self.life,
            asked_at=poll.asked_at,
            sent_at=now,
            stands_at=self._reported_at,
            epoch=self._epoch,
            sequence=self._sequence,
            period=self.period,
            time_left_ns=max(0, self.expires_at - now),
            seen_ns=self._period_ns,
            capacity=sum(self._find_rate(each.name) for each in self._views() if not each.left),
            rows=make_rows(rows.values(), whole) if news else None,
            lives=self._lives if max(poll.period, self._knows_from) <= self.period else (),
            part=self._part,
            over_ns=self.grace.tell(now, self.period, poll.period),
        )

    def _tell_rows(self) -> tuple[Row, ...]:
        book, terms = self._book, self._book.terms
        named = [tenant for tenant in self._list_named() if tenant in terms]
        known = self._knows_from <= self.period == book.state.period
        held = book.count_held(named) if known else {}
        seen = self._sum_up(named)
        rows = []
        for tenant in named:
            part = self._count_part(tenant, terms[tenant])
            allowance = max(self.find(tenant, terms[tenant]), held.get(tenant, 0))
            row = seen[tenant].tell(tenant, allowance, self._period_ns)
            if allowance != part or row.dispatched or row.pending or row.arrived:
                rows.append(row)
        return tuple(rows)

    def _sum_up(self, tenants: Iterable[str]) -> dict[str, Sum]:
        """What the zone's servers see of each."""
        book = self._book
        sums = {tenant: Sum() for tenant in tenants}
        views = self._views()
        listed = {view.name: book.tokens.list_rows(view) for view in views}
        moving = {row.tenant for rows in listed.values() for row in rows if row.arrived}
        for view in views:
            rate, present = self._find_rate(view.name), view.report.period == self.period
            for row in listed[view.name]:
                if row.tenant in sums:
                    sums[row.tenant].add(row, present, _find_wish(row, rate, view.seen_ns, moving))
        over = book.tokens.buried if self.period == book.state.period else ()
        for tenant, lost in book.tokens.count(sums, over).items():
            sums[tenant].dispatched += lost if lost < UNBOUNDED else 0
        return sums

    def _views(self) -> Collection[ServerView]:
        return self._book.tokens.views.values()


def _is_news(old: Mapping[str, Row], new: Mapping[str, Row]) -> bool:
    """By the measure that servers have."""
    return list(old) != list(new) or is_news(_tabulate(old), _tabulate(new))


def _tabulate(rows: Mapping[str, Row]) -> Whole:
    return (
        np.array([(k, *astuple(row)[1:]) for k, row in enumerate(rows.values())], np.int64).reshape(-1, 8).T
    )


def _find_wish(row: Row, rate: float, seen_ns: int, moving: Container[str]) -> float:
    """What a tenant would use at a server, in tokens a second. One that always waits wants whatever the
    server can do, unless it has turned to others and waits only for what it left here."""
    if row.backlogged and (row.arrived or row.tenant not in moving):
        return rate
    return min(rate, row.arrived * SECOND_NS / seen_ns) if seen_ns else 0.0


class Sum:
    """What several servers see of one tenant."""

    def __init__(self) -> None:
        self.dispatched = self.pending = self.front = self.front_ns = 0
        self._rate = 0.0

    def add(self, row: Row, present: bool, rate: float) -> None:
        self.dispatched += row.dispatched * present
        self.pending += row.pending
        self._rate += rate
        if row.front and row.front_ns >= self.front_ns:
            self.front, self.front_ns = row.front, row.front_ns

    def tell(self, tenant: str, allowance: int, seen_ns: int) -> Row:
        arrived = int(self._rate * seen_ns / SECOND_NS)
        return Row(
            tenant, allowance, self.dispatched, self.pending, arrived, False, self.front, self.front_ns
        )
