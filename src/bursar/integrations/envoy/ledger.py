"""The book of the Envoys of one rate on one node: what they were told, and what is charged for it.

An Envoy that was told "so many a second for eight seconds" may use them whatever bursar does meanwhile. So
an assignment is a debt of its tenant from the moment it is sent until it has surely ended: it falls due
steadily, a burst at once, and the courier charges it at the node's own door, as it would a client's request.

Invariants:
- `owed`, what Envoys may have used beyond what is charged, is at most `most_owed` when a rate rises: a rise
  is charged first, a burst and a quarter of a second of it;
- what was told counts as used until a report that came in time says that it was not;
- what is out counts until the Envoy's time for it is over, whether it is heard of again or not; an Envoy that
  is not heard of counts with the most that it was sent since it was;
- what one account's cells are told adds up to the tenant's limit at most.

Demand is the most of an Envoy's last reports: load that comes and goes finds its part still there. An Envoy
whose last reports say nothing is told to forget the tenant, so that its next request is told of at once.
"""

from __future__ import annotations

import math
from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass

from bursar.integrations.envoy.accounts import (
    BURST_S,
    CLOSE,
    CLOSE_PART,
    CLOSE_S,
    FORGETTING,
    GUESS,
    OWED_LEAST,
    RISE_NS,
    ROOMY,
    SAYING,
    SCARCE_BURST_S,
    SEEN_MIN_NS,
    UNLIMITED,
    Account,
)
from bursar.integrations.envoy.cells import (
    ABANDON,
    DENY,
    FILL_S,
    MARGIN_NS,
    TIME_TO_LIVE_S,
    Cell,
    FindTerms,
    Line,
    Terms,
)
from bursar.world import SECOND_NS


@dataclass(slots=True)
class Told:
    """What a cell is to be told: a rate, ALLOW_ALL or ABANDON; and how much at once."""

    cell: Cell
    rate: int
    burst: int


class Ledger:
    """All accounts of one resource on one node."""

    def __init__(self, find_terms: FindTerms, *, keeps: bool, quiet_ns: int) -> None:
        """`keeps`: Envoys keep what they have when bursar is away. `quiet_ns`: how long an Envoy that wants
        nothing keeps a standing part."""
        self.accounts: dict[str, Account] = {}
        self.keeps = keeps
        self.quiet_ns = quiet_ns
        self._find_terms = find_terms

    def account(self, tenant: str, now: int) -> Account | None:
        """None for a tenant that there is not."""
        found = self.accounts.get(tenant)
        if found is None:
            terms = self._find_terms(tenant)
            if terms is None:
                return None
            found = self.accounts[tenant] = Account(tenant, terms, now)
        return found

    def change(self, now: int) -> list[Account]:
        """The policy is another one. Those that are no tenants now are refused at once."""
        for account in self.accounts.values():
            account.advance(now)
            account.terms = self._find_terms(account.tenant) or Terms(0.0, 0.0)
            account.covered = UNLIMITED
        return list(self.accounts.values())

    # -- what Envoys say

    def report(
        self, now: int, line: Line, tenant: str, elapsed_s: int, allowed: int, denied: int
    ) -> Account | None:
        account = self.account(tenant, now)
        if account is None:
            return None
        account.advance(now)
        cell = account.cells.get(line.slot)
        if cell is None:
            cell = account.cells[line.slot] = Cell(line, seen_at=now)
        cell.most = cell.rate or 0
        if allowed + denied:
            cell.busy_at = now
        if cell.rate is None:
            self._welcome(now, account, cell, elapsed_s, allowed, denied)
        else:
            account.take_back(now, cell, allowed)
            self._measure(now, cell, elapsed_s, allowed + denied)
        return account

    def _welcome(
        self, now: int, account: Account, cell: Cell, elapsed_s: int, allowed: int, denied: int
    ) -> None:
        """A newcomer is taken to want what it wanted before, else an even part. One that says what it used
        comes from another node, or back: it wants what it used. (What Envoys let through on their own, while
        nobody told them, is charged to nobody.)"""
        cell.seen_at, cell.new = now, True
        if elapsed_s > 0:
            self._adopt(account, allowed / (elapsed_s + 1))
            cell.note((allowed + denied) / (elapsed_s + 0.5))
            return
        account.due += min(allowed, account.terms.burst)
        others = [each.peak for each in account.cells.values() if each.peak and not each.gone]
        most = account.terms.limit if account.terms.limit < UNLIMITED else GUESS
        even = sum(min(peak, most) for peak in others) / len(others) if others else most
        cell.note(min(cell.remembered or even, most))

    def _adopt(self, account: Account, used: float) -> None:
        """It was lost sight of here, or at another node: if here, it is not counted twice."""
        gone = [cell for cell in account.cells.values() if cell.gone]
        if gone:
            nearest = min(gone, key=lambda cell: abs(cell.most / FILL_S - used))
            del account.cells[nearest.line.slot]

    def _measure(self, now: int, cell: Cell, elapsed_s: int, count: int) -> None:
        """Rates go by this node's clock, because Envoy's comes in whole seconds; and by Envoy's where several
        reports come at once, after a time without any."""
        seen_ns = now - cell.seen_at
        cell.carry += count
        cell.carry_s += elapsed_s
        if seen_ns < SEEN_MIN_NS:
            return
        seen_ns = max(seen_ns, cell.carry_s * SECOND_NS)
        if cell.new and (cell.carry or cell.peak * seen_ns >= SAYING * SECOND_NS):
            cell.forget()  # what it was taken to want makes way for what it says, if it says anything
            cell.new = False
        cell.note(cell.carry * SECOND_NS / seen_ns)
        cell.carry, cell.carry_s, cell.seen_at = 0, 0, now
        cell.remembered = max(0.0 if cell.new else cell.peak, cell.remembered * FORGETTING)

    def leave(self, now: int, slot: int, tenants: Iterable[str], *, counts_ns: int) -> list[Account]:
        """A stream is over. What the Envoy holds counts until it ends; where it keeps it, for `counts_ns`."""
        found = []
        for tenant in tenants:
            account = self.accounts.get(tenant)
            cell = None if account is None else account.cells.get(slot)
            if account is None or cell is None:
                continue
            account.advance(now)
            cell.gone = True
            if self.keeps:
                cell.until = now + counts_ns
            found.append(account)
        return found

    # -- what they are told

    def plan(self, now: int, account: Account, *, renew: int | None = None) -> tuple[list[Told], float]:
        """Who is to be told what else, and how many tokens are to be charged first. `renew`: the
        slot of one whose time begins anew in any case."""
        account.advance(now)
        account.expire(now)
        rates = self._split(now, account)
        told, before = [], account.in_force(now)
        after = before
        for slot, rate in rates.items():
            cell = account.cells[slot]
            burst = find_burst(account.terms, rate, scarce=account.is_scarce(now))
            if rate == cell.rate and slot != renew:
                continue
            told.append(Told(cell, rate, burst if rate != cell.rate else cell.burst))
            after += max(rate, 0) / FILL_S - (cell.rate or 0) / FILL_S
        risen = max(0.0, after - before - CLOSE * before) * RISE_NS / SECOND_NS
        bursts = sum(each.burst for each in told if each.rate > 0 and each.rate != each.cell.rate)
        # So much may always be owed; and more where rates only move, and all together rise by nothing.
        allowed = max(account.terms.burst, OWED_LEAST / 2) if risen else account.most_owed
        return told, account.owed + risen + bursts - allowed

    def _split(self, now: int, account: Account) -> dict[int, int]:
        repaid = account.find_repayment()
        total = max(0.0, min(account.wish(now) - max(0.0, repaid), account.covered - repaid))
        here = {slot: cell for slot, cell in account.cells.items() if not cell.gone}
        weights = {slot: min(cell.peak, account.terms.limit) for slot, cell in here.items()}
        whole = sum(weights.values())
        idle = {slot: cell for slot, cell in here.items() if not cell.peak and cell.rate is not None}
        rates = {slot: self._rest(now, account, cell) for slot, cell in idle.items()}
        for slot, weight in weights.items():
            if here[slot].peak:
                rates[slot] = int(total * weight / whole * FILL_S) if whole else DENY
        return self._keep_close(account, here, rates)

    def _rest(self, now: int, account: Account, cell: Cell) -> int:
        """One that wants nothing now."""
        if now - cell.busy_at >= self.quiet_ns:
            return ABANDON
        return min(int(account.terms.limit * FILL_S), FILL_S // 10)

    def _keep_close(
        self, account: Account, here: Mapping[int, Cell], rates: dict[int, int]
    ) -> dict[int, int]:
        """A change by little is not worth a message, nor the burst that it begins with: as long as all
        together are no more than the limit."""
        kept = dict(rates)
        above = CLOSE if account.is_scarce(account.at) else ROOMY
        for slot, rate in rates.items():
            old = here[slot].rate
            least = min(here[slot].burst / CLOSE_S * FILL_S, CLOSE_PART * rate)
            if old and rate > 0 and -max(CLOSE * rate, least) <= old - rate <= max(above * rate, least):
                kept[slot] = old
        most = account.terms.limit * FILL_S
        return rates if sum(max(rate, 0) for rate in kept.values()) > most else kept

    def send(self, now: int, account: Account, told: list[Told], time_to_live_ns: int) -> None:
        """These are on their way from now on."""
        account.advance(now)
        for each in told:
            cell = each.cell
            if each.rate > 0 and each.rate != cell.rate:
                account.fall_due(cell, each.burst)
            if each.rate == ABANDON:
                # Nothing is heard of it any more: it counts as long as if it had been told nothing.
                cell.rate, cell.until = None, min(cell.until, now + TIME_TO_LIVE_S * SECOND_NS)
                cell.forget()
                continue
            cell.rate, cell.burst = max(each.rate, 0), each.burst
            cell.most = max(cell.most, cell.rate)
            cell.until = now + time_to_live_ns + MARGIN_NS

    def __iter__(self) -> Iterator[Account]:
        return iter(self.accounts.values())


def find_burst(terms: Terms, rate: int, *, scarce: bool) -> int:
    """Tokens that one Envoy may let through at once: some seconds of its part, within the tenant's burst.
    Every change begins with a full one, so where tokens are scarce it is small: they are all used anyway."""
    part_s = SCARCE_BURST_S if scarce else BURST_S
    # With room for one token, what fills it beyond that between two requests would be lost.
    return max(2, math.ceil(min(terms.burst, max(rate, 0) / FILL_S * part_s)))
