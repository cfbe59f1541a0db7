"""The book of a fleet: what each Envoy was assigned, and what may still be in force there.

An Envoy obeys an assignment until it is replaced or its time to live has passed, and never
acknowledges one: its reports carry no number. So an assignment that was shrunk counts, in full,
until its old time to live is over (`holds`). Rates are whole tokens a fill interval; time is an
argument; nothing here knows of gRPC.

Invariants, after every call:
1. A tenant's current assignments sum to at most its limit; all tenants' to at most the capacity.
2. What may be in force (the larger of current and held) sums to at most (1 + overlap) times the
   limit, and times the capacity. `overlap` 0: shrink, wait out the old time to live, then grow
   elsewhere. Above 0, growing starts at once by that much, and the bound says so.
3. After a start, until whatever an earlier server assigned has run out, an Envoy gets at most
   what it was seen to use: that it had already.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np

from bursar.integrations.envoy.split import UNLIMITED, Flags, Terms, Whole, share_out, shortfall, spread
from bursar.world import SECOND_NS

FILL_S = 10
"""Seconds of a fill interval. One for all: Envoy does not notice a new interval of other whole
seconds, and takes one below a second for none. It fills evenly all the same."""

ALLOW_ALL = -1
"""Stands for an assignment without any bound."""

ABANDON = -2
"""Stands for an assignment that is taken back: the Envoy forgets the tenant until it sends."""

NEWCOMER = -1
"""Stands for the use of an Envoy that has just begun with a tenant."""

MARGIN_NS = SECOND_NS
"""How long an assignment may be under way before its time to live begins at the Envoy."""

SEEN_MIN_NS = SECOND_NS
"""A report of less time than this says little of a rate: it is counted into the next."""

MOVED_PART = 0.05
MOVED_FLOOR = 2 * FILL_S
"""A change by less than both (a part, tokens a fill interval) is not worth a message: each new
assignment lets Envoy start with a full burst."""

REMEMBER_NS = 12 * SECOND_NS
"""For so long (two reports and some) what a tenant wanted of its reservation is kept for it."""

QUIET_NS = 60 * SECOND_NS
CELLS_MAX = 20_000_000


@dataclass(frozen=True, slots=True)
class Orders:
    """What one Envoy is to be told: for each row a rate, ALLOW_ALL or ABANDON."""

    slot: int
    rows: Whole
    rates: Whole


class FleetBook:
    """All state that the bound rests on. A slot is one Envoy's stream; its column in the arrays."""

    def __init__(
        self,
        tenants: Sequence[str],
        terms: Terms,
        now: int,
        *,
        hold_ns: int = 8 * SECOND_NS,
        overlap: float = 0.5,
        fresh: bool = False,
        keeps: bool = False,
    ) -> None:
        """`fresh`: nothing of an earlier server is in force. `keeps`: Envoys do not let an
        assignment run out, so what they hold need not be renewed while it is being learnt."""
        self.tenants = tuple(tenants)
        self.terms = terms
        self.rows: Mapping[str, int] = {name: row for row, name in enumerate(tenants)}
        self.overlap = overlap
        self.hold_ns = hold_ns
        self.keeps = keeps
        self.learnt_at = now if fresh else now + hold_ns + MARGIN_NS
        self._free_after: dict[int, int] = {}
        self._slots: dict[int, int] = {}
        self._wanted = np.zeros(len(tenants), np.int64)
        self._wanted_at = np.full(len(tenants), now, np.int64)
        self._make_columns(0)

    # -- who is there -----------------------------------------------------------------------

    def _make_columns(self, count: int) -> None:
        rows = len(self.tenants)
        for name, kind in _COLUMNS.items():
            old = getattr(self, name, None)
            new: Any = np.zeros((rows, count), kind)
            if old is not None:
                new[:, : old.shape[1]] = old
            setattr(self, name, new)

    def join(self, now: int) -> int | None:
        """A new Envoy's slot. None when there is no room for another."""
        for slot, free_at in self._free_after.items():
            if free_at <= now:
                del self._free_after[slot]
                for name in _COLUMNS:
                    getattr(self, name)[:, slot] = 0
                self._slots[slot] = now
                return slot
        slot = int(self.current.shape[1])
        if (slot + 1) * max(1, len(self.tenants)) > CELLS_MAX:
            return None
        self._make_columns(slot + 1)
        self._slots[slot] = now
        return slot

    def leave(self, now: int, slot: int) -> None:
        """The stream is over; what the Envoy holds counts until it runs out."""
        if self._slots.pop(slot, None) is None:
            return
        self._hold(self.current[:, slot] > 0, slot)
        self.current[:, slot] = 0
        self.member[:, slot] = False
        self.demand[:, slot] = 0
        last = max(self.held_until[:, slot].max(initial=0), self.older_until[:, slot].max(initial=0))
        self._free_after[slot] = max(now, int(last))

    @property
    def envoys(self) -> tuple[int, ...]:
        return tuple(self._slots)

    # -- what they say ----------------------------------------------------------------------

    def report(
        self,
        now: int,
        slot: int,
        rows: Sequence[int],
        elapsed_s: Sequence[int],
        allowed: Sequence[int],
        denied: Sequence[int],
    ) -> None:
        """Take in a report, one line a tenant. Rates go by this server's clock: Envoy's elapsed time
        comes in whole seconds, rounded down."""
        self._slots[slot] = now
        lines = np.array([rows, elapsed_s, allowed, denied], np.int64)
        known = self.member[lines[0], slot]
        self._welcome(now, slot, *lines[:, ~known])
        self._measure(now, slot, lines[0, known], (lines[2] + lines[3])[known])
        self.due[lines[0], slot] = True

    def _welcome(
        self, now: int, slot: int, rows: Whole, elapsed_s: Whole, allowed: Whole, denied: Whole
    ) -> None:
        """Newcomers are taken to want an even share until a report says what they want; those that
        were here before (a stream broke, or this server was away) say it already."""
        self.member[rows, slot] = True
        self.seen_at[rows, slot] = now
        self.busy_at[rows, slot] = now
        said = (allowed + denied) * FILL_S // (elapsed_s + 1)
        self.demand[rows, slot] = np.where(elapsed_s > 0, said, self._even_share(rows))
        # Never more than was really used: the seconds are rounded down, so one is added.
        used = allowed * FILL_S // (elapsed_s + 1)
        self.evidence[rows, slot] = np.where(elapsed_s > 0, used, NEWCOMER)

    def _even_share(self, rows: Whole) -> Whole:
        most = np.minimum(self.terms.limit[rows], self.terms.capacity)
        share: Whole = most // np.maximum(self.member[rows].sum(axis=1), 1)
        return np.where(most >= UNLIMITED, FILL_S, share)

    def _measure(self, now: int, slot: int, rows: Whole, count: Whole) -> None:
        seen_ns = now - self.seen_at[rows, slot]
        total = count + self.carry[rows, slot]
        enough = seen_ns >= SEEN_MIN_NS
        self.carry[rows, slot] = np.where(enough, 0, total)
        self.busy_at[rows[count > 0], slot] = now
        rows, total, seen_ns = rows[enough], total[enough], seen_ns[enough]
        self.demand[rows, slot] = (total * (FILL_S * SECOND_NS / np.maximum(seen_ns, 1))).astype(np.int64)
        self.seen_at[rows, slot] = now

    # -- what they are told -----------------------------------------------------------------

    def decide(self, now: int) -> list[Orders]:
        """A round: shrink what must shrink, grow what has room, renew what was reported on."""
        if not self.current.size:
            return []
        self._expire(now)
        target = self._learn() if now < self.learnt_at else self._aim(now)
        before = self.current.copy()
        shrunk = np.minimum(before, target)
        self._hold(shrunk < before)
        self.current = shrunk
        self.current = shrunk + self._grow(target - shrunk)
        return self._order(now, before)

    def _expire(self, now: int) -> None:
        over = (self.expires_at <= now) & (self.current > 0)
        self.current[over] = 0
        silent = [slot for slot, heard_at in self._slots.items() if heard_at + self.hold_ns <= now]
        self.demand[:, silent] = 0
        for amount, until in ((self.held, self.held_until), (self.older, self.older_until)):
            amount[until <= now] = 0

    def _learn(self) -> Whole:
        """What each Envoy was seen to use; newcomers, who can hold nothing, share the overlap."""
        share = (self.overlap * self._even_share(np.arange(len(self.tenants)))).astype(np.int64)
        seen = np.zeros_like(self.evidence) if self.keeps else np.maximum(self.evidence, 0)
        used = np.maximum(self.current, np.where(self._newcomers(), share[:, None], seen))
        part = np.minimum(1.0, self.terms.limit / np.maximum(used.sum(axis=1), 1))
        all_part = min(1.0, self.terms.capacity / max(float((used.sum(axis=1) * part).sum()), 1.0))
        learnt: Whole = np.floor(used * (part * all_part)[:, None]).astype(np.int64)
        return learnt

    def _newcomers(self) -> Flags:
        new: Flags = self.member & (self.evidence == NEWCOMER)
        return new

    def _aim(self, now: int) -> Whole:
        target = share_out(self.terms, self._firm_demand(now), self.member)
        close = np.abs(target - self.current) <= np.maximum(
            MOVED_PART * np.maximum(target, self.current), MOVED_FLOOR
        )
        kept = np.where(close & (self.current > 0) & (target > 0) & self.member, self.current, target)
        kept = np.where((kept.sum(axis=1) > self.terms.limit)[:, None], target, kept)
        if int(kept.sum(dtype=np.float64)) > self.terms.capacity:
            kept = np.minimum(kept, target)
        return kept

    def _firm_demand(self, now: int) -> Whole:
        """Demand, where a reserved tenant's is taken for what it was until REMEMBER_NS have passed:
        a reservation that was lent comes back only after reports and a time to live."""
        totals = self.demand.sum(axis=1)
        renew = (totals >= self._wanted) | (now - self._wanted_at >= REMEMBER_NS)
        self._wanted = np.where(renew, totals, self._wanted)
        self._wanted_at = np.where(renew, now, self._wanted_at)
        missing = np.maximum(np.minimum(self._wanted, self.terms.reservation) - totals, 0)
        if not missing.any():
            return self.demand
        return self.demand + spread(missing, np.where(self.member, self.demand + 1, 0))

    def _hold(self, cells: Flags, slot: int | None = None) -> None:
        """What stands in these cells may stay in force until it expires, whatever is sent now.
        Two shrinks within one time to live are kept apart; a third joins the older one."""
        at = np.s_[:, :] if slot is None else np.s_[:, slot]
        again = cells & (self.held[at] > 0)
        self.older[at] = np.where(again, np.maximum(self.older[at], self.held[at]), self.older[at])
        until = np.maximum(self.older_until[at], self.held_until[at])
        self.older_until[at] = np.where(again, until, self.older_until[at])
        self.held[at] = np.where(cells, self.current[at], self.held[at])
        self.held_until[at] = np.where(cells, self.expires_at[at], self.held_until[at])

    def in_force(self) -> Whole:
        """The most that each Envoy may still be letting through."""
        most: Whole = np.maximum(self.current, np.maximum(self.held, self.older))
        return most

    def _grow(self, wish: Whole) -> Whole:
        """As much of the wish as the bounds leave room for."""
        force = self.in_force()
        more = np.maximum(self.current + wish - force, 0)
        free = wish - more
        room = (self.terms.limit * (1.0 + self.overlap)).astype(np.int64) - force.sum(axis=1)
        wanted = more.sum(axis=1)
        part = np.clip(room / np.maximum(wanted, 1), 0.0, 1.0)
        more = np.floor(more * part[:, None]).astype(np.int64)
        left = int(self.terms.capacity * (1.0 + self.overlap)) - int(force.sum())
        total = int(more.sum())
        if total > max(left, 0):
            more = np.floor(more * (max(left, 0) / total)).astype(np.int64)
        grown: Whole = free + more
        return grown

    def _order(self, now: int, before: Whole) -> list[Orders]:
        send = ((self.current != before) | self.due) & self.member
        if now < self.learnt_at:
            # To one that may hold more than we know of, no word is better than "nothing".
            send &= (self.current > 0) | self._newcomers()
        # One that has nothing and wants nothing is forgotten at once: its next request then makes
        # the Envoy report at once, not at the end of its interval.
        idle = (self.current == 0) & (self.demand == 0) & (now - self.busy_at >= SEEN_MIN_NS)
        quiet = send & self.due & (idle | (now - self.busy_at >= QUIET_NS))
        self.due[:] = False
        self.expires_at[send] = now + self.hold_ns + MARGIN_NS
        open_rows = (self.terms.limit >= UNLIMITED) & (self.terms.capacity >= UNLIMITED)
        orders = []
        for slot in self._slots:
            rows = np.flatnonzero(send[:, slot])
            if not rows.size:
                continue
            rates = np.where(open_rows[rows], ALLOW_ALL, self.current[rows, slot])
            gone = quiet[rows, slot]
            orders.append(Orders(slot, rows, np.where(gone, ABANDON, rates)))
            self._abandon(slot, rows[gone])
        return orders

    def _abandon(self, slot: int, rows: Whole) -> None:
        if rows.size:
            cells = np.zeros(len(self.tenants), bool)
            cells[rows] = self.current[rows, slot] > 0
            self._hold(cells, slot)
            self.current[rows, slot] = 0
            self.demand[rows, slot] = 0
            self.member[rows, slot] = False

    def next_at(self, now: int) -> int | None:
        """When another round may do more, though nothing is heard: when something held runs out."""
        times = [t[t > now].min(initial=2**62) for t in (self.held_until, self.older_until, self.expires_at)]
        soonest = int(min(times)) if self._slots else 2**62
        if now < self.learnt_at and self._slots:
            soonest = min(soonest, self.learnt_at)
        return None if soonest >= 2**62 else soonest

    # -- what may be asked ------------------------------------------------------------------

    def shortfall(self) -> Whole:
        return shortfall(self.terms, self.demand)

    current: Whole
    demand: Whole
    evidence: Whole
    carry: Whole
    held: Whole
    held_until: Whole
    older: Whole
    older_until: Whole
    expires_at: Whole
    seen_at: Whole
    busy_at: Whole
    member: Flags
    due: Flags


_COLUMNS = {
    **dict.fromkeys(
        ("current", "demand", "evidence", "carry", "held", "held_until", "older", "older_until"), np.int64
    ),
    **dict.fromkeys(("expires_at", "seen_at", "busy_at"), np.int64),
    **dict.fromkeys(("member", "due"), np.bool_),
}
